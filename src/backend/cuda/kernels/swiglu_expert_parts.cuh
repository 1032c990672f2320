// SPDX-License-Identifier: Apache-2.0
// swiglu_expert_parts.cuh - the parts of rows that the warps of a launch process, and their factors and biases
//
//   rows that exist      expert 0: 0 … R0-1 │ expert 1: R0 … R0+R1-1 │ …
//   part of a row        kSwigluPartVectors vectors of 16 bytes
//   warp                 part w, w + warps, w + 2 * warps, … of the parts of rows that exist
//
// With expert_rows a warp finds the expert of its part by a sum over 256 experts at a time, so its work is in
// proportion to the rows that exist and to the number of experts. Otherwise tensors have the axes rows and columns.
// The parts are then those of all rows, of the first num_rows, or of the rows from the first of expert_offsets to the
// last one. A block copies the offsets to shared memory, where a warp finds its row's expert by bisection.
#pragma once

#include "backend/cuda/kernels/row_scale.cuh"
#include "backend/cuda/kernels/swiglu_activation.cuh"
#include "backend/cuda/kernels/swiglu_params.hpp"
#include "core/problem/integers.hpp"
#include "plan/tuning.hpp"

namespace rope {

// A part of a row of an expert.
struct ExpertPart {
  uint32_t expert;
  uint32_t row;
  uint32_t first;      // first vector
  uint32_t end;        // the vector behind the last one
  int64_t factor = 0;  // with row_index

  template <typename Walk>
  __device__ __forceinline__ int64_t offset(const SwigluExpertStrides &stride) const {
    return (Walk::kLooksUpRows ? 0 : expert * stride.expert) + row * stride.row;
  }
};

__device__ __forceinline__ void set_vectors(const SwigluExpertParams &params, uint32_t part_of_row, ExpertPart *part) {
  part->first = part_of_row * kSwigluPartVectors;
  const uint32_t left = params.vectors_per_row - part->first;
  part->end = part->first + (left < kSwigluPartVectors ? left : kSwigluPartVectors);
}

// Enumerates the parts of rows of a warp by expert_rows. All lanes call its functions together.
class ExpertWalk {
 public:
  static constexpr bool kLooksUpRows = false;

  __device__ __forceinline__ explicit ExpertWalk(const SwigluExpertParams &params)
      : params_(params), lane_(threadIdx.x % kLanes), part_((blockIdx.x * blockDim.x + threadIdx.x) / kLanes) {
    look_at_experts();
  }

  // Returns false if no part is left.
  __device__ __forceinline__ bool next(ExpertPart *part) {
    while (part_ >= total_) {
      first_expert_ += kLanes * kExpertsOfLane;
      if (first_expert_ >= params_.experts) return false;
      part_ -= total_;
      look_at_experts();
    }
    uint32_t in_expert = part_ - in_front_, expert = first_expert_ + lane_ * kExpertsOfLane;
#pragma unroll
    for (int i = 0; i < kExpertsOfLane - 1; ++i) {
      if (in_expert < parts_[i]) break;
      in_expert -= parts_[i];
      ++expert;
    }
    // in_front_ rises with the lanes, so the last lane with in_front_ <= part_ has the part's expert.
    const int owner = 31 - __clz(static_cast<int>(__ballot_sync(kAll, in_front_ <= part_)));
    const DivmodResult at = params_.parts_per_row.divmod(__shfl_sync(kAll, in_expert, owner));
    part->expert = __shfl_sync(kAll, expert, owner);
    set_vectors(params_, at.remainder, part);
    part->row = at.quotient;
    part_ += gridDim.x * blockDim.x / kLanes;
    return true;
  }

  __device__ __forceinline__ uint32_t lane() const {
    return lane_;
  }

 private:
  static constexpr uint32_t kLanes = 32, kExpertsOfLane = 8;
  static constexpr unsigned kAll = 0xffffffffu;

  __device__ __forceinline__ uint32_t count_parts(uint32_t expert) const {
    if (expert >= params_.experts) return 0;
    const int64_t rows = read_integer(params_.expert_rows, params_.is_expert_rows_64_bit,
                                      static_cast<int64_t>(expert) * params_.expert_rows_stride);
    const uint32_t held = rows > params_.rows_per_expert ? params_.rows_per_expert : static_cast<uint32_t>(rows);
    return rows < 0 ? 0 : held * params_.parts_per_row.divisor;
  }

  __device__ __forceinline__ void look_at_experts() {
    uint32_t sum = 0;
#pragma unroll
    for (int i = 0; i < kExpertsOfLane; ++i) {
      parts_[i] = count_parts(first_expert_ + lane_ * kExpertsOfLane + i);
      sum += parts_[i];
    }
    uint32_t behind = sum;
    for (uint32_t distance = 1; distance < kLanes; distance *= 2) {
      const uint32_t other = __shfl_up_sync(kAll, behind, distance);
      if (lane_ >= distance) behind += other;
    }
    in_front_ = behind - sum;
    total_ = __shfl_sync(kAll, behind, kLanes - 1);
  }

  const SwigluExpertParams &params_;
  uint32_t lane_;
  uint32_t part_;              // the warp's next part, counted from first_expert_
  uint32_t first_expert_ = 0;  // the first of the kLanes * kExpertsOfLane experts that the warp looks at
  uint32_t parts_[kExpertsOfLane];
  uint32_t in_front_;  // parts of the experts between first_expert_ and the lane's first one
  uint32_t total_;     // parts of all experts that the warp looks at
};

// expert_offsets in shared memory, as numbers of 32 bits: clamped to the range from -1 to the number of rows plus 1,
// which changes no row's expert.
struct SharedOffsets {
  const int32_t *offsets;

  ROPE_HOST_DEVICE int32_t operator[](int32_t number) const { return offsets[number]; }
};

// Enumerates the parts of rows of a warp without expert_rows. All threads of a block construct it together.
class RowWalk {
 public:
  static constexpr bool kLooksUpRows = true;

  __device__ __forceinline__ explicit RowWalk(const SwigluExpertParams &params)
      : params_(params), part_((blockIdx.x * blockDim.x + threadIdx.x) / kLanes) {
    __shared__ int32_t offsets[kMaxSwigluLookupExperts + 1];
    offsets_ = offsets;
    uint32_t end = params_.rows_per_expert;
    if (params_.rows.expert_offsets != nullptr) {
      const ExpertOffsets given = {params_.rows};
      const int64_t most = int64_t{end} + 1;
      for (uint32_t i = threadIdx.x; i <= params_.experts; i += blockDim.x) {
        const int64_t offset = given[i];
        offsets[i] = static_cast<int32_t>(offset < 0 ? -1 : offset < most ? offset : most);
      }
      __syncthreads();
      first_row_ = held_row(offsets[0]);
      end = held_row(offsets[params_.experts]);
    } else if (params_.num_rows != nullptr) {
      end = held_row(read_integer(params_.num_rows, params_.is_num_rows_64_bit, 0));
    }
    total_ = end > first_row_ ? (end - first_row_) * params_.parts_per_row.divisor : 0;
  }

  // Returns false if no part is left. Skips rows without an expert or a factor.
  __device__ __forceinline__ bool next(ExpertPart *part) {
    while (part_ < total_) {
      const DivmodResult at = params_.parts_per_row.divmod(part_);
      part_ += gridDim.x * blockDim.x / kLanes;
      part->row = first_row_ + at.quotient;
      int32_t expert = 0;
      if (params_.rows.expert_offsets != nullptr) {
        expert = find_expert(SharedOffsets{offsets_}, static_cast<int32_t>(params_.experts),
                             static_cast<int32_t>(params_.rows_per_expert), static_cast<int32_t>(part->row));
      }
      part->expert = static_cast<uint32_t>(expert);
      if (params_.rows.row_index != nullptr && expert >= 0) part->factor = find_factor(params_.rows, part->row);
      if (expert < 0 || part->factor < 0) continue;
      set_vectors(params_, at.remainder, part);
      return true;
    }
    return false;
  }

  __device__ __forceinline__ uint32_t lane() const { return threadIdx.x % kLanes; }

 private:
  static constexpr uint32_t kLanes = 32;

  __device__ __forceinline__ uint32_t held_row(int64_t row) const {
    return row < 0 ? 0 : row < params_.rows_per_expert ? static_cast<uint32_t>(row) : params_.rows_per_expert;
  }

  const SwigluExpertParams &params_;
  const int32_t *offsets_;
  uint32_t part_;  // the warp's next part
  uint32_t total_;
  uint32_t first_row_ = 0;
};

// Returns the factor of a part's row; 1 if there is none.
template <typename T, typename Walk>
__device__ __forceinline__ float load_part_scale(const SwigluExpertParams &params, const ExpertPart &part) {
  if (params.row_scale == nullptr) return 1;
  const bool is_indexed = Walk::kLooksUpRows && params.rows.row_index != nullptr;
  const int64_t offset =
      is_indexed ? part.factor * params.factor_stride : part.template offset<Walk>(params.row_scale_stride);
  return load_row_scale<T>(params.row_scale + offset, params.is_row_scale_f32);
}

// Adds the biases of a vector of a part's row to the values of gate and up, which come first.
template <typename T, int V, int NumInputs>
__device__ __forceinline__ void add_part_biases(const SwigluExpertParams &params, const ExpertPart &part,
                                                uint32_t vector, float (&value)[NumInputs][V]) {
#pragma unroll
  for (int i = kGate; i <= kUp; ++i) {
    if (params.bias[i] == nullptr) continue;
    const uint64_t column = uint64_t{vector} * (V * (params.is_bias_f32[i] ? sizeof(float) : sizeof(T)));
    const char *const bias = params.bias[i] + part.expert * params.bias_expert_stride[i] + column;
    add_bias_vector<T, V>(bias, params.is_bias_f32[i], value[i]);
  }
}

}  // namespace rope
