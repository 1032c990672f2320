// SPDX-License-Identifier: Apache-2.0
//! A step of decoding: the new tokens of three sequences, each at its own position, rotated inside their packed QKV.
use rope::{Args, Desc, Device, Dtype, Layout, Style, View, ViewMut};

const TOKENS: usize = 3;
const Q_HEADS: usize = 8;
const K_HEADS: usize = 2; // and as many of v
const HEADS: usize = Q_HEADS + 2 * K_HEADS;
const HEAD_DIM: usize = 64;

fn main() -> rope::Result<()> {
    let desc =
        Desc::builder(Device::Cpu, Dtype::F32, Layout::Thd, Style::Half, HEAD_DIM as i32).theta(10000.0).build()?;

    let mut qkv = vec![0.0f32; TOKENS * HEADS * HEAD_DIM];
    for head in qkv.chunks_mut(HEAD_DIM) {
        head[..HEAD_DIM / 2].fill(1.0); // every pair is (1, 0)
    }
    let positions = [7i64, 1000, 131072];

    let packed = ViewMut::new(&mut qkv, &[TOKENS, HEADS, HEAD_DIM])?;
    let (q, rest) = packed.split_at(1, Q_HEADS)?;
    let k = rest.narrow(1, 0, K_HEADS)?;
    desc.forward(&mut Args::new(q).k(k).positions(View::new(&positions, &[TOKENS])?))?;

    for (token, position) in positions.iter().enumerate() {
        let q = &qkv[token * HEADS * HEAD_DIM..];
        println!("position {position:6}: the first pair is ({:9.6}, {:9.6})", q[0], q[HEAD_DIM / 2]);
    }
    Ok(())
}
