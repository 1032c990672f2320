/* SPDX-License-Identifier: Apache-2.0 */
/* shim.h - calls of librope with flat arguments
 *
 * A Go struct that holds Go pointers may not cross into C; pointers by themselves may. Therefore structs cross without
 * their pointers, and these functions complete them on the C stack: args, and the groups of operands that args points
 * to. A tensor's memory is a pointer into a Go slice, or an address on a device, which Go keeps as a number. The text
 * of an error is fetched in the call that fails, because the goroutine may run on another thread afterwards.
 */
#ifndef ROPE_GO_SHIM_H
#define ROPE_GO_SHIM_H

#include <rope/rope.h>
#include <stdio.h>

enum {
  ROPE_GO_FORWARD,
  ROPE_GO_BACKWARD,
  ROPE_GO_EXPLAIN
};

static inline rope_status_t rope_go_noted(rope_status_t status, char *error, size_t size) {
  if (status != ROPE_STATUS_SUCCESS) snprintf(error, size, "%s", rope_last_error());
  return status;
}

static inline void rope_go_place(rope_tensor_t *tensor, void *host, uint64_t address) {
  tensor->data = host != NULL ? host : (void *)(uintptr_t)address;
}

static inline rope_status_t rope_go_device_count(rope_device_t device, int32_t *count, char *error, size_t size) {
  const rope_status_t status = rope_device_count(device, count);
  if (status != ROPE_STATUS_SUCCESS || *count == 0) snprintf(error, size, "%s", rope_last_error());
  return status;
}

static inline rope_status_t rope_go_desc_create(const rope_config_t *config, double *inv_freq, int32_t *pair_axis,
                                                rope_desc_t **desc, char *error, size_t size) {
  rope_config_t whole = *config;
  whole.inv_freq = inv_freq;
  whole.pair_axis = pair_axis;
  return rope_go_noted(rope_desc_create(&whole, desc), error, size);
}

/* A call's args and the groups that they may point to. */
typedef struct rope_go_operands {
  rope_args_t args;
  rope_norm_args_t norm;
  rope_cache_args_t cache;
  rope_quant_args_t quant;
  rope_input_args_t input;
} rope_go_operands_t;

/* Completes args and its groups; an absent group is NULL. `addresses` has an entry for each tensor, in the order
 * of the parameters. */
static inline void rope_go_complete(
    rope_go_operands_t *whole, const rope_args_t *args, const rope_norm_args_t *norm, const rope_cache_args_t *cache,
    const rope_quant_args_t *quant, const rope_input_args_t *input, const uint64_t *addresses, void *q, void *q_out,
    void *k, void *k_out, void *v, void *v_out, void *positions, void *start_positions, void *cu_seqlens, void *cos,
    void *sin, void *angles, void *fault, void *q_weight, void *k_weight, void *q_bias, void *k_bias, void *k_cache,
    void *v_cache, void *k_pass_cache, void *k_scales, void *v_scales, void *k_pass_scales, void *slots,
    void *page_table, void *page_indptr, void *sequence, void *cache_positions, void *q_scale, void *k_scale,
    void *v_scale, void *k_pass_scale, void *q_scales_out, void *k_scales_out, void *v_scales_out, void *amax_out,
    void *q_pass, void *k_pass, void *q_row_factor, void *k_row_factor, void *v_row_factor, void *q_in, void *k_in,
    void *v_in, void *grad_q_weight, void *grad_k_weight, void *grad_q_bias, void *grad_k_bias) {
  whole->args = *args;
  rope_go_place(&whole->args.q, q, addresses[0]);
  rope_go_place(&whole->args.q_out, q_out, addresses[1]);
  rope_go_place(&whole->args.k, k, addresses[2]);
  rope_go_place(&whole->args.k_out, k_out, addresses[3]);
  rope_go_place(&whole->args.v, v, addresses[4]);
  rope_go_place(&whole->args.v_out, v_out, addresses[5]);
  rope_go_place(&whole->args.positions, positions, addresses[6]);
  rope_go_place(&whole->args.start_positions, start_positions, addresses[7]);
  rope_go_place(&whole->args.cu_seqlens, cu_seqlens, addresses[8]);
  rope_go_place(&whole->args.cos, cos, addresses[9]);
  rope_go_place(&whole->args.sin, sin, addresses[10]);
  rope_go_place(&whole->args.angles, angles, addresses[11]);
  rope_go_place(&whole->args.fault, fault, addresses[12]);
  if (norm != NULL) {
    whole->norm = *norm;
    rope_go_place(&whole->norm.q_weight, q_weight, addresses[13]);
    rope_go_place(&whole->norm.k_weight, k_weight, addresses[14]);
    rope_go_place(&whole->norm.q_bias, q_bias, addresses[15]);
    rope_go_place(&whole->norm.k_bias, k_bias, addresses[16]);
    rope_go_place(&whole->norm.q_in, q_in, addresses[41]);
    rope_go_place(&whole->norm.k_in, k_in, addresses[42]);
    rope_go_place(&whole->norm.v_in, v_in, addresses[43]);
    rope_go_place(&whole->norm.grad_q_weight, grad_q_weight, addresses[44]);
    rope_go_place(&whole->norm.grad_k_weight, grad_k_weight, addresses[45]);
    rope_go_place(&whole->norm.grad_q_bias, grad_q_bias, addresses[46]);
    rope_go_place(&whole->norm.grad_k_bias, grad_k_bias, addresses[47]);
    whole->args.norm = &whole->norm;
  }
  if (cache != NULL) {
    whole->cache = *cache;
    rope_go_place(&whole->cache.k_cache, k_cache, addresses[17]);
    rope_go_place(&whole->cache.v_cache, v_cache, addresses[18]);
    rope_go_place(&whole->cache.k_pass_cache, k_pass_cache, addresses[19]);
    rope_go_place(&whole->cache.k_scales, k_scales, addresses[20]);
    rope_go_place(&whole->cache.v_scales, v_scales, addresses[21]);
    rope_go_place(&whole->cache.k_pass_scales, k_pass_scales, addresses[22]);
    rope_go_place(&whole->cache.slots, slots, addresses[23]);
    rope_go_place(&whole->cache.page_table, page_table, addresses[24]);
    rope_go_place(&whole->cache.page_indptr, page_indptr, addresses[25]);
    rope_go_place(&whole->cache.sequence, sequence, addresses[26]);
    rope_go_place(&whole->cache.positions, cache_positions, addresses[27]);
    whole->args.cache = &whole->cache;
  }
  if (quant != NULL) {
    whole->quant = *quant;
    rope_go_place(&whole->quant.q_scale, q_scale, addresses[28]);
    rope_go_place(&whole->quant.k_scale, k_scale, addresses[29]);
    rope_go_place(&whole->quant.v_scale, v_scale, addresses[30]);
    rope_go_place(&whole->quant.k_pass_scale, k_pass_scale, addresses[31]);
    rope_go_place(&whole->quant.q_scales_out, q_scales_out, addresses[32]);
    rope_go_place(&whole->quant.k_scales_out, k_scales_out, addresses[33]);
    rope_go_place(&whole->quant.v_scales_out, v_scales_out, addresses[34]);
    rope_go_place(&whole->quant.amax_out, amax_out, addresses[35]);
    whole->args.quant = &whole->quant;
  }
  if (input != NULL) {
    whole->input = *input;
    rope_go_place(&whole->input.q_pass, q_pass, addresses[36]);
    rope_go_place(&whole->input.k_pass, k_pass, addresses[37]);
    rope_go_place(&whole->input.q_row_factor, q_row_factor, addresses[38]);
    rope_go_place(&whole->input.k_row_factor, k_row_factor, addresses[39]);
    rope_go_place(&whole->input.v_row_factor, v_row_factor, addresses[40]);
    whole->args.input = &whole->input;
  }
}

/* `text` receives the text of an error, or that of rope_explain. */
static inline rope_status_t rope_go_rotate(
    int call, const rope_desc_t *desc, const rope_args_t *args, const rope_norm_args_t *norm,
    const rope_cache_args_t *cache, const rope_quant_args_t *quant, const rope_input_args_t *input,
    const uint64_t *addresses, void *q, void *q_out, void *k, void *k_out, void *v, void *v_out, void *positions,
    void *start_positions, void *cu_seqlens, void *cos, void *sin, void *angles, void *fault, void *q_weight,
    void *k_weight, void *q_bias, void *k_bias, void *k_cache, void *v_cache, void *k_pass_cache, void *k_scales,
    void *v_scales, void *k_pass_scales, void *slots, void *page_table, void *page_indptr, void *sequence,
    void *cache_positions, void *q_scale, void *k_scale, void *v_scale, void *k_pass_scale, void *q_scales_out,
    void *k_scales_out, void *v_scales_out, void *amax_out, void *q_pass, void *k_pass, void *q_row_factor,
    void *k_row_factor, void *v_row_factor, void *q_in, void *k_in, void *v_in, void *grad_q_weight,
    void *grad_k_weight, void *grad_q_bias, void *grad_k_bias, uint64_t stream, char *text, size_t size) {
  rope_go_operands_t whole;
  rope_go_complete(&whole, args, norm, cache, quant, input, addresses, q, q_out, k, k_out, v, v_out, positions,
                   start_positions, cu_seqlens, cos, sin, angles, fault, q_weight, k_weight, q_bias, k_bias, k_cache,
                   v_cache, k_pass_cache, k_scales, v_scales, k_pass_scales, slots, page_table, page_indptr, sequence,
                   cache_positions, q_scale, k_scale, v_scale, k_pass_scale, q_scales_out, k_scales_out, v_scales_out,
                   amax_out, q_pass, k_pass, q_row_factor, k_row_factor, v_row_factor, q_in, k_in, v_in, grad_q_weight,
                   grad_k_weight, grad_q_bias, grad_k_bias);
  const rope_stream_t on = (rope_stream_t)(uintptr_t)stream;
  rope_status_t status;
  if (call == ROPE_GO_EXPLAIN) {
    status = rope_explain(desc, &whole.args, text, size);
  } else {
    status = call == ROPE_GO_FORWARD ? rope_forward(desc, &whole.args, on) : rope_backward(desc, &whole.args, on);
  }
  return rope_go_noted(status, text, size);
}

static inline rope_status_t rope_go_fill_tables(const rope_desc_t *desc, const rope_tensor_t *cos,
                                                const rope_tensor_t *sin, const uint64_t *addresses, void *cos_data,
                                                void *sin_data, uint64_t stream, char *error, size_t size) {
  rope_tensor_t whole_cos = *cos, whole_sin = *sin;
  rope_go_place(&whole_cos, cos_data, addresses[0]);
  rope_go_place(&whole_sin, sin_data, addresses[1]);
  return rope_go_noted(rope_fill_tables(desc, &whole_cos, &whole_sin, (rope_stream_t)(uintptr_t)stream), error, size);
}

static inline rope_status_t rope_go_scaled_frequencies(int32_t rotary_dim, double theta, const rope_scaling_t *scaling,
                                                       double *short_factor, double *long_factor, double *pair_factors,
                                                       double *inv_freq, double *attention_scale, char *error,
                                                       size_t size) {
  rope_scaling_t whole = *scaling;
  whole.short_factor = short_factor;
  whole.long_factor = long_factor;
  whole.pair_factors = pair_factors;
  return rope_go_noted(rope_scaled_frequencies(rotary_dim, theta, &whole, inv_freq, attention_scale), error, size);
}

static inline rope_status_t rope_go_section_axes(int32_t rotary_dim, double theta, const rope_sections_t *sections,
                                                 int32_t *pair_axis, double *inv_freq, char *error, size_t size) {
  return rope_go_noted(rope_section_axes(rotary_dim, theta, sections, pair_axis, inv_freq), error, size);
}

static inline rope_status_t rope_go_swiglu_create(const swiglu_config_t *config, swiglu_desc_t **desc, char *error,
                                                  size_t size) {
  return rope_go_noted(swiglu_desc_create(config, desc), error, size);
}

/* A call's args of SwiGLU, and the groups that they may point to. */
typedef struct rope_go_gating {
  swiglu_args_t args;
  swiglu_quant_args_t quant;
  swiglu_input_args_t input;
  swiglu_column_args_t column;
} rope_go_gating_t;

/* args points to the further inputs where one of them is given, and to other groups that are not NULL. */
static inline void rope_go_complete_gating(rope_go_gating_t *whole, const swiglu_args_t *args,
                                           const swiglu_quant_args_t *quant, const swiglu_input_args_t *input,
                                           const swiglu_column_args_t *column, const uint64_t *addresses, void *gate,
                                           void *up, void *out, void *row_scale, void *num_rows, void *grad_out,
                                           void *grad_gate, void *grad_up, void *grad_row_scale, void *gate_bias,
                                           void *up_bias, void *expert_rows, void *expert_offsets, void *row_index,
                                           void *scale, void *scales_out, void *amax_out, void *grad_gate_scales_out,
                                           void *grad_up_scales_out, void *column_amax_out, void *column_out,
                                           void *column_grad_gate, void *column_grad_up, void *column_scales_out,
                                           void *column_grad_gate_scales_out, void *column_grad_up_scales_out) {
  whole->args = *args;
  rope_go_place(&whole->args.gate, gate, addresses[0]);
  rope_go_place(&whole->args.up, up, addresses[1]);
  rope_go_place(&whole->args.out, out, addresses[2]);
  rope_go_place(&whole->args.row_scale, row_scale, addresses[3]);
  rope_go_place(&whole->args.num_rows, num_rows, addresses[4]);
  rope_go_place(&whole->args.grad_out, grad_out, addresses[5]);
  rope_go_place(&whole->args.grad_gate, grad_gate, addresses[6]);
  rope_go_place(&whole->args.grad_up, grad_up, addresses[7]);
  rope_go_place(&whole->args.grad_row_scale, grad_row_scale, addresses[8]);
  whole->input = *input;
  rope_go_place(&whole->input.gate_bias, gate_bias, addresses[9]);
  rope_go_place(&whole->input.up_bias, up_bias, addresses[10]);
  rope_go_place(&whole->input.expert_rows, expert_rows, addresses[11]);
  rope_go_place(&whole->input.expert_offsets, expert_offsets, addresses[12]);
  rope_go_place(&whole->input.row_index, row_index, addresses[13]);
  if (input->gate_bias.ndim != 0 || input->up_bias.ndim != 0 || input->expert_rows.ndim != 0 ||
      input->expert_offsets.ndim != 0 || input->row_index.ndim != 0) {
    whole->args.input = &whole->input;
  }
  if (quant != NULL) {
    whole->quant = *quant;
    rope_go_place(&whole->quant.scale, scale, addresses[14]);
    rope_go_place(&whole->quant.scales_out, scales_out, addresses[15]);
    rope_go_place(&whole->quant.amax_out, amax_out, addresses[16]);
    rope_go_place(&whole->quant.grad_gate_scales_out, grad_gate_scales_out, addresses[17]);
    rope_go_place(&whole->quant.grad_up_scales_out, grad_up_scales_out, addresses[18]);
    whole->args.quant = &whole->quant;
  }
  if (column != NULL) {
    whole->column = *column;
    rope_go_place(&whole->column.amax_out, column_amax_out, addresses[19]);
    rope_go_place(&whole->column.out, column_out, addresses[20]);
    rope_go_place(&whole->column.grad_gate, column_grad_gate, addresses[21]);
    rope_go_place(&whole->column.grad_up, column_grad_up, addresses[22]);
    rope_go_place(&whole->column.scales_out, column_scales_out, addresses[23]);
    rope_go_place(&whole->column.grad_gate_scales_out, column_grad_gate_scales_out, addresses[24]);
    rope_go_place(&whole->column.grad_up_scales_out, column_grad_up_scales_out, addresses[25]);
    whole->args.column = &whole->column;
  }
}

static inline rope_status_t rope_go_gate(
    int call, const swiglu_desc_t *desc, const swiglu_args_t *args, const swiglu_quant_args_t *quant,
    const swiglu_input_args_t *input, const swiglu_column_args_t *column, const uint64_t *addresses, void *gate,
    void *up, void *out, void *row_scale, void *num_rows, void *grad_out, void *grad_gate, void *grad_up,
    void *grad_row_scale, void *gate_bias, void *up_bias, void *expert_rows, void *expert_offsets, void *row_index,
    void *scale, void *scales_out, void *amax_out, void *grad_gate_scales_out, void *grad_up_scales_out,
    void *column_amax_out, void *column_out, void *column_grad_gate, void *column_grad_up, void *column_scales_out,
    void *column_grad_gate_scales_out, void *column_grad_up_scales_out, uint64_t stream, char *text, size_t size) {
  rope_go_gating_t whole;
  rope_go_complete_gating(&whole, args, quant, input, column, addresses, gate, up, out, row_scale, num_rows, grad_out,
                          grad_gate, grad_up, grad_row_scale, gate_bias, up_bias, expert_rows, expert_offsets,
                          row_index, scale, scales_out, amax_out, grad_gate_scales_out, grad_up_scales_out,
                          column_amax_out, column_out, column_grad_gate, column_grad_up, column_scales_out,
                          column_grad_gate_scales_out, column_grad_up_scales_out);
  const rope_stream_t on = (rope_stream_t)(uintptr_t)stream;
  rope_status_t status;
  if (call == ROPE_GO_EXPLAIN) {
    status = swiglu_explain(desc, &whole.args, text, size);
  } else {
    status = call == ROPE_GO_FORWARD ? swiglu_forward(desc, &whole.args, on) : swiglu_backward(desc, &whole.args, on);
  }
  return rope_go_noted(status, text, size);
}

#endif /* ROPE_GO_SHIM_H */
