/* SPDX-License-Identifier: Apache-2.0 */
/* Rotates the queries and keys of a packed QKV tensor in place, by the positions of four tokens, on the CPU. */
#include <rope/rope.h>
#include <stdio.h>
#include <stdlib.h>

#define TOKENS 4
#define Q_HEADS 8
#define K_HEADS 2 /* and as many of v */
#define HEADS (Q_HEADS + 2 * K_HEADS)
#define HEAD_DIM 64

static void check(rope_status_t status) {
  if (status == ROPE_STATUS_SUCCESS) return;
  fprintf(stderr, "%s: %s\n", rope_status_name(status), rope_last_error());
  exit(1);
}

int main(void) {
  rope_config_t config = {.struct_size = sizeof(config),
                          .device = ROPE_DEVICE_CPU, /* ROPE_DEVICE_CUDA: the same calls, device memory, a stream */
                          .dtype = ROPE_DTYPE_F32,
                          .layout = ROPE_LAYOUT_THD,
                          .style = ROPE_STYLE_HALF,
                          .head_dim = HEAD_DIM,
                          .theta = 10000.0};
  rope_desc_t *desc;
  check(rope_desc_create(&config, &desc));

  static float data[TOKENS][HEADS][HEAD_DIM];
  for (int t = 0; t < TOKENS; ++t)
    for (int h = 0; h < HEADS; ++h)
      for (int pair = 0; pair < HEAD_DIM / 2; ++pair) data[t][h][pair] = 1.0f; /* every pair is (1, 0) */
  int64_t positions[TOKENS] = {0, 1, 2, 1000000};

  rope_tensor_t qkv = {.data = data, .dtype = ROPE_DTYPE_F32, .ndim = 3, .shape = {TOKENS, HEADS, HEAD_DIM}};
  rope_args_t args = {
      .struct_size = sizeof(args),
      .positions = {.data = positions, .dtype = ROPE_DTYPE_I64, .ndim = 1, .shape = {TOKENS}},
  };
  check(rope_tensor_narrow(&qkv, 1, 0, Q_HEADS, &args.q));
  check(rope_tensor_narrow(&qkv, 1, Q_HEADS, K_HEADS, &args.k));
  check(rope_forward(desc, &args, NULL));

  for (int t = 0; t < TOKENS; ++t)
    printf("position %7lld: the first pair is (%9.6f, %9.6f)\n", (long long)positions[t], data[t][0][0],
           data[t][0][HEAD_DIM / 2]);
  rope_desc_destroy(desc);
  return 0;
}
