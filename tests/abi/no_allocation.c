/* SPDX-License-Identifier: Apache-2.0 */
/* no_allocation.c - a call allocates and prints nothing
 *
 * The C library's allocator and mmap are replaced by functions that count, for the whole process including the library's
 * threads, and standard output and error by a file. Then the program makes the calls of a server: after a few calls
 * to warm up, none may allocate or write a byte. Argument: cpu, or cuda, which skips (77) if there is no device.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <rope/rope.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#if ROPE_TEST_CUDA
#include <cuda_runtime_api.h>
#endif

/* glibc's names of the replaced functions. */
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *memory, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);
extern void __libc_free(void *memory);

static int allocations;

static void count(void) {
  __atomic_add_fetch(&allocations, 1, __ATOMIC_RELAXED);
}

void *malloc(size_t size) {
  count();
  return __libc_malloc(size);
}

void *calloc(size_t number, size_t size) {
  count();
  return __libc_calloc(number, size);
}

void *realloc(void *memory, size_t size) {
  count();
  return __libc_realloc(memory, size);
}

void *memalign(size_t alignment, size_t size) {
  count();
  return __libc_memalign(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size) {
  return memalign(alignment, size);
}

int posix_memalign(void **memory, size_t alignment, size_t size) {
  *memory = memalign(alignment, size);
  return *memory == NULL ? ENOMEM : 0;
}

void free(void *memory) {
  if (memory != NULL) count();
  __libc_free(memory);
}

void *mmap(void *address, size_t size, int protection, int flags, int file, off_t offset) {
  count();
  return (void *)syscall(SYS_mmap, address, size, protection, flags, file, offset);
}

static void fail(const char *what) {
  fprintf(stderr, "%s: %s\n", what, rope_last_error());
  exit(1);
}

enum {
  kRuns = 100,
  kLarge = 1 << 20 /* elements: on the CPU enough for several threads */
};

typedef struct {
  rope_desc_t *rope, *norm;
  swiglu_desc_t *swiglu;
  rope_args_t small, large, table, normed, gradient;
  rope_norm_args_t norm_forward, norm_backward;
  swiglu_args_t forward, backward, codes;
  swiglu_column_args_t columns;
} Calls;

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

/* `memory`: five times kLarge floats, if the device has memory. */
static void prepare(rope_device_t device, float *memory, Calls *calls) {
  rope_config_t rope;
  swiglu_config_t swiglu;

  memset(calls, 0, sizeof(*calls));
  memset(&rope, 0, sizeof(rope));
  rope.struct_size = sizeof(rope);
  rope.device = device;
  rope.dtype = ROPE_DTYPE_F32;
  rope.layout = ROPE_LAYOUT_THD;
  rope.style = ROPE_STYLE_HALF;
  rope.head_dim = 64;
  rope.theta = 10000.0;
  rope.num_threads = device == ROPE_DEVICE_CPU ? 3 : 0;
  if (rope_desc_create(&rope, &calls->rope) != ROPE_STATUS_SUCCESS) fail("rope_desc_create");
  rope.norm = ROPE_NORM_RMS;
  rope.norm_eps = 1e-6;
  if (rope_desc_create(&rope, &calls->norm) != ROPE_STATUS_SUCCESS) fail("rope_desc_create with a norm");
  memset(&swiglu, 0, sizeof(swiglu));
  swiglu.struct_size = sizeof(swiglu);
  swiglu.device = device;
  swiglu.dtype = ROPE_DTYPE_F32;
  swiglu.num_threads = rope.num_threads;
  if (swiglu_desc_create(&swiglu, &calls->swiglu) != ROPE_STATUS_SUCCESS) fail("swiglu_desc_create");

  calls->small.struct_size = sizeof(calls->small);
  calls->small.q = tensor(memory, ROPE_DTYPE_F32, 3, 1, 8, 64);
  calls->small.k = tensor(memory + kLarge, ROPE_DTYPE_F32, 3, 1, 2, 64);
  calls->large = calls->small;
  calls->large.q = tensor(memory, ROPE_DTYPE_F32, 3, kLarge / 512, 8, 64);
  calls->large.k = tensor(memory + kLarge, ROPE_DTYPE_F32, 3, kLarge / 512, 2, 64);
  calls->table = calls->large;
  calls->table.cos = tensor(memory + 2 * kLarge, ROPE_DTYPE_F32, 2, kLarge / 512, 32, 0);
  calls->table.sin = tensor(memory + 3 * kLarge, ROPE_DTYPE_F32, 2, kLarge / 512, 32, 0);

  calls->normed = calls->gradient = calls->large;
  calls->norm_forward.struct_size = calls->norm_backward.struct_size = sizeof(calls->norm_forward);
  calls->norm_backward.q_in = tensor(memory + 2 * kLarge, ROPE_DTYPE_F32, 3, kLarge / 512, 8, 64);
  calls->norm_backward.k_in = tensor(memory + 3 * kLarge, ROPE_DTYPE_F32, 3, kLarge / 512, 2, 64);
  calls->norm_backward.grad_q_weight = tensor(memory + 4 * kLarge, ROPE_DTYPE_F32, 2, 3, 64, 0);
  calls->normed.norm = &calls->norm_forward;
  calls->gradient.norm = &calls->norm_backward;

  calls->forward.struct_size = sizeof(calls->forward);
  calls->forward.gate = tensor(memory, ROPE_DTYPE_F32, 2, kLarge / 1024, 1024, 0);
  calls->forward.up = tensor(memory + kLarge, ROPE_DTYPE_F32, 2, kLarge / 1024, 1024, 0);
  calls->forward.out = tensor(memory + 2 * kLarge, ROPE_DTYPE_F32, 2, kLarge / 1024, 1024, 0);
  calls->columns.struct_size = sizeof(calls->columns);
  calls->columns.out = tensor(memory + 3 * kLarge, ROPE_DTYPE_F8_E4M3, 2, kLarge / 1024, 1024, 0);
  calls->columns.scales_out = tensor(memory + 4 * kLarge, ROPE_DTYPE_F8_E8M0, 2, kLarge / 1024 / 32, 1024, 0);
  calls->codes = calls->forward;
  calls->codes.column = &calls->columns;
  calls->backward = calls->forward;
  calls->backward.grad_out = tensor(memory + 3 * kLarge, ROPE_DTYPE_F32, 2, kLarge / 1024, 1024, 0);
  calls->backward.grad_gate = tensor(memory + 4 * kLarge, ROPE_DTYPE_F32, 2, kLarge / 1024, 1024, 0);
}

static void call_all(const Calls *calls) {
  rope_args_t refused = calls->small;
  if (rope_forward(calls->rope, &calls->small, NULL) != ROPE_STATUS_SUCCESS ||
      rope_forward(calls->rope, &calls->large, NULL) != ROPE_STATUS_SUCCESS ||
      rope_forward(calls->rope, &calls->table, NULL) != ROPE_STATUS_SUCCESS) {
    fail("rope_forward");
  }
  if (rope_backward(calls->rope, &calls->small, NULL) != ROPE_STATUS_SUCCESS ||
      rope_backward(calls->rope, &calls->large, NULL) != ROPE_STATUS_SUCCESS) {
    fail("rope_backward");
  }
  if (rope_forward(calls->norm, &calls->normed, NULL) != ROPE_STATUS_SUCCESS) fail("rope_forward with a norm");
  if (rope_backward(calls->norm, &calls->gradient, NULL) != ROPE_STATUS_SUCCESS) fail("rope_backward with a norm");
  if (swiglu_forward(calls->swiglu, &calls->codes, NULL) != ROPE_STATUS_SUCCESS) fail("swiglu_forward by column");
  if (swiglu_forward(calls->swiglu, &calls->forward, NULL) != ROPE_STATUS_SUCCESS) fail("swiglu_forward");
  if (swiglu_backward(calls->swiglu, &calls->backward, NULL) != ROPE_STATUS_SUCCESS) fail("swiglu_backward");
  /* A refusal stores its text in existing memory. */
  refused.q.shape[2] = 63;
  if (rope_forward(calls->rope, &refused, NULL) != ROPE_STATUS_INVALID_ARGUMENT) fail("63 channels were not refused");
}

static void wait_for(rope_device_t device) {
#if ROPE_TEST_CUDA
  if (device == ROPE_DEVICE_CUDA && cudaDeviceSynchronize() != cudaSuccess) fail("cudaDeviceSynchronize");
#else
  (void)device;
#endif
}

int main(int argc, char **argv) {
  const rope_device_t device = argc > 1 && strcmp(argv[1], "cuda") == 0 ? ROPE_DEVICE_CUDA : ROPE_DEVICE_CPU;
  const size_t bytes = sizeof(float) * 5 * kLarge;
  Calls calls;
  float *memory = NULL;
  int32_t devices = 0;
  int run, counted, out, error;
  FILE *printed;
  struct stat status;

  if (rope_device_count(device, &devices) != ROPE_STATUS_SUCCESS || devices == 0) {
    fprintf(stderr, "skipped: %s\n", rope_last_error());
    return 77;
  }
  if (device == ROPE_DEVICE_CUDA) {
#if ROPE_TEST_CUDA
    if (cudaMalloc((void **)&memory, bytes) != cudaSuccess || cudaMemset(memory, 0, bytes) != cudaSuccess) {
      fail("cudaMalloc");
    }
#else
    fprintf(stderr, "skipped: built without CUDA\n");
    return 77;
#endif
  } else {
    memory = calloc(1, bytes);
    if (memory == NULL) fail("calloc");
  }
  if (allocations == 0 && device == ROPE_DEVICE_CPU) fail("the allocator was not replaced");

  prepare(device, memory, &calls);
  for (run = 0; run < 5; ++run) call_all(&calls);
  wait_for(device);
  printed = tmpfile();
  if (printed == NULL) fail("tmpfile");
  out = dup(1);
  error = dup(2);
  dup2(fileno(printed), 1);
  dup2(fileno(printed), 2);
  counted = allocations;
  for (run = 0; run < kRuns; ++run) call_all(&calls);
  counted = allocations - counted;
  wait_for(device);
  dup2(out, 1);
  dup2(error, 2);
  if (fstat(fileno(printed), &status) != 0) fail("fstat");
  fprintf(stderr, "%d times 11 calls: %d allocations, %ld bytes printed\n", kRuns, counted, (long)status.st_size);
  return counted != 0 || status.st_size != 0;
}
