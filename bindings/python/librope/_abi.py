# SPDX-License-Identifier: Apache-2.0
# _abi.py - the mirror of <rope/rope.h>: constants, structs and functions under their C names, and nothing else
"""Programs without the package load this file alone (examples/plain_ctypes.py), with any Python from 3.6 on.

tests/test_abi.py compares it with the header and with tests/abi/layout.golden and symbols.golden."""
import ctypes
from ctypes import POINTER, Structure, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint16, c_uint32, c_void_p
from typing import Any, Dict, List, Tuple

ROPE_VERSION_MAJOR = 0
ROPE_VERSION_MINOR = 3
ROPE_VERSION_PATCH = 0

# ---- Constants ------------------------------------------------------------------------------------------------------

rope_status_t = c_int32
ROPE_STATUS_SUCCESS = 0
ROPE_STATUS_INVALID_ARGUMENT = 1
ROPE_STATUS_NOT_SUPPORTED = 2
ROPE_STATUS_OUT_OF_MEMORY = 3
ROPE_STATUS_NO_DEVICE = 4
ROPE_STATUS_CUDA_ERROR = 5
ROPE_STATUS_INTERNAL_ERROR = 6

rope_device_t = c_int32
ROPE_DEVICE_CPU = 1
ROPE_DEVICE_CUDA = 2

rope_dtype_t = c_int32
ROPE_DTYPE_F32 = 1
ROPE_DTYPE_F16 = 2
ROPE_DTYPE_BF16 = 3
ROPE_DTYPE_F64 = 4
ROPE_DTYPE_I32 = 5
ROPE_DTYPE_I64 = 6
ROPE_DTYPE_F8_E4M3 = 7
ROPE_DTYPE_F8_E5M2 = 8
ROPE_DTYPE_F8_E8M0 = 9
ROPE_DTYPE_F4_E2M1X2 = 10

rope_layout_t = c_int32
ROPE_LAYOUT_BSHD = 1
ROPE_LAYOUT_SBHD = 2
ROPE_LAYOUT_BHSD = 3
ROPE_LAYOUT_THD = 4

rope_style_t = c_int32
ROPE_STYLE_HALF = 1
ROPE_STYLE_INTERLEAVED = 2

ROPE_TENSOR_STRIDED = 1
ROPE_MAX_POSITION_AXES = 8

rope_norm_type_t = c_int32
ROPE_NORM_RMS = 1
ROPE_NORM_LAYER = 2

rope_norm_order_t = c_int32
ROPE_NORM_ORDER_BEFORE = 0
ROPE_NORM_ORDER_AFTER = 1

rope_norm_extent_t = c_int32
ROPE_NORM_EXTENT_HEAD = 0
ROPE_NORM_EXTENT_TOKEN = 1

ROPE_NORM_TENSOR_Q = 1
ROPE_NORM_TENSOR_K = 2
ROPE_NORM_TENSOR_V = 4

ROPE_NORM_ROUND_BEFORE_WEIGHT = 1
ROPE_NORM_ROUND_AFTER_WEIGHT = 2
ROPE_QUANT_ROUND_FIRST = 1
ROPE_ROTATION_ROUND_EACH = 1

ROPE_FLAG_PROGRAMMATIC_LAUNCH = 1
ROPE_FLAG_UNROTATED = 2
ROPE_FLAG_V_UNROTATED = 4
ROPE_FLAG_ACCUMULATE = 8

ROPE_TABLE_BY_POSITION = 0
ROPE_TABLE_BY_TOKEN = 1

ROPE_CACHE_FLAG_SKIP_SLOT_0 = 1
ROPE_QUANT_FLAG_SCALE_MULTIPLIES = 1
ROPE_QUANT_FLAG_POWER_OF_TWO = 2

rope_scaling_type_t = c_int32
ROPE_SCALING_NONE = 1
ROPE_SCALING_LINEAR = 2
ROPE_SCALING_DYNAMIC_NTK = 3
ROPE_SCALING_DYNAMIC_NTK_FIXED = 4
ROPE_SCALING_NTK_ALPHA = 5
ROPE_SCALING_NTK_FIXED = 6
ROPE_SCALING_NTK_MIXED = 7
ROPE_SCALING_YARN = 8
ROPE_SCALING_YARN_LOG = 9
ROPE_SCALING_LLAMA3 = 10
ROPE_SCALING_LONGROPE = 11
ROPE_SCALING_PROPORTIONAL = 12
ROPE_SCALING_FACTORS = 13
ROPE_SCALING_FLAG_NO_TRUNCATE = 1

rope_sections_type_t = c_int32
ROPE_SECTIONS_CHUNKED = 1
ROPE_SECTIONS_INTERLEAVED = 2
ROPE_SECTIONS_IMROPE = 3
ROPE_SECTIONS_ERNIE = 4
ROPE_SECTIONS_RESTARTED = 5
ROPE_SECTIONS_VISION = 6

SWIGLU_LIMIT_GATE = 0
SWIGLU_LIMIT_ACTIVATION = 1

SWIGLU_ACTIVATION_SWIGLU = 0
SWIGLU_ACTIVATION_GEGLU_ERF = 1
SWIGLU_ACTIVATION_GEGLU_TANH = 2
SWIGLU_ACTIVATION_REGLU = 3

SWIGLU_PRODUCT_ROUND_ACTIVATION = 1

SWIGLU_SCALE_LAYOUT_STRIDED = 0
SWIGLU_SCALE_LAYOUT_128X4 = 1

# ---- Structs --------------------------------------------------------------------------------------------------------

rope_desc_p = c_void_p  # rope_desc_t *
swiglu_desc_p = c_void_p  # swiglu_desc_t *
rope_stream_t = c_void_p


class rope_tensor_t(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("dtype", rope_dtype_t),
        ("ndim", c_uint16),
        ("flags", c_uint16),
        ("shape", c_int64 * 4),
        ("stride", c_int64 * 4),
    ]


class rope_config_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("device", rope_device_t),
        ("device_index", c_int32),
        ("dtype", rope_dtype_t),
        ("layout", rope_layout_t),
        ("style", rope_style_t),
        ("head_dim", c_int32),
        ("rotary_dim", c_int32),
        ("rotary_offset", c_int32),
        ("theta", c_double),
        ("attention_scale", c_double),
        ("inv_freq", POINTER(c_double)),
        ("pair_axis", POINTER(c_int32)),
        ("num_axes", c_int32),
        ("pair_block", c_int32),
        ("num_threads", c_int32),
        ("out_style", rope_style_t),
        ("norm", rope_norm_type_t),
        ("norm_tensors", c_int32),
        ("norm_order", rope_norm_order_t),
        ("norm_extent", rope_norm_extent_t),
        ("norm_rounding", c_int32),
        ("quant_rounding", c_int32),
        ("rotation_rounding", c_int32),
        ("reserved1", c_int32),
        ("norm_eps", c_double),
        ("norm_weight_offset", c_double),
    ]


class rope_norm_args_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("q_weight", rope_tensor_t),
        ("k_weight", rope_tensor_t),
        ("q_bias", rope_tensor_t),
        ("k_bias", rope_tensor_t),
        ("q_in", rope_tensor_t),
        ("k_in", rope_tensor_t),
        ("v_in", rope_tensor_t),
        ("grad_q_weight", rope_tensor_t),
        ("grad_k_weight", rope_tensor_t),
        ("grad_q_bias", rope_tensor_t),
        ("grad_k_bias", rope_tensor_t),
    ]


class rope_cache_args_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("k_cache", rope_tensor_t),
        ("v_cache", rope_tensor_t),
        ("k_pass_cache", rope_tensor_t),
        ("k_scales", rope_tensor_t),
        ("v_scales", rope_tensor_t),
        ("k_pass_scales", rope_tensor_t),
        ("slots", rope_tensor_t),
        ("page_table", rope_tensor_t),
        ("page_indptr", rope_tensor_t),
        ("sequence", rope_tensor_t),
        ("positions", rope_tensor_t),
    ]


class rope_quant_args_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("scale_floor", c_double),
        ("q_scale", rope_tensor_t),
        ("k_scale", rope_tensor_t),
        ("v_scale", rope_tensor_t),
        ("k_pass_scale", rope_tensor_t),
        ("q_scales_out", rope_tensor_t),
        ("k_scales_out", rope_tensor_t),
        ("v_scales_out", rope_tensor_t),
        ("amax_out", rope_tensor_t),
    ]


class rope_input_args_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("q_pass", rope_tensor_t),
        ("k_pass", rope_tensor_t),
        ("q_row_factor", rope_tensor_t),
        ("k_row_factor", rope_tensor_t),
        ("v_row_factor", rope_tensor_t),
    ]


class rope_args_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("q", rope_tensor_t),
        ("q_out", rope_tensor_t),
        ("k", rope_tensor_t),
        ("k_out", rope_tensor_t),
        ("v", rope_tensor_t),
        ("v_out", rope_tensor_t),
        ("positions", rope_tensor_t),
        ("start_positions", rope_tensor_t),
        ("cu_seqlens", rope_tensor_t),
        ("cos", rope_tensor_t),
        ("sin", rope_tensor_t),
        ("angles", rope_tensor_t),
        ("fault", rope_tensor_t),
        ("position_offset", c_int64),
        ("table_rows", c_int32),
        ("reserved0", c_int32),
        ("norm", POINTER(rope_norm_args_t)),
        ("cache", POINTER(rope_cache_args_t)),
        ("quant", POINTER(rope_quant_args_t)),
        ("input", POINTER(rope_input_args_t)),
    ]


class rope_scaling_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("type", rope_scaling_type_t),
        ("num_factors", c_int32),
        ("factor", c_double),
        ("original_max_position", c_int64),
        ("sequence_length", c_int64),
        ("alpha", c_double),
        ("mixed_b", c_double),
        ("beta_fast", c_double),
        ("beta_slow", c_double),
        ("attention_factor", c_double),
        ("mscale", c_double),
        ("mscale_all_dim", c_double),
        ("low_freq_factor", c_double),
        ("high_freq_factor", c_double),
        ("partial_rotary_factor", c_double),
        ("short_factor", POINTER(c_double)),
        ("long_factor", POINTER(c_double)),
        ("pair_factors", POINTER(c_double)),
    ]


class rope_sections_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("type", rope_sections_type_t),
        ("num_sections", c_int32),
        ("section", c_int32 * ROPE_MAX_POSITION_AXES),
    ]


class swiglu_config_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("device", rope_device_t),
        ("device_index", c_int32),
        ("dtype", rope_dtype_t),
        ("num_threads", c_int32),
        ("alpha", c_double),
        ("limit", c_double),
        ("up_offset", c_double),
        ("out_scale", c_double),
        ("gate_softcap", c_double),
        ("up_softcap", c_double),
        ("limit_rule", c_int32),
        ("activation", c_int32),
        ("product_rounding", c_int32),
        ("quant_rounding", c_int32),
    ]


class swiglu_quant_args_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("scale_floor", c_double),
        ("scale", rope_tensor_t),
        ("scales_out", rope_tensor_t),
        ("amax_out", rope_tensor_t),
        ("scale_layout", c_int32),
        ("reserved0", c_int32),
        ("grad_gate_scales_out", rope_tensor_t),
        ("grad_up_scales_out", rope_tensor_t),
    ]


class swiglu_column_args_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("scale_floor", c_double),
        ("scale_layout", c_int32),
        ("reserved0", c_int32),
        ("amax_out", rope_tensor_t),
        ("out", rope_tensor_t),
        ("grad_gate", rope_tensor_t),
        ("grad_up", rope_tensor_t),
        ("scales_out", rope_tensor_t),
        ("grad_gate_scales_out", rope_tensor_t),
        ("grad_up_scales_out", rope_tensor_t),
    ]


class swiglu_input_args_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("gate_bias", rope_tensor_t),
        ("up_bias", rope_tensor_t),
        ("expert_rows", rope_tensor_t),
        ("expert_offsets", rope_tensor_t),
        ("row_index", rope_tensor_t),
    ]


class swiglu_args_t(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("gate", rope_tensor_t),
        ("up", rope_tensor_t),
        ("out", rope_tensor_t),
        ("row_scale", rope_tensor_t),
        ("num_rows", rope_tensor_t),
        ("grad_out", rope_tensor_t),
        ("grad_gate", rope_tensor_t),
        ("grad_up", rope_tensor_t),
        ("grad_row_scale", rope_tensor_t),
        ("quant", POINTER(swiglu_quant_args_t)),
        ("input", POINTER(swiglu_input_args_t)),
        ("column", POINTER(swiglu_column_args_t)),
    ]


# ---- Functions ------------------------------------------------------------------------------------------------------

# name: (result, arguments)
FUNCTIONS: Dict[str, Tuple[Any, List[Any]]] = {
    "rope_version": (c_uint32, []),
    "rope_build_info": (c_char_p, []),
    "rope_status_name": (c_char_p, [rope_status_t]),
    "rope_last_error": (c_char_p, []),
    "rope_device_count": (rope_status_t, [rope_device_t, POINTER(c_int32)]),
    "rope_tensor_narrow": (
        rope_status_t, [POINTER(rope_tensor_t), c_int32, c_int64, c_int64, POINTER(rope_tensor_t)]),
    "rope_tensor_select": (rope_status_t, [POINTER(rope_tensor_t), c_int32, c_int64, POINTER(rope_tensor_t)]),
    "rope_desc_create": (rope_status_t, [POINTER(rope_config_t), POINTER(rope_desc_p)]),
    "rope_desc_destroy": (None, [rope_desc_p]),
    "rope_forward": (rope_status_t, [rope_desc_p, POINTER(rope_args_t), rope_stream_t]),
    "rope_backward": (rope_status_t, [rope_desc_p, POINTER(rope_args_t), rope_stream_t]),
    "rope_fill_tables": (
        rope_status_t, [rope_desc_p, POINTER(rope_tensor_t), POINTER(rope_tensor_t), rope_stream_t]),
    "rope_explain": (rope_status_t, [rope_desc_p, POINTER(rope_args_t), c_char_p, c_size_t]),
    "rope_scaled_frequencies": (
        rope_status_t, [c_int32, c_double, POINTER(rope_scaling_t), POINTER(c_double), POINTER(c_double)]),
    "rope_section_axes": (
        rope_status_t, [c_int32, c_double, POINTER(rope_sections_t), POINTER(c_int32), POINTER(c_double)]),
    "swiglu_desc_create": (rope_status_t, [POINTER(swiglu_config_t), POINTER(swiglu_desc_p)]),
    "swiglu_desc_destroy": (None, [swiglu_desc_p]),
    "swiglu_forward": (rope_status_t, [swiglu_desc_p, POINTER(swiglu_args_t), rope_stream_t]),
    "swiglu_backward": (rope_status_t, [swiglu_desc_p, POINTER(swiglu_args_t), rope_stream_t]),
    "swiglu_explain": (rope_status_t, [swiglu_desc_p, POINTER(swiglu_args_t), c_char_p, c_size_t]),
}


def bind(library: ctypes.CDLL) -> None:
    """Gives the library's functions their types. Raises AttributeError if a function is missing."""
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
