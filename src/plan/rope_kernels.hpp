// rope_kernels.hpp - the kinds of RoPE kernels, in words that planning and the kernels share
#pragma once

#include <stdint.h>

namespace rope {

// In the order of kRopeAlgorithms (plan/rope_catalogue.hpp), which says what each takes.
enum class RopeKernel {
  kMidProgrammaticTable,  // from a table, types of 16 bits: programmatic launches of more than a few tokens
  kProgrammaticTable,     // short programmatic launches from a table
  kFlatTable,             // from a table, types of 16 bits: a thread's units lie a grid apart, for tensors that L2 has
  kShortTable,            // other short launches from a table, vectors of 8 bytes
  kShortWarp,             // short launches: each warp computes its own angles
  kShort,                 // each row of threads does
  kLongConverted,         // as kLong, from one style to the other
  kThread,                // each thread has its own angles, vectors of 16 bytes
  kLong,                  // as kShort, for launches of any size, vectors of 16 bytes and types of 16 bits
  kToken,                 // rows of threads have a token each and share its angles, whatever they are looked up by
  kScalar,                // as kToken, where channels fit no vector
  kGeneral                // everything
};

// Heads whose channels of one pair a thread of kScalar moves.
constexpr uint32_t kScalarHeads = 8;

constexpr int64_t count_scalar_groups(int64_t heads) {
  return (heads + int64_t{kScalarHeads} - 1) / int64_t{kScalarHeads};
}

// Pairs of a head, at most, for kShortWarp, kShort and those for long launches.
constexpr int kMaxShortPairs = 64;

// Bytes of a vector of kThread, and of the kernels of short and of long launches.
constexpr int kThreadVectorBytes = 16;
constexpr int kShortVectorBytes = 8;
constexpr int kFlatVectorBytes = 16;
constexpr int kLongVectorBytes = 16;

// Kinds of angles, as bits: a kernel may read several.
enum AngleKinds : unsigned {
  kComputedAngles = 1,  // from increments
  kTable32 = 2,         // from a table of F32 with a column for each pair or for several
  kTable16 = 4,         // of F16 or BF16
  kOtherAngles = 8,     // what is left, and those of F64 data
  kTables = kTable32 | kTable16,
  kAllAngles = kComputedAngles | kTables | kOtherAngles
};

// What a kernel looks up before it has a token's angles, as bits. A kernel for kAxesLookup also serves kNoLookup.
enum Lookups : unsigned {
  kNoLookup = 1,         // the position on one axis
  kAxesLookup = 2,       // positions on several axes; from a table also faults, and columns that several pairs have
  kSequencesLookup = 4,  // the sequence of a token, of one batch, then what kAxesLookup has
  kAllLookups = kNoLookup | kAxesLookup | kSequencesLookup
};

enum class Pairing {
  kHalf,
  kInterleaved,
  kConverted  // one of the two in, the other out
};

// Which function of a kind a launch needs, for a type of data and a vector width. A kind that is one function for
// several angles or lookups does not look at them.
struct RopeVariant {
  RopeKernel kernel;
  Pairing pairing;
  AngleKinds angles;     // one of them
  Lookups lookup;        // one of them
  bool has_simple_grid;  // kLong: there is one batch, and blocks of a token follow each other
};

// What the general kernel keeps in shared memory of each token.
struct TokenInfo {
  uint64_t index;  // in its batch or sequence
  int64_t batch;   // or sequence
  uint32_t state;  // a TokenState
};

}  // namespace rope
