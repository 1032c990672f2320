// SPDX-License-Identifier: Apache-2.0
//! The unsafe interface on device memory: it arrives where CPU memory does. Memory and streams come from the driver
//! itself, through libcuda.so.1, so that no crate is needed. Without a GPU the program prints why it is skipped.

use driver::{Buffer, Context, Stream};
use rope::*;
use std::fmt::Debug;
use std::ptr::null_mut;

const TOKENS: usize = 37;
const Q_HEADS: usize = 4;
const K_HEADS: usize = 2; // and as many of v
const HEADS: usize = Q_HEADS + 2 * K_HEADS;
const HEAD_DIM: usize = 64;
const CUDA: Device = Device::Cuda(0);

/// The functions of the CUDA driver that a program with tensors on a device usually gets from its own library.
mod driver {
    use std::ffi::CString;
    use std::marker::PhantomData;
    use std::mem::{size_of_val, transmute_copy};
    use std::os::raw::{c_char, c_int, c_void};
    use std::ptr::null_mut;

    extern "C" {
        fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
        fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    }
    const RTLD_NOW: c_int = 2;

    /// Calls a function of libcuda.so.1 and panics if it fails.
    macro_rules! cuda {
        ($name:literal, $($type:ty: $value:expr),*) => {{
            let function: unsafe extern "C" fn($($type),*) -> c_int = unsafe { transmute_copy(&symbol($name)) };
            let status = unsafe { function($($value),*) };
            assert_eq!(status, 0, "{} failed with this CUresult", $name);
        }};
    }

    fn symbol(name: &str) -> *mut c_void {
        let (library, name) = (CString::new("libcuda.so.1").unwrap(), CString::new(name).unwrap());
        // SAFETY: the two texts end with 0. The library stays open.
        let found = unsafe { dlsym(dlopen(library.as_ptr(), RTLD_NOW), name.as_ptr()) };
        assert!(!found.is_null(), "libcuda.so.1 has no {name:?}");
        found
    }

    /// The context of device 0 that the CUDA runtime uses too. Each thread makes it current.
    #[derive(Clone, Copy)]
    pub struct Context(*mut c_void);

    // SAFETY: contexts of the driver belong to no thread.
    unsafe impl Send for Context {}

    impl Context {
        pub fn of_first_device() -> Context {
            let (mut device, mut context) = (0, null_mut());
            cuda!("cuInit", u32: 0);
            cuda!("cuDeviceGet", *mut c_int: &mut device, c_int: 0);
            cuda!("cuDevicePrimaryCtxRetain", *mut *mut c_void: &mut context, c_int: device);
            Context(context).make_current()
        }

        pub fn make_current(self) -> Context {
            cuda!("cuCtxSetCurrent", *mut c_void: self.0);
            self
        }
    }

    /// Elements in the device's memory.
    pub struct Buffer<T> {
        address: u64,
        length: usize,
        elements: PhantomData<T>,
    }

    impl<T: Copy> Buffer<T> {
        pub fn of(host: &[T]) -> Buffer<T> {
            let mut address = 0;
            cuda!("cuMemAlloc_v2", *mut u64: &mut address, usize: size_of_val(host));
            cuda!("cuMemcpyHtoD_v2", u64: address, *const c_void: host.as_ptr().cast(), usize: size_of_val(host));
            cuda!("cuCtxSynchronize",); // a copy of pageable memory may return before it arrives
            Buffer { address, length: host.len(), elements: PhantomData }
        }

        pub fn pointer(&self) -> *mut c_void {
            self.address as *mut c_void
        }

        /// The contents when the stream has done its work.
        pub fn after(&self, stream: &Stream) -> Vec<T> {
            stream.synchronize();
            let mut host = Vec::with_capacity(self.length);
            let bytes = self.length * std::mem::size_of::<T>();
            cuda!("cuMemcpyDtoH_v2", *mut c_void: host.as_mut_ptr() as *mut c_void, u64: self.address, usize: bytes);
            // SAFETY: all of them were copied.
            unsafe { host.set_len(self.length) };
            host
        }
    }

    impl<T> Drop for Buffer<T> {
        fn drop(&mut self) {
            cuda!("cuMemFree_v2", u64: self.address);
        }
    }

    pub struct Stream(*mut c_void);

    impl Stream {
        pub fn new() -> Stream {
            let mut stream = null_mut();
            cuda!("cuStreamCreate", *mut *mut c_void: &mut stream, u32: 1); // CU_STREAM_NON_BLOCKING
            Stream(stream)
        }

        pub fn legacy_default() -> Stream {
            Stream(null_mut())
        }

        pub fn handle(&self) -> *mut c_void {
            self.0
        }

        pub fn synchronize(&self) {
            cuda!("cuStreamSynchronize", *mut c_void: self.0);
        }
    }

    impl Drop for Stream {
        fn drop(&mut self) {
            if !self.0.is_null() {
                cuda!("cuStreamDestroy_v2", *mut c_void: self.0);
            }
        }
    }
}

fn builder<'a>(device: Device, dtype: Dtype) -> DescBuilder<'a> {
    Desc::builder(device, dtype, Layout::Thd, Style::Half, HEAD_DIM as i32).theta(500000.0)
}

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i as f32 * 0.37).sin()).collect()
}

fn positions() -> Vec<i64> {
    (0..TOKENS as i64).map(|token| token * token * 77 - 1000).collect()
}

/// The upper half of fp32: all finite.
fn bf16(numbers: &[f32]) -> Vec<Bf16> {
    numbers.iter().map(|x| Bf16((x.to_bits() >> 16) as u16)).collect()
}

fn compact(shape: &[usize]) -> Vec<isize> {
    (0..shape.len()).map(|axis| shape[axis + 1..].iter().product::<usize>() as isize).collect()
}

fn view<'a, T: Element>(buffer: &'a Buffer<T>, dtype: Dtype, shape: &[usize]) -> View<'a> {
    // SAFETY: the buffers of these tests live until the test has waited for their stream.
    unsafe { View::from_raw(buffer.pointer(), dtype, shape, &compact(shape)) }.unwrap()
}

fn view_mut<'a, T: Element>(buffer: &'a Buffer<T>, dtype: Dtype, shape: &[usize]) -> ViewMut<'a> {
    // SAFETY: the buffers live that long, and each is written through one view at a time.
    unsafe { ViewMut::from_raw(buffer.pointer(), dtype, shape, &compact(shape)) }.unwrap()
}

fn q_and_k(packed: ViewMut<'_>) -> (ViewMut<'_>, ViewMut<'_>) {
    let (q, rest) = packed.split_at(1, Q_HEADS).unwrap();
    (q, rest.narrow(1, 0, K_HEADS).unwrap())
}

/// Forward and backward inside a packed tensor have the bits of the CPU.
fn packed_qkv<T: Element + PartialEq + Debug>(dtype: Dtype, given: &[T]) {
    let shape = [TOKENS, HEADS, HEAD_DIM];
    let positions = positions();
    let (cpu, cuda) = (builder(Device::Cpu, dtype).build().unwrap(), builder(CUDA, dtype).build().unwrap());
    let stream = Stream::new();
    let (on_device, positions_there) = (Buffer::of(given), Buffer::of(&positions));
    let mut on_host = given.to_vec();
    for is_backward in [false, true] {
        let (q, k) = q_and_k(ViewMut::new(&mut on_host, &shape).unwrap());
        let mut args = Args::new(q).k(k).positions(View::new(&positions, &[TOKENS]).unwrap());
        if is_backward { cpu.backward(&mut args) } else { cpu.forward(&mut args) }.unwrap();

        let (q, k) = q_and_k(view_mut(&on_device, dtype, &shape));
        let mut args = Args::new(q).k(k).positions(view(&positions_there, Dtype::I64, &[TOKENS]));
        // SAFETY: the test waits for the stream before the buffers go.
        unsafe {
            if is_backward {
                cuda.enqueue_backward(&mut args, stream.handle())
            } else {
                cuda.enqueue_forward(&mut args, stream.handle())
            }
        }
        .unwrap();
        assert_eq!(on_device.after(&stream), on_host, "{dtype:?}, backward: {is_backward}");
    }
}

fn packed_qkv_in_every_dtype() {
    let given = numbers(TOKENS * HEADS * HEAD_DIM);
    packed_qkv(Dtype::F32, &given);
    packed_qkv(Dtype::Bf16, &bf16(&given));
    packed_qkv(Dtype::F64, &given.iter().map(|&x| x as f64).collect::<Vec<_>>());
}

/// q, k and v of a packed tensor in place, k and v also in one buffer of caches.
fn step<'a>(
    packed: ViewMut<'a>,
    weight: View<'a>,
    positions: View<'a>,
    slots: View<'a>,
    caches: ViewMut<'a>,
) -> Args<'a> {
    let (q, rest) = packed.split_at(1, Q_HEADS).unwrap();
    let (k, v) = rest.split_at(1, K_HEADS).unwrap();
    let (k_cache, v_cache) = caches.split_at(3, HEAD_DIM).unwrap();
    Args::new(q)
        .k(k)
        .v(v)
        .flags(V_UNROTATED)
        .positions(positions)
        .norm(Norm::new().q_weight(weight))
        .cache(Cache::by_slots(slots).k_cache(k_cache).v_cache(v_cache))
}

fn norms_and_caches() {
    const ROWS: usize = 48;
    let (shape, pages) = ([TOKENS, HEADS, HEAD_DIM], [ROWS / 16, 16, K_HEADS, 2 * HEAD_DIM]);
    let (given, positions, weight) = (numbers(TOKENS * HEADS * HEAD_DIM), positions(), numbers(HEAD_DIM));
    let slots: Vec<i32> = (0..TOKENS).map(|token| (token * 7 % ROWS) as i32 - 1).collect(); // the first: not cached
    let mut on_host = given.clone();
    let mut cached = vec![0.0f32; pages.iter().product()];
    let there = (Buffer::of(&given), Buffer::of(&positions), Buffer::of(&weight), Buffer::of(&slots));
    let cached_there = Buffer::of(&cached);

    let of = |device| builder(device, Dtype::F32).norm(NormType::Rms, 1e-6).build().unwrap();
    let mut args = step(
        ViewMut::new(&mut on_host, &shape).unwrap(),
        View::new(&weight, &[HEAD_DIM]).unwrap(),
        View::new(&positions, &[TOKENS]).unwrap(),
        View::new(&slots, &[TOKENS]).unwrap(),
        ViewMut::new(&mut cached, &pages).unwrap(),
    );
    of(Device::Cpu).forward(&mut args).unwrap();

    let stream = Stream::new();
    let mut args = step(
        view_mut(&there.0, Dtype::F32, &shape),
        view(&there.2, Dtype::F32, &[HEAD_DIM]),
        view(&there.1, Dtype::I64, &[TOKENS]),
        view(&there.3, Dtype::I32, &[TOKENS]),
        view_mut(&cached_there, Dtype::F32, &pages),
    );
    // SAFETY: the test waits for the stream before the buffers go.
    unsafe { of(CUDA).enqueue_forward(&mut args, stream.handle()) }.unwrap();
    assert_eq!(there.0.after(&stream), on_host);
    assert_eq!(cached_there.after(&stream), cached);
    assert_ne!(cached[HEAD_DIM..2 * HEAD_DIM], [0.0; HEAD_DIM]);
}

fn tables_and_the_fault_counter() {
    const ROWS: usize = 30; // fewer than tokens
    let shape = [TOKENS, 1, HEAD_DIM];
    let given = numbers(TOKENS * HEAD_DIM);
    let desc = builder(CUDA, Dtype::F32).build().unwrap();
    let stream = Stream::legacy_default();
    let tables = [(); 2].map(|_| Buffer::of(&vec![0.0f32; ROWS * HEAD_DIM / 2]));
    let table_shape = [ROWS, HEAD_DIM / 2];
    let [mut cos, mut sin] = [0, 1].map(|index| view_mut(&tables[index], Dtype::F32, &table_shape));
    // SAFETY: the test waits for the stream before the tables go.
    unsafe { desc.enqueue_fill_tables(&mut cos, &mut sin, stream.handle()) }.unwrap();

    let (q, q_out, fault) = (Buffer::of(&given), Buffer::of(&vec![0.0f32; given.len()]), Buffer::of(&[0i64; 2]));
    let mut args = Args::new((view(&q, Dtype::F32, &shape), view_mut(&q_out, Dtype::F32, &shape)))
        .tables(cos.as_view(), sin.as_view(), TableRows::ByPosition)
        .fault(view_mut(&fault, Dtype::I64, &[2]));
    // SAFETY: the test waits for the stream before these go.
    unsafe { desc.enqueue_forward(&mut args, stream.handle()) }.unwrap();
    assert_eq!(fault.after(&stream), [(TOKENS - ROWS) as i64, ROWS as i64 + 1]);

    let mut wanted = given.clone();
    let rotated = ViewMut::new(&mut wanted[..ROWS * HEAD_DIM], &[ROWS, 1, HEAD_DIM]).unwrap();
    builder(Device::Cpu, Dtype::F32).build().unwrap().forward(&mut Args::new(rotated)).unwrap();
    assert_eq!(q_out.after(&stream), wanted); // tokens past the table pass through
    assert_eq!(q.after(&stream), given);
}

fn swiglu_forward_and_backward() {
    let shape = [TOKENS, 100];
    let (gate, up, grad) = (numbers(3700), numbers(7400).split_off(3700), numbers(11100).split_off(7400));
    let make = |device| Swiglu::builder(device, Dtype::F32).build().unwrap();
    let mut wanted = [(); 3].map(|_| vec![0.0f32; 3700]);
    {
        let [out, grad_gate, grad_up] = &mut wanted;
        let view = |data| View::new(data, &shape).unwrap();
        make(Device::Cpu)
            .forward(&mut SwigluArgs::forward(view(&gate), view(&up), ViewMut::new(out, &shape).unwrap()))
            .unwrap();
        make(Device::Cpu)
            .backward(
                &mut SwigluArgs::backward(view(&gate), view(&up), view(&grad))
                    .grad_gate(ViewMut::new(grad_gate, &shape).unwrap())
                    .grad_up(ViewMut::new(grad_up, &shape).unwrap()),
            )
            .unwrap();
    }

    let stream = Stream::new();
    let [gate, up, grad] = [&gate, &up, &grad].map(|data| Buffer::of(data));
    let found = [(); 3].map(|_| Buffer::of(&vec![0.0f32; 3700]));
    let read = |buffer| view(buffer, Dtype::F32, &shape);
    let written = |index: usize| view_mut(&found[index], Dtype::F32, &shape);
    let swiglu = make(CUDA);
    let mut forward = SwigluArgs::forward(read(&gate), read(&up), written(0));
    let mut backward =
        SwigluArgs::backward(read(&gate), read(&up), read(&grad)).grad_gate(written(1)).grad_up(written(2));
    // SAFETY: the test waits for the stream before the buffers go.
    unsafe {
        swiglu.enqueue_forward(&mut forward, stream.handle()).unwrap();
        swiglu.enqueue_backward(&mut backward, stream.handle()).unwrap();
    }
    for (found, wanted) in found.iter().zip(&wanted) {
        for (a, b) in found.after(&stream).iter().zip(wanted) {
            assert!((a - b).abs() <= 2e-6 * b.abs() + 1e-12, "{a} instead of {b}");
        }
    }
}

fn geglu_of_experts_with_biases() {
    let shape = [2, TOKENS, 50];
    let (gate, up, bias) = (numbers(3700), numbers(7400).split_off(3700), numbers(100));
    let make = |device| {
        let builder = Swiglu::builder(device, Dtype::F32).activation(Activation::GegluErf).gate_softcap(0.5);
        builder.build().unwrap()
    };
    let counts = [TOKENS as i32, 5];
    let mut wanted = [(); 3].map(|_| vec![7.0f32; 3700]);
    let found = [(); 3].map(|_| Buffer::of(&wanted[0]));
    {
        let [out, grad_gate, grad_up] = &mut wanted;
        let view = |data| View::new(data, &shape).unwrap();
        let mut args = SwigluArgs::backward(view(&gate), view(&up), view(&gate))
            .out(ViewMut::new(out, &shape).unwrap())
            .grad_gate(ViewMut::new(grad_gate, &shape).unwrap())
            .grad_up(ViewMut::new(grad_up, &shape).unwrap())
            .gate_bias(View::new(&bias, &[2, 50]).unwrap())
            .up_bias(View::new(&bias[50..], &[50]).unwrap())
            .expert_rows(View::new(&counts, &[2]).unwrap());
        make(Device::Cpu).backward(&mut args).unwrap();
    }

    let stream = Stream::new();
    let (gate, up, rows) = (Buffer::of(&gate), Buffer::of(&up), Buffer::of(&counts));
    let (gate_bias, up_bias) = (Buffer::of(&bias), Buffer::of(&bias[50..]));
    let read = |buffer| view(buffer, Dtype::F32, &shape);
    let [out, grad_gate, grad_up] = [0, 1, 2].map(|index| view_mut(&found[index], Dtype::F32, &shape));
    let mut args = SwigluArgs::backward(read(&gate), read(&up), read(&gate))
        .out(out)
        .grad_gate(grad_gate)
        .grad_up(grad_up)
        .gate_bias(view(&gate_bias, Dtype::F32, &[2, 50]))
        .up_bias(view(&up_bias, Dtype::F32, &[50]))
        .expert_rows(view(&rows, Dtype::I32, &[2]));
    // SAFETY: the test waits for the stream before the buffers go.
    unsafe { make(CUDA).enqueue_backward(&mut args, stream.handle()) }.unwrap();
    for (found, wanted) in found.iter().zip(&wanted) {
        assert_eq!(wanted[3699], 7.0);
        for (a, b) in found.after(&stream).iter().zip(wanted) {
            assert!((a - b).abs() <= 1e-5, "{a} instead of {b}");
        }
    }
}

fn threads_with_streams_of_their_own_share_a_descriptor(context: Context) {
    let desc = builder(CUDA, Dtype::F32).build().unwrap();
    let given = numbers(TOKENS * HEAD_DIM);
    std::thread::scope(|scope| {
        for thread in 0..4i64 {
            let (desc, given) = (&desc, &given);
            scope.spawn(move || {
                let _context = context.make_current();
                let shape = [TOKENS, 1, HEAD_DIM];
                let mut wanted = given.clone();
                let host = ViewMut::new(&mut wanted, &shape).unwrap();
                let cpu = builder(Device::Cpu, Dtype::F32).num_threads(1).build().unwrap();
                cpu.forward(&mut Args::new(host).position_offset(thread)).unwrap();
                let stream = Stream::new();
                for _ in 0..50 {
                    let q = Buffer::of(given);
                    let mut args = Args::new(view_mut(&q, Dtype::F32, &shape)).position_offset(thread);
                    // SAFETY: the test waits for the stream before q goes.
                    unsafe { desc.enqueue_forward(&mut args, stream.handle()) }.unwrap();
                    assert_eq!(q.after(&stream), wanted);
                }
            });
        }
    });
}

fn what_is_refused() {
    let cuda = builder(CUDA, Dtype::F32).build().unwrap();
    let q = Buffer::of(&numbers(HEAD_DIM));
    let mut args = Args::new(view_mut(&q, Dtype::F32, &[1, 1, HEAD_DIM]));
    let slices = || [(); 3].map(|_| vec![0.0f32; 4]);
    let ([mut cos, mut sin, grad], [gate, mut up, mut grad_gate]) = (slices(), slices());
    let swiglu = Swiglu::builder(CUDA, Dtype::F32).build().unwrap();
    let (gate, grad) = (View::new(&gate, &[4]).unwrap(), View::new(&grad, &[4]).unwrap());
    for (result, words) in [
        (cuda.forward(&mut args), "enqueue_forward"),
        (cuda.backward(&mut args), "enqueue_backward"),
        (
            cuda.fill_tables(
                &mut ViewMut::new(&mut cos, &[1, 4]).unwrap(),
                &mut ViewMut::new(&mut sin, &[1, 4]).unwrap(),
            ),
            "enqueue_fill_tables",
        ),
        (
            swiglu.forward(&mut SwigluArgs::forward_over_up(gate, ViewMut::new(&mut up, &[4]).unwrap())),
            "enqueue_forward",
        ),
        (
            swiglu.backward(
                &mut SwigluArgs::backward(gate, gate, grad).grad_gate(ViewMut::new(&mut grad_gate, &[4]).unwrap()),
            ),
            "enqueue_backward",
        ),
    ] {
        let error = result.unwrap_err();
        assert_eq!(error.status(), Status::InvalidArgument);
        assert!(error.message().contains(words), "{error}");
    }

    let mut wrong = Args::new(view_mut(&q, Dtype::F32, &[1, 1, HEAD_DIM / 2]));
    // SAFETY: the call is refused.
    let error = unsafe { cuda.enqueue_forward(&mut wrong, null_mut()) }.unwrap_err();
    assert!(error.message().starts_with("rope_forward: q.shape"), "{error}");

    let count = device_count().unwrap().0;
    let error = builder(Device::Cuda(count), Dtype::F32).build().unwrap_err();
    assert_eq!(error.status(), Status::NoDevice, "{error}");
}

fn main() {
    let (count, reason) = device_count().unwrap();
    if count == 0 {
        println!("gpu: skipped: {}", reason.unwrap_or_default());
        return;
    }
    let context = Context::of_first_device();
    packed_qkv_in_every_dtype();
    norms_and_caches();
    tables_and_the_fault_counter();
    swiglu_forward_and_backward();
    geglu_of_experts_with_biases();
    threads_with_streams_of_their_own_share_a_descriptor(context);
    what_is_refused();
    println!("gpu: 7 passed");
}
