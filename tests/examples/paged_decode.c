/* A step of decoding: one new token of each of three sequences, at its own position, its key appended to a paged cache.
 *
 * The keys lie rotated in the cache, so a score q . k depends on how far the two tokens are apart, and that is checked.
 */
#include <math.h>
#include <rope/rope.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEQUENCES 3
#define Q_HEADS 4 /* all of them share the one key head */
#define HEADS (Q_HEADS + 2)
#define HEAD_DIM 64
#define PAGES 8
#define PAGE_TOKENS 4
#define STEPS 7
#define THETA 10000.0

static void check(rope_status_t status) {
  if (status == ROPE_STATUS_SUCCESS) return;
  fprintf(stderr, "%s: %s\n", rope_status_name(status), rope_last_error());
  exit(1);
}

/* What a model computed for a token: its q heads, its key, its value. */
static float projected(int sequence, int64_t position, int head, int channel) {
  return sinf(1.7f * (float)sequence + 0.3f * (float)position + 2.1f * (float)head + 0.9f * (float)channel);
}

/* q . k of a query at distance `d` from the key, both as they were before rotation. */
static double score(int sequence, int64_t q_position, int head, int64_t k_position) {
  double sum = 0.0;
  for (int i = 0; i < HEAD_DIM / 2; ++i) {
    const double angle = (double)(q_position - k_position) * pow(THETA, -2.0 * i / HEAD_DIM);
    const double qx = projected(sequence, q_position, head, i);
    const double qy = projected(sequence, q_position, head, i + HEAD_DIM / 2);
    const double kx = projected(sequence, k_position, Q_HEADS, i);
    const double ky = projected(sequence, k_position, Q_HEADS, i + HEAD_DIM / 2);
    sum += cos(angle) * (qx * kx + qy * ky) + sin(angle) * (qx * ky - qy * kx);
  }
  return sum;
}

int main(void) {
  static float qkv[SEQUENCES][HEADS][HEAD_DIM], pages[PAGES][PAGE_TOKENS][HEAD_DIM];
  const int page_table[SEQUENCES][2] = {{6, 1}, {3, 4}, {0, 7}};
  int64_t positions[SEQUENCES] = {0, 0, 0};
  const int64_t first[SEQUENCES] = {0, 1000, 131065}; /* of the window that the cache still holds */

  rope_config_t config = {.struct_size = sizeof(config),
                          .device = ROPE_DEVICE_CPU,
                          .dtype = ROPE_DTYPE_F32,
                          .layout = ROPE_LAYOUT_THD,
                          .style = ROPE_STYLE_HALF,
                          .head_dim = HEAD_DIM,
                          .theta = THETA};
  rope_desc_t *desc;
  check(rope_desc_create(&config, &desc));

  /* Pointers and shapes stay as they are, so the arguments are filled once; on CUDA the call could be captured. */
  const rope_tensor_t packed = {.data = qkv, .dtype = ROPE_DTYPE_F32, .ndim = 3, .shape = {SEQUENCES, HEADS, HEAD_DIM}};
  rope_args_t args = {
      .struct_size = sizeof(args),
      .positions = {.data = positions, .dtype = ROPE_DTYPE_I64, .ndim = 1, .shape = {SEQUENCES}},
  };
  check(rope_tensor_narrow(&packed, 1, 0, Q_HEADS, &args.q));
  check(rope_tensor_narrow(&packed, 1, Q_HEADS, 1, &args.k));

  double worst = 0.0;
  for (int step = 0; step < STEPS; ++step) {
    for (int b = 0; b < SEQUENCES; ++b) {
      positions[b] = first[b] + step;
      for (int h = 0; h < HEADS; ++h)
        for (int c = 0; c < HEAD_DIM; ++c) qkv[b][h][c] = projected(b, positions[b], h, c);
    }
    check(rope_forward(desc, &args, NULL));

    for (int b = 0; b < SEQUENCES; ++b) {
      memcpy(pages[page_table[b][step / PAGE_TOKENS]][step % PAGE_TOKENS], qkv[b][Q_HEADS], sizeof(qkv[b][Q_HEADS]));
      for (int past = 0; past <= step; ++past) {
        const float *key = pages[page_table[b][past / PAGE_TOKENS]][past % PAGE_TOKENS];
        for (int h = 0; h < Q_HEADS; ++h) {
          double sum = 0.0;
          for (int c = 0; c < HEAD_DIM; ++c) sum += (double)qkv[b][h][c] * key[c];
          worst = fmax(worst, fabs(sum - score(b, positions[b], h, first[b] + past)));
        }
      }
    }
  }
  rope_desc_destroy(desc);
  printf("%d steps of %d sequences: scores are within %.1e of the formula\n", STEPS, SEQUENCES, worst);
  return worst < 1e-5 ? 0 : 1;
}
