/* SPDX-License-Identifier: Apache-2.0 */
/* initialisers.c - the macros ROPE_..._INIT and SWIGLU_..._INIT: all zero but for struct_size, without a warning
 *
 * Compiled and run as every C and C++ that the header is for.
 */
#include <rope/rope.h>
#include <stdio.h>
#include <string.h>

#ifdef __cplusplus
#define VALUE(type, ...) __VA_ARGS__
#else
#define VALUE(type, ...) (type) __VA_ARGS__
#endif

static int failures;

/* struct_size is the first member, where a struct has it. */
static void expect_zero(const void *value, size_t size, uint32_t struct_size, const char *name, const char *use) {
  unsigned char wanted[4096];
  memset(wanted, 0, sizeof(wanted));
  memcpy(wanted, &struct_size, sizeof(struct_size));
  if (memcmp(value, wanted, size) == 0) return;
  fprintf(stderr, "%s, %s: a byte is wrong\n", name, use);
  ++failures;
}

#define CHECK(type, initialiser, struct_size)                                      \
  do {                                                                             \
    static const type constant = initialiser;                                      \
    type defined = initialiser, later;                                             \
    type several[2] = {initialiser, initialiser};                                  \
    memset(&later, 0xff, sizeof(later));                                           \
    later = VALUE(type, initialiser);                                              \
    expect_zero(&constant, sizeof(type), struct_size, #initialiser, "static");     \
    expect_zero(&defined, sizeof(type), struct_size, #initialiser, "automatic");   \
    expect_zero(&several[1], sizeof(type), struct_size, #initialiser, "an array"); \
    expect_zero(&later, sizeof(type), struct_size, #initialiser, "assigned");      \
  } while (0)

int main(void) {
  CHECK(rope_tensor_t, ROPE_TENSOR_INIT, 0);
  CHECK(rope_config_t, ROPE_CONFIG_INIT, sizeof(rope_config_t));
  CHECK(rope_args_t, ROPE_ARGS_INIT, sizeof(rope_args_t));
  CHECK(rope_norm_args_t, ROPE_NORM_ARGS_INIT, sizeof(rope_norm_args_t));
  CHECK(rope_cache_args_t, ROPE_CACHE_ARGS_INIT, sizeof(rope_cache_args_t));
  CHECK(rope_quant_args_t, ROPE_QUANT_ARGS_INIT, sizeof(rope_quant_args_t));
  CHECK(rope_input_args_t, ROPE_INPUT_ARGS_INIT, sizeof(rope_input_args_t));
  CHECK(rope_scaling_t, ROPE_SCALING_INIT, sizeof(rope_scaling_t));
  CHECK(rope_sections_t, ROPE_SECTIONS_INIT, sizeof(rope_sections_t));
  CHECK(swiglu_config_t, SWIGLU_CONFIG_INIT, sizeof(swiglu_config_t));
  CHECK(swiglu_args_t, SWIGLU_ARGS_INIT, sizeof(swiglu_args_t));
  CHECK(swiglu_quant_args_t, SWIGLU_QUANT_ARGS_INIT, sizeof(swiglu_quant_args_t));
  CHECK(swiglu_input_args_t, SWIGLU_INPUT_ARGS_INIT, sizeof(swiglu_input_args_t));
  CHECK(swiglu_column_args_t, SWIGLU_COLUMN_ARGS_INIT, sizeof(swiglu_column_args_t));
  return failures != 0;
}
