/* SPDX-License-Identifier: Apache-2.0 */
/* layout.c - prints every size, offset and value that a program built with <rope/rope.h> contains in its binary
 *
 * The output is compared with layout.golden. A changed or removed line is an ABI break; additions get new lines.
 */
#include <rope/rope.h>
#include <stddef.h>
#include <stdio.h>

#define VALUE(name) printf("value %s %d\n", #name, (int)(name))
#define INTEGER(type) printf("type %s %sint%d\n", #type, (type)-1 < 0 ? "" : "u", (int)sizeof(type) * 8)
#define STRUCT(type) begin_struct(#type, sizeof(type))
#define FIELD(type, field) print_field(#type, #field, offsetof(type, field), sizeof(((type *)0)->field))
#define POINTER(type, field) print_field(#type, #field, offsetof(type, field), sizeof(void *))
#define END(type) gap |= end != sizeof(type)

static size_t end; /* of the last field */
static int gap;    /* set where a struct has bytes that no line of this file prints */

static void begin_struct(const char *type, size_t size) {
  printf("struct %s size %d\n", type, (int)size);
  end = 0;
}

static void print_field(const char *type, const char *name, size_t offset, size_t size) {
  printf("field %s.%s offset %d size %d\n", type, name, (int)offset, (int)size);
  gap |= offset != end;
  end = offset + size;
}

int main(void) {
  INTEGER(rope_status_t);
  INTEGER(rope_device_t);
  INTEGER(rope_dtype_t);
  INTEGER(rope_layout_t);
  INTEGER(rope_style_t);
  INTEGER(rope_scaling_type_t);
  INTEGER(rope_sections_type_t);
  INTEGER(rope_norm_type_t);
  INTEGER(rope_norm_order_t);
  INTEGER(rope_norm_extent_t);

  VALUE(ROPE_STATUS_SUCCESS);
  VALUE(ROPE_STATUS_INVALID_ARGUMENT);
  VALUE(ROPE_STATUS_NOT_SUPPORTED);
  VALUE(ROPE_STATUS_OUT_OF_MEMORY);
  VALUE(ROPE_STATUS_NO_DEVICE);
  VALUE(ROPE_STATUS_CUDA_ERROR);
  VALUE(ROPE_STATUS_INTERNAL_ERROR);
  VALUE(ROPE_DEVICE_CPU);
  VALUE(ROPE_DEVICE_CUDA);
  VALUE(ROPE_DTYPE_F32);
  VALUE(ROPE_DTYPE_F16);
  VALUE(ROPE_DTYPE_BF16);
  VALUE(ROPE_DTYPE_F64);
  VALUE(ROPE_DTYPE_I32);
  VALUE(ROPE_DTYPE_I64);
  VALUE(ROPE_DTYPE_F8_E4M3);
  VALUE(ROPE_DTYPE_F8_E5M2);
  VALUE(ROPE_DTYPE_F8_E8M0);
  VALUE(ROPE_DTYPE_F4_E2M1X2);
  VALUE(ROPE_LAYOUT_BSHD);
  VALUE(ROPE_LAYOUT_SBHD);
  VALUE(ROPE_LAYOUT_BHSD);
  VALUE(ROPE_LAYOUT_THD);
  VALUE(ROPE_STYLE_HALF);
  VALUE(ROPE_STYLE_INTERLEAVED);
  VALUE(ROPE_TENSOR_STRIDED);
  VALUE(ROPE_MAX_POSITION_AXES);
  VALUE(ROPE_FLAG_PROGRAMMATIC_LAUNCH);
  VALUE(ROPE_FLAG_UNROTATED);
  VALUE(ROPE_FLAG_V_UNROTATED);
  VALUE(ROPE_FLAG_ACCUMULATE);
  VALUE(ROPE_TABLE_BY_POSITION);
  VALUE(ROPE_TABLE_BY_TOKEN);
  VALUE(ROPE_SCALING_NONE);
  VALUE(ROPE_SCALING_LINEAR);
  VALUE(ROPE_SCALING_DYNAMIC_NTK);
  VALUE(ROPE_SCALING_DYNAMIC_NTK_FIXED);
  VALUE(ROPE_SCALING_NTK_ALPHA);
  VALUE(ROPE_SCALING_NTK_FIXED);
  VALUE(ROPE_SCALING_NTK_MIXED);
  VALUE(ROPE_SCALING_YARN);
  VALUE(ROPE_SCALING_YARN_LOG);
  VALUE(ROPE_SCALING_LLAMA3);
  VALUE(ROPE_SCALING_LONGROPE);
  VALUE(ROPE_SCALING_PROPORTIONAL);
  VALUE(ROPE_SCALING_FACTORS);
  VALUE(ROPE_SCALING_FLAG_NO_TRUNCATE);
  VALUE(ROPE_SECTIONS_CHUNKED);
  VALUE(ROPE_SECTIONS_INTERLEAVED);
  VALUE(ROPE_SECTIONS_IMROPE);
  VALUE(ROPE_SECTIONS_ERNIE);
  VALUE(ROPE_SECTIONS_RESTARTED);
  VALUE(ROPE_SECTIONS_VISION);
  VALUE(ROPE_NORM_RMS);
  VALUE(ROPE_NORM_LAYER);
  VALUE(ROPE_NORM_ORDER_BEFORE);
  VALUE(ROPE_NORM_ORDER_AFTER);
  VALUE(ROPE_NORM_EXTENT_HEAD);
  VALUE(ROPE_NORM_EXTENT_TOKEN);
  VALUE(ROPE_NORM_TENSOR_Q);
  VALUE(ROPE_NORM_TENSOR_K);
  VALUE(ROPE_NORM_TENSOR_V);
  VALUE(ROPE_NORM_ROUND_BEFORE_WEIGHT);
  VALUE(ROPE_NORM_ROUND_AFTER_WEIGHT);
  VALUE(ROPE_QUANT_ROUND_FIRST);
  VALUE(ROPE_ROTATION_ROUND_EACH);
  VALUE(ROPE_CACHE_FLAG_SKIP_SLOT_0);
  VALUE(ROPE_QUANT_FLAG_SCALE_MULTIPLIES);
  VALUE(ROPE_QUANT_FLAG_POWER_OF_TWO);
  VALUE(SWIGLU_LIMIT_GATE);
  VALUE(SWIGLU_LIMIT_ACTIVATION);
  VALUE(SWIGLU_ACTIVATION_SWIGLU);
  VALUE(SWIGLU_ACTIVATION_GEGLU_ERF);
  VALUE(SWIGLU_ACTIVATION_GEGLU_TANH);
  VALUE(SWIGLU_ACTIVATION_REGLU);
  VALUE(SWIGLU_PRODUCT_ROUND_ACTIVATION);
  VALUE(SWIGLU_SCALE_LAYOUT_STRIDED);
  VALUE(SWIGLU_SCALE_LAYOUT_128X4);

  STRUCT(rope_tensor_t);
  FIELD(rope_tensor_t, data);
  FIELD(rope_tensor_t, dtype);
  FIELD(rope_tensor_t, ndim);
  FIELD(rope_tensor_t, flags);
  FIELD(rope_tensor_t, shape);
  FIELD(rope_tensor_t, stride);
  END(rope_tensor_t);

  STRUCT(rope_config_t);
  FIELD(rope_config_t, struct_size);
  FIELD(rope_config_t, flags);
  FIELD(rope_config_t, device);
  FIELD(rope_config_t, device_index);
  FIELD(rope_config_t, dtype);
  FIELD(rope_config_t, layout);
  FIELD(rope_config_t, style);
  FIELD(rope_config_t, head_dim);
  FIELD(rope_config_t, rotary_dim);
  FIELD(rope_config_t, rotary_offset);
  FIELD(rope_config_t, theta);
  FIELD(rope_config_t, attention_scale);
  FIELD(rope_config_t, inv_freq);
  FIELD(rope_config_t, pair_axis);
  FIELD(rope_config_t, num_axes);
  FIELD(rope_config_t, pair_block);
  FIELD(rope_config_t, num_threads);
  FIELD(rope_config_t, out_style);
  FIELD(rope_config_t, norm);
  FIELD(rope_config_t, norm_tensors);
  FIELD(rope_config_t, norm_order);
  FIELD(rope_config_t, norm_extent);
  FIELD(rope_config_t, norm_rounding);
  FIELD(rope_config_t, quant_rounding);
  FIELD(rope_config_t, rotation_rounding);
  FIELD(rope_config_t, reserved1);
  FIELD(rope_config_t, norm_eps);
  FIELD(rope_config_t, norm_weight_offset);
  END(rope_config_t);

  STRUCT(rope_args_t);
  FIELD(rope_args_t, struct_size);
  FIELD(rope_args_t, flags);
  FIELD(rope_args_t, q);
  FIELD(rope_args_t, q_out);
  FIELD(rope_args_t, k);
  FIELD(rope_args_t, k_out);
  FIELD(rope_args_t, v);
  FIELD(rope_args_t, v_out);
  FIELD(rope_args_t, positions);
  FIELD(rope_args_t, start_positions);
  FIELD(rope_args_t, cu_seqlens);
  FIELD(rope_args_t, cos);
  FIELD(rope_args_t, sin);
  FIELD(rope_args_t, angles);
  FIELD(rope_args_t, fault);
  FIELD(rope_args_t, position_offset);
  FIELD(rope_args_t, table_rows);
  FIELD(rope_args_t, reserved0);
  POINTER(rope_args_t, norm);
  POINTER(rope_args_t, cache);
  POINTER(rope_args_t, quant);
  POINTER(rope_args_t, input);
  END(rope_args_t);

  STRUCT(rope_norm_args_t);
  FIELD(rope_norm_args_t, struct_size);
  FIELD(rope_norm_args_t, flags);
  FIELD(rope_norm_args_t, q_weight);
  FIELD(rope_norm_args_t, k_weight);
  FIELD(rope_norm_args_t, q_bias);
  FIELD(rope_norm_args_t, k_bias);
  FIELD(rope_norm_args_t, q_in);
  FIELD(rope_norm_args_t, k_in);
  FIELD(rope_norm_args_t, v_in);
  FIELD(rope_norm_args_t, grad_q_weight);
  FIELD(rope_norm_args_t, grad_k_weight);
  FIELD(rope_norm_args_t, grad_q_bias);
  FIELD(rope_norm_args_t, grad_k_bias);
  END(rope_norm_args_t);

  STRUCT(rope_cache_args_t);
  FIELD(rope_cache_args_t, struct_size);
  FIELD(rope_cache_args_t, flags);
  FIELD(rope_cache_args_t, k_cache);
  FIELD(rope_cache_args_t, v_cache);
  FIELD(rope_cache_args_t, k_pass_cache);
  FIELD(rope_cache_args_t, k_scales);
  FIELD(rope_cache_args_t, v_scales);
  FIELD(rope_cache_args_t, k_pass_scales);
  FIELD(rope_cache_args_t, slots);
  FIELD(rope_cache_args_t, page_table);
  FIELD(rope_cache_args_t, page_indptr);
  FIELD(rope_cache_args_t, sequence);
  FIELD(rope_cache_args_t, positions);
  END(rope_cache_args_t);

  STRUCT(rope_quant_args_t);
  FIELD(rope_quant_args_t, struct_size);
  FIELD(rope_quant_args_t, flags);
  FIELD(rope_quant_args_t, scale_floor);
  FIELD(rope_quant_args_t, q_scale);
  FIELD(rope_quant_args_t, k_scale);
  FIELD(rope_quant_args_t, v_scale);
  FIELD(rope_quant_args_t, k_pass_scale);
  FIELD(rope_quant_args_t, q_scales_out);
  FIELD(rope_quant_args_t, k_scales_out);
  FIELD(rope_quant_args_t, v_scales_out);
  FIELD(rope_quant_args_t, amax_out);
  END(rope_quant_args_t);

  STRUCT(rope_input_args_t);
  FIELD(rope_input_args_t, struct_size);
  FIELD(rope_input_args_t, flags);
  FIELD(rope_input_args_t, q_pass);
  FIELD(rope_input_args_t, k_pass);
  FIELD(rope_input_args_t, q_row_factor);
  FIELD(rope_input_args_t, k_row_factor);
  FIELD(rope_input_args_t, v_row_factor);
  END(rope_input_args_t);

  STRUCT(rope_scaling_t);
  FIELD(rope_scaling_t, struct_size);
  FIELD(rope_scaling_t, flags);
  FIELD(rope_scaling_t, type);
  FIELD(rope_scaling_t, num_factors);
  FIELD(rope_scaling_t, factor);
  FIELD(rope_scaling_t, original_max_position);
  FIELD(rope_scaling_t, sequence_length);
  FIELD(rope_scaling_t, alpha);
  FIELD(rope_scaling_t, mixed_b);
  FIELD(rope_scaling_t, beta_fast);
  FIELD(rope_scaling_t, beta_slow);
  FIELD(rope_scaling_t, attention_factor);
  FIELD(rope_scaling_t, mscale);
  FIELD(rope_scaling_t, mscale_all_dim);
  FIELD(rope_scaling_t, low_freq_factor);
  FIELD(rope_scaling_t, high_freq_factor);
  FIELD(rope_scaling_t, partial_rotary_factor);
  FIELD(rope_scaling_t, short_factor);
  FIELD(rope_scaling_t, long_factor);
  FIELD(rope_scaling_t, pair_factors);
  END(rope_scaling_t);

  STRUCT(rope_sections_t);
  FIELD(rope_sections_t, struct_size);
  FIELD(rope_sections_t, flags);
  FIELD(rope_sections_t, type);
  FIELD(rope_sections_t, num_sections);
  FIELD(rope_sections_t, section);
  END(rope_sections_t);

  STRUCT(swiglu_config_t);
  FIELD(swiglu_config_t, struct_size);
  FIELD(swiglu_config_t, flags);
  FIELD(swiglu_config_t, device);
  FIELD(swiglu_config_t, device_index);
  FIELD(swiglu_config_t, dtype);
  FIELD(swiglu_config_t, num_threads);
  FIELD(swiglu_config_t, alpha);
  FIELD(swiglu_config_t, limit);
  FIELD(swiglu_config_t, up_offset);
  FIELD(swiglu_config_t, out_scale);
  FIELD(swiglu_config_t, gate_softcap);
  FIELD(swiglu_config_t, up_softcap);
  FIELD(swiglu_config_t, limit_rule);
  FIELD(swiglu_config_t, activation);
  FIELD(swiglu_config_t, product_rounding);
  FIELD(swiglu_config_t, quant_rounding);
  END(swiglu_config_t);

  STRUCT(swiglu_args_t);
  FIELD(swiglu_args_t, struct_size);
  FIELD(swiglu_args_t, flags);
  FIELD(swiglu_args_t, gate);
  FIELD(swiglu_args_t, up);
  FIELD(swiglu_args_t, out);
  FIELD(swiglu_args_t, row_scale);
  FIELD(swiglu_args_t, num_rows);
  FIELD(swiglu_args_t, grad_out);
  FIELD(swiglu_args_t, grad_gate);
  FIELD(swiglu_args_t, grad_up);
  FIELD(swiglu_args_t, grad_row_scale);
  POINTER(swiglu_args_t, quant);
  POINTER(swiglu_args_t, input);
  POINTER(swiglu_args_t, column);
  END(swiglu_args_t);

  STRUCT(swiglu_quant_args_t);
  FIELD(swiglu_quant_args_t, struct_size);
  FIELD(swiglu_quant_args_t, flags);
  FIELD(swiglu_quant_args_t, scale_floor);
  FIELD(swiglu_quant_args_t, scale);
  FIELD(swiglu_quant_args_t, scales_out);
  FIELD(swiglu_quant_args_t, amax_out);
  FIELD(swiglu_quant_args_t, scale_layout);
  FIELD(swiglu_quant_args_t, reserved0);
  FIELD(swiglu_quant_args_t, grad_gate_scales_out);
  FIELD(swiglu_quant_args_t, grad_up_scales_out);
  END(swiglu_quant_args_t);

  STRUCT(swiglu_column_args_t);
  FIELD(swiglu_column_args_t, struct_size);
  FIELD(swiglu_column_args_t, flags);
  FIELD(swiglu_column_args_t, scale_floor);
  FIELD(swiglu_column_args_t, scale_layout);
  FIELD(swiglu_column_args_t, reserved0);
  FIELD(swiglu_column_args_t, amax_out);
  FIELD(swiglu_column_args_t, out);
  FIELD(swiglu_column_args_t, grad_gate);
  FIELD(swiglu_column_args_t, grad_up);
  FIELD(swiglu_column_args_t, scales_out);
  FIELD(swiglu_column_args_t, grad_gate_scales_out);
  FIELD(swiglu_column_args_t, grad_up_scales_out);
  END(swiglu_column_args_t);

  STRUCT(swiglu_input_args_t);
  FIELD(swiglu_input_args_t, struct_size);
  FIELD(swiglu_input_args_t, flags);
  FIELD(swiglu_input_args_t, gate_bias);
  FIELD(swiglu_input_args_t, up_bias);
  FIELD(swiglu_input_args_t, expert_rows);
  FIELD(swiglu_input_args_t, expert_offsets);
  FIELD(swiglu_input_args_t, row_index);
  END(swiglu_input_args_t);

  if (gap) printf("layout.c: a field of a struct is not listed\n");
  return gap;
}
