// rope_facts.hpp - what choosing a RoPE kernel needs to know of a problem, found once for a vector width
#pragma once

#include <stdint.h>

#include "core/problem/rope_problem.hpp"
#include "plan/device_info.hpp"
#include "plan/rope_kernels.hpp"
#include "plan/tuning.hpp"

namespace rope {

// The work of a token is cut into units, those of q's heads, k's heads and v's heads, each head's rotary units first:
//
//   unit of the token   0   1   2   3   4   5   6   7 ...
//   head                0   0   0   0   1   1   1   1 ...     four units a head
//
// A rotary unit is two vectors of channels and as many pairs: with kHalf the vectors are those of the pairs' first and
// of their second channels, with kInterleaved they lie half a window apart, with kConverted side by side where channels
// are interleaved. A copy unit is channels outside the window; only tensors that are rotated out of place have any.
enum class UnitRule {
  kVectors,      // a copy unit is one vector
  kVectorPairs,  // a copy unit is two vectors
  kElements      // a unit is a pair or a single channel, of kScalarHeads heads
};

struct RopeUnits {
  uint32_t rotary_per_head;
  uint32_t per_head[3];
  uint32_t per_token;
};

RopeUnits count_units(const RopeProblem &problem, Pairing pairing, int vector_elements, UnitRule rule);

Pairing pairing_of(int in_distance, int out_distance);

// Whether a thread may overwrite what another of the same head has yet to read.
bool converts_in_place(const RopeProblem &problem, Pairing pairing);

struct RopeFacts {
  const RopeProblem *problem;
  const DeviceInfo *device;
  const RopeTuning *tuning;
  bool is_programmatic;

  Pairing pairing;
  AngleKinds angles;      // one of them
  Lookups lookup;         // one of them
  bool has_vectors;       // channels fit vectors of 8 bytes
  bool has_split_pairs;   // between the first channels of pairs that follow each other lie second ones
  bool has_inner_tokens;  // tokens of a head lie closer together than heads of a token (BHSD)

  int vector_elements;
  int64_t vector_bytes;
  RopeUnits units;
  // Strides in bytes, and numbers of tokens, units, blocks and sequences, have 32 bits; heads are cut alike, into several
  // units, with HALF several before their channels jump.
  bool fits_rows;
  // fits_rows; there is nothing to copy, pairs are not split, there are no start_positions, and a grid's second axis
  // holds the parts of a token.
  bool fits_parts;
  // A thread's entries of a table are vectors; the table's rows and strides have 32 bits.
  bool has_vector_rows;
  // fits_parts; outputs have their inputs' strides, which lead from head to head upwards, and positions strides of 32
  // bits, in bytes. With computed angles heads have kMaxShortPairs at most; from a table has_vector_rows, and cosines
  // and sines have one stride of rows.
  bool fits_few_params;

  int64_t half_bytes;  // of all first vectors of units, at the widest vectors

  // At most so many such vectors, of 16 bytes, for each multiprocessor.
  bool has_at_most(int64_t vectors) const;
  bool is_within(const VectorRange &range) const;
  // As kMidProgrammaticTable is for.
  bool is_mid_programmatic() const;
};

// The facts that the kernels of a launch are chosen by. Vectors are the widest that every pointer, every stride and
// every edge between channels allows; in launches of few vectors those of 16 bytes are halved.
struct RopeLaunchFacts {
  RopeFacts usual;            // for most kernels
  const RopeFacts *in_short;  // for those of short launches; NULL where the launch is not short
  RopeFacts half;             // what in_short points to if it is not `usual`
};

void find_facts(const RopeProblem &problem, const DeviceInfo &device, RopeLaunchFacts *facts);

}  // namespace rope
