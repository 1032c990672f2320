// step_plan_checks.hpp - what choosing the kernels of the step asks of a problem, for all kinds of them
#pragma once

#include "core/problem/view.hpp"
#include "plan/step_pieces.hpp"
#include "plan/step_plan.hpp"

namespace rope {

constexpr int64_t kMaxInt32 = INT32_MAX;  // of strides in bytes, and of what is counted in 32 bits

inline bool fits(int64_t stride, int64_t size) {
  return magnitude(stride) <= kMaxInt32 / size;
}

// Whether other kernels than kGeneral find the tokens' angles and places.
bool takes_tokens(const RopeProblem &problem);

// Whether vectors of so many bytes of the data fit a piece and everything that it is written to.
bool fits_vectors(const RopeProblem &problem, const StepPiece &piece, int64_t vector_bytes);

// Whether codes of a piece, of one type and of the same scales, can be those of other kernels than kGeneral, whatever the
// groups of written scales.
bool can_be_codes(const RopeProblem &problem, const StepPiece &piece);

// Likewise a tensor's row factors.
bool takes_factor(const RopeProblem &problem, const RowFactor &factor);

bool has_token_norm(const RopeProblem &problem);

// Whether there are several position axes or a page table.
bool has_lookups(const RopeProblem &problem);

StepVariant variant_of(const RopeProblem &problem, StepKernel kernel);

// Whether the kernels of whole heads serve the problem, and how.
bool plan_heads(const RopeProblem &problem, const DeviceInfo &device, RopePlan *plan);

}  // namespace rope
