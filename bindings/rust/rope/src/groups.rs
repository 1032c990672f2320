// SPDX-License-Identifier: Apache-2.0
use crate::view::ABSENT;
use crate::{sys, ScaleLayout, View, ViewMut};
use std::marker::PhantomData;
use std::mem::size_of;

/// Operands of a descriptor's norm; `rope_norm_args_t`. For a model without weights, pass `Norm::new()`.
#[derive(Debug)]
pub struct Norm<'a> {
    pub(crate) raw: sys::rope_norm_args_t,
    memory: PhantomData<&'a [u8]>,
}

// SAFETY: these are views, which may be sent.
unsafe impl Send for Norm<'_> {}

impl Default for Norm<'_> {
    fn default() -> Self {
        Norm::new()
    }
}

impl<'a> Norm<'a> {
    pub fn new() -> Self {
        let raw = sys::rope_norm_args_t {
            struct_size: size_of::<sys::rope_norm_args_t>() as u32,
            flags: 0,
            q_weight: ABSENT,
            k_weight: ABSENT,
            q_bias: ABSENT,
            k_bias: ABSENT,
            q_in: ABSENT,
            k_in: ABSENT,
            v_in: ABSENT,
            grad_q_weight: ABSENT,
            grad_k_weight: ABSENT,
            grad_q_bias: ABSENT,
            grad_k_bias: ABSENT,
        };
        Norm { raw, memory: PhantomData }
    }

    /// `[D]`, or `[H, D]` with a weight for each head. Not given: 1.
    pub fn q_weight(mut self, weight: View<'a>) -> Self {
        self.raw.q_weight = weight.raw;
        self
    }

    pub fn k_weight(mut self, weight: View<'a>) -> Self {
        self.raw.k_weight = weight.raw;
        self
    }

    /// For [`NormType::Layer`](crate::NormType::Layer). Not given: 0.
    pub fn q_bias(mut self, bias: View<'a>) -> Self {
        self.raw.q_bias = bias.raw;
        self
    }

    pub fn k_bias(mut self, bias: View<'a>) -> Self {
        self.raw.k_bias = bias.raw;
        self
    }

    /// Backward: forward's input q, if q is normed.
    pub fn q_in(mut self, q: View<'a>) -> Self {
        self.raw.q_in = q.raw;
        self
    }

    /// Backward: forward's input k, if k is normed.
    pub fn k_in(mut self, k: View<'a>) -> Self {
        self.raw.k_in = k.raw;
        self
    }

    /// Backward: forward's input v, if v is normed.
    pub fn v_in(mut self, v: View<'a>) -> Self {
        self.raw.v_in = v.raw;
        self
    }

    /// Backward: rows `[N, D]` or `[N, H, D]`, to which the sums of N runs of tokens are added. F32, with F64 data F64.
    pub fn grad_q_weight(mut self, rows: ViewMut<'a>) -> Self {
        self.raw.grad_q_weight = rows.raw;
        self
    }

    pub fn grad_k_weight(mut self, rows: ViewMut<'a>) -> Self {
        self.raw.grad_k_weight = rows.raw;
        self
    }

    /// Backward: rows for the biases of [`NormType::Layer`](crate::NormType::Layer), like those of the weights.
    pub fn grad_q_bias(mut self, rows: ViewMut<'a>) -> Self {
        self.raw.grad_q_bias = rows.raw;
        self
    }

    pub fn grad_k_bias(mut self, rows: ViewMut<'a>) -> Self {
        self.raw.grad_k_bias = rows.raw;
        self
    }
}

/// Further inputs; `rope_input_args_t`.
#[derive(Debug)]
pub struct Input<'a> {
    pub(crate) raw: sys::rope_input_args_t,
    memory: PhantomData<&'a [u8]>,
}

// SAFETY: these are views, which may be sent.
unsafe impl Send for Input<'_> {}

impl Default for Input<'_> {
    fn default() -> Self {
        Input::new()
    }
}

impl<'a> Input<'a> {
    pub fn new() -> Self {
        let raw = sys::rope_input_args_t {
            struct_size: size_of::<sys::rope_input_args_t>() as u32,
            flags: 0,
            q_pass: ABSENT,
            k_pass: ABSENT,
            q_row_factor: ABSENT,
            k_row_factor: ABSENT,
            v_row_factor: ABSENT,
        };
        Input { raw, memory: PhantomData }
    }

    /// The channels of q outside the window, those before it, then those behind it: the axes of q with D - R channels.
    /// q then holds the window alone, R channels, and its output has D. Heads may share the channels, with a stride of
    /// 0.
    pub fn q_pass(mut self, pass: View<'a>) -> Self {
        self.raw.q_pass = pass.raw;
        self
    }

    /// The channels of k outside the window, like [`Input::q_pass`]. k may be cached only.
    pub fn k_pass(mut self, pass: View<'a>) -> Self {
        self.raw.k_pass = pass.raw;
        self
    }

    /// A factor for each token, `[S]`, `[B, S]` or `[T]`, or for each token and head, with an axis H behind these. It
    /// multiplies all channels. Not given: 1.
    pub fn q_row_factor(mut self, factor: View<'a>) -> Self {
        self.raw.q_row_factor = factor.raw;
        self
    }

    pub fn k_row_factor(mut self, factor: View<'a>) -> Self {
        self.raw.k_row_factor = factor.raw;
        self
    }

    pub fn v_row_factor(mut self, factor: View<'a>) -> Self {
        self.raw.v_row_factor = factor.raw;
        self
    }
}

/// The common part of the groups of scales.
macro_rules! groups_of_scales {
    ($($group:ident)*) => {$(
        // SAFETY: views, which may be sent.
        unsafe impl Send for $group<'_> {}

        impl Default for $group<'_> {
            fn default() -> Self {
                $group::new()
            }
        }

        impl $group<'_> {
            /// For written scales: lower bound of a group's largest magnitude. Not given: 1e-10 for `f32`, else none.
            pub fn scale_floor(mut self, floor: f64) -> Self {
                self.raw.scale_floor = floor;
                self
            }

            /// Written scales of `f32` are rounded up to powers of two, as those of [`F8E8m0`](crate::F8E8m0) always
            /// are.
            pub fn power_of_two(mut self) -> Self {
                self.raw.flags |= sys::ROPE_QUANT_FLAG_POWER_OF_TWO;
                self
            }
        }
    )*};
}

groups_of_scales!(Quant SwigluQuant SwigluColumn);

/// The common part of the groups of SwiGLU's scales.
macro_rules! groups_of_swiglu_scales {
    ($($group:ident)*) => {$(
        impl<'a> $group<'a> {
            /// Backward: written scales of a gradient of gate of 8 bits.
            pub fn grad_gate_scales_out(mut self, scales: ViewMut<'a>) -> Self {
                self.raw.grad_gate_scales_out = scales.raw;
                self
            }

            /// Backward: written scales of a gradient of up of 8 bits.
            pub fn grad_up_scales_out(mut self, scales: ViewMut<'a>) -> Self {
                self.raw.grad_up_scales_out = scales.raw;
                self
            }

            /// The places of written scales. Not given: by their strides.
            pub fn scale_layout(mut self, layout: ScaleLayout) -> Self {
                self.raw.scale_layout = layout as i32;
                self
            }

            /// One `f32`, which calls raise to the largest magnitude that becomes codes of this group.
            pub fn amax_out(mut self, amax: ViewMut<'a>) -> Self {
                self.raw.amax_out = amax.raw;
                self
            }
        }
    )*};
}

groups_of_swiglu_scales!(SwigluQuant SwigluColumn);

/// Scales of outputs and caches of 8 bits, whose codes are x / scale; `rope_quant_args_t`.
#[derive(Debug)]
pub struct Quant<'a> {
    pub(crate) raw: sys::rope_quant_args_t,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> Quant<'a> {
    pub fn new() -> Self {
        let raw = sys::rope_quant_args_t {
            struct_size: size_of::<sys::rope_quant_args_t>() as u32,
            flags: 0,
            scale_floor: 0.0,
            q_scale: ABSENT,
            k_scale: ABSENT,
            v_scale: ABSENT,
            k_pass_scale: ABSENT,
            q_scales_out: ABSENT,
            k_scales_out: ABSENT,
            v_scales_out: ABSENT,
            amax_out: ABSENT,
        };
        Quant { raw, memory: PhantomData }
    }

    /// `f32`, `[1]`, or `[H]` with a scale for each head, above 0. Not given: 1.
    pub fn q_scale(mut self, scale: View<'a>) -> Self {
        self.raw.q_scale = scale.raw;
        self
    }

    pub fn k_scale(mut self, scale: View<'a>) -> Self {
        self.raw.k_scale = scale.raw;
        self
    }

    pub fn v_scale(mut self, scale: View<'a>) -> Self {
        self.raw.v_scale = scale.raw;
        self
    }

    /// The scale of [`Cache::k_pass_cache`].
    pub fn k_pass_scale(mut self, scale: View<'a>) -> Self {
        self.raw.k_pass_scale = scale.raw;
        self
    }

    /// Written instead, in `f32` or [`F8E8m0`](crate::F8E8m0): the axes of an output of 8 bits with G instead of its
    /// channels, or `[T, H, G/4, 4]`. The scale of each of G groups of neighbouring channels is (largest magnitude) /
    /// (largest number of the type).
    pub fn q_scales_out(mut self, scales: ViewMut<'a>) -> Self {
        self.raw.q_scales_out = scales.raw;
        self
    }

    pub fn k_scales_out(mut self, scales: ViewMut<'a>) -> Self {
        self.raw.k_scales_out = scales.raw;
        self
    }

    pub fn v_scales_out(mut self, scales: ViewMut<'a>) -> Self {
        self.raw.v_scales_out = scales.raw;
        self
    }

    /// Three `f32`, of q, k and v, which calls raise to the largest magnitude of what they scale.
    pub fn amax_out(mut self, amax: ViewMut<'a>) -> Self {
        self.raw.amax_out = amax.raw;
        self
    }

    /// Codes are x * scale (flashinfer, TensorRT-LLM, TransformerEngine); not for written scales.
    pub fn scale_multiplies(mut self) -> Self {
        self.raw.flags |= sys::ROPE_QUANT_FLAG_SCALE_MULTIPLIES;
        self
    }
}

/// Scales of SwiGLU's output of 8 or 4 bits, and of its gradients of 8 bits, whose codes are x / scale;
/// `swiglu_quant_args_t`.
#[derive(Debug)]
pub struct SwigluQuant<'a> {
    pub(crate) raw: sys::swiglu_quant_args_t,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> SwigluQuant<'a> {
    pub fn new() -> Self {
        let raw = sys::swiglu_quant_args_t {
            struct_size: size_of::<sys::swiglu_quant_args_t>() as u32,
            flags: 0,
            scale_floor: 0.0,
            scale: ABSENT,
            scales_out: ABSENT,
            amax_out: ABSENT,
            scale_layout: 0,
            reserved0: 0,
            grad_gate_scales_out: ABSENT,
            grad_up_scales_out: ABSENT,
        };
        SwigluQuant { raw, memory: PhantomData }
    }

    /// `f32`, `[1]`, or `[E]` with experts, above 0. Not given: 1. With scales in [`F8E4m3`](crate::F8E4m3) it is their
    /// global factor g, as a rule 448 * 6 / (largest magnitude of the whole tensor).
    pub fn scale(mut self, scale: View<'a>) -> Self {
        self.raw.scale = scale.raw;
        self
    }

    /// Written instead, in `f32` or [`F8E8m0`](crate::F8E8m0): the first axes of gate (at least one, with experts two,
    /// and not all), then G, which may be split, `[.., G/4, 4]`. The scale of each of G groups of neighbouring channels
    /// of gate's other axes is (largest magnitude) / (largest number of the output's type). MXFP8 and MXFP4 have groups
    /// of 32 channels with scales in `F8E8m0`.
    ///
    /// With an output of [`F4E2m1x2`](crate::F4E2m1x2) also in [`F8E4m3`](crate::F8E4m3) (NVFP4, groups of 16): the
    /// scale is g * ((largest magnitude) / 6), and codes are x * (g / scale), with the factor g of
    /// [`scale`](SwigluQuant::scale).
    pub fn scales_out(mut self, scales: ViewMut<'a>) -> Self {
        self.raw.scales_out = scales.raw;
        self
    }

    /// Codes are x * scale (TransformerEngine); not for written scales.
    pub fn scale_multiplies(mut self) -> Self {
        self.raw.flags |= sys::ROPE_QUANT_FLAG_SCALE_MULTIPLIES;
        self
    }
}

/// SwiGLU's outputs once more as codes of 8 bits, with scales of groups of neighbouring rows; `swiglu_column_args_t`.
#[derive(Debug)]
pub struct SwigluColumn<'a> {
    pub(crate) raw: sys::swiglu_column_args_t,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> SwigluColumn<'a> {
    pub fn new() -> Self {
        let raw = sys::swiglu_column_args_t {
            struct_size: size_of::<sys::swiglu_column_args_t>() as u32,
            flags: 0,
            scale_floor: 0.0,
            scale_layout: 0,
            reserved0: 0,
            amax_out: ABSENT,
            out: ABSENT,
            grad_gate: ABSENT,
            grad_up: ABSENT,
            scales_out: ABSENT,
            grad_gate_scales_out: ABSENT,
            grad_up_scales_out: ABSENT,
        };
        SwigluColumn { raw, memory: PhantomData }
    }

    /// Forward: the output, of gate's shape.
    pub fn out(mut self, codes: ViewMut<'a>) -> Self {
        self.raw.out = codes.raw;
        self
    }

    /// Written, in `f32` or [`F8E8m0`](crate::F8E8m0): gate's shape with G instead of the rows, which are the
    /// first axis, with experts the second one. Not given: the codes have the scale of [`SwigluQuant::scale`].
    pub fn scales_out(mut self, scales: ViewMut<'a>) -> Self {
        self.raw.scales_out = scales.raw;
        self
    }

    /// Backward: the gradient of gate.
    pub fn grad_gate(mut self, codes: ViewMut<'a>) -> Self {
        self.raw.grad_gate = codes.raw;
        self
    }

    /// Backward: the gradient of up.
    pub fn grad_up(mut self, codes: ViewMut<'a>) -> Self {
        self.raw.grad_up = codes.raw;
        self
    }
}

/// Paged caches that k and v are written to, `[P, E, H, D]`, and where each token goes: `slots`, or `page_table`, one of
/// them; `rope_cache_args_t`.
#[derive(Debug)]
pub struct Cache<'a> {
    pub(crate) raw: sys::rope_cache_args_t,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: these are views, which may be sent.
unsafe impl Send for Cache<'_> {}

impl<'a> Cache<'a> {
    fn new() -> Self {
        let raw = sys::rope_cache_args_t {
            struct_size: size_of::<sys::rope_cache_args_t>() as u32,
            flags: 0,
            k_cache: ABSENT,
            v_cache: ABSENT,
            k_pass_cache: ABSENT,
            k_scales: ABSENT,
            v_scales: ABSENT,
            k_pass_scales: ABSENT,
            slots: ABSENT,
            page_table: ABSENT,
            page_indptr: ABSENT,
            sequence: ABSENT,
            positions: ABSENT,
        };
        Cache { raw, memory: PhantomData }
    }

    /// The slot of each token, page * E + entry: `[T]`, or `[N]` for the first N tokens, or `[B, S]`.
    pub fn by_slots(slots: View<'a>) -> Self {
        let mut cache = Cache::new();
        cache.raw.slots = slots.raw;
        cache
    }

    /// The pages of each sequence: `[B, any]`.
    pub fn by_page_table(pages: View<'a>) -> Self {
        let mut cache = Cache::new();
        cache.raw.page_table = pages.raw;
        cache
    }

    /// One list of pages for all, `[any]`: sequence b has entries `indptr[b]` to `indptr[b + 1] - 1`.
    pub fn by_page_list(pages: View<'a>, indptr: View<'a>) -> Self {
        let mut cache = Cache::by_page_table(pages);
        cache.raw.page_indptr = indptr.raw;
        cache
    }

    /// Receives k, in the descriptor's type, 8 bits, or `F16` or `Bf16` of `f32` data.
    pub fn k_cache(mut self, cache: ViewMut<'a>) -> Self {
        self.raw.k_cache = cache.raw;
        self
    }

    /// Receives v.
    pub fn v_cache(mut self, cache: ViewMut<'a>) -> Self {
        self.raw.v_cache = cache.raw;
        self
    }

    /// Receives the channels of k outside the window, `[P, E, H, D - R]`, in a type of its own. `k_cache` then holds
    /// the window alone, R channels.
    pub fn k_pass_cache(mut self, cache: ViewMut<'a>) -> Self {
        self.raw.k_pass_cache = cache.raw;
        self
    }

    /// Receives scales of the codes of k, `[P, E, H, G]`, like [`Quant::q_scales_out`] for an output.
    pub fn k_scales(mut self, scales: ViewMut<'a>) -> Self {
        self.raw.k_scales = scales.raw;
        self
    }

    pub fn v_scales(mut self, scales: ViewMut<'a>) -> Self {
        self.raw.v_scales = scales.raw;
        self
    }

    /// Receives scales of [`Cache::k_pass_cache`].
    pub fn k_pass_scales(mut self, scales: ViewMut<'a>) -> Self {
        self.raw.k_pass_scales = scales.raw;
        self
    }

    /// The row of the page table of each token. Not given: its batch, or its sequence.
    pub fn sequence(mut self, rows: View<'a>) -> Self {
        self.raw.sequence = rows.raw;
        self
    }

    /// Each token's position in the cache. Not given: that of the rotation.
    pub fn positions(mut self, positions: View<'a>) -> Self {
        self.raw.positions = positions.raw;
        self
    }

    /// Slot 0 is not written.
    pub fn skip_slot_0(mut self) -> Self {
        self.raw.flags |= sys::ROPE_CACHE_FLAG_SKIP_SLOT_0;
        self
    }
}
