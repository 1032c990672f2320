// SPDX-License-Identifier: Apache-2.0
//! The C interface of librope, name for name: `<rope/rope.h>` is its manual. The crate `rope` is the safe one.
//!
//! `tests/layout.rs` compares it with the sizes, offsets, values and functions that librope promises to keep.

#![allow(non_camel_case_types)]

use std::marker::{PhantomData, PhantomPinned};
use std::os::raw::{c_char, c_void};

pub const ROPE_VERSION_MAJOR: u32 = 0;
pub const ROPE_VERSION_MINOR: u32 = 3;
pub const ROPE_VERSION_PATCH: u32 = 0;
/// The version of the header that this file mirrors.
pub const ROPE_VERSION: u32 = ROPE_VERSION_MAJOR * 10000 + ROPE_VERSION_MINOR * 100 + ROPE_VERSION_PATCH;

pub type rope_status_t = i32;
pub const ROPE_STATUS_SUCCESS: rope_status_t = 0;
pub const ROPE_STATUS_INVALID_ARGUMENT: rope_status_t = 1;
pub const ROPE_STATUS_NOT_SUPPORTED: rope_status_t = 2;
pub const ROPE_STATUS_OUT_OF_MEMORY: rope_status_t = 3;
pub const ROPE_STATUS_NO_DEVICE: rope_status_t = 4;
pub const ROPE_STATUS_CUDA_ERROR: rope_status_t = 5;
pub const ROPE_STATUS_INTERNAL_ERROR: rope_status_t = 6;

pub type rope_device_t = i32;
pub const ROPE_DEVICE_CPU: rope_device_t = 1;
pub const ROPE_DEVICE_CUDA: rope_device_t = 2;

pub type rope_dtype_t = i32;
pub const ROPE_DTYPE_F32: rope_dtype_t = 1;
pub const ROPE_DTYPE_F16: rope_dtype_t = 2;
pub const ROPE_DTYPE_BF16: rope_dtype_t = 3;
pub const ROPE_DTYPE_F64: rope_dtype_t = 4;
pub const ROPE_DTYPE_I32: rope_dtype_t = 5;
pub const ROPE_DTYPE_I64: rope_dtype_t = 6;
pub const ROPE_DTYPE_F8_E4M3: rope_dtype_t = 7;
pub const ROPE_DTYPE_F8_E5M2: rope_dtype_t = 8;
pub const ROPE_DTYPE_F8_E8M0: rope_dtype_t = 9;
pub const ROPE_DTYPE_F4_E2M1X2: rope_dtype_t = 10;

pub type rope_layout_t = i32;
pub const ROPE_LAYOUT_BSHD: rope_layout_t = 1;
pub const ROPE_LAYOUT_SBHD: rope_layout_t = 2;
pub const ROPE_LAYOUT_BHSD: rope_layout_t = 3;
pub const ROPE_LAYOUT_THD: rope_layout_t = 4;

pub type rope_style_t = i32;
pub const ROPE_STYLE_HALF: rope_style_t = 1;
pub const ROPE_STYLE_INTERLEAVED: rope_style_t = 2;

pub const ROPE_TENSOR_STRIDED: u16 = 1;

pub const ROPE_MAX_POSITION_AXES: usize = 8;

pub type rope_norm_type_t = i32;
pub const ROPE_NORM_RMS: rope_norm_type_t = 1;
pub const ROPE_NORM_LAYER: rope_norm_type_t = 2;

pub type rope_norm_order_t = i32;
pub const ROPE_NORM_ORDER_BEFORE: rope_norm_order_t = 0;
pub const ROPE_NORM_ORDER_AFTER: rope_norm_order_t = 1;

pub type rope_norm_extent_t = i32;
pub const ROPE_NORM_EXTENT_HEAD: rope_norm_extent_t = 0;
pub const ROPE_NORM_EXTENT_TOKEN: rope_norm_extent_t = 1;

pub const ROPE_NORM_TENSOR_Q: i32 = 1;
pub const ROPE_NORM_TENSOR_K: i32 = 2;
pub const ROPE_NORM_TENSOR_V: i32 = 4;

pub const ROPE_NORM_ROUND_BEFORE_WEIGHT: i32 = 1;
pub const ROPE_NORM_ROUND_AFTER_WEIGHT: i32 = 2;
pub const ROPE_QUANT_ROUND_FIRST: i32 = 1;
pub const ROPE_ROTATION_ROUND_EACH: i32 = 1;

pub const ROPE_TABLE_BY_POSITION: i32 = 0;
pub const ROPE_TABLE_BY_TOKEN: i32 = 1;
pub const ROPE_FLAG_PROGRAMMATIC_LAUNCH: u32 = 1;
pub const ROPE_FLAG_UNROTATED: u32 = 2;
pub const ROPE_FLAG_V_UNROTATED: u32 = 4;
pub const ROPE_FLAG_ACCUMULATE: u32 = 8;

pub const ROPE_CACHE_FLAG_SKIP_SLOT_0: u32 = 1;
pub const ROPE_QUANT_FLAG_SCALE_MULTIPLIES: u32 = 1;
pub const ROPE_QUANT_FLAG_POWER_OF_TWO: u32 = 2;

pub type rope_scaling_type_t = i32;
pub const ROPE_SCALING_NONE: rope_scaling_type_t = 1;
pub const ROPE_SCALING_LINEAR: rope_scaling_type_t = 2;
pub const ROPE_SCALING_DYNAMIC_NTK: rope_scaling_type_t = 3;
pub const ROPE_SCALING_DYNAMIC_NTK_FIXED: rope_scaling_type_t = 4;
pub const ROPE_SCALING_NTK_ALPHA: rope_scaling_type_t = 5;
pub const ROPE_SCALING_NTK_FIXED: rope_scaling_type_t = 6;
pub const ROPE_SCALING_NTK_MIXED: rope_scaling_type_t = 7;
pub const ROPE_SCALING_YARN: rope_scaling_type_t = 8;
pub const ROPE_SCALING_YARN_LOG: rope_scaling_type_t = 9;
pub const ROPE_SCALING_LLAMA3: rope_scaling_type_t = 10;
pub const ROPE_SCALING_LONGROPE: rope_scaling_type_t = 11;
pub const ROPE_SCALING_PROPORTIONAL: rope_scaling_type_t = 12;
pub const ROPE_SCALING_FACTORS: rope_scaling_type_t = 13;
pub const ROPE_SCALING_FLAG_NO_TRUNCATE: u32 = 1;

pub type rope_sections_type_t = i32;
pub const ROPE_SECTIONS_CHUNKED: rope_sections_type_t = 1;
pub const ROPE_SECTIONS_INTERLEAVED: rope_sections_type_t = 2;
pub const ROPE_SECTIONS_IMROPE: rope_sections_type_t = 3;
pub const ROPE_SECTIONS_ERNIE: rope_sections_type_t = 4;
pub const ROPE_SECTIONS_RESTARTED: rope_sections_type_t = 5;
pub const ROPE_SECTIONS_VISION: rope_sections_type_t = 6;

pub const SWIGLU_LIMIT_GATE: i32 = 0;
pub const SWIGLU_LIMIT_ACTIVATION: i32 = 1;

pub const SWIGLU_ACTIVATION_SWIGLU: i32 = 0;
pub const SWIGLU_ACTIVATION_GEGLU_ERF: i32 = 1;
pub const SWIGLU_ACTIVATION_GEGLU_TANH: i32 = 2;
pub const SWIGLU_ACTIVATION_REGLU: i32 = 3;

pub const SWIGLU_PRODUCT_ROUND_ACTIVATION: i32 = 1;

pub const SWIGLU_SCALE_LAYOUT_STRIDED: i32 = 0;
pub const SWIGLU_SCALE_LAYOUT_128X4: i32 = 1;

/// `struct CUstream_st`: a `cudaStream_t` or `CUstream`.
pub type rope_stream_t = *mut c_void;

/// Neither built nor moved outside the library.
#[repr(C)]
pub struct rope_desc_t {
    opaque: [u8; 0],
    marker: PhantomData<(*mut u8, PhantomPinned)>,
}

/// Neither built nor moved outside the library.
#[repr(C)]
pub struct swiglu_desc_t {
    opaque: [u8; 0],
    marker: PhantomData<(*mut u8, PhantomPinned)>,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rope_tensor_t {
    pub data: *mut c_void,
    pub dtype: rope_dtype_t,
    pub ndim: u16,
    pub flags: u16,
    pub shape: [i64; 4],
    pub stride: [i64; 4],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rope_config_t {
    pub struct_size: u32,
    pub flags: u32,
    pub device: rope_device_t,
    pub device_index: i32,
    pub dtype: rope_dtype_t,
    pub layout: rope_layout_t,
    pub style: rope_style_t,
    pub head_dim: i32,
    pub rotary_dim: i32,
    pub rotary_offset: i32,
    pub theta: f64,
    pub attention_scale: f64,
    pub inv_freq: *const f64,
    pub pair_axis: *const i32,
    pub num_axes: i32,
    pub pair_block: i32,
    pub num_threads: i32,
    pub out_style: rope_style_t,
    pub norm: rope_norm_type_t,
    pub norm_tensors: i32,
    pub norm_order: rope_norm_order_t,
    pub norm_extent: rope_norm_extent_t,
    pub norm_rounding: i32,
    pub quant_rounding: i32,
    pub rotation_rounding: i32,
    pub reserved1: i32,
    pub norm_eps: f64,
    pub norm_weight_offset: f64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rope_norm_args_t {
    pub struct_size: u32,
    pub flags: u32,
    pub q_weight: rope_tensor_t,
    pub k_weight: rope_tensor_t,
    pub q_bias: rope_tensor_t,
    pub k_bias: rope_tensor_t,
    pub q_in: rope_tensor_t,
    pub k_in: rope_tensor_t,
    pub v_in: rope_tensor_t,
    pub grad_q_weight: rope_tensor_t,
    pub grad_k_weight: rope_tensor_t,
    pub grad_q_bias: rope_tensor_t,
    pub grad_k_bias: rope_tensor_t,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rope_cache_args_t {
    pub struct_size: u32,
    pub flags: u32,
    pub k_cache: rope_tensor_t,
    pub v_cache: rope_tensor_t,
    pub k_pass_cache: rope_tensor_t,
    pub k_scales: rope_tensor_t,
    pub v_scales: rope_tensor_t,
    pub k_pass_scales: rope_tensor_t,
    pub slots: rope_tensor_t,
    pub page_table: rope_tensor_t,
    pub page_indptr: rope_tensor_t,
    pub sequence: rope_tensor_t,
    pub positions: rope_tensor_t,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rope_quant_args_t {
    pub struct_size: u32,
    pub flags: u32,
    pub scale_floor: f64,
    pub q_scale: rope_tensor_t,
    pub k_scale: rope_tensor_t,
    pub v_scale: rope_tensor_t,
    pub k_pass_scale: rope_tensor_t,
    pub q_scales_out: rope_tensor_t,
    pub k_scales_out: rope_tensor_t,
    pub v_scales_out: rope_tensor_t,
    pub amax_out: rope_tensor_t,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rope_input_args_t {
    pub struct_size: u32,
    pub flags: u32,
    pub q_pass: rope_tensor_t,
    pub k_pass: rope_tensor_t,
    pub q_row_factor: rope_tensor_t,
    pub k_row_factor: rope_tensor_t,
    pub v_row_factor: rope_tensor_t,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rope_args_t {
    pub struct_size: u32,
    pub flags: u32,
    pub q: rope_tensor_t,
    pub q_out: rope_tensor_t,
    pub k: rope_tensor_t,
    pub k_out: rope_tensor_t,
    pub v: rope_tensor_t,
    pub v_out: rope_tensor_t,
    pub positions: rope_tensor_t,
    pub start_positions: rope_tensor_t,
    pub cu_seqlens: rope_tensor_t,
    pub cos: rope_tensor_t,
    pub sin: rope_tensor_t,
    pub angles: rope_tensor_t,
    pub fault: rope_tensor_t,
    pub position_offset: i64,
    pub table_rows: i32,
    pub reserved0: i32,
    pub norm: *const rope_norm_args_t,
    pub cache: *const rope_cache_args_t,
    pub quant: *const rope_quant_args_t,
    pub input: *const rope_input_args_t,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rope_scaling_t {
    pub struct_size: u32,
    pub flags: u32,
    pub r#type: rope_scaling_type_t,
    pub num_factors: i32,
    pub factor: f64,
    pub original_max_position: i64,
    pub sequence_length: i64,
    pub alpha: f64,
    pub mixed_b: f64,
    pub beta_fast: f64,
    pub beta_slow: f64,
    pub attention_factor: f64,
    pub mscale: f64,
    pub mscale_all_dim: f64,
    pub low_freq_factor: f64,
    pub high_freq_factor: f64,
    pub partial_rotary_factor: f64,
    pub short_factor: *const f64,
    pub long_factor: *const f64,
    pub pair_factors: *const f64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rope_sections_t {
    pub struct_size: u32,
    pub flags: u32,
    pub r#type: rope_sections_type_t,
    pub num_sections: i32,
    pub section: [i32; ROPE_MAX_POSITION_AXES],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct swiglu_config_t {
    pub struct_size: u32,
    pub flags: u32,
    pub device: rope_device_t,
    pub device_index: i32,
    pub dtype: rope_dtype_t,
    pub num_threads: i32,
    pub alpha: f64,
    pub limit: f64,
    pub up_offset: f64,
    pub out_scale: f64,
    pub gate_softcap: f64,
    pub up_softcap: f64,
    pub limit_rule: i32,
    pub activation: i32,
    pub product_rounding: i32,
    pub quant_rounding: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct swiglu_quant_args_t {
    pub struct_size: u32,
    pub flags: u32,
    pub scale_floor: f64,
    pub scale: rope_tensor_t,
    pub scales_out: rope_tensor_t,
    pub amax_out: rope_tensor_t,
    pub scale_layout: i32,
    pub reserved0: i32,
    pub grad_gate_scales_out: rope_tensor_t,
    pub grad_up_scales_out: rope_tensor_t,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct swiglu_column_args_t {
    pub struct_size: u32,
    pub flags: u32,
    pub scale_floor: f64,
    pub scale_layout: i32,
    pub reserved0: i32,
    pub amax_out: rope_tensor_t,
    pub out: rope_tensor_t,
    pub grad_gate: rope_tensor_t,
    pub grad_up: rope_tensor_t,
    pub scales_out: rope_tensor_t,
    pub grad_gate_scales_out: rope_tensor_t,
    pub grad_up_scales_out: rope_tensor_t,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct swiglu_input_args_t {
    pub struct_size: u32,
    pub flags: u32,
    pub gate_bias: rope_tensor_t,
    pub up_bias: rope_tensor_t,
    pub expert_rows: rope_tensor_t,
    pub expert_offsets: rope_tensor_t,
    pub row_index: rope_tensor_t,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct swiglu_args_t {
    pub struct_size: u32,
    pub flags: u32,
    pub gate: rope_tensor_t,
    pub up: rope_tensor_t,
    pub out: rope_tensor_t,
    pub row_scale: rope_tensor_t,
    pub num_rows: rope_tensor_t,
    pub grad_out: rope_tensor_t,
    pub grad_gate: rope_tensor_t,
    pub grad_up: rope_tensor_t,
    pub grad_row_scale: rope_tensor_t,
    pub quant: *const swiglu_quant_args_t,
    pub input: *const swiglu_input_args_t,
    pub column: *const swiglu_column_args_t,
}

extern "C" {
    pub fn rope_version() -> u32;
    pub fn rope_build_info() -> *const c_char;
    pub fn rope_status_name(status: rope_status_t) -> *const c_char;
    pub fn rope_last_error() -> *const c_char;
    pub fn rope_device_count(device: rope_device_t, count_out: *mut i32) -> rope_status_t;
    pub fn rope_tensor_narrow(
        src: *const rope_tensor_t,
        dim: i32,
        start: i64,
        length: i64,
        view_out: *mut rope_tensor_t,
    ) -> rope_status_t;
    pub fn rope_tensor_select(
        src: *const rope_tensor_t,
        dim: i32,
        index: i64,
        view_out: *mut rope_tensor_t,
    ) -> rope_status_t;
    pub fn rope_desc_create(config: *const rope_config_t, desc_out: *mut *mut rope_desc_t) -> rope_status_t;
    pub fn rope_desc_destroy(desc: *mut rope_desc_t);
    pub fn rope_forward(desc: *const rope_desc_t, args: *const rope_args_t, stream: rope_stream_t) -> rope_status_t;
    pub fn rope_backward(desc: *const rope_desc_t, args: *const rope_args_t, stream: rope_stream_t) -> rope_status_t;
    pub fn rope_fill_tables(
        desc: *const rope_desc_t,
        cos_out: *const rope_tensor_t,
        sin_out: *const rope_tensor_t,
        stream: rope_stream_t,
    ) -> rope_status_t;
    pub fn rope_explain(
        desc: *const rope_desc_t,
        args: *const rope_args_t,
        text: *mut c_char,
        size: usize,
    ) -> rope_status_t;
    pub fn rope_scaled_frequencies(
        rotary_dim: i32,
        theta: f64,
        scaling: *const rope_scaling_t,
        inv_freq_out: *mut f64,
        attention_scale_out: *mut f64,
    ) -> rope_status_t;
    pub fn rope_section_axes(
        rotary_dim: i32,
        theta: f64,
        sections: *const rope_sections_t,
        pair_axis_out: *mut i32,
        inv_freq_out: *mut f64,
    ) -> rope_status_t;
    pub fn swiglu_desc_create(config: *const swiglu_config_t, desc_out: *mut *mut swiglu_desc_t) -> rope_status_t;
    pub fn swiglu_desc_destroy(desc: *mut swiglu_desc_t);
    pub fn swiglu_forward(
        desc: *const swiglu_desc_t,
        args: *const swiglu_args_t,
        stream: rope_stream_t,
    ) -> rope_status_t;
    pub fn swiglu_backward(
        desc: *const swiglu_desc_t,
        args: *const swiglu_args_t,
        stream: rope_stream_t,
    ) -> rope_status_t;
    pub fn swiglu_explain(
        desc: *const swiglu_desc_t,
        args: *const swiglu_args_t,
        text: *mut c_char,
        size: usize,
    ) -> rope_status_t;
}
