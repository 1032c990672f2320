// rope_catalogue.hpp - every RoPE kernel: what it takes, when it is worth it, and what its launches look like
#pragma once

#include <stdint.h>

#include "plan/rope_facts.hpp"
#include "plan/rope_kernels.hpp"

namespace rope {

// How the units of tokens are dealt to threads, one unit each but for kFlat.
enum class RopeShape {
  kBlocks,      // a block has all units of some tokens, or a part of one token's
  kWarpRows,    // a block has rows of threads, each of whole warps with a token or a part of one
  kTokenRows,   // kWarpRows, but where no sequence is looked up rows may end within a warp
  kPairRows,    // those of long launches: kTokenRows with a thread for each pair at least
  kParts,       // the grid's second axis has parts of tokens
  kShortParts,  // kParts of short launches, with vectors of kShortVectorBytes
  kFlat         // units are counted through all tokens, and a thread's lie a grid apart
};

// Which channels it takes.
enum class Channels {
  kVectors,   // that fit vectors
  kElements,  // that do not
  kAny
};

// Which angles lie in shared memory.
enum class SharedAngles {
  kNone,
  kOfWarps,    // for each warp, room for kMaxShortPairs
  kOfRows,     // for each row of threads, room for kMaxShortPairs
  kOfTokens,   // for each token, those of its pairs
  kOfGeneral,  // for each token, those of its pairs or channels, and a TokenInfo
};

// Between which styles a kernel rotates.
enum class Styles {
  kOne,  // the output has that of the input
  kTwo,  // it has another one
  kAny
};

struct RopeAlgorithm {
  RopeKernel kernel;
  const char *name;  // in rope_explain, before the kind of its angles
  unsigned angles;   // AngleKinds that it reads
  unsigned lookups;  // Lookups that it takes
  Styles styles;
  Channels channels;
  RopeShape shape;
  SharedAngles shared;
  // Whether it gives the right result, beside what the members above say; NULL: always.
  bool (*accepts)(const RopeFacts &facts);
  // Whether it is faster than those further down; NULL: always.
  bool (*prefers)(const RopeFacts &facts);
  unsigned rounded_angles = 0;  // AngleKinds that it reads in calls whose rotation rounds each product and sum
};

// The first that accepts and prefers is taken; the last takes everything.
constexpr int kNumRopeAlgorithms = static_cast<int>(RopeKernel::kGeneral) + 1;
extern const RopeAlgorithm kRopeAlgorithms[kNumRopeAlgorithms];

bool accepts(const RopeAlgorithm &algorithm, const RopeFacts &facts);

const RopeAlgorithm &algorithm_of(RopeKernel kernel);

// Whether calls between such pairs may get the kernel.
bool may_have(Pairing pairing, RopeKernel kernel);

// Calls `visit` with every variant that they may get; those of one function mostly follow each other.
template <typename Visit>
void for_each_variant(Pairing pairing, Visit visit) {
  for (const RopeAlgorithm &algorithm : kRopeAlgorithms) {
    if (!may_have(pairing, algorithm.kernel)) continue;
    for (unsigned angles = 1; angles <= algorithm.angles; angles *= 2) {
      for (unsigned lookup = 1; lookup <= algorithm.lookups; lookup *= 2) {
        if ((algorithm.angles & angles) == 0 || (algorithm.lookups & lookup) == 0) continue;
        // The grid makes two functions of kLong alone.
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
