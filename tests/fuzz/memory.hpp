// memory.hpp - the memory that tensors of a fuzzed call say they have, and not a byte more
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

// ROPE_FUZZ_UNJUDGED: what calls compute is not looked at. Valgrind has neither the oracle's long double nor exact
// fused multiply-adds.
bool is_unjudged();

// A finding: says what broke and aborts.
[[noreturn]] void finding(const std::string &text);
inline void expect(bool holds, const std::string &text) {
  if (!holds) finding(text);
}

// Calls are made in the floating-point environment that the last byte says: the default one, another rounding mode,
// flush to zero, exceptions noted, all of them trapped. The byte is still drawn from, so that a corpus keeps its meaning.
void draw_float_environment(const uint8_t *data, size_t size);

// Holds a call against what the header says of every call: what is refused has a status and a text that begins with
// the function, what succeeds leaves the last error alone, and the floating-point environment stays as it was.
class Call {
 public:
  explicit Call(const char *function);
  ~Call() { fesetenv(FE_DFL_ENV); }
  Call(const Call &) = delete;
  Call &operator=(const Call &) = delete;
  // Whether the call was served.
  bool returned(rope_status_t status) const;
  // Whether the refusal says so.
  static bool says(const char *words);

 private:
  const char *function_;
  std::string before_;
  std::array<uint64_t, 2> environment_;
};

// A struct as a program hands it over: on the heap, as long as its struct_size says and no longer. Sometimes of another
// header, or of none.
class StructBytes {
 public:
  // Members of the source that the bytes of an older header lack become zero; that of 0.1 had first_size bytes.
  StructBytes(Input *input, void *source, uint32_t first_size, uint32_t size);
  // The bytes of a program's mistake: read up to where struct_size can be believed.
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

// How often a tensor's elements are visited, and the bytes from its lowest to its highest; both at most 2^62.
struct Visits {
  int64_t elements, bytes;
};
Visits visits_of(const rope_tensor_t &tensor);

// Blocks that cover exactly what tensors reach by their shapes and strides.
class Memory {
 public:
  explicit Memory(uint64_t seed) : random_(seed) {}

  Random &random() { return random_; }

  // Memory of its own, so many elements past an alignment of 256 bytes.
  void place(rope_tensor_t *tensor, int64_t lead = 0);
  // So many bytes from where another tensor begins.
  void place_over(rope_tensor_t *tensor, const rope_tensor_t *other, int64_t bytes);

  static constexpr int64_t few_elements = 1 << 12;

  // False where a tensor is too large to be run: its address is then a number that must not be followed.
  bool allocate(int64_t max_elements = few_elements);

  void fill(const rope_tensor_t &tensor);
  void fill_bits(const rope_tensor_t &tensor);

  // What the blocks hold now is what every call begins with.
  void freeze();
  void restore();
  rope_tensor_t before(const rope_tensor_t &tensor) const;
  void may_have_changed(const rope_tensor_t &tensor, const Index &index);
  void expect_no_other_change(const char *function) const;

 private:
  struct Place {
    rope_tensor_t *tensor;
    size_t group;
    int64_t offset;  // bytes from where the group's first tensor begins
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

// Whether two views share a byte, or one has an element twice, found element by element.
bool share_bytes(const rope_tensor_t &a, const rope_tensor_t &b);
bool has_element_twice(const rope_tensor_t &tensor);
// Whether there are so few elements that the library finds what they share within its bounded time.
bool are_few(const rope_tensor_t &a, const rope_tensor_t &b);
bool are_few(const rope_tensor_t &tensor);
// The same data, type, shape and strides.
bool is_same(const rope_tensor_t &a, const rope_tensor_t &b);

// Strides for a tensor whose shape is set: compact, in another order, with gaps, reversed, or any.
void draw_strides(Input *input, rope_tensor_t *tensor, bool is_input);

#endif
