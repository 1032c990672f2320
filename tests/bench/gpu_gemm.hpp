// SPDX-License-Identifier: Apache-2.0
// gpu_gemm.hpp - matrix products of cuBLAS, as the kernels before and after a call in a model
#pragma once

#include <memory>

#include "rope/rope.h"

namespace bench {

class Memory;

// tokens x 4096 times 4096 x 6144 in bf16: the projection to q, k and v of Llama-3-8B. Its weights fit the L2 cache.
class Gemm {
 public:
  // Throws NotServed without cuBLAS, which is loaded at run time.
  Gemm(int tokens, Memory &memory);
  ~Gemm();
  Gemm(const Gemm &) = delete;
  Gemm &operator=(const Gemm &) = delete;

  void enqueue(rope_stream_t stream) const;

 private:
  struct Library;
  std::unique_ptr<Library> library_;
  int tokens_;
  char *weights_, *in_, *out_, *workspace_;
};

}  // namespace bench
