// SPDX-License-Identifier: Apache-2.0
// rope_facts.hpp - the facts on which the choice of a RoPE kernel depends, found once per vector width
#pragma once

#include <stdint.h>

#include "core/problem/rope_problem.hpp"
#include "plan/device_info.hpp"
#include "plan/rope_kernels.hpp"
#include "plan/tuning.hpp"

namespace rope {

// The work for a token is divided into units: first those of q's heads, then k's, then v's, and within each head the
// rotary units first:
//
//   unit of the token   0   1   2   3   4   5   6   7 ...
//   head                0   0   0   0   1   1   1   1 ...     four units a head
//
// A rotary unit consists of two vectors of channels, which hold as many pairs as a vector has elements. With kHalf one
// vector has the first channels of these pairs and the other the second ones; with kInterleaved the vectors lie half a
// window apart; with kConverted they are adjacent in the interleaved tensor. A copy unit consists of channels outside
// the window. Only tensors that are rotated out of place have copy units.
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

// Whether a thread may overwrite channels of its head that another thread has yet to read.
bool converts_in_place(const RopeProblem &problem, Pairing pairing);

struct RopeFacts {
  const RopeProblem *problem;
  const DeviceInfo *device;
  const RopeTuning *tuning;
  bool is_programmatic;

  Pairing pairing;
  AngleKinds angles;      // exactly one
  Lookups lookup;         // exactly one
  bool has_vectors;       // the channels fit vectors of at least 8 bytes
  bool has_split_pairs;   // second channels lie between the first channels of consecutive pairs
  bool has_inner_tokens;  // the tokens of a head lie closer together than the heads of a token (BHSD)

  int vector_elements;
  int64_t vector_bytes;
  RopeUnits units;
  // Strides in bytes and the numbers of tokens, units, blocks and sequences fit 32 bits. All heads have the same number
  // of units, more than one; with HALF, a block of pairs has more than one too.
  bool fits_rows;
  // fits_rows holds, nothing is copied, pairs are not split, there are no start_positions, and the parts of a token fit
  // the grid's second axis.
  bool fits_parts;
  // A thread's table entries can be loaded as vectors, and the table's rows and strides fit 32 bits.
  bool has_vector_rows;
  // fits_parts holds, outputs have the strides of their inputs, the strides between heads are positive, and the strides
  // of positions fit 32 bits in bytes. With computed angles a head has at most kMaxShortPairs pairs. With a table,
  // has_vector_rows holds, and cosines and sines have the same row stride.
  bool fits_few_params;

  int64_t half_bytes;  // total size of the first vectors of all units, at the widest vectors

  // Whether the launch has at most so many of these vectors, of 16 bytes, per multiprocessor.
  bool has_at_most(int64_t vectors) const;
  bool is_within(const VectorRange &range) const;
  // Whether the launch is one for kMidProgrammaticTable.
  bool is_mid_programmatic() const;
};

// The facts for the kernels of a launch. Vectors are as wide as every pointer, every stride and every boundary between
// channels allows; in launches of few vectors, vectors of 16 bytes are halved.
struct RopeLaunchFacts {
  RopeFacts usual;            // for kernels of other than short launches
  const RopeFacts *in_short;  // for the kernels of short launches; NULL if the launch is not short
  RopeFacts half;             // the target of in_short if that is not `usual`
};

void find_facts(const RopeProblem &problem, const DeviceInfo &device, RopeLaunchFacts *facts);

}  // namespace rope
