// rope_kernels.hpp - the kinds of RoPE kernels, in words that planning and the kernels share
#pragma once

#include <stdint.h>

namespace rope {

// In the order of kRopeAlgorithms (plan/rope_catalogue.hpp), which says what each takes.
enum class RopeKernel {
  kLateTable32,   // short launches from a table of F32: positions are read behind the wait for the one before
  kLateTable16,   // of F16 or BF16
  kShortTable32,  // short launches from a table, vectors of 8 bytes
  kShortTable16,
  kShortWarp,       // short launches: each warp computes its own angles
  kShort,           // each row of threads does
  kLongConverted,   // as kLongBatches, from one style to the other
  kFlat,            // each thread computes its own angles, vectors of 16 bytes
  kLong,            // as kShort, for launches of any size, vectors of 16 bytes and types of 16 bits
  kLongBatches,     // and for several batches, or where tokens of a head lie closer than heads of a token
  kToken,           // rows of threads have a token each and share computed angles
  kShared,          // the threads of a block share computed angles
  kTokenAxes,       // as kToken, with several position axes
  kTokenSequences,  // and with sequences
  kLongTable32,     // as kLongBatches from a table, whose rows are shared too
  kLongTable16,
  kTable32,  // each thread reads its own columns of a table
  kTable16,
  kTokenTable,           // as kToken, from a table with a column for each pair
  kTokenTableAxes,       // as kTokenAxes, from a table with a column for each pair or fewer
  kTokenTableSequences,  // and with sequences
  kScattered,            // as kTokenSequences, where channels fit no vector
  kScatteredTable,       // as kTokenTableSequences
  kGeneral               // everything
};

// Heads whose channels of one pair a thread of kScattered and kScatteredTable moves.
constexpr uint32_t kScatteredHeads = 8;

// Most pairs of a head for kShortWarp, kShort and those for long launches.
constexpr int kMaxShortPairs = 64;

// Bytes of a vector of kFlat, kTable32 and kTable16, and of the kernels of short and of long launches.
constexpr int kFlatVectorBytes = 16;
constexpr int kShortVectorBytes = 8;
constexpr int kLongVectorBytes = 16;

// What a kernel looks up before it has a token's angles.
enum class Lookup {
  kNone,       // the position on one axis
  kAxes,       // positions on several axes; of a table also faults, and columns that several pairs have
  kSequences,  // where a token's sequence begins, of one batch, and what kAxes has
  kAny         // whichever of these the problem has
};

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
