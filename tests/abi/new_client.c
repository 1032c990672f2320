/* SPDX-License-Identifier: Apache-2.0 */
/* new_client.c - a program built with a later header, in which the structs are 16 bytes longer
 *
 * While the new fields are zero, calls succeed. Once one is set, the library refuses the call, names the unknown
 * field, and changes nothing.
 */
#include <rope/rope.h>
#include <stdio.h>
#include <string.h>

#define LATER(type)   \
  struct {            \
    type known;       \
    uint8_t tail[16]; \
  }

static int failures;

static void expect(rope_status_t found, rope_status_t wanted, const char *what) {
  if (found == wanted) return;
  fprintf(stderr, "%s: %s instead of %s (%s)\n", what, rope_status_name(found), rope_status_name(wanted),
          rope_last_error());
  ++failures;
}

/* The message names the struct and the offset of the first byte past the fields that the library has. */
static void expect_refused(rope_status_t found, const char *function, const char *name, size_t offset) {
  char wanted[128];
  snprintf(wanted, sizeof(wanted), "%s: %s has a non-zero byte at offset %lu: ", function, name, (unsigned long)offset);
  expect(found, ROPE_STATUS_NOT_SUPPORTED, function);
  if (strncmp(rope_last_error(), wanted, strlen(wanted)) == 0) return;
  fprintf(stderr, "'%s' instead of '%s...'\n", rope_last_error(), wanted);
  ++failures;
}

static void expect_unchanged(float value, const char *what) {
  if (value == 1.0f) return;
  fprintf(stderr, "%s: a refused call wrote to its output\n", what);
  ++failures;
}

static rope_tensor_t vector(float *data, int ndim, int64_t length) {
  rope_tensor_t tensor;
  memset(&tensor, 0, sizeof(tensor));
  tensor.data = data;
  tensor.dtype = ROPE_DTYPE_F32;
  tensor.ndim = (uint16_t)ndim;
  tensor.shape[0] = ndim == 1 ? length : 1;
  tensor.shape[1] = ndim == 1 ? 0 : 1;
  tensor.shape[2] = ndim == 1 ? 0 : length;
  return tensor;
}

static void check_rope(void) {
  LATER(rope_config_t) config;
  LATER(rope_args_t) args;
  rope_desc_t *desc = NULL, *refused = NULL;
  float q[4] = {1.0f, 1.0f, 1.0f, 1.0f};
  char text[256];

  memset(&config, 0, sizeof(config));
  config.known.struct_size = sizeof(config);
  config.known.device = ROPE_DEVICE_CPU;
  config.known.dtype = ROPE_DTYPE_F32;
  config.known.layout = ROPE_LAYOUT_THD;
  config.known.style = ROPE_STYLE_HALF;
  config.known.head_dim = 4;
  config.known.theta = 10000.0;
  expect(rope_desc_create(&config.known, &desc), ROPE_STATUS_SUCCESS, "rope_desc_create, new fields zero");
  config.tail[15] = 1;
  expect_refused(rope_desc_create(&config.known, &refused), "rope_desc_create", "config", sizeof(config.known) + 15);
  if (refused != NULL) ++failures;

  memset(&args, 0, sizeof(args));
  args.known.struct_size = sizeof(args);
  args.known.position_offset = 1;
  args.known.q = vector(q, 3, 4);
  args.tail[0] = 1;
  expect_refused(rope_forward(desc, &args.known, NULL), "rope_forward", "args", sizeof(args.known));
  expect_refused(rope_backward(desc, &args.known, NULL), "rope_backward", "args", sizeof(args.known));
  expect_refused(rope_explain(desc, &args.known, text, sizeof(text)), "rope_explain", "args", sizeof(args.known));
  expect_unchanged(q[0], "rope_forward");
  args.tail[0] = 0;
  expect(rope_forward(desc, &args.known, NULL), ROPE_STATUS_SUCCESS, "rope_forward, new fields zero");
  expect(rope_backward(desc, &args.known, NULL), ROPE_STATUS_SUCCESS, "rope_backward, new fields zero");
  rope_desc_destroy(desc);
}

static void check_swiglu(void) {
  LATER(swiglu_config_t) config;
  LATER(swiglu_args_t) args;
  swiglu_desc_t *desc = NULL, *refused = NULL;
  float gate[1] = {1.0f}, up[1] = {1.0f}, out[1] = {1.0f};
  char text[256];

  memset(&config, 0, sizeof(config));
  config.known.struct_size = sizeof(config);
  config.known.device = ROPE_DEVICE_CPU;
  config.known.dtype = ROPE_DTYPE_F32;
  expect(swiglu_desc_create(&config.known, &desc), ROPE_STATUS_SUCCESS, "swiglu_desc_create, new fields zero");
  config.tail[0] = 1;
  expect_refused(swiglu_desc_create(&config.known, &refused), "swiglu_desc_create", "config", sizeof(config.known));
  if (refused != NULL) ++failures;

  memset(&args, 0, sizeof(args));
  args.known.struct_size = sizeof(args);
  args.known.gate = vector(gate, 1, 1);
  args.known.up = vector(up, 1, 1);
  args.known.out = vector(out, 1, 1);
  args.tail[15] = 1;
  expect_refused(swiglu_forward(desc, &args.known, NULL), "swiglu_forward", "args", sizeof(args.known) + 15);
  expect_refused(swiglu_backward(desc, &args.known, NULL), "swiglu_backward", "args", sizeof(args.known) + 15);
  expect_refused(swiglu_explain(desc, &args.known, text, sizeof(text)), "swiglu_explain", "args",
                 sizeof(args.known) + 15);
  expect_unchanged(out[0], "swiglu_forward");
  args.tail[15] = 0;
  expect(swiglu_forward(desc, &args.known, NULL), ROPE_STATUS_SUCCESS, "swiglu_forward, new fields zero");
  swiglu_desc_destroy(desc);
}

/* The functions that compute on the host. */
static void check_helpers(void) {
  LATER(rope_scaling_t) scaling;
  LATER(rope_sections_t) sections;
  double inv_freq[4], attention_scale = 1.0;
  int32_t pair_axis[4];

  memset(&scaling, 0, sizeof(scaling));
  scaling.known.struct_size = sizeof(scaling);
  scaling.known.type = ROPE_SCALING_NONE;
  expect(rope_scaled_frequencies(8, 10000.0, &scaling.known, inv_freq, &attention_scale), ROPE_STATUS_SUCCESS,
         "rope_scaled_frequencies, new fields zero");
  scaling.tail[0] = 1;
  expect_refused(rope_scaled_frequencies(8, 10000.0, &scaling.known, inv_freq, &attention_scale),
                 "rope_scaled_frequencies", "scaling", sizeof(scaling.known));

  memset(&sections, 0, sizeof(sections));
  sections.known.struct_size = sizeof(sections);
  sections.known.type = ROPE_SECTIONS_CHUNKED;
  sections.known.num_sections = 1;
  sections.known.section[0] = 4;
  expect(rope_section_axes(8, 10000.0, &sections.known, pair_axis, NULL), ROPE_STATUS_SUCCESS,
         "rope_section_axes, new fields zero");
  sections.tail[15] = 1;
  expect_refused(rope_section_axes(8, 10000.0, &sections.known, pair_axis, NULL), "rope_section_axes", "sections",
                 sizeof(sections.known) + 15);
}

int main(void) {
  if (rope_version() != ROPE_VERSION) {
    fprintf(stderr, "the library says version %u, its header %d\n", rope_version(), ROPE_VERSION);
    ++failures;
  }
  check_rope();
  check_swiglu();
  check_helpers();
  return failures != 0;
}
