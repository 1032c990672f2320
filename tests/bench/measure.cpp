// SPDX-License-Identifier: Apache-2.0
// measure.cpp - one function for each kind of measurement
#include "measure.hpp"

#include <sched.h>

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <new>
#include <thread>

#include "memory.hpp"
#include "prepared_case.hpp"
#if defined(ROPE_BENCH_CUDA)
#include "gpu_gemm.hpp"
#include "gpu_timer.hpp"
#endif

namespace bench {

namespace {

using Clock = std::chrono::steady_clock;

double us_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

void take_accuracy(const Accuracy &accuracy, Row *row) {
  row->has_error = true;
  row->relative_error = accuracy.relative();
  row->largest_error = accuracy.largest();
}

// ---- CPU ----

// A memcpy on several threads, which wait between calls.
class ParallelCopy {
 public:
  explicit ParallelCopy(int num_threads) : num_threads_(num_threads) {
    for (int i = 1; i < num_threads; ++i) threads_.emplace_back([this, i] { serve(i); });
  }
  ~ParallelCopy() {
    start(nullptr, nullptr, 0);
    for (std::thread &thread : threads_) thread.join();
  }

  void run(char *target, const char *source, size_t bytes) {
    start(target, source, bytes);
    copy_part(0);
    std::unique_lock<std::mutex> lock(mutex_);
    finished_.wait(lock, [this] { return num_running_ == 0; });
  }

 private:
  void start(char *target, const char *source, size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    target_ = target;
    source_ = source;
    bytes_ = bytes;
    num_running_ = num_threads_ - 1;
    ++round_;
    started_.notify_all();
  }

  void serve(int part) {
    for (uint64_t seen = 0;;) {
      {
        std::unique_lock<std::mutex> lock(mutex_);
        started_.wait(lock, [&] { return round_ != seen; });
        seen = round_;
        if (target_ == nullptr) return;
      }
      copy_part(part);
      const std::lock_guard<std::mutex> lock(mutex_);
      if (--num_running_ == 0) finished_.notify_one();
    }
  }

  void copy_part(int part) const {
    const size_t count = static_cast<size_t>(num_threads_), index = static_cast<size_t>(part);
    const size_t begin = bytes_ / 64 * index / count * 64;
    const size_t end = part + 1 == num_threads_ ? bytes_ : bytes_ / 64 * (index + 1) / count * 64;
    std::memcpy(target_ + begin, source_ + begin, end - begin);
  }

  int num_threads_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable started_, finished_;
  char *target_ = nullptr;
  const char *source_ = nullptr;
  size_t bytes_ = 0;
  int num_running_ = 0;
  uint64_t round_ = 0;
};

void measure_cpu(const Case &item, const Effort &effort, Row *row) {
  Memory memory(ROPE_DEVICE_CPU);
  const std::unique_ptr<PreparedCase> prepared = prepare(item, memory, 1);
  row->explanation = prepared->explanation();
  take_accuracy(prepared->check(), row);
  const size_t half = static_cast<size_t>(row->bytes / 2);
  char *const source = memory.allocate(half), *const target = memory.allocate(half);
  memory.fill(source, half, ROPE_DTYPE_F32);
  memory.fill(target, half, ROPE_DTYPE_F32);
  ParallelCopy copy(item.num_threads == 1 ? 1 : num_processors());
  std::vector<double> times, copy_times, separate_times;
  const Clock::time_point began = Clock::now();
  const int min_samples = effort.is_tiny ? 1 : 11;
  const double us_wanted = effort.is_tiny ? 0 : 600e3;
  const auto timed = [](const auto &run, std::vector<double> *samples) {
    const Clock::time_point begin = Clock::now();
    run();
    samples->push_back(us_since(begin));
  };
  // A copy precedes each call, so that no call finds data in the caches that another has left there.
  const auto after_copy = [&](const auto &run, std::vector<double> *samples) {
    timed([&] { copy.run(target, source, half); }, &copy_times);
    timed(run, samples);
  };
  for (int i = 0; i < 201 && (i < min_samples || us_since(began) < us_wanted); ++i) {
    after_copy([&] { prepared->call(0, memory.stream()); }, &times);
    if (!item.is_beside_separate) continue;
    after_copy([&] { prepared->call_separately(0, memory.stream()); }, &separate_times);
  }
  row->time = spread_of(times);
  row->copy = spread_of(copy_times);
  if (item.is_beside_separate) row->separate = spread_of(separate_times);
}

// Microseconds per call, from many successive calls.
Spread time_calls(const std::function<void()> &call, const Effort &effort) {
  const int samples = effort.is_tiny ? 1 : 31, calls = effort.is_tiny ? 1 : 100;
  std::vector<double> times;
  call();
  for (int sample = 0; sample < samples; ++sample) {
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < calls; ++i) call();
    times.push_back(us_since(begin) / calls);
  }
  return spread_of(times);
}

void measure_latency(const Case &item, const Effort &effort, Row *row) {
  Memory memory(ROPE_DEVICE_CPU);
  const std::unique_ptr<PreparedCase> prepared = prepare(item, memory, 1);
  row->explanation = prepared->explanation();
  take_accuracy(prepared->check(), row);
  row->time = time_calls([&] { prepared->call(0, memory.stream()); }, effort);
}

// ---- On the host ----

struct ColdTimes {
  double create_us, call_us;
};

// Times of the process's first descriptor and first call. The device is initialised before, so that only the library's
// time is measured.
const ColdTimes &cold_times(const Case &item, rope_device_t device) {
  static const ColdTimes found = [&] {
    Memory memory(device);
    void *const probe = memory.allocate(1 << 20);
    memory.fill(probe, 1 << 20, ROPE_DTYPE_F32);
    memory.read(probe, ROPE_DTYPE_F32, {0});
    const std::unique_ptr<PreparedCase> prepared = prepare(item, memory, 1);
    ColdTimes times = {};
    times.create_us = prepared->create_us();
    const Clock::time_point begin = Clock::now();
    prepared->call(0, memory.stream());
    times.call_us = us_since(begin);
    memory.read(probe, ROPE_DTYPE_F32, {0});
    return times;
  }();
  return found;
}

void measure_cold(const Case &item, rope_device_t device, Row *row) {
  const ColdTimes &times = cold_times(item, device);
  const double us = item.measure == Measure::kCreateCold ? times.create_us : times.call_us;
  row->time = {us, us, us};
}

void measure_create(const Case &item, rope_device_t device, const Effort &effort, Row *row) {
  Memory memory(device);
  const std::unique_ptr<PreparedCase> prepared = prepare(item, memory, 1);
  row->time = time_calls([&] { prepared->create_once(); }, effort);
}

// The first descriptor with a norm, after an equal one without.
void measure_create_next(const Case &item, rope_device_t device, Row *row) {
  Memory memory(device);
  Case plain = item;
  plain.norm = 0;
  plain.weight_dtype = 0;
  const std::unique_ptr<PreparedCase> first = prepare(plain, memory, 1);
  const double us = prepare(item, memory, 1)->create_us();
  row->time = {us, us, us};
}

void measure_call(const Case &item, rope_device_t device, const Effort &effort, Row *row) {
  Memory memory(device);
  const std::unique_ptr<PreparedCase> prepared = prepare(item, memory, 1);
  row->explanation = prepared->explanation();
  take_accuracy(prepared->check(), row);
#if defined(ROPE_BENCH_CUDA)
  if (device == ROPE_DEVICE_CUDA) {
    // Few enough not to fill the queue of launches.
    const int calls = effort.is_tiny ? 1 : 100;
    const std::vector<Spread> spreads =
        time_on_host(calls, {[&](rope_stream_t stream) { enqueue_empty(item.is_programmatic, stream); },
                             [&](rope_stream_t stream) { prepared->call(0, stream); }});
    row->empty = spreads[0];
    row->time = spreads[1];
    return;
  }
#endif
  row->time = time_calls([&] { prepared->call(0, memory.stream()); }, effort);
}

// ---- GPU ----

#if defined(ROPE_BENCH_CUDA)

// Demands are scaled by the copy of the whole step, whatever part of it a case is.
constexpr int64_t kScaledHeads = 32 + 8 + 8;

// The bytes of a set's tensors that a launch reads or writes; tensors in place count once.
double footprint_of(const Case &item) {
  return bytes_moved(item) - bytes_in_place(item);
}

// Enough sets that a set has left the L2 cache before it is used again.
int sets_for(double footprint, bool is_resident) {
  if (is_resident) return 4;
  const double l2 = static_cast<double>(gpu().l2_bytes);
  return std::max(2, std::min(64, static_cast<int>(std::ceil(4 * l2 / footprint))));
}

// About 3 ms of launches per graph, equally many for each set, at most 200, as in the measurements on which the demands
// for decode are based.
int launches_for(double bytes, int sets, const Effort &effort) {
  if (effort.is_tiny) return sets;
  const double us = bytes / 4.2e6 + 1.0;
  const int wanted = std::max(4, std::min(200, static_cast<int>(3000 / us)));
  return (wanted + sets - 1) / sets * sets;
}

void measure_gpu(const Case &item, const Effort &effort, Row *row) {
  const bool is_resident = item.measure == Measure::kResident || effort.is_tiny;
  const int sets = sets_for(footprint_of(item), is_resident);
  Memory memory(ROPE_DEVICE_CUDA);
  const std::unique_ptr<PreparedCase> prepared = prepare(item, memory, sets);
  row->explanation = prepared->explanation();
  take_accuracy(prepared->check(), row);

  std::vector<GraphTask> tasks;
  std::vector<Spread *> results;
  const auto add = [&](Spread *result, int launches, std::function<void(int, rope_stream_t)> enqueue) {
    tasks.push_back({launches, std::move(enqueue)});
    results.push_back(result);
  };
  const int launches = launches_for(row->bytes, sets, effort);
  add(&row->time, launches, [&](int i, rope_stream_t stream) { prepared->call(i % sets, stream); });

  const size_t half = (static_cast<size_t>(row->bytes / 2) + 15) / 16 * 16;
  const int copy_sets = sets_for(row->bytes, is_resident);
  char *const copies = memory.allocate(2 * half * static_cast<size_t>(copy_sets));
  memory.fill(copies, 2 * half * static_cast<size_t>(copy_sets), ROPE_DTYPE_BF16);
  add(&row->copy, launches_for(row->bytes, copy_sets, effort), [=, &item](int i, rope_stream_t stream) {
    char *const source = copies + 2 * half * static_cast<size_t>(i % copy_sets);
    if (item.code_dtype != 0)
      return enqueue_narrowing(source + 2 * half / 3 * 2 / 16 * 16, source, 2 * half - 48, stream);
    enqueue_copy(source + half, source, half, false, stream);
  });
  if (item.is_beside_separate) {
    add(&row->separate, launches, [&](int i, rope_stream_t stream) { prepared->call_separately(i % sets, stream); });
  }

  const size_t size = static_cast<size_t>(size_of(item.dtype));
  const size_t touched = static_cast<size_t>(item.rotary_dim) * size;
  const size_t pitch = static_cast<size_t>(item.q_pitch) * size;
  if (is_partial(item) && !item.is_out_of_place && touched % 16 == 0 && pitch % 16 == 0) {
    const size_t rows = static_cast<size_t>(row->bytes / 2) / touched;
    char *const scaled = memory.allocate(rows * pitch * static_cast<size_t>(sets));
    memory.fill(scaled, rows * pitch * static_cast<size_t>(sets), ROPE_DTYPE_BF16);
    // The window may begin behind other channels, which affects the number of sectors accessed.
    const size_t offset = static_cast<size_t>(item.rotary_offset + item.q_from) * size / 16 * 16;
    add(&row->scale, launches, [=](int i, rope_stream_t stream) {
      enqueue_scale(scaled + rows * pitch * static_cast<size_t>(i % sets) + offset, rows, touched, pitch, stream);
    });
  }
  if (item.measure == Measure::kResident) {
    const bool is_programmatic = item.is_programmatic;
    add(&row->empty, launches, [=](int, rope_stream_t stream) { enqueue_empty(is_programmatic, stream); });
    // SwiGLU reads twice as much as it writes; here each is half of the bytes.
    add(&row->load_store, launches, [=](int i, rope_stream_t stream) {
      enqueue_load_store(copies + half * static_cast<size_t>(i % copy_sets), half, is_programmatic, stream);
    });
  }
  if (item.demand.metric == Metric::kMicrosecondsScaled) {
    const int64_t channels = kScaledHeads * item.head_dim * item.batches * item.tokens;
    const size_t bytes = static_cast<size_t>(channels * size_of(item.dtype));
    char *const scaled = memory.allocate(2 * bytes * static_cast<size_t>(sets));
    memory.fill(scaled, 2 * bytes * static_cast<size_t>(sets), ROPE_DTYPE_BF16);
    add(&row->programmatic_copy, launches, [=](int i, rope_stream_t stream) {
      char *const source = scaled + 2 * bytes * static_cast<size_t>(i % sets);
      enqueue_copy(source + bytes, source, bytes, true, stream);
    });
  }
  gpu_synchronize();
  const std::vector<Spread> spreads = time_graphs(tasks, effort.milliseconds, effort.is_tiny ? 1 : 11);
  for (size_t i = 0; i < results.size(); ++i) *results[i] = spreads[i];
  memory.release();
}

// Graphs of matrix products alone, with an empty kernel after each, and with the call after each.
void measure_between_gemms(const Case &item, const Effort &effort, Row *row) {
  constexpr int kSets = 4, kLaunches = 100;
  Memory memory(ROPE_DEVICE_CUDA);
  const std::unique_ptr<PreparedCase> prepared = prepare(item, memory, kSets);
  row->explanation = prepared->explanation();
  take_accuracy(prepared->check(), row);
  const Gemm gemm(static_cast<int>(item.tokens), memory);
  gemm.enqueue(memory.stream());  // the first call may load kernels
  gpu_synchronize();
  const int launches = effort.is_tiny ? 1 : kLaunches;
  const auto after_gemm = [&](const std::function<void(int, rope_stream_t)> &enqueue) {
    return GraphTask{launches, [&gemm, enqueue](int i, rope_stream_t stream) {
                       gemm.enqueue(stream);
                       enqueue(i, stream);
                     }};
  };
  const bool is_programmatic = item.is_programmatic;
  const std::vector<Spread> spreads =
      time_graphs({after_gemm([](int, rope_stream_t) {}),
                   after_gemm([=](int, rope_stream_t stream) { enqueue_empty(is_programmatic, stream); }),
                   after_gemm([&](int i, rope_stream_t stream) { prepared->call(i % kSets, stream); })},
                  effort.milliseconds, effort.is_tiny ? 1 : 11);
  const double alone = spreads[0].median_us;
  const auto added = [&](const Spread &both) {
    return Spread{both.median_us - alone, both.min_us - alone, both.max_us - alone};
  };
  row->empty = added(spreads[1]);
  row->time = added(spreads[2]);
  memory.release();
}

#endif

// On a CPU, the cases for a GPU run only once.
void measure_once(const Case &item, const Effort &effort, Row *row) {
  if (!effort.is_tiny) throw NotServed("a case for GPUs");
  measure_cpu(item, effort, row);
  row->copy = {};
}

void measure_on(const Case &item, rope_device_t device, const Effort &effort, Row *row) {
  switch (item.measure) {
    case Measure::kCpu:
      return measure_cpu(item, effort, row);
    case Measure::kLatency:
      return measure_latency(item, effort, row);
    case Measure::kCreateCold:
    case Measure::kFirstCall:
      return measure_cold(item, device, row);
    case Measure::kCreate:
      return measure_create(item, device, effort, row);
    case Measure::kCreateNext:
      return measure_create_next(item, device, row);
    case Measure::kCall:
      return measure_call(item, device, effort, row);
    case Measure::kStream:
    case Measure::kResident:
    case Measure::kBetweenGemms:
      break;
  }
#if defined(ROPE_BENCH_CUDA)
  if (device == ROPE_DEVICE_CUDA) {
    const bool is_between = item.measure == Measure::kBetweenGemms;
    return (is_between ? measure_between_gemms : measure_gpu)(item, effort, row);
  }
#endif
  measure_once(item, effort, row);
}

}  // namespace

double Row::reached() const {
  switch (item->demand.metric) {
    case Metric::kScaleShare:
      return scale.median_us / time.median_us;
    case Metric::kSeparateShare:
      return separate.median_us / time.median_us;
    case Metric::kMicroseconds:
    case Metric::kMicrosecondsScaled:
      return time.median_us;
    case Metric::kMicrosecondsAbove:
      return time.median_us - empty.median_us;
    default:
      return copy.median_us / time.median_us;
  }
}

double Row::bound() const {
  const Demand &demand = item->demand;
  const bool is_scaled = demand.metric == Metric::kMicrosecondsScaled && programmatic_copy.median_us > 0;
  return is_scaled ? demand.bound * programmatic_copy.median_us / demand.copy_us : demand.bound;
}

bool Row::has_verdict() const {
  if (outcome != Outcome::kMeasured) return false;
  switch (item->demand.metric) {
    case Metric::kNone:
      return false;
    case Metric::kShare:
      return copy.median_us > 0;
    case Metric::kScaleShare:
      return scale.median_us > 0;
    case Metric::kMicroseconds:
      return true;
    case Metric::kMicrosecondsAbove:
      return empty.median_us > 0;
    case Metric::kMicrosecondsScaled:
      return programmatic_copy.median_us > 0;
    case Metric::kSeparateShare:
      return separate.median_us > 0;
  }
  return false;
}

bool Row::is_met() const {
  const Metric metric = item->demand.metric;
  const bool is_min_bound =
      metric == Metric::kShare || metric == Metric::kScaleShare || metric == Metric::kSeparateShare;
  return is_min_bound ? reached() >= bound() : reached() <= bound();
}

Row measure(const Case &item, rope_device_t device, const Effort &effort) {
  Row row;
  row.item = &item;
  row.bytes = bytes_moved(item);
  try {
    measure_on(item, device, effort, &row);
  } catch (const NotServed &reason) {
    row.outcome = Outcome::kNotServed;
    row.message = reason.what();
  } catch (const std::bad_alloc &) {
    row.outcome = Outcome::kNotServed;
    row.message = "not enough memory";
  } catch (const std::exception &reason) {
    row.outcome = Outcome::kFailed;
    row.message = reason.what();
  }
  return row;
}

int num_processors() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

}  // namespace bench
