// SPDX-License-Identifier: Apache-2.0
// input.hpp - draws numbers from a fuzzer's bytes
//
// When the bytes are used up, every draw returns the simplest value: a short input is a simple request.
#ifndef ROPE_TESTS_FUZZ_INPUT_HPP
#define ROPE_TESTS_FUZZ_INPUT_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>

class Input {
 public:
  Input(const uint8_t *data, size_t size) : data_(data), end_(data + size) {
    if (size >= 2) thin_ = static_cast<uint32_t>(data[size - 2] << 8 | data[size - 1]);
  }

  bool is_used_up() const { return data_ == end_; }

  uint64_t raw(int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; ++i) value = value << 8 | next();
    return value;
  }

  // From 0 to count - 1.
  int64_t below(int64_t count) {
    return static_cast<int64_t>(raw(count <= 256 ? 1 : 8) % static_cast<uint64_t>(count));
  }
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  bool chance(int percent) { return next() >= 256 - 256 * percent / 100; }

  // The length of an axis: in half of the inputs 1 with odds of a half, as their last two bytes have it.
  int64_t length(int64_t given) {
    const bool is_one = (thin_ & 1) != 0 && (thin_ >> ++axes_ & 1) != 0;
    axes_ %= 15;
    return is_one ? 1 : given;
  }

  // The first value is the simplest.
  template <class Value>
  Value one_of(std::initializer_list<Value> values) {
    return values.begin()[below(static_cast<int64_t>(values.size()))];
  }

  // Any integer, with a preference for the limits of types.
  int64_t integer() {
    constexpr int64_t last = std::numeric_limits<int64_t>::max();
    switch (below(5)) {
      case 0:
        return between(-4, 20);
      case 1:
        return static_cast<int64_t>((uint64_t{1} << below(64)) - static_cast<uint64_t>(between(-2, 2)));
      case 2:
        return static_cast<int64_t>(-(uint64_t{1} << below(64)) + static_cast<uint64_t>(between(-2, 2)));
      case 3:
        return one_of<int64_t>({last, -last - 1, INT32_MAX, INT32_MIN, UINT32_MAX, 4096, 65535});
      default:
        return static_cast<int64_t>(raw(8));
    }
  }

  // Any double, including NaN and the infinities.
  double number() {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    switch (below(4)) {
      case 0:
        return static_cast<double>(between(-100, 100)) / 8;
      case 1:
        return one_of<double>({1e-300, 1e300, -1, 1e-40, 3.5e38, -1e-310, 5e-324, infinity, -infinity,
                               std::numeric_limits<double>::quiet_NaN(), 1.7e308, 1e9, 0.999, 1});
      case 2:
        return static_cast<double>(between(1, 255)) * static_cast<double>(uint64_t{1} << below(64));
      default: {
        const uint64_t bits = raw(8);
        double value;
        std::memcpy(&value, &bits, sizeof value);
        return value;
      }
    }
  }

  // Overwrites a few members of a struct, or parts of them.
  template <class Struct>
  void lie(Struct *target) {
    const int64_t choice = below(32);
    for (int64_t lies = choice < 26 ? 0 : choice < 30 ? 1 : choice - 28; lies > 0; --lies) {
      const int64_t width = one_of<int64_t>({4, 8, 2, 1});
      const int64_t at = width * below(static_cast<int64_t>(sizeof *target) / width);
      const int64_t value = integer();
      std::memcpy(reinterpret_cast<char *>(target) + at, &value, static_cast<size_t>(width));
    }
  }

 private:
  uint8_t next() { return data_ == end_ ? 0 : *data_++; }

  const uint8_t *data_, *end_;
  uint32_t thin_ = 0;
  int axes_ = 0;
};

#endif
