use crate::error::{check, explanation};
use crate::view::ABSENT;
use crate::{sys, Activation, Device, Dtype, LimitRule, Result, SwigluColumn, SwigluQuant, View, ViewMut};
use std::marker::PhantomData;
use std::mem::size_of;
use std::os::raw::c_void;
use std::ptr::{null, null_mut, NonNull};

/// What [`Swiglu`] is made from; `swiglu_config_t`. A setter that is not called leaves the field 0.
#[derive(Clone, Debug)]
pub struct SwigluBuilder {
    config: sys::swiglu_config_t,
    device: Device,
}

impl SwigluBuilder {
    /// The factor inside the sigmoid. 0: 1.
    pub fn alpha(mut self, factor: f64) -> Self {
        self.config.alpha = factor;
        self
    }

    /// gate at most `limit`, up within +-`limit`. 0: none.
    pub fn limit(mut self, limit: f64) -> Self {
        self.config.limit = limit;
        self
    }

    /// Added to up.
    pub fn up_offset(mut self, offset: f64) -> Self {
        self.config.up_offset = offset;
        self
    }

    /// The factor of the output. 0: 1.
    pub fn out_scale(mut self, factor: f64) -> Self {
        self.config.out_scale = factor;
        self
    }

    /// What gates: [`Activation::Swiglu`] where nothing is said.
    pub fn activation(mut self, activation: Activation) -> Self {
        self.config.activation = activation as i32;
        self
    }

    /// The gate outside the sigmoid becomes cap * tanh(gate / cap). 0: it does not.
    pub fn gate_softcap(mut self, cap: f64) -> Self {
        self.config.gate_softcap = cap;
        self
    }

    /// So does up.
    pub fn up_softcap(mut self, cap: f64) -> Self {
        self.config.up_softcap = cap;
        self
    }

    /// What `limit` bounds: gate, where nothing is said.
    pub fn limit_rule(mut self, rule: LimitRule) -> Self {
        self.config.limit_rule = rule as i32;
        self
    }

    /// [`PRODUCT_ROUND_ACTIVATION`](crate::PRODUCT_ROUND_ACTIVATION): the activation is rounded to a dtype of 16 bits
    /// before it meets up. 0: it is not.
    pub fn product_rounding(mut self, rounding: i32) -> Self {
        self.config.product_rounding = rounding;
        self
    }

    /// [`QUANT_ROUND_FIRST`](crate::QUANT_ROUND_FIRST): values are rounded to the dtype before they are scaled and
    /// quantised.
    pub fn quant_rounding(mut self, bits: i32) -> Self {
        self.config.quant_rounding = bits;
        self
    }

    /// CPU: most threads a call may use, itself included. 0: as many processors as this thread may run on.
    pub fn num_threads(mut self, threads: i32) -> Self {
        self.config.num_threads = threads;
        self
    }

    /// `swiglu_desc_create`: checks everything and loads what calls will need.
    pub fn build(&self) -> Result<Swiglu> {
        let mut desc = null_mut();
        // SAFETY: the config is whole.
        check(unsafe { sys::swiglu_desc_create(&self.config, &mut desc) })?;
        let desc = NonNull::new(desc).expect("a descriptor on success");
        Ok(Swiglu { desc, device: self.device })
    }
}

/// A gating: device, type and numbers. `swiglu_desc_t`.
#[derive(Debug)]
pub struct Swiglu {
    desc: NonNull<sys::swiglu_desc_t>,
    device: Device,
}

// SAFETY: descriptors never change after their creation, and every function may be called from any thread.
unsafe impl Send for Swiglu {}
unsafe impl Sync for Swiglu {}

impl Drop for Swiglu {
    fn drop(&mut self) {
        // SAFETY: ours, once; a borrow of self keeps it alive during calls, and work that is enqueued outlives it.
        unsafe { sys::swiglu_desc_destroy(self.desc.as_ptr()) }
    }
}

impl Swiglu {
    pub fn builder(device: Device, dtype: Dtype) -> SwigluBuilder {
        let (kind, index) = device.kind_and_index();
        let config = sys::swiglu_config_t {
            struct_size: size_of::<sys::swiglu_config_t>() as u32,
            flags: 0,
            device: kind,
            device_index: index,
            dtype: dtype as i32,
            num_threads: 0,
            alpha: 0.0,
            limit: 0.0,
            up_offset: 0.0,
            out_scale: 0.0,
            gate_softcap: 0.0,
            up_softcap: 0.0,
            limit_rule: 0,
            activation: 0,
            product_rounding: 0,
            quant_rounding: 0,
        };
        SwigluBuilder { config, device }
    }

    pub fn device(&self) -> Device {
        self.device
    }

    /// Gates, on the CPU; the output is written when it returns.
    pub fn forward(&self, args: &mut SwigluArgs<'_>) -> Result<()> {
        self.device.require_cpu("forward")?;
        // SAFETY: views are inside their borrows, those written are borrowed mutably, and the CPU needs no stream.
        unsafe { self.enqueue_forward(args, null_mut()) }
    }

    /// The gradients, on the CPU.
    pub fn backward(&self, args: &mut SwigluArgs<'_>) -> Result<()> {
        self.device.require_cpu("backward")?;
        // SAFETY: as for forward.
        unsafe { self.enqueue_backward(args, null_mut()) }
    }

    /// Gates on a stream, a `cudaStream_t`; null is the legacy default stream, and what the CPU takes.
    ///
    /// # Safety
    /// As for [`Desc::enqueue_forward`](crate::Desc::enqueue_forward).
    pub unsafe fn enqueue_forward(&self, args: &mut SwigluArgs<'_>, stream: *mut c_void) -> Result<()> {
        check(sys::swiglu_forward(self.desc.as_ptr(), &args.whole(), stream))
    }

    /// The gradients on a stream.
    ///
    /// # Safety
    /// As for [`Desc::enqueue_forward`](crate::Desc::enqueue_forward).
    pub unsafe fn enqueue_backward(&self, args: &mut SwigluArgs<'_>, stream: *mut c_void) -> Result<()> {
        check(sys::swiglu_backward(self.desc.as_ptr(), &args.whole(), stream))
    }

    /// How a call would run, which is backward's where `grad_out` is given: kernel, vector width, grid, bytes moved.
    pub fn explain(&self, args: &SwigluArgs<'_>) -> Result<String> {
        // SAFETY: no tensor is touched, and the text ends inside the buffer.
        explanation(|text, size| unsafe { sys::swiglu_explain(self.desc.as_ptr(), &args.whole(), text, size) })
    }
}

/// What changes from call to call; `swiglu_args_t`.
#[derive(Debug)]
pub struct SwigluArgs<'a> {
    raw: sys::swiglu_args_t,
    quant: Option<SwigluQuant<'a>>,
    input: Option<sys::swiglu_input_args_t>,
    column: Option<SwigluColumn<'a>>,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: views, which may be sent.
unsafe impl Send for SwigluArgs<'_> {}

impl<'a> SwigluArgs<'a> {
    fn of(gate: sys::rope_tensor_t, up: sys::rope_tensor_t) -> Self {
        let raw = sys::swiglu_args_t {
            struct_size: size_of::<sys::swiglu_args_t>() as u32,
            flags: 0,
            gate,
            up,
            out: ABSENT,
            row_scale: ABSENT,
            num_rows: ABSENT,
            grad_out: ABSENT,
            grad_gate: ABSENT,
            grad_up: ABSENT,
            grad_row_scale: ABSENT,
            quant: null(),
            input: null(),
            column: null(),
        };
        SwigluArgs { raw, quant: None, input: None, column: None, memory: PhantomData }
    }

    /// What C takes: with the groups, which are borrowed.
    fn whole(&self) -> sys::swiglu_args_t {
        let mut whole = self.raw;
        whole.quant = self.quant.as_ref().map_or(null(), |quant| &quant.raw);
        whole.input = self.input.as_ref().map_or(null(), |input| input);
        whole.column = self.column.as_ref().map_or(null(), |column| &column.raw);
        whole
    }

    fn input(&mut self) -> &mut sys::swiglu_input_args_t {
        self.input.get_or_insert(sys::swiglu_input_args_t {
            struct_size: size_of::<sys::swiglu_input_args_t>() as u32,
            flags: 0,
            gate_bias: ABSENT,
            up_bias: ABSENT,
            expert_rows: ABSENT,
            expert_offsets: ABSENT,
            row_index: ABSENT,
        })
    }

    /// For forward: out of gate and up.
    pub fn forward(gate: View<'a>, up: View<'a>, out: ViewMut<'a>) -> Self {
        SwigluArgs::of(gate.raw, up.raw).out(out)
    }

    /// For forward: the codes of [`SwigluColumn::out`] alone.
    pub fn forward_by_column(gate: View<'a>, up: View<'a>, column: SwigluColumn<'a>) -> Self {
        SwigluArgs::of(gate.raw, up.raw).column(column)
    }

    /// For forward: the output takes the place of gate.
    pub fn forward_over_gate(gate: ViewMut<'a>, up: View<'a>) -> Self {
        let mut args = SwigluArgs::of(gate.raw, up.raw);
        args.raw.out = gate.raw;
        args
    }

    /// For forward: the output takes the place of up.
    pub fn forward_over_up(gate: View<'a>, up: ViewMut<'a>) -> Self {
        let mut args = SwigluArgs::of(gate.raw, up.raw);
        args.raw.out = up.raw;
        args
    }

    /// For backward: the gradients that are wanted are added.
    pub fn backward(gate: View<'a>, up: View<'a>, grad_out: View<'a>) -> Self {
        let mut args = SwigluArgs::of(gate.raw, up.raw);
        args.raw.grad_out = grad_out.raw;
        args
    }

    /// For backward: the gradients of gate and up take their places.
    pub fn backward_over_inputs(gate: ViewMut<'a>, up: ViewMut<'a>, grad_out: View<'a>) -> Self {
        let mut args = SwigluArgs::of(gate.raw, up.raw);
        args.raw.grad_out = grad_out.raw;
        args.raw.grad_gate = gate.raw;
        args.raw.grad_up = up.raw;
        args
    }

    /// Backward: also the output again.
    pub fn out(mut self, out: ViewMut<'a>) -> Self {
        self.raw.out = out.raw;
        self
    }

    /// Backward: the gradient of gate is wanted.
    pub fn grad_gate(mut self, gradient: ViewMut<'a>) -> Self {
        self.raw.grad_gate = gradient.raw;
        self
    }

    /// Backward: the gradient of up is wanted.
    pub fn grad_up(mut self, gradient: ViewMut<'a>) -> Self {
        self.raw.grad_up = gradient.raw;
        self
    }

    /// Backward: the gradient of `row_scale` is wanted.
    pub fn grad_row_scale(mut self, gradient: ViewMut<'a>) -> Self {
        self.raw.grad_row_scale = gradient.raw;
        self
    }

    /// A factor of the output for each row.
    pub fn row_scale(mut self, factors: View<'a>) -> Self {
        self.raw.row_scale = factors.raw;
        self
    }

    /// How many rows there are, read when the call runs.
    pub fn num_rows(mut self, count: View<'a>) -> Self {
        self.raw.num_rows = count.raw;
        self
    }

    /// Added to gate first: `[d]`, or `[E, d]` with [`expert_rows`](SwigluArgs::expert_rows).
    pub fn gate_bias(mut self, bias: View<'a>) -> Self {
        self.input().gate_bias = bias.raw;
        self
    }

    /// The same for up.
    pub fn up_bias(mut self, bias: View<'a>) -> Self {
        self.input().up_bias = bias.raw;
        self
    }

    /// `[E]`, with gate `[E, N, .., d]`: how many rows of each expert there are, read when the call runs. Not together
    /// with [`num_rows`](SwigluArgs::num_rows).
    pub fn expert_rows(mut self, counts: View<'a>) -> Self {
        self.input().expert_rows = counts.raw;
        self
    }

    /// `[E + 1]`, with gate `[N, .., d]`: expert e has the rows from offset e to before offset e + 1; rows without an
    /// expert are neither read nor written. Not together with `num_rows` or `expert_rows`.
    pub fn expert_offsets(mut self, offsets: View<'a>) -> Self {
        self.input().expert_offsets = offsets.raw;
        self
    }

    /// `[N]`, with [`row_scale`](SwigluArgs::row_scale) `[M]`: row i takes the factor of index i. A row whose index is
    /// below 0, or not below M, is neither read nor written. `grad_row_scale` has an entry for each row then.
    pub fn row_index(mut self, indices: View<'a>) -> Self {
        self.input().row_index = indices.raw;
        self
    }

    /// Scales of an output of 8 bits, or of gradients, which without them are not scaled.
    pub fn quant(mut self, quant: SwigluQuant<'a>) -> Self {
        self.quant = Some(quant);
        self
    }

    /// Outputs once more, as codes whose scales are those of groups of rows.
    pub fn column(mut self, column: SwigluColumn<'a>) -> Self {
        self.column = Some(column);
        self
    }

    /// Flags of the call: 0 or [`PROGRAMMATIC_LAUNCH`](crate::PROGRAMMATIC_LAUNCH).
    pub fn flags(mut self, flags: u32) -> Self {
        self.raw.flags = flags;
        self
    }
}
