// rope_kernels.hpp - the kinds of RoPE kernels, in words that planning and the kernels share
#pragma once

#include <stdint.h>

namespace rope {

// What most calls ask for has kernels of its own; the general one serves everything.
enum class RopeKernel {
  kShared,       // one position axis, no sequences; computed angles, shared by the threads of a block
  kAxes,         // the same with several position axes
  kSequences,    // and with sequences
  kFlat,         // as kShared, but each thread has its own angles
  kTable32,      // from a table of F32, a column a pair, columns next to each other
  kTable16,      // of F16 or BF16
  kWarpTable32,  // as kTable32, rows shared by a warp
  kGeneral
};
enum class Pairing {
  kHalf,
  kInterleaved,
  kConverted  // one of the two in, the other out
};

// Most pairs of a head for kFlat, whose launches are short and should not pass more increments than that.
constexpr int kMaxFlatPairs = 128;

// What the general kernel keeps in shared memory of each token.
struct TokenInfo {
  uint64_t index;  // in its batch or sequence
  int64_t batch;   // or sequence
  uint32_t state;  // a TokenState
};

}  // namespace rope
