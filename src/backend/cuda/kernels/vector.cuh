// SPDX-License-Identifier: Apache-2.0
// vector.cuh - loads and stores several consecutive elements at once, and converts them to floats
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/math/float16.hpp"

namespace rope {

// Elements as loaded from memory: 32-bit words, or a single 16-bit element. They are split where they are needed:
// splitting right after the load would stall until it completes.
template <int Bytes>
struct alignas(Bytes) Words {
  uint32_t word[Bytes / 4];
};

template <>
struct alignas(2) Words<2> {
  uint16_t word[1];
};

// N elements of type T.
template <typename T, int N>
using Vector = Words<N *static_cast<int>(sizeof(T))>;

// Loads a whole vector. The address must be aligned to its size.
template <typename Vector>
__device__ __forceinline__ Vector load_vector(const char *address) {
  return *reinterpret_cast<const Vector *>(address);
}

template <typename Vector>
__device__ __forceinline__ void store_vector(char *address, const Vector &vector) {
  *reinterpret_cast<Vector *>(address) = vector;
}

// The two elements of a word.
struct FloatPair {
  float first;
  float second;
};

// The two 16-bit elements of a word as floats.
__device__ __forceinline__ FloatPair split_word(uint32_t word, Float16) {
  return {to_float(Float16{static_cast<uint16_t>(word)}), to_float(Float16{static_cast<uint16_t>(word >> 16)})};
}

__device__ __forceinline__ FloatPair split_word(uint32_t word, BFloat16) {
  return {float_of(word << 16), float_of(word & 0xffff0000u)};
}

// Converts two at a time: one instruction instead of two conversions and a merge.
__device__ __forceinline__ uint32_t join_word(float first, float second, Float16) {
  const __half2 pair = __floats2half2_rn(first, second);
  return static_cast<uint32_t>(__half_as_ushort(__high2half(pair))) << 16 | __half_as_ushort(__low2half(pair));
}

__device__ __forceinline__ uint32_t join_word(float first, float second, BFloat16) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  return static_cast<uint32_t>(__bfloat16_as_ushort(__high2bfloat16(pair))) << 16 |
         __bfloat16_as_ushort(__low2bfloat16(pair));
}

// The elements in the arithmetic's type: float, or double for F64.
template <typename T, int N>
__device__ __forceinline__ void to_floats(const Vector<T, N> &vector, RealOf<T> *values) {
  if constexpr (sizeof(T) == 8) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      values[i] = __hiloint2double(static_cast<int>(vector.word[2 * i + 1]), static_cast<int>(vector.word[2 * i]));
    }
  } else if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = float_of(vector.word[i]);
  } else if constexpr (N == 1) {
    values[0] = to_float(T{vector.word[0]});
  } else {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      const FloatPair pair = split_word(vector.word[i], T{});
      values[2 * i] = pair.first;
      values[2 * i + 1] = pair.second;
    }
  }
}

// Rounds N values to T.
template <typename T, int N>
__device__ __forceinline__ Vector<T, N> from_floats(const RealOf<T> *values) {
  Vector<T, N> vector;
  if constexpr (sizeof(T) == 8) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      vector.word[2 * i] = static_cast<uint32_t>(__double2loint(values[i]));
      vector.word[2 * i + 1] = static_cast<uint32_t>(__double2hiint(values[i]));
    }
  } else if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < N; ++i) vector.word[i] = bits_of(values[i]);
  } else if constexpr (N == 1) {
    vector.word[0] = round_to<T>(values[0]).bits;
  } else {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) vector.word[i] = join_word(values[2 * i], values[2 * i + 1], T{});
  }
  return vector;
}

// N elements of each of two tensors whose elements alternate in memory.
template <typename T, int N>
struct Alternating {
  static constexpr int kBytes = 2 * N * static_cast<int>(sizeof(T));
  static constexpr int kPartBytes = kBytes < 16 ? kBytes : 16;
  Words<kPartBytes> part[kBytes / kPartBytes];

  __device__ __forceinline__ uint32_t &word(int i) { return part[i * 4 / kPartBytes].word[i * 4 % kPartBytes / 4]; }
  __device__ __forceinline__ uint32_t word(int i) const {
    return part[i * 4 / kPartBytes].word[i * 4 % kPartBytes / 4];
  }
};

// Aligned to its size, but to at most 16 bytes.
template <typename T, int N>
__device__ __forceinline__ Alternating<T, N> load_alternating(const char *address) {
  using Both = Alternating<T, N>;
  Both both;
#pragma unroll
  for (int i = 0; i < Both::kBytes / Both::kPartBytes; ++i) {
    both.part[i] = load_vector<Words<Both::kPartBytes>>(address + i * Both::kPartBytes);
  }
  return both;
}

template <typename T, int N>
__device__ __forceinline__ void store_alternating(char *address, const Alternating<T, N> &both) {
  using Both = Alternating<T, N>;
#pragma unroll
  for (int i = 0; i < Both::kBytes / Both::kPartBytes; ++i) {
    store_vector(address + i * Both::kPartBytes, both.part[i]);
  }
}

// Every second element, beginning with the first or with the second. One instruction per word in either case.
template <typename T, int N>
__device__ __forceinline__ Vector<T, N> every_other(const Alternating<T, N> &both, bool from_second) {
  Vector<T, N> vector;
  if constexpr (sizeof(T) == 2) {
    const uint32_t halves = from_second ? 0x7632 : 0x5410;
    if constexpr (N == 1) {
      vector.word[0] = static_cast<uint16_t>(__byte_perm(both.word(0), 0, halves));
    } else {
#pragma unroll
      for (int i = 0; i < N / 2; ++i) vector.word[i] = __byte_perm(both.word(2 * i), both.word(2 * i + 1), halves);
    }
  } else {
    constexpr int kWords = sizeof(T) / 4;
#pragma unroll
    for (int i = 0; i < N * kWords; ++i) {
      const int first = i / kWords * 2 * kWords + i % kWords;
      vector.word[i] = from_second ? both.word(first + kWords) : both.word(first);
    }
  }
  return vector;
}

// The elements of a and b in turn, beginning with a's first element or with b's.
template <typename T, int N>
__device__ __forceinline__ Alternating<T, N> alternate(const Vector<T, N> &a, const Vector<T, N> &b, bool is_b_first) {
  Alternating<T, N> both;
  if constexpr (sizeof(T) == 2) {
    const uint32_t low_halves = is_b_first ? 0x1054 : 0x5410, high_halves = is_b_first ? 0x3276 : 0x7632;
#pragma unroll
    for (int i = 0; i < (N + 1) / 2; ++i) {
      both.word(2 * i) = __byte_perm(a.word[i], b.word[i], low_halves);
      if constexpr (N > 1) both.word(2 * i + 1) = __byte_perm(a.word[i], b.word[i], high_halves);
    }
  } else {
    constexpr int kWords = sizeof(T) / 4;
#pragma unroll
    for (int i = 0; i < N * kWords; ++i) {
      const int first = i / kWords * 2 * kWords + i % kWords;
      both.word(first) = is_b_first ? b.word[i] : a.word[i];
      both.word(first + kWords) = is_b_first ? a.word[i] : b.word[i];
    }
  }
  return both;
}

// The elements themselves, for copying.
template <typename T, int N>
__device__ __forceinline__ void unpack(const Vector<T, N> &vector, T *elements) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if constexpr (sizeof(T) == 8) {
      elements[i] = __hiloint2double(static_cast<int>(vector.word[2 * i + 1]), static_cast<int>(vector.word[2 * i]));
    } else if constexpr (sizeof(T) == 4) {
      elements[i] = float_of(vector.word[i]);
    } else if constexpr (N == 1) {
      elements[i] = T{vector.word[0]};
    } else {
      elements[i] = T{static_cast<uint16_t>(vector.word[i / 2] >> (i % 2 * 16))};
    }
  }
}

template <typename T, int N>
__device__ __forceinline__ Vector<T, N> pack(const T *elements) {
  Vector<T, N> vector;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if constexpr (sizeof(T) == 8) {
      vector.word[2 * i] = static_cast<uint32_t>(__double2loint(elements[i]));
      vector.word[2 * i + 1] = static_cast<uint32_t>(__double2hiint(elements[i]));
    } else if constexpr (sizeof(T) == 4) {
      vector.word[i] = bits_of(elements[i]);
    } else if constexpr (N == 1) {
      vector.word[0] = elements[0].bits;
    } else if (i % 2 == 0) {
      vector.word[i / 2] = elements[i].bits | static_cast<uint32_t>(elements[i + 1].bits) << 16;
    }
  }
  return vector;
}

}  // namespace rope
