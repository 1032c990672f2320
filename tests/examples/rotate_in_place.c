/* SPDX-License-Identifier: Apache-2.0 */
/* Rotates q and k of a batch in place, where they lie as [batch, sequence, heads, channels], and back again. */
#include <math.h>
#include <rope/rope.h>
#include <stdio.h>
#include <stdlib.h>

#define BATCHES 2
#define SEQUENCE 5
#define Q_HEADS 4
#define K_HEADS 1
#define HEAD_DIM 32
#define THETA 10000.0

static void check(rope_status_t status) {
  if (status == ROPE_STATUS_SUCCESS) return;
  fprintf(stderr, "%s: %s\n", rope_status_name(status), rope_last_error());
  exit(1);
}

static void expect(int holds, const char *what) {
  if (holds) return;
  fprintf(stderr, "wrong: %s\n", what);
  exit(1);
}

static float q[BATCHES][SEQUENCE][Q_HEADS][HEAD_DIM], k[BATCHES][SEQUENCE][K_HEADS][HEAD_DIM];

int main(void) {
  rope_config_t config = {.struct_size = sizeof(config),
                          .device = ROPE_DEVICE_CPU,
                          .dtype = ROPE_DTYPE_F32,
                          .layout = ROPE_LAYOUT_BSHD,
                          .style = ROPE_STYLE_INTERLEAVED,
                          .head_dim = HEAD_DIM,
                          .theta = THETA};
  rope_desc_t *desc;
  check(rope_desc_create(&config, &desc));

  for (int i = 0; i < BATCHES * SEQUENCE * Q_HEADS * HEAD_DIM; ++i) (&q[0][0][0][0])[i] = sinf((float)i);
  for (int i = 0; i < BATCHES * SEQUENCE * K_HEADS * HEAD_DIM; ++i) (&k[0][0][0][0])[i] = cosf((float)i);

  /* Without positions a token's position is its index in the sequence. */
  rope_args_t args = {
      .struct_size = sizeof(args),
      .q = {.data = q, .dtype = ROPE_DTYPE_F32, .ndim = 4, .shape = {BATCHES, SEQUENCE, Q_HEADS, HEAD_DIM}},
      .k = {.data = k, .dtype = ROPE_DTYPE_F32, .ndim = 4, .shape = {BATCHES, SEQUENCE, K_HEADS, HEAD_DIM}}};
  check(rope_forward(desc, &args, NULL));

  const int s = 3, pair = 2, before = ((1 * SEQUENCE + s) * Q_HEADS + 1) * HEAD_DIM + 2 * pair;
  const double x = sinf((float)before), y = sinf((float)(before + 1));
  const double angle = s * pow(THETA, -2.0 * pair / HEAD_DIM);
  expect(fabs(q[1][s][1][2 * pair] - (x * cos(angle) - y * sin(angle))) < 1e-6, "x of a pair of q");
  expect(fabs(q[1][s][1][2 * pair + 1] - (x * sin(angle) + y * cos(angle))) < 1e-6, "y of a pair of q");

  check(rope_backward(desc, &args, NULL)); /* the transpose, which undoes a rotation */
  for (int i = 0; i < BATCHES * SEQUENCE * K_HEADS * HEAD_DIM; ++i)
    expect(fabsf((&k[0][0][0][0])[i] - cosf((float)i)) < 1e-6f, "k, rotated there and back");

  rope_desc_destroy(desc);
  printf("q and k were rotated in place, and back\n");
  return 0;
}
