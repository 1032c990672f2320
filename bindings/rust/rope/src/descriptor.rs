// SPDX-License-Identifier: Apache-2.0
use crate::error::{check, Result};
use crate::{sys, Error};
use std::ffi::CStr;

/// The device of a descriptor's tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Device {
    Cpu,
    /// The ordinal, as for `cudaSetDevice`.
    Cuda(i32),
}

impl Device {
    pub(crate) fn kind_and_index(self) -> (sys::rope_device_t, i32) {
        match self {
            Device::Cpu => (sys::ROPE_DEVICE_CPU, 0),
            Device::Cuda(index) => (sys::ROPE_DEVICE_CUDA, index),
        }
    }

    /// Safe calls read and write slices, so they require a descriptor for the CPU.
    pub(crate) fn require_cpu(self, call: &str) -> Result<()> {
        match self {
            Device::Cpu => Ok(()),
            Device::Cuda(_) => {
                Err(Error::invalid(format!("{call}: the descriptor is for {self:?}: the call must be enqueue_{call}")))
            }
        }
    }
}

/// The order of a tensor's axes: batch, sequence, heads, channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Layout {
    Bshd = sys::ROPE_LAYOUT_BSHD,
    Sbhd = sys::ROPE_LAYOUT_SBHD,
    Bhsd = sys::ROPE_LAYOUT_BHSD,
    /// Rank 3: one axis has all tokens of all sequences, back to back.
    Thd = sys::ROPE_LAYOUT_THD,
}

/// The channels of the rotated window that form a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Style {
    /// Channels i and i + R/2: Llama in Hugging Face, GPT-NeoX, Qwen.
    Half = sys::ROPE_STYLE_HALF,
    /// Channels 2i and 2i + 1: GPT-J, Llama as published by Meta, DeepSeek.
    Interleaved = sys::ROPE_STYLE_INTERLEAVED,
}

/// How a token finds its row of cos, sin and angles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum TableRows {
    ByPosition = sys::ROPE_TABLE_BY_POSITION,
    ByToken = sys::ROPE_TABLE_BY_TOKEN,
}

/// The formula of a norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum NormType {
    Rms = sys::ROPE_NORM_RMS,
    Layer = sys::ROPE_NORM_LAYER,
}

/// Whether the norm comes before the rotation or after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum NormOrder {
    /// Qwen3, Gemma 3.
    Before = sys::ROPE_NORM_ORDER_BEFORE,
    /// Llama 4, HunYuan.
    After = sys::ROPE_NORM_ORDER_AFTER,
}

/// The channels of one norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum NormExtent {
    /// The channels of each head.
    Head = sys::ROPE_NORM_EXTENT_HEAD,
    /// The channels of all heads of the tensor in the call (OLMo-2).
    Token = sys::ROPE_NORM_EXTENT_TOKEN,
}

/// Bits of [`norm_tensors`](crate::DescBuilder::norm_tensors).
pub const NORM_Q: i32 = sys::ROPE_NORM_TENSOR_Q;
pub const NORM_K: i32 = sys::ROPE_NORM_TENSOR_K;
pub const NORM_V: i32 = sys::ROPE_NORM_TENSOR_V;

/// Bits of [`norm_rounding`](crate::DescBuilder::norm_rounding).
pub const NORM_ROUND_BEFORE_WEIGHT: i32 = sys::ROPE_NORM_ROUND_BEFORE_WEIGHT;
pub const NORM_ROUND_AFTER_WEIGHT: i32 = sys::ROPE_NORM_ROUND_AFTER_WEIGHT;

/// A bit of [`quant_rounding`](crate::DescBuilder::quant_rounding).
pub const QUANT_ROUND_FIRST: i32 = sys::ROPE_QUANT_ROUND_FIRST;

/// A value of [`rotation_rounding`](crate::DescBuilder::rotation_rounding).
pub const ROTATION_ROUND_EACH: i32 = sys::ROPE_ROTATION_ROUND_EACH;

/// The function of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Activation {
    /// g * sigmoid(alpha * g).
    Swiglu = sys::SWIGLU_ACTIVATION_SWIGLU,
    /// GELU.
    GegluErf = sys::SWIGLU_ACTIVATION_GEGLU_ERF,
    /// GELU by tanh (Gemma).
    GegluTanh = sys::SWIGLU_ACTIVATION_GEGLU_TANH,
    /// max(g, 0).
    Reglu = sys::SWIGLU_ACTIVATION_REGLU,
}

/// The value that [`limit`](crate::SwigluBuilder::limit) bounds from above, in addition to up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum LimitRule {
    /// gate, before the activation (gpt-oss).
    Gate = sys::SWIGLU_LIMIT_GATE,
    /// The activation (Step 3.7).
    Activation = sys::SWIGLU_LIMIT_ACTIVATION,
}

/// The places of SwiGLU's written scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum ScaleLayout {
    /// By their strides.
    Strided = sys::SWIGLU_SCALE_LAYOUT_STRIDED,
    /// In tiles of 128 rows and 4 groups.
    Tiles128x4 = sys::SWIGLU_SCALE_LAYOUT_128X4,
}

/// A value of [`product_rounding`](crate::SwigluBuilder::product_rounding).
pub const PRODUCT_ROUND_ACTIVATION: i32 = sys::SWIGLU_PRODUCT_ROUND_ACTIVATION;

/// A flag of calls: `ROPE_FLAG_PROGRAMMATIC_LAUNCH`.
pub const PROGRAMMATIC_LAUNCH: u32 = sys::ROPE_FLAG_PROGRAMMATIC_LAUNCH;

/// A flag of calls on a [`Desc`](crate::Desc): nothing is rotated.
pub const UNROTATED: u32 = sys::ROPE_FLAG_UNROTATED;

/// A flag of calls on a [`Desc`](crate::Desc): v is not rotated, q and k are.
pub const V_UNROTATED: u32 = sys::ROPE_FLAG_V_UNROTATED;

/// A flag of [`Desc::backward`](crate::Desc::backward): gradients are added to the contents of their outputs.
pub const ACCUMULATE: u32 = sys::ROPE_FLAG_ACCUMULATE;

/// The version of the loaded library: major * 10000 + minor * 100 + patch.
pub fn version() -> u32 {
    // SAFETY: the function takes and returns a number.
    unsafe { sys::rope_version() }
}

/// One line for bug reports: version, backends, CUDA version and architectures, CPU instruction sets.
pub fn build_info() -> &'static str {
    // SAFETY: the function returns a static text, never NULL, that ends with 0.
    unsafe { CStr::from_ptr(sys::rope_build_info()) }.to_str().unwrap_or("")
}

/// The number of CUDA devices that this process can use. If there are none, the second value is the reason.
pub fn device_count() -> Result<(i32, Option<String>)> {
    let mut count = 0;
    // SAFETY: the function writes one number.
    check(unsafe { sys::rope_device_count(sys::ROPE_DEVICE_CUDA, &mut count) })?;
    let reason = (count == 0).then(crate::error::last_message);
    Ok((count, reason))
}
