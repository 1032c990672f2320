// SPDX-License-Identifier: Apache-2.0
// memory.hpp - exactly the memory that the tensors of a fuzzed call describe
#ifndef ROPE_TESTS_FUZZ_MEMORY_HPP
#define ROPE_TESTS_FUZZ_MEMORY_HPP

#include <fenv.h>
#include <rope/rope.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "input.hpp"
#include "support/random.hpp"
#include "support/tensors.hpp"

// ROPE_FUZZ_UNJUDGED: results are not checked. Valgrind supports neither the oracle's long double nor exact fused
// multiply-adds.
bool is_unjudged();

// Reports a violation and aborts.
[[noreturn]] void finding(const std::string &text);
inline void expect(bool holds, const std::string &text) {
  if (!holds) finding(text);
}

// Sets the floating-point environment of calls from the last byte: the default one, another rounding mode, flush to
// zero, exception flags set, or all exceptions trapped. The byte is still drawn from, so that existing corpora stay
// valid.
void draw_float_environment(const uint8_t *data, size_t size);

// Checks a call against the header's rules for all calls: a refusal has a status and a text that begins with the
// function's name, a success does not change the last error, and the floating-point environment is unchanged.
class Call {
 public:
  explicit Call(const char *function);
  ~Call() { fesetenv(FE_DFL_ENV); }
  Call(const Call &) = delete;
  Call &operator=(const Call &) = delete;
  // Whether the call succeeded.
  bool returned(rope_status_t status) const;
  // Whether the refusal's text contains the words.
  static bool says(const char *words);

 private:
  const char *function_;
  std::string before_;
  std::array<uint64_t, 2> environment_;
};

// A struct as a program passes it: on the heap, exactly as long as its struct_size. Sometimes it is one of another
// header, or invalid.
class StructBytes {
 public:
  // Members of the source that an older header lacks become zero; the header of 0.1 had first_size bytes.
  StructBytes(Input *input, void *source, uint32_t first_size, uint32_t size);
  // The size of an invalid struct: the library reads up to the largest struct_size that it accepts.
  static constexpr uint32_t max_size = 4096;

  template <class Struct>
  const Struct *as() const {
    return reinterpret_cast<const Struct *>(bytes_.get());
  }

 private:
  std::unique_ptr<uint8_t[]> bytes_;
};

bool is_empty(const rope_tensor_t &tensor);
bool has_known_shape(const rope_tensor_t &tensor);

// The number of visits to a tensor's elements, and the bytes from its lowest to its highest; both at most 2^62.
struct Visits {
  int64_t elements, bytes;
};
Visits visits_of(const rope_tensor_t &tensor);

// Blocks that cover exactly the bytes that tensors reach by their shapes and strides.
class Memory {
 public:
  explicit Memory(uint64_t seed) : random_(seed) {}

  Random &random() { return random_; }

  // Gives a tensor memory of its own, `lead` elements behind an alignment of 256 bytes.
  void place(rope_tensor_t *tensor, int64_t lead = 0);
  // Places a tensor so many bytes from the beginning of another one.
  void place_over(rope_tensor_t *tensor, const rope_tensor_t *other, int64_t bytes);

  static constexpr int64_t few_elements = 1 << 12;

  // Returns false if a tensor is too large for memory: its address must then not be dereferenced.
  bool allocate(int64_t max_elements = few_elements);

  void fill(const rope_tensor_t &tensor);
  void fill_bits(const rope_tensor_t &tensor);

  // Every later call begins with the present contents.
  void freeze();
  void restore();
  rope_tensor_t before(const rope_tensor_t &tensor) const;
  void may_have_changed(const rope_tensor_t &tensor, const Index &index);
  void expect_no_other_change(const char *function) const;

 private:
  struct Place {
    rope_tensor_t *tensor;
    size_t group;
    int64_t offset;  // bytes from the group's first tensor
  };
  struct Group {
    int64_t lead;
    std::unique_ptr<Block> block;
  };
  Block *block_of(const void *pointer) const;

  Random random_;
  std::vector<Place> places_;
  std::vector<Group> groups_;
};

// Whether two views share a byte, or one visits an element twice, by comparing all elements.
bool share_bytes(const rope_tensor_t &a, const rope_tensor_t &b);
bool has_element_twice(const rope_tensor_t &tensor);
// Whether there are so few elements that the library's bounded search finds every overlap.
bool are_few(const rope_tensor_t &a, const rope_tensor_t &b);
bool are_few(const rope_tensor_t &tensor);
// Equal data, type, shape and strides.
bool is_same(const rope_tensor_t &a, const rope_tensor_t &b);

// Draws strides for a tensor with a shape: compact, in another order, with gaps, reversed, or arbitrary.
void draw_strides(Input *input, rope_tensor_t *tensor, bool is_input);

#endif
