// SPDX-License-Identifier: Apache-2.0
// step_kernels.hpp - the kinds of kernels for norms, caches and heads that are not turned, as named by planning and the
// kernels
#pragma once

#include <stdint.h>

#include "core/math/host_device.hpp"

namespace rope {

// Lanes read the angles and weights of long launches from shared memory, each lane consecutive numbers, four at a time.
// If the numbers of neighbouring lanes are so far apart, eight lanes read from every bank at once. `numbers` is a
// multiple of 8.
ROPE_HOST_DEVICE constexpr uint32_t padded_lane(uint32_t numbers) {
  return numbers + 4;
}

// Vectors of short launches have 8 bytes, those of long ones 16.
enum class StepKernel {
  kWarp,        // short launches of whole heads: each warp finds its own angles, or each thread those of its pairs
  kShort,       // short launches of whole heads: a block finds the angles of its token, or each thread its own
  kShortMore,   // kShort with more features: step_short_more.cuh lists them
  kLong,        // long launches of whole heads
  kLongWindow,  // long launches of whole heads that are normed and have a window that is turned, with or without codes
  kShortRows,   // short launches of other heads, for example with a part that is turned: each warp finds its own angles
  kLongRows,    // long launches of other heads: rows of threads share the angles of their token
  kGeneral,     // every problem
  kNormGradient,     // every backward call with a norm
  kNormGradientRows  // backward calls with a norm, for heads of 16 bits in vectors
};

enum class StepNorm {
  kNone,
  kBefore,  // before the rotation
  kAfter,
  kOfToken  // over all heads of a token, before or behind the rotation
};

enum class StepAngles {
  kNone,      // nothing is turned
  kComputed,  // computed from increments
  kTable
};

// The outputs and caches of 8 bits that an instance of a kernel supports. kLongWindow has instances of kStatic only,
// which serve calls without codes too; kShortMore has them for heads that are normed and turned.
enum class StepCodes : uint8_t {
  kNone,
  kStatic,  // codes of E4M3, with a given scale or none; all outputs of such a tensor are codes
  kScales,  // kLong: written scales, too
  kAll      // kLong and kLongRows: codes with all their options, and row factors with or without codes; kLong also has
            // the features of has_more
};

// The function of a kind that a launch needs, for a type of data. kGeneral and kNormGradient are one function for all.
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

// The largest number of pairs of a head.
constexpr uint32_t kMaxShortStepPairs = 64;
constexpr uint32_t kMaxLongStepPairs = 256;

// Pieces of heads (step_pieces.hpp) in a launch: two of q, two of k, and v. If v is cut too, other kernels serve the call.
constexpr int kMaxStepPieces = 5;
constexpr int kMaxShortStepPieces = 4;   // of kWarp, kShort and kShortMore
constexpr int kMaxNormedStepPieces = 3;  // of any kernel, if there is a norm

constexpr int kMaxStepAxes = 4;  // of positions

// Room for data that the threads of a token share in addition to its angles, and for a warp to put the sums of a head
// in order.
constexpr uint32_t kStepSharedBytes = 32;
constexpr uint32_t kStepExchangeBytes = 256;

constexpr uint32_t kMaxStepGeneralThreads = 512;  // of a block of kGeneral
constexpr uint32_t kStepTokenBytes = 64;          // room for a token's place in its shared memory
constexpr int kStepHeadSums = 256;                // heads with sums that a block of kGeneral keeps at a time
constexpr int kMaxStepTokenThreads = 768;         // of a block of kLongRows with a norm over a token
constexpr int kMaxStepCodeThreads = 576;          // of such a block with codes
constexpr uint32_t kStepTokenSumBytes = 3088;     // room for that norm's sums
constexpr int kMaxNormGradientThreads = 320;      // of a block of kNormGradientRows
constexpr uint32_t kGradientThreadBytes =
    64;  // bytes of shared memory for a thread's vectors, whether it has some or not
constexpr uint32_t kGradientUnitBytes = 80;  // for the weights of a unit, or the angles of one

}  // namespace rope
