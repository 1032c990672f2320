// SPDX-License-Identifier: Apache-2.0
// cpu_kernels_tests.cpp - the inner loops of every instruction set that this processor has: identical bits for RoPE,
// nearly equal results for SwiGLU, and results that do not depend on an element's place in a run
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "backend/cpu/cpu_kernels.hpp"
#include "core/math/float16.hpp"
#include "support/oracle.hpp"
#include "support/random.hpp"
#include "support/tolerance.hpp"

namespace {

std::vector<const rope::CpuKernels *> kernels_here() {
  const rope::CpuKernels *kernels[rope::kMaxCpuKernels];
  const int count = rope::list_cpu_kernels(kernels);
  return {kernels, kernels + count};
}

constexpr rope_dtype_t kDtypes[] = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64};

size_t size_of(rope_dtype_t dtype) {
  return static_cast<size_t>(oracle::element_size(dtype));
}

using Elements = std::vector<unsigned char>;

// Normal numbers and zeros; with `has_any_bits` also numbers of any exponent, infinities and NaNs.
Elements random_elements(Random *random, rope_dtype_t dtype, size_t count, bool has_any_bits) {
  const size_t size = size_of(dtype);
  Elements elements(count * size);
  for (size_t i = 0; i < count; ++i) {
    if (has_any_bits && random->below(8) == 0) {
      const uint64_t bits = random->bits();
      std::memcpy(&elements[i * size], &bits, size);
    } else {
      oracle::encode(dtype, random->mixed(), &elements[i * size]);
    }
  }
  return elements;
}

bool is_nan(rope_dtype_t dtype, const unsigned char *element) {
  return std::isnan(oracle::decode(dtype, element));
}

// All NaNs count as equal.
int64_t count_different(rope_dtype_t dtype, const Elements &a, const Elements &b) {
  const size_t size = size_of(dtype);
  int64_t different = 0;
  for (size_t at = 0; at < a.size(); at += size) {
    if (std::memcmp(&a[at], &b[at], size) == 0) continue;
    different += !is_nan(dtype, &a[at]) || !is_nan(dtype, &b[at]);
  }
  return different;
}

// The places of a run's pairs among a head's channels: x of pair i is channel i * step, and y lies `distance` further
// on.
struct Way {
  const char *name;
  int64_t step;
  bool is_interleaved;
};

constexpr Way kWays[] = {
    {"half", 1, false}, {"interleaved", 2, true}, {"a step of 3", 3, false}, {"a step of 2 in halves", 2, false}};

int64_t channels_of(const Way &way, int64_t pairs) {
  return way.is_interleaved ? 2 * pairs : 2 * way.step * pairs;
}

rope::PairRun run_of(const Way &way, Elements *elements, rope_dtype_t dtype, int64_t pairs) {
  const int64_t size = static_cast<int64_t>(size_of(dtype)), head_stride = channels_of(way, pairs) + 1;
  unsigned char *x = elements->data() + size, *y = x + (way.is_interleaved ? 1 : way.step * pairs) * size;
  return {x, y, way.step, head_stride};
}

template <typename Real>
void rotate(const rope::CpuKernels &kernels, rope_dtype_t dtype, const rope::PairRun &in, const rope::PairRun &out,
            int pairs, int64_t heads, const rope::PairAngles<Real> &angles) {
  if constexpr (sizeof(Real) == sizeof(double)) {
    kernels.rotate_f64(in, out, pairs, heads, angles);
  } else {
    kernels.rotate[rope::cpu_type(dtype)](in, out, pairs, heads, angles);
  }
}

// NaNs of either sign, with only the first bit of the payload set, or all bits.
template <typename Real>
Real any_nan(Random *random) {
  Real nan = std::numeric_limits<Real>::quiet_NaN();
  if (random->below(2) == 0) std::memset(&nan, 0xff, sizeof nan);
  return random->below(2) == 0 ? nan : -nan;
}

// Rotates with every set of kernels, in place (if input and output have one placement) and out of place. Returns the
// number of elements that differ from the base set's, or that were written outside the runs.
template <typename Real>
int64_t count_different_rotations(Random *random, rope_dtype_t dtype, const Way &in_way, const Way &out_way, int pairs,
                                  bool is_by_channel) {
  constexpr int64_t kHeads = 3;
  std::vector<Real> values[4];
  for (std::vector<Real> &of : values) {
    // Some numbers have few bits, so that results lie exactly between two 16-bit numbers.
    for (int i = 0; i < pairs; ++i) {
      of.push_back(static_cast<Real>(random->below(4) == 0 ? static_cast<double>(random->below(25)) / 8 - 1.5
                                                           : random->uniform(-1.5, 1.5)));
    }
    if (random->below(4) == 0) of[static_cast<size_t>(random->below(pairs))] = any_nan<Real>(random);
  }
  const int y = is_by_channel ? 2 : 0;
  const rope::PairAngles<Real> angles = {values[0].data(), values[1].data(), values[y].data(), values[y + 1].data()};
  const auto length = [&](const Way &way) { return static_cast<size_t>((channels_of(way, pairs) + 1) * kHeads + 2); };
  const Elements source = random_elements(random, dtype, length(in_way), true);
  const Elements target = random_elements(random, dtype, length(out_way), true);
  Elements expected, expected_in_place;
  int64_t different = 0;
  for (const rope::CpuKernels *kernels : kernels_here()) {
    Elements in = source, out = target;
    rotate(*kernels, dtype, run_of(in_way, &in, dtype, pairs), run_of(out_way, &out, dtype, pairs), pairs, kHeads,
           angles);
    different += in != source;
    if (expected.empty()) expected = out;
    different += count_different(dtype, out, expected);
    if (&in_way != &out_way) continue;
    const rope::PairRun both = run_of(in_way, &in, dtype, pairs);
    rotate(*kernels, dtype, both, both, pairs, kHeads, angles);
    if (expected_in_place.empty()) expected_in_place = in;
    different += count_different(dtype, in, expected_in_place);
  }
  return different;
}

// ---- The step ----

// A run of the step with its own memory. Heads lie `head_stride` apart, with different alignments.
struct StepScene {
  rope_dtype_t dtype, out_dtype, cache_dtype;
  int channels, window_begin, pairs;
  int64_t heads, channel_stride, head_stride;
  bool is_in_place;
  Elements in, out, cache, weight, bias;
  std::vector<double> angles[4];
  rope::NormForm<double> norm;
  bool has_norm, has_cache;
  rope::ChannelNumbers weight_view, bias_view;
  bool is_turned, is_norm_after, is_norm_of_token, is_streamed;
  int in_distance, out_distance;
  Elements scales;  // static scales; empty: none
  int64_t scale_head_stride;
  bool scale_multiplies, rounds_before_codes, has_amax;
  uint32_t amax;  // bits of a magnitude
  // Written scales beside codes, and their destinations; groups of 0: none.
  Elements out_written, cache_written;
  rope::WrittenScales out_scales, cache_scales;
  rope::ChannelPart out_part, cache_part;
  Elements pass;    // channels outside the window; empty: they are in the input
  Elements factor;  // empty: none
  bool is_factor_f32;
  int64_t factor_head_stride;

  bool changes_all() const { return has_norm || !factor.empty(); }
  bool is_kept() const { return !changes_all() && !is_turned && in_distance == out_distance; }
};

// A copy of elements, aligned to cache lines so that it may be streamed.
class Aligned {
 public:
  explicit Aligned(Elements *elements) : elements_(elements), lines_(elements->size() / 64 + 1) {
    std::memcpy(lines_.data(), elements->data(), elements->size());
  }
  ~Aligned() { std::memcpy(elements_->data(), lines_.data(), elements_->size()); }
  Aligned(const Aligned &) = delete;
  Aligned &operator=(const Aligned &) = delete;

  char *data() { return reinterpret_cast<char *>(lines_.data()); }

 private:
  struct alignas(64) Line {
    unsigned char bytes[64];
  };
  Elements *elements_;
  std::vector<Line> lines_;
};

rope::ChannelNumbers random_numbers(Random *random, const StepScene &scene, Elements *elements) {
  elements->clear();
  if (random->below(3) == 0) return {nullptr, false, 0, 0};
  const bool is_f32 = random->below(2) == 0;
  const int64_t stride = 1 + random->below(2), head_stride = random->below(2) * scene.channels * stride;
  *elements = random_elements(random, is_f32 ? ROPE_DTYPE_F32 : scene.dtype,
                              static_cast<size_t>(scene.channels * stride * scene.heads), random->below(4) == 0);
  return {reinterpret_cast<const char *>(elements->data()), is_f32, head_stride, stride};
}

rope::WrittenScales random_scales(Random *random, const StepScene &scene, rope_dtype_t type, int channels,
                                  Elements *written) {
  constexpr uint32_t kFloors[] = {0, 0x2edbe6ff, 0x3f800000};  // 0 (none), 1e-10 and 1
  rope::WrittenScales scales = {};
  if (!rope::is_code(type) || random->below(2) == 0) return scales;
  scales.form = static_cast<rope::ScaleForm>(random->below(3));
  scales.floor = kFloors[random->below(3)];
  scales.groups = 1 + static_cast<int>(random->below(channels));
  while (channels % scales.groups != 0) --scales.groups;
  scales.group_stride = 1 + random->below(2);
  scales.four_stride = 4 * scales.group_stride + random->below(2);
  scales.head_stride = (scales.groups / 4 + 1) * scales.four_stride;
  *written = random_elements(random, ROPE_DTYPE_F32, static_cast<size_t>(scene.heads * scales.head_stride), true);
  return scales;
}

StepScene random_scene(Random *random, rope_dtype_t dtype) {
  constexpr int kChannels[] = {2, 6, 16, 24, 64, 72, 96, 128, 192, 256, 320, 576, 1024};
  const auto draw_type = [&] {
    const rope_dtype_t types[] = {ROPE_DTYPE_F32, ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16};
    const rope_dtype_t codes[] = {ROPE_DTYPE_F8_E4M3, ROPE_DTYPE_F8_E5M2};
    if (dtype != ROPE_DTYPE_F64 && random->below(3) == 0) return codes[random->below(2)];
    return dtype == ROPE_DTYPE_F32 ? types[random->below(4)] : dtype;
  };
  StepScene scene = {};
  scene.dtype = dtype;
  scene.channels = kChannels[random->below(13)];
  scene.heads = 1 + random->below(11);
  scene.channel_stride = random->below(4) == 0 ? 2 : 1;
  scene.head_stride = scene.channels * scene.channel_stride + (random->below(3) == 0 ? random->below(9) : 0);
  const int half = scene.channels / 2;
  scene.pairs = random->below(2) == 0 ? half : 1 + static_cast<int>(random->below(half));
  scene.window_begin = static_cast<int>(random->below(scene.channels - 2 * scene.pairs + 1));
  const auto draw_distance = [&] {
    const bool has_blocks = scene.pairs % 4 == 0 && random->below(3) == 0;
    return random->below(2) == 0 ? 1 : has_blocks ? scene.pairs / 4 : scene.pairs;
  };
  scene.in_distance = draw_distance();
  scene.out_distance = random->below(4) == 0 ? draw_distance() : scene.in_distance;
  scene.is_turned = random->below(4) != 0;
  scene.has_norm = random->below(3) != 0;
  scene.norm.eps = 1e-5;
  scene.norm.weight_offset = static_cast<double>(random->below(2));
  scene.norm.is_layer = random->below(3) == 0;
  scene.norm.rounds_before_weight = random->below(3) == 0;
  scene.norm.rounds_after_weight = random->below(3) == 0;
  scene.is_norm_after = random->below(3) == 0;
  scene.is_norm_of_token = random->below(3) == 0;
  scene.norm.inverse_count = 1.0 / static_cast<double>(scene.channels * (scene.is_norm_of_token ? scene.heads : 1));
  scene.is_streamed = random->below(2) == 0;
  scene.is_in_place = random->below(2) == 0;
  const int window = 2 * scene.pairs, begin = scene.window_begin, end = begin + window;
  scene.is_factor_f32 = random->below(2) == 0;
  scene.factor_head_stride = random->below(3);
  if (random->below(3) == 0) {
    scene.factor = random_elements(random, scene.is_factor_f32 ? ROPE_DTYPE_F32 : dtype,
                                   static_cast<size_t>(scene.heads * 2), random->below(4) == 0);
  }
  scene.out_part = {true, !scene.is_in_place || scene.changes_all(), begin, end};
  scene.cache_part = {true, true, begin, end};
  if (window < scene.channels) {
    const int64_t part = random->below(6);
    if (part == 0) scene.cache_part = {true, false, 0, end};
    if (part == 1) scene.cache_part = {false, true, 0, begin};
  }
  scene.has_cache = random->below(2) == 0;
  scene.out_dtype = scene.is_in_place ? dtype : draw_type();
  scene.cache_dtype = draw_type();
  const auto length = static_cast<size_t>(scene.heads * scene.head_stride + 80);
  scene.in = random_elements(random, dtype, length, random->below(2) == 0);
  scene.out = random_elements(random, scene.out_dtype, length, true);
  if (window < scene.channels && !scene.is_in_place && random->below(4) == 0) {
    scene.pass = random_elements(random, dtype, length, random->below(2) == 0);
  }
  scene.cache = random_elements(random, scene.cache_dtype, length, true);
  scene.weight_view = random_numbers(random, scene, &scene.weight);
  if (scene.norm.is_layer) scene.bias_view = random_numbers(random, scene, &scene.bias);
  for (std::vector<double> &of : scene.angles) {
    for (int pair = 0; pair < scene.pairs; ++pair) of.push_back(static_cast<float>(random->uniform(-1.5, 1.5)));
  }
  if (random->below(4) != 0) {
    for (int64_t head = 0; head < scene.heads; ++head) {
      const float scale =
          std::ldexp(static_cast<float>(random->uniform(1, 2)), static_cast<int>(random->below(16)) - 10);
      const auto *bytes = reinterpret_cast<const unsigned char *>(&scale);
      scene.scales.insert(scene.scales.end(), bytes, bytes + sizeof scale);
    }
    scene.scale_head_stride = random->below(2);
  }
  scene.scale_multiplies = random->below(2) == 0;
  scene.rounds_before_codes = random->below(3) == 0;
  scene.has_amax = random->below(3) == 0;
  scene.out_scales = random_scales(random, scene, scene.out_dtype, scene.channels, &scene.out_written);
  scene.cache_scales = random_scales(random, scene, scene.cache_dtype, scene.cache_part.count(scene.channels, window),
                                     &scene.cache_written);
  return scene;
}

template <typename Real>
void step(const rope::CpuKernels &kernels, StepScene *scene) {
  std::vector<Real> angles[4];
  for (int i = 0; i < 4; ++i) angles[i].assign(scene->angles[i].begin(), scene->angles[i].end());
  const rope::NormForm<Real> norm = {static_cast<Real>(scene->norm.eps),
                                     static_cast<Real>(scene->norm.inverse_count),
                                     static_cast<Real>(scene->norm.weight_offset),
                                     scene->norm.is_layer,
                                     scene->norm.rounds_before_weight,
                                     scene->norm.rounds_after_weight};
  Aligned in(&scene->in), out(&scene->out), cache(&scene->cache);
  if (scene->out_scales.groups != 0) scene->out_scales.data = reinterpret_cast<char *>(scene->out_written.data());
  if (scene->cache_scales.groups != 0) scene->cache_scales.data = reinterpret_cast<char *>(scene->cache_written.data());
  rope::StepRun<Real> run = {};
  run.in = in.data();
  run.head_stride = scene->head_stride;
  run.channel_stride = scene->channel_stride;
  run.heads = scene->heads;
  run.channels = scene->channels;
  run.window_begin = scene->window_begin;
  run.pairs = scene->pairs;
  run.in_distance = scene->in_distance;
  run.out_distance = scene->out_distance;
  run.is_turned = scene->is_turned;
  run.angles = {angles[0].data(), angles[1].data(), angles[2].data(), angles[3].data()};
  run.norm = scene->has_norm ? &norm : nullptr;
  run.is_norm_after = scene->is_norm_after;
  run.is_norm_of_token = scene->is_norm_of_token;
  run.weight = scene->weight_view;
  rope::OrderedWeights ordered_weights;
  ordered_weights.is_filled = false;
  run.weights = &ordered_weights;
  alignas(64) static char room[rope::kStepRoomBytes];
  std::memset(room, 0xff, sizeof room);  // NaNs: loops read nothing that they have not written
  run.room = room;
  run.bias = scene->bias_view;
  if (!scene->factor.empty()) {
    run.factor.data = reinterpret_cast<const char *>(scene->factor.data());
    run.factor.is_f32 = scene->is_factor_f32;
    run.factor.head_stride = scene->factor_head_stride;
  }
  if (!scene->pass.empty()) {
    run.pass = reinterpret_cast<const char *>(scene->pass.data());
    run.pass_head_stride = scene->head_stride;
    run.pass_channel_stride = scene->channel_stride;
  }
  const auto add_target = [&](char *data, rope_dtype_t dtype, const rope::ChannelPart &part, bool is_streamed,
                              const rope::WrittenScales &scales) {
    const char *const scale = scene->scales.empty() ? nullptr : reinterpret_cast<const char *>(scene->scales.data());
    run.targets[run.num_targets++] = {data,
                                      rope::cpu_type(dtype),
                                      scene->head_stride,
                                      scene->channel_stride,
                                      part,
                                      is_streamed,
                                      scale,
                                      scene->scale_head_stride,
                                      &scales,
                                      0};
  };
  if (!scene->is_in_place || !scene->is_kept()) {
    add_target(scene->is_in_place ? in.data() : out.data(), scene->out_dtype, scene->out_part,
               scene->is_streamed && !scene->is_in_place, scene->out_scales);
  }
  if (scene->has_cache) {
    add_target(cache.data(), scene->cache_dtype, scene->cache_part, scene->is_streamed, scene->cache_scales);
  }
  run.code = {scene->scale_multiplies, scene->rounds_before_codes, scene->has_amax ? &scene->amax : nullptr};
  if constexpr (sizeof(Real) == sizeof(double)) {
    kernels.step_f64(run);
  } else {
    kernels.step[rope::cpu_type(scene->dtype)](run);
  }
}

// Counts channels that are neither normalised nor rotated and that changed, in targets of the input's type.
int64_t count_changed(const StepScene &before, const rope::ChannelPart &part, const Elements &target) {
  const size_t size = size_of(before.dtype);
  const int window = 2 * before.pairs, begin = before.window_begin, end = begin + window;
  int64_t changed = 0;
  for (int64_t head = 0; head < before.heads; ++head) {
    for (int channel = 0; channel < before.channels; ++channel) {
      const bool is_inside = channel >= begin && channel < end;
      if (before.changes_all() || (is_inside && !before.is_kept())) continue;
      if (!(is_inside ? part.has_window : part.has_others)) continue;
      const auto offset = [&](int of_channel) {
        return static_cast<size_t>(head * before.head_stride + of_channel * before.channel_stride) * size;
      };
      const bool is_passed = !is_inside && !before.pass.empty();
      const Elements &source = is_passed ? before.pass : before.in;
      const int from = is_passed && channel >= end ? channel - window : channel;
      changed += std::memcmp(&source[offset(from)], &target[offset(part.index_of(channel, begin, end))], size) != 0;
    }
  }
  return changed;
}

struct SwigluRun {
  std::vector<Elements> in, out;
  std::vector<int64_t> in_stride, out_stride;
  Elements row_scale;
  bool has_row_scale;
};

rope::GatingRun part_of_run(SwigluRun *run, rope_dtype_t dtype, int64_t begin, int64_t count) {
  const int64_t size = static_cast<int64_t>(size_of(dtype));
  rope::GatingRun part = {};
  for (size_t i = 0; i < run->in.size(); ++i) {
    part.in[i] = run->in[i].data() + begin * run->in_stride[i] * size;
    part.in_stride[i] = run->in_stride[i];
  }
  for (size_t i = 0; i < run->out.size(); ++i) {
    part.out[i] = run->out[i].data() + begin * run->out_stride[i] * size;
    part.out_stride[i] = run->out_stride[i];
  }
  if (run->has_row_scale) {
    part.row_scale = run->row_scale.data() + begin * 4;
    part.row_scale_stride = 1;
    part.is_row_scale_f32 = true;
  }
  part.count = count;
  return part;
}

void gate(const rope::CpuKernels &kernels, rope_dtype_t dtype, const rope::GatingRun &run, const rope::GatingForm &form,
          bool is_backward) {
  if (is_backward) {
    kernels.swiglu_backward[rope::cpu_type(dtype)](run, form, nullptr);
  } else {
    kernels.swiglu_forward[rope::cpu_type(dtype)](run, form);
  }
}

constexpr rope::GatingForm kForms[] = {{{1, std::numeric_limits<double>::infinity(), 0, 1, true}},
                                       {{1.702f, 7, 1, 1, false}}};

SwigluRun random_run(Random *random, rope_dtype_t dtype, int64_t count, bool is_backward, bool is_contiguous,
                     bool has_row_scale, bool has_any_bits) {
  SwigluRun run;
  for (int i = 0; i < (is_backward ? 3 : 2); ++i) {
    run.in_stride.push_back(is_contiguous ? 1 : 2 - i % 2);
    run.in.push_back(random_elements(random, dtype, static_cast<size_t>(count * run.in_stride.back()), has_any_bits));
  }
  for (int i = 0; i < (is_backward ? 3 : 1); ++i) {
    run.out_stride.push_back(is_contiguous ? 1 : 1 + i);
    run.out.push_back(random_elements(random, dtype, static_cast<size_t>(count * run.out_stride.back()), true));
  }
  run.row_scale = random_elements(random, ROPE_DTYPE_F32, static_cast<size_t>(count), has_any_bits);
  run.has_row_scale = has_row_scale;
  return run;
}

// Calls visit(dtype, form, is_backward, run) for all combinations.
template <typename Visit>
void for_swiglu_runs(bool has_any_bits, Visit visit) {
  Random random(11);
  for (const rope_dtype_t dtype : kDtypes) {
    for (const rope::GatingForm &form : kForms) {
      for (int choice = 0; choice < 8; ++choice) {
        const bool is_backward = choice & 1, is_contiguous = choice & 2, has_row_scale = choice & 4;
        for (const int64_t count : {1, 2, 7, 16, 33, 255, 600}) {
          INFO("dtype " << dtype << (form.is_plain ? " plain" : " form") << (is_backward ? " backward" : "") << ", "
                        << count << (is_contiguous ? " contiguous" : " strided") << " elements"
                        << (has_row_scale ? " and row_scale" : ""));
          visit(dtype, form, is_backward,
                random_run(&random, dtype, count, is_backward, is_contiguous, has_row_scale, has_any_bits));
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("the base kernels come first, and what is chosen is there", "[cpu kernels]") {
  const std::vector<const rope::CpuKernels *> kernels = kernels_here();
  REQUIRE(!kernels.empty());
  CHECK(kernels[0] == &rope::kBaseCpuKernels);
  const char *const names[] = {"base", "x86-64-v3", "x86-64-v4"};
  const char *limit = std::getenv("ROPE_CPU_ISA");
  const rope::CpuKernels *expected = kernels.back();
  for (size_t i = 0; limit != nullptr && i < kernels.size(); ++i) {
    if (std::strcmp(limit, names[i]) == 0) expected = kernels[i];
  }
  CHECK(&rope::cpu_kernels() == expected);
  CHECK(std::string(rope_build_info()).find(std::string("CPU: ") + expected->name + ";") != std::string::npos);
  for (size_t i = 1; i < kernels.size(); ++i) CHECK(std::string(kernels[i]->name).find(names[i]) == 0);
}

#if defined(ROPE_X86_KERNELS)
TEST_CASE("the compiler's runtime finds the same instruction sets", "[cpu kernels]") {
  __builtin_cpu_init();
  const bool has_v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
                      __builtin_cpu_supports("popcnt");
  const bool has_v4 = has_v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl");
  CHECK(kernels_here().size() == 1u + has_v3 + has_v4);
}
#endif

TEST_CASE("every instruction set rotates to the same bits", "[cpu kernels]") {
  Random random(10);
  for (const rope_dtype_t dtype : kDtypes) {
    for (const Way &in : kWays) {
      for (const Way &out : kWays) {
        for (int pairs = 1; pairs <= 512; pairs += pairs < 50 ? 1 : 77) {
          for (const bool is_by_channel : {false, true}) {
            INFO("dtype " << dtype << ", " << pairs << " pairs, from " << in.name << " to " << out.name);
            const int64_t different =
                dtype == ROPE_DTYPE_F64
                    ? count_different_rotations<double>(&random, dtype, in, out, pairs, is_by_channel)
                    : count_different_rotations<float>(&random, dtype, in, out, pairs, is_by_channel);
            REQUIRE(different == 0);
          }
        }
      }
    }
  }
}

TEST_CASE("every instruction set makes the same step to the bit", "[cpu kernels]") {
  Random random(14);
  for (int number = 0; number < 6000; ++number) {
    const rope_dtype_t dtype = kDtypes[number % 4];
    const StepScene scene = random_scene(&random, dtype);
    INFO("step " << number << ": dtype " << dtype << ", " << scene.heads << " heads of " << scene.channels);
    StepScene expected;
    for (const rope::CpuKernels *kernels : kernels_here()) {
      StepScene done = scene;
      if (dtype == ROPE_DTYPE_F64) {
        step<double>(*kernels, &done);
      } else {
        step<float>(*kernels, &done);
      }
      INFO(kernels->name);
      if (done.out_dtype == dtype)
        REQUIRE(count_changed(scene, scene.out_part, done.is_in_place ? done.in : done.out) == 0);
      if (done.has_cache && done.cache_dtype == dtype) REQUIRE(count_changed(scene, scene.cache_part, done.cache) == 0);
      if (kernels == kernels_here()[0]) expected = done;
      REQUIRE(count_different(dtype, done.in, expected.in) == 0);
      REQUIRE(count_different(scene.out_dtype, done.out, expected.out) == 0);
      REQUIRE(count_different(scene.cache_dtype, done.cache, expected.cache) == 0);
      REQUIRE(done.out_written == expected.out_written);
      REQUIRE(done.cache_written == expected.cache_written);
      constexpr uint32_t kInfinity = 0x7f800000;
      REQUIRE((done.amax == expected.amax || (done.amax > kInfinity && expected.amax > kInfinity)));
    }
  }
}

TEST_CASE("every 16-bit value passes every instruction set as it is", "[cpu kernels]") {
  const std::vector<float> ones(16, 1.0f), zeros(16, 0.0f);
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (const rope::CpuKernels *kernels : kernels_here()) {
      for (const bool is_interleaved : {false, true}) {
        Elements values(65536 * 2), after;
        for (uint32_t bits = 0; bits < 65536; ++bits) std::memcpy(&values[bits * 2], &bits, 2);
        after = values;
        // x * 1 - y * 0 equals x, unless y is infinite: then the result is NaN.
        const rope::PairRun heads = {after.data(), after.data() + (is_interleaved ? 2 : 32), is_interleaved ? 2 : 1,
                                     32};
        kernels->rotate[rope::cpu_type(dtype)](heads, heads, 16, 2048,
                                               {ones.data(), zeros.data(), ones.data(), zeros.data()});
        int64_t different = 0;
        for (size_t at = 0; at < values.size(); at += 2) {
          if (is_nan(dtype, &after[at])) continue;
          different += oracle::decode(dtype, &after[at]) != oracle::decode(dtype, &values[at]);
        }
        INFO(kernels->name);
        CHECK(different == 0);
      }
    }
  }
}

TEST_CASE("every instruction set fills the same angles", "[cpu kernels]") {
  Random random(12);
  for (int count = 1; count <= 512; count += count < 50 ? 1 : 77) {
    std::vector<uint64_t> phases;
    for (int i = 0; i < count; ++i) phases.push_back(random.bits());
    std::vector<float> expected(2 * count), filled(2 * count);
    std::vector<double> expected_f64(2 * count), filled_f64(2 * count);
    const double scale = random.uniform(-2, 2);
    for (const rope::CpuKernels *kernels : kernels_here()) {
      kernels->fill_angles(phases.data(), count, static_cast<float>(scale), filled.data(), filled.data() + count);
      kernels->fill_angles_f64(phases.data(), count, scale, filled_f64.data(), filled_f64.data() + count);
      if (kernels == &rope::kBaseCpuKernels) {
        expected = filled;
        expected_f64 = filled_f64;
      }
      INFO(kernels->name << ", " << count << " angles");
      REQUIRE(std::memcmp(filled.data(), expected.data(), filled.size() * sizeof(float)) == 0);
      REQUIRE(std::memcmp(filled_f64.data(), expected_f64.data(), filled_f64.size() * sizeof(double)) == 0);
    }
  }
}

TEST_CASE("a run of SwiGLU gives the same bits in one piece and in many", "[cpu kernels]") {
  Random random(13);
  for_swiglu_runs(
      true, [&](rope_dtype_t dtype, const rope::GatingForm &form, bool is_backward, const SwigluRun &given) {
        const int64_t count = static_cast<int64_t>(given.in[0].size() / size_of(dtype)) / given.in_stride[0];
        for (const rope::CpuKernels *kernels : kernels_here()) {
          SwigluRun whole = given, parted = given;
          gate(*kernels, dtype, part_of_run(&whole, dtype, 0, count), form, is_backward);
          for (int64_t begin = 0; begin < count;) {
            int64_t length = 1 + random.below(40);
            if (length > count - begin) length = count - begin;
            gate(*kernels, dtype, part_of_run(&parted, dtype, begin, length), form, is_backward);
            begin += length;
          }
          INFO(kernels->name);
          for (size_t i = 0; i < whole.out.size(); ++i)
            REQUIRE(count_different(dtype, whole.out[i], parted.out[i]) == 0);
        }
      });
}

TEST_CASE("SwiGLU gives the same bits however elements lie, and when backward writes it again", "[cpu kernels]") {
  Random random(14);
  for_swiglu_runs(true,
                  [&](rope_dtype_t dtype, const rope::GatingForm &form, bool is_backward, const SwigluRun &given) {
                    if (is_backward || given.in_stride[0] != 1) return;
                    const size_t size = size_of(dtype), bytes = given.out[0].size();
                    const int64_t count = static_cast<int64_t>(bytes / size);
                    for (const rope::CpuKernels *kernels : kernels_here()) {
                      SwigluRun forward = given, apart = given, backward = given;
                      gate(*kernels, dtype, part_of_run(&forward, dtype, 0, count), form, false);

                      apart.out[0].resize(2 * bytes);
                      apart.out_stride[0] = 2;
                      gate(*kernels, dtype, part_of_run(&apart, dtype, 0, count), form, false);
                      for (size_t at = 0; at < bytes; at += size)
                        std::memcpy(&apart.out[0][at], &apart.out[0][2 * at], size);
                      apart.out[0].resize(bytes);

                      backward.in.push_back(random_elements(&random, dtype, static_cast<size_t>(count), true));
                      backward.out.resize(3, Elements(bytes));
                      backward.in_stride.push_back(1);
                      backward.out_stride.resize(3, 1);
                      gate(*kernels, dtype, part_of_run(&backward, dtype, 0, count), form, true);

                      INFO(kernels->name);
                      REQUIRE(count_different(dtype, apart.out[0], forward.out[0]) == 0);
                      REQUIRE(count_different(dtype, backward.out[2], forward.out[0]) == 0);
                    }
                  });
}

TEST_CASE("SwiGLU of every 16-bit gate, and of F32 gates all over their range", "[cpu kernels]") {
  Random random(15);
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    const size_t size = size_of(dtype), count = 65536;
    for (const double scale : {1.0, 1e-3, 1e4}) {
      Elements gates(count * size), ups(count * size), out(count * size);
      for (size_t i = 0; i < count; ++i) {
        // For F32 every 2^16th bit pattern, with random bits in between.
        const uint32_t bits = static_cast<uint32_t>(dtype == ROPE_DTYPE_F32 ? i << 16 | random.below(65536) : i);
        std::memcpy(&gates[i * size], &bits, size);
        oracle::encode(dtype, scale * random.normal(), &ups[i * size]);
      }
      for (const rope::CpuKernels *kernels : kernels_here()) {
        rope::GatingRun run = {};
        run.in[0] = gates.data();
        run.in[1] = ups.data();
        run.out[0] = out.data();
        run.in_stride[0] = run.in_stride[1] = run.out_stride[0] = 1;
        run.count = static_cast<int64_t>(count);
        gate(*kernels, dtype, run, kForms[0], false);
        int64_t wrong = 0;
        for (size_t at = 0; at < gates.size(); at += size) {
          const long double g = oracle::decode(dtype, &gates[at]), up = oracle::decode(dtype, &ups[at]);
          const long double actual = oracle::decode(dtype, &out[at]), exact = oracle::swiglu(g, up);
          if (std::isnan(g)) {
            wrong += !std::isnan(actual);
          } else if (std::isfinite(g)) {
            wrong += !tolerance::accepts(dtype, actual, exact, tolerance::swiglu_slack(exact, g, up, 1));
          }
        }
        INFO("dtype " << dtype << ", " << kernels->name);
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("instruction sets agree on SwiGLU to the rounding of its steps", "[cpu kernels]") {
  for_swiglu_runs(false, [&](rope_dtype_t dtype, const rope::GatingForm &form, bool is_backward,
                             const SwigluRun &given) {
    const size_t size = size_of(dtype);
    const int64_t count = static_cast<int64_t>(given.in[0].size() / size) / given.in_stride[0];
    SwigluRun base = given;
    gate(rope::kBaseCpuKernels, dtype, part_of_run(&base, dtype, 0, count), form, is_backward);
    for (const rope::CpuKernels *kernels : kernels_here()) {
      SwigluRun run = given;
      gate(*kernels, dtype, part_of_run(&run, dtype, 0, count), form, is_backward);
      int64_t wrong = 0;
      for (size_t output = 0; output < run.out.size(); ++output) {
        for (int64_t i = 0; i < count; ++i) {
          const size_t at = static_cast<size_t>(i * run.out_stride[output]) * size;
          const long double a = oracle::decode(dtype, &run.out[output][at]);
          const long double b = oracle::decode(dtype, &base.out[output][at]);
          if ((std::isnan(a) && std::isnan(b)) || a == b) continue;
          // The gradient of gate may cancel; its terms are then about grad_out * up.
          const long double up = oracle::decode(dtype, &run.in[1][static_cast<size_t>(i * run.in_stride[1]) * size]);
          const long double grad_out =
              is_backward ? oracle::decode(dtype, &run.in[2][static_cast<size_t>(i * run.in_stride[2]) * size]) : 0;
          const long double scale =
              run.has_row_scale ? oracle::decode(ROPE_DTYPE_F32, &run.row_scale[static_cast<size_t>(i) * 4]) : 1;
          const long double larger = std::fmax(
              std::fabs(b), is_backward && output == 0 ? std::fabs(grad_out * (std::fabs(up) + 1) * scale) : 0);
          const long double epsilon = oracle::ulp(dtype, 1);
          wrong += !(std::fabs(a - b) <= 16 * epsilon * larger + oracle::ulp(dtype, 0));
        }
      }
      INFO(kernels->name);
      CHECK(wrong == 0);
    }
  });
}
