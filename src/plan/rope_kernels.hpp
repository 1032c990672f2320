// SPDX-License-Identifier: Apache-2.0
// rope_kernels.hpp - the kinds of RoPE kernels, for both the plan and the kernels
#pragma once

#include <stdint.h>

namespace rope {

// In the order of kRopeAlgorithms (plan/rope_catalogue.hpp), which lists the problems that each accepts.
enum class RopeKernel {
  kMidProgrammaticTable,  // table, 16-bit data: programmatic launches of more than a few tokens
  kProgrammaticTable,     // table: short programmatic launches
  kFlatTable,             // table, 16-bit data: a thread's units lie a grid's size apart; for tensors that fit L2
  kShortTable,            // table: other short launches, vectors of 8 bytes
  kShortWarp,             // short launches: each warp computes its own angles
  kShort,                 // short launches: each row of threads computes its own angles
  kLongConverted,         // kLong from one pairing style to the other
  kThread,                // each thread obtains its own angles; vectors of 16 bytes
  kLong,                  // kShort for launches of any size, vectors of 16 bytes and 16-bit data
  kToken,                 // each row of threads has a token and shares its angles; any lookup
  kScalar,                // kToken for channels that fit no vector
  kGeneral                // every problem
};

// A thread of kScalar moves the channels of one pair for so many heads.
constexpr uint32_t kScalarHeads = 8;

constexpr int64_t count_scalar_groups(int64_t heads) {
  return (heads + int64_t{kScalarHeads} - 1) / int64_t{kScalarHeads};
}

// The largest number of a head's pairs for kShortWarp, kShort and the kernels for long launches.
constexpr int kMaxShortPairs = 64;

// Vector sizes in bytes: of kThread, and of the kernels for short and for long launches.
constexpr int kThreadVectorBytes = 16;
constexpr int kShortVectorBytes = 8;
constexpr int kFlatVectorBytes = 16;
constexpr int kLongVectorBytes = 16;

// Kinds of angles, as bits: a kernel may accept several.
enum AngleKinds : unsigned {
  kComputedAngles = 1,  // from increments
  kTable32 = 2,         // from an F32 table; one column may serve several pairs
  kTable16 = 4,         // from a table of F16 or BF16
  kOtherAngles = 8,     // all other angles, and all angles for F64 data
  kTables = kTable32 | kTable16,
  kAllAngles = kComputedAngles | kTables | kOtherAngles
};

// The lookups that precede the computation of a token's angles, as bits. A kernel for kAxesLookup also accepts
// kNoLookup.
enum Lookups : unsigned {
  kNoLookup = 1,         // the position on one axis
  kAxesLookup = 2,       // positions on several axes; for tables also faults, and columns that serve several pairs
  kSequencesLookup = 4,  // the token's sequence (there is one batch), then kAxesLookup
  kAllLookups = kNoLookup | kAxesLookup | kSequencesLookup
};

enum class Pairing {
  kHalf,
  kInterleaved,
  kConverted  // input in one of the two styles, output in the other
};

// Selects a kernel function, together with a data type and a vector width. A kind that has one function for several
// angles or lookups ignores those members.
struct RopeVariant {
  RopeKernel kernel;
  Pairing pairing;
  AngleKinds angles;     // exactly one
  Lookups lookup;        // exactly one
  bool has_simple_grid;  // kLong: there is one batch, and the blocks of a token are consecutive
};

// The general kernel's record of a token in shared memory.
struct TokenInfo {
  uint64_t index;  // within its batch or sequence
  int64_t batch;   // or sequence
  uint32_t state;  // a TokenState
};

}  // namespace rope
