// SPDX-License-Identifier: Apache-2.0
use crate::error::{check, explanation};
use crate::view::ABSENT;
use crate::{
    sys, Cache, Device, Dtype, Error, Input, Layout, Norm, NormExtent, NormOrder, NormType, Quant, Result, Style,
    TableRows, View, ViewMut,
};
use std::marker::PhantomData;
use std::mem::size_of;
use std::os::raw::c_void;
use std::ptr::{null, null_mut, NonNull};

/// The configuration of a [`Desc`]; `rope_config_t`. A setter that is not called leaves the field 0.
#[derive(Clone, Debug)]
pub struct DescBuilder<'a> {
    config: sys::rope_config_t,
    device: Device,
    inv_freq: Option<&'a [f64]>,
    pair_axis: Option<&'a [i32]>,
}

impl<'a> DescBuilder<'a> {
    /// Channels that are rotated, even. 0: all.
    pub fn rotary_dim(mut self, channels: i32) -> Self {
        self.config.rotary_dim = channels;
        self
    }

    /// The first rotated channel.
    pub fn rotary_offset(mut self, channel: i32) -> Self {
        self.config.rotary_offset = channel;
        self
    }

    /// The base of the frequencies. 0 without [`inv_freq`](Self::inv_freq): for tables or angles only.
    pub fn theta(mut self, base: f64) -> Self {
        self.config.theta = base;
        self
    }

    /// Multiplies cos and sin of computed angles and of `angles`. 0 stands for 1.
    pub fn attention_scale(mut self, factor: f64) -> Self {
        self.config.attention_scale = factor;
        self
    }

    /// One frequency for each pair, in radians per position, instead of those of theta.
    pub fn inv_freq(mut self, frequencies: &'a [f64]) -> Self {
        self.inv_freq = Some(frequencies);
        self
    }

    /// The position axis that turns each pair.
    pub fn pair_axis(mut self, axes: &'a [i32]) -> Self {
        self.pair_axis = Some(axes);
        self
    }

    /// The number of positions of a token. 0 stands for 1.
    pub fn num_axes(mut self, axes: i32) -> Self {
        self.config.num_axes = axes;
        self
    }

    /// The number of channels of a block; pairs of [`Style::Half`] stay inside blocks. 0: all rotated channels.
    pub fn pair_block(mut self, channels: i32) -> Self {
        self.config.pair_block = channels;
        self
    }

    /// CPU: the largest number of threads of a call, its own included. 0: as many processors as this thread may run on.
    pub fn num_threads(mut self, threads: i32) -> Self {
        self.config.num_threads = threads;
        self
    }

    /// The style of the outputs, if it differs.
    pub fn out_style(mut self, style: Style) -> Self {
        self.config.out_style = style as i32;
        self
    }

    /// Norms q and k; every forward call must then pass a [`Norm`]. eps is above 0.
    pub fn norm(mut self, norm: NormType, eps: f64) -> Self {
        self.config.norm = norm as i32;
        self.config.norm_eps = eps;
        self
    }

    /// The tensors that are normed: [`NORM_Q`](crate::NORM_Q), [`NORM_K`](crate::NORM_K) and [`NORM_V`](crate::NORM_V),
    /// as bits. 0: q and k.
    pub fn norm_tensors(mut self, bits: i32) -> Self {
        self.config.norm_tensors = bits;
        self
    }

    /// Whether the norm comes before the rotation, which is the default, or after it.
    pub fn norm_order(mut self, order: NormOrder) -> Self {
        self.config.norm_order = order as i32;
        self
    }

    /// The channels of one norm. The default is those of each head.
    pub fn norm_extent(mut self, extent: NormExtent) -> Self {
        self.config.norm_extent = extent as i32;
        self
    }

    /// The values that are rounded to the dtype inside the norm:
    /// [`NORM_ROUND_BEFORE_WEIGHT`](crate::NORM_ROUND_BEFORE_WEIGHT) and
    /// [`NORM_ROUND_AFTER_WEIGHT`](crate::NORM_ROUND_AFTER_WEIGHT), as bits.
    pub fn norm_rounding(mut self, bits: i32) -> Self {
        self.config.norm_rounding = bits;
        self
    }

    /// Added to every weight (Gemma: 1).
    pub fn norm_weight_offset(mut self, offset: f64) -> Self {
        self.config.norm_weight_offset = offset;
        self
    }

    /// [`QUANT_ROUND_FIRST`](crate::QUANT_ROUND_FIRST): values are rounded to the dtype before they are scaled and
    /// quantised.
    pub fn quant_rounding(mut self, bits: i32) -> Self {
        self.config.quant_rounding = bits;
        self
    }

    /// [`ROTATION_ROUND_EACH`](crate::ROTATION_ROUND_EACH): cos, sin, products and sums of the rotation are rounded to
    /// the dtype one by one.
    pub fn rotation_rounding(mut self, rounding: i32) -> Self {
        self.config.rotation_rounding = rounding;
        self
    }

    /// `rope_desc_create`: checks the configuration and loads everything that calls need.
    pub fn build(&self) -> Result<Desc> {
        let mut config = self.config;
        let width = if config.rotary_dim == 0 { config.head_dim } else { config.rotary_dim };
        let pairs = (width / 2).max(0) as usize;
        for (field, length) in
            [("inv_freq", self.inv_freq.map(<[_]>::len)), ("pair_axis", self.pair_axis.map(<[_]>::len))]
        {
            if length.map_or(false, |length| length != pairs) {
                return Err(Error::invalid(format!(
                    "rope_desc_create: {field} has {} entries: it must have one for each of {pairs} pairs",
                    length.unwrap_or(0)
                )));
            }
        }
        config.inv_freq = self.inv_freq.map_or(null(), <[_]>::as_ptr);
        config.pair_axis = self.pair_axis.map_or(null(), <[_]>::as_ptr);
        let mut desc = null_mut();
        // SAFETY: the config is complete and its arrays have the lengths that it states.
        check(unsafe { sys::rope_desc_create(&config, &mut desc) })?;
        let desc = NonNull::new(desc).expect("a descriptor on success");
        Ok(Desc { desc, device: self.device })
    }
}

/// A rotation: device, type, layout, geometry and frequencies. `rope_desc_t`.
#[derive(Debug)]
pub struct Desc {
    desc: NonNull<sys::rope_desc_t>,
    device: Device,
}

// SAFETY: descriptors never change after their creation, and any thread may call every function.
unsafe impl Send for Desc {}
unsafe impl Sync for Desc {}

impl Drop for Desc {
    fn drop(&mut self) {
        // SAFETY: this owns the descriptor. A borrow of self keeps it alive during calls, and enqueued work outlives
        // it.
        unsafe { sys::rope_desc_destroy(self.desc.as_ptr()) }
    }
}

impl Desc {
    /// Starts with the fields that have no default. The builder sets the others.
    pub fn builder<'a>(device: Device, dtype: Dtype, layout: Layout, style: Style, head_dim: i32) -> DescBuilder<'a> {
        let (kind, index) = device.kind_and_index();
        let config = sys::rope_config_t {
            struct_size: size_of::<sys::rope_config_t>() as u32,
            flags: 0,
            device: kind,
            device_index: index,
            dtype: dtype as i32,
            layout: layout as i32,
            style: style as i32,
            head_dim,
            rotary_dim: 0,
            rotary_offset: 0,
            theta: 0.0,
            attention_scale: 0.0,
            inv_freq: null(),
            pair_axis: null(),
            num_axes: 0,
            pair_block: 0,
            num_threads: 0,
            out_style: 0,
            norm: 0,
            norm_tensors: 0,
            norm_order: 0,
            norm_extent: 0,
            norm_rounding: 0,
            quant_rounding: 0,
            rotation_rounding: 0,
            reserved1: 0,
            norm_eps: 0.0,
            norm_weight_offset: 0.0,
        };
        DescBuilder { config, device, inv_freq: None, pair_axis: None }
    }

    pub fn device(&self) -> Device {
        self.device
    }

    /// Rotates, on the CPU. The tensors are written when the function returns.
    pub fn forward(&self, args: &mut Args<'_>) -> Result<()> {
        self.device.require_cpu("forward")?;
        // SAFETY: views are inside their borrows, written ones are borrowed mutably, and the CPU needs no stream.
        unsafe { self.enqueue_forward(args, null_mut()) }
    }

    /// The transpose of [`forward`](Self::forward), on the CPU: `q` holds gradients of the outputs.
    pub fn backward(&self, args: &mut Args<'_>) -> Result<()> {
        self.device.require_cpu("backward")?;
        // SAFETY: as in forward.
        unsafe { self.enqueue_backward(args, null_mut()) }
    }

    /// Rotates on a stream, a `cudaStream_t`. Null is the legacy default stream, and the only stream for the CPU.
    ///
    /// # Safety
    /// `stream` is a stream of the descriptor's device. Until it has run the call, the memory of every view stays valid
    /// on that device; what the call writes is used by nothing else, and what it reads is written by nothing else.
    pub unsafe fn enqueue_forward(&self, args: &mut Args<'_>, stream: *mut c_void) -> Result<()> {
        check(sys::rope_forward(self.desc.as_ptr(), &args.whole("rope_forward")?, stream))
    }

    /// The transpose on a stream.
    ///
    /// # Safety
    /// The requirements of [`enqueue_forward`](Self::enqueue_forward).
    pub unsafe fn enqueue_backward(&self, args: &mut Args<'_>, stream: *mut c_void) -> Result<()> {
        check(sys::rope_backward(self.desc.as_ptr(), &args.whole("rope_backward")?, stream))
    }

    /// Writes cos and sin of positions 0 to M - 1, on the CPU.
    pub fn fill_tables(&self, cos: &mut ViewMut<'_>, sin: &mut ViewMut<'_>) -> Result<()> {
        self.device.require_cpu("fill_tables")?;
        // SAFETY: as in forward.
        unsafe { self.enqueue_fill_tables(cos, sin, null_mut()) }
    }

    /// Writes cos and sin on a stream.
    ///
    /// # Safety
    /// The requirements of [`enqueue_forward`](Self::enqueue_forward).
    pub unsafe fn enqueue_fill_tables(
        &self,
        cos: &mut ViewMut<'_>,
        sin: &mut ViewMut<'_>,
        stream: *mut c_void,
    ) -> Result<()> {
        check(sys::rope_fill_tables(self.desc.as_ptr(), &cos.raw, &sin.raw, stream))
    }

    /// Describes how a call would run: kernel, vector width, grid, bytes moved.
    pub fn explain(&self, args: &Args<'_>) -> Result<String> {
        let whole = args.whole("rope_explain")?;
        // SAFETY: no tensor is accessed, and the text ends inside the buffer.
        explanation(|text, size| unsafe { sys::rope_explain(self.desc.as_ptr(), &whole, text, size) })
    }
}

/// A tensor that is rotated in place, into another, or into a cache alone.
#[derive(Debug)]
pub enum Operand<'a> {
    InPlace(ViewMut<'a>),
    OutOfPlace(View<'a>, ViewMut<'a>),
    /// k with [`Cache::k_cache`], v with [`Cache::v_cache`].
    CachedOnly(View<'a>),
}

impl<'a> From<ViewMut<'a>> for Operand<'a> {
    fn from(view: ViewMut<'a>) -> Self {
        Operand::InPlace(view)
    }
}

impl<'a> From<(View<'a>, ViewMut<'a>)> for Operand<'a> {
    fn from((from, to): (View<'a>, ViewMut<'a>)) -> Self {
        Operand::OutOfPlace(from, to)
    }
}

impl<'a> From<View<'a>> for Operand<'a> {
    fn from(view: View<'a>) -> Self {
        Operand::CachedOnly(view)
    }
}

impl Operand<'_> {
    /// The input and the output. An input that is its own output is rotated in place. An input without an output is
    /// cached only.
    fn raw(self) -> (sys::rope_tensor_t, sys::rope_tensor_t) {
        match self {
            Operand::InPlace(view) => (view.raw, view.raw),
            Operand::OutOfPlace(from, to) => (from.raw, to.raw),
            Operand::CachedOnly(view) => (view.raw, ABSENT),
        }
    }
}

/// The arguments of one call; `rope_args_t`.
#[derive(Debug)]
pub struct Args<'a> {
    raw: sys::rope_args_t,
    norm: Option<Norm<'a>>,
    cache: Option<Cache<'a>>,
    quant: Option<Quant<'a>>,
    input: Option<Input<'a>>,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: these are views, which may be sent.
unsafe impl Send for Args<'_> {}

impl<'a> Args<'a> {
    /// The tensor q: a [`ViewMut`], rotated in place, or a [`View`] and the [`ViewMut`] that receives the result. k and
    /// v may be a [`View`] alone if they are cached.
    pub fn new(q: impl Into<Operand<'a>>) -> Self {
        let mut args = Args::without_q();
        (args.raw.q, args.raw.q_out) = q.into().raw();
        args
    }

    /// Starts with k, v, or both, without q.
    pub fn without_q() -> Self {
        let raw = sys::rope_args_t {
            struct_size: size_of::<sys::rope_args_t>() as u32,
            flags: 0,
            q: ABSENT,
            q_out: ABSENT,
            k: ABSENT,
            k_out: ABSENT,
            v: ABSENT,
            v_out: ABSENT,
            positions: ABSENT,
            start_positions: ABSENT,
            cu_seqlens: ABSENT,
            cos: ABSENT,
            sin: ABSENT,
            angles: ABSENT,
            fault: ABSENT,
            position_offset: 0,
            table_rows: 0,
            reserved0: 0,
            norm: null(),
            cache: null(),
            quant: null(),
            input: null(),
        };
        Args { raw, norm: None, cache: None, quant: None, input: None, memory: PhantomData }
    }

    /// The arguments for C, with the groups, which are borrowed.
    fn whole(&self, call: &str) -> Result<sys::rope_args_t> {
        let mut whole = self.raw;
        let (has_k_cache, has_v_cache) = self
            .cache
            .as_ref()
            .map_or((false, false), |cache| (cache.raw.k_cache.ndim != 0, cache.raw.v_cache.ndim != 0));
        for (field, input, output, is_cached) in [
            ("q", &whole.q, &whole.q_out, false),
            ("k", &whole.k, &whole.k_out, has_k_cache),
            ("v", &whole.v, &whole.v_out, has_v_cache),
        ] {
            // Without an output and a cache C would rotate it in place, and so write to it.
            if input.ndim != 0 && output.ndim == 0 && !is_cached {
                return Err(Error::invalid(format!(
                    "{call}: {field} is a View without a ViewMut: it must have one where it is not cached"
                )));
            }
        }
        whole.norm = self.norm.as_ref().map_or(null(), |norm| &norm.raw);
        whole.cache = self.cache.as_ref().map_or(null(), |cache| &cache.raw);
        whole.quant = self.quant.as_ref().map_or(null(), |quant| &quant.raw);
        whole.input = self.input.as_ref().map_or(null(), |input| &input.raw);
        Ok(whole)
    }

    /// A second tensor, rotated in the same launch.
    pub fn k(mut self, k: impl Into<Operand<'a>>) -> Self {
        (self.raw.k, self.raw.k_out) = k.into().raw();
        self
    }

    /// A third tensor.
    pub fn v(mut self, v: impl Into<Operand<'a>>) -> Self {
        (self.raw.v, self.raw.v_out) = v.into().raw();
        self
    }

    /// Operands of the norm, if and only if the descriptor has one.
    pub fn norm(mut self, norm: Norm<'a>) -> Self {
        self.norm = Some(norm);
        self
    }

    /// Caches that k and v are written to. With this or another group, v needs
    /// [`V_UNROTATED`](crate::V_UNROTATED) or [`UNROTATED`](crate::UNROTATED).
    pub fn cache(mut self, cache: Cache<'a>) -> Self {
        self.cache = Some(cache);
        self
    }

    /// Scales of outputs and caches of 8 bits. Without them these are not scaled.
    pub fn quant(mut self, quant: Quant<'a>) -> Self {
        self.quant = Some(quant);
        self
    }

    /// Row factors, also in backward, and the channels outside the window.
    pub fn input(mut self, input: Input<'a>) -> Self {
        self.input = Some(input);
        self
    }

    /// Flags of the call, as bits: [`PROGRAMMATIC_LAUNCH`](crate::PROGRAMMATIC_LAUNCH),
    /// [`UNROTATED`](crate::UNROTATED), [`V_UNROTATED`](crate::V_UNROTATED), and in backward
    /// [`ACCUMULATE`](crate::ACCUMULATE).
    pub fn flags(mut self, flags: u32) -> Self {
        self.raw.flags = flags;
        self
    }

    /// The positions of tokens. Not given: the index in the sequence.
    pub fn positions(mut self, positions: View<'a>) -> Self {
        self.raw.positions = positions.raw;
        self
    }

    /// Added to the positions: one for each sequence, or for each token.
    pub fn start_positions(mut self, positions: View<'a>) -> Self {
        self.raw.start_positions = positions.raw;
        self
    }

    /// Added to every position.
    pub fn position_offset(mut self, offset: i64) -> Self {
        self.raw.position_offset = offset;
        self
    }

    /// Where the sequences of [`Layout::Thd`] begin and end.
    pub fn cu_seqlens(mut self, boundaries: View<'a>) -> Self {
        self.raw.cu_seqlens = boundaries.raw;
        self
    }

    /// Tables of cos and sin, instead of computed angles.
    pub fn tables(mut self, cos: View<'a>, sin: View<'a>, rows: TableRows) -> Self {
        self.raw.cos = cos.raw;
        self.raw.sin = sin.raw;
        self.raw.table_rows = rows as i32;
        self
    }

    /// Angles in radians, instead of computed angles.
    pub fn angles(mut self, angles: View<'a>, rows: TableRows) -> Self {
        self.raw.angles = angles.raw;
        self.raw.table_rows = rows as i32;
        self
    }

    /// Two `i64`: calls add the number of faulty tokens to the first, and keep the lowest of them + 1 in the second.
    pub fn fault(mut self, fault: ViewMut<'a>) -> Self {
        self.raw.fault = fault.raw;
        self
    }
}
