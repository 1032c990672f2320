// Package abi says how cgo sees <rope/rope.h>: cgo leaves out fields that it cannot express, and tests may not use it.
package abi

/*
#cgo pkg-config: rope
#include <rope/rope.h>
*/
import "C"

import (
	"fmt"
	"strings"
	"unsafe"
)

// Layout has the lines of tests/abi/layout.golden.
func Layout() string {
	var text strings.Builder
	typed := func(name string, size uintptr, minusOne int64) {
		sign := ""
		if minusOne > 0 {
			sign = "u"
		}
		fmt.Fprintf(&text, "type %s %sint%d\n", name, sign, size*8)
	}
	value := func(name string, value int) { fmt.Fprintf(&text, "value %s %d\n", name, value) }
	layout := func(name string, size uintptr) { fmt.Fprintf(&text, "struct %s size %d\n", name, size) }
	field := func(name string, offset, size uintptr) {
		fmt.Fprintf(&text, "field %s offset %d size %d\n", name, offset, size)
	}

	typed("rope_status_t", unsafe.Sizeof(C.rope_status_t(0)), int64(^C.rope_status_t(0)))
	typed("rope_device_t", unsafe.Sizeof(C.rope_device_t(0)), int64(^C.rope_device_t(0)))
	typed("rope_dtype_t", unsafe.Sizeof(C.rope_dtype_t(0)), int64(^C.rope_dtype_t(0)))
	typed("rope_layout_t", unsafe.Sizeof(C.rope_layout_t(0)), int64(^C.rope_layout_t(0)))
	typed("rope_style_t", unsafe.Sizeof(C.rope_style_t(0)), int64(^C.rope_style_t(0)))
	typed("rope_scaling_type_t", unsafe.Sizeof(C.rope_scaling_type_t(0)), int64(^C.rope_scaling_type_t(0)))
	typed("rope_sections_type_t", unsafe.Sizeof(C.rope_sections_type_t(0)), int64(^C.rope_sections_type_t(0)))

	value("ROPE_STATUS_SUCCESS", C.ROPE_STATUS_SUCCESS)
	value("ROPE_STATUS_INVALID_ARGUMENT", C.ROPE_STATUS_INVALID_ARGUMENT)
	value("ROPE_STATUS_NOT_SUPPORTED", C.ROPE_STATUS_NOT_SUPPORTED)
	value("ROPE_STATUS_OUT_OF_MEMORY", C.ROPE_STATUS_OUT_OF_MEMORY)
	value("ROPE_STATUS_NO_DEVICE", C.ROPE_STATUS_NO_DEVICE)
	value("ROPE_STATUS_CUDA_ERROR", C.ROPE_STATUS_CUDA_ERROR)
	value("ROPE_STATUS_INTERNAL_ERROR", C.ROPE_STATUS_INTERNAL_ERROR)
	value("ROPE_DEVICE_CPU", C.ROPE_DEVICE_CPU)
	value("ROPE_DEVICE_CUDA", C.ROPE_DEVICE_CUDA)
	value("ROPE_DTYPE_F32", C.ROPE_DTYPE_F32)
	value("ROPE_DTYPE_F16", C.ROPE_DTYPE_F16)
	value("ROPE_DTYPE_BF16", C.ROPE_DTYPE_BF16)
	value("ROPE_DTYPE_F64", C.ROPE_DTYPE_F64)
	value("ROPE_DTYPE_I32", C.ROPE_DTYPE_I32)
	value("ROPE_DTYPE_I64", C.ROPE_DTYPE_I64)
	value("ROPE_LAYOUT_BSHD", C.ROPE_LAYOUT_BSHD)
	value("ROPE_LAYOUT_SBHD", C.ROPE_LAYOUT_SBHD)
	value("ROPE_LAYOUT_BHSD", C.ROPE_LAYOUT_BHSD)
	value("ROPE_LAYOUT_THD", C.ROPE_LAYOUT_THD)
	value("ROPE_STYLE_HALF", C.ROPE_STYLE_HALF)
	value("ROPE_STYLE_INTERLEAVED", C.ROPE_STYLE_INTERLEAVED)
	value("ROPE_TENSOR_STRIDED", C.ROPE_TENSOR_STRIDED)
	value("ROPE_MAX_POSITION_AXES", C.ROPE_MAX_POSITION_AXES)
	value("ROPE_FLAG_PROGRAMMATIC_LAUNCH", C.ROPE_FLAG_PROGRAMMATIC_LAUNCH)
	value("ROPE_TABLE_BY_POSITION", C.ROPE_TABLE_BY_POSITION)
	value("ROPE_TABLE_BY_TOKEN", C.ROPE_TABLE_BY_TOKEN)
	value("ROPE_SCALING_NONE", C.ROPE_SCALING_NONE)
	value("ROPE_SCALING_LINEAR", C.ROPE_SCALING_LINEAR)
	value("ROPE_SCALING_DYNAMIC_NTK", C.ROPE_SCALING_DYNAMIC_NTK)
	value("ROPE_SCALING_DYNAMIC_NTK_FIXED", C.ROPE_SCALING_DYNAMIC_NTK_FIXED)
	value("ROPE_SCALING_NTK_ALPHA", C.ROPE_SCALING_NTK_ALPHA)
	value("ROPE_SCALING_NTK_FIXED", C.ROPE_SCALING_NTK_FIXED)
	value("ROPE_SCALING_NTK_MIXED", C.ROPE_SCALING_NTK_MIXED)
	value("ROPE_SCALING_YARN", C.ROPE_SCALING_YARN)
	value("ROPE_SCALING_YARN_LOG", C.ROPE_SCALING_YARN_LOG)
	value("ROPE_SCALING_LLAMA3", C.ROPE_SCALING_LLAMA3)
	value("ROPE_SCALING_LONGROPE", C.ROPE_SCALING_LONGROPE)
	value("ROPE_SCALING_PROPORTIONAL", C.ROPE_SCALING_PROPORTIONAL)
	value("ROPE_SCALING_FACTORS", C.ROPE_SCALING_FACTORS)
	value("ROPE_SCALING_FLAG_NO_TRUNCATE", C.ROPE_SCALING_FLAG_NO_TRUNCATE)
	value("ROPE_SECTIONS_CHUNKED", C.ROPE_SECTIONS_CHUNKED)
	value("ROPE_SECTIONS_INTERLEAVED", C.ROPE_SECTIONS_INTERLEAVED)
	value("ROPE_SECTIONS_IMROPE", C.ROPE_SECTIONS_IMROPE)
	value("ROPE_SECTIONS_ERNIE", C.ROPE_SECTIONS_ERNIE)
	value("ROPE_SECTIONS_RESTARTED", C.ROPE_SECTIONS_RESTARTED)
	value("ROPE_SECTIONS_VISION", C.ROPE_SECTIONS_VISION)

	var tensor C.rope_tensor_t
	layout("rope_tensor_t", unsafe.Sizeof(tensor))
	field("rope_tensor_t.data", unsafe.Offsetof(tensor.data), unsafe.Sizeof(tensor.data))
	field("rope_tensor_t.dtype", unsafe.Offsetof(tensor.dtype), unsafe.Sizeof(tensor.dtype))
	field("rope_tensor_t.ndim", unsafe.Offsetof(tensor.ndim), unsafe.Sizeof(tensor.ndim))
	field("rope_tensor_t.flags", unsafe.Offsetof(tensor.flags), unsafe.Sizeof(tensor.flags))
	field("rope_tensor_t.shape", unsafe.Offsetof(tensor.shape), unsafe.Sizeof(tensor.shape))
	field("rope_tensor_t.stride", unsafe.Offsetof(tensor.stride), unsafe.Sizeof(tensor.stride))

	var config C.rope_config_t
	layout("rope_config_t", unsafe.Sizeof(config))
	field("rope_config_t.struct_size", unsafe.Offsetof(config.struct_size), unsafe.Sizeof(config.struct_size))
	field("rope_config_t.flags", unsafe.Offsetof(config.flags), unsafe.Sizeof(config.flags))
	field("rope_config_t.device", unsafe.Offsetof(config.device), unsafe.Sizeof(config.device))
	field("rope_config_t.device_index", unsafe.Offsetof(config.device_index), unsafe.Sizeof(config.device_index))
	field("rope_config_t.dtype", unsafe.Offsetof(config.dtype), unsafe.Sizeof(config.dtype))
	field("rope_config_t.layout", unsafe.Offsetof(config.layout), unsafe.Sizeof(config.layout))
	field("rope_config_t.style", unsafe.Offsetof(config.style), unsafe.Sizeof(config.style))
	field("rope_config_t.head_dim", unsafe.Offsetof(config.head_dim), unsafe.Sizeof(config.head_dim))
	field("rope_config_t.rotary_dim", unsafe.Offsetof(config.rotary_dim), unsafe.Sizeof(config.rotary_dim))
	field("rope_config_t.rotary_offset", unsafe.Offsetof(config.rotary_offset), unsafe.Sizeof(config.rotary_offset))
	field("rope_config_t.theta", unsafe.Offsetof(config.theta), unsafe.Sizeof(config.theta))
	field("rope_config_t.attention_scale", unsafe.Offsetof(config.attention_scale), unsafe.Sizeof(config.attention_scale))
	field("rope_config_t.inv_freq", unsafe.Offsetof(config.inv_freq), unsafe.Sizeof(config.inv_freq))
	field("rope_config_t.pair_axis", unsafe.Offsetof(config.pair_axis), unsafe.Sizeof(config.pair_axis))
	field("rope_config_t.num_axes", unsafe.Offsetof(config.num_axes), unsafe.Sizeof(config.num_axes))
	field("rope_config_t.pair_block", unsafe.Offsetof(config.pair_block), unsafe.Sizeof(config.pair_block))
	field("rope_config_t.num_threads", unsafe.Offsetof(config.num_threads), unsafe.Sizeof(config.num_threads))
	field("rope_config_t.out_style", unsafe.Offsetof(config.out_style), unsafe.Sizeof(config.out_style))

	var args C.rope_args_t
	layout("rope_args_t", unsafe.Sizeof(args))
	field("rope_args_t.struct_size", unsafe.Offsetof(args.struct_size), unsafe.Sizeof(args.struct_size))
	field("rope_args_t.flags", unsafe.Offsetof(args.flags), unsafe.Sizeof(args.flags))
	field("rope_args_t.q", unsafe.Offsetof(args.q), unsafe.Sizeof(args.q))
	field("rope_args_t.q_out", unsafe.Offsetof(args.q_out), unsafe.Sizeof(args.q_out))
	field("rope_args_t.k", unsafe.Offsetof(args.k), unsafe.Sizeof(args.k))
	field("rope_args_t.k_out", unsafe.Offsetof(args.k_out), unsafe.Sizeof(args.k_out))
	field("rope_args_t.v", unsafe.Offsetof(args.v), unsafe.Sizeof(args.v))
	field("rope_args_t.v_out", unsafe.Offsetof(args.v_out), unsafe.Sizeof(args.v_out))
	field("rope_args_t.positions", unsafe.Offsetof(args.positions), unsafe.Sizeof(args.positions))
	field("rope_args_t.start_positions", unsafe.Offsetof(args.start_positions), unsafe.Sizeof(args.start_positions))
	field("rope_args_t.cu_seqlens", unsafe.Offsetof(args.cu_seqlens), unsafe.Sizeof(args.cu_seqlens))
	field("rope_args_t.cos", unsafe.Offsetof(args.cos), unsafe.Sizeof(args.cos))
	field("rope_args_t.sin", unsafe.Offsetof(args.sin), unsafe.Sizeof(args.sin))
	field("rope_args_t.angles", unsafe.Offsetof(args.angles), unsafe.Sizeof(args.angles))
	field("rope_args_t.fault", unsafe.Offsetof(args.fault), unsafe.Sizeof(args.fault))
	field("rope_args_t.position_offset", unsafe.Offsetof(args.position_offset), unsafe.Sizeof(args.position_offset))
	field("rope_args_t.table_rows", unsafe.Offsetof(args.table_rows), unsafe.Sizeof(args.table_rows))
	field("rope_args_t.reserved0", unsafe.Offsetof(args.reserved0), unsafe.Sizeof(args.reserved0))

	var s C.rope_scaling_t
	layout("rope_scaling_t", unsafe.Sizeof(s))
	field("rope_scaling_t.struct_size", unsafe.Offsetof(s.struct_size), unsafe.Sizeof(s.struct_size))
	field("rope_scaling_t.flags", unsafe.Offsetof(s.flags), unsafe.Sizeof(s.flags))
	field("rope_scaling_t.type", unsafe.Offsetof(s._type), unsafe.Sizeof(s._type))
	field("rope_scaling_t.num_factors", unsafe.Offsetof(s.num_factors), unsafe.Sizeof(s.num_factors))
	field("rope_scaling_t.factor", unsafe.Offsetof(s.factor), unsafe.Sizeof(s.factor))
	field("rope_scaling_t.original_max_position", unsafe.Offsetof(s.original_max_position), unsafe.Sizeof(s.original_max_position))
	field("rope_scaling_t.sequence_length", unsafe.Offsetof(s.sequence_length), unsafe.Sizeof(s.sequence_length))
	field("rope_scaling_t.alpha", unsafe.Offsetof(s.alpha), unsafe.Sizeof(s.alpha))
	field("rope_scaling_t.mixed_b", unsafe.Offsetof(s.mixed_b), unsafe.Sizeof(s.mixed_b))
	field("rope_scaling_t.beta_fast", unsafe.Offsetof(s.beta_fast), unsafe.Sizeof(s.beta_fast))
	field("rope_scaling_t.beta_slow", unsafe.Offsetof(s.beta_slow), unsafe.Sizeof(s.beta_slow))
	field("rope_scaling_t.attention_factor", unsafe.Offsetof(s.attention_factor), unsafe.Sizeof(s.attention_factor))
	field("rope_scaling_t.mscale", unsafe.Offsetof(s.mscale), unsafe.Sizeof(s.mscale))
	field("rope_scaling_t.mscale_all_dim", unsafe.Offsetof(s.mscale_all_dim), unsafe.Sizeof(s.mscale_all_dim))
	field("rope_scaling_t.low_freq_factor", unsafe.Offsetof(s.low_freq_factor), unsafe.Sizeof(s.low_freq_factor))
	field("rope_scaling_t.high_freq_factor", unsafe.Offsetof(s.high_freq_factor), unsafe.Sizeof(s.high_freq_factor))
	field("rope_scaling_t.partial_rotary_factor", unsafe.Offsetof(s.partial_rotary_factor), unsafe.Sizeof(s.partial_rotary_factor))
	field("rope_scaling_t.short_factor", unsafe.Offsetof(s.short_factor), unsafe.Sizeof(s.short_factor))
	field("rope_scaling_t.long_factor", unsafe.Offsetof(s.long_factor), unsafe.Sizeof(s.long_factor))
	field("rope_scaling_t.pair_factors", unsafe.Offsetof(s.pair_factors), unsafe.Sizeof(s.pair_factors))

	var sections C.rope_sections_t
	layout("rope_sections_t", unsafe.Sizeof(sections))
	field("rope_sections_t.struct_size", unsafe.Offsetof(sections.struct_size), unsafe.Sizeof(sections.struct_size))
	field("rope_sections_t.flags", unsafe.Offsetof(sections.flags), unsafe.Sizeof(sections.flags))
	field("rope_sections_t.type", unsafe.Offsetof(sections._type), unsafe.Sizeof(sections._type))
	field("rope_sections_t.num_sections", unsafe.Offsetof(sections.num_sections), unsafe.Sizeof(sections.num_sections))
	field("rope_sections_t.section", unsafe.Offsetof(sections.section), unsafe.Sizeof(sections.section))

	var gating C.swiglu_config_t
	layout("swiglu_config_t", unsafe.Sizeof(gating))
	field("swiglu_config_t.struct_size", unsafe.Offsetof(gating.struct_size), unsafe.Sizeof(gating.struct_size))
	field("swiglu_config_t.flags", unsafe.Offsetof(gating.flags), unsafe.Sizeof(gating.flags))
	field("swiglu_config_t.device", unsafe.Offsetof(gating.device), unsafe.Sizeof(gating.device))
	field("swiglu_config_t.device_index", unsafe.Offsetof(gating.device_index), unsafe.Sizeof(gating.device_index))
	field("swiglu_config_t.dtype", unsafe.Offsetof(gating.dtype), unsafe.Sizeof(gating.dtype))
	field("swiglu_config_t.num_threads", unsafe.Offsetof(gating.num_threads), unsafe.Sizeof(gating.num_threads))
	field("swiglu_config_t.alpha", unsafe.Offsetof(gating.alpha), unsafe.Sizeof(gating.alpha))
	field("swiglu_config_t.limit", unsafe.Offsetof(gating.limit), unsafe.Sizeof(gating.limit))
	field("swiglu_config_t.up_offset", unsafe.Offsetof(gating.up_offset), unsafe.Sizeof(gating.up_offset))
	field("swiglu_config_t.out_scale", unsafe.Offsetof(gating.out_scale), unsafe.Sizeof(gating.out_scale))

	var gated C.swiglu_args_t
	layout("swiglu_args_t", unsafe.Sizeof(gated))
	field("swiglu_args_t.struct_size", unsafe.Offsetof(gated.struct_size), unsafe.Sizeof(gated.struct_size))
	field("swiglu_args_t.flags", unsafe.Offsetof(gated.flags), unsafe.Sizeof(gated.flags))
	field("swiglu_args_t.gate", unsafe.Offsetof(gated.gate), unsafe.Sizeof(gated.gate))
	field("swiglu_args_t.up", unsafe.Offsetof(gated.up), unsafe.Sizeof(gated.up))
	field("swiglu_args_t.out", unsafe.Offsetof(gated.out), unsafe.Sizeof(gated.out))
	field("swiglu_args_t.row_scale", unsafe.Offsetof(gated.row_scale), unsafe.Sizeof(gated.row_scale))
	field("swiglu_args_t.num_rows", unsafe.Offsetof(gated.num_rows), unsafe.Sizeof(gated.num_rows))
	field("swiglu_args_t.grad_out", unsafe.Offsetof(gated.grad_out), unsafe.Sizeof(gated.grad_out))
	field("swiglu_args_t.grad_gate", unsafe.Offsetof(gated.grad_gate), unsafe.Sizeof(gated.grad_gate))
	field("swiglu_args_t.grad_up", unsafe.Offsetof(gated.grad_up), unsafe.Sizeof(gated.grad_up))
	field("swiglu_args_t.grad_row_scale", unsafe.Offsetof(gated.grad_row_scale), unsafe.Sizeof(gated.grad_row_scale))
	return text.String()
}
