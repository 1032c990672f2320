// SPDX-License-Identifier: Apache-2.0
// fixed_list.hpp - lists and texts with room for a fixed number of elements, which a request fills
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace rope {

// A list of at most kCapacity elements. It is plain data, and elements are unset until they are added.
template <typename T, int kCapacity>
class FixedList {
 public:
  void clear() { count_ = 0; }

  // Adds an element, which the caller sets. Returns NULL if there is no room.
  [[nodiscard]] T *add() { return count_ < kCapacity ? &list_[count_++] : nullptr; }

  [[nodiscard]] bool add(const T &element) {
    T *const added = add();
    if (added != nullptr) *added = element;
    return added != nullptr;
  }

  void remove_last() { --count_; }

  int count() const { return count_; }
  T &operator[](int index) { return list_[index]; }
  const T &operator[](int index) const { return list_[index]; }
  T *begin() { return list_; }
  T *end() { return list_ + count_; }
  const T *begin() const { return list_; }
  const T *end() const { return list_ + count_; }

 private:
  int count_;
  T list_[static_cast<size_t>(kCapacity)];
};

// A text of less than kSize bytes. Words without room are left out.
template <size_t kSize>
struct FixedText {
  // Clang 14 gives text[kSize] = "" the size that another kSize had, and clears as much.
  FixedText() { text[0] = '\0'; }

  void append(const char *words) {
    for (; *words != '\0' && used < kSize - 1; ++words) text[used++] = *words;
    text[used] = '\0';
  }

  // A number that is not negative.
  void append(int64_t number) {
    char digits[20];
    size_t first = sizeof digits;
    digits[--first] = '\0';
    do digits[--first] = static_cast<char>('0' + number % 10);
    while ((number /= 10) != 0);
    append(digits + first);
  }

  char text[kSize];
  size_t used = 0;
};

}  // namespace rope
