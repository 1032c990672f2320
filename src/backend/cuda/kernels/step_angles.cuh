// SPDX-License-Identifier: Apache-2.0
// step_angles.cuh - the angles of a unit of the step: in shared memory, or from a row of the table in registers
#pragma once

#include <type_traits>

#include "backend/cuda/kernels/addresses.cuh"
#include "backend/cuda/kernels/table_rows.cuh"
#include "backend/cuda/kernels/unit_rotation.cuh"

namespace rope {

// The cosines of a token's pairs in shared memory, followed by the sines. Both are spread if V is 8 and the style HALF.
template <int V, bool IsInterleaved>
struct SharedAngles {
  const float *cos_of_unit;
  uint32_t pairs;
  uint32_t to_sin;

  static constexpr bool kAreSpread = V > 4 && !IsInterleaved;
  static __device__ __forceinline__ uint32_t first_of(uint32_t unit) {
    return unit * (IsInterleaved ? V / 2 : kAreSpread ? 4 : V);
  }

  // Turns N pairs: those of the unit's second vector, or those from its pair `first` on.
  template <int N>
  __device__ __forceinline__ void turn(bool is_high, int first, float *x, float *y, int distance) const {
    const float *const cos = cos_of_unit + (is_high ? pairs / 2 : 0) + first / 4 * (pairs / 2) + first % 4;
    rotate_by_run<N>(x, y, distance, cos, cos + to_sin);
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
