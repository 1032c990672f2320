// SPDX-License-Identifier: Apache-2.0
// scene.hpp - RoPE problems at invented addresses, for tests of plans: random ones, and ones set by hand
#ifndef ROPE_TESTS_PLAN_SCENE_HPP
#define ROPE_TESTS_PLAN_SCENE_HPP

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/problem/step_problem.hpp"
#include "plan/rope_catalogue.hpp"
#include "plan/rope_plan.hpp"
#include "support/oracle.hpp"
#include "support/random.hpp"
#include "unit/fake_tensors.hpp"

constexpr uint32_t kMaxGridX = 2147483647, kMaxGridY = 65535;

// An H100's memory bus has 5120 bits, an H200's 6016.
inline const rope::DeviceInfo kDevices[] = {
    {true, 0, 14, 75, 128},   {true, 0, 72, 75, 384},  {true, 0, 108, 80, 5120}, {true, 0, 56, 80, 3072},
    {true, 0, 132, 90, 6016}, {true, 0, 78, 90, 5120}, {true, 0, 1, 90, 6016},   {true, 0, 148, 100, 8192},
    {true, 0, 170, 120, 512}, {true, 0, 20, 120, 128}, {true, 0, 16, 90, 6016},
};
inline const rope::DeviceInfo kH200 = kDevices[4];

// The numbers that tests read are equal for all devices.
inline const rope::RopeTuning &kTuning = rope::rope_tuning_of(kH200);

// A problem and its geometry.
struct Scene {
  rope::RopeGeometry geometry = {};
  rope_args_t args = {};
  rope::RopeProblem problem = {};
  rope::StepProblem step = {};  // if the problem has one

  Scene() = default;
  Scene(const Scene &) = delete;
  Scene &operator=(const Scene &) = delete;

  int64_t element_size() const { return oracle::element_size(geometry.dtype); }
  int64_t num_tokens() const { return problem.batches * problem.tokens; }
  bool is_half() const { return problem.in_distance == problem.out_distance && problem.in_distance > 1; }
  bool is_interleaved() const { return problem.in_distance == 1 && problem.out_distance == 1; }
  bool is_converted() const { return problem.in_distance != problem.out_distance; }
  int block() const { return 2 * std::max(problem.in_distance, problem.out_distance); }
  // Blocks must then have whole heads.
  bool converts_in_place() const {
    bool found = false;
    for (int i = 0; i < problem.num_tensors; ++i) found = found || problem.tensor[i].is_in_place;
    return found && is_converted();
  }
  bool has_copies() const {
    bool found = false;
    for (int i = 0; i < problem.num_tensors; ++i) found = found || !problem.tensor[i].is_in_place;
    return found;
  }
};

// Bounds for the sizes of random problems: a size stays below 2 to the power of the number.
struct Sizes {
  int batch, tokens, heads, total;
};
constexpr Sizes kAnySizes = {20, 41, 21, 42};
constexpr Sizes kSmallSizes = {3, 5, 4, 8};

// Returns false if the random problem is not valid.
bool draw(Random *random, const Sizes &sizes, Scene *scene);

// Addresses of tensors, by number, that are neither q, k, v nor their outputs.
uintptr_t far_address(int number);

rope_config_t some_config(rope_dtype_t dtype, int32_t head_dim);

// Sets a problem with one tensor q.
void set_problem(Scene *scene, const rope_config_t &config, const std::vector<int64_t> &shape,
                 const rope_args_t &operands = {});

// Args with only q, k, v and, unless they are in place, their outputs.
void set_operands(Scene *scene, rope_layout_t layout, rope_dtype_t dtype, int64_t batches, int64_t tokens,
                  const int64_t (&heads)[3], int32_t head_dim, bool is_in_place);

// Layout BSHD, one tensor q, in place.
void set_problem(Scene *scene, rope_dtype_t dtype, int64_t batches, int64_t tokens, int64_t heads, int32_t head_dim);

rope_args_t with_flag(rope_args_t args);

rope::RopePlan plan_of(const Scene &scene, const rope::DeviceInfo &device);

std::string explain(const Scene &scene, const rope::DeviceInfo &device);

// ---- Properties of problems and plans ----

inline rope::RopeShape shape_of(rope::RopeKernel kernel) {
  return rope::algorithm_of(kernel).shape;
}

// The name of a variant's function, without type and vector width: variants with one function have one name.
std::string function_of(const rope::RopeVariant &variant);

// All functions by name, with their kernels, for launches with equal or different styles.
std::map<std::string, rope::RopeKernel> all_functions();

// Each row of threads has a token, or a part of one.
inline bool has_token_rows(rope::RopeKernel kernel) {
  const rope::RopeShape shape = shape_of(kernel);
  return shape == rope::RopeShape::kWarpRows || shape == rope::RopeShape::kTokenRows ||
         shape == rope::RopeShape::kPairRows;
}

// Among these kernels: each row has a thread for every pair.
inline bool is_of_long_launch(rope::RopeKernel kernel) {
  return shape_of(kernel) == rope::RopeShape::kPairRows;
}

inline bool is_of_short_launch(rope::RopeKernel kernel) {
  return shape_of(kernel) == rope::RopeShape::kShortParts;
}

// Units are numbered through all tokens.
inline bool is_flat(rope::RopeKernel kernel) {
  return shape_of(kernel) == rope::RopeShape::kFlat;
}

// One axis of the grid counts parts of tokens.
inline bool has_parts_axis(rope::RopeKernel kernel) {
  return shape_of(kernel) == rope::RopeShape::kParts || is_of_short_launch(kernel);
}

// The threads of a block share angles; the grid may have several rows of tokens.
inline bool shares_angles(rope::RopeKernel kernel) {
  return shape_of(kernel) == rope::RopeShape::kBlocks;
}

inline bool is_scalar(rope::RopeKernel kernel) {
  return rope::algorithm_of(kernel).channels == rope::Channels::kElements;
}

std::string describe(const Scene &scene);

std::string describe(const rope::RopePlan &plan);

// Whether vectors of so many elements are aligned and stay inside their part of a head everywhere.
bool allows_vectors(const Scene &scene, int64_t elements);

int64_t widest_vectors(const Scene &scene);

// The address of a row of a batch's table. Rows by position are common to all batches.
uintptr_t table_row(const Scene &scene, const rope::TableColumns &columns, int64_t batch, int64_t row);

// The number of adjacent pairs of a unit: vectors of interleaved channels have two runs of half the length.
int64_t run_length(const Scene &scene, int64_t elements);

bool is_programmatic(const Scene &scene, const rope::DeviceInfo &device);

int64_t divide_up(int64_t a, int64_t b);

int64_t copied_vectors(const Scene &scene, int tensor, int64_t elements);

bool is_computed(const Scene &scene);

// Number of units; outside the window a unit is one vector, or two.
int64_t units_of_head(const Scene &scene, int tensor, int64_t elements, rope::RopeKernel kernel);
int64_t units_of_token(const Scene &scene, int64_t elements, rope::RopeKernel kernel);

#endif
