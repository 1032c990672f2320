// SPDX-License-Identifier: Apache-2.0
//! The safe interface on CPU memory. The C library's tests check the meaning of numbers; these check that numbers
//! arrive.

use rope::*;
use std::thread;

const HEAD_DIM: usize = 32;
const PAIRS: usize = HEAD_DIM / 2;

fn builder<'a>(dtype: Dtype) -> DescBuilder<'a> {
    Desc::builder(Device::Cpu, dtype, Layout::Thd, Style::Half, HEAD_DIM as i32).num_threads(1)
}

fn thd(dtype: Dtype) -> Desc {
    builder(dtype).theta(10000.0).build().unwrap()
}

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i as f32 * 0.37).sin()).collect()
}

/// Rotates pair i of every head, in the style of halves.
fn rotated(data: &[f32], heads: usize, position: impl Fn(usize) -> i64, sign: f64) -> Vec<f32> {
    let mut out = data.to_vec();
    for (row, head) in out.chunks_mut(HEAD_DIM).enumerate() {
        for i in 0..PAIRS {
            let angle = sign * position(row / heads) as f64 * 10000f64.powf(-2.0 * i as f64 / HEAD_DIM as f64);
            let (x, y) = (head[i] as f64, head[i + PAIRS] as f64);
            head[i] = (x * angle.cos() - y * angle.sin()) as f32;
            head[i + PAIRS] = (x * angle.sin() + y * angle.cos()) as f32;
        }
    }
    out
}

fn assert_near(found: &[f32], wanted: &[f32]) {
    assert_eq!(found.len(), wanted.len());
    for (i, (a, b)) in found.iter().zip(wanted).enumerate() {
        assert!((a - b).abs() < 2e-6, "element {i} is {a} instead of {b}");
    }
}

fn message<T: std::fmt::Debug>(result: Result<T>) -> String {
    let error = result.unwrap_err();
    assert_eq!(error.status(), Status::InvalidArgument, "{error}");
    error.message().to_string()
}

#[test]
fn rotates_in_place_and_out_of_place_and_back() {
    let desc = thd(Dtype::F32);
    let given = numbers(5 * 2 * HEAD_DIM);
    let shape = [5, 2, HEAD_DIM];
    let positions = [3i32, 0, -7, 100, 4];
    let wanted = rotated(&given, 2, |token| positions[token] as i64, 1.0);

    let mut out = vec![0.0f32; given.len()];
    let q = View::new(&given, &shape).unwrap();
    let q_out = ViewMut::new(&mut out, &shape).unwrap();
    desc.forward(&mut Args::new((q, q_out)).positions(View::new(&positions, &[5]).unwrap())).unwrap();
    assert_near(&out, &wanted);

    let mut here = given.clone();
    let mut view = ViewMut::new(&mut here, &shape).unwrap();
    let positions = View::new(&positions, &[5]).unwrap();
    desc.forward(&mut Args::new(view.reborrow()).positions(positions)).unwrap();
    desc.backward(&mut Args::new(view).positions(positions)).unwrap();
    assert_near(&here, &given);
}

#[test]
fn parts_of_a_packed_tensor_are_written_and_the_rest_is_not() {
    let desc = thd(Dtype::F32);
    let given = numbers(3 * 7 * HEAD_DIM);
    let mut qkv = given.clone();
    let packed = ViewMut::new(&mut qkv, &[3, 7, HEAD_DIM]).unwrap();
    let (q, rest) = packed.split_at(1, 4).unwrap();
    let (k, v) = rest.split_at(1, 1).unwrap();
    let mut sum = vec![0i64; 2];
    let fault = ViewMut::new(&mut sum, &[2]).unwrap();
    desc.forward(&mut Args::new(q).k(k).position_offset(9).fault(fault)).unwrap();
    let _ = v;
    let wanted = rotated(&given, 7, |token| token as i64 + 9, 1.0);
    for (row, head) in qkv.chunks(HEAD_DIM).enumerate() {
        let source = if row % 7 < 5 { &wanted } else { &given };
        assert_near(head, &source[row * HEAD_DIM..][..HEAD_DIM]);
    }
    assert_eq!(sum, [0, 0]);
}

#[test]
fn every_dtype_arrives() {
    let f64s: Vec<f64> = numbers(HEAD_DIM).iter().map(|&x| x as f64).collect();
    let mut here = f64s.clone();
    thd(Dtype::F64)
        .forward(&mut Args::new(ViewMut::new(&mut here, &[1, 1, HEAD_DIM]).unwrap()).position_offset(2))
        .unwrap();
    assert!((here[0] - (f64s[0] * 2f64.cos() - f64s[PAIRS] * 2f64.sin())).abs() < 1e-15);

    let mut ones = vec![Bf16(0); HEAD_DIM];
    ones[0] = Bf16(0x3f80);
    thd(Dtype::Bf16).forward(&mut Args::new(ViewMut::new(&mut ones, &[1, 1, HEAD_DIM]).unwrap())).unwrap();
    assert_eq!(ones[0], Bf16(0x3f80)); // position 0
    let mut ones = vec![F16(0); HEAD_DIM];
    ones[PAIRS] = F16(0x3c00);
    thd(Dtype::F16).forward(&mut Args::new(ViewMut::new(&mut ones, &[1, 1, HEAD_DIM]).unwrap())).unwrap();
    assert_eq!(ones[PAIRS], F16(0x3c00));

    let mut wrong = vec![0.0f64; HEAD_DIM];
    let text = message(thd(Dtype::F32).forward(&mut Args::new(ViewMut::new(&mut wrong, &[1, 1, HEAD_DIM]).unwrap())));
    assert!(text.starts_with("rope_forward: q.dtype is"), "{text}");
}

#[test]
fn tables_angles_sequences_and_starts_arrive() {
    let desc = thd(Dtype::F32);
    let (mut cos, mut sin) = (vec![0.0f32; 8 * PAIRS], vec![0.0f32; 8 * PAIRS]);
    desc.fill_tables(
        &mut ViewMut::new(&mut cos, &[8, PAIRS]).unwrap(),
        &mut ViewMut::new(&mut sin, &[8, PAIRS]).unwrap(),
    )
    .unwrap();
    assert!((cos[3 * PAIRS] - 3f32.cos()).abs() < 1e-6 && (sin[3 * PAIRS] - 3f32.sin()).abs() < 1e-6);

    let given = numbers(4 * HEAD_DIM);
    let shape = [4, 1, HEAD_DIM];
    let mut computed = given.clone();
    desc.forward(&mut Args::new(ViewMut::new(&mut computed, &shape).unwrap())).unwrap();
    let mut looked_up = given.clone();
    let tables = [&cos, &sin].map(|table| View::new(table, &[8, PAIRS]).unwrap());
    desc.forward(&mut Args::new(ViewMut::new(&mut looked_up, &shape).unwrap()).tables(
        tables[0],
        tables[1],
        TableRows::ByPosition,
    ))
    .unwrap();
    assert_eq!(computed, looked_up); // equal bits

    // By token each token has its own row, although three of them are at the start of their sequence.
    let boundaries = [0i32, 1, 2, 4];
    let boundaries = View::new(&boundaries, &[4]).unwrap();
    let rows = tables.map(|table| table.narrow(0, 2, 4).unwrap());
    let mut by_token = given.clone();
    let q = ViewMut::new(&mut by_token, &shape).unwrap();
    desc.forward(&mut Args::new(q).cu_seqlens(boundaries).tables(rows[0], rows[1], TableRows::ByToken)).unwrap();
    assert_near(&by_token, &rotated(&given, 1, |token| token as i64 + 2, 1.0));
    let mut by_token = given.clone();
    let q = ViewMut::new(&mut by_token, &shape).unwrap();
    let angles: Vec<f32> = (0..4 * PAIRS).map(|i| (i / PAIRS) as f32).collect();
    let angles = View::new(&angles, &[4, PAIRS]).unwrap();
    desc.forward(&mut Args::new(q).cu_seqlens(boundaries).angles(angles, TableRows::ByToken)).unwrap();
    for (token, head) in by_token.chunks(HEAD_DIM).enumerate() {
        let (x, y) = (given[token * HEAD_DIM + 5], given[token * HEAD_DIM + 5 + PAIRS]);
        assert!((head[5] - (x * (token as f32).cos() - y * (token as f32).sin())).abs() < 2e-6);
    }

    let (boundaries, starts) = ([0i32, 1, 4], [50i64, 7]);
    let mut sequences = given.clone();
    desc.forward(
        &mut Args::new(ViewMut::new(&mut sequences, &shape).unwrap())
            .cu_seqlens(View::new(&boundaries, &[3]).unwrap())
            .start_positions(View::new(&starts, &[2]).unwrap()),
    )
    .unwrap();
    assert_near(&sequences, &rotated(&given, 1, |token| [50, 7, 8, 9][token], 1.0));
}

#[test]
fn frequencies_and_sections_arrive() {
    let recipe = Scaling { factor: 4.0, original_max_position: 32768, ..Scaling::new(ScalingType::Yarn) };
    let scaled = scaled_frequencies(HEAD_DIM as i32, 1e6, &recipe).unwrap();
    assert_eq!(scaled.inv_freq.len(), PAIRS);
    assert_eq!(scaled.inv_freq[0], 1.0);
    assert!((scaled.attention_scale - (0.1 * 4f64.ln() + 1.0)).abs() < 1e-15);
    let desc = builder(Dtype::F32).inv_freq(&scaled.inv_freq).attention_scale(scaled.attention_scale).build().unwrap();
    let mut q = vec![0.0f32; HEAD_DIM];
    q[0] = 1.0;
    desc.forward(&mut Args::new(ViewMut::new(&mut q, &[1, 1, HEAD_DIM]).unwrap()).position_offset(5)).unwrap();
    assert!((q[0] as f64 - scaled.attention_scale * 5f64.cos()).abs() < 1e-6);

    let factors = vec![2.0; PAIRS];
    let recipe = Scaling { pair_factors: &factors, ..Scaling::new(ScalingType::Factors) };
    assert_eq!(scaled_frequencies(HEAD_DIM as i32, 1e4, &recipe).unwrap().inv_freq[0], 0.5);
    let text = message(scaled_frequencies(
        HEAD_DIM as i32,
        1e4,
        &Scaling { pair_factors: &factors[1..], ..Scaling::new(ScalingType::Factors) },
    ));
    assert!(text.contains("num_factors"), "{text}");
    let text = message(scaled_frequencies(
        HEAD_DIM as i32,
        1e4,
        &Scaling { pair_factors: &factors[1..], long_factor: &factors, ..Scaling::new(ScalingType::Factors) },
    ));
    assert!(text.contains("one array has 16 factors and another 15: they must have as many"), "{text}");
    message(scaled_frequencies(-2, 1e4, &Scaling::new(ScalingType::None)));
    message(scaled_frequencies(4096, 1e4, &Scaling::new(ScalingType::None)));

    let axes = section_axes(HEAD_DIM as i32, 1e4, SectionsType::Chunked, &[4, 6, 6]).unwrap();
    assert_eq!(axes.pair_axis, [vec![0; 4], vec![1; 6], vec![2; 6]].concat());
    let desc = builder(Dtype::F32).theta(1e4).pair_axis(&axes.pair_axis).num_axes(3).build().unwrap();
    let positions = [2i64, 0, 0]; // [axes, tokens]
    let mut q = vec![1.0f32; HEAD_DIM];
    desc.forward(
        &mut Args::new(ViewMut::new(&mut q, &[1, 1, HEAD_DIM]).unwrap())
            .positions(View::new(&positions, &[3, 1]).unwrap()),
    )
    .unwrap();
    assert!(q[0] != 1.0 && q[4] == 1.0);
    message(section_axes(HEAD_DIM as i32, 1e4, SectionsType::Chunked, &[1; 9]));
}

#[test]
fn arrays_of_another_length_than_the_pairs_are_refused() {
    let text = message(builder(Dtype::F32).inv_freq(&[1.0; PAIRS - 1]).build());
    assert_eq!(text, "rope_desc_create: inv_freq has 15 entries: it must have one for each of 16 pairs");
    let text = message(builder(Dtype::F32).theta(1e4).pair_axis(&[0; 3]).build());
    assert!(text.contains("pair_axis has 3 entries"), "{text}");
    let text = message(Desc::builder(Device::Cpu, Dtype::F32, Layout::Thd, Style::Half, -8).inv_freq(&[]).build());
    assert!(text.starts_with("rope_desc_create: head_dim is -8"), "{text}");
}

/// The refusal names a field, and so shows that the field's value arrived.
fn assert_refused<T: std::fmt::Debug>(result: Result<T>, status: Status, words: &str) {
    let error = result.unwrap_err();
    assert!(error.status() == status && error.message().contains(words), "'{error}' instead of '{words}'");
}

#[test]
fn each_field_of_a_config_arrives() {
    let f32s = || builder(Dtype::F32).theta(1e4);
    for (desc, words) in [
        (f32s().rotary_dim(7), "rotary_dim is 7:"),
        (f32s().rotary_dim(8).rotary_offset(-3), "rotary_offset is -3:"),
        (f32s().theta(-1.5), "theta is -1.5:"),
        (f32s().attention_scale(f64::NAN), "attention_scale is nan:"),
        (f32s().num_axes(99), "num_axes is 99:"),
        (f32s().pair_block(5), "pair_block is 5:"),
        (f32s().num_threads(-4), "num_threads is -4:"),
        (f32s().norm(NormType::Layer, -1.5), "norm_eps is -1.5:"),
        (f32s().norm_tensors(NORM_Q | NORM_V), "norm_tensors is 5:"),
        (f32s().norm_order(NormOrder::After), "norm_order is 1:"),
        (f32s().norm_extent(NormExtent::Token), "norm_extent is 1:"),
        (f32s().norm_rounding(NORM_ROUND_BEFORE_WEIGHT | NORM_ROUND_AFTER_WEIGHT), "norm_rounding is 3:"),
        (f32s().norm_weight_offset(0.5), "norm_weight_offset is 0.5:"),
        (f32s().pair_axis(&[1; PAIRS]), "pair_axis[0] is 1:"),
        (f32s().theta(0.0).inv_freq(&[f64::INFINITY; PAIRS]), "inv_freq[0] is inf:"),
        (Desc::builder(Device::Cuda(-5), Dtype::F32, Layout::Thd, Style::Half, 32), "device_index is -5:"),
        (Desc::builder(Device::Cpu, Dtype::I64, Layout::Thd, Style::Half, 32), "dtype is"),
    ] {
        assert_refused(desc.build(), Status::InvalidArgument, words);
    }
    let rounding = f32s().quant_rounding(QUANT_ROUND_FIRST | 8);
    assert_refused(rounding.build(), Status::NotSupported, "quant_rounding is 0x9:");
    let rounding = f32s().rotation_rounding(ROTATION_ROUND_EACH + 1);
    assert_refused(rounding.build(), Status::NotSupported, "rotation_rounding is 2:");
    let swiglu = |device| Swiglu::builder(device, Dtype::F32);
    for (gating, words) in [
        (swiglu(Device::Cpu).alpha(f64::NAN), "alpha is nan:"),
        (swiglu(Device::Cpu).limit(-1.0), "limit is -1:"),
        (swiglu(Device::Cpu).up_offset(f64::INFINITY), "up_offset is inf:"),
        (swiglu(Device::Cpu).out_scale(f64::NAN), "out_scale is nan:"),
        (swiglu(Device::Cpu).num_threads(-4), "num_threads is -4:"),
        (swiglu(Device::Cpu).gate_softcap(-2.0), "gate_softcap is -2:"),
        (swiglu(Device::Cpu).up_softcap(f64::NAN), "up_softcap is nan:"),
        (swiglu(Device::Cpu).product_rounding(6), "product_rounding is 6:"),
        (swiglu(Device::Cpu).activation(Activation::Reglu).alpha(2.0), "alpha is 2 and activation is 3:"),
        (swiglu(Device::Cuda(-5)), "device_index is -5:"),
    ] {
        assert_refused(gating.build(), Status::InvalidArgument, words);
    }
}

#[test]
fn another_style_and_flags_arrive() {
    let given = numbers(HEAD_DIM);
    let mut interleaved = given.clone();
    let desc = builder(Dtype::F32).theta(1e4).out_style(Style::Interleaved).build().unwrap();
    desc.forward(&mut Args::new(ViewMut::new(&mut interleaved, &[1, 1, HEAD_DIM]).unwrap()).position_offset(3))
        .unwrap();
    let halves = rotated(&given, 1, |_| 3, 1.0);
    let wanted: Vec<f32> = (0..HEAD_DIM).map(|i| halves[i / 2 + i % 2 * PAIRS]).collect();
    assert_near(&interleaved, &wanted);
    let plain = Desc::builder(Device::Cpu, Dtype::F32, Layout::Thd, Style::Interleaved, HEAD_DIM as i32);
    let mut back = interleaved.clone();
    let mut args = Args::new(ViewMut::new(&mut back, &[1, 1, HEAD_DIM]).unwrap()).position_offset(3);
    plain.clone().theta(1e4).build().unwrap().backward(&mut args).unwrap();
    let text = message(plain.build().unwrap().forward(&mut args)); // a descriptor without theta is for tables
    assert!(text.contains("theta"), "{text}");
    assert_near(&back, &(0..HEAD_DIM).map(|i| given[i / 2 + i % 2 * PAIRS]).collect::<Vec<_>>());

    let mut q = [0.0f32; HEAD_DIM];
    let mut args = Args::new(ViewMut::new(&mut q, &[1, 1, HEAD_DIM]).unwrap()).flags(1 << 31);
    assert_refused(desc.forward(&mut args), Status::NotSupported, "rope_forward: flags is 0x80000000:");
    let (gate, mut up) = ([0.0f32; 4], [0.0f32; 4]);
    let gate = View::new(&gate, &[4]).unwrap();
    let mut args = SwigluArgs::forward_over_up(gate, ViewMut::new(&mut up, &[4]).unwrap()).flags(1 << 31);
    let swiglu = Swiglu::builder(Device::Cpu, Dtype::F32).build().unwrap();
    assert_refused(swiglu.forward(&mut args), Status::NotSupported, "swiglu_forward: flags is 0x80000000:");
}

/// RMS norm of each head with weights plus 1.
fn normed(data: &[f32], weight: &[f32], eps: f64) -> Vec<f32> {
    let mut out = data.to_vec();
    for head in out.chunks_mut(HEAD_DIM) {
        let squares: f64 = head.iter().map(|&x| x as f64 * x as f64).sum();
        let factor = 1.0 / (squares / HEAD_DIM as f64 + eps).sqrt();
        for (x, w) in head.iter_mut().zip(weight) {
            *x = (*x as f64 * factor * (*w as f64 + 1.0)) as f32;
        }
    }
    out
}

#[test]
fn norms_and_caches() {
    const PAGES: usize = 4;
    const ENTRIES: usize = 2;
    let desc = builder(Dtype::F32).theta(1e4).norm(NormType::Rms, 1e-3).norm_weight_offset(1.0).build().unwrap();
    let (q_weight, k_weight) = (numbers(HEAD_DIM), numbers(2 * HEAD_DIM)[HEAD_DIM..].to_vec());
    let given = numbers(3 * 4 * HEAD_DIM);
    let part = |head: usize, heads: usize| -> Vec<f32> {
        (0..3).flat_map(|t| given[(t * 4 + head) * HEAD_DIM..][..heads * HEAD_DIM].to_vec()).collect()
    };
    let wanted_q = rotated(&normed(&part(0, 2), &q_weight, 1e-3), 2, |token| token as i64 + 1, 1.0);
    let wanted_k = rotated(&normed(&part(2, 1), &k_weight, 1e-3), 1, |token| token as i64 + 1, 1.0);
    let wanted_v = part(3, 1);

    // Positions 1, 2 and 3 in pages 3 and 1: page 3 entry 1, page 1 entries 0 and 1.
    let slots = [7i64, 2, 3];
    let (table, list, indptr) = ([9i32, 9, 3, 1], [9i64, 3, 1], [1i64, 3]);
    let (sequence, positions) = ([1i32; 3], [1i64, 2, 3]);
    for by in 0..3 {
        let cache = match by {
            0 => Cache::by_slots(View::new(&slots, &[3]).unwrap()),
            1 => Cache::by_page_table(View::new(&table, &[2, 2]).unwrap())
                .sequence(View::new(&sequence, &[3]).unwrap())
                .positions(View::new(&positions, &[3]).unwrap()),
            _ => Cache::by_page_list(View::new(&list, &[3]).unwrap(), View::new(&indptr, &[2]).unwrap()),
        };
        let mut qkv = given.clone();
        let mut k_out = vec![0.0f32; 3 * HEAD_DIM];
        let mut pages = vec![f32::NAN; 2 * PAGES * ENTRIES * HEAD_DIM];
        {
            let packed = ViewMut::new(&mut qkv, &[3, 4, HEAD_DIM]).unwrap();
            let (q, rest) = packed.split_at(1, 2).unwrap();
            let (k, v) = rest.split_at(1, 1).unwrap();
            let both = ViewMut::new(&mut pages, &[PAGES, ENTRIES, 1, 2 * HEAD_DIM]).unwrap();
            let (k_cache, v_cache) = both.split_at(3, HEAD_DIM).unwrap();
            let norm = Norm::new()
                .q_weight(View::new(&q_weight, &[HEAD_DIM]).unwrap())
                .k_weight(View::new(&k_weight, &[HEAD_DIM]).unwrap());
            let k_out = ViewMut::new(&mut k_out, &[3, 1, HEAD_DIM]).unwrap();
            let mut args = Args::new(q)
                .k((k.as_view(), k_out))
                .v(v.as_view())
                .flags(V_UNROTATED)
                .position_offset(1)
                .norm(norm)
                .cache(cache.k_cache(k_cache).v_cache(v_cache));
            desc.forward(&mut args).unwrap();
        }
        assert_near(&k_out, &wanted_k);
        for token in 0..3 {
            let heads = &qkv[token * 4 * HEAD_DIM..][..4 * HEAD_DIM];
            assert_near(&heads[..2 * HEAD_DIM], &wanted_q[token * 2 * HEAD_DIM..][..2 * HEAD_DIM]);
            assert_near(&heads[2 * HEAD_DIM..], &given[(token * 4 + 2) * HEAD_DIM..][..2 * HEAD_DIM]);
            let row = &pages[slots[token] as usize * 2 * HEAD_DIM..][..2 * HEAD_DIM];
            assert_near(&row[..HEAD_DIM], &wanted_k[token * HEAD_DIM..][..HEAD_DIM]);
            assert_near(&row[HEAD_DIM..], &wanted_v[token * HEAD_DIM..][..HEAD_DIM]);
        }
        assert_eq!(pages.iter().filter(|x| x.is_nan()).count(), (PAGES * ENTRIES - 3) * 2 * HEAD_DIM);
    }
}

#[test]
fn a_cached_tensor_is_read_only_or_rotated_in_place_as_well() {
    let desc = thd(Dtype::F32);
    let given = numbers(2 * HEAD_DIM);
    let slots = [0i32, 1];
    let shape = [2, 1, HEAD_DIM];
    for skips in [false, true] {
        let (mut k, mut cache) = (given.clone(), vec![0.0f32; 2 * HEAD_DIM]);
        let mut place = Cache::by_slots(View::new(&slots, &[2]).unwrap())
            .k_cache(ViewMut::new(&mut cache, &[1, 2, 1, HEAD_DIM]).unwrap());
        if skips {
            place = place.skip_slot_0();
        }
        let mut args = Args::without_q().k(ViewMut::new(&mut k, &shape).unwrap()).position_offset(7).cache(place);
        desc.forward(&mut args).unwrap();
        let wanted = rotated(&given, 1, |token| token as i64 + 7, 1.0);
        assert_near(&k, &wanted);
        assert_near(&cache[HEAD_DIM..], &wanted[HEAD_DIM..]);
        assert_eq!(cache[0] == 0.0, skips);
    }

    let k = View::new(&given, &shape).unwrap();
    let mut cache = vec![0.0f32; 2 * HEAD_DIM];
    let text = message(desc.forward(&mut Args::without_q().k(k)));
    assert!(text.starts_with("rope_forward: k is a View without a ViewMut"), "{text}");
    let place = || Cache::by_slots(View::new(&slots, &[2]).unwrap());
    let cache = ViewMut::new(&mut cache, &[1, 2, 1, HEAD_DIM]).unwrap();
    let mut args = Args::without_q().k(k).v(k).flags(UNROTATED).cache(place().k_cache(cache));
    let text = message(desc.forward(&mut args));
    assert!(text.starts_with("rope_forward: v is a View without a ViewMut"), "{text}");
    let text = message(desc.forward(&mut Args::new(k)));
    assert!(text.starts_with("rope_forward: q is a View without a ViewMut"), "{text}");
    let mut q = given.clone();
    let text = message(desc.forward(&mut Args::new(ViewMut::new(&mut q, &shape).unwrap()).cache(place())));
    assert!(text.starts_with("rope_forward: cache.k_cache is absent"), "{text}");
}

/// A nonnegative number of 8 bits from its code; E4M3 has 3 bits of fraction, E5M2 has 2.
fn number_of(code: u8, fraction_bits: i32) -> f32 {
    let (exponent, fraction) = (i32::from(code >> fraction_bits), i32::from(code & ((1 << fraction_bits) - 1)));
    let hidden = if exponent == 0 { 0 } else { 1 << fraction_bits };
    let bias = (1 << (6 - fraction_bits)) - 1;
    (hidden + fraction) as f32 * 2f32.powi(exponent.max(1) - bias - fraction_bits)
}

/// The code of the number nearest to x, the even one of two, and at most the largest.
fn code_of(x: f32, fraction_bits: i32) -> u8 {
    let largest = if fraction_bits == 3 { 0x7E } else { 0x7B };
    let distance = |code: u8| (number_of(code, fraction_bits) - x.abs()).abs();
    let nearest = (0..=largest).min_by(|&a, &b| {
        distance(a).partial_cmp(&distance(b)).unwrap().then((a & 1).cmp(&(b & 1)))
        // codes of finite numbers
    });
    nearest.unwrap() | if x.is_sign_negative() { 0x80 } else { 0 }
}

#[test]
fn codes_and_factors() {
    let desc = builder(Dtype::F32).build().unwrap();
    let given: Vec<f32> = numbers(3 * 2 * HEAD_DIM).iter().map(|x| x * 20.0).collect();
    let (shape, slots, factor) = ([3, 2, HEAD_DIM], [2i64, -1, 0], [0.5f32, 3.0, 100.0]);
    let (k_scale, v_scale) = ([0.37f32, 2.0], [0.05f32]);
    let row = |token: usize, head: usize| (token * 2 + head) * HEAD_DIM..(token * 2 + head + 1) * HEAD_DIM;
    for multiplies in [false, true] {
        let mut q_out = vec![F8E4m3(1); given.len()];
        let mut k_cache = vec![F8E4m3(1); given.len()];
        let mut v_cache = vec![F8E5m2(1); given.len()];
        let mut amax = [0.0f32, 1.0, 1e9];
        let view = || View::new(&given, &shape).unwrap();
        let mut quant = Quant::new()
            .k_scale(View::new(&k_scale, &[2]).unwrap())
            .v_scale(View::new(&v_scale, &[1]).unwrap())
            .amax_out(ViewMut::new(&mut amax, &[3]).unwrap());
        if multiplies {
            quant = quant.scale_multiplies();
        }
        let cache_shape = [1, 3, 2, HEAD_DIM];
        let cache = Cache::by_slots(View::new(&slots, &[3]).unwrap())
            .k_cache(ViewMut::new(&mut k_cache, &cache_shape).unwrap())
            .v_cache(ViewMut::new(&mut v_cache, &cache_shape).unwrap());
        let factors = || View::new(&factor, &[3]).unwrap();
        let mut args = Args::new((view(), ViewMut::new(&mut q_out, &shape).unwrap()))
            .k(view())
            .v(view())
            .flags(UNROTATED)
            .input(Input::new().q_row_factor(factors()).k_row_factor(factors()))
            .cache(cache)
            .quant(quant);
        desc.forward(&mut args).unwrap();
        for token in 0..3 {
            for (head, &scale) in k_scale.iter().enumerate() {
                let scale = if multiplies { scale } else { 1.0 / scale };
                for (i, channel) in row(token, head).enumerate() {
                    let x = given[channel] * factor[token];
                    assert_eq!(q_out[channel].0, code_of(x, 3));
                    if slots[token] >= 0 {
                        let entry = row(slots[token] as usize, head).start + i;
                        assert_eq!(k_cache[entry].0, code_of(x * scale, 3));
                        let by = if multiplies { v_scale[0] } else { 1.0 / v_scale[0] };
                        assert_eq!(v_cache[entry].0, code_of(given[channel] * by, 2));
                    }
                }
            }
        }
        assert!(k_cache[row(1, 0)].iter().all(|code| code.0 == 1));
        let largest = given.iter().zip(0..).map(|(x, i)| (x * factor[i / (2 * HEAD_DIM)]).abs()).fold(0.0, f32::max);
        assert_eq!(amax, [largest, largest, 1e9]);
    }
}

/// The scale of a group whose codes reach `top`, and the codes, with a floor of 3.
fn scaled(group: &[f32], is_power_of_two: bool, top: f64, fraction_bits: i32) -> (f32, Vec<u8>) {
    let largest = group.iter().fold(3.0, |largest: f64, x| largest.max(f64::from(x.abs())));
    let quotient = largest / top;
    let scale = if is_power_of_two { quotient.log2().ceil().exp2() } else { quotient } as f32;
    (scale, group.iter().map(|x| code_of(x * (1.0 / scale), fraction_bits)).collect())
}

#[test]
fn scales_that_are_written() {
    const TOKENS: usize = 3;
    const HEADS: usize = 2;
    let desc = builder(Dtype::F32).build().unwrap();
    let mut given: Vec<f32> = numbers(TOKENS * HEADS * HEAD_DIM).iter().map(|x| x * 100.0).collect();
    given[..HEAD_DIM].iter_mut().for_each(|x| *x *= 0.01); // below the floor
    let (shape, slots) = ([TOKENS, HEADS, HEAD_DIM], [2i64, -1, 0]);
    let cache_shape = [1, TOKENS, HEADS, HEAD_DIM];
    for is_power_of_two in [false, true] {
        let mut e4m3 = vec![F8E4m3(1); 4 * given.len()]; // q_out, k_out, k_cache, v_cache
        let mut v_out = vec![F8E5m2(1); given.len()];
        let mut q_scales = vec![F8E8m0(1); TOKENS * HEADS * 8];
        let [mut k_scales, mut v_scales, mut k_cache_scales, mut v_cache_scales] =
            [1, 2, 4, 16].map(|groups| vec![-1.0f32; TOKENS * HEADS * groups]);
        let mut parts = e4m3.chunks_mut(given.len());
        let mut part = |shape: &[usize]| ViewMut::new(parts.next().unwrap(), shape).unwrap();
        let view = || View::new(&given, &shape).unwrap();
        let mut quant = Quant::new()
            .q_scales_out(ViewMut::new(&mut q_scales, &[TOKENS, HEADS, 2, 4]).unwrap())
            .k_scales_out(ViewMut::new(&mut k_scales, &[TOKENS, HEADS, 1]).unwrap())
            .v_scales_out(ViewMut::new(&mut v_scales, &[TOKENS, HEADS, 2]).unwrap())
            .scale_floor(3.0);
        if is_power_of_two {
            quant = quant.power_of_two();
        }
        let args = Args::new((view(), part(&shape)))
            .k((view(), part(&shape)))
            .v((view(), ViewMut::new(&mut v_out, &shape).unwrap()))
            .flags(UNROTATED)
            .quant(quant);
        let cache = Cache::by_slots(View::new(&slots, &[TOKENS]).unwrap())
            .k_cache(part(&cache_shape))
            .v_cache(part(&cache_shape))
            .k_scales(ViewMut::new(&mut k_cache_scales, &[1, TOKENS, HEADS, 4]).unwrap())
            .v_scales(ViewMut::new(&mut v_cache_scales, &[1, TOKENS, HEADS, 16]).unwrap());
        desc.forward(&mut args.cache(cache)).unwrap();

        let q_scales: Vec<f32> = q_scales.iter().map(|x| 2f32.powi(i32::from(x.0) - 127)).collect();
        let codes = |part: usize| e4m3[part * given.len()..][..given.len()].iter().map(|x| x.0).collect();
        let v_codes = v_out.iter().map(|x| x.0).collect();
        for (codes, scales, is_cached, is_power_of_two, top, fraction_bits) in [
            (codes(0), q_scales, false, true, 448.0, 3),
            (codes(1), k_scales, false, is_power_of_two, 448.0, 3),
            (v_codes, v_scales, false, is_power_of_two, 57344.0, 2),
            (codes(2), k_cache_scales, true, is_power_of_two, 448.0, 3),
            (codes(3), v_cache_scales, true, is_power_of_two, 448.0, 3),
        ] {
            let codes: Vec<u8> = codes;
            let groups = scales.len() / TOKENS; // groups of a token
            let width = HEADS * HEAD_DIM / groups;
            for (i, group) in given.chunks(width).enumerate() {
                let slot = if is_cached { slots[i / groups] } else { (i / groups) as i64 };
                if slot < 0 {
                    continue;
                }
                let at = slot as usize * groups + i % groups;
                let (scale, wanted) = scaled(group, is_power_of_two, top, fraction_bits);
                assert_eq!(scales[at], scale, "group {i} of {groups}");
                assert_eq!(codes[at * width..][..width], wanted, "group {i} of {groups}");
            }
            if is_cached {
                assert!(scales[groups..2 * groups].iter().all(|&x| x == -1.0)); // entries of no token
            }
        }
    }
}

#[test]
fn channels_outside_the_window_and_latent_caches() {
    const TOKENS: usize = 3;
    const PASS: usize = 16; // 10 channels before the window, 6 behind it
    const ALL: usize = PASS + HEAD_DIM;
    let desc = Desc::builder(Device::Cpu, Dtype::F32, Layout::Thd, Style::Half, ALL as i32)
        .rotary_dim(HEAD_DIM as i32)
        .rotary_offset(10)
        .theta(10000.0)
        .build()
        .unwrap();
    let (q, k) = (numbers(TOKENS * 2 * HEAD_DIM), numbers(TOKENS * HEAD_DIM));
    let (q_pass, k_pass) = (numbers(TOKENS * PASS), numbers(TOKENS * PASS));
    let (slots, k_pass_scale) = ([2i64, -1, 0], [0.37f32]);
    for is_written in [false, true] {
        let mut q_out = vec![0.0f32; TOKENS * 2 * ALL];
        let mut k_cache = vec![-9.0f32; TOKENS * HEAD_DIM];
        let mut k_pass_cache = vec![F8E4m3(1); TOKENS * PASS];
        let mut k_pass_scales = vec![-1.0f32; TOKENS * 2];
        let mut cache = Cache::by_slots(View::new(&slots, &[TOKENS]).unwrap())
            .k_cache(ViewMut::new(&mut k_cache, &[1, TOKENS, 1, HEAD_DIM]).unwrap())
            .k_pass_cache(ViewMut::new(&mut k_pass_cache, &[1, TOKENS, 1, PASS]).unwrap());
        let mut quant = Quant::new();
        if is_written {
            cache = cache.k_pass_scales(ViewMut::new(&mut k_pass_scales, &[1, TOKENS, 1, 2]).unwrap());
            quant = quant.scale_floor(3.0);
        } else {
            quant = quant.k_pass_scale(View::new(&k_pass_scale, &[1]).unwrap());
        }
        let shared = View::strided(&q_pass, 0, &[TOKENS, 2, PASS], &[PASS as isize, 0, 1]).unwrap(); // by both heads
        let input = Input::new().q_pass(shared).k_pass(View::new(&k_pass, &[TOKENS, 1, PASS]).unwrap());
        let q_views =
            (View::new(&q, &[TOKENS, 2, HEAD_DIM]).unwrap(), ViewMut::new(&mut q_out, &[TOKENS, 2, ALL]).unwrap());
        let mut args =
            Args::new(q_views).k(View::new(&k, &[TOKENS, 1, HEAD_DIM]).unwrap()).input(input).cache(cache).quant(quant);
        desc.forward(&mut args).unwrap();

        let q_wanted = rotated(&q, 2, |token| token as i64, 1.0);
        for (row, head) in q_out.chunks(ALL).enumerate() {
            let rest = &q_pass[row / 2 * PASS..][..PASS];
            assert_eq!(head[..10], rest[..10]);
            assert_near(&head[10..][..HEAD_DIM], &q_wanted[row * HEAD_DIM..][..HEAD_DIM]);
            assert_eq!(head[10 + HEAD_DIM..], rest[10..]);
        }
        let k_wanted = rotated(&k, 1, |token| token as i64, 1.0);
        for (token, rest) in k_pass.chunks(PASS).enumerate() {
            if slots[token] < 0 {
                continue;
            }
            let slot = slots[token] as usize;
            assert_near(&k_cache[slot * HEAD_DIM..][..HEAD_DIM], &k_wanted[token * HEAD_DIM..][..HEAD_DIM]);
            for (i, group) in rest.chunks(PASS / 2).enumerate() {
                let (mut scale, mut wanted) = scaled(group, false, 448.0, 3);
                if !is_written {
                    wanted = group.iter().map(|x| code_of(x * (1.0 / k_pass_scale[0]), 3)).collect();
                    scale = -1.0;
                }
                assert_eq!(k_pass_scales[slot * 2 + i], scale);
                let codes = &k_pass_cache[slot * PASS + i * PASS / 2..][..PASS / 2];
                assert_eq!(codes.iter().map(|x| x.0).collect::<Vec<u8>>(), wanted);
            }
        }
        assert!(k_cache[HEAD_DIM..2 * HEAD_DIM].iter().all(|&x| x == -9.0)); // entries of no token
        assert!(k_pass_cache[PASS..2 * PASS].iter().all(|x| x.0 == 1));
    }
}

#[test]
fn factors_in_backward_and_what_scales_and_factors_must_be() {
    let (desc, given, factor) = (thd(Dtype::F32), numbers(2 * HEAD_DIM), [2.0f32, -0.5]);
    let shape = [2, 1, HEAD_DIM];
    let mut grad = given.clone();
    let mut args = Args::new(ViewMut::new(&mut grad, &shape).unwrap())
        .input(Input::new().q_row_factor(View::new(&factor, &[2, 1]).unwrap()));
    desc.backward(&mut args).unwrap();
    let mut wanted = rotated(&given, 1, |token| token as i64, -1.0);
    for (i, x) in wanted.iter_mut().enumerate() {
        *x *= factor[i / HEAD_DIM];
    }
    assert_near(&grad, &wanted);
    let mut sum = given.clone();
    let mut args = Args::new((View::new(&given, &shape).unwrap(), ViewMut::new(&mut sum, &shape).unwrap()))
        .flags(ACCUMULATE)
        .input(Input::new().q_row_factor(View::new(&factor, &[2, 1]).unwrap()));
    desc.backward(&mut args).unwrap();
    for (x, held) in wanted.iter_mut().zip(&given) {
        *x += held;
    }
    assert_near(&sum, &wanted);

    let wrong = View::new(&factor[..1], &[1, 1]).unwrap();
    let (mut amax, mut scales) = ([0.0f32; 3], [0.0f32; 2]);
    for (quant, words) in [
        (Quant::new().q_scale(wrong), "rope_forward: quant.q_scale has shape [1, 1]:"),
        (Quant::new().k_scale(wrong), "rope_forward: quant.k_scale has shape [1, 1]:"),
        (Quant::new().v_scale(wrong), "rope_forward: quant.v_scale has shape [1, 1]:"),
        (Quant::new().amax_out(ViewMut::new(&mut amax, &[3, 1]).unwrap()), "rope_forward: quant.amax_out has shape"),
        (Quant::new().q_scales_out(ViewMut::new(&mut scales, &[2]).unwrap()), "rope_forward: quant.q_scales_out has"),
        (Quant::new().scale_floor(0.5), "rope_forward: quant.scale_floor is 0.5:"),
        (Quant::new().power_of_two(), "rope_forward: quant.flags is 0x2:"),
    ] {
        let mut outs = vec![F8E5m2(0); 3 * given.len()];
        let mut parts = outs.chunks_mut(given.len()).map(|out| ViewMut::new(out, &shape).unwrap());
        let mut part = || (View::new(&given, &shape).unwrap(), parts.next().unwrap());
        let mut args = Args::new(part()).k(part()).v(part()).flags(V_UNROTATED).quant(quant);
        assert_refused(desc.forward(&mut args), Status::InvalidArgument, words);
    }
    for (input, words) in [
        (Input::new().q_row_factor(wrong), "rope_forward: input.q_row_factor has shape [1, 1]:"),
        (Input::new().k_row_factor(wrong), "rope_forward: input.k_row_factor has shape [1, 1]:"),
        (Input::new().v_row_factor(wrong), "rope_forward: input.v_row_factor has shape [1, 1]:"),
    ] {
        let mut tensors = given.repeat(3);
        let mut parts = tensors.chunks_mut(given.len()).map(|x| ViewMut::new(x, &shape).unwrap());
        let mut part = || parts.next().unwrap();
        let mut args = Args::new(part()).k(part()).v(part()).flags(V_UNROTATED).input(input);
        assert_refused(desc.forward(&mut args), Status::InvalidArgument, words);
    }
}

#[test]
fn each_weight_of_a_norm_arrives() {
    let desc = builder(Dtype::F32).theta(1e4).norm(NormType::Rms, 1e-6).build().unwrap();
    let (mut q, mut k, wrong) = (numbers(HEAD_DIM), numbers(HEAD_DIM), numbers(3));
    let wrong = View::new(&wrong, &[3]).unwrap();
    for (norm, words) in [
        (Norm::new().q_weight(wrong), "rope_forward: norm.q_weight has shape [3]:"),
        (Norm::new().k_weight(wrong), "rope_forward: norm.k_weight has shape [3]:"),
        (Norm::new().q_bias(wrong), "rope_forward: norm.q_bias is set:"),
        (Norm::new().k_bias(wrong), "rope_forward: norm.k_bias is set:"),
    ] {
        let mut args = Args::new(ViewMut::new(&mut q, &[1, 1, HEAD_DIM]).unwrap())
            .k(ViewMut::new(&mut k, &[1, 1, HEAD_DIM]).unwrap())
            .norm(norm);
        assert_refused(desc.forward(&mut args), Status::InvalidArgument, words);
    }
}

#[test]
fn faulty_positions_are_counted() {
    let desc = thd(Dtype::F32);
    let (cos, sin, positions) = ([1.0f32; 4 * PAIRS], [0.0f32; 4 * PAIRS], [0i64, 4, 3, -1, 9]);
    let mut q = numbers(5 * HEAD_DIM);
    let mut fault = [0i64; 2];
    desc.forward(
        &mut Args::new(ViewMut::new(&mut q, &[5, 1, HEAD_DIM]).unwrap())
            .positions(View::new(&positions, &[5]).unwrap())
            .tables(View::new(&cos, &[4, PAIRS]).unwrap(), View::new(&sin, &[4, PAIRS]).unwrap(), TableRows::ByPosition)
            .fault(ViewMut::new(&mut fault, &[2]).unwrap()),
    )
    .unwrap();
    assert_eq!(fault, [3, 2]); // three tokens, the lowest of them token 1
}

#[test]
fn each_parameter_of_a_scaling_arrives() {
    let none = || Scaling::new(ScalingType::None);
    let factors = vec![2.0; PAIRS];
    let by_pair = || Scaling { pair_factors: &factors, ..Scaling::new(ScalingType::Factors) };
    for (scaling, words) in [
        (Scaling { factor: 3.5, ..none() }, "factor is 3.5:"),
        (Scaling { original_max_position: 3, ..none() }, "original_max_position is 3:"),
        (Scaling { sequence_length: 3, ..none() }, "sequence_length is 3:"),
        (Scaling { alpha: 3.5, ..none() }, "alpha is 3.5:"),
        (Scaling { mixed_b: 3.5, ..none() }, "mixed_b is 3.5:"),
        (Scaling { beta_fast: 3.5, ..none() }, "beta_fast is 3.5:"),
        (Scaling { beta_slow: 3.5, ..none() }, "beta_slow is 3.5:"),
        (Scaling { attention_factor: 3.5, ..none() }, "attention_factor is 3.5:"),
        (Scaling { mscale: 3.5, ..none() }, "mscale is 3.5:"),
        (Scaling { mscale_all_dim: 3.5, ..none() }, "mscale_all_dim is 3.5:"),
        (Scaling { low_freq_factor: 3.5, ..none() }, "low_freq_factor is 3.5:"),
        (Scaling { high_freq_factor: 3.5, ..none() }, "high_freq_factor is 3.5:"),
        (Scaling { partial_rotary_factor: 3.5, ..none() }, "partial_rotary_factor is 3.5:"),
        (Scaling { short_factor: &factors, ..by_pair() }, "short_factor is set:"),
        (Scaling { long_factor: &factors, ..by_pair() }, "long_factor is set:"),
        (Scaling { no_truncate: true, ..none() }, "flags is 0x1:"),
    ] {
        assert_refused(scaled_frequencies(HEAD_DIM as i32, 1e4, &scaling), Status::InvalidArgument, words);
    }

    // LongRoPE's second array serves sequences that are longer than the original ones.
    let longer = vec![4.0; PAIRS];
    for (sequence_length, wanted) in [(100, 0.5), (101, 0.25)] {
        let recipe = Scaling {
            factor: 2.0,
            original_max_position: 100,
            sequence_length,
            short_factor: &factors,
            long_factor: &longer,
            ..Scaling::new(ScalingType::Longrope)
        };
        assert_eq!(scaled_frequencies(HEAD_DIM as i32, 1e4, &recipe).unwrap().inv_freq[0], wanted);
    }
}

#[test]
fn errors_carry_the_status_and_the_words_of_the_library() {
    let error = Desc::builder(Device::Cpu, Dtype::F32, Layout::Thd, Style::Half, 63).theta(1e4).build().unwrap_err();
    assert_eq!(error.status(), Status::InvalidArgument);
    assert_eq!(error.to_string(), format!("InvalidArgument: {}", error.message()));
    assert!(error.message().starts_with("rope_desc_create: head_dim is 63"), "{error}");

    let (count, reason) = device_count().unwrap();
    assert_eq!(count == 0, reason.is_some());
    if count == 0 {
        let error =
            Desc::builder(Device::Cuda(0), Dtype::F32, Layout::Thd, Style::Half, 64).theta(1e4).build().unwrap_err();
        assert!(matches!(error.status(), Status::NoDevice | Status::NotSupported), "{error}");
    } else {
        let desc = Desc::builder(Device::Cuda(0), Dtype::F32, Layout::Thd, Style::Half, 64).theta(1e4).build();
        let mut q = vec![0.0f32; 64];
        let text = message(desc.unwrap().forward(&mut Args::new(ViewMut::new(&mut q, &[1, 1, 64]).unwrap())));
        assert!(text.contains("enqueue_forward"), "{text}");
    }
    assert!(build_info().contains("librope"));
    assert_eq!(version() / 100, sys::ROPE_VERSION / 100);
}

#[test]
fn views_stay_inside_their_slices() {
    let data = [0.0f32; 12];
    assert!(View::new(&data, &[3, 4]).is_ok());
    message(View::new(&data, &[3, 5]));
    message(View::new(&data, &[usize::MAX, usize::MAX, 2]));
    message(View::new(&data, &[]));
    message(View::new(&data, &[1, 1, 1, 1, 12]));
    assert!(View::strided(&data, 11, &[3, 4], &[-4, -1]).is_ok());
    message(View::strided(&data, 10, &[3, 4], &[-4, -1]));
    message(View::strided(&data, 1, &[3, 4], &[4, 1]));
    message(View::strided(&data, 0, &[3, 4], &[isize::MAX, isize::MIN]));
    message(View::strided(&data, 0, &[3, 4], &[4]));
    message(View::strided(&data, 0, &[2, 2], &[1, -1])); // the steps of one axis do not cancel those of another
    message(View::strided(&data, 11, &[2, 2], &[1, -1]));
    assert!(View::strided(&data, 0, &[1000, 12], &[0, 1]).is_ok()); // an input may repeat
    assert!(View::new(&data, &[0, 99]).is_ok());

    let view = View::new(&data, &[3, 4]).unwrap();
    assert!(view.narrow(1, 1, 3).unwrap().select(0, 2).is_ok());
    let text = message(view.narrow(1, 2, 3));
    assert!(text.starts_with("rope_tensor_narrow: "), "{text}");
    message(view.select(2, 0));
    message(view.select(0, usize::MAX));
}

#[test]
fn a_view_begins_at_its_first_element() {
    let desc = thd(Dtype::F32);
    let given = numbers(5 * HEAD_DIM);
    let last = 5 * HEAD_DIM - 1;
    let (shape, backwards) = ([2, 1, HEAD_DIM], [-(HEAD_DIM as isize), 0, -1]);

    // The third head and then the second, each from its last element backwards, into the third and the fourth.
    let mut here = vec![7.0f32; given.len()];
    let q = View::strided(&given, 3 * HEAD_DIM - 1, &shape, &backwards).unwrap();
    let q_out = ViewMut::strided(&mut here, 2 * HEAD_DIM, &shape, &[HEAD_DIM as isize, 0, 1]).unwrap();
    desc.forward(&mut Args::new((q, q_out)).position_offset(3)).unwrap();
    let reversed: Vec<f32> = given[HEAD_DIM..3 * HEAD_DIM].iter().rev().copied().collect();
    assert_near(&here[2 * HEAD_DIM..4 * HEAD_DIM], &rotated(&reversed, 1, |token| token as i64 + 3, 1.0));
    assert!(here[..2 * HEAD_DIM].iter().chain(&here[4 * HEAD_DIM..]).all(|&x| x == 7.0));

    // Strides that are all 0 repeat, too.
    let mut here = given.clone();
    let position = [6i64];
    let position = View::strided(&position, 0, &[5], &[0]).unwrap();
    let q = ViewMut::new(&mut here, &[5, 1, HEAD_DIM]).unwrap();
    desc.forward(&mut Args::new(q).positions(position)).unwrap();
    assert_near(&here, &rotated(&given, 1, |_| 6, 1.0));

    // In place, back to the first element and to the last one.
    let mut here = given.clone();
    let q = ViewMut::strided(&mut here, last, &[5, 1, HEAD_DIM], &backwards).unwrap();
    desc.forward(&mut Args::new(q).position_offset(3)).unwrap();
    let mut wanted: Vec<f32> = given.iter().rev().copied().collect();
    wanted = rotated(&wanted, 1, |token| token as i64 + 3, 1.0);
    wanted.reverse();
    assert_near(&here, &wanted);
}

#[test]
fn views_of_four_axes_arrive() {
    let desc = Desc::builder(Device::Cpu, Dtype::F32, Layout::Bshd, Style::Half, HEAD_DIM as i32)
        .theta(10000.0)
        .build()
        .unwrap();
    let (batches, tokens, heads) = (2, 3, 4);
    let given = numbers(batches * tokens * heads * HEAD_DIM);
    let mut here = given.clone();
    let packed = ViewMut::new(&mut here, &[batches, tokens, heads, HEAD_DIM]).unwrap();
    let (q, k) = packed.split_at(2, 3).unwrap();
    desc.forward(&mut Args::new(q).k(k)).unwrap();
    assert_near(&here, &rotated(&given, heads, |token| (token % tokens) as i64, 1.0));
}

#[test]
fn elements_that_are_written_lie_apart() {
    let mut data = [0.0f32; 12];
    message(ViewMut::strided(&mut data, 0, &[2, 6], &[0, 1]));
    message(ViewMut::strided(&mut data, 0, &[2, 6], &[5, 1]));
    assert!(ViewMut::strided(&mut data, 0, &[2, 6], &[6, 1]).is_ok());
    assert!(ViewMut::strided(&mut data, 11, &[6, 2], &[-1, -6]).is_ok());
    // Along an axis of length 1 no two elements can meet, whatever its stride.
    for stride in [0, 1, 3, -1] {
        assert!(ViewMut::strided(&mut data, 0, &[2, 1, 6], &[6, stride, 1]).is_ok());
        message(ViewMut::strided(&mut data, 0, &[2, 1, 6], &[5, stride, 1]));
    }
    message(ViewMut::strided(&mut data, 0, &[3, 2, 2], &[3, 2, 2])); // each axis alone is right, two together are not
    message(ViewMut::new(&mut data, &[3, 4]).unwrap().split_at(1, 5));
    let text = message(ViewMut::new(&mut data, &[3, 4]).unwrap().split_at(2, 0));
    assert!(text.starts_with("rope_tensor_narrow: dim is 2"), "{text}");
    for axis in [4, 7, usize::MAX] {
        message(ViewMut::new(&mut data, &[3, 2, 1, 2]).unwrap().split_at(axis, 0));
    }
    let view = ViewMut::new(&mut data, &[3, 4]).unwrap();
    assert!(view.as_view().narrow(0, 1, 2).is_ok());
    assert!(view.select(0, 1).unwrap().narrow(0, 0, 2).is_ok());
}

#[test]
fn a_descriptor_serves_threads_at_once() {
    let desc = thd(Dtype::F32);
    let given = numbers(64 * HEAD_DIM);
    let wanted = rotated(&given, 1, |token| token as i64, 1.0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut q = given.clone();
                desc.forward(&mut Args::new(ViewMut::new(&mut q, &[64, 1, HEAD_DIM]).unwrap())).unwrap();
                assert_near(&q, &wanted);
            });
        }
    });
}

#[test]
fn swiglu_forward_and_backward() {
    let swiglu = Swiglu::builder(Device::Cpu, Dtype::F32).num_threads(1).build().unwrap();
    let (rows, width) = (3, 10);
    let given: Vec<f32> = numbers(rows * 2 * width).iter().map(|x| 3.0 * x).collect();
    let grad = numbers(rows * width);
    let scale = [0.5f32, 1.0, 2.0];
    let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
    let at = |row: usize, column: usize| given[row * 2 * width + column];

    let packed = View::new(&given, &[rows, 2 * width]).unwrap();
    let (gate, up) = (packed.narrow(1, 0, width).unwrap(), packed.narrow(1, width, width).unwrap());
    let mut out = vec![0.0f32; rows * width];
    let out_view = ViewMut::new(&mut out, &[rows, width]).unwrap();
    let row_scale = View::new(&scale, &[rows]).unwrap();
    swiglu.forward(&mut SwigluArgs::forward(gate, up, out_view).row_scale(row_scale)).unwrap();
    for row in 0..rows {
        for column in 0..width {
            let (g, u) = (at(row, column), at(row, column + width));
            let wanted = g * sigmoid(g) * u * scale[row];
            assert!((out[row * width + column] - wanted).abs() < 1e-5);
        }
    }

    let mut gradients = given.clone();
    let (gate, up) = ViewMut::new(&mut gradients, &[rows, 2 * width]).unwrap().split_at(1, width).unwrap();
    let grad_view = View::new(&grad, &[rows, width]).unwrap();
    swiglu.backward(&mut SwigluArgs::backward_over_inputs(gate, up, grad_view)).unwrap();
    for row in 0..rows {
        for column in 0..width {
            let (g, u, d) = (at(row, column), at(row, column + width), grad[row * width + column]);
            let s = sigmoid(g);
            assert!((gradients[row * 2 * width + column] - d * u * s * (1.0 + g * (1.0 - s))).abs() < 1e-5);
            assert!((gradients[row * 2 * width + width + column] - d * g * s).abs() < 1e-5);
        }
    }

    // Outputs are separate tensors, with the row weights' gradient and the output again; two of three rows count.
    let mut tensors = [vec![7.0f32; rows * width], vec![7.0; rows * width], vec![7.0; rows * width]];
    let mut grad_scale = vec![7.0f32; rows];
    let count = [2i32];
    let [again, grad_gate, grad_up] = &mut tensors;
    let shape = [rows, width];
    swiglu
        .backward(
            &mut SwigluArgs::backward(
                packed.narrow(1, 0, width).unwrap(),
                packed.narrow(1, width, width).unwrap(),
                grad_view,
            )
            .out(ViewMut::new(again, &shape).unwrap())
            .grad_gate(ViewMut::new(grad_gate, &shape).unwrap())
            .grad_up(ViewMut::new(grad_up, &shape).unwrap())
            .grad_row_scale(ViewMut::new(&mut grad_scale, &[rows]).unwrap())
            .row_scale(row_scale)
            .num_rows(View::new(&count, &[1]).unwrap()),
        )
        .unwrap();
    assert_eq!(tensors[0][..2 * width], out[..2 * width]);
    assert!(tensors.iter().all(|tensor| tensor[2 * width..].iter().all(|&x| x == 7.0)));
    for (i, (grad_gate, grad_up)) in tensors[1].iter().zip(&tensors[2]).enumerate().take(2 * width) {
        let (row, column) = (i / width, i % width);
        let (g, u, d) = (at(row, column), at(row, column + width), grad[i] * scale[row]);
        let s = sigmoid(g);
        assert!((grad_gate - d * u * s * (1.0 + g * (1.0 - s))).abs() < 1e-5 && (grad_up - d * g * s).abs() < 1e-5);
    }
    for row in 0..2 {
        let products = (0..width).map(|i| grad[row * width + i] * out[row * width + i] / scale[row]);
        assert!((grad_scale[row] - products.sum::<f32>()).abs() < 1e-4);
    }
    assert_eq!(grad_scale[2], 7.0);

    let (mut gate, up) = (vec![1.0f32; 4], vec![2.0f32; 4]);
    let up = View::new(&up, &[4]).unwrap();
    swiglu.forward(&mut SwigluArgs::forward_over_gate(ViewMut::new(&mut gate, &[4]).unwrap(), up)).unwrap();
    assert!((gate[0] - 2.0 * sigmoid(1.0)).abs() < 1e-6);
    let gate = [1.0f32; 4];
    let mut up = [2.0f32; 4];
    let gate = View::new(&gate, &[4]).unwrap();
    swiglu.forward(&mut SwigluArgs::forward_over_up(gate, ViewMut::new(&mut up, &[4]).unwrap())).unwrap();
    assert!((up[3] - 2.0 * sigmoid(1.0)).abs() < 1e-6);
    assert!(Swiglu::builder(Device::Cpu, Dtype::F32).limit(-1.0).build().is_err());
}

extern "C" {
    fn erf(x: f64) -> f64; // libm's, which Rust has no safe name for
}

/// The parameters of a gating that is not plain SwiGLU.
#[derive(Clone, Copy, Debug)]
struct Form {
    activation: Activation,
    gate_softcap: f64,
    up_softcap: f64,
    limit: f64,
    limit_rule: LimitRule,
}

const PLAIN: Form = Form {
    activation: Activation::Swiglu,
    gate_softcap: 0.0,
    up_softcap: 0.0,
    limit: f64::INFINITY,
    limit_rule: LimitRule::Gate,
};

impl Form {
    fn build(&self, dtype: Dtype) -> Swiglu {
        Swiglu::builder(Device::Cpu, dtype)
            .activation(self.activation)
            .gate_softcap(self.gate_softcap)
            .up_softcap(self.up_softcap)
            .limit(if self.limit.is_finite() { self.limit } else { 0.0 })
            .limit_rule(self.limit_rule)
            .build()
            .unwrap()
    }

    /// The formula.
    fn gated(&self, gate: f64, up: f64) -> f64 {
        let capped = |x: f64, cap: f64| if cap == 0.0 { x } else { cap * (x / cap).tanh() };
        let limits_gate = self.limit_rule == LimitRule::Gate;
        let g = if limits_gate { gate.min(self.limit) } else { gate };
        let weight = match self.activation {
            Activation::Swiglu => 1.0 / (1.0 + (-g).exp()),
            // SAFETY: the function takes and returns a number.
            Activation::GegluErf => 0.5 * (1.0 + unsafe { erf(g / 2f64.sqrt()) }),
            Activation::GegluTanh => {
                0.5 * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g.powi(3))).tanh())
            }
            Activation::Reglu if g > 0.0 => 1.0,
            Activation::Reglu => 0.0,
        };
        let activated = capped(g, self.gate_softcap) * weight;
        let activated = if limits_gate { activated } else { activated.min(self.limit) };
        activated * capped(up.clamp(-self.limit, self.limit), self.up_softcap)
    }
}

#[test]
fn forms_of_gating_with_biases_of_experts() {
    const EXPERTS: usize = 3;
    const ROWS: usize = 4;
    const WIDTH: usize = 10;
    let shape = [EXPERTS, ROWS, WIDTH];
    let given: Vec<f64> =
        (0..3 * EXPERTS * ROWS * WIDTH + 2 * EXPERTS * WIDTH).map(|i| 3.0 * (i as f64).sin()).collect();
    let (gate, rest) = given.split_at(EXPERTS * ROWS * WIDTH);
    let (up, rest) = rest.split_at(EXPERTS * ROWS * WIDTH);
    let (grad, rest) = rest.split_at(EXPERTS * ROWS * WIDTH);
    let (gate_bias, up_bias) = rest.split_at(EXPERTS * WIDTH);
    let counts = [4i64, 0, 2];
    let view = |data| View::new(data, &shape).unwrap();
    let forms = [
        PLAIN,
        Form { activation: Activation::GegluErf, ..PLAIN },
        Form { activation: Activation::GegluTanh, gate_softcap: 2.0, ..PLAIN },
        Form { activation: Activation::Reglu, up_softcap: 1.5, ..PLAIN },
        Form { limit: 1.25, ..PLAIN },
        Form { limit: 1.25, limit_rule: LimitRule::Activation, up_softcap: 0.75, ..PLAIN },
    ];
    for form in forms {
        let swiglu = form.build(Dtype::F64);
        let mut tensors = [(); 3].map(|_| vec![7.0f64; gate.len()]);
        let [out, grad_gate, grad_up] = &mut tensors;
        let forward = SwigluArgs::forward(view(gate), view(up), ViewMut::new(out, &shape).unwrap());
        let backward = SwigluArgs::backward(view(gate), view(up), view(grad))
            .grad_gate(ViewMut::new(grad_gate, &shape).unwrap())
            .grad_up(ViewMut::new(grad_up, &shape).unwrap());
        let [mut forward, mut backward] = [forward, backward].map(|args| {
            args.gate_bias(View::new(gate_bias, &[EXPERTS, WIDTH]).unwrap())
                .up_bias(View::new(up_bias, &[EXPERTS, WIDTH]).unwrap())
                .expert_rows(View::new(&counts, &[EXPERTS]).unwrap())
        });
        swiglu.forward(&mut forward).unwrap();
        swiglu.backward(&mut backward).unwrap();
        for i in 0..gate.len() {
            let (expert, row, column) = (i / WIDTH / ROWS, i / WIDTH % ROWS, i % WIDTH);
            let (g, u) = (gate[i] + gate_bias[expert * WIDTH + column], up[i] + up_bias[expert * WIDTH + column]);
            let step = 1e-5;
            let slope = |high: f64, low: f64| grad[i] * (high - low) / (2.0 * step);
            let wanted = if row >= counts[expert] as usize {
                [7.0; 3]
            } else {
                [
                    form.gated(g, u),
                    slope(form.gated(g + step, u), form.gated(g - step, u)),
                    slope(form.gated(g, u + step), form.gated(g, u - step)),
                ]
            };
            for (tensor, wanted) in tensors.iter().zip(wanted) {
                assert!((tensor[i] - wanted).abs() < 1e-7, "{form:?}, {i}: {} instead of {wanted}", tensor[i]);
            }
        }
    }
}

#[test]
fn the_rounded_activation_and_a_bias() {
    let gate = [Bf16(0x3f80); 2]; // 1, and silu(1) = 0.7310586 is rounded to 0.73046875
    let up = [Bf16(0x4110), Bf16(0x41a8)]; // 9 and 21
    let bias = [14.0f32, 24.0];
    let gated = |rounding: i32, has_bias: bool| {
        let swiglu = Swiglu::builder(Device::Cpu, Dtype::Bf16).product_rounding(rounding).build().unwrap();
        let mut out = [Bf16(0); 2];
        let view = |data| View::new(data, &[1, 2]).unwrap();
        let mut args = SwigluArgs::forward(view(&gate), view(&up), ViewMut::new(&mut out, &[1, 2]).unwrap());
        if has_bias {
            args = args.up_bias(View::new(&bias, &[2]).unwrap());
        }
        swiglu.forward(&mut args).unwrap();
        out.map(|x| f32::from_bits((x.0 as u32) << 16))
    };
    assert_eq!(gated(0, false), [6.59375, 15.375]);
    assert_eq!(gated(PRODUCT_ROUND_ACTIVATION, false), [6.5625, 15.3125]);
    assert_eq!(gated(0, true), [16.875, 33.0]);
    assert_eq!(gated(PRODUCT_ROUND_ACTIVATION, true), [16.75, 32.75]);
}

#[test]
fn swiglu_explain() {
    let swiglu = Swiglu::builder(Device::Cpu, Dtype::F32).num_threads(1).build().unwrap();
    let (x, mut written) = (vec![1.0f32; 1000], [vec![7.0f32; 1000], vec![7.0; 1000]]);
    let x = View::new(&x, &[1000]).unwrap();
    let [first, second] = &mut written;
    let mut first = ViewMut::new(first, &[1000]).unwrap();
    let forward = swiglu.explain(&SwigluArgs::forward(x, x, first.reborrow())).unwrap();
    assert_eq!(forward, "swiglu F32 forward on the CPU: 1 of 1 threads, 0.012 MB read and written");
    let args = SwigluArgs::backward(x, x, x).grad_gate(first).grad_up(ViewMut::new(second, &[1000]).unwrap());
    let backward = swiglu.explain(&args).unwrap();
    assert_eq!(backward, "swiglu F32 backward on the CPU: 1 of 1 threads, 0.02 MB read and written");
    let refused = swiglu.explain(&SwigluArgs::backward(x, x, x)).map(|_| ());
    assert_refused(
        refused,
        Status::InvalidArgument,
        "swiglu_explain: grad_gate, grad_up and grad_row_scale are absent:",
    );
    assert!(written.iter().flatten().all(|&x| x == 7.0));
}

#[test]
fn raw_pointers_and_explain() {
    let desc = thd(Dtype::F32);
    let mut q = numbers(HEAD_DIM);
    let given = q.clone();
    let strides = [HEAD_DIM as isize, HEAD_DIM as isize, 1];
    // SAFETY: the vector outlives the call and is not used during it.
    unsafe {
        let view = ViewMut::from_raw(q.as_mut_ptr().cast(), Dtype::F32, &[1, 1, HEAD_DIM], &strides).unwrap();
        let mut args = Args::new(view).position_offset(3);
        let text = desc.explain(&args).unwrap();
        assert!(text.starts_with("rope F32 half on the CPU: 1 of 1 threads") && !text.contains('\0'), "{text}");
        desc.enqueue_forward(&mut args, std::ptr::null_mut()).unwrap();
        desc.enqueue_backward(&mut args, std::ptr::null_mut()).unwrap();
        message(desc.enqueue_forward(&mut args, 0x1 as *mut _)); // a stream
        assert!(View::from_raw(q.as_ptr().cast(), Dtype::F32, &[1, 1], &[1]).is_err());
    }
    assert_near(&q, &given);
}

/// RMS norms of heads without a rotation.
#[test]
fn gradients_of_norms() {
    const TOKENS: usize = 3;
    let desc = builder(Dtype::F32).theta(1e4).norm(NormType::Rms, 1e-3).build().unwrap();
    let (input, weight) = (numbers(TOKENS * HEAD_DIM), numbers(HEAD_DIM));
    let given: Vec<f32> = (0..TOKENS * HEAD_DIM).map(|i| (i % 7) as f32 - 2.5).collect();
    let (mut wanted, mut sums) = (vec![0.0f32; TOKENS * HEAD_DIM], vec![0.0f32; 2 * HEAD_DIM]);
    for token in 0..TOKENS {
        let at = token * HEAD_DIM;
        let count = HEAD_DIM as f64;
        let squares: f64 = input[at..at + HEAD_DIM].iter().map(|&x| f64::from(x) * f64::from(x) / count).sum();
        let r = 1.0 / (squares + 1e-3).sqrt();
        let weighed = |c: usize| f64::from(given[at + c] * weight[c]);
        let products: f64 = (0..HEAD_DIM).map(|c| weighed(c) * f64::from(input[at + c]) * r / count).sum();
        for c in 0..HEAD_DIM {
            let normed = f64::from(input[at + c]) * r;
            wanted[at + c] = ((weighed(c) - normed * products) * r) as f32;
            sums[token / 2 * HEAD_DIM + c] += given[at + c] * normed as f32;
        }
    }
    let shape = [TOKENS, 1, HEAD_DIM];
    let (mut out, mut rows) = (vec![0.0f32; TOKENS * HEAD_DIM], vec![0.0f32; 2 * HEAD_DIM]);
    let norm = Norm::new()
        .q_weight(View::new(&weight, &[HEAD_DIM]).unwrap())
        .q_in(View::new(&input, &shape).unwrap())
        .grad_q_weight(ViewMut::new(&mut rows, &[2, HEAD_DIM]).unwrap());
    let mut args = Args::new((View::new(&given, &shape).unwrap(), ViewMut::new(&mut out, &shape).unwrap()))
        .flags(UNROTATED)
        .norm(norm);
    desc.backward(&mut args).unwrap();
    assert_near(&out, &wanted);
    assert_near(&rows, &sums);

    let view = View::new(&input, &shape).unwrap();
    let (mut first, mut second, mut third) = (rows.clone(), rows.clone(), rows.clone());
    let with = || Norm::new().q_in(view);
    for (norm, words) in [
        (Norm::new(), "norm.q_in is absent"),
        (with().k_in(view), "norm.k_in is set"),
        (with().v_in(view), "norm.v_in is set"),
        (with().grad_k_weight(ViewMut::new(&mut first, &[2, HEAD_DIM]).unwrap()), "norm.grad_k_weight is set"),
        (with().grad_q_bias(ViewMut::new(&mut second, &[2, HEAD_DIM]).unwrap()), "norm.grad_q_bias is set"),
        (with().grad_k_bias(ViewMut::new(&mut third, &[2, HEAD_DIM]).unwrap()), "norm.grad_k_bias is set"),
    ] {
        let mut args = Args::new((View::new(&given, &shape).unwrap(), ViewMut::new(&mut out, &shape).unwrap()))
            .flags(UNROTATED)
            .norm(norm);
        let error = desc.backward(&mut args).unwrap_err();
        assert!(error.message().contains(words), "{}", error.message());
    }
}

/// relu(gate) * up, and the bytes of SwiGLU's output for these values.
fn rectified(rows: usize, width: usize) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let gate: Vec<f32> = numbers(rows * width).iter().map(|x| x * 30.0).collect();
    let up: Vec<f32> = numbers(2 * rows * width).iter().rev().take(rows * width).copied().collect();
    let values = gate.iter().zip(&up).map(|(g, u)| g.max(0.0) * u).collect();
    (gate, up, values)
}

#[test]
fn codes_of_gating() {
    const EXPERTS: usize = 3;
    const ROWS: usize = 4;
    const WIDTH: usize = 24;
    let shape = [EXPERTS, ROWS, WIDTH];
    let (gate, up, values) = rectified(EXPERTS * ROWS, WIDTH);
    let (counts, scale) = ([4i32, 0, 2], [0.37f32, 2.0, 11.0]);
    let view = |data| View::new(data, &shape).unwrap();
    let swiglu = Swiglu::builder(Device::Cpu, Dtype::F32).activation(Activation::Reglu).build().unwrap();
    let is_row = |row: usize| row % ROWS < counts[row / ROWS] as usize;
    for multiplies in [false, true] {
        let (mut out, mut amax) = (vec![F8E5m2(9); values.len()], [0.5f32]);
        let mut quant = SwigluQuant::new()
            .scale(View::new(&scale, &[EXPERTS]).unwrap())
            .amax_out(ViewMut::new(&mut amax, &[1]).unwrap());
        if multiplies {
            quant = quant.scale_multiplies();
        }
        let mut args = SwigluArgs::forward(view(&gate), view(&up), ViewMut::new(&mut out, &shape).unwrap())
            .expert_rows(View::new(&counts, &[EXPERTS]).unwrap())
            .quant(quant);
        assert!(swiglu.explain(&args).unwrap().starts_with("swiglu F32 forward on the CPU: "));
        swiglu.forward(&mut args).unwrap();
        let mut largest = 0.5f32;
        for (i, value) in values.iter().enumerate() {
            let by = scale[i / WIDTH / ROWS];
            let by = if multiplies { by } else { 1.0 / by };
            if is_row(i / WIDTH) {
                largest = largest.max(value.abs());
                assert_eq!(out[i].0, code_of(value * by, 2), "element {i}");
            } else {
                assert_eq!(out[i].0, 9);
            }
        }
        assert_eq!(amax[0], largest);
    }
    for (is_power_of_two, groups) in [(false, 1), (true, 3), (false, 8)] {
        let (mut out, mut scales) = (vec![F8E4m3(9); values.len()], vec![-1.0f32; EXPERTS * ROWS * groups]);
        let scale_shape: &[usize] = if groups == 8 { &[EXPERTS, ROWS, 2, 4] } else { &[EXPERTS, ROWS, groups] };
        let mut quant = SwigluQuant::new()
            .scales_out(ViewMut::new(&mut scales, scale_shape).unwrap())
            .scale_layout(ScaleLayout::Strided)
            .scale_floor(3.0);
        if is_power_of_two {
            quant = quant.power_of_two();
        }
        let mut args = SwigluArgs::forward(view(&gate), view(&up), ViewMut::new(&mut out, &shape).unwrap())
            .expert_rows(View::new(&counts, &[EXPERTS]).unwrap())
            .quant(quant);
        swiglu.forward(&mut args).unwrap();
        let width = WIDTH / groups;
        for (i, group) in values.chunks(width).enumerate() {
            let (mut wanted, mut codes) = scaled(group, is_power_of_two, 448.0, 3);
            if !is_row(i / groups) {
                (wanted, codes) = (-1.0, vec![9; width]);
            }
            assert_eq!(scales[i], wanted, "group {i} of {groups}");
            assert_eq!(out[i * width..][..width].iter().map(|x| x.0).collect::<Vec<_>>(), codes);
        }
    }
}

/// gate, up and the largest of their products, which are not 0. Rows have magnitudes of their own.
fn rows_of_magnitudes(width: usize) -> (Vec<f32>, Vec<f32>, f32) {
    let magnitudes = [30.0f32, 1.7, 2e-3, 2e-4, 1e-6];
    let (mut gate, mut up, _) = rectified(magnitudes.len(), width);
    gate.iter_mut().enumerate().for_each(|(i, x)| *x = (x.abs() + 0.1) / 30.0 * magnitudes[i / width]);
    up.iter_mut().for_each(|x| *x += 0.01f32.copysign(*x));
    let largest = gate.iter().zip(&up).map(|(g, u)| (g * u).abs()).fold(0.0, f32::max);
    (gate, up, largest)
}

/// The code of 4 bits of the number nearest to x, the even one of two, and at most 6.
fn code_of_4_bits(x: f32) -> u8 {
    let distance = |code: u8| ([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code)] - x.abs().min(6.0)).abs();
    let nearest = (0..8).min_by(|&a, &b| distance(a).partial_cmp(&distance(b)).unwrap().then((a & 1).cmp(&(b & 1))));
    nearest.unwrap() | if x.is_sign_negative() { 8 } else { 0 }
}

/// The codes of gate * up * factor, the even channel in the low four bits.
fn bytes_of_4_bits(gate: &[f32], up: &[f32], factor: f32) -> Vec<F4E2m1x2> {
    let codes: Vec<u8> = gate.iter().zip(up).map(|(g, u)| code_of_4_bits(g * u * factor)).collect();
    codes.chunks(2).map(|pair| F4E2m1x2(pair[0] | pair[1] << 4)).collect()
}

#[test]
fn gating_to_nvfp4() {
    const WIDTH: usize = 96;
    const GROUP: usize = 16;
    let (gate, up, largest) = rows_of_magnitudes(WIDTH);
    let rows = gate.len() / WIDTH;
    let swiglu = Swiglu::builder(Device::Cpu, Dtype::F32).activation(Activation::Reglu).build().unwrap();
    let view = |data| View::new(data, &[rows, WIDTH]).unwrap();
    // The factor that reaches the largest scale, one with scales that saturate, and none.
    for given in [Some(448.0 * 6.0 / largest), Some(1e4), None] {
        let factor = given.unwrap_or(1.0);
        let (mut out, mut amax) = (vec![F4E2m1x2(0x99); gate.len() / 2], [0.0f32]);
        let mut scales = vec![F8E4m3(9); gate.len() / GROUP];
        let mut quant = SwigluQuant::new()
            .scales_out(ViewMut::new(&mut scales, &[rows, WIDTH / GROUP]).unwrap())
            .amax_out(ViewMut::new(&mut amax, &[1]).unwrap());
        if given.is_some() {
            quant = quant.scale(View::new(std::slice::from_ref(&factor), &[1]).unwrap());
        }
        let out_view = ViewMut::new(&mut out, &[rows, WIDTH / 2]).unwrap();
        swiglu.forward(&mut SwigluArgs::forward(view(&gate), view(&up), out_view).quant(quant)).unwrap();

        assert_eq!(amax, [largest]);
        for (i, (gate, up)) in gate.chunks(GROUP).zip(up.chunks(GROUP)).enumerate() {
            let of_group = gate.iter().zip(up).map(|(g, u)| (g * u).abs()).fold(0.0, f32::max);
            let code = code_of((factor * (of_group / 6.0)).min(448.0), 3);
            let scale = number_of(code, 3);
            assert_eq!(scales[i].0, code, "group {i} with {given:?}");
            let by = if scale == 0.0 { 0.0 } else { factor / scale };
            let found = &out[i * GROUP / 2..][..GROUP / 2];
            assert_eq!(found, bytes_of_4_bits(gate, up, by), "group {i} with {given:?}");
        }
    }
}

#[test]
fn gating_to_mxfp4() {
    const WIDTH: usize = 96;
    const GROUP: usize = 32;
    let (gate, up, _) = rows_of_magnitudes(WIDTH);
    let rows = gate.len() / WIDTH;
    let swiglu = Swiglu::builder(Device::Cpu, Dtype::F32).activation(Activation::Reglu).build().unwrap();
    let view = |data| View::new(data, &[rows, WIDTH]).unwrap();
    // The second of three parts of the output is written.
    let size = gate.len() / 2;
    let mut out = vec![F4E2m1x2(0x99); 3 * size];
    let mut scales = vec![F8E8m0(9); gate.len() / GROUP];
    let part = ViewMut::new(&mut out, &[3 * rows, WIDTH / 2]).unwrap().narrow(0, rows, rows).unwrap();
    let quant = SwigluQuant::new().scales_out(ViewMut::new(&mut scales, &[rows, WIDTH / GROUP]).unwrap());
    swiglu.forward(&mut SwigluArgs::forward(view(&gate), view(&up), part).quant(quant)).unwrap();

    for (i, (gate, up)) in gate.chunks(GROUP).zip(up.chunks(GROUP)).enumerate() {
        let largest = gate.iter().zip(up).map(|(g, u)| f64::from(g * u).abs()).fold(0.0, f64::max);
        let exponent = (-127..=127).find(|&exponent| 6.0 * 2f64.powi(exponent) >= largest).unwrap();
        assert_eq!(i32::from(scales[i].0), exponent + 127, "group {i}");
        let found = &out[size + i * GROUP / 2..][..GROUP / 2];
        assert_eq!(found, bytes_of_4_bits(gate, up, 2f32.powi(-exponent)), "group {i}");
    }
    assert!(out[..size].iter().chain(&out[2 * size..]).all(|&x| x == F4E2m1x2(0x99)));

    let factor = [2.0f32];
    let quant = SwigluQuant::new()
        .scale(View::new(&factor, &[1]).unwrap())
        .scales_out(ViewMut::new(&mut scales, &[rows, WIDTH / GROUP]).unwrap());
    let part = ViewMut::new(&mut out[..size], &[rows, WIDTH / 2]).unwrap();
    let mut args = SwigluArgs::forward(view(&gate), view(&up), part).quant(quant);
    assert_refused(swiglu.forward(&mut args), Status::InvalidArgument, "quant.scale");
    let mut args = SwigluArgs::forward(view(&gate), view(&up), ViewMut::new(&mut out, &[rows, WIDTH]).unwrap());
    assert_refused(swiglu.forward(&mut args), Status::InvalidArgument, "out.shape[1] is 96:");
}

#[test]
fn gating_by_column() {
    const ROWS: usize = 6;
    const WIDTH: usize = 10;
    const SIZE: usize = ROWS * WIDTH;
    const GROUPS: usize = 2; // of three rows, and of five channels
    let (gate, up, values) = rectified(ROWS, WIDTH);
    let grad: Vec<f32> = numbers(SIZE).iter().map(|x| x * 7.0).collect();
    let view = |data| View::new(data, &[ROWS, WIDTH]).unwrap();
    fn written<T: Element>(data: &mut [T], rows: usize) -> ViewMut<'_> {
        let width = data.len() / rows;
        ViewMut::new(data, &[rows, width]).unwrap()
    }
    let swiglu = Swiglu::builder(Device::Cpu, Dtype::F32).activation(Activation::Reglu).build().unwrap();
    // Scales and codes are those of the values.
    let check =
        |values: &[f32], scales: &[f32], codes: &[u8], by_column: bool, is_power_of_two: bool, fraction_bits| {
            let top = if fraction_bits == 3 { 448.0 } else { 57344.0 };
            for (i, scale) in scales.iter().enumerate() {
                let group: Vec<usize> = if by_column {
                    (0..ROWS / GROUPS).map(|row| (i / WIDTH * (ROWS / GROUPS) + row) * WIDTH + i % WIDTH).collect()
                } else {
                    (0..WIDTH / GROUPS).map(|channel| i * (WIDTH / GROUPS) + channel).collect()
                };
                let numbers: Vec<f32> = group.iter().map(|&j| values[j]).collect();
                let (wanted, wanted_codes) = scaled(&numbers, is_power_of_two, top, fraction_bits);
                assert_eq!(*scale, wanted, "group {i}");
                assert_eq!(group.iter().map(|&j| codes[j]).collect::<Vec<_>>(), wanted_codes, "group {i}");
            }
        };

    for is_power_of_two in [false, true] {
        let (mut codes, mut scales, mut amax) = ([F8E4m3(9); SIZE], [-1.0f32; GROUPS * WIDTH], [0.5f32]);
        let mut column = SwigluColumn::new()
            .out(written(&mut codes, ROWS))
            .scales_out(written(&mut scales, GROUPS))
            .scale_layout(ScaleLayout::Strided)
            .amax_out(ViewMut::new(&mut amax, &[1]).unwrap())
            .scale_floor(3.0);
        if is_power_of_two {
            column = column.power_of_two();
        }
        swiglu.forward(&mut SwigluArgs::forward_by_column(view(&gate), view(&up), column)).unwrap();
        check(&values, &scales, &codes.map(|x| x.0), true, is_power_of_two, 3);
        assert_eq!(amax[0], values.iter().fold(0.0, |largest: f32, x| largest.max(x.abs())));
    }

    let mut words = [[0.0f32; SIZE]; 2];
    let [of_gate, of_up] = &mut words;
    let mut args = SwigluArgs::backward(view(&gate), view(&up), view(&grad))
        .grad_gate(written(of_gate, ROWS))
        .grad_up(written(of_up, ROWS));
    swiglu.backward(&mut args).unwrap();
    let (mut by_row, mut by_column) = ([[F8E5m2(9); SIZE]; 2], [[F8E4m3(9); SIZE]; 2]);
    let (mut row_scales, mut column_scales) = ([[-1.0f32; ROWS * GROUPS]; 2], [[-1.0f32; GROUPS * WIDTH]; 2]);
    let ([gate_rows, up_rows], [gate_columns, up_columns]) = (&mut by_row, &mut by_column);
    let ([gate_row_scales, up_row_scales], [gate_scales, up_scales]) = (&mut row_scales, &mut column_scales);
    let mut args = SwigluArgs::backward(view(&gate), view(&up), view(&grad))
        .grad_gate(written(gate_rows, ROWS))
        .grad_up(written(up_rows, ROWS))
        .quant(
            SwigluQuant::new()
                .grad_gate_scales_out(written(gate_row_scales, ROWS))
                .grad_up_scales_out(written(up_row_scales, ROWS))
                .scale_floor(3.0),
        )
        .column(
            SwigluColumn::default()
                .grad_gate(written(gate_columns, ROWS))
                .grad_gate_scales_out(written(gate_scales, GROUPS))
                .grad_up(written(up_columns, ROWS))
                .grad_up_scales_out(written(up_scales, GROUPS))
                .scale_floor(3.0),
        );
    assert!(swiglu.explain(&args).unwrap().starts_with("swiglu F32 backward on the CPU: "));
    swiglu.backward(&mut args).unwrap();
    for i in 0..2 {
        check(&words[i], &row_scales[i], &by_row[i].map(|x| x.0), false, false, 2);
        check(&words[i], &column_scales[i], &by_column[i].map(|x| x.0), true, false, 3);
    }

    let mut codes = [F8E4m3(9); SIZE];
    let column = SwigluColumn::new().out(written(&mut codes, ROWS)).power_of_two();
    let mut args = SwigluArgs::forward_by_column(view(&gate), view(&up), column);
    assert_refused(swiglu.forward(&mut args), Status::InvalidArgument, "column.flags is 0x2");
}

#[test]
fn gating_rounded_before_codes() {
    // 1.015625 * 1.015625 = 1.031494 is 1.03125 in bf16; with it, the largest code is reached exactly.
    let (gate, up) = ([Bf16(0x3f82); 2], [Bf16(0x3f82); 2]);
    let scale_of = |rounding: i32| {
        let swiglu =
            Swiglu::builder(Device::Cpu, Dtype::Bf16).activation(Activation::Reglu).quant_rounding(rounding).build();
        let (mut out, mut scales) = ([F8E4m3(0); 2], [0.0f32]);
        let view = |data| View::new(data, &[1, 2]).unwrap();
        let mut args = SwigluArgs::forward(view(&gate), view(&up), ViewMut::new(&mut out, &[1, 2]).unwrap())
            .quant(SwigluQuant::new().scales_out(ViewMut::new(&mut scales, &[1, 1]).unwrap()));
        swiglu.unwrap().forward(&mut args).unwrap();
        assert_eq!(out.map(|x| x.0), [0x7e; 2]);
        scales[0]
    };
    assert_eq!(scale_of(0), 1.015625f32 * 1.015625 / 448.0);
    assert_eq!(scale_of(QUANT_ROUND_FIRST), 1.03125f32 / 448.0);
    let unknown = Swiglu::builder(Device::Cpu, Dtype::Bf16).quant_rounding(QUANT_ROUND_FIRST | 8).build();
    assert_refused(unknown, Status::NotSupported, "quant_rounding is 0x9");

    let f32s = Swiglu::builder(Device::Cpu, Dtype::F32).build().unwrap();
    let given = numbers(8);
    let wrong = View::new(&given, &[1, 1]).unwrap();
    let (mut amax, mut scales) = ([0.0f32; 2], [0.0f32; 2]);
    for (quant, words) in [
        (SwigluQuant::new().scale(wrong), "quant.scale has shape [1, 1]"),
        (SwigluQuant::new().amax_out(ViewMut::new(&mut amax, &[2]).unwrap()), "quant.amax_out has shape [2]"),
        (SwigluQuant::new().scales_out(ViewMut::new(&mut scales, &[2]).unwrap()), "quant.scales_out has shape [2]"),
        (SwigluQuant::new().scale_floor(0.5), "quant.scale_floor is 0.5"),
        (SwigluQuant::new().power_of_two(), "quant.flags is 0x2"),
    ] {
        let mut out = [F8E5m2(0); 4];
        let (gate, up) = given.split_at(4);
        let view = |data| View::new(data, &[2, 2]).unwrap();
        let mut args = SwigluArgs::forward(view(gate), view(up), ViewMut::new(&mut out, &[2, 2]).unwrap()).quant(quant);
        assert_refused(f32s.forward(&mut args), Status::InvalidArgument, words);
    }
}

#[test]
fn gating_of_experts_back_to_back() {
    const ROWS: usize = 7;
    const WIDTH: usize = 10;
    let (gate, up, _) = rectified(ROWS, WIDTH);
    let (grad, bias, factors) = (numbers(ROWS * WIDTH), numbers(2 * WIDTH), [0.5f32, -2.0, 3.0]);
    let (offsets, index) = ([1i32, 4, 6], [0i64, 2, -1, 1, 0, 3, 2]);
    // Rows 0 and 6 have no expert, rows 2 and 5 no factor.
    let experts = [None, Some(0), None, Some(0), Some(1), None, None];
    let view = |data| View::new(data, &[ROWS, WIDTH]).unwrap();
    let swiglu = Swiglu::builder(Device::Cpu, Dtype::F32).activation(Activation::Reglu).build().unwrap();
    let (mut out, mut grad_gate, mut grad_factors) =
        (vec![7.0f32; gate.len()], vec![7.0f32; gate.len()], vec![7.0f32; ROWS]);
    let forward = SwigluArgs::forward(view(&gate), view(&up), ViewMut::new(&mut out, &[ROWS, WIDTH]).unwrap());
    let backward = SwigluArgs::backward(view(&gate), view(&up), view(&grad))
        .grad_gate(ViewMut::new(&mut grad_gate, &[ROWS, WIDTH]).unwrap())
        .grad_row_scale(ViewMut::new(&mut grad_factors, &[ROWS]).unwrap());
    let [mut forward, mut backward] = [forward, backward].map(|args| {
        args.up_bias(View::new(&bias, &[2, WIDTH]).unwrap())
            .row_scale(View::new(&factors, &[3]).unwrap())
            .expert_offsets(View::new(&offsets, &[3]).unwrap())
            .row_index(View::new(&index, &[ROWS]).unwrap())
    });
    swiglu.forward(&mut forward).unwrap();
    swiglu.backward(&mut backward).unwrap();
    for (row, expert) in experts.into_iter().enumerate() {
        let mut sum = 0.0;
        for column in 0..WIDTH {
            let i = row * WIDTH + column;
            let Some(expert) = expert else {
                assert_eq!((out[i], grad_gate[i], grad_factors[row]), (7.0, 7.0, 7.0));
                continue;
            };
            let (g, u) = (f64::from(gate[i]), f64::from(up[i]) + f64::from(bias[expert * WIDTH + column]));
            let factor = f64::from(factors[index[row] as usize]);
            let wanted = [g.max(0.0) * u * factor, if g > 0.0 { f64::from(grad[i]) * u * factor } else { 0.0 }];
            sum += f64::from(grad[i]) * g.max(0.0) * u;
            for (found, wanted) in [out[i], grad_gate[i]].into_iter().zip(wanted) {
                assert!((f64::from(found) - wanted).abs() < 1e-4, "{i}: {found} instead of {wanted}");
            }
        }
        if expert.is_some() {
            assert!((f64::from(grad_factors[row]) - sum).abs() < 1e-3, "row {row}");
        }
    }
}
