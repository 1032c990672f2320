/* SPDX-License-Identifier: Apache-2.0 */
/* From the config.json of a Hugging Face model extended with YaRN to a descriptor.
 *
 * This program finds JSON keys by text search; a real program would use its JSON library.
 */
#include <math.h>
#include <rope/rope.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PAIRS 512
#define POSITION 120000

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

static const char CONFIG_JSON[] =
    "{\n"
    "  \"hidden_size\": 3584,\n"
    "  \"num_attention_heads\": 28,\n"
    "  \"rope_theta\": 1000000.0,\n"
    "  \"rope_scaling\": {\n"
    "    \"factor\": 4.0,\n"
    "    \"original_max_position_embeddings\": 32768,\n"
    "    \"rope_type\": \"yarn\"\n"
    "  }\n"
    "}\n";

/* The number under a key, or `absent`. */
static double number(const char *json, const char *key, double absent) {
  char quoted[64];
  snprintf(quoted, sizeof(quoted), "\"%s\":", key);
  const char *at = strstr(json, quoted);
  return at == NULL ? absent : strtod(at + strlen(quoted), NULL);
}

int main(void) {
  const char *json = CONFIG_JSON;
  const double heads = number(json, "num_attention_heads", 0);
  const int head_dim = (int)number(json, "head_dim", number(json, "hidden_size", 0) / heads);
  const int rotary_dim = (int)(head_dim * number(json, "partial_rotary_factor", 1));
  const double theta = number(json, "rope_theta", 10000);

  /* Keys that the file lacks become 0, which selects the recipe's default. */
  rope_scaling_t scaling = {.struct_size = sizeof(scaling), .type = ROPE_SCALING_YARN};
  scaling.factor = number(json, "factor", 0);
  scaling.original_max_position = (int64_t)number(json, "original_max_position_embeddings", 0);
  scaling.beta_fast = number(json, "beta_fast", 0);
  scaling.beta_slow = number(json, "beta_slow", 0);
  scaling.attention_factor = number(json, "attention_factor", 0);
  if (number(json, "mscale", 0) != 0 && number(json, "mscale_all_dim", 0) != 0) { /* one alone is ignored */
    scaling.mscale = number(json, "mscale", 0);
    scaling.mscale_all_dim = number(json, "mscale_all_dim", 0);
  }

  double inv_freq[MAX_PAIRS], attention_scale;
  check(rope_scaled_frequencies(rotary_dim, theta, &scaling, inv_freq, &attention_scale));
  rope_config_t config = {.struct_size = sizeof(config),
                          .device = ROPE_DEVICE_CPU,
                          .dtype = ROPE_DTYPE_F32,
                          .layout = ROPE_LAYOUT_THD,
                          .style = ROPE_STYLE_HALF,
                          .head_dim = head_dim,
                          .rotary_dim = rotary_dim,
                          .inv_freq = inv_freq,
                          .attention_scale = attention_scale};
  rope_desc_t *desc;
  check(rope_desc_create(&config, &desc));

  float *q = malloc((size_t)head_dim * sizeof(*q));
  expect(q != NULL, "no memory");
  for (int c = 0; c < head_dim; ++c) q[c] = c < head_dim / 2 ? 1.0f : 0.0f; /* every pair is (1, 0) */
  rope_args_t args = {.struct_size = sizeof(args),
                      .q = {.data = q, .dtype = ROPE_DTYPE_F32, .ndim = 3, .shape = {1, 1, head_dim}},
                      .position_offset = POSITION};
  check(rope_forward(desc, &args, NULL));
  rope_desc_destroy(desc);

  /* High frequencies are kept, low ones are divided by the factor, and cos and sin grow a little. */
  const int last = rotary_dim / 2 - 1;
  expect(fabs(inv_freq[1] / pow(theta, -2.0 / rotary_dim) - 1) < 1e-14, "the frequency of pair 1");
  expect(fabs(inv_freq[last] / (pow(theta, -2.0 * last / rotary_dim) / 4) - 1) < 1e-14, "that of the last pair");
  expect(fabs(attention_scale - (0.1 * log(4.0) + 1)) < 1e-15, "the attention factor");
  for (int i = 0; i <= last; ++i) {
    const double angle = POSITION * inv_freq[i];
    expect(fabs(q[i] - attention_scale * cos(angle)) < 1e-6, "x of a pair");
    expect(fabs(q[i + head_dim / 2] - attention_scale * sin(angle)) < 1e-6, "y of a pair");
  }
  free(q);
  printf("YaRN: %d pairs, the slowest turns once in %.0f positions, attention factor %.6f\n", rotary_dim / 2,
         6.283185307179586 / inv_freq[last], attention_scale);
  return 0;
}
