/* SPDX-License-Identifier: Apache-2.0 */
/* Prefill of sequences of different lengths, one after another in a tensor with room for more (a captured graph).
 *
 * The second sequence already has a prefix in the cache, so its positions start later. One call gives the same bits
 * as one call for each sequence would, and does not change the padding.
 */
#include <rope/rope.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEQUENCES 3
#define ROOM 16 /* tokens; 12 are used */
#define HEADS 4
#define HEAD_DIM 64

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

int main(void) {
  static uint16_t packed[ROOM][HEADS][HEAD_DIM], given[ROOM][HEADS][HEAD_DIM], alone[ROOM][HEADS][HEAD_DIM];
  for (int i = 0; i < ROOM * HEADS * HEAD_DIM; ++i) /* bf16 from 1 to 2, of either sign */
    (&given[0][0][0])[i] = (uint16_t)(0x3F80 | (unsigned)(i * 37) % 128 | (unsigned)i % 3 / 2 << 15);
  memcpy(packed, given, sizeof(packed));
  memcpy(alone, given, sizeof(alone));

  const int32_t cu_seqlens[SEQUENCES + 1] = {0, 5, 6, 12};
  const int64_t start_positions[SEQUENCES] = {0, 4096, 0};
  rope_config_t config = {.struct_size = sizeof(config),
                          .device = ROPE_DEVICE_CPU,
                          .dtype = ROPE_DTYPE_BF16,
                          .layout = ROPE_LAYOUT_THD,
                          .style = ROPE_STYLE_HALF,
                          .head_dim = HEAD_DIM,
                          .theta = 500000.0};
  rope_desc_t *desc;
  check(rope_desc_create(&config, &desc));

  rope_args_t args = {
      .struct_size = sizeof(args),
      .q = {.data = packed, .dtype = ROPE_DTYPE_BF16, .ndim = 3, .shape = {ROOM, HEADS, HEAD_DIM}},
      .cu_seqlens = {.data = (void *)cu_seqlens, .dtype = ROPE_DTYPE_I32, .ndim = 1, .shape = {SEQUENCES + 1}},
      .start_positions = {.data = (void *)start_positions, .dtype = ROPE_DTYPE_I64, .ndim = 1, .shape = {SEQUENCES}},
  };
  check(rope_forward(desc, &args, NULL));

  for (int b = 0; b < SEQUENCES; ++b) {
    rope_args_t one = {.struct_size = sizeof(one), .position_offset = start_positions[b]};
    const rope_tensor_t all = {.data = alone, .dtype = ROPE_DTYPE_BF16, .ndim = 3, .shape = {ROOM, HEADS, HEAD_DIM}};
    check(rope_tensor_narrow(&all, 0, cu_seqlens[b], cu_seqlens[b + 1] - cu_seqlens[b], &one.q));
    check(rope_forward(desc, &one, NULL));
  }
  rope_desc_destroy(desc);

  const size_t used = (size_t)cu_seqlens[SEQUENCES] * sizeof(packed[0]);
  expect(memcmp(packed, alone, used) == 0, "the sequences, against a call for each");
  expect(memcmp(packed, given, used) != 0, "the sequences were not rotated");
  expect(memcmp((char *)packed + used, (char *)given + used, sizeof(packed) - used) == 0, "the padding");
  printf("%d sequences, %d tokens and %d of padding in one call\n", SEQUENCES, cu_seqlens[SEQUENCES],
         ROOM - cu_seqlens[SEQUENCES]);
  return 0;
}
