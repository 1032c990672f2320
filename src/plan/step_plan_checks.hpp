// SPDX-License-Identifier: Apache-2.0
// step_plan_checks.hpp - the conditions under which the step's kernels support a problem
#pragma once

#include "core/problem/view.hpp"
#include "plan/step_pieces.hpp"
#include "plan/step_plan.hpp"

namespace rope {

constexpr int64_t kMaxInt32 = INT32_MAX;  // limit of strides in bytes, and of 32-bit counts

// Every device has this much shared memory for a block.
constexpr uint32_t kMaxSharedBytes = 48 * 1024;

inline bool fits(int64_t stride, int64_t size) {
  return magnitude(stride) <= kMaxInt32 / size;
}

// Whether kernels other than kGeneral can find the tokens' angles and places.
bool takes_tokens(const RopeProblem &problem);

// Whether vectors of `vector_bytes` of the data fit a piece and all its destinations.
bool fits_vectors(const RopeProblem &problem, const StepPiece &piece, int64_t vector_bytes);

// Whether pairs of such vectors are the units of all tensors' heads and windows, with a head's units in one warp.
bool fit_rows(const RopeProblem &problem, int64_t vector_bytes);

// Whether kernels other than kGeneral can make the codes of a piece, for any groups of written scales. These codes have
// one type and equal scales.
bool can_be_codes(const RopeProblem &problem, const StepPiece &piece);

// Whether kernels other than kGeneral can read a tensor's row factors.
bool takes_factor(const RopeProblem &problem, const RowFactor &factor);

// Whether the strides of tokens and batches are those of a single batch of all tokens. With a size, the tensor's tokens
// must also be so close that strides in bytes fit 32 bits.
bool is_one_batch(const RopeProblem &problem, int64_t token_stride, int64_t batch_stride);
bool is_one_batch(const RopeProblem &problem, const int64_t *stride, int64_t size);

bool has_token_norm(const RopeProblem &problem);

// Whether there are several position axes or a page table.
bool has_lookups(const RopeProblem &problem);

StepVariant variant_of(const RopeProblem &problem, StepKernel kernel);

// Whether the kernels of whole heads serve the problem; fills the plan if so.
bool plan_heads(const RopeProblem &problem, const DeviceInfo &device, RopePlan *plan);

// Whether the kernel of rows for gradients of norms serves the problem; fills the plan if so.
bool plan_gradient_rows(const RopeProblem &problem, const DeviceInfo &device, RopePlan *plan);

}  // namespace rope
