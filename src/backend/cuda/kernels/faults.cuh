// SPDX-License-Identifier: Apache-2.0
// faults.cuh - counts faulty tokens
#pragma once

#include "core/problem/rope_problem.hpp"

namespace rope {

// Adds 1 to the number of faults and lowers the lowest faulty token + 1. The latter needs a loop of compare-and-swap,
// because 0 means that there was no fault yet.
__device__ __forceinline__ void count_fault(const FaultWords &fault, int64_t token) {
  if (fault.data == nullptr) return;
  using Word = unsigned long long;
  Word *count = reinterpret_cast<Word *>(fault.data), *lowest = count + fault.stride;
  atomicAdd(count, Word{1});
  const Word wanted = static_cast<Word>(token + 1);
  Word known = *reinterpret_cast<volatile Word *>(lowest);
  while (known == 0 || known > wanted) {
    const Word found = atomicCAS(lowest, known, wanted);
    if (found == known) return;
    known = found;
  }
}

}  // namespace rope
