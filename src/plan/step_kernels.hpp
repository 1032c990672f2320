// step_kernels.hpp - the kinds of kernels for norms, caches and heads that are not turned, in words that planning and the
// kernels share
#pragma once

#include <stdint.h>

namespace rope {

// Vectors of short launches have 8 bytes, those of long ones 16.
enum class StepKernel {
  kWarp,             // short launches of whole heads: each warp finds its own angles
  kShort,            // the same, but a block finds the angles of its token
  kShortMore,        // as kShort, for what that has not: step_short_more.cuh has a list
  kLong,             // long launches of whole heads
  kShortRows,        // short launches of other heads, of which a part is turned, say: each warp finds its own angles
  kLongRows,         // long ones: rows of threads share the angles of their token
  kGeneral,          // everything
  kNormGradient,     // everything of backward with a norm
  kNormGradientRows  // heads of 16 bits in vectors
};

enum class StepNorm {
  kNone,
  kBefore,  // the rotation
  kAfter,
  kOfToken  // over all heads of a token, before the rotation or behind it
};

enum class StepAngles {
  kNone,      // nothing is turned
  kComputed,  // from increments
  kTable
};

// What outputs and caches of 8 bits an instance serves, of kWarp, kShort, kLong and kLongRows.
enum class StepCodes : uint8_t {
  kNone,
  kStatic,  // codes of E4M3, with a given scale or none; of a tensor whose outputs are all codes
  kScales,  // kLong: with a written scale too
  kAll      // kLong and kLongRows: with whatever comes with codes, and row factors, whether there are codes or not; of
            // kLong also what has_more is
};

// Which function of a kind a launch needs, for a type of data. kGeneral and kNormGradient are one function for all.
struct StepVariant {
  StepKernel kernel;
  StepNorm norm;
  StepAngles angles;
  bool is_interleaved;
  StepCodes codes;
  bool has_more;  // kLong without codes: roundings within the norm, several position axes, a page table.
                  // kNormGradientRows: gradients of weights

  bool has_codes() const { return codes != StepCodes::kNone; }
};

constexpr int kShortStepVectorBytes = 8;
constexpr int kLongStepVectorBytes = 16;

// Pairs of a head, at most.
constexpr uint32_t kMaxShortStepPairs = 64;
constexpr uint32_t kMaxLongStepPairs = 256;

// Pieces of heads (step_pieces.hpp) that a launch takes: two of q, two of k, and v.
constexpr int kMaxStepPieces = 5;
constexpr int kMaxShortStepPieces = 4;   // of kWarp, kShort and kShortMore
constexpr int kMaxNormedStepPieces = 3;  // of any kernel where there is a norm

constexpr int kMaxStepAxes = 4;  // of positions

// What the threads of a token share beside its angles, and where a warp puts the sums of a head in order.
constexpr uint32_t kStepSharedBytes = 32;
constexpr uint32_t kStepExchangeBytes = 256;

constexpr uint32_t kMaxStepGeneralThreads = 512;  // of a block of kGeneral
constexpr uint32_t kStepTokenBytes = 64;          // room for a token's place in its shared memory
constexpr int kStepHeadSums = 256;                // heads whose sums a block of kGeneral keeps at a time
constexpr int kMaxStepTokenThreads = 768;         // of a block of kLongRows with a norm over a token
constexpr int kMaxStepCodeThreads = 512;          // of one with codes
constexpr uint32_t kStepTokenSumBytes = 3088;     // room for that norm's sums
constexpr int kMaxNormGradientThreads = 320;      // of a block of kNormGradientRows
constexpr uint32_t kGradientThreadBytes =
    64;                                      // of its shared memory for a thread's vectors, whether it is there or not
constexpr uint32_t kGradientUnitBytes = 80;  // for the weights of a unit, or the angles of one

}  // namespace rope
