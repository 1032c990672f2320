// SPDX-License-Identifier: Apache-2.0
// memory.cpp - host memory; gpu_timer.cu has the GPU's
#include "memory.hpp"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

#include "cases.hpp"
#include "fill_bits.hpp"
#if defined(ROPE_BENCH_CUDA)
#include "gpu_timer.hpp"
#endif

namespace bench {

namespace {

double number_of_bits(uint64_t bits, rope_dtype_t dtype) {
  if (dtype == ROPE_DTYPE_F16) {
    const int exponent = static_cast<int>(bits >> 10 & 31), mantissa = static_cast<int>(bits & 1023);
    const double sign = (bits >> 15 & 1) != 0 ? -1 : 1;
    if (exponent == 31) return mantissa != 0 ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * std::ldexp(mantissa, -24);
    return sign * std::ldexp(1024 + mantissa, exponent - 25);
  }
  if (dtype == ROPE_DTYPE_F8_E4M3) {
    const int exponent = static_cast<int>(bits >> 3 & 15), mantissa = static_cast<int>(bits & 7);
    const double sign = (bits >> 7 & 1) != 0 ? -1 : 1;
    if (exponent == 15 && mantissa == 7) return NAN;
    return sign * (exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10));
  }
  if (dtype == ROPE_DTYPE_F4_E2M1X2) {
    constexpr double kMagnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return (bits & 8) != 0 ? -kMagnitudes[bits & 7] : kMagnitudes[bits & 7];
  }
  if (dtype == ROPE_DTYPE_F8_E8M0) return bits == 255 ? NAN : std::ldexp(1, static_cast<int>(bits) - 127);
  const uint32_t word = static_cast<uint32_t>(dtype == ROPE_DTYPE_BF16 ? bits << 16 : bits);
  float number;
  std::memcpy(&number, &word, sizeof number);
  return static_cast<double>(number);
}

}  // namespace

Memory::~Memory() {
  try {
    release();
  } catch (const std::exception &) {
    // Memory of a lost device cannot be freed.
  }
}

rope_stream_t Memory::stream() const {
#if defined(ROPE_BENCH_CUDA)
  if (device_ == ROPE_DEVICE_CUDA) return gpu_stream();
#endif
  return nullptr;
}

char *Memory::allocate(size_t bytes) {
  bytes = (bytes + 255) / 256 * 256;
#if defined(ROPE_BENCH_CUDA)
  if (device_ == ROPE_DEVICE_CUDA) {
    blocks_.push_back(static_cast<char *>(gpu_allocate(bytes)));
    return blocks_.back();
  }
#endif
  void *memory = nullptr;
  if (posix_memalign(&memory, 4096, bytes) != 0) throw std::bad_alloc();
  blocks_.push_back(static_cast<char *>(memory));
  return blocks_.back();
}

void Memory::release() {
  std::vector<char *> blocks;
  blocks.swap(blocks_);
  for (char *block : blocks) {
#if defined(ROPE_BENCH_CUDA)
    if (device_ == ROPE_DEVICE_CUDA) {
      gpu_free(block);
      continue;
    }
#endif
    std::free(block);
  }
}

void Memory::fill(void *data, size_t bytes, rope_dtype_t dtype) {
  const uint64_t first = ++num_fills_ << 40;
#if defined(ROPE_BENCH_CUDA)
  if (device_ == ROPE_DEVICE_CUDA) return gpu_fill(data, bytes, dtype, first);
#endif
  if (dtype == ROPE_DTYPE_F32) {
    uint32_t *words = static_cast<uint32_t *>(data);
    for (size_t i = 0; i < bytes / 4; ++i) words[i] = random_float_bits(first + i, 8, 23);
    return;
  }
  uint16_t *words = static_cast<uint16_t *>(data);
  const int exponent_bits = dtype == ROPE_DTYPE_F16 ? 5 : 8;
  for (size_t i = 0; i < bytes / 2; ++i) {
    words[i] = static_cast<uint16_t>(random_float_bits(first + i, exponent_bits, 15 - exponent_bits));
  }
}

void Memory::poison(void *data, size_t bytes) {
#if defined(ROPE_BENCH_CUDA)
  if (device_ == ROPE_DEVICE_CUDA) return gpu_poison(data, bytes);
#endif
  std::memset(data, 0xff, bytes);
}

void Memory::upload(void *to, const void *from, size_t bytes) {
#if defined(ROPE_BENCH_CUDA)
  if (device_ == ROPE_DEVICE_CUDA) return gpu_upload(to, from, bytes);
#endif
  std::memcpy(to, from, bytes);
}

std::vector<double> Memory::read(const void *base, rope_dtype_t dtype, const std::vector<int64_t> &indices) {
  const size_t size = static_cast<size_t>(size_of(dtype));
  const bool has_pairs = dtype == ROPE_DTYPE_F4_E2M1X2;
  std::vector<int64_t> elements = indices;
  for (int64_t &element : elements) element /= has_pairs ? 2 : 1;
  std::vector<char> raw(elements.size() * size);
  if (device_ == ROPE_DEVICE_CPU) {
    for (size_t i = 0; i < elements.size(); ++i) {
      std::memcpy(&raw[i * size], static_cast<const char *>(base) + elements[i] * static_cast<int64_t>(size), size);
    }
  }
#if defined(ROPE_BENCH_CUDA)
  if (device_ == ROPE_DEVICE_CUDA) gpu_gather(base, size, elements, raw.data());
#endif
  std::vector<double> values(indices.size());
  for (size_t i = 0; i < indices.size(); ++i) {
    uint64_t bits = 0;
    std::memcpy(&bits, &raw[i * size], size);
    if (has_pairs) bits = bits >> (indices[i] % 2 * 4) & 15;
    values[i] = number_of_bits(bits, dtype);
  }
  return values;
}

}  // namespace bench
