// SPDX-License-Identifier: Apache-2.0
//! Every line of tests/abi/layout.golden and symbols.golden holds for this crate, and no line is missing.

use rope_sys::*;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::mem::{size_of, MaybeUninit};
use std::ptr::addr_of;

fn golden(name: &str) -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/abi/");
    std::fs::read_to_string(format!("{path}{name}")).unwrap()
}

fn size_of_target<T>(_: *const T) -> usize {
    size_of::<T>()
}

macro_rules! types {
    ($text:ident, $($name:ident)*) => {
        $(
            let sign = if <$name>::MIN == 0 { "u" } else { "" };
            writeln!($text, "type {} {sign}int{}", stringify!($name), size_of::<$name>() * 8).unwrap();
        )*
    };
}

macro_rules! values {
    ($text:ident, $($name:ident)*) => {
        $(writeln!($text, "value {} {}", stringify!($name), $name).unwrap();)*
    };
}

macro_rules! layout {
    ($text:ident, $name:ident: $($field:ident)*) => {
        writeln!($text, "struct {} size {}", stringify!($name), size_of::<$name>()).unwrap();
        let value = MaybeUninit::<$name>::uninit();
        let start = value.as_ptr();
        $(
            // SAFETY: the address of a field, which is never read.
            let field = unsafe { addr_of!((*start).$field) };
            let field_name = stringify!($field).trim_start_matches("r#");
            let offset = field as usize - start as usize;
            let size = size_of_target(field);
            writeln!($text, "field {}.{field_name} offset {offset} size {size}", stringify!($name)).unwrap();
        )*
    };
}

#[test]
fn layout_is_the_golden_one() {
    let mut text = String::new();
    types! {
        text,
        rope_status_t rope_device_t rope_dtype_t rope_layout_t rope_style_t rope_scaling_type_t
        rope_sections_type_t rope_norm_type_t rope_norm_order_t rope_norm_extent_t
    }
    values! {
        text,
        ROPE_STATUS_SUCCESS ROPE_STATUS_INVALID_ARGUMENT ROPE_STATUS_NOT_SUPPORTED ROPE_STATUS_OUT_OF_MEMORY
        ROPE_STATUS_NO_DEVICE ROPE_STATUS_CUDA_ERROR ROPE_STATUS_INTERNAL_ERROR ROPE_DEVICE_CPU
        ROPE_DEVICE_CUDA ROPE_DTYPE_F32 ROPE_DTYPE_F16 ROPE_DTYPE_BF16 ROPE_DTYPE_F64 ROPE_DTYPE_I32
        ROPE_DTYPE_I64 ROPE_DTYPE_F8_E4M3 ROPE_DTYPE_F8_E5M2 ROPE_DTYPE_F8_E8M0 ROPE_DTYPE_F4_E2M1X2
        ROPE_LAYOUT_BSHD ROPE_LAYOUT_SBHD ROPE_LAYOUT_BHSD ROPE_LAYOUT_THD ROPE_STYLE_HALF
        ROPE_STYLE_INTERLEAVED ROPE_TENSOR_STRIDED ROPE_MAX_POSITION_AXES ROPE_FLAG_PROGRAMMATIC_LAUNCH
        ROPE_FLAG_UNROTATED ROPE_FLAG_V_UNROTATED ROPE_FLAG_ACCUMULATE ROPE_TABLE_BY_POSITION
        ROPE_TABLE_BY_TOKEN ROPE_SCALING_NONE ROPE_SCALING_LINEAR ROPE_SCALING_DYNAMIC_NTK
        ROPE_SCALING_DYNAMIC_NTK_FIXED ROPE_SCALING_NTK_ALPHA ROPE_SCALING_NTK_FIXED ROPE_SCALING_NTK_MIXED
        ROPE_SCALING_YARN ROPE_SCALING_YARN_LOG ROPE_SCALING_LLAMA3 ROPE_SCALING_LONGROPE
        ROPE_SCALING_PROPORTIONAL ROPE_SCALING_FACTORS ROPE_SCALING_FLAG_NO_TRUNCATE ROPE_SECTIONS_CHUNKED
        ROPE_SECTIONS_INTERLEAVED ROPE_SECTIONS_IMROPE ROPE_SECTIONS_ERNIE ROPE_SECTIONS_RESTARTED
        ROPE_SECTIONS_VISION ROPE_NORM_RMS ROPE_NORM_LAYER ROPE_NORM_ORDER_BEFORE ROPE_NORM_ORDER_AFTER
        ROPE_NORM_EXTENT_HEAD ROPE_NORM_EXTENT_TOKEN ROPE_NORM_TENSOR_Q ROPE_NORM_TENSOR_K
        ROPE_NORM_TENSOR_V ROPE_NORM_ROUND_BEFORE_WEIGHT ROPE_NORM_ROUND_AFTER_WEIGHT ROPE_QUANT_ROUND_FIRST
        ROPE_ROTATION_ROUND_EACH ROPE_CACHE_FLAG_SKIP_SLOT_0 ROPE_QUANT_FLAG_SCALE_MULTIPLIES
        ROPE_QUANT_FLAG_POWER_OF_TWO SWIGLU_LIMIT_GATE SWIGLU_LIMIT_ACTIVATION SWIGLU_ACTIVATION_SWIGLU
        SWIGLU_ACTIVATION_GEGLU_ERF SWIGLU_ACTIVATION_GEGLU_TANH SWIGLU_ACTIVATION_REGLU
        SWIGLU_PRODUCT_ROUND_ACTIVATION SWIGLU_SCALE_LAYOUT_STRIDED SWIGLU_SCALE_LAYOUT_128X4
    }
    layout! {
        text, rope_tensor_t:
        data dtype ndim flags shape stride
    }
    layout! {
        text, rope_config_t:
        struct_size flags device device_index dtype layout style head_dim rotary_dim rotary_offset theta
        attention_scale inv_freq pair_axis num_axes pair_block num_threads out_style norm norm_tensors
        norm_order norm_extent norm_rounding quant_rounding rotation_rounding reserved1 norm_eps
        norm_weight_offset
    }
    layout! {
        text, rope_args_t:
        struct_size flags q q_out k k_out v v_out positions start_positions cu_seqlens cos sin angles fault
        position_offset table_rows reserved0 norm cache quant input
    }
    layout! {
        text, rope_norm_args_t:
        struct_size flags q_weight k_weight q_bias k_bias q_in k_in v_in grad_q_weight grad_k_weight
        grad_q_bias grad_k_bias
    }
    layout! {
        text, rope_cache_args_t:
        struct_size flags k_cache v_cache k_pass_cache k_scales v_scales k_pass_scales slots page_table
        page_indptr sequence positions
    }
    layout! {
        text, rope_quant_args_t:
        struct_size flags scale_floor q_scale k_scale v_scale k_pass_scale q_scales_out k_scales_out
        v_scales_out amax_out
    }
    layout! {
        text, rope_input_args_t:
        struct_size flags q_pass k_pass q_row_factor k_row_factor v_row_factor
    }
    layout! {
        text, rope_scaling_t:
        struct_size flags r#type num_factors factor original_max_position sequence_length alpha mixed_b
        beta_fast beta_slow attention_factor mscale mscale_all_dim low_freq_factor high_freq_factor
        partial_rotary_factor short_factor long_factor pair_factors
    }
    layout! {
        text, rope_sections_t:
        struct_size flags r#type num_sections section
    }
    layout! {
        text, swiglu_config_t:
        struct_size flags device device_index dtype num_threads alpha limit up_offset out_scale gate_softcap
        up_softcap limit_rule activation product_rounding quant_rounding
    }
    layout! {
        text, swiglu_args_t:
        struct_size flags gate up out row_scale num_rows grad_out grad_gate grad_up grad_row_scale quant
        input column
    }
    layout! {
        text, swiglu_quant_args_t:
        struct_size flags scale_floor scale scales_out amax_out scale_layout reserved0
        grad_gate_scales_out grad_up_scales_out
    }
    layout! {
        text, swiglu_column_args_t:
        struct_size flags scale_floor scale_layout reserved0 amax_out out grad_gate grad_up scales_out
        grad_gate_scales_out grad_up_scales_out
    }
    layout! {
        text, swiglu_input_args_t:
        struct_size flags gate_bias up_bias expert_rows expert_offsets row_index
    }
    let found: Vec<_> = text.lines().collect();
    let golden = golden("layout.golden");
    assert_eq!(found, golden.lines().collect::<Vec<_>>());
}

#[test]
fn functions_are_the_exported_ones() {
    let source = include_str!("../src/lib.rs");
    let declared: BTreeSet<_> =
        source.split("pub fn ").skip(1).map(|rest| rest.split('(').next().unwrap().to_string()).collect();
    let exported: BTreeSet<_> = golden("symbols.golden").lines().map(String::from).collect();
    assert_eq!(declared, exported);
}

#[test]
fn the_library_has_the_version_of_this_crate() {
    // SAFETY: takes and returns a number.
    assert_eq!(unsafe { rope_version() }, ROPE_VERSION);
    let version = format!("{ROPE_VERSION_MAJOR}.{ROPE_VERSION_MINOR}.{ROPE_VERSION_PATCH}");
    assert_eq!(env!("CARGO_PKG_VERSION"), version);
}
