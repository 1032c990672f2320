// SPDX-License-Identifier: Apache-2.0
// merge_axes_tests.cpp - merging axes does not change the work
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <tuple>
#include <vector>

#include "core/problem/merge_axes.hpp"

namespace {

constexpr int64_t many = 1000;

// A problem of two tensors with strides that are powers of ten, so that no two elements share an address.
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

  // As in SBHD: for each token, the heads of all batches of q and k follow each other.
  Scene &with_close_batches() {
    for (rope::RotatedTensor &tensor : problem.tensor) {
      for (int64_t *stride : {tensor.in_stride, tensor.out_stride}) {
        stride[rope::kBatch] = tensor.heads * 10;
        stride[rope::kToken] = problem.batches * 1000;
      }
    }
    return *this;
  }

  // Adds cosines and sines by token.
  Scene &with_rows(int64_t cos_batch_stride, int64_t sin_batch_stride, int64_t row_stride) {
    problem.angles = rope::AngleSource::kTable;
    problem.table.is_by_token = true;
    problem.table.rows = problem.tokens;
    problem.table.cos = {nullptr, 0, cos_batch_stride, row_stride, 1};
    problem.table.sin = {nullptr, 0, sin_batch_stride, row_stride, 1};
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

// Each move of an element, its addresses and angles, in any order; and each token's number if faults are counted.
using Move = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t>;

std::vector<Move> moves_of(const rope::RopeProblem &problem, bool counts_tokens) {
  std::vector<Move> moves;
  for (int64_t batch = 0; batch < problem.batches; ++batch) {
    for (int64_t token = 0; token < problem.tokens; ++token) {
      const rope::AngleTable &table = problem.table;
      const auto row_of = [&](const rope::TableColumns &columns) {
        return batch * columns.batch_stride + token * columns.row_stride;
      };
      const int64_t position = (problem.positions.is_present ? entry_of(problem.positions, batch, token) : token) +
                               entry_of(problem.start_positions, batch, token);
      const int64_t cos = table.is_by_token ? row_of(table.cos) : position;
      const int64_t sin = table.is_by_token ? row_of(table.sin) : position;
      for (int i = 0; i < problem.num_tensors; ++i) {
        const rope::RotatedTensor &tensor = problem.tensor[i];
        for (int64_t head = 0; head < tensor.heads; ++head) {
          const auto at = [&](const char *base, const int64_t *stride) {
            return static_cast<int64_t>(reinterpret_cast<intptr_t>(base)) + batch * stride[rope::kBatch] +
                   token * stride[rope::kToken] + head * stride[rope::kHead];
          };
          moves.emplace_back(at(tensor.in, tensor.in_stride), at(tensor.out, tensor.out_stride), cos, sin,
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
  if (after.table.is_by_token) CHECK(after.table.rows == after.tokens);
  CHECK(moves_of(after, expected != Merged::kHeads) == moves_of(before, expected != Merged::kHeads));
}

}  // namespace

TEST_CASE("batches become tokens where strides allow it", "[merge axes]") {
  check(Scene(3, 4, 2, 1).with_positions(4, 1), Merged::kTokens);
  check(Scene(3, 4, 2, 1).with_positions(8, 2), Merged::kTokens);
  check(Scene(3, 4, 2, 1).with_positions(0, 0), Merged::kTokens);
  check(Scene(3, 4, 2, 1).with_positions(4, 1).with_starts(0, 0), Merged::kTokens);
  check(Scene(3, 4, 2, 1).with_positions(4, 1).with_starts(4, 1), Merged::kTokens);
  // Each batch has its own positions.
  check(Scene(3, 4, 2, 1), Merged::kNot);
  check(Scene(3, 4, 2, 1).with_starts(4, 1), Merged::kNot);
  check(Scene(3, 4, 2, 1).with_positions(0, 1), Merged::kNot);
  check(Scene(3, 4, 2, 1).with_positions(5, 1), Merged::kNot);
  check(Scene(3, 4, 2, 1).with_positions(4, 1).with_starts(1, 0), Merged::kNot);
  // There is one batch, or none.
  check(Scene(1, 4, 2, 1).with_positions(4, 1), Merged::kNot);
  check(Scene(0, 4, 2, 1).with_positions(4, 1), Merged::kNot);
  // There is a gap before each batch of one tensor, in its input or its output.
  for (const int tensor : {0, 1}) {
    for (const bool is_out : {false, true}) {
      Scene scene(3, 4, 2, 1);
      scene.with_positions(4, 1);
      rope::RotatedTensor &changed = scene.problem.tensor[tensor];
      (is_out ? changed.out_stride : changed.in_stride)[rope::kBatch] += 100;
      check(scene, Merged::kNot);
    }
  }
  // The product of the strides overflows, so no batch can follow.
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
    // There are no positions other than start_positions.
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
  // With tables, or with wider elements, merging into heads does not pay.
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
    Scene max_heads(rope::kMaxHeads + more, 4, 1, 0);
    rope::merge_axes(&max_heads.problem);
    CHECK(max_heads.problem.batches == (more == 0 ? 1 : rope::kMaxHeads + 1));
  }
}

TEST_CASE("batches whose heads follow each other are heads", "[merge axes]") {
  check(Scene(3, 4, 5, 2).with_close_batches(), Merged::kHeads);
  check(Scene(3, 4, 5, 0).with_close_batches(), Merged::kHeads);
  check(Scene(3, 4, 5, 1).with_close_batches().with_positions(0, 1), Merged::kHeads);
  check(Scene(3, 4, 5, 2).with_close_batches().with_starts(0, 0), Merged::kHeads);
  check(Scene(3, 4, 5, 2).with_close_batches().with_positions(5, 1), Merged::kNot);
  check(Scene(3, 4, 5, 2).with_close_batches().with_starts(1, 0), Merged::kNot);
  for (const int tensor : {0, 1}) {
    for (const bool is_out : {false, true}) {
      Scene scene(3, 4, 5, 2);
      scene.with_close_batches();
      rope::RotatedTensor &changed = scene.problem.tensor[tensor];
      (is_out ? changed.out_stride : changed.in_stride)[rope::kBatch] += 1;
      check(scene, Merged::kNot);
    }
  }
  // The product overflows.
  Scene far(3, 4, 5, 2);
  far.with_close_batches().problem.tensor[0].in_stride[rope::kHead] = INT64_MAX / 2;
  rope::merge_axes(&far.problem);
  CHECK(far.problem.batches == 3);
  // With tables by position, and with wider elements, batches become heads only if they lie closer together than
  // tokens: in SBHD, not in BHSD.
  for (const rope::AngleSource angles :
       {rope::AngleSource::kIncrements, rope::AngleSource::kTable, rope::AngleSource::kAngles}) {
    for (const rope_dtype_t dtype : {ROPE_DTYPE_BF16, ROPE_DTYPE_F32}) {
      for (const bool is_close : {true, false}) {
        for (const bool has_fault : {false, true}) {
          Scene scene(3, 4, 5, 2);
          scene.with_close_batches();
          scene.geometry.dtype = dtype;
          scene.problem.geometry = &scene.geometry;
          scene.problem.angles = angles;
          char words[16];
          if (has_fault) scene.problem.fault = {words, 1};
          for (rope::RotatedTensor &tensor : scene.problem.tensor) {
            if (!is_close) tensor.in_stride[rope::kToken] = tensor.out_stride[rope::kToken] = -1;
          }
          const bool is_computed = angles == rope::AngleSource::kIncrements;
          const bool is_costly = is_computed && dtype == ROPE_DTYPE_BF16;
          rope::merge_axes(&scene.problem);
          CHECK((scene.problem.batches == 1) == ((is_close || is_costly) && (is_computed || !has_fault)));
        }
      }
    }
  }
  // The placement of the output counts too.
  Scene spread(3, 4, 5, 2);
  spread.with_close_batches().problem.angles = rope::AngleSource::kTable;
  spread.problem.tensor[0].out_stride[rope::kToken] = -1;
  check(spread, Merged::kNot);
  // There is a table for each batch.
  for (const auto member : {&rope::AngleTable::cos, &rope::AngleTable::sin}) {
    Scene scene(3, 4, 5, 2);
    scene.with_close_batches().with_rows(0, 0, 7);
    check(scene, Merged::kHeads);
    (scene.problem.table.*member).batch_stride = 4 * 7;
    check(scene, Merged::kNot);
  }
  // The number of heads reaches and exceeds its limit.
  for (const int64_t more : {0, 1}) {
    Scene max_heads(2, 4, rope::kMaxHeads / 2 + more, 0);
    max_heads.with_close_batches();
    for (int64_t *stride : {max_heads.problem.tensor[0].in_stride, max_heads.problem.tensor[0].out_stride}) {
      stride[rope::kToken] = int64_t{1} << 40;
    }
    rope::merge_axes(&max_heads.problem);
    CHECK(max_heads.problem.batches == (more == 0 ? 1 : 2));
  }
}

TEST_CASE("batches by tables by token are tokens where rows follow each other, too", "[merge axes]") {
  check(Scene(3, 4, 2, 1).with_rows(28, 28, 7), Merged::kTokens);
  check(Scene(3, 1, 2, 1).with_rows(7, 9, 0), Merged::kTokens);
  // All batches have one table, or the tables of batches lie at another distance.
  check(Scene(3, 4, 2, 1).with_rows(0, 0, 7), Merged::kNot);
  check(Scene(3, 4, 2, 1).with_rows(28, 29, 7), Merged::kNot);
  check(Scene(3, 4, 2, 1).with_rows(27, 28, 7), Merged::kNot);
  Scene apart(3, 4, 2, 1);
  apart.with_rows(28, 28, 7).problem.tensor[1].in_stride[rope::kBatch] += 100;
  check(apart, Merged::kNot);
}

TEST_CASE("sequences keep their axes", "[merge axes]") {
  Scene scene(3, 4, 2, 1);
  scene.with_positions(4, 1);
  scene.problem.sequences.is_present = true;
  rope::merge_axes(&scene.problem);
  CHECK(scene.problem.batches == 3);
  CHECK(scene.problem.positions.batch_stride == 4);
}

TEST_CASE("an empty problem keeps its axes", "[merge axes]") {
  // The product of these lengths overflows.
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
