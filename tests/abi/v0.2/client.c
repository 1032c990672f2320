/* SPDX-License-Identifier: Apache-2.0 */
/* client.c - a program of release 0.2; frozen with the header beside it, it must build and run for ever
 *
 * It norms and rotates q and k and writes k to a cache of 8 bits, and gates experts back to back to 8 bits by row and by
 * column: on the CPU, against the formulas.
 */
#include <math.h>
#include <rope/rope.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOKENS 5
#define HEAD_DIM 16
#define PAIRS (HEAD_DIM / 2)
#define SLOTS 8
#define ROWS 4
#define COLUMNS 32
#define GROUP 16
#define EXPERTS 2

static void check(rope_status_t status) {
  if (status == ROPE_STATUS_SUCCESS) return;
  fprintf(stderr, "%s: %s\n", rope_status_name(status), rope_last_error());
  exit(1);
}

static void expect_within(double found, double wanted, double tolerance, const char *what) {
  if (fabs(found - wanted) <= tolerance) return;
  fprintf(stderr, "%s is %.9g instead of %.9g\n", what, found, wanted);
  exit(1);
}

static void expect(double found, double wanted, const char *what) {
  expect_within(found, wanted, 1e-6 + 1e-6 * fabs(wanted), what);
}

/* The number of a code of E4M3, which is not NaN, and half the distance between codes of that size. */
static double number_of(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double magnitude = exponent == 0 ? ldexp(mantissa, -9) : ldexp(8 + mantissa, exponent - 10);
  return (code & 128) != 0 ? -magnitude : magnitude;
}
static double half_step(double number) {
  return fabs(number) / 16 + ldexp(1, -10);
}

static rope_tensor_t tensor_of(void *data, rope_dtype_t dtype, int ndim, int64_t first, int64_t second, int64_t third,
                               int64_t fourth) {
  rope_tensor_t tensor = ROPE_TENSOR_INIT;
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.ndim = (uint16_t)ndim;
  tensor.shape[0] = first;
  if (ndim > 1) tensor.shape[1] = second;
  if (ndim > 2) tensor.shape[2] = third;
  if (ndim > 3) tensor.shape[3] = fourth;
  return tensor;
}

static float channel(int tensor, int token, int i) {
  return (float)(i % 5 - 2) + 0.25f * (float)token + (float)tensor;
}

/* Channel i of q (tensor 0) or k (1), normed and rotated. */
static double rotated(int tensor, int token, int i) {
  double x[2], sum = 0, inverse, angle;
  int j;
  for (j = 0; j < HEAD_DIM; ++j) sum += (double)channel(tensor, token, j) * channel(tensor, token, j);
  inverse = 1 / sqrt(sum / HEAD_DIM + 1e-5);
  for (j = 0; j < 2; ++j) {
    const int at = i % PAIRS + j * PAIRS;
    x[j] = channel(tensor, token, at) * inverse * (1 + at / 16.0);
  }
  angle = (token + 3) * pow(10000.0, -2.0 * (i % PAIRS) / HEAD_DIM);
  return i < PAIRS ? x[0] * cos(angle) - x[1] * sin(angle) : x[1] * cos(angle) + x[0] * sin(angle);
}

static void check_step(void) {
  static float q[TOKENS][HEAD_DIM], k[TOKENS][HEAD_DIM], weight[HEAD_DIM];
  static uint8_t cache[SLOTS][HEAD_DIM];
  static const int32_t slots[TOKENS] = {6, -1, 0, 3, 1};
  static int64_t fault[2];
  float scale = 0.0625f, amax[3] = {0, 0, 0};
  double largest = 0;
  rope_config_t config = ROPE_CONFIG_INIT;
  rope_norm_args_t norm = ROPE_NORM_ARGS_INIT;
  rope_cache_args_t caches = ROPE_CACHE_ARGS_INIT;
  rope_quant_args_t quant = ROPE_QUANT_ARGS_INIT;
  rope_args_t args = ROPE_ARGS_INIT;
  rope_desc_t *desc = NULL;
  int t, i;

  for (i = 0; i < HEAD_DIM; ++i) weight[i] = 1 + (float)i / 16;
  for (t = 0; t < TOKENS; ++t) {
    for (i = 0; i < HEAD_DIM; ++i) {
      q[t][i] = channel(0, t, i);
      k[t][i] = channel(1, t, i);
    }
  }
  memset(cache, 0x55, sizeof(cache));
  config.device = ROPE_DEVICE_CPU;
  config.dtype = ROPE_DTYPE_F32;
  config.layout = ROPE_LAYOUT_THD;
  config.style = ROPE_STYLE_HALF;
  config.head_dim = HEAD_DIM;
  config.theta = 10000.0;
  config.norm = ROPE_NORM_RMS;
  config.norm_eps = 1e-5;
  check(rope_desc_create(&config, &desc));

  norm.q_weight = norm.k_weight = tensor_of(weight, ROPE_DTYPE_F32, 1, HEAD_DIM, 0, 0, 0);
  caches.k_cache = tensor_of(cache, ROPE_DTYPE_F8_E4M3, 4, SLOTS / 2, 2, 1, HEAD_DIM);
  caches.slots = tensor_of((void *)slots, ROPE_DTYPE_I32, 1, TOKENS, 0, 0, 0);
  quant.k_scale = tensor_of(&scale, ROPE_DTYPE_F32, 1, 1, 0, 0, 0);
  quant.amax_out = tensor_of(amax, ROPE_DTYPE_F32, 1, 3, 0, 0, 0);
  args.q = tensor_of(q, ROPE_DTYPE_F32, 3, TOKENS, 1, HEAD_DIM, 0);
  args.k = tensor_of(k, ROPE_DTYPE_F32, 3, TOKENS, 1, HEAD_DIM, 0);
  args.k_out = args.k; /* otherwise k would go to the cache alone */
  args.fault = tensor_of(fault, ROPE_DTYPE_I64, 1, 2, 0, 0, 0);
  args.position_offset = 3;
  args.norm = &norm;
  args.cache = &caches;
  args.quant = &quant;
  check(rope_forward(desc, &args, NULL));
  rope_desc_destroy(desc);

  for (t = 0; t < TOKENS; ++t) {
    for (i = 0; i < HEAD_DIM; ++i) {
      const double of_k = rotated(1, t, i);
      expect(q[t][i], rotated(0, t, i), "a channel of q");
      expect(k[t][i], of_k, "a channel of k");
      if (slots[t] < 0) continue;
      if (fabs(of_k) > largest) largest = fabs(of_k);
      expect_within(number_of(cache[slots[t]][i]) * scale, of_k, half_step(of_k / scale) * scale + 1e-6,
                    "a channel of the cache");
      expect(cache[7][i], 0x55, "a byte of an entry without a token");
    }
  }
  expect(amax[1], largest, "the largest magnitude of k");
  expect((double)fault[0], 0, "fault");
}

static void check_gating(void) {
  static float gate[ROWS][COLUMNS], up[ROWS][COLUMNS], bias[EXPERTS][COLUMNS];
  static float scales[ROWS][COLUMNS / GROUP], column_scales[ROWS / 2][COLUMNS];
  static uint8_t out[ROWS][COLUMNS], column_out[ROWS][COLUMNS];
  static const int64_t offsets[EXPERTS + 1] = {0, 1, ROWS};
  swiglu_config_t config = SWIGLU_CONFIG_INIT;
  swiglu_quant_args_t quant = SWIGLU_QUANT_ARGS_INIT;
  swiglu_column_args_t column = SWIGLU_COLUMN_ARGS_INIT;
  swiglu_input_args_t input = SWIGLU_INPUT_ARGS_INIT;
  swiglu_args_t args = SWIGLU_ARGS_INIT;
  swiglu_desc_t *desc = NULL;
  char text[256];
  int row, i;

  for (row = 0; row < ROWS; ++row) {
    for (i = 0; i < COLUMNS; ++i) {
      gate[row][i] = (float)(i - 11) * 0.25f + (float)row;
      up[row][i] = (float)(i % 7) * 0.5f - 1.25f;
      if (row < EXPERTS) bias[row][i] = (float)(row + 1) * 0.125f;
    }
  }
  config.device = ROPE_DEVICE_CPU;
  config.dtype = ROPE_DTYPE_F32;
  check(swiglu_desc_create(&config, &desc));
  args.gate = tensor_of(gate, ROPE_DTYPE_F32, 2, ROWS, COLUMNS, 0, 0);
  args.up = tensor_of(up, ROPE_DTYPE_F32, 2, ROWS, COLUMNS, 0, 0);
  args.out = tensor_of(out, ROPE_DTYPE_F8_E4M3, 2, ROWS, COLUMNS, 0, 0);
  quant.scales_out = tensor_of(scales, ROPE_DTYPE_F32, 2, ROWS, COLUMNS / GROUP, 0, 0);
  column.out = tensor_of(column_out, ROPE_DTYPE_F8_E4M3, 2, ROWS, COLUMNS, 0, 0);
  column.scales_out = tensor_of(column_scales, ROPE_DTYPE_F32, 2, ROWS / 2, COLUMNS, 0, 0);
  input.gate_bias = tensor_of(bias, ROPE_DTYPE_F32, 2, EXPERTS, COLUMNS, 0, 0);
  input.expert_offsets = tensor_of((void *)offsets, ROPE_DTYPE_I64, 1, EXPERTS + 1, 0, 0, 0);
  args.quant = &quant;
  args.column = &column;
  args.input = &input;
  check(swiglu_explain(desc, &args, text, sizeof(text)));
  check(swiglu_forward(desc, &args, NULL));
  swiglu_desc_destroy(desc);

  for (row = 0; row < ROWS; ++row) {
    double largest = 0;
    for (i = 0; i < COLUMNS; ++i) {
      const double g = gate[row][i] + bias[row < 1 ? 0 : 1][i], value = g / (1 + exp(-g)) * up[row][i];
      const double scale = scales[row][i / GROUP], of_column = column_scales[row / 2][i];
      if (i % GROUP == 0) largest = 0;
      if (fabs(value) > largest) largest = fabs(value);
      if (i % GROUP == GROUP - 1) expect(scale, largest / 448, "a scale");
      expect_within(number_of(out[row][i]) * scale, value, half_step(value / scale) * scale + 1e-5, "out");
      expect_within(number_of(column_out[row][i]) * of_column, value, half_step(value / of_column) * of_column + 1e-5,
                    "out by column");
    }
  }
}

int main(void) {
  check_step();
  check_gating();
  printf("built for %d.%d.%d, run on: %s\n", ROPE_VERSION_MAJOR, ROPE_VERSION_MINOR, ROPE_VERSION_PATCH,
         rope_build_info());
  return 0;
}
