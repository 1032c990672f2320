/* SPDX-License-Identifier: Apache-2.0 */
/* musl.c - calls from threads with small stacks: musl's default, and 64 KiB */
#include <pthread.h>
#include <rope/rope.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  kTokens = 256,
  kHeads = 4,
  kChannels = 128,
  kElements = kTokens * kHeads * kChannels
};

static double memory[4][kElements];
static uint8_t codes[kElements], scales[kElements];

static void expect_success(rope_status_t status, const char *what) {
  if (status == ROPE_STATUS_SUCCESS) return;
  fprintf(stderr, "%s: %s\n", what, rope_last_error());
  exit(1);
}

static rope_tensor_t tensor(void *data, rope_dtype_t dtype, int ndim, int64_t first, int64_t second, int64_t third) {
  rope_tensor_t view;
  memset(&view, 0, sizeof(view));
  view.data = data;
  view.dtype = dtype;
  view.ndim = (uint16_t)ndim;
  view.shape[0] = first;
  view.shape[1] = second;
  view.shape[2] = third;
  return view;
}

static void call_rope(rope_dtype_t dtype, rope_norm_order_t order, rope_norm_extent_t extent) {
  rope_config_t config = ROPE_CONFIG_INIT;
  rope_args_t args = ROPE_ARGS_INIT;
  rope_norm_args_t norm = ROPE_NORM_ARGS_INIT;
  rope_desc_t *desc = NULL;
  config.device = ROPE_DEVICE_CPU;
  config.dtype = dtype;
  config.layout = ROPE_LAYOUT_THD;
  config.style = ROPE_STYLE_HALF;
  config.head_dim = kChannels;
  config.theta = 10000;
  config.num_threads = 3;
  config.norm = ROPE_NORM_LAYER;
  config.norm_tensors = ROPE_NORM_TENSOR_Q;
  config.norm_order = order;
  config.norm_extent = extent;
  config.norm_eps = 1e-6;
  expect_success(rope_desc_create(&config, &desc), "rope_desc_create");
  args.q = tensor(memory[0], dtype, 3, kTokens, kHeads, kChannels);
  args.q_out = tensor(memory[1], dtype, 3, kTokens, kHeads, kChannels);
  args.norm = &norm;
  expect_success(rope_forward(desc, &args, NULL), "rope_forward");
  norm.q_in = tensor(memory[2], dtype, 3, kTokens, kHeads, kChannels);
  norm.grad_q_weight = tensor(memory[3], dtype == ROPE_DTYPE_F64 ? ROPE_DTYPE_F64 : ROPE_DTYPE_F32, 2, 1, kChannels, 0);
  expect_success(rope_backward(desc, &args, NULL), "rope_backward");
  rope_desc_destroy(desc);
}

static void call_swiglu(rope_dtype_t dtype) {
  swiglu_config_t config = SWIGLU_CONFIG_INIT;
  swiglu_args_t args = SWIGLU_ARGS_INIT;
  swiglu_column_args_t column = SWIGLU_COLUMN_ARGS_INIT;
  swiglu_desc_t *desc = NULL;
  config.device = ROPE_DEVICE_CPU;
  config.dtype = dtype;
  config.num_threads = 3;
  config.activation = SWIGLU_ACTIVATION_GEGLU_ERF;
  config.up_softcap = 2;
  expect_success(swiglu_desc_create(&config, &desc), "swiglu_desc_create");
  args.gate = tensor(memory[0], dtype, 2, kTokens, kHeads * kChannels, 0);
  args.up = tensor(memory[1], dtype, 2, kTokens, kHeads * kChannels, 0);
  args.out = tensor(memory[2], dtype, 2, kTokens, kHeads * kChannels, 0);
  if (dtype != ROPE_DTYPE_F64) {
    column.out = tensor(codes, ROPE_DTYPE_F8_E4M3, 2, kTokens, kHeads * kChannels, 0);
    column.scales_out = tensor(scales, ROPE_DTYPE_F8_E8M0, 2, kTokens / 32, kHeads * kChannels, 0);
    args.column = &column;
  }
  expect_success(swiglu_forward(desc, &args, NULL), "swiglu_forward");
  args.column = NULL;
  args.grad_out = tensor(memory[3], dtype, 2, kTokens, kHeads * kChannels, 0);
  args.grad_gate = args.gate;
  args.grad_up = args.up;
  expect_success(swiglu_backward(desc, &args, NULL), "swiglu_backward");
  swiglu_desc_destroy(desc);
}

static void *call_all(void *context) {
  static const rope_dtype_t dtypes[] = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64};
  static const rope_norm_order_t orders[] = {ROPE_NORM_ORDER_BEFORE, ROPE_NORM_ORDER_AFTER};
  static const rope_norm_extent_t extents[] = {ROPE_NORM_EXTENT_HEAD, ROPE_NORM_EXTENT_TOKEN};
  int i, j, k;
  for (i = 0; i < 4; ++i) {
    for (j = 0; j < 2; ++j) {
      for (k = 0; k < 2; ++k) call_rope(dtypes[i], orders[j], extents[k]);
    }
    call_swiglu(dtypes[i]);
  }
  return context;
}

int main(void) {
  const size_t sizes[] = {0, 64 << 10};
  int i;
  for (i = 0; i < 2; ++i) {
    pthread_attr_t attributes;
    pthread_t thread;
    void *result = NULL;
    pthread_attr_init(&attributes);
    if (sizes[i] != 0) pthread_attr_setstacksize(&attributes, sizes[i]);
    if (pthread_create(&thread, &attributes, call_all, &i) != 0 || pthread_join(thread, &result) != 0 || result != &i) {
      fprintf(stderr, "no thread with a stack of %lu bytes\n", (unsigned long)sizes[i]);
      return 1;
    }
    pthread_attr_destroy(&attributes);
  }
  puts("threads with small stacks made all calls");
  return 0;
}
