/* shim.h - calls of librope with flat arguments
 *
 * A Go struct that holds Go pointers may not cross into C; pointers by themselves may. So structs cross without their
 * pointers and are completed here, on the C stack. A tensor's memory is a pointer into a Go slice, or an address on a
 * device, which Go keeps as a number. The text of an error is fetched in the same call, because the goroutine may run
 * on another thread in the next one.
 */
#ifndef ROPE_GO_SHIM_H
#define ROPE_GO_SHIM_H

#include <rope/rope.h>
#include <stdio.h>

enum {
  ROPE_GO_FORWARD,
  ROPE_GO_BACKWARD
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

/* Completes args. `addresses` has an entry for each tensor, in the order of the struct. */
static inline rope_args_t rope_go_args(const rope_args_t *args, const uint64_t *addresses, void *q, void *q_out,
                                       void *k, void *k_out, void *v, void *v_out, void *positions,
                                       void *start_positions, void *cu_seqlens, void *cos, void *sin, void *angles,
                                       void *fault) {
  rope_args_t whole = *args;
  rope_go_place(&whole.q, q, addresses[0]);
  rope_go_place(&whole.q_out, q_out, addresses[1]);
  rope_go_place(&whole.k, k, addresses[2]);
  rope_go_place(&whole.k_out, k_out, addresses[3]);
  rope_go_place(&whole.v, v, addresses[4]);
  rope_go_place(&whole.v_out, v_out, addresses[5]);
  rope_go_place(&whole.positions, positions, addresses[6]);
  rope_go_place(&whole.start_positions, start_positions, addresses[7]);
  rope_go_place(&whole.cu_seqlens, cu_seqlens, addresses[8]);
  rope_go_place(&whole.cos, cos, addresses[9]);
  rope_go_place(&whole.sin, sin, addresses[10]);
  rope_go_place(&whole.angles, angles, addresses[11]);
  rope_go_place(&whole.fault, fault, addresses[12]);
  return whole;
}

static inline rope_status_t rope_go_rotate(int direction, const rope_desc_t *desc, const rope_args_t *args,
                                           const uint64_t *addresses, void *q, void *q_out, void *k, void *k_out,
                                           void *v, void *v_out, void *positions, void *start_positions,
                                           void *cu_seqlens, void *cos, void *sin, void *angles, void *fault,
                                           uint64_t stream, char *error, size_t size) {
  const rope_args_t whole = rope_go_args(args, addresses, q, q_out, k, k_out, v, v_out, positions, start_positions,
                                         cu_seqlens, cos, sin, angles, fault);
  const rope_stream_t on = (rope_stream_t)(uintptr_t)stream;
  const rope_status_t status =
      direction == ROPE_GO_FORWARD ? rope_forward(desc, &whole, on) : rope_backward(desc, &whole, on);
  return rope_go_noted(status, error, size);
}

static inline rope_status_t rope_go_explain(const rope_desc_t *desc, const rope_args_t *args, const uint64_t *addresses,
                                            void *q, void *q_out, void *k, void *k_out, void *v, void *v_out,
                                            void *positions, void *start_positions, void *cu_seqlens, void *cos,
                                            void *sin, void *angles, void *fault, char *text, size_t size) {
  const rope_args_t whole = rope_go_args(args, addresses, q, q_out, k, k_out, v, v_out, positions, start_positions,
                                         cu_seqlens, cos, sin, angles, fault);
  return rope_go_noted(rope_explain(desc, &whole, text, size), text, size);
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

/* The same for SwiGLU. */
static inline swiglu_args_t rope_go_swiglu_args(const swiglu_args_t *args, const uint64_t *addresses, void *gate,
                                                void *up, void *out, void *row_scale, void *num_rows, void *grad_out,
                                                void *grad_gate, void *grad_up, void *grad_row_scale) {
  swiglu_args_t whole = *args;
  rope_go_place(&whole.gate, gate, addresses[0]);
  rope_go_place(&whole.up, up, addresses[1]);
  rope_go_place(&whole.out, out, addresses[2]);
  rope_go_place(&whole.row_scale, row_scale, addresses[3]);
  rope_go_place(&whole.num_rows, num_rows, addresses[4]);
  rope_go_place(&whole.grad_out, grad_out, addresses[5]);
  rope_go_place(&whole.grad_gate, grad_gate, addresses[6]);
  rope_go_place(&whole.grad_up, grad_up, addresses[7]);
  rope_go_place(&whole.grad_row_scale, grad_row_scale, addresses[8]);
  return whole;
}

static inline rope_status_t rope_go_gate(int direction, const swiglu_desc_t *desc, const swiglu_args_t *args,
                                         const uint64_t *addresses, void *gate, void *up, void *out, void *row_scale,
                                         void *num_rows, void *grad_out, void *grad_gate, void *grad_up,
                                         void *grad_row_scale, uint64_t stream, char *error, size_t size) {
  const swiglu_args_t whole = rope_go_swiglu_args(args, addresses, gate, up, out, row_scale, num_rows, grad_out,
                                                  grad_gate, grad_up, grad_row_scale);
  const rope_stream_t on = (rope_stream_t)(uintptr_t)stream;
  return rope_go_noted(
      direction == ROPE_GO_FORWARD ? swiglu_forward(desc, &whole, on) : swiglu_backward(desc, &whole, on), error, size);
}

#endif /* ROPE_GO_SHIM_H */
