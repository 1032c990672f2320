// faults.cuh - tokens that are not rotated, and how faulty ones are counted
#pragma once

#include "core/problem/rope_problem.hpp"

namespace rope {

enum TokenState : uint32_t {
  kUnrotated,  // it only moves from input to output
  kRotated,
  kAbsent  // it belongs to no sequence and stays as it is
};

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
