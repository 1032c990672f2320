/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of decoding: each of three sequences has one new token, at its own position, which passes through the layers
 * of a model with norms of q and k. One call per layer normalises and rotates q in place, normalises and rotates k
 * into a paged cache, and copies v into another cache.
 *
 * The cached keys are rotated, so a score q . k depends only on the distance of the two tokens; the program checks
 * this. With `--kv fp8` both caches have 8 bits, F8_E4M3, with one scale per layer, as from a calibration.
 */
#include <math.h>
#include <rope/rope.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAYERS 2
#define SEQUENCES 3
#define Q_HEADS 4 /* all of them share the one key head */
#define HEADS (Q_HEADS + 2)
#define HEAD_DIM 64
#define PAGES 8
#define PAGE_TOKENS 4
#define TABLE_PAGES 2
#define STEPS 7
#define THETA 10000.0
#define NORM_EPS 1e-6
#define K_SCALE (4.0f / 448.0f) /* 448 is the largest code */
#define V_SCALE (1.0f / 448.0f)

static void check(rope_status_t status) {
  if (status == ROPE_STATUS_SUCCESS) return;
  fprintf(stderr, "%s: %s\n", rope_status_name(status), rope_last_error());
  exit(1);
}

/* The results of a layer's projections for a token: its q heads, its key, its value. */
static float projected(int layer, int sequence, int64_t position, int head, int channel) {
  return sinf(0.8f * (float)layer + 1.7f * (float)sequence + 0.3f * (float)position + 2.1f * (float)head +
              0.9f * (float)channel);
}

static float weight(int layer, int is_key, int channel) {
  return 1.0f + 0.5f * sinf(0.4f * (float)(layer + 3 * is_key) + 0.7f * (float)channel);
}

/* A head before the rotation: x / sqrt(mean(x^2) + eps) times the weights. */
static void normed(int layer, int sequence, int64_t position, int head, double out[HEAD_DIM]) {
  double squares = 0.0;
  for (int c = 0; c < HEAD_DIM; ++c) {
    out[c] = projected(layer, sequence, position, head, c);
    squares += out[c] * out[c];
  }
  const double factor = 1.0 / sqrt(squares / HEAD_DIM + NORM_EPS);
  for (int c = 0; c < HEAD_DIM; ++c) out[c] *= factor * (double)weight(layer, head == Q_HEADS, c);
}

/* q . k of two tokens, from their values before the rotation. */
static double score(int layer, int sequence, int64_t q_position, int head, int64_t k_position) {
  double q[HEAD_DIM], k[HEAD_DIM], sum = 0.0;
  normed(layer, sequence, q_position, head, q);
  normed(layer, sequence, k_position, Q_HEADS, k);
  for (int i = 0; i < HEAD_DIM / 2; ++i) {
    const int j = i + HEAD_DIM / 2;
    const double angle = (double)(q_position - k_position) * pow(THETA, -2.0 * i / HEAD_DIM);
    sum += cos(angle) * (q[i] * k[i] + q[j] * k[j]) + sin(angle) * (q[i] * k[j] - q[j] * k[i]);
  }
  return sum;
}

/* The value of a code of F8_E4M3: a sign, four bits of exponent, three of fraction. NaN does not occur here. */
static float number_of(uint8_t code) {
  const int exponent = code >> 3 & 15, fraction = code & 7;
  const float magnitude = exponent == 0 ? ldexpf((float)fraction, -9) : ldexpf((float)(8 + fraction), exponent - 10);
  return (code & 128) != 0 ? -magnitude : magnitude;
}

/* Reads an entry of a cache, as attention does. */
static void read_entry(const float *numbers, const uint8_t *codes, float scale, int has_codes, float out[HEAD_DIM]) {
  for (int c = 0; c < HEAD_DIM; ++c) out[c] = has_codes ? scale * number_of(codes[c]) : numbers[c];
}

int main(int argc, char **argv) {
  const int has_codes = argc == 3 && strcmp(argv[1], "--kv") == 0 && strcmp(argv[2], "fp8") == 0;
  if (argc != 1 && !has_codes) {
    fprintf(stderr, "usage: %s [--kv fp8]\n", argv[0]);
    return 2;
  }
  static float qkv[SEQUENCES][HEADS][HEAD_DIM], weights[LAYERS][2][HEAD_DIM];
  static float k_pages[LAYERS][PAGES][PAGE_TOKENS][HEAD_DIM], v_pages[LAYERS][PAGES][PAGE_TOKENS][HEAD_DIM];
  static uint8_t k_codes[LAYERS][PAGES][PAGE_TOKENS][HEAD_DIM], v_codes[LAYERS][PAGES][PAGE_TOKENS][HEAD_DIM];
  float scales[LAYERS][2];
  int32_t page_table[SEQUENCES][TABLE_PAGES] = {{6, 1}, {3, 4}, {0, 7}};
  int32_t rows[SEQUENCES] = {0, 1, 2}; /* of page_table, one for each token */
  int64_t positions[SEQUENCES], cache_positions[SEQUENCES];
  const int64_t first[SEQUENCES] = {0, 1000, 131065}; /* of the window that the cache still holds */

  rope_config_t config = {.struct_size = sizeof(config),
                          .device = ROPE_DEVICE_CPU,
                          .dtype = ROPE_DTYPE_F32,
                          .layout = ROPE_LAYOUT_THD,
                          .style = ROPE_STYLE_HALF,
                          .head_dim = HEAD_DIM,
                          .theta = THETA,
                          .norm = ROPE_NORM_RMS,
                          .norm_eps = NORM_EPS};
  rope_desc_t *desc;
  check(rope_desc_create(&config, &desc));

  /* Pointers and shapes do not change, so the arguments are filled once; on CUDA the calls could be captured. */
  rope_norm_args_t norm[LAYERS];
  rope_cache_args_t cache[LAYERS];
  rope_quant_args_t quant[LAYERS];
  rope_args_t args[LAYERS];
  for (int layer = 0; layer < LAYERS; ++layer) {
    for (int c = 0; c < HEAD_DIM; ++c) {
      for (int is_key = 0; is_key < 2; ++is_key) weights[layer][is_key][c] = weight(layer, is_key, c);
    }
    norm[layer] = (rope_norm_args_t){
        .struct_size = sizeof(norm[layer]),
        .q_weight = {.data = weights[layer][0], .dtype = ROPE_DTYPE_F32, .ndim = 1, .shape = {HEAD_DIM}},
        .k_weight = {.data = weights[layer][1], .dtype = ROPE_DTYPE_F32, .ndim = 1, .shape = {HEAD_DIM}},
    };
    cache[layer] = (rope_cache_args_t){
        .struct_size = sizeof(cache[layer]),
        .k_cache = {.data = has_codes ? (void *)k_codes[layer] : (void *)k_pages[layer],
                    .dtype = has_codes ? ROPE_DTYPE_F8_E4M3 : ROPE_DTYPE_F32,
                    .ndim = 4,
                    .shape = {PAGES, PAGE_TOKENS, 1, HEAD_DIM}},
        .v_cache = {.data = has_codes ? (void *)v_codes[layer] : (void *)v_pages[layer],
                    .dtype = has_codes ? ROPE_DTYPE_F8_E4M3 : ROPE_DTYPE_F32,
                    .ndim = 4,
                    .shape = {PAGES, PAGE_TOKENS, 1, HEAD_DIM}},
        .page_table = {.data = page_table, .dtype = ROPE_DTYPE_I32, .ndim = 2, .shape = {SEQUENCES, TABLE_PAGES}},
        .sequence = {.data = rows, .dtype = ROPE_DTYPE_I32, .ndim = 1, .shape = {SEQUENCES}},
        .positions = {.data = cache_positions, .dtype = ROPE_DTYPE_I64, .ndim = 1, .shape = {SEQUENCES}},
    };
    scales[layer][0] = K_SCALE;
    scales[layer][1] = V_SCALE;
    quant[layer] = (rope_quant_args_t){
        .struct_size = sizeof(quant[layer]),
        .k_scale = {.data = &scales[layer][0], .dtype = ROPE_DTYPE_F32, .ndim = 1, .shape = {1}},
        .v_scale = {.data = &scales[layer][1], .dtype = ROPE_DTYPE_F32, .ndim = 1, .shape = {1}},
    };
    args[layer] = (rope_args_t){
        .struct_size = sizeof(args[layer]),
        .flags = ROPE_FLAG_V_UNROTATED,
        .positions = {.data = positions, .dtype = ROPE_DTYPE_I64, .ndim = 1, .shape = {SEQUENCES}},
        .norm = &norm[layer],
        .cache = &cache[layer],
        .quant = has_codes ? &quant[layer] : NULL,
    };
    const rope_tensor_t packed = {
        .data = qkv, .dtype = ROPE_DTYPE_F32, .ndim = 3, .shape = {SEQUENCES, HEADS, HEAD_DIM}};
    check(rope_tensor_narrow(&packed, 1, 0, Q_HEADS, &args[layer].q));
    check(rope_tensor_narrow(&packed, 1, Q_HEADS, 1, &args[layer].k));
    check(rope_tensor_narrow(&packed, 1, Q_HEADS + 1, 1, &args[layer].v));
  }

  double worst = 0.0;
  int wrong_values = 0;
  for (int step = 0; step < STEPS; ++step) {
    for (int b = 0; b < SEQUENCES; ++b) {
      positions[b] = first[b] + step;
      cache_positions[b] = step;
    }
    for (int layer = 0; layer < LAYERS; ++layer) {
      for (int b = 0; b < SEQUENCES; ++b) {
        for (int h = 0; h < HEADS; ++h)
          for (int c = 0; c < HEAD_DIM; ++c) qkv[b][h][c] = projected(layer, b, positions[b], h, c);
      }
      check(rope_forward(desc, &args[layer], NULL));

      for (int b = 0; b < SEQUENCES; ++b) {
        for (int past = 0; past <= step; ++past) {
          const int page = page_table[b][past / PAGE_TOKENS], entry = past % PAGE_TOKENS;
          float key[HEAD_DIM], value[HEAD_DIM];
          read_entry(k_pages[layer][page][entry], k_codes[layer][page][entry], scales[layer][0], has_codes, key);
          read_entry(v_pages[layer][page][entry], v_codes[layer][page][entry], scales[layer][1], has_codes, value);
          for (int h = 0; h < Q_HEADS; ++h) {
            double sum = 0.0;
            for (int c = 0; c < HEAD_DIM; ++c) sum += (double)qkv[b][h][c] * (double)key[c];
            worst = fmax(worst, fabs(sum - score(layer, b, positions[b], h, first[b] + past)));
          }
          for (int c = 0; c < HEAD_DIM; ++c) {
            /* A code differs from the value by at most half of its last bit. */
            const float exact = projected(layer, b, first[b] + past, Q_HEADS + 1, c);
            const float tolerance = has_codes ? fmaxf(fabsf(exact) / 16.0f, V_SCALE * 0.001f) : 0.0f;
            wrong_values += !(fabsf(value[c] - exact) <= tolerance);
          }
        }
      }
    }
  }
  rope_desc_destroy(desc);
  printf("%d steps of %d sequences through %d layers: scores are within %.1e of the formula, %d values are wrong\n",
         STEPS, SEQUENCES, LAYERS, worst, wrong_values);
  /* Scores are up to 69. With codes each channel has an error of up to 1/16, and most of these errors cancel. */
  return worst < (has_codes ? 1.5 : 1e-4) && wrong_values == 0 ? 0 : 1;
}
