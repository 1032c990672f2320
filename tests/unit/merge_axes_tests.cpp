// merge_axes_tests.cpp - fewer axes, the same work
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <tuple>
#include <vector>

#include "core/merge_axes.hpp"

namespace {

constexpr int64_t many = 1000;

// A problem of two tensors whose strides are made of digits, so that no two elements share an address.
struct Scene {
  rope::RopeGeometry geometry = {};
  rope::RopeProblem problem = {};
  std::vector<int64_t> positions = std::vector<int64_t>(many), starts = std::vector<int64_t>(many);

  Scene(int64_t batches, int64_t tokens, int64_t q_heads, int64_t k_heads) {
    geometry.dtype = ROPE_DTYPE_BF16;
    problem.geometry = &geometry;
    problem.batches = batches;
    problem.tokens = tokens;
    problem.num_tensors = 2;
    const int64_t heads[] = {q_heads, k_heads};
    for (int i = 0; i < 2; ++i) {
      rope::RotatedTensor &tensor = problem.tensor[i];
      tensor.in = reinterpret_cast<const char *>(uintptr_t{1} << 40) + i;
      tensor.out = reinterpret_cast<char *>(uintptr_t{1} << 41) + i;
      tensor.heads = heads[i];
      const int64_t stride[] = {tokens * 100, 100, 10, 1};
      std::copy(std::begin(stride), std::end(stride), tensor.in_stride);
      std::copy(std::begin(stride), std::end(stride), tensor.out_stride);
    }
    for (int64_t i = 0; i < many; ++i)
      positions[static_cast<size_t>(i)] = 7 * i + 3, starts[static_cast<size_t>(i)] = 100000 * i;
  }

  Scene &with_positions(int64_t batch_stride, int64_t token_stride) {
    problem.positions = {reinterpret_cast<const char *>(positions.data()), true, true, 0, batch_stride, token_stride};
    return *this;
  }

  Scene &with_starts(int64_t batch_stride, int64_t token_stride) {
    problem.start_positions = {
        reinterpret_cast<const char *>(starts.data()), true, true, 0, batch_stride, token_stride};
    return *this;
  }
};

int64_t entry_of(const rope::TokenIntegers &integers, int64_t batch, int64_t token) {
  if (!integers.is_present) return 0;
  const auto *entries = reinterpret_cast<const int64_t *>(integers.data);
  return entries[batch * integers.batch_stride + token * integers.token_stride];
}

// What moves from where to where by which angles, whatever the order; and each token's number where faults are counted.
using Move = std::tuple<int64_t, int64_t, int64_t, int64_t>;

std::vector<Move> moves_of(const rope::RopeProblem &problem, bool counts_tokens) {
  std::vector<Move> moves;
  for (int64_t batch = 0; batch < problem.batches; ++batch) {
    for (int64_t token = 0; token < problem.tokens; ++token) {
      const int64_t position = (problem.positions.is_present ? entry_of(problem.positions, batch, token) : token) +
                               entry_of(problem.start_positions, batch, token);
      for (int i = 0; i < problem.num_tensors; ++i) {
        const rope::RotatedTensor &tensor = problem.tensor[i];
        for (int64_t head = 0; head < tensor.heads; ++head) {
          const auto at = [&](const char *base, const int64_t *stride) {
            return static_cast<int64_t>(reinterpret_cast<intptr_t>(base)) + batch * stride[rope::kBatch] +
                   token * stride[rope::kToken] + head * stride[rope::kHead];
          };
          moves.emplace_back(at(tensor.in, tensor.in_stride), at(tensor.out, tensor.out_stride), position,
                             counts_tokens ? batch * problem.tokens + token : 0);
        }
      }
    }
  }
  std::sort(moves.begin(), moves.end());
  return moves;
}

enum class Merged {
  kNot,
  kTokens,
  kHeads
};

void check(const Scene &scene, Merged expected) {
  const rope::RopeProblem &before = scene.problem;
  rope::RopeProblem after = before;
  rope::merge_axes(&after);
  CHECK(after.batches == (expected == Merged::kNot ? before.batches : 1));
  CHECK(after.tokens == (expected == Merged::kTokens ? before.batches * before.tokens : before.tokens));
  CHECK(after.tensor[0].heads == before.tensor[0].heads * (expected == Merged::kHeads ? before.batches : 1));
  CHECK(moves_of(after, expected != Merged::kHeads) == moves_of(before, expected != Merged::kHeads));
}

}  // namespace

TEST_CASE("batches become tokens where strides allow it", "[merge axes]") {
  check(Scene(3, 4, 2, 1).with_positions(4, 1), Merged::kTokens);
  check(Scene(3, 4, 2, 1).with_positions(8, 2), Merged::kTokens);
  check(Scene(3, 4, 2, 1).with_positions(0, 0), Merged::kTokens);
  check(Scene(3, 4, 2, 1).with_positions(4, 1).with_starts(0, 0), Merged::kTokens);
  check(Scene(3, 4, 2, 1).with_positions(4, 1).with_starts(4, 1), Merged::kTokens);
  // Positions of their own in each batch.
  check(Scene(3, 4, 2, 1), Merged::kNot);
  check(Scene(3, 4, 2, 1).with_starts(4, 1), Merged::kNot);
  check(Scene(3, 4, 2, 1).with_positions(0, 1), Merged::kNot);
  check(Scene(3, 4, 2, 1).with_positions(5, 1), Merged::kNot);
  check(Scene(3, 4, 2, 1).with_positions(4, 1).with_starts(1, 0), Merged::kNot);
  // One batch, or none.
  check(Scene(1, 4, 2, 1).with_positions(4, 1), Merged::kNot);
  check(Scene(0, 4, 2, 1).with_positions(4, 1), Merged::kNot);
  // A gap before each batch of one tensor, read or written.
  for (const int tensor : {0, 1}) {
    for (const bool is_out : {false, true}) {
      Scene scene(3, 4, 2, 1);
      scene.with_positions(4, 1);
      rope::RotatedTensor &changed = scene.problem.tensor[tensor];
      (is_out ? changed.out_stride : changed.in_stride)[rope::kBatch] += 100;
      check(scene, Merged::kNot);
    }
  }
  // Strides whose product is no number: a batch cannot lie there.
  Scene far(3, 4, 2, 1);
  far.with_positions(4, 1);
  far.problem.tensor[0].in_stride[rope::kToken] = INT64_MAX / 2;
  rope::merge_axes(&far.problem);
  CHECK(far.problem.batches == 3);
}

TEST_CASE("batches of one token are tokens", "[merge axes]") {
  for (const int64_t stride : {int64_t{400}, int64_t{-77}}) {
    Scene scene(5, 1, 3, 2);
    scene.with_positions(2, 0);
    for (rope::RotatedTensor &tensor : scene.problem.tensor) {
      tensor.in_stride[rope::kBatch] = stride;
      tensor.in_stride[rope::kToken] = 0;
    }
    check(scene, Merged::kTokens);
    check(Scene(scene).with_starts(1, 0), Merged::kTokens);
    // The only positions there are.
    scene.problem.positions = {};
    check(Scene(scene).with_starts(3, 0), Merged::kTokens);
    check(scene, Merged::kNot);
    scene.problem.tensor[0].heads = scene.problem.tensor[1].heads = 1;
    check(scene, Merged::kHeads);
  }
}

TEST_CASE("batches of one head are heads where they share angles", "[merge axes]") {
  check(Scene(3, 4, 1, 1), Merged::kHeads);
  check(Scene(3, 4, 1, 0), Merged::kHeads);
  check(Scene(3, 4, 0, 1).with_positions(0, 1), Merged::kHeads);
  check(Scene(3, 4, 1, 1).with_starts(0, 1), Merged::kHeads);
  check(Scene(3, 4, 1, 1).with_positions(5, 1), Merged::kNot);
  check(Scene(3, 4, 1, 1).with_starts(1, 0), Merged::kNot);
  check(Scene(3, 4, 1, 2), Merged::kNot);
  check(Scene(3, 4, 2, 1), Merged::kNot);
  // From tables, or beside wider elements, each head finds its own.
  Scene scene(3, 4, 1, 1);
  scene.problem.angles = rope::AngleSource::kTable;
  check(scene, Merged::kNot);
  scene.problem.angles = rope::AngleSource::kAngles;
  check(scene, Merged::kNot);
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F16, ROPE_DTYPE_F32, ROPE_DTYPE_F64}) {
    Scene other(3, 4, 1, 1);
    other.geometry.dtype = dtype;
    other.problem.geometry = &other.geometry;
    rope::merge_axes(&other.problem);
    CHECK(other.problem.batches == (dtype == ROPE_DTYPE_F16 ? 1 : 3));
  }
  for (const int64_t more : {0, 1}) {
    Scene most(rope::kMaxHeads + more, 4, 1, 0);
    rope::merge_axes(&most.problem);
    CHECK(most.problem.batches == (more == 0 ? 1 : rope::kMaxHeads + 1));
  }
}

TEST_CASE("sequences and tables by token keep their axes", "[merge axes]") {
  for (const bool is_by_token : {false, true}) {
    Scene scene(3, 4, 2, 1);
    scene.with_positions(4, 1);
    scene.problem.sequences.is_present = !is_by_token;
    scene.problem.table.is_by_token = is_by_token;
    rope::merge_axes(&scene.problem);
    CHECK(scene.problem.batches == 3);
    CHECK(scene.problem.positions.batch_stride == 4);
  }
}

TEST_CASE("an empty problem keeps its axes", "[merge axes]") {
  // Their product is no number.
  Scene scene(int64_t{1} << 40, int64_t{1} << 40, 0, 0);
  scene.with_positions(0, 0);
  rope::merge_axes(&scene.problem);
  CHECK(scene.problem.batches == int64_t{1} << 40);
  CHECK(scene.problem.tokens == int64_t{1} << 40);
}

TEST_CASE("positions on several axes keep their distance", "[merge axes]") {
  Scene scene(3, 1, 2, 1);
  scene.with_starts(1, 0);
  scene.problem.start_positions.axis_stride = 300;
  rope::merge_axes(&scene.problem);
  CHECK(scene.problem.tokens == 3);
  CHECK(scene.problem.positions.axis_stride == 300);
  CHECK(scene.problem.positions.token_stride == 1);
  CHECK_FALSE(scene.problem.start_positions.is_present);
}
