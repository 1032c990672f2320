// SPDX-License-Identifier: Apache-2.0
// rope_catalogue.hpp - every RoPE kernel: the problems it accepts, those it is preferred for, and its launches' shapes
#pragma once

#include <stdint.h>

#include "plan/rope_facts.hpp"
#include "plan/rope_kernels.hpp"

namespace rope {

// How the units of tokens are distributed over threads. Except with kFlat, each thread has one unit.
enum class RopeShape {
  kBlocks,      // a block has all units of several tokens, or a part of one token
  kWarpRows,    // a block has several rows of threads, each of whole warps with a token or a part of one
  kTokenRows,   // kWarpRows, but rows need not be whole warps unless sequences are looked up
  kPairRows,    // kTokenRows with at least one thread for each pair; for long launches
  kParts,       // the grid's second axis counts the parts of a token
  kShortParts,  // kParts for short launches, with vectors of kShortVectorBytes
  kFlat         // units are numbered through all tokens; a thread's units lie a grid's size apart
};

// The channels that a kernel accepts.
enum class Channels {
  kVectors,   // channels that fit vectors
  kElements,  // channels that do not fit vectors
  kAny
};

// The angles that a kernel keeps in shared memory.
enum class SharedAngles {
  kNone,
  kOfWarps,    // those of each warp; room for kMaxShortPairs
  kOfRows,     // those of each row of threads; room for kMaxShortPairs
  kOfTokens,   // those of each token; room for its pairs
  kOfGeneral,  // those of each token; room for its pairs or channels, and for a TokenInfo
};

// The pairing styles of input and output that a kernel accepts.
enum class Styles {
  kOne,  // equal
  kTwo,  // different
  kAny
};

struct RopeAlgorithm {
  RopeKernel kernel;
  const char *name;  // in rope_explain, followed by the kind of angles
  unsigned angles;   // accepted AngleKinds
  unsigned lookups;  // accepted Lookups
  Styles styles;
  Channels channels;
  RopeShape shape;
  SharedAngles shared;
  // Whether the kernel's result is correct, given that the members above fit; NULL: always.
  bool (*accepts)(const RopeFacts &facts);
  // Whether the kernel is faster than those further down the list; NULL: always.
  bool (*prefers)(const RopeFacts &facts);
  unsigned rounded_angles = 0;  // accepted AngleKinds if each product and sum of the rotation is rounded
};

// A plan takes the first kernel that accepts and prefers the problem; the last kernel accepts everything.
constexpr int kNumRopeAlgorithms = static_cast<int>(RopeKernel::kGeneral) + 1;
extern const RopeAlgorithm kRopeAlgorithms[kNumRopeAlgorithms];

bool accepts(const RopeAlgorithm &algorithm, const RopeFacts &facts);

const RopeAlgorithm &algorithm_of(RopeKernel kernel);

// Whether some call with this pairing may use the kernel.
bool may_have(Pairing pairing, RopeKernel kernel);

// Calls `visit` with every variant that some call may use. Variants that are one function mostly follow each other.
template <typename Visit>
void for_each_variant(Pairing pairing, Visit visit) {
  for (const RopeAlgorithm &algorithm : kRopeAlgorithms) {
    if (!may_have(pairing, algorithm.kernel)) continue;
    for (unsigned angles = 1; angles <= algorithm.angles; angles *= 2) {
      for (unsigned lookup = 1; lookup <= algorithm.lookups; lookup *= 2) {
        if ((algorithm.angles & angles) == 0 || (algorithm.lookups & lookup) == 0) continue;
        // Only kLong has separate functions for the two kinds of grid.
        RopeVariant variant = {algorithm.kernel, pairing, static_cast<AngleKinds>(angles), static_cast<Lookups>(lookup),
                               false};
        visit(variant);
        variant.has_simple_grid = true;
        if (algorithm.kernel == RopeKernel::kLong) visit(variant);
      }
    }
  }
}

}  // namespace rope
