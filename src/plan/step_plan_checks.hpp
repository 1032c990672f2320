// step_plan_checks.hpp - what choosing the kernels of the step asks of a problem, for all kinds of them
#pragma once

#include "core/problem/view.hpp"
#include "plan/step_pieces.hpp"
#include "plan/step_plan.hpp"

namespace rope {

constexpr int64_t kMaxInt32 = INT32_MAX;  // of strides in bytes, and of what is counted in 32 bits

// A block has so much shared memory everywhere.
constexpr uint32_t kMaxSharedBytes = 48 * 1024;

inline bool fits(int64_t stride, int64_t size) {
  return magnitude(stride) <= kMaxInt32 / size;
}

// Whether other kernels than kGeneral find the tokens' angles and places.
bool takes_tokens(const RopeProblem &problem);

// Whether vectors of so many bytes of the data fit a piece and everything that it is written to.
bool fits_vectors(const RopeProblem &problem, const StepPiece &piece, int64_t vector_bytes);

// Whether those vectors, two by two, are the units of all tensors' heads and windows, a head's units in one warp.
bool fit_rows(const RopeProblem &problem, int64_t vector_bytes);

// Whether codes of a piece, of one type and of the same scales, can be those of other kernels than kGeneral, whatever the
// groups of written scales.
bool can_be_codes(const RopeProblem &problem, const StepPiece &piece);

// Likewise a tensor's row factors.
bool takes_factor(const RopeProblem &problem, const RowFactor &factor);

// Whether the strides of tokens and batches are those of one batch of all tokens; with a size, a tensor's, whose tokens
// are then so many bytes apart that 32 bits hold them.
bool is_one_batch(const RopeProblem &problem, int64_t token_stride, int64_t batch_stride);
bool is_one_batch(const RopeProblem &problem, const int64_t *stride, int64_t size);

bool has_token_norm(const RopeProblem &problem);

// Whether there are several position axes or a page table.
bool has_lookups(const RopeProblem &problem);

StepVariant variant_of(const RopeProblem &problem, StepKernel kernel);

// Whether the kernels of whole heads serve the problem, and how.
bool plan_heads(const RopeProblem &problem, const DeviceInfo &device, RopePlan *plan);

// Likewise the kernel of rows that goes back through a norm.
bool plan_gradient_rows(const RopeProblem &problem, const DeviceInfo &device, RopePlan *plan);

}  // namespace rope
