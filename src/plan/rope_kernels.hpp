// rope_kernels.hpp - the kinds of RoPE kernels, in words that planning and the kernels share
#pragma once

#include <stdint.h>

namespace rope {

// What most calls ask for has kernels of its own; the general one serves everything.
enum class RopeKernel {
  kShared,               // one position axis, no sequences; computed angles, shared by the threads of a block
  kToken,                // the same where rows of threads have a token each
  kTokenAxes,            // and with several position axes
  kTokenSequences,       // and with sequences
  kTokenTable,           // as kToken, from a table with a column for each pair
  kTokenTableAxes,       // as kTokenAxes, from a table with a column for each pair or fewer
  kTokenTableSequences,  // and with sequences
  kScattered,            // as kTokenSequences, where channels fit no vector
  kScatteredTable,       // as kTokenTableSequences
  kFlat,                 // as kToken, but each thread has its own angles, and vectors have 16 bytes
  kTable32,              // from a table of F32, a column a pair, columns next to each other
  kTable16,              // of F16 or BF16
  kShortWarp,            // short launches: as kToken, but each warp has its own angles, and vectors have 8 bytes
  kShort,                // the same, but each row of threads has its own
  kShortTable32,         // the same from a table, as kTable32
  kShortTable16,         // as kTable16
  kLateTable32,          // the same with programmatic launch, of fewer tokens
  kLateTable16,          // as kTable16
  kLong,                 // as kShort, for launches of any size, vectors of 16 bytes and types of 16 bits
  kLongBatches,          // and for several batches, or where tokens of a head lie closer than heads of a token
  kLongConverted,        // as kLongBatches, from one style to the other
  kLongTable32,          // as kLongBatches from a table, as kTable32, whose rows are shared too
  kLongTable16,          // as kTable16
  kGeneral
};

// Heads whose channels of one pair a thread of kScattered and kScatteredTable moves.
constexpr uint32_t kScatteredHeads = 8;

// Most pairs of a head for kShortWarp, kShort and those for long launches.
constexpr int kMaxShortPairs = 64;

// Bytes of a vector of kFlat, kTable32 and kTable16, and of the kernels of short and of long launches.
constexpr int kFlatVectorBytes = 16;
constexpr int kShortVectorBytes = 8;
constexpr int kLongVectorBytes = 16;

enum class Pairing {
  kHalf,
  kInterleaved,
  kConverted  // one of the two in, the other out
};

// What the general kernel keeps in shared memory of each token.
struct TokenInfo {
  uint64_t index;  // in its batch or sequence
  int64_t batch;   // or sequence
  uint32_t state;  // a TokenState
};

}  // namespace rope
