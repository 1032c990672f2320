/* SPDX-License-Identifier: Apache-2.0 */
/* rope_demo.c - runs RoPE and SwiGLU with the geometry of a real model, checks the results and times them
 *
 * It uses librope only through <rope/rope.h>. The reference is computed in long double from the formulas at the top
 * of that header, and shares no code with the library.
 */
#define _GNU_SOURCE /* sched_getaffinity */

#include <math.h>
#include <pthread.h>
#include <rope/rope.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if ROPE_DEMO_CUDA
#include <cuda_runtime_api.h>
#endif

/* ---- Models ----------------------------------------------------------------------------------------------------- */

enum {
  MAX_PAIRS = 128,
  MAX_THREADS = 256,
  CHECKED_TOKENS = 32,
  PAGE_TOKENS = 16,
  TIMED_SAMPLES = 9,
  CHUNK_BYTES = 1 << 20,
  SERIAL_COPY_BYTES = 1 << 20, /* below it, starting threads costs more than they save */
  MARGIN = 12,                 /* columns of the labels */
  COLUMNS = 80
};

typedef struct gating {
  const char *name;
  int32_t activation; /* this and the others as in swiglu_config_t */
  double alpha, limit, up_offset;
} gating_t;

static const gating_t SWIGLU = {"SwiGLU", SWIGLU_ACTIVATION_SWIGLU, 0.0, 0.0, 0.0};
static const gating_t GPT_OSS = {"SwiGLU", SWIGLU_ACTIVATION_SWIGLU, 1.702, 7.0, 1.0};
static const gating_t GEGLU = {"GeGLU", SWIGLU_ACTIVATION_GEGLU_TANH, 0.0, 0.0, 0.0};

/* Multi-head latent attention: one latent head is the key and the value of all heads. */
typedef struct latent {
  int width;   /* channels of the latent head that are not rotated; the rotated ones are head_dim */
  int q_width; /* those of each query head, which lie before its rotated ones */
} latent_t;

static const latent_t DEEPSEEK = {512, 128};

typedef struct model {
  const char *name;
  int q_heads, k_heads, head_dim, rotary_dim;
  rope_style_t style;
  double theta;
  double llama3_factor; /* 0: frequencies straight from theta */
  int64_t context;      /* positions the model was trained for */
  int mlp_width;
  int64_t cpu_tokens; /* default on the CPU: under 1 GiB of memory and a few seconds on two cores */
  const char *note;
  double norm_eps;        /* of the RMS norm of q and k heads before the rotation; 0: none */
  const gating_t *gating; /* of its MLP */
  const latent_t *latent; /* NULL: none */
} model_t;

static const model_t MODELS[] = {
    {"llama-3.1-8b", 32, 8, 128, 128, ROPE_STYLE_HALF, 5e5, 8.0, 131072, 14336, 4096,
     "frequencies scaled by Llama 3.1's recipe, passed as inv_freq", 0.0, &SWIGLU, NULL},
    {"llama-3-70b", 64, 8, 128, 128, ROPE_STYLE_HALF, 5e5, 0.0, 8192, 28672, 2048, "frequencies from theta", 0.0,
     &SWIGLU, NULL},
    {"gpt-j-6b", 16, 16, 256, 64, ROPE_STYLE_INTERLEAVED, 1e4, 0.0, 2048, 16384, 2048,
     "its own MLP has no gate: SwiGLU runs at its width only", 0.0, &SWIGLU, NULL},
    {"qwen2.5-7b", 28, 4, 128, 128, ROPE_STYLE_HALF, 1e6, 0.0, 131072, 18944, 4096, "frequencies from theta", 0.0,
     &SWIGLU, NULL},
    {"qwen3-8b", 32, 8, 128, 128, ROPE_STYLE_HALF, 1e6, 0.0, 40960, 12288, 4096,
     "q and k normed before the rotation, k and v written to a paged cache, in one call", 1e-6, &SWIGLU, NULL},
    {"deepseek-v3", 128, 1, 64, 64, ROPE_STYLE_INTERLEAVED, 1e4, 0.0, 4096, 18432, 2048,
     "the rotated channels of its heads alone, before their context is scaled; then these as the tails of its query "
     "heads, and the latent head written to a paged cache, in one call",
     0.0, &SWIGLU, &DEEPSEEK},
    {"gpt-oss-120b", 64, 8, 64, 64, ROPE_STYLE_HALF, 150000.0, 0.0, 4096, 2880, 4096,
     "before its context is scaled; SwiGLU with its alpha, limit and offset", 0.0, &GPT_OSS, NULL},
    {"gemma-2-9b", 16, 8, 256, 256, ROPE_STYLE_HALF, 1e4, 0.0, 8192, 14336, 4096, "GeGLU by tanh", 0.0, &GEGLU, NULL},
};
#define NUM_MODELS ((int)(sizeof(MODELS) / sizeof(MODELS[0])))

/* Frequencies above the band are kept, those below it are divided by the factor, and those within it are blended. */
static double llama3_inv_freq(double inv_freq, double factor) {
  const double low = 1.0, high = 4.0, original_context = 8192.0;
  const double turns = original_context * inv_freq / (2.0 * 3.14159265358979323846);
  if (turns > high) return inv_freq;
  if (turns < low) return inv_freq / factor;
  const double blend = (turns - low) / (high - low);
  return (1.0 - blend) * inv_freq / factor + blend * inv_freq;
}

/* ---- Failure ---------------------------------------------------------------------------------------------------- */

static void fail(const char *what, const char *reason) {
  fflush(stdout);
  fprintf(stderr, "rope-demo: %s: %s\n", what, reason);
  exit(1);
}

static void check(rope_status_t status, const char *call) {
  if (status == ROPE_STATUS_SUCCESS) return;
  fflush(stdout);
  fprintf(stderr, "rope-demo: %s returned %s: %s\n", call, rope_status_name(status), rope_last_error());
  exit(1);
}

/* ---- The device: memory, copies, time --------------------------------------------------------------------------- */

typedef struct device {
  rope_device_t kind;
  int num_threads; /* CPU */
  rope_stream_t stream;
#if ROPE_DEMO_CUDA
  cudaEvent_t begin, end;
#endif
} device_t;

static int allowed_cpus(void) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  const int count = CPU_COUNT(&set);
  return count < 1 ? 1 : count > MAX_THREADS ? MAX_THREADS : count;
}

#if ROPE_DEMO_CUDA
static void check_cuda(cudaError_t error, const char *call) {
  if (error != cudaSuccess) fail(call, cudaGetErrorString(error));
}
#endif

static void open_device(device_t *device) {
#if ROPE_DEMO_CUDA
  if (device->kind == ROPE_DEVICE_CUDA) {
    check_cuda(cudaSetDevice(0), "cudaSetDevice");
    check_cuda(cudaStreamCreate(&device->stream), "cudaStreamCreate");
    check_cuda(cudaEventCreate(&device->begin), "cudaEventCreate");
    check_cuda(cudaEventCreate(&device->end), "cudaEventCreate");
  }
#endif
  if (device->kind == ROPE_DEVICE_CPU) device->num_threads = allowed_cpus();
}

static void *allocate(const device_t *device, size_t bytes) {
  void *memory = NULL;
#if ROPE_DEMO_CUDA
  if (device->kind == ROPE_DEVICE_CUDA) {
    if (cudaMalloc(&memory, bytes) != cudaSuccess) fail("not enough GPU memory", "try a smaller --tokens");
    return memory;
  }
#endif
  (void)device;
  if (posix_memalign(&memory, 4096, bytes) != 0) fail("not enough memory", "try a smaller --tokens");
  return memory;
}

static void release(const device_t *device, void *memory) {
#if ROPE_DEMO_CUDA
  if (device->kind == ROPE_DEVICE_CUDA) {
    check_cuda(cudaFree(memory), "cudaFree");
    return;
  }
#endif
  (void)device;
  free(memory);
}

static void write_memory(const device_t *device, void *to, const void *from, size_t bytes) {
#if ROPE_DEMO_CUDA
  if (device->kind == ROPE_DEVICE_CUDA) {
    check_cuda(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    return;
  }
#endif
  (void)device;
  memcpy(to, from, bytes);
}

/* Waits for the stream, then reads. */
static void read_memory(const device_t *device, void *to, const void *from, size_t bytes) {
#if ROPE_DEMO_CUDA
  if (device->kind == ROPE_DEVICE_CUDA) {
    check_cuda(cudaStreamSynchronize(device->stream), "cudaStreamSynchronize");
    check_cuda(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
    return;
  }
#endif
  (void)device;
  memcpy(to, from, bytes);
}

typedef struct copy_part {
  char *to;
  const char *from;
  size_t bytes;
} copy_part_t;

static void *copy_thread(void *part_pointer) {
  const copy_part_t *part = part_pointer;
  memcpy(part->to, part->from, part->bytes);
  return NULL;
}

static void copy_memory(const device_t *device, void *to, const void *from, size_t bytes) {
#if ROPE_DEMO_CUDA
  if (device->kind == ROPE_DEVICE_CUDA) {
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, device->stream), "cudaMemcpyAsync");
    return;
  }
#endif
  copy_part_t parts[MAX_THREADS];
  pthread_t threads[MAX_THREADS];
  const int num_threads = bytes < SERIAL_COPY_BYTES ? 1 : device->num_threads;
  const size_t part_bytes = bytes / (size_t)num_threads / 64 * 64;
  for (int i = 0; i < num_threads; ++i) {
    const size_t begin = part_bytes * (size_t)i;
    const size_t end = i + 1 == num_threads ? bytes : begin + part_bytes;
    parts[i] = (copy_part_t){(char *)to + begin, (const char *)from + begin, end - begin};
  }
  for (int i = 1; i < num_threads; ++i) {
    if (pthread_create(&threads[i], NULL, copy_thread, &parts[i]) != 0) fail("pthread_create", "failed");
  }
  copy_thread(&parts[0]);
  for (int i = 1; i < num_threads; ++i) pthread_join(threads[i], NULL);
}

/* ---- Operations and their timing -------------------------------------------------------------------------------- */

typedef enum {
  ROPE_FORWARD,
  ROPE_BACKWARD,
  SWIGLU_FORWARD,
  SWIGLU_BACKWARD,
  COPY
} operation_kind_t;

typedef struct operation {
  operation_kind_t kind;
  const rope_desc_t *rope;
  rope_args_t rope_args;
  const swiglu_desc_t *swiglu;
  swiglu_args_t swiglu_args;
  void *copy_to;
  const void *copy_from;
  size_t copy_bytes;
} operation_t;

static void run(const device_t *device, const operation_t *operation) {
  switch (operation->kind) {
    case ROPE_FORWARD:
      check(rope_forward(operation->rope, &operation->rope_args, device->stream), "rope_forward");
      break;
    case ROPE_BACKWARD:
      check(rope_backward(operation->rope, &operation->rope_args, device->stream), "rope_backward");
      break;
    case SWIGLU_FORWARD:
      check(swiglu_forward(operation->swiglu, &operation->swiglu_args, device->stream), "swiglu_forward");
      break;
    case SWIGLU_BACKWARD:
      check(swiglu_backward(operation->swiglu, &operation->swiglu_args, device->stream), "swiglu_backward");
      break;
    case COPY:
      copy_memory(device, operation->copy_to, operation->copy_from, operation->copy_bytes);
      break;
  }
}

static double seconds_of_calls(const device_t *device, const operation_t *operation, int calls) {
#if ROPE_DEMO_CUDA
  if (device->kind == ROPE_DEVICE_CUDA) {
    float milliseconds = 0.0f;
    check_cuda(cudaEventRecord(device->begin, device->stream), "cudaEventRecord");
    for (int i = 0; i < calls; ++i) run(device, operation);
    check_cuda(cudaEventRecord(device->end, device->stream), "cudaEventRecord");
    check_cuda(cudaEventSynchronize(device->end), "cudaEventSynchronize");
    check_cuda(cudaEventElapsedTime(&milliseconds, device->begin, device->end), "cudaEventElapsedTime");
    return milliseconds * 1e-3 / calls;
  }
#endif
  struct timespec begin, end;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  for (int i = 0; i < calls; ++i) run(device, operation);
  clock_gettime(CLOCK_MONOTONIC, &end);
  return ((double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec)) / calls;
}

static int compare_doubles(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* The median of several samples after a warm-up; short operations are repeated within a sample. */
static double median_seconds(const device_t *device, const operation_t *operation) {
  double samples[TIMED_SAMPLES];
  seconds_of_calls(device, operation, 1);
  const double estimate = seconds_of_calls(device, operation, 1);
  const int calls = estimate >= 1e-3 ? 1 : estimate <= 5e-6 ? 200 : (int)(1e-3 / estimate);
  for (int i = 0; i < TIMED_SAMPLES; ++i) samples[i] = seconds_of_calls(device, operation, calls);
  qsort(samples, TIMED_SAMPLES, sizeof(samples[0]), compare_doubles);
  return samples[TIMED_SAMPLES / 2];
}

/* Reads half of the bytes and writes the other half, like the operation that it is compared with. */
static double copy_seconds(const device_t *device, size_t bytes_moved) {
  static char chunk[CHUNK_BYTES];
  const size_t bytes = bytes_moved / 2;
  operation_t operation = {.kind = COPY, .copy_to = allocate(device, bytes), .copy_bytes = bytes};
  char *from = allocate(device, bytes);
  memset(chunk, 1, sizeof(chunk));
  for (size_t at = 0; at < bytes; at += CHUNK_BYTES) {
    write_memory(device, from + at, chunk, bytes - at < CHUNK_BYTES ? bytes - at : CHUNK_BYTES);
  }
  operation.copy_from = from;
  const double seconds = median_seconds(device, &operation);
  release(device, operation.copy_to);
  release(device, from);
  return seconds;
}

/* ---- bf16 data that can be recomputed instead of stored
 * ------------------------------------------------------------- */

typedef enum {
  DATA_Q = 1,
  DATA_K,
  DATA_GRAD_Q,
  DATA_GRAD_K,
  DATA_GATE,
  DATA_UP,
  DATA_GRAD_OUT,
  DATA_V,
  DATA_Q_WEIGHT,
  DATA_K_WEIGHT,
  DATA_LATENT
} data_t;

/* Element `index` of a tensor: either sign, magnitude from 1/4 to 4. */
static uint16_t bf16_data(data_t data, uint64_t index) {
  uint64_t x = index / 4 + ((uint64_t)data << 56);
  x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
  x ^= x >> 31;
  const unsigned bits = (unsigned)(x >> (index % 4 * 16)) & 0xffff;
  return (uint16_t)((bits & 0x807f) | (125 + (bits >> 7 & 3)) << 7);
}

static long double value_of(uint16_t bf16) {
  const uint32_t bits = (uint32_t)bf16 << 16;
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

static void *allocate_data(const device_t *device, data_t data, int64_t elements) {
  static uint16_t chunk[CHUNK_BYTES / sizeof(uint16_t)];
  const int64_t chunk_elements = sizeof(chunk) / sizeof(chunk[0]);
  uint16_t *memory = allocate(device, (size_t)elements * sizeof(chunk[0]));
  for (int64_t at = 0; at < elements; at += chunk_elements) {
    const int64_t count = elements - at < chunk_elements ? elements - at : chunk_elements;
    for (int64_t i = 0; i < count; ++i) chunk[i] = bf16_data(data, (uint64_t)(at + i));
    write_memory(device, memory + at, chunk, (size_t)count * sizeof(chunk[0]));
  }
  return memory;
}

static rope_tensor_t bf16_tensor(void *data, int ndim, int64_t shape0, int64_t shape1, int64_t shape2) {
  return (rope_tensor_t){
      .data = data, .dtype = ROPE_DTYPE_BF16, .ndim = (uint16_t)ndim, .shape = {shape0, shape1, shape2, 0}};
}

/* ---- Verification ----------------------------------------------------------------------------------------------- */

static int num_checked(int64_t tokens) {
  return tokens < CHECKED_TOKENS ? (int)tokens : CHECKED_TOKENS;
}

/* Evenly distributed, including the first and the last token. */
static int64_t checked_token(int i, int64_t tokens) {
  const int count = num_checked(tokens);
  return count == 1 ? 0 : (tokens - 1) * i / (count - 1);
}

/* The distance between neighbouring numbers with `mantissa_bits` and float's range of exponents. */
static long double ulp(long double value, int mantissa_bits) {
  int exponent;
  frexpl(value, &exponent);
  return ldexpl(1.0L, (value == 0 || exponent < -125 ? -126 : exponent - 1) - mantissa_bits);
}

/* The error of one output relative to the permitted error: half a bf16 ulp for the rounding at the store, and
 * `fp32_error` for the arithmetic before it. NaN counts as infinite. */
static double error_share(uint16_t output, long double exact, long double fp32_error) {
  const long double value = value_of(output);
  const double share = (double)(fabsl(value - exact) / (0.5L * ulp(value, 7) + fp32_error));
  return share == share ? share : INFINITY;
}

/* The larger error of the two channels of a pair (x, y) rotated by the angle with cosine c and sine s. `arithmetic`
 * is the error of fp32 relative to the pair's length. */
static double pair_error(uint16_t output_x, uint16_t output_y, long double x, long double y, long double c,
                         long double s, long double arithmetic) {
  const long double fp32_error = arithmetic * sqrtl(x * x + y * y);
  return fmax(error_share(output_x, x * c - y * s, fp32_error), error_share(output_y, x * s + y * c, fp32_error));
}

typedef struct rotation {
  const model_t *model;
  int64_t tokens, first_position;
  long double inv_freq[MAX_PAIRS];
} rotation_t;

static double rope_error(const device_t *device, const rotation_t *rotation, data_t data, int heads,
                         const uint16_t *output, int direction) {
  const int head_dim = rotation->model->head_dim, pairs = rotation->model->rotary_dim / 2;
  const int half = rotation->model->style == ROPE_STYLE_HALF;
  const size_t row = (size_t)heads * (size_t)head_dim;
  uint16_t *outputs = malloc(row * sizeof(*outputs));
  if (outputs == NULL) fail("not enough memory", "for the check");
  double worst = 0.0;
  for (int i = 0; i < num_checked(rotation->tokens); ++i) {
    const int64_t token = checked_token(i, rotation->tokens);
    const long double position = (long double)(rotation->first_position + token);
    const uint64_t first = (uint64_t)token * row;
    read_memory(device, outputs, output + first, row * sizeof(*outputs));
    for (int pair = 0; pair < pairs; ++pair) {
      const long double angle = position * rotation->inv_freq[pair];
      const long double c = cosl(angle), s = direction * sinl(angle);
      for (int head = 0; head < heads; ++head) {
        const size_t at_x = (size_t)(head * head_dim + (half ? pair : 2 * pair));
        const size_t at_y = (size_t)(head * head_dim + (half ? pair + pairs : 2 * pair + 1));
        const long double x = value_of(bf16_data(data, first + at_x)), y = value_of(bf16_data(data, first + at_y));
        worst = fmax(worst, pair_error(outputs[at_x], outputs[at_y], x, y, c, s, 2e-7L));
      }
    }
    for (int head = 0; head < heads; ++head) {
      for (int channel = 2 * pairs; channel < head_dim; ++channel) {
        const size_t at = (size_t)(head * head_dim + channel);
        if (outputs[at] != bf16_data(data, first + at)) worst = INFINITY;
      }
    }
  }
  free(outputs);
  return worst;
}

/* The slot of a token in a cache in which pages are assigned from the last one on. */
static int64_t slot_of(int64_t token, int64_t pages) {
  return (pages - 1 - token / PAGE_TOKENS) * PAGE_TOKENS + token % PAGE_TOKENS;
}

/* The error of heads that are normalised and rotated over their full width, in the half style. */
static double step_error(const device_t *device, const rotation_t *rotation, data_t data, data_t weight_data, int heads,
                         const uint16_t *rows, int64_t pages) {
  const int head_dim = rotation->model->head_dim, pairs = head_dim / 2;
  const size_t row = (size_t)heads * (size_t)head_dim;
  uint16_t *outputs = malloc(row * sizeof(*outputs));
  if (outputs == NULL) fail("not enough memory", "for the check");
  double worst = 0.0;
  for (int i = 0; i < num_checked(rotation->tokens); ++i) {
    const int64_t token = checked_token(i, rotation->tokens);
    const long double position = (long double)(rotation->first_position + token);
    read_memory(device, outputs, rows + (size_t)(pages == 0 ? token : slot_of(token, pages)) * row,
                row * sizeof(*outputs));
    for (int head = 0; head < heads; ++head) {
      const uint64_t first = (uint64_t)token * row + (uint64_t)(head * head_dim);
      long double squares = 0.0L;
      for (int channel = 0; channel < head_dim; ++channel) {
        const long double x = value_of(bf16_data(data, first + (uint64_t)channel));
        squares += x * x;
      }
      const long double factor = 1.0L / sqrtl(squares / head_dim + (long double)rotation->model->norm_eps);
      for (int pair = 0; pair < pairs; ++pair) {
        const long double angle = position * rotation->inv_freq[pair];
        const uint64_t low = (uint64_t)pair, high = (uint64_t)(pair + pairs);
        const long double x = value_of(bf16_data(data, first + low)) * factor * value_of(bf16_data(weight_data, low));
        const long double y = value_of(bf16_data(data, first + high)) * factor * value_of(bf16_data(weight_data, high));
        const uint16_t *output = outputs + head * head_dim;
        worst = fmax(worst, pair_error(output[low], output[high], x, y, cosl(angle), sinl(angle), 7e-7L));
      }
    }
  }
  free(outputs);
  return worst;
}

/* The former place of a head's channels: channel c of head h of token t is element (t * heads + h) * stride + first
 * + c. */
typedef struct source {
  data_t data;
  int stride, first;
} source_t;

/* The error of heads with `pass_width` copied channels, followed by head_dim channels rotated in the interleaved
 * style. */
static double tail_error(const device_t *device, const rotation_t *rotation, source_t pass, int pass_width,
                         source_t tail, int heads, const uint16_t *rows, int64_t pages) {
  const int tail_width = rotation->model->head_dim, width = pass_width + tail_width;
  const size_t row = (size_t)heads * (size_t)width;
  uint16_t *outputs = malloc(row * sizeof(*outputs));
  if (outputs == NULL) fail("not enough memory", "for the check");
  double worst = 0.0;
  for (int i = 0; i < num_checked(rotation->tokens); ++i) {
    const int64_t token = checked_token(i, rotation->tokens);
    const long double position = (long double)(rotation->first_position + token);
    read_memory(device, outputs, rows + (size_t)(pages == 0 ? token : slot_of(token, pages)) * row,
                row * sizeof(*outputs));
    for (int head = 0; head < heads; ++head) {
      const uint64_t number = (uint64_t)(token * heads + head);
      const uint64_t pass_at = number * (uint64_t)pass.stride + (uint64_t)pass.first;
      const uint64_t tail_at = number * (uint64_t)tail.stride + (uint64_t)tail.first;
      const uint16_t *output = outputs + head * width;
      for (int channel = 0; channel < pass_width; ++channel) {
        if (output[channel] != bf16_data(pass.data, pass_at + (uint64_t)channel)) worst = INFINITY;
      }
      for (int pair = 0; pair < tail_width / 2; ++pair) {
        const long double angle = position * rotation->inv_freq[pair];
        const uint64_t at = tail_at + 2 * (uint64_t)pair;
        const uint16_t *turned = output + pass_width + 2 * pair;
        worst = fmax(worst, pair_error(turned[0], turned[1], value_of(bf16_data(tail.data, at)),
                                       value_of(bf16_data(tail.data, at + 1)), cosl(angle), sinl(angle), 2e-7L));
      }
    }
  }
  free(outputs);
  return worst;
}

/* The error of values, which a cache holds unchanged. */
static double copy_error(const device_t *device, int64_t tokens, data_t data, size_t row, const uint16_t *rows,
                         int64_t pages) {
  uint16_t *outputs = malloc(row * sizeof(*outputs));
  if (outputs == NULL) fail("not enough memory", "for the check");
  double worst = 0.0;
  for (int i = 0; i < num_checked(tokens); ++i) {
    const int64_t token = checked_token(i, tokens);
    read_memory(device, outputs, rows + (size_t)slot_of(token, pages) * row, row * sizeof(*outputs));
    for (size_t at = 0; at < row; ++at) {
      if (outputs[at] != bf16_data(data, (uint64_t)token * row + at)) worst = INFINITY;
    }
  }
  free(outputs);
  return worst;
}

/* An output of SwiGLU, and the magnitude of the largest term in its sum. */
typedef struct exact {
  long double value, largest_term;
} exact_t;

typedef exact_t (*swiglu_formula_t)(const gating_t *gating, long double gate, long double up, long double grad_out);

/* s in the formula at swiglu_forward in rope.h, and its derivative. */
typedef struct factor {
  long double value, slope;
} factor_t;

static factor_t factor_of(const gating_t *gating, long double gate) {
  if (gating->activation == SWIGLU_ACTIVATION_GEGLU_TANH) {
    const long double scale = sqrtl(2.0L / 3.14159265358979323846L), cubic = 0.044715L;
    const long double tangent = tanhl(scale * (gate + cubic * gate * gate * gate));
    const long double slope = scale * (1.0L + 3.0L * cubic * gate * gate);
    return (factor_t){(1.0L + tangent) / 2.0L, (1.0L - tangent * tangent) / 2.0L * slope};
  }
  const long double alpha = gating->alpha == 0.0 ? 1.0L : (long double)gating->alpha;
  const long double sigmoid = 1.0L / (1.0L + expl(-alpha * gate));
  return (factor_t){sigmoid, alpha * sigmoid * (1.0L - sigmoid)};
}

static long double limited_gate(const gating_t *gating, long double gate) {
  return gating->limit == 0.0 ? gate : fminl(gate, (long double)gating->limit);
}

static long double limited_up(const gating_t *gating, long double up) {
  const long double limit = gating->limit == 0.0 ? INFINITY : (long double)gating->limit;
  return fmaxl(-limit, fminl(up, limit));
}

static exact_t swiglu_out(const gating_t *gating, long double gate, long double up, long double grad_out) {
  (void)grad_out;
  const long double g = limited_gate(gating, gate);
  const long double value = g * factor_of(gating, g).value * (limited_up(gating, up) + (long double)gating->up_offset);
  return (exact_t){value, fabsl(value)};
}

/* The sum of two terms, which cancel where the activation has its minimum. */
static exact_t swiglu_grad_gate(const gating_t *gating, long double gate, long double up, long double grad_out) {
  if (limited_gate(gating, gate) != gate) return (exact_t){0.0L, 0.0L};
  const factor_t factor = factor_of(gating, gate);
  const long double of_activation = grad_out * (limited_up(gating, up) + (long double)gating->up_offset);
  const long double first = of_activation * factor.value, second = of_activation * gate * factor.slope;
  return (exact_t){first + second, fmaxl(fabsl(first), fabsl(second))};
}

static exact_t swiglu_grad_up(const gating_t *gating, long double gate, long double up, long double grad_out) {
  if (limited_up(gating, up) != up) return (exact_t){0.0L, 0.0L};
  const long double g = limited_gate(gating, gate), value = grad_out * g * factor_of(gating, g).value;
  return (exact_t){value, fabsl(value)};
}

/* The error that rope.h permits before the rounding of the output. */
static long double swiglu_fp32_error(const gating_t *gating, long double gate, exact_t exact) {
  if (gating->activation == SWIGLU_ACTIVATION_GEGLU_TANH) {
    return 12.0L * ulp(exact.largest_term, 23) + ldexpl(exact.largest_term, -15);
  }
  const int has_alpha = gating->alpha != 0.0 && gating->alpha != 1.0;
  const long double of_alpha = has_alpha ? fabsl((long double)gating->alpha * gate) : 0.0L;
  return (8.0L + of_alpha) * ulp(exact.largest_term, 23);
}

static double swiglu_error(const device_t *device, const gating_t *gating, int64_t tokens, int width,
                           const uint16_t *output, swiglu_formula_t formula) {
  uint16_t *outputs = malloc((size_t)width * sizeof(*outputs));
  if (outputs == NULL) fail("not enough memory", "for the check");
  double worst = 0.0;
  for (int i = 0; i < num_checked(tokens); ++i) {
    const uint64_t first = (uint64_t)checked_token(i, tokens) * (uint64_t)width;
    read_memory(device, outputs, output + first, (size_t)width * sizeof(*outputs));
    for (int channel = 0; channel < width; ++channel) {
      const uint64_t at = first + (uint64_t)channel;
      const long double gate = value_of(bf16_data(DATA_GATE, at));
      const exact_t exact =
          formula(gating, gate, value_of(bf16_data(DATA_UP, at)), value_of(bf16_data(DATA_GRAD_OUT, at)));
      const long double fp32_error = swiglu_fp32_error(gating, gate, exact);
      worst = fmax(worst, error_share(outputs[channel], exact.value, fp32_error));
    }
  }
  free(outputs);
  return worst;
}

/* The number that a code of F8_E4M3 stands for: a sign, four bits of exponent, three of fraction. */
static long double number_of(uint8_t code) {
  const int exponent = code >> 3 & 15, fraction = code & 7;
  if ((code & 127) == 127) return NAN;
  const long double size = exponent == 0 ? ldexpl(fraction, -9) : ldexpl(8 + fraction, exponent - 10);
  return (code & 128) != 0 ? -size : size;
}

/* The larger of the shares of two errors: of the scale of a group's largest magnitude, in fp32, and of codes, half the
 * distance of neighbours. */
static double codes_error(const device_t *device, const gating_t *gating, int64_t tokens, int width, int group,
                          const uint8_t *codes, const float *scales) {
  const int groups = width / group;
  uint8_t *row = malloc((size_t)width);
  float *row_scales = malloc((size_t)groups * sizeof(*row_scales));
  if (row == NULL || row_scales == NULL) fail("not enough memory", "for the check");
  double worst = 0.0;
  for (int i = 0; i < num_checked(tokens); ++i) {
    const int64_t token = checked_token(i, tokens);
    const uint64_t first = (uint64_t)token * (uint64_t)width;
    read_memory(device, row, codes + first, (size_t)width);
    read_memory(device, row_scales, scales + token * groups, (size_t)groups * sizeof(*row_scales));
    for (int g = 0; g < groups; ++g) {
      const long double scale = row_scales[g];
      long double largest = 0.0L, largest_error = 0.0L;
      for (int channel = g * group; channel < (g + 1) * group; ++channel) {
        const uint64_t at = first + (uint64_t)channel;
        const long double gate = value_of(bf16_data(DATA_GATE, at));
        const exact_t exact = swiglu_out(gating, gate, value_of(bf16_data(DATA_UP, at)), 0.0L);
        const long double fp32_error = swiglu_fp32_error(gating, gate, exact) + 2.0L * ulp(exact.value, 23);
        const int exponent = row[channel] >> 3 & 15;
        const long double half = ldexpl(scale, (exponent > 0 ? exponent : 1) - 11);
        const double share = (double)(fabsl(scale * number_of(row[channel]) - exact.value) / (half + fp32_error));
        worst = fmax(worst, share == share ? share : INFINITY);
        if (fabsl(exact.value) > largest) largest = fabsl(exact.value);
        largest_error = fmaxl(largest_error, fp32_error);
      }
      const double share = (double)(fabsl(448.0L * scale - largest) / largest_error);
      worst = fmax(worst, share == share ? share : INFINITY);
    }
  }
  free(row);
  free(row_scales);
  return worst;
}

/* ---- The output ------------------------------------------------------------------------------------------------- */

/* Prints a label and beside it the text, in lines of at most COLUMNS. */
__attribute__((format(printf, 2, 3))) static void print_labelled(const char *label, const char *format, ...) {
  char text[1024];
  va_list values;
  va_start(values, format);
  vsnprintf(text, sizeof(text), format, values);
  va_end(values);
  int column = printf("%-*s", MARGIN - 1, label);
  for (char *word = strtok(text, " "); word != NULL; word = strtok(NULL, " ")) {
    if (column > MARGIN && column + 1 + (int)strlen(word) > COLUMNS) column = printf("\n%*s", MARGIN - 1, "") - 1;
    column += printf(" %s", word);
  }
  putchar('\n');
}

static int report(const device_t *device, const char *name, double worst_error, double seconds, size_t bytes_moved) {
  const int right = worst_error <= 1.0;
  const double copy = copy_seconds(device, bytes_moved);
  printf("%-27s %9.4f %9.3f ms %7.1f GB/s %7.1f %%  %s\n", name, worst_error, seconds * 1e3,
         (double)bytes_moved / seconds * 1e-9, copy / seconds * 100.0, right ? "ok" : "WRONG");
  fflush(stdout);
  return right;
}

/* Positions of the tokens, or, with pages, their slots. */
static rope_tensor_t allocate_places(const device_t *device, const rotation_t *rotation, int64_t pages) {
  const size_t bytes = (size_t)rotation->tokens * sizeof(int64_t);
  int64_t *host_places = malloc(bytes);
  if (host_places == NULL) fail("not enough memory", "try a smaller --tokens");
  for (int64_t i = 0; i < rotation->tokens; ++i) {
    host_places[i] = pages == 0 ? rotation->first_position + i : slot_of(i, pages);
  }
  void *places = allocate(device, bytes);
  write_memory(device, places, host_places, bytes);
  free(host_places);
  return (rope_tensor_t){.data = places, .dtype = ROPE_DTYPE_I64, .ndim = 1, .shape = {rotation->tokens}};
}

static int demonstrate_rope(const device_t *device, const rope_desc_t *desc, const rotation_t *rotation) {
  const model_t *model = rotation->model;
  const int64_t tokens = rotation->tokens;
  const int64_t q_elements = tokens * model->q_heads * model->head_dim;
  const int64_t k_elements = tokens * model->k_heads * model->head_dim;
  const size_t element_bytes = 2 * sizeof(uint16_t); /* read and written */
  const size_t position_bytes = (size_t)tokens * sizeof(int64_t);

  operation_t operation = {.kind = ROPE_FORWARD, .rope = desc};
  rope_args_t *args = &operation.rope_args;
  args->struct_size = sizeof(*args);
  args->positions = allocate_places(device, rotation, 0);

  void *q = allocate_data(device, DATA_Q, q_elements);
  void *k = allocate_data(device, DATA_K, k_elements);
  args->q = bf16_tensor(q, 3, tokens, model->q_heads, model->head_dim);
  args->k = bf16_tensor(k, 3, tokens, model->k_heads, model->head_dim);
  run(device, &operation);
  double worst = rope_error(device, rotation, DATA_Q, model->q_heads, q, 1);
  worst = fmax(worst, rope_error(device, rotation, DATA_K, model->k_heads, k, 1));
  /* The timed calls rotate the same tensors repeatedly, which does not change their magnitude. */
  double seconds = median_seconds(device, &operation);
  release(device, q);
  release(device, k);
  const size_t window = (size_t)(q_elements + k_elements) / (size_t)model->head_dim * (size_t)model->rotary_dim;
  int right = report(device, "RoPE forward, in place", worst, seconds, window * element_bytes + position_bytes);

  operation.kind = ROPE_BACKWARD;
  void *grad_q = allocate_data(device, DATA_GRAD_Q, q_elements);
  void *grad_k = allocate_data(device, DATA_GRAD_K, k_elements);
  void *grad_q_in = allocate(device, (size_t)q_elements * sizeof(uint16_t));
  void *grad_k_in = allocate(device, (size_t)k_elements * sizeof(uint16_t));
  args->q = bf16_tensor(grad_q, 3, tokens, model->q_heads, model->head_dim);
  args->k = bf16_tensor(grad_k, 3, tokens, model->k_heads, model->head_dim);
  args->q_out = bf16_tensor(grad_q_in, 3, tokens, model->q_heads, model->head_dim);
  args->k_out = bf16_tensor(grad_k_in, 3, tokens, model->k_heads, model->head_dim);
  run(device, &operation);
  worst = rope_error(device, rotation, DATA_GRAD_Q, model->q_heads, grad_q_in, -1);
  worst = fmax(worst, rope_error(device, rotation, DATA_GRAD_K, model->k_heads, grad_k_in, -1));
  seconds = median_seconds(device, &operation);
  release(device, grad_q);
  release(device, grad_k);
  release(device, grad_q_in);
  release(device, grad_k_in);
  release(device, args->positions.data);
  const size_t all = (size_t)(q_elements + k_elements) * element_bytes;
  return report(device, "RoPE backward, out of place", worst, seconds, all + position_bytes) && right;
}

/* The operations of a layer between its projections and attention: q and k are normalised and rotated, k and v are
 * written to a cache. */
static int demonstrate_step(const device_t *device, const rope_config_t *rotation_config, const rotation_t *rotation) {
  const model_t *model = rotation->model;
  const int64_t tokens = rotation->tokens, head_dim = model->head_dim;
  const int64_t pages = (tokens + PAGE_TOKENS - 1) / PAGE_TOKENS;
  const int64_t q_elements = tokens * model->q_heads * head_dim, k_elements = tokens * model->k_heads * head_dim;
  const size_t cache_bytes = (size_t)(pages * PAGE_TOKENS * model->k_heads * head_dim) * sizeof(uint16_t);

  rope_config_t config = *rotation_config;
  config.norm = ROPE_NORM_RMS;
  config.norm_eps = model->norm_eps;
  rope_desc_t *desc = NULL;
  check(rope_desc_create(&config, &desc), "rope_desc_create");

  rope_norm_args_t norm = ROPE_NORM_ARGS_INIT;
  norm.q_weight = bf16_tensor(allocate_data(device, DATA_Q_WEIGHT, head_dim), 1, head_dim, 0, 0);
  norm.k_weight = bf16_tensor(allocate_data(device, DATA_K_WEIGHT, head_dim), 1, head_dim, 0, 0);

  rope_cache_args_t cache = ROPE_CACHE_ARGS_INIT;
  cache.k_cache = (rope_tensor_t){.data = allocate(device, cache_bytes),
                                  .dtype = ROPE_DTYPE_BF16,
                                  .ndim = 4,
                                  .shape = {pages, PAGE_TOKENS, model->k_heads, head_dim}};
  cache.v_cache = cache.k_cache;
  cache.v_cache.data = allocate(device, cache_bytes);
  cache.slots = allocate_places(device, rotation, pages);

  operation_t operation = {.kind = ROPE_FORWARD, .rope = desc};
  rope_args_t *args = &operation.rope_args;
  args->struct_size = sizeof(*args);
  args->flags = ROPE_FLAG_V_UNROTATED;
  args->q = bf16_tensor(allocate_data(device, DATA_Q, q_elements), 3, tokens, model->q_heads, head_dim);
  args->k = bf16_tensor(allocate_data(device, DATA_K, k_elements), 3, tokens, model->k_heads, head_dim);
  args->v = bf16_tensor(allocate_data(device, DATA_V, k_elements), 3, tokens, model->k_heads, head_dim);
  args->positions = allocate_places(device, rotation, 0);
  args->norm = &norm;
  args->cache = &cache;
  run(device, &operation);
  double worst = step_error(device, rotation, DATA_Q, DATA_Q_WEIGHT, model->q_heads, args->q.data, 0);
  worst = fmax(worst, step_error(device, rotation, DATA_K, DATA_K_WEIGHT, model->k_heads, cache.k_cache.data, pages));
  worst =
      fmax(worst, copy_error(device, tokens, DATA_V, (size_t)(model->k_heads * head_dim), cache.v_cache.data, pages));
  /* The timed calls normalise the same q repeatedly, which does not change its magnitude. */
  const double seconds = median_seconds(device, &operation);
  void *const memory[] = {args->q.data,         args->k.data,       args->v.data,
                          args->positions.data, norm.q_weight.data, norm.k_weight.data,
                          cache.k_cache.data,   cache.v_cache.data, cache.slots.data};
  for (size_t i = 0; i < sizeof(memory) / sizeof(memory[0]); ++i) release(device, memory[i]);
  rope_desc_destroy(desc);
  const size_t bytes = (size_t)(q_elements + 2 * k_elements) * 2 * sizeof(uint16_t);
  return report(device, "norm, RoPE and paged cache", worst, seconds, bytes + 2 * (size_t)tokens * sizeof(int64_t));
}

/* The step of multi-head latent attention: the tails of q and k_pe are rotated, and k_pe is written with the latent
 * to a paged cache, as one head. q stays where its projection wrote it, in heads of q_width + head_dim. */
static int demonstrate_latent(const device_t *device, const rope_config_t *rotation_config,
                              const rotation_t *rotation) {
  const model_t *model = rotation->model;
  const int tail_width = model->head_dim, width = model->latent->width + tail_width;
  const int q_width = model->latent->q_width + tail_width;
  const int64_t tokens = rotation->tokens, pages = (tokens + PAGE_TOKENS - 1) / PAGE_TOKENS;

  rope_config_t config = *rotation_config;
  config.head_dim = width;
  config.rotary_dim = tail_width;
  config.rotary_offset = model->latent->width;
  rope_desc_t *desc = NULL;
  check(rope_desc_create(&config, &desc), "rope_desc_create");

  rope_input_args_t input = ROPE_INPUT_ARGS_INIT;
  input.k_pass = bf16_tensor(allocate_data(device, DATA_LATENT, tokens * model->latent->width), 3, tokens, 1,
                             model->latent->width);
  rope_cache_args_t cache = ROPE_CACHE_ARGS_INIT;
  cache.k_cache = (rope_tensor_t){.data = allocate(device, (size_t)(pages * PAGE_TOKENS * width) * sizeof(uint16_t)),
                                  .dtype = ROPE_DTYPE_BF16,
                                  .ndim = 4,
                                  .shape = {pages, PAGE_TOKENS, 1, width}};
  cache.slots = allocate_places(device, rotation, pages);

  operation_t operation = {.kind = ROPE_FORWARD, .rope = desc};
  rope_args_t *args = &operation.rope_args;
  args->struct_size = sizeof(*args);
  const rope_tensor_t q =
      bf16_tensor(allocate_data(device, DATA_Q, tokens * model->q_heads * q_width), 3, tokens, model->q_heads, q_width);
  check(rope_tensor_narrow(&q, 2, model->latent->q_width, tail_width, &args->q), "rope_tensor_narrow");
  args->k = bf16_tensor(allocate_data(device, DATA_K, tokens * tail_width), 3, tokens, 1, tail_width);
  args->positions = allocate_places(device, rotation, 0);
  args->cache = &cache;
  args->input = &input;
  run(device, &operation);
  const source_t q_pass = {DATA_Q, q_width, 0}, q_tail = {DATA_Q, q_width, model->latent->q_width};
  const source_t latent = {DATA_LATENT, model->latent->width, 0}, k_pe = {DATA_K, tail_width, 0};
  double worst = tail_error(device, rotation, q_pass, model->latent->q_width, q_tail, model->q_heads, q.data, 0);
  worst = fmax(worst, tail_error(device, rotation, latent, model->latent->width, k_pe, 1, cache.k_cache.data, pages));
  /* The timed calls rotate the same q repeatedly, which does not change its magnitude. */
  const double seconds = median_seconds(device, &operation);
  void *const memory[] = {q.data,          args->k.data, args->positions.data, input.k_pass.data, cache.k_cache.data,
                          cache.slots.data};
  for (size_t i = 0; i < sizeof(memory) / sizeof(memory[0]); ++i) release(device, memory[i]);
  rope_desc_destroy(desc);
  const size_t bytes = (size_t)(tokens * (model->q_heads * tail_width + width)) * 2 * sizeof(uint16_t);
  return report(device, "RoPE and latent cache", worst, seconds, bytes + 2 * (size_t)tokens * sizeof(int64_t));
}

static int demonstrate_swiglu(const device_t *device, const swiglu_desc_t *desc, const model_t *model, int64_t tokens) {
  const gating_t *gating = model->gating;
  const int width = model->mlp_width;
  char label[32];
  const int64_t elements = tokens * width;
  const size_t tensor_bytes = (size_t)elements * sizeof(uint16_t);
  void *gate = allocate_data(device, DATA_GATE, elements);
  void *up = allocate_data(device, DATA_UP, elements);
  void *out = allocate(device, tensor_bytes);

  operation_t operation = {.kind = SWIGLU_FORWARD, .swiglu = desc};
  swiglu_args_t *args = &operation.swiglu_args;
  args->struct_size = sizeof(*args);
  args->gate = bf16_tensor(gate, 2, tokens, width, 0);
  args->up = bf16_tensor(up, 2, tokens, width, 0);
  args->out = bf16_tensor(out, 2, tokens, width, 0);
  run(device, &operation);
  double worst = swiglu_error(device, gating, tokens, width, out, swiglu_out);
  double seconds = median_seconds(device, &operation);
  release(device, out);
  snprintf(label, sizeof(label), "%s forward", gating->name);
  int right = report(device, label, worst, seconds, 3 * tensor_bytes);

  /* For the next product in FP8: codes, and a scale of each group of channels. */
  const int group = width % 128 == 0 ? 128 : 64;
  const size_t scale_bytes = (size_t)(elements / group) * sizeof(float);
  args->out.data = allocate(device, (size_t)elements);
  args->out.dtype = ROPE_DTYPE_F8_E4M3;
  swiglu_quant_args_t quant = SWIGLU_QUANT_ARGS_INIT;
  quant.scales_out = (rope_tensor_t){.data = allocate(device, scale_bytes),
                                     .dtype = ROPE_DTYPE_F32,
                                     .ndim = 2,
                                     .shape = {tokens, width / group, 0, 0}};
  args->quant = &quant;
  run(device, &operation);
  worst = codes_error(device, gating, tokens, width, group, args->out.data, quant.scales_out.data);
  seconds = median_seconds(device, &operation);
  release(device, args->out.data);
  release(device, quant.scales_out.data);
  args->quant = NULL;
  snprintf(label, sizeof(label), "%s forward to FP8", gating->name);
  right = report(device, label, worst, seconds, 2 * tensor_bytes + (size_t)elements + scale_bytes) && right;

  void *grad_out = allocate_data(device, DATA_GRAD_OUT, elements);
  void *grad_gate = allocate(device, tensor_bytes);
  void *grad_up = allocate(device, tensor_bytes);
  operation.kind = SWIGLU_BACKWARD;
  args->out = (rope_tensor_t){0};
  args->grad_out = bf16_tensor(grad_out, 2, tokens, width, 0);
  args->grad_gate = bf16_tensor(grad_gate, 2, tokens, width, 0);
  args->grad_up = bf16_tensor(grad_up, 2, tokens, width, 0);
  run(device, &operation);
  worst = swiglu_error(device, gating, tokens, width, grad_gate, swiglu_grad_gate);
  worst = fmax(worst, swiglu_error(device, gating, tokens, width, grad_up, swiglu_grad_up));
  seconds = median_seconds(device, &operation);
  release(device, gate);
  release(device, up);
  release(device, grad_out);
  release(device, grad_gate);
  release(device, grad_up);
  snprintf(label, sizeof(label), "%s backward", gating->name);
  return report(device, label, worst, seconds, 5 * tensor_bytes) && right;
}

/* ---- The command line ------------------------------------------------------------------------------------------- */

static void print_help(FILE *to) {
  fprintf(to,
          "rope-demo [--device auto|cpu|cuda] [--model NAME] [--tokens N] [--help]\n"
          "\n"
          "Applies RoPE to the queries and keys of a model, and SwiGLU or GeGLU of its MLP, forward and backward;\n"
          "checks the results against a reference and prints errors, times and rates. Of qwen3-8b and deepseek-v3 it\n"
          "also runs what stands around the rotation, a norm and the writes of a cache, in one call.\n"
          "\n"
          "  --device  auto (the default) takes the first CUDA device if there is one, and the CPU otherwise\n"
          "  --model   the geometry to use:\n");
  for (int i = 0; i < NUM_MODELS; ++i) {
    const model_t *model = &MODELS[i];
    fprintf(to, "              %-13s %d query heads, %d key heads of %d channels, MLP width %d%s\n", model->name,
            model->q_heads, model->k_heads, model->head_dim, model->mlp_width, i == 0 ? " (the default)" : "");
  }
  fprintf(to, "  --tokens  how many tokens to process, 1 to 1048576; by default 16384 on CUDA and fewer on the CPU\n");
}

static void usage_error(const char *option, const char *value) {
  if (value == NULL) {
    fprintf(stderr, "rope-demo: %s is not an option, or lacks its value\n\n", option);
  } else {
    fprintf(stderr, "rope-demo: %s cannot be '%s'\n\n", option, value);
  }
  print_help(stderr);
  exit(2);
}

/* Creates a descriptor to test whether the library supports this device; NULL if it does not. */
static rope_desc_t *try_device(rope_config_t *config, const device_t *device) {
  int32_t count = 0;
  rope_desc_t *desc = NULL;
  if (rope_device_count(device->kind, &count) != ROPE_STATUS_SUCCESS || count == 0) return NULL;
  config->device = device->kind;
  config->num_threads = device->num_threads;
  return rope_desc_create(config, &desc) == ROPE_STATUS_SUCCESS ? desc : NULL;
}

int main(int argc, char **argv) {
  const model_t *model = &MODELS[0];
  const char *wanted = "auto";
  int64_t tokens = 0;
  for (int i = 1; i < argc; i += 2) {
    const char *option = argv[i], *value = argv[i + 1];
    if (strcmp(option, "--help") == 0) {
      print_help(stdout);
      return 0;
    }
    if (value == NULL) usage_error(option, NULL);
    if (strcmp(option, "--device") == 0) {
      wanted = value;
      if (strcmp(value, "auto") != 0 && strcmp(value, "cpu") != 0 && strcmp(value, "cuda") != 0) {
        usage_error(option, value);
      }
    } else if (strcmp(option, "--model") == 0) {
      model = NULL;
      for (int m = 0; m < NUM_MODELS; ++m) {
        if (strcmp(value, MODELS[m].name) == 0) model = &MODELS[m];
      }
      if (model == NULL) usage_error(option, value);
    } else if (strcmp(option, "--tokens") == 0) {
      char *end;
      tokens = strtoll(value, &end, 10);
      if (*end != '\0' || tokens < 1 || tokens > 1048576) usage_error(option, value);
    } else {
      usage_error(option, NULL);
    }
  }

  rotation_t rotation = {.model = model};
  double inv_freq[MAX_PAIRS];
  rope_config_t config = {.struct_size = sizeof(config),
                          .dtype = ROPE_DTYPE_BF16,
                          .layout = ROPE_LAYOUT_THD,
                          .style = model->style,
                          .head_dim = model->head_dim,
                          .rotary_dim = model->rotary_dim,
                          .theta = model->theta};
  for (int i = 0; i < model->rotary_dim / 2; ++i) {
    rotation.inv_freq[i] = powl((long double)model->theta, -2.0L * i / model->rotary_dim);
    if (model->llama3_factor != 0.0) {
      inv_freq[i] = llama3_inv_freq((double)rotation.inv_freq[i], model->llama3_factor);
      rotation.inv_freq[i] = inv_freq[i];
      config.inv_freq = inv_freq;
    }
  }

  device_t device = {.kind = ROPE_DEVICE_CUDA};
  rope_desc_t *rope = NULL;
  const int is_auto = strcmp(wanted, "auto") == 0;
  char reason[512] = "";
  if (strcmp(wanted, "cpu") != 0) {
#if ROPE_DEMO_CUDA
    rope = try_device(&config, &device);
    if (rope == NULL) snprintf(reason, sizeof(reason), "%s", rope_last_error());
#else
    int32_t count = 0;
    check(rope_device_count(ROPE_DEVICE_CUDA, &count), "rope_device_count");
    snprintf(reason, sizeof(reason), "%s", count == 0 ? rope_last_error() : "this rope-demo was built without CUDA");
#endif
    if (rope == NULL && strcmp(wanted, "cuda") == 0) fail("no usable CUDA device", reason);
  }
  if (rope == NULL) device.kind = ROPE_DEVICE_CPU;
  open_device(&device);
  if (device.kind == ROPE_DEVICE_CPU) {
    rope = try_device(&config, &device);
    if (rope == NULL) fail("the CPU descriptor could not be created", rope_last_error());
    print_labelled("device", "CPU, %d thread%s%s", device.num_threads, device.num_threads == 1 ? "" : "s",
                   is_auto ? "" : ", as asked");
    if (is_auto) print_labelled("", "no usable CUDA device: %s", reason);
  }
#if ROPE_DEMO_CUDA
  if (device.kind == ROPE_DEVICE_CUDA) {
    struct cudaDeviceProp properties;
    check_cuda(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
    print_labelled("device", "CUDA device 0, %s, %s", properties.name, is_auto ? "preferred to the CPU" : "as asked");
  }
#endif
  print_labelled("library", "%s", rope_build_info());
  if (rope_version() != ROPE_VERSION) {
    print_labelled("", "(this program was built for %d.%d.%d)", ROPE_VERSION_MAJOR, ROPE_VERSION_MINOR,
                   ROPE_VERSION_PATCH);
  }

  swiglu_config_t gating = {.struct_size = sizeof(gating),
                            .device = device.kind,
                            .dtype = ROPE_DTYPE_BF16,
                            .num_threads = device.num_threads,
                            .activation = model->gating->activation,
                            .alpha = model->gating->alpha,
                            .limit = model->gating->limit,
                            .up_offset = model->gating->up_offset};
  swiglu_desc_t *swiglu = NULL;
  check(swiglu_desc_create(&gating, &swiglu), "swiglu_desc_create");

  if (tokens == 0) tokens = device.kind == ROPE_DEVICE_CUDA ? 16384 : model->cpu_tokens;
  rotation.tokens = tokens;
  rotation.first_position = tokens < model->context ? model->context - tokens : 0;
  print_labelled("model", "%s: %d query and %d key heads of %d channels, %d of them rotated in the %s style",
                 model->name, model->q_heads, model->k_heads, model->head_dim, model->rotary_dim,
                 model->style == ROPE_STYLE_HALF ? "half" : "interleaved");
  print_labelled("", "theta %g, MLP width %d; %s", model->theta, model->mlp_width, model->note);
  print_labelled("data", "bf16, %lld tokens from position %lld on; every output of %d of them is checked",
                 (long long)tokens, (long long)rotation.first_position, num_checked(tokens));
  printf("\n%-27s %9s %12s %12s %9s\n", "operation", "max error", "time", "rate", "of a copy");
  int right = demonstrate_rope(&device, rope, &rotation);
  if (model->norm_eps != 0.0) right = demonstrate_step(&device, &config, &rotation) && right;
  if (model->latent != NULL) right = demonstrate_latent(&device, &config, &rotation) && right;
  right = demonstrate_swiglu(&device, swiglu, model, tokens) && right;
  rope_desc_destroy(rope);
  swiglu_desc_destroy(swiglu);

  putchar('\n');
  print_labelled(
      "max error",
      "largest |output - exact| as a share of what librope promises: half a bf16 ulp for the "
      "rounding of the output, and for the arithmetic 2e-7 of the pair's length (RoPE), 7e-7 of it (with a "
      "norm), 8 ulp of fp32 (SwiGLU; with alpha |alpha * gate| more) or 12 and 2^-15 of it (GeGLU); to FP8, with a "
      "scale of 128 or 64 channels, half the distance of two codes; above 1 is wrong");
  print_labelled("time", "median of repeated calls");
  print_labelled("rate", "bytes that must be read and written at least, divided by the time");
  print_labelled("of a copy", "the rate as a share of that of %s moving as many bytes",
                 device.kind == ROPE_DEVICE_CUDA ? "a cudaMemcpyAsync on the GPU" : "memcpy on as many threads");
  if (!right) fail("WRONG", "an output above is further from the reference than librope promises");
  return 0;
}
