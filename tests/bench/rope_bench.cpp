// rope_bench.cpp - how fast librope is, as a share of a copy of the same bytes in the same process
//
// usage: rope_bench [--device cpu|cuda] [--filter TEXT]
//
// --filter runs only the rows with TEXT in their name.
//
// Bytes are the least that the operation can move: every touched element read once and written once, without positions
// and tables. On a GPU each row is timed in graph replays over buffer sets that together exceed the L2 cache (decode
// rows: four sets inside it, as after a projection), and the copy beside it moves the same number of bytes.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "rope/rope.h"
#if defined(ROPE_BENCH_CUDA)
#include "gpu_timer.hpp"
#endif

namespace {

std::string filter;

bool is_wanted(const char *name) {
  return std::string(name).find(filter) != std::string::npos;
}

void check(rope_status_t status) {
  if (status == ROPE_STATUS_SUCCESS) return;
  std::fprintf(stderr, "%s: %s\n", rope_status_name(status), rope_last_error());
  std::exit(1);
}

rope_tensor_t tensor(void *data, rope_dtype_t dtype, std::initializer_list<int64_t> shape) {
  rope_tensor_t result = {};
  result.data = data;
  result.dtype = dtype;
  for (int64_t length : shape) result.shape[result.ndim++] = length;
  return result;
}

rope_desc_t *rope_descriptor(rope_device_t device, rope_dtype_t dtype, rope_style_t style, int head_dim, int rotary_dim,
                             double theta) {
  rope_config_t config = {};
  config.struct_size = sizeof config;
  config.device = device;
  config.dtype = dtype;
  config.layout = ROPE_LAYOUT_THD;
  config.style = style;
  config.head_dim = head_dim;
  config.rotary_dim = rotary_dim;
  config.theta = theta;
  rope_desc_t *desc = nullptr;
  check(rope_desc_create(&config, &desc));
  return desc;
}

#if defined(ROPE_BENCH_CUDA)
swiglu_desc_t *swiglu_descriptor(rope_device_t device, rope_dtype_t dtype) {
  swiglu_config_t config = {};
  config.struct_size = sizeof config;
  config.device = device;
  config.dtype = dtype;
  swiglu_desc_t *desc = nullptr;
  check(swiglu_desc_create(&config, &desc));
  return desc;
}

#endif

void print_row(const char *name, double bytes, double us, double low, double high, double copy_us) {
  std::printf("%-46s %9.1f %9.2f %8.2f-%-8.2f %8.0f %9.2f %7.3f\n", name, bytes / 1e6, us, low, high, bytes / us / 1e3,
              copy_us, copy_us / us);
}

void print_head() {
  std::printf("%-46s %9s %9s %17s %8s %9s %7s\n", "case", "MB moved", "us", "min-max", "GB/s", "copy us", "share");
}

// ---- CPU ----

double best_seconds(const std::function<void()> &run) {
  double best = 1e9;
  for (int i = 0; i < 15; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

void copy_with_all_cores(char *target, const char *source, size_t bytes) {
  const size_t count = std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::thread> threads;
  for (size_t i = 1; i < count; ++i) {
    const size_t begin = bytes / count * i, end = i + 1 == count ? bytes : bytes / count * (i + 1);
    threads.emplace_back([=] { std::memcpy(target + begin, source + begin, end - begin); });
  }
  std::memcpy(target, source, bytes / count);
  for (std::thread &thread : threads) thread.join();
}

void bench_cpu() {
  constexpr size_t kBytes = size_t{64} << 20;
  std::vector<float> data(kBytes / 4, 1.0f), other(kBytes / 4, 1.0f);
  const double copy = best_seconds([&] {
    copy_with_all_cores(reinterpret_cast<char *>(other.data()), reinterpret_cast<char *>(data.data()), kBytes);
  });
  print_head();
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_BF16, ROPE_DTYPE_F16}) {
    const int64_t tokens = static_cast<int64_t>(kBytes / (dtype == ROPE_DTYPE_F32 ? 4 : 2) / (32 * 128));
    rope_desc_t *desc = rope_descriptor(ROPE_DEVICE_CPU, dtype, ROPE_STYLE_HALF, 128, 0, 5e5);
    rope_args_t args = {};
    args.struct_size = sizeof args;
    args.q = tensor(data.data(), dtype, {tokens, 32, 128});
    const double seconds = best_seconds([&] { check(rope_forward(desc, &args, nullptr)); });
    const std::string name = std::string("rope 64 MiB in place, 32 x 128, ") + (dtype == ROPE_DTYPE_F32    ? "f32"
                                                                                : dtype == ROPE_DTYPE_BF16 ? "bf16"
                                                                                                           : "f16");
    if (is_wanted(name.c_str()))
      print_row(name.c_str(), 2.0 * kBytes, seconds * 1e6, seconds * 1e6, seconds * 1e6, copy * 1e6);
    rope_desc_destroy(desc);
  }
}

// ---- CUDA ----

#if defined(ROPE_BENCH_CUDA)

using Enqueue = std::function<void(int set, rope_stream_t)>;

// Enough launches for about 3 ms, at least one of every buffer set.
int launches_for(double bytes, int sets) {
  const double us = bytes / 4.2e6 + 1.0;
  const int wanted = std::max(4, std::min(200, static_cast<int>(3000 / us)));
  return (wanted + sets - 1) / sets * sets;
}

// Buffer sets of a row: enough to exceed three times the L2 cache, at least two.
int sets_for(double bytes) {
  return std::max(2, std::min(64, static_cast<int>(3.0 * static_cast<double>(bench::l2_bytes()) / bytes) + 1));
}

void bench_row(const char *name, double bytes, int sets, const Enqueue &enqueue) {
  const int launches = launches_for(bytes, sets);
  std::vector<char *> source(static_cast<size_t>(sets)), target(static_cast<size_t>(sets));
  const size_t half = static_cast<size_t>(bytes / 2) / 16 * 16;
  static std::vector<char *> pool;
  static size_t pool_bytes = 0;
  const size_t needed = half * static_cast<size_t>(sets) * 2;
  if (needed > pool_bytes) {
    pool.assign(1, static_cast<char *>(bench::device_memory(needed)));
    pool_bytes = needed;
  }
  for (int i = 0; i < sets; ++i) {
    source[static_cast<size_t>(i)] = pool[0] + half * 2 * static_cast<size_t>(i);
    target[static_cast<size_t>(i)] = source[static_cast<size_t>(i)] + half;
  }
  const bench::Spread copy = bench::time_in_graph(launches, [&](int i, rope_stream_t stream) {
    bench::enqueue_copy(target[static_cast<size_t>(i % sets)], source[static_cast<size_t>(i % sets)], half, stream);
  });
  const bench::Spread time =
      bench::time_in_graph(launches, [&](int i, rope_stream_t stream) { enqueue(i % sets, stream); });
  print_row(name, bytes, time.median_us, time.min_us, time.max_us, copy.median_us);
}

struct RopeRow {
  const char *name;
  rope_dtype_t dtype;
  rope_style_t style;
  int64_t tokens, q_heads, k_heads;
  int head_dim, rotary_dim;
  bool is_out_of_place, is_backward, has_positions, is_resident, has_table;
};

void bench_rope(const RopeRow &row) {
  const int64_t size = row.dtype == ROPE_DTYPE_F32 ? 4 : 2;
  const int64_t heads = row.q_heads + row.k_heads;
  const double bytes = 2.0 * static_cast<double>(row.tokens * heads * row.rotary_dim * size);
  const int sets = row.is_resident ? 4 : sets_for(bytes);
  rope_desc_t *desc = rope_descriptor(ROPE_DEVICE_CUDA, row.dtype, row.style, row.head_dim, row.rotary_dim, 5e5);
  std::vector<int64_t> host_positions(static_cast<size_t>(row.tokens));
  for (size_t i = 0; i < host_positions.size(); ++i) host_positions[i] = static_cast<int64_t>(i % 8192);
  void *positions = bench::upload(host_positions.data(), host_positions.size() * 8);
  void *table = row.has_table ? bench::device_memory(size_t{8192} * static_cast<size_t>(row.rotary_dim) * 4) : nullptr;
  std::vector<rope_args_t> args;
  for (int i = 0; i < sets; ++i) {
    rope_args_t arg = {};
    arg.struct_size = sizeof arg;
    const auto make = [&](int64_t count) {
      return tensor(bench::device_memory(static_cast<size_t>(row.tokens * count * row.head_dim * size)), row.dtype,
                    {row.tokens, count, row.head_dim});
    };
    arg.q = make(row.q_heads);
    if (row.k_heads > 0) arg.k = make(row.k_heads);
    if (row.is_out_of_place) arg.q_out = make(row.q_heads);
    if (row.is_out_of_place && row.k_heads > 0) arg.k_out = make(row.k_heads);
    if (row.has_positions) arg.positions = tensor(positions, ROPE_DTYPE_I64, {row.tokens});
    if (row.has_table) {
      const rope_tensor_t cache = tensor(table, ROPE_DTYPE_F32, {8192, row.rotary_dim});
      check(rope_tensor_narrow(&cache, 1, 0, row.rotary_dim / 2, &arg.cos));
      check(rope_tensor_narrow(&cache, 1, row.rotary_dim / 2, row.rotary_dim / 2, &arg.sin));
    }
    args.push_back(arg);
  }
  bench_row(row.name, bytes, sets, [&](int i, rope_stream_t stream) {
    const rope_args_t *arg = &args[static_cast<size_t>(i)];
    check(row.is_backward ? rope_backward(desc, arg, stream) : rope_forward(desc, arg, stream));
  });
  rope_desc_destroy(desc);
}

struct SwigluRow {
  const char *name;
  rope_dtype_t dtype;
  int64_t rows, columns;
  bool is_packed, is_backward, is_resident;
};

void bench_swiglu(const SwigluRow &row) {
  const int64_t size = row.dtype == ROPE_DTYPE_F32 ? 4 : 2;
  const double bytes = static_cast<double>(row.rows * row.columns * size) * (row.is_backward ? 5 : 3);
  const int sets = row.is_resident ? 4 : sets_for(bytes);
  swiglu_desc_t *desc = swiglu_descriptor(ROPE_DEVICE_CUDA, row.dtype);
  std::vector<swiglu_args_t> args;
  for (int i = 0; i < sets; ++i) {
    swiglu_args_t arg = {};
    arg.struct_size = sizeof arg;
    const auto make = [&](int64_t columns) {
      return tensor(bench::device_memory(static_cast<size_t>(row.rows * columns * size)), row.dtype,
                    {row.rows, columns});
    };
    if (row.is_packed) {
      const rope_tensor_t packed = make(2 * row.columns);
      check(rope_tensor_narrow(&packed, 1, 0, row.columns, &arg.gate));
      check(rope_tensor_narrow(&packed, 1, row.columns, row.columns, &arg.up));
    } else {
      arg.gate = make(row.columns);
      arg.up = make(row.columns);
    }
    if (row.is_backward) {
      arg.grad_out = make(row.columns);
      arg.grad_gate = make(row.columns);
      arg.grad_up = make(row.columns);
    } else {
      arg.out = make(row.columns);
    }
    args.push_back(arg);
  }
  bench_row(row.name, bytes, sets, [&](int i, rope_stream_t stream) {
    const swiglu_args_t *arg = &args[static_cast<size_t>(i)];
    check(row.is_backward ? swiglu_backward(desc, arg, stream) : swiglu_forward(desc, arg, stream));
  });
  swiglu_desc_destroy(desc);
}

void bench_host_call() {
  rope_desc_t *desc = rope_descriptor(ROPE_DEVICE_CUDA, ROPE_DTYPE_BF16, ROPE_STYLE_HALF, 128, 128, 5e5);
  rope_args_t args = {};
  args.struct_size = sizeof args;
  args.q = tensor(bench::device_memory(8 * 64 * 128 * 2), ROPE_DTYPE_BF16, {8, 64, 128});
  args.k = tensor(bench::device_memory(8 * 8 * 128 * 2), ROPE_DTYPE_BF16, {8, 8, 128});
  constexpr int kCalls = 200;
  const double seconds = best_seconds([&] {
    for (int i = 0; i < kCalls; ++i) check(rope_forward(desc, &args, nullptr));
  });
  std::printf("host time of one rope_forward call, launch included: %.2f us\n", seconds / kCalls * 1e6);
  rope_desc_destroy(desc);
}

void bench_cuda() {
  std::printf("%s, L2 %.1f MB\n", bench::device_name(), static_cast<double>(bench::l2_bytes()) / 1e6);
  print_head();
  constexpr rope_dtype_t bf16 = ROPE_DTYPE_BF16, f16 = ROPE_DTYPE_F16, f32 = ROPE_DTYPE_F32;
  constexpr rope_style_t half = ROPE_STYLE_HALF, interleaved = ROPE_STYLE_INTERLEAVED;
  const RopeRow rope_rows[] = {
      {"rope llama-3-70b prefill, 16384 tokens bf16", bf16, half, 16384, 64, 8, 128, 128, false, false, false, false,
       false},
      {"rope llama-3-70b prefill, I64 positions", bf16, half, 16384, 64, 8, 128, 128, false, false, true, false, false},
      {"rope llama-3-70b prefill, out of place", bf16, half, 16384, 64, 8, 128, 128, true, false, false, false, false},
      {"rope llama-3-70b prefill, backward", bf16, half, 16384, 64, 8, 128, 128, false, true, false, false, false},
      {"rope llama-3-70b prefill, interleaved", bf16, interleaved, 16384, 64, 8, 128, 128, false, false, false, false,
       false},
      {"rope llama-3-70b prefill, F32 table", bf16, half, 16384, 64, 8, 128, 128, false, false, true, false, true},
      {"rope llama-3-8b prefill, 8192 tokens bf16", bf16, half, 8192, 32, 8, 128, 128, false, false, false, false,
       false},
      {"rope 8192 x 32 x 128 f32", f32, half, 8192, 32, 0, 128, 128, false, false, false, false, false},
      {"rope 2048 x 32 x 128 f16 interleaved", f16, interleaved, 2048, 32, 0, 128, 128, false, false, false, false,
       false},
      {"rope gpt-j prefill 8192 x 16, 64 of 256 f16", f16, interleaved, 8192, 16, 16, 256, 64, false, false, false,
       false, false},
      {"rope decode 8 tokens, no positions", bf16, half, 8, 64, 8, 128, 128, false, false, false, true, false},
      {"rope decode 1 token 64+8 heads bf16", bf16, half, 1, 64, 8, 128, 128, false, false, true, true, false},
      {"rope decode 8 tokens 64+8 heads bf16", bf16, half, 8, 64, 8, 128, 128, false, false, true, true, false},
      {"rope decode 64 tokens 64+8 heads bf16", bf16, half, 64, 64, 8, 128, 128, false, false, true, true, false},
      {"rope decode 256 tokens 64+8 heads bf16", bf16, half, 256, 64, 8, 128, 128, false, false, true, true, false},
      {"rope decode 1024 tokens 64+8 heads bf16", bf16, half, 1024, 64, 8, 128, 128, false, false, true, true, false},
  };
  for (const RopeRow &row : rope_rows) {
    if (is_wanted(row.name)) bench_rope(row);
  }
  const SwigluRow swiglu_rows[] = {
      {"swiglu 8192 x 14336 bf16", bf16, 8192, 14336, false, false, false},
      {"swiglu 8192 x 14336 bf16 packed", bf16, 8192, 14336, true, false, false},
      {"swiglu 8192 x 14336 bf16 backward", bf16, 8192, 14336, false, true, false},
      {"swiglu 4096 x 14336 f32", f32, 4096, 14336, false, false, false},
      {"swiglu 1 x 14336 bf16 packed", bf16, 1, 14336, true, false, true},
      {"swiglu 8 x 14336 bf16 packed", bf16, 8, 14336, true, false, true},
      {"swiglu 64 x 14336 bf16 packed", bf16, 64, 14336, true, false, true},
  };
  for (const SwigluRow &row : swiglu_rows) {
    if (is_wanted(row.name)) bench_swiglu(row);
  }
  if (is_wanted("host call")) bench_host_call();
}

#endif

}  // namespace

int main(int count, char **arguments) {
  std::string device;
  bool is_usage_right = count % 2 == 1;
  for (int i = 1; is_usage_right && i < count; i += 2) {
    const std::string option = arguments[i], value = arguments[i + 1];
    if (option == "--device" && (value == "cpu" || value == "cuda")) {
      device = value;
    } else if (option == "--filter") {
      filter = value;
    } else {
      is_usage_right = false;
    }
  }
  if (!is_usage_right) {
    std::fprintf(stderr, "usage: rope_bench [--device cpu|cuda] [--filter TEXT]\n");
    return 2;
  }
  int32_t num_cuda_devices = 0;
  check(rope_device_count(ROPE_DEVICE_CUDA, &num_cuda_devices));
  if (device.empty()) device = num_cuda_devices > 0 ? "cuda" : "cpu";
  std::printf("%s\n", rope_build_info());
  if (device == "cpu") {
    bench_cpu();
    return 0;
  }
#if defined(ROPE_BENCH_CUDA)
  if (num_cuda_devices > 0) {
    bench_cuda();
    return 0;
  }
#endif
  std::fprintf(stderr, "no CUDA device: %s\n", rope_last_error());
  return 1;
}
