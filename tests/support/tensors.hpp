// SPDX-License-Identifier: Apache-2.0
// tensors.hpp - strided tensors in poisoned memory, with an image of its former contents
#ifndef ROPE_TESTS_SUPPORT_TENSORS_HPP
#define ROPE_TESTS_SUPPORT_TENSORS_HPP

#include <rope/rope.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "oracle.hpp"
#include "random.hpp"

using Index = std::array<int64_t, 4>;
using Shape = std::vector<int64_t>;

// How a tensor's elements are placed in memory. The default is compact, last axis fastest, 256-byte aligned.
struct Placement {
  std::vector<int> axis_order;             // slowest first; empty means 0, 1, 2, 3
  std::array<int64_t, 4> axis_gap = {};    // unused elements after each step along an axis
  std::array<bool, 4> reversed_axis = {};  // gives the axis a negative stride
  std::array<bool, 4> expanded_axis = {};  // gives the axis stride 0
  int64_t start = 0;                       // offset from the alignment, in elements
  bool unwritten_strides = false;          // leaves strides and flags 0, for compact placements

  Placement &order(std::vector<int> axes) { return axis_order = std::move(axes), *this; }
  Placement &gap(int axis, int64_t elements) { return axis_gap.at(axis) = elements, *this; }
  Placement &reversed(int axis) { return reversed_axis.at(axis) = true, *this; }
  Placement &expanded(int axis) { return expanded_axis.at(axis) = true, *this; }
  Placement &at(int64_t elements) { return start = elements, *this; }
  Placement &implicit() { return unwritten_strides = true, *this; }
  std::string describe() const;
};

int64_t element_count(const rope_tensor_t &tensor);
void *element_at(const rope_tensor_t &tensor, const Index &index);
oracle::Real value_at(const rope_tensor_t &tensor, const Index &index);
int64_t integer_at(const rope_tensor_t &tensor, const Index &index);
bool same_bits_at(const rope_tensor_t &a, const Index &a_index, const rope_tensor_t &b, const Index &b_index);

// Calls visit for every index, last axis fastest.
void for_each_index(const rope_tensor_t &tensor, const std::function<void(const Index &)> &visit);

// A block of memory between guard bands. Every byte without a value is part of a NaN (and, read as an integer, far out
// of any range). It has three images: the one on which calls work, the one before the call, and the one expected after
// it.
class Block {
 public:
  Block(int64_t bytes, uint64_t seed);
  ~Block();
  Block(const Block &) = delete;
  Block &operator=(const Block &) = delete;

  std::byte *payload() const { return now_ + guard_bytes; }
  int64_t payload_size() const { return payload_bytes_; }
  std::byte *begin() const { return now_; }
  int64_t size() const { return size_; }

  bool contains(const void *pointer) const { return pointer >= now_ && pointer < now_ + size_; }
  const std::byte *before(const void *pointer) const;

  void keep_as_before();
  void restore_before();
  // Under AddressSanitizer the guard bands cannot be read after restore_before; this makes them readable again.
  void open_guards() const;
  void expect_as_now(const void *pointer, int64_t bytes);
  bool is_as_expected(std::string *where) const;
  bool guards_hold() const;

  static constexpr int64_t guard_bytes = 256;

 private:
  std::byte *now_;
  int64_t size_;
  int64_t payload_bytes_;
  std::vector<std::byte> before_, expected_;
};

// The memory of one test case: its tensors are allocated here, filled, and compared after each run.
class Workspace {
 public:
  explicit Workspace(uint64_t seed) : random_(seed) {}

  Random &random() { return random_; }

  // Allocates a tensor in its own block.
  rope_tensor_t tensor(rope_dtype_t dtype, const Shape &shape, const Placement &placement = {});

  // Allocates a tensor of these integers, with one axis.
  rope_tensor_t list(rope_dtype_t dtype, const std::vector<int64_t> &integers, const Placement &placement = {});

  void fill_mixed(const rope_tensor_t &tensor);
  void fill_normal(const rope_tensor_t &tensor);
  void fill_bits(const rope_tensor_t &tensor);
  void fill(const rope_tensor_t &tensor, const std::function<oracle::Real(const Index &)> &value);
  void fill_integers(const rope_tensor_t &tensor, const std::function<int64_t(const Index &)> &value);

  // Ends filling: every run starts from the present contents.
  void freeze();
  void restore();

  // The tensor as it was at freeze().
  rope_tensor_t before(const rope_tensor_t &tensor) const;

  // Accepts the present value of an element; all other bytes are expected to be unchanged.
  void accept(const rope_tensor_t &tensor, const Index &index);
  bool untouched_elsewhere(std::string *where) const;

  bool guards_hold() const;

  // The present contents of all tensors and their gaps.
  std::vector<std::byte> image() const;
  const std::vector<std::unique_ptr<Block>> &blocks() const { return blocks_; }
  Block *block_of(const void *pointer) const;

 private:
  Random random_;
  std::vector<std::unique_ptr<Block>> blocks_;
};

// Parts of a tensor, by the library's own functions; a refusal fails the test.
rope_tensor_t narrow(const rope_tensor_t &tensor, int axis, int64_t start, int64_t length);
rope_tensor_t select(const rope_tensor_t &tensor, int axis, int64_t index);

#endif
