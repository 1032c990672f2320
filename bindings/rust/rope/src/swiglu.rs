// SPDX-License-Identifier: Apache-2.0
use crate::error::{check, explanation};
use crate::view::ABSENT;
use crate::{sys, Activation, Device, Dtype, LimitRule, Result, SwigluColumn, SwigluQuant, View, ViewMut};
use std::marker::PhantomData;
use std::mem::size_of;
use std::os::raw::c_void;
use std::ptr::{null, null_mut, NonNull};

/// The configuration of a [`Swiglu`]; `swiglu_config_t`. A setter that is not called leaves the field 0.
#[derive(Clone, Debug)]
pub struct SwigluBuilder {
    config: sys::swiglu_config_t,
    device: Device,
}

impl SwigluBuilder {
    /// The factor inside the sigmoid. 0 stands for 1.
    pub fn alpha(mut self, factor: f64) -> Self {
        self.config.alpha = factor;
        self
    }

    /// gate is at most `limit`, up lies within +-`limit`. 0: no limit.
    pub fn limit(mut self, limit: f64) -> Self {
        self.config.limit = limit;
        self
    }

    /// Added to up.
    pub fn up_offset(mut self, offset: f64) -> Self {
        self.config.up_offset = offset;
        self
    }

    /// The factor of the output. 0 stands for 1.
    pub fn out_scale(mut self, factor: f64) -> Self {
        self.config.out_scale = factor;
        self
    }

    /// The function of the gate. The default is [`Activation::Swiglu`].
    pub fn activation(mut self, activation: Activation) -> Self {
        self.config.activation = activation as i32;
        self
    }

    /// The gate outside the sigmoid becomes cap * tanh(gate / cap). 0: no cap.
    pub fn gate_softcap(mut self, cap: f64) -> Self {
        self.config.gate_softcap = cap;
        self
    }

    /// up becomes cap * tanh(up / cap). 0: no cap.
    pub fn up_softcap(mut self, cap: f64) -> Self {
        self.config.up_softcap = cap;
        self
    }

    /// The value that `limit` bounds. The default is gate.
    pub fn limit_rule(mut self, rule: LimitRule) -> Self {
        self.config.limit_rule = rule as i32;
        self
    }

    /// [`PRODUCT_ROUND_ACTIVATION`](crate::PRODUCT_ROUND_ACTIVATION): the activation is rounded to a dtype of 16 bits
    /// before it is multiplied by up. 0: it is not rounded.
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

    /// CPU: the largest number of threads of a call, its own included. 0: as many processors as this thread may run on.
    pub fn num_threads(mut self, threads: i32) -> Self {
        self.config.num_threads = threads;
        self
    }

    /// `swiglu_desc_create`: checks the configuration and loads everything that calls need.
    pub fn build(&self) -> Result<Swiglu> {
        let mut desc = null_mut();
        // SAFETY: the config is complete.
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

// SAFETY: descriptors never change after their creation, and any thread may call every function.
unsafe impl Send for Swiglu {}
unsafe impl Sync for Swiglu {}

impl Drop for Swiglu {
    fn drop(&mut self) {
        // SAFETY: this owns the descriptor. A borrow of self keeps it alive during calls, and enqueued work outlives
        // it.
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

    /// Gates, on the CPU. The output is written when the function returns.
    pub fn forward(&self, args: &mut SwigluArgs<'_>) -> Result<()> {
        self.device.require_cpu("forward")?;
        // SAFETY: views are inside their borrows, written ones are borrowed mutably, and the CPU needs no stream.
        unsafe { self.enqueue_forward(args, null_mut()) }
    }

    /// Computes the gradients, on the CPU.
    pub fn backward(&self, args: &mut SwigluArgs<'_>) -> Result<()> {
        self.device.require_cpu("backward")?;
        // SAFETY: as in forward.
        unsafe { self.enqueue_backward(args, null_mut()) }
    }

    /// Gates on a stream, a `cudaStream_t`. Null is the legacy default stream, and the only stream for the CPU.
    ///
    /// # Safety
    /// The requirements of [`Desc::enqueue_forward`](crate::Desc::enqueue_forward).
    pub unsafe fn enqueue_forward(&self, args: &mut SwigluArgs<'_>, stream: *mut c_void) -> Result<()> {
        check(sys::swiglu_forward(self.desc.as_ptr(), &args.whole(), stream))
    }

    /// Computes the gradients on a stream.
    ///
    /// # Safety
    /// The requirements of [`Desc::enqueue_forward`](crate::Desc::enqueue_forward).
    pub unsafe fn enqueue_backward(&self, args: &mut SwigluArgs<'_>, stream: *mut c_void) -> Result<()> {
        check(sys::swiglu_backward(self.desc.as_ptr(), &args.whole(), stream))
    }

    /// Describes how a call would run (backward if `grad_out` is given): kernel, vector width, grid, bytes moved.
    pub fn explain(&self, args: &SwigluArgs<'_>) -> Result<String> {
        // SAFETY: no tensor is accessed, and the text ends inside the buffer.
        explanation(|text, size| unsafe { sys::swiglu_explain(self.desc.as_ptr(), &args.whole(), text, size) })
    }
}

/// The arguments of one call; `swiglu_args_t`.
#[derive(Debug)]
pub struct SwigluArgs<'a> {
    raw: sys::swiglu_args_t,
    quant: Option<SwigluQuant<'a>>,
    input: Option<sys::swiglu_input_args_t>,
    column: Option<SwigluColumn<'a>>,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: these are views, which may be sent.
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

    /// The arguments for C, with the groups, which are borrowed.
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

    /// Forward: the inputs gate and up, and a separate output. It has gate's shape, with
    /// [`F4E2m1x2`](crate::F4E2m1x2) half of gate's last axis.
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

    /// Forward: the output replaces up.
    pub fn forward_over_up(gate: View<'a>, up: ViewMut<'a>) -> Self {
        let mut args = SwigluArgs::of(gate.raw, up.raw);
        args.raw.out = up.raw;
        args
    }

    /// Backward: the inputs. The setters below add the gradients to compute.
    pub fn backward(gate: View<'a>, up: View<'a>, grad_out: View<'a>) -> Self {
        let mut args = SwigluArgs::of(gate.raw, up.raw);
        args.raw.grad_out = grad_out.raw;
        args
    }

    /// Backward: the gradients of gate and up replace them.
    pub fn backward_over_inputs(gate: ViewMut<'a>, up: ViewMut<'a>, grad_out: View<'a>) -> Self {
        let mut args = SwigluArgs::of(gate.raw, up.raw);
        args.raw.grad_out = grad_out.raw;
        args.raw.grad_gate = gate.raw;
        args.raw.grad_up = up.raw;
        args
    }

    /// Backward: also receives the output again.
    pub fn out(mut self, out: ViewMut<'a>) -> Self {
        self.raw.out = out.raw;
        self
    }

    /// Backward: receives the gradient of gate.
    pub fn grad_gate(mut self, gradient: ViewMut<'a>) -> Self {
        self.raw.grad_gate = gradient.raw;
        self
    }

    /// Backward: receives the gradient of up.
    pub fn grad_up(mut self, gradient: ViewMut<'a>) -> Self {
        self.raw.grad_up = gradient.raw;
        self
    }

    /// Backward: receives the gradient of `row_scale`.
    pub fn grad_row_scale(mut self, gradient: ViewMut<'a>) -> Self {
        self.raw.grad_row_scale = gradient.raw;
        self
    }

    /// A factor of the output for each row.
    pub fn row_scale(mut self, factors: View<'a>) -> Self {
        self.raw.row_scale = factors.raw;
        self
    }

    /// The number of rows, read when the call runs.
    pub fn num_rows(mut self, count: View<'a>) -> Self {
        self.raw.num_rows = count.raw;
        self
    }

    /// Added to gate before the activation: `[d]`, or `[E, d]` with [`expert_rows`](SwigluArgs::expert_rows).
    pub fn gate_bias(mut self, bias: View<'a>) -> Self {
        self.input().gate_bias = bias.raw;
        self
    }

    /// Added to up before the product, in the shapes of [`gate_bias`](SwigluArgs::gate_bias).
    pub fn up_bias(mut self, bias: View<'a>) -> Self {
        self.input().up_bias = bias.raw;
        self
    }

    /// `[E]`, with gate `[E, N, .., d]`: the number of rows of each expert, read when the call runs. Not together with
    /// [`num_rows`](SwigluArgs::num_rows).
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

    /// `[N]`, with [`row_scale`](SwigluArgs::row_scale) `[M]`: row i takes the factor of index i. A row with an index
    /// below 0, or not below M, is neither read nor written. `grad_row_scale` then has an entry for each row.
    pub fn row_index(mut self, indices: View<'a>) -> Self {
        self.input().row_index = indices.raw;
        self
    }

    /// Scales of an output of 8 or 4 bits, or of gradients, which without them are not scaled.
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
