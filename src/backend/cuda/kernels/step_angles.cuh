// SPDX-License-Identifier: Apache-2.0
// step_angles.cuh - the angles of a unit of the step: in shared memory, or from a row of the table in registers
#pragma once

#include <type_traits>

#include "backend/cuda/kernels/addresses.cuh"
#include "backend/cuda/kernels/table_rows.cuh"
#include "backend/cuda/kernels/unit_rotation.cuh"
#include "plan/step_kernels.hpp"

namespace rope {

// The place of number i of n in shared memory if each lane has kRuns runs of kLength numbers, n / kRuns apart. A lane's
// numbers lie together, at constant distances from the first.
template <int kRuns, int kLength, int kStride>
__device__ __forceinline__ uint32_t place_in_lane(uint32_t i, uint32_t n) {
  const uint32_t run = n / kRuns;
  uint32_t number = 0;
#pragma unroll
  for (uint32_t of_run = 1; of_run < kRuns; ++of_run) number += i >= of_run * run;
  i -= number * run;
  return i / kLength * kStride + i % kLength + number * kLength;
}

// The cosines of a token's pairs in shared memory, followed by the sines.
template <int V, bool IsInterleaved>
struct SharedAngles {
  const float *cos_of_unit;
  uint32_t pairs;
  uint32_t to_sin;

  static __device__ __forceinline__ uint32_t first_of(uint32_t unit) { return unit * (IsInterleaved ? V / 2 : V); }

  // Turns N pairs: those of the unit's second vector, or those from its pair `first` on.
  template <int N>
  __device__ __forceinline__ void turn(bool is_high, int first, float *x, float *y, int distance) const {
    const float *const cos = cos_of_unit + (is_high ? pairs / 2 : 0) + first;
    rotate_by_run<N>(x, y, distance, cos, cos + to_sin);
  }
};

// The angles of a token's pairs in shared memory, those of a lane with kUnits units together: first the cosines, then
// the sines.
template <int V, bool IsInterleaved, int kUnits>
struct LaneAngles {
  using R = Runs<V, IsInterleaved>;
  static constexpr uint32_t kPairs = kUnits * V, kStride = padded_lane(2 * kPairs);

  const float *cos_of_unit;

  // The place of a cosine. Its sine is kPairs behind it.
  static __device__ __forceinline__ uint32_t place_of(uint32_t pair, uint32_t pairs) {
    return place_in_lane<kUnits * R::kCount, R::kLength, kStride>(pair, pairs);
  }

  // Does the work of SharedAngles::turn.
  template <int N>
  __device__ __forceinline__ void turn(bool is_high, int first, float *x, float *y, int distance) const {
    const float *const cos = cos_of_unit + (is_high ? kUnits * R::kLength : 0) + first;
    rotate_by_run<N>(x, y, distance, cos, cos + kPairs);
  }
};

// The places of a pair's cosine and sine in a row of the table.
struct TablePlace {
  const char *cos;
  const char *sin;

  TablePlace() = default;
  template <typename Params>
  __device__ __forceinline__ TablePlace(const Params &params, uint32_t row, uint32_t pair) {
    const int32_t size = params.table_dtype == ROPE_DTYPE_F32 ? 4 : 2;
    cos = step(step(params.cos, pair, size), row, params.row_bytes);
    sin = step(step(params.sin, pair, size), row, params.row_bytes);
  }

  // The places `rows` rows further.
  template <typename Params>
  __device__ __forceinline__ TablePlace below(const Params &params, uint32_t rows) const {
    TablePlace place;
    place.cos = step(cos, rows, params.row_bytes);
    place.sin = step(sin, rows, params.row_bytes);
    return place;
  }

  template <typename Params>
  __device__ __forceinline__ CosSin<float> load(const Params &params) const {
    const bool is_wide = params.table_dtype == ROPE_DTYPE_F32;
    const auto entry = [&](const char *at) -> uint32_t {
      return is_wide ? *reinterpret_cast<const uint32_t *>(at) : *reinterpret_cast<const uint16_t *>(at);
    };
    const uint32_t of_cos = entry(cos), of_sin = entry(sin);
    const float s = entry_of(of_sin, params.table_dtype);
    return {entry_of(of_cos, params.table_dtype), params.sin_scale < 0.0f ? -s : s};
  }
};

// The angles of a unit's pairs from a row of the table, in the thread's registers.
template <int V, bool IsInterleaved>
struct OwnAngles {
  using R = Runs<V, IsInterleaved>;
  float cos[V];
  float sin[V];
  uint32_t sign;  // changes the signs of sines for the transpose

  // Loads from row `row` the entries that lie at `first` in row 0, as vectors if the rows are aligned to them.
  template <typename Params>
  __device__ __forceinline__ void load(const Params &params, const TablePlace &first, uint32_t row) {
    sign = params.sin_scale < 0.0f ? 0x80000000u : 0;
    const TablePlace place = first.below(params, row);
    const auto load_by = [&](auto word, auto step_size) {
      using Word = decltype(word);
      constexpr int kStep = decltype(step_size)::value, kBytes = static_cast<int>(sizeof(Word));
#pragma unroll
      for (int i = 0; i < V; i += kStep) {
        const uint32_t further = i < R::kLength ? 0 : params.pairs / 2 - R::kLength;
        const int64_t distance = (further + static_cast<uint32_t>(i)) * static_cast<uint32_t>(kBytes);
        const auto c = load_run<Word, kStep>(place.cos + distance), s = load_run<Word, kStep>(place.sin + distance);
#pragma unroll
        for (int j = 0; j < kStep; ++j) {
          cos[i + j] = entry_of(c, j, params.table_dtype);
          sin[i + j] = entry_of(s, j, params.table_dtype);
        }
      }
    };
    const auto load_as = [&](auto word) {
      if (params.has_aligned_rows) {
        load_by(word, std::integral_constant<int, R::kLength>());
      } else {
        load_by(word, std::integral_constant<int, 1>());
      }
    };
    if (params.table_dtype == ROPE_DTYPE_F32) {
      load_as(float{});
    } else {
      load_as(uint16_t{});
    }
  }

  // Does the work of SharedAngles::turn.
  template <int N>
  __device__ __forceinline__ void turn(bool is_high, int first, float *x, float *y, int distance) const {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int pair = first + i + (is_high ? R::kLength : 0);
      const CosSin<float> angle = {cos[pair], float_of(bits_of(sin[pair]) ^ sign)};
      const Pair<float> out = rotate<float>({x[i * distance], y[i * distance]}, angle, angle);
      x[i * distance] = out.x;
      y[i * distance] = out.y;
    }
  }
};

}  // namespace rope
