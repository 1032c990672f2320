/* SPDX-License-Identifier: Apache-2.0 */
/* SwiGLU of the packed output of one projection, [tokens, gate | up], and its gradients, which replace it. */
#include <math.h>
#include <rope/rope.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOKENS 3
#define WIDTH 40

static void check(rope_status_t status) {
  if (status == ROPE_STATUS_SUCCESS) return;
  fprintf(stderr, "%s: %s\n", rope_status_name(status), rope_last_error());
  exit(1);
}

static double sigmoid(double x) {
  return 1.0 / (1.0 + exp(-x));
}

int main(void) {
  static float gate_up[TOKENS][2 * WIDTH], out[TOKENS][WIDTH], grad_out[TOKENS][WIDTH], given[TOKENS][2 * WIDTH];
  for (int i = 0; i < TOKENS * 2 * WIDTH; ++i) (&gate_up[0][0])[i] = 4.0f * sinf(0.7f * (float)i);
  for (int i = 0; i < TOKENS * WIDTH; ++i) (&grad_out[0][0])[i] = cosf((float)i);
  memcpy(given, gate_up, sizeof(given));

  swiglu_config_t config = {.struct_size = sizeof(config), .device = ROPE_DEVICE_CPU, .dtype = ROPE_DTYPE_F32};
  swiglu_desc_t *desc;
  check(swiglu_desc_create(&config, &desc));

  const rope_tensor_t packed = {.data = gate_up, .dtype = ROPE_DTYPE_F32, .ndim = 2, .shape = {TOKENS, 2 * WIDTH}};
  const rope_tensor_t dense = {.data = out, .dtype = ROPE_DTYPE_F32, .ndim = 2, .shape = {TOKENS, WIDTH}};
  swiglu_args_t args = {.struct_size = sizeof(args), .out = dense};
  check(rope_tensor_narrow(&packed, 1, 0, WIDTH, &args.gate));
  check(rope_tensor_narrow(&packed, 1, WIDTH, WIDTH, &args.up));
  check(swiglu_forward(desc, &args, NULL));

  swiglu_args_t back = {.struct_size = sizeof(back), .gate = args.gate, .up = args.up};
  back.grad_out = dense;
  back.grad_out.data = grad_out;
  back.grad_gate = args.gate;
  back.grad_up = args.up;
  check(swiglu_backward(desc, &back, NULL));
  swiglu_desc_destroy(desc);

  double worst = 0.0;
  for (int t = 0; t < TOKENS; ++t) {
    for (int c = 0; c < WIDTH; ++c) {
      const double gate = given[t][c], up = given[t][WIDTH + c], grad = grad_out[t][c], s = sigmoid(gate);
      worst = fmax(worst, fabs(out[t][c] - gate * s * up));
      worst = fmax(worst, fabs(gate_up[t][c] - grad * up * s * (1.0 + gate * (1.0 - s))));
      worst = fmax(worst, fabs(gate_up[t][WIDTH + c] - grad * gate * s));
    }
  }
  printf("output and gradients are within %.1e of the formulas\n", worst);
  return worst < 2e-5 ? 0 : 1;
}
