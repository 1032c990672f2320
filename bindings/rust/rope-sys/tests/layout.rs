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
        rope_sections_type_t
    }
    values! {
        text,
        ROPE_STATUS_SUCCESS ROPE_STATUS_INVALID_ARGUMENT ROPE_STATUS_NOT_SUPPORTED ROPE_STATUS_OUT_OF_MEMORY
        ROPE_STATUS_NO_DEVICE ROPE_STATUS_CUDA_ERROR ROPE_STATUS_INTERNAL_ERROR ROPE_DEVICE_CPU
        ROPE_DEVICE_CUDA ROPE_DTYPE_F32 ROPE_DTYPE_F16 ROPE_DTYPE_BF16 ROPE_DTYPE_F64 ROPE_DTYPE_I32
        ROPE_DTYPE_I64 ROPE_LAYOUT_BSHD ROPE_LAYOUT_SBHD ROPE_LAYOUT_BHSD ROPE_LAYOUT_THD ROPE_STYLE_HALF
        ROPE_STYLE_INTERLEAVED ROPE_TENSOR_STRIDED ROPE_MAX_POSITION_AXES
        ROPE_FLAG_PROGRAMMATIC_LAUNCH ROPE_TABLE_BY_POSITION
        ROPE_TABLE_BY_TOKEN ROPE_SCALING_NONE ROPE_SCALING_LINEAR ROPE_SCALING_DYNAMIC_NTK
        ROPE_SCALING_DYNAMIC_NTK_FIXED ROPE_SCALING_NTK_ALPHA ROPE_SCALING_NTK_FIXED ROPE_SCALING_NTK_MIXED
        ROPE_SCALING_YARN ROPE_SCALING_YARN_LOG ROPE_SCALING_LLAMA3 ROPE_SCALING_LONGROPE
        ROPE_SCALING_PROPORTIONAL ROPE_SCALING_FACTORS ROPE_SCALING_FLAG_NO_TRUNCATE ROPE_SECTIONS_CHUNKED
        ROPE_SECTIONS_INTERLEAVED ROPE_SECTIONS_IMROPE ROPE_SECTIONS_ERNIE ROPE_SECTIONS_RESTARTED
        ROPE_SECTIONS_VISION
    }
    layout! {
        text, rope_tensor_t:
        data dtype ndim flags shape stride
    }
    layout! {
        text, rope_config_t:
        struct_size flags device device_index dtype layout style head_dim rotary_dim rotary_offset theta
        attention_scale inv_freq pair_axis num_axes pair_block num_threads out_style
    }
    layout! {
        text, rope_args_t:
        struct_size flags q q_out k k_out v v_out positions start_positions cu_seqlens cos sin angles fault
        position_offset table_rows reserved0
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
        struct_size flags device device_index dtype num_threads alpha limit up_offset out_scale
    }
    layout! {
        text, swiglu_args_t:
        struct_size flags gate up out row_scale num_rows grad_out grad_gate grad_up grad_row_scale
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
