// SPDX-License-Identifier: Apache-2.0
// tensors.cpp - placement, poison and the three images of test memory
#include "tensors.hpp"

#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <cstring>
#include <sstream>

#if defined(__SANITIZE_ADDRESS__)
#define ROPE_TEST_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ROPE_TEST_ASAN 1
#endif
#endif
#ifdef ROPE_TEST_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace {

constexpr int64_t alignment = 256;

int64_t rounded_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

std::string Placement::describe() const {
  std::ostringstream text;
  if (!axis_order.empty()) {
    text << " order";
    for (int axis : axis_order) text << ' ' << axis;
  }
  for (int axis = 0; axis < 4; ++axis) {
    if (axis_gap[axis]) text << " gap[" << axis << "]=" << axis_gap[axis];
    if (reversed_axis[axis]) text << " reversed[" << axis << "]";
    if (expanded_axis[axis]) text << " expanded[" << axis << "]";
  }
  if (start) text << " start=" << start;
  if (unwritten_strides) text << " implicit";
  return text.str();
}

int64_t element_count(const rope_tensor_t &tensor) {
  int64_t count = tensor.ndim ? 1 : 0;
  for (int axis = 0; axis < tensor.ndim; ++axis) count *= tensor.shape[axis];
  return count;
}

void *element_at(const rope_tensor_t &tensor, const Index &index) {
  int64_t offset = 0;
  bool compact = !(tensor.flags & ROPE_TENSOR_STRIDED);
  for (int axis = 0; axis < tensor.ndim; ++axis) compact = compact && tensor.stride[axis] == 0;
  if (compact) {
    for (int axis = 0; axis < tensor.ndim; ++axis) offset = offset * tensor.shape[axis] + index[axis];
  } else {
    for (int axis = 0; axis < tensor.ndim; ++axis) offset += index[axis] * tensor.stride[axis];
  }
  return static_cast<std::byte *>(tensor.data) + offset * oracle::element_size(tensor.dtype);
}

oracle::Real value_at(const rope_tensor_t &tensor, const Index &index) {
  return oracle::decode(tensor.dtype, element_at(tensor, index));
}

int64_t integer_at(const rope_tensor_t &tensor, const Index &index) {
  if (tensor.dtype == ROPE_DTYPE_I32) {
    int32_t value;
    std::memcpy(&value, element_at(tensor, index), sizeof value);
    return value;
  }
  int64_t value;
  std::memcpy(&value, element_at(tensor, index), sizeof value);
  return value;
}

bool same_bits_at(const rope_tensor_t &a, const Index &a_index, const rope_tensor_t &b, const Index &b_index) {
  return std::memcmp(element_at(a, a_index), element_at(b, b_index), oracle::element_size(a.dtype)) == 0;
}

void for_each_index(const rope_tensor_t &tensor, const std::function<void(const Index &)> &visit) {
  if (element_count(tensor) == 0) return;
  Index index = {};
  for (;;) {
    visit(index);
    int axis = tensor.ndim - 1;
    while (axis >= 0 && ++index[axis] == tensor.shape[axis]) index[axis--] = 0;
    if (axis < 0) return;
  }
}

Block::Block(int64_t bytes, uint64_t seed)
    : size_(guard_bytes + rounded_up(bytes, alignment) + guard_bytes), payload_bytes_(bytes) {
  now_ = static_cast<std::byte *>(std::aligned_alloc(alignment, size_));
  if (!now_) std::abort();
  Random random(seed);
  for (int64_t i = 0; i < size_; i += 8) {
    // Each 16-bit word is a NaN of both half types, so each 32-bit word is a NaN of F32, and the whole is a NaN of F64.
    const uint64_t poison = (random.bits() & 0x803F803F803F803Fu) | 0x7FF07FC07FC07FC0u;
    std::memcpy(now_ + i, &poison, 8);
  }
}

Block::~Block() {
  open_guards();
  std::free(now_);
}

void Block::open_guards() const {
#ifdef ROPE_TEST_ASAN
  ASAN_UNPOISON_MEMORY_REGION(now_, size_);
#endif
}

const std::byte *Block::before(const void *pointer) const {
  return before_.data() + (static_cast<const std::byte *>(pointer) - now_);
}

void Block::keep_as_before() {
  open_guards();
  before_.assign(now_, now_ + size_);
  restore_before();
}

void Block::restore_before() {
  open_guards();
  std::memcpy(now_, before_.data(), size_);
  expected_ = before_;
#ifdef ROPE_TEST_ASAN
  ASAN_POISON_MEMORY_REGION(now_, guard_bytes);
  ASAN_POISON_MEMORY_REGION(payload() + payload_bytes_, size_ - guard_bytes - payload_bytes_);
#endif
}

void Block::expect_as_now(const void *pointer, int64_t bytes) {
  std::memcpy(expected_.data() + (static_cast<const std::byte *>(pointer) - now_), pointer, bytes);
}

bool Block::is_as_expected(std::string *where) const {
  open_guards();
  if (std::memcmp(now_, expected_.data(), size_) == 0) return true;
  int64_t first = 0;
  while (now_[first] == expected_[first]) ++first;
  std::ostringstream text;
  text << "byte " << first - guard_bytes << " of a block of " << payload_bytes_ << " bytes was written";
  *where = text.str();
  return false;
}

bool Block::guards_hold() const {
  open_guards();
  const int64_t tail = guard_bytes + payload_bytes_;
  return std::memcmp(now_, before_.data(), guard_bytes) == 0 &&
         std::memcmp(now_ + tail, before_.data() + tail, size_ - tail) == 0;
}

rope_tensor_t Workspace::tensor(rope_dtype_t dtype, const Shape &shape, const Placement &placement) {
  rope_tensor_t view = {};
  view.dtype = dtype;
  view.ndim = static_cast<uint16_t>(shape.size());
  view.flags = placement.unwritten_strides ? 0 : ROPE_TENSOR_STRIDED;
  std::vector<int> order = placement.axis_order;
  for (int axis = 0; order.size() < shape.size(); ++axis) order.push_back(axis);
  int64_t running = 1, last = 0, first = 0;
  bool empty = false;
  for (auto at = order.rbegin(); at != order.rend(); ++at) {
    const int axis = *at;
    const int64_t size = shape[axis];
    view.shape[axis] = size;
    empty = empty || size == 0;
    if (placement.expanded_axis[axis]) continue;
    const int64_t stride = running + placement.axis_gap[axis];
    running = stride * (size > 0 ? size : 1);
    view.stride[axis] = placement.reversed_axis[axis] ? -stride : stride;
    last += size > 0 ? stride * (size - 1) : 0;
    if (placement.reversed_axis[axis] && size > 0) first += stride * (size - 1);
  }
  if (placement.unwritten_strides) {
    for (int64_t &stride : view.stride) stride = 0;
  }
  const int64_t elements = placement.start + (empty ? 0 : last + 1);
  blocks_.push_back(std::make_unique<Block>(elements * oracle::element_size(dtype), random_.bits()));
  view.data = blocks_.back()->payload() + (placement.start + first) * oracle::element_size(dtype);
  return view;
}

void Workspace::fill_mixed(const rope_tensor_t &tensor) {
  fill(tensor, [this](const Index &) { return random_.mixed(); });
}

void Workspace::fill_normal(const rope_tensor_t &tensor) {
  fill(tensor, [this](const Index &) { return random_.normal(); });
}

void Workspace::fill_bits(const rope_tensor_t &tensor) {
  for_each_index(tensor, [&](const Index &index) {
    const uint64_t bits = random_.bits();
    std::memcpy(element_at(tensor, index), &bits, oracle::element_size(tensor.dtype));
  });
}

void Workspace::fill(const rope_tensor_t &tensor, const std::function<oracle::Real(const Index &)> &value) {
  for_each_index(tensor,
                 [&](const Index &index) { oracle::encode(tensor.dtype, value(index), element_at(tensor, index)); });
}

void Workspace::fill_integers(const rope_tensor_t &tensor, const std::function<int64_t(const Index &)> &value) {
  for_each_index(tensor, [&](const Index &index) {
    const int64_t wide = value(index);
    const auto narrow = static_cast<int32_t>(wide);
    const bool is_wide = tensor.dtype == ROPE_DTYPE_I64;
    std::memcpy(element_at(tensor, index), is_wide ? static_cast<const void *>(&wide) : &narrow, is_wide ? 8 : 4);
  });
}

rope_tensor_t Workspace::list(rope_dtype_t dtype, const std::vector<int64_t> &integers, const Placement &placement) {
  const rope_tensor_t view = tensor(dtype, {static_cast<int64_t>(integers.size())}, placement);
  fill_integers(view, [&](const Index &at) { return integers[static_cast<size_t>(at[0])]; });
  return view;
}

void Workspace::freeze() {
  for (auto &block : blocks_) block->keep_as_before();
}

void Workspace::restore() {
  for (auto &block : blocks_) block->restore_before();
}

Block *Workspace::block_of(const void *pointer) const {
  for (auto &block : blocks_) {
    if (block->contains(pointer)) return block.get();
  }
  return nullptr;
}

rope_tensor_t Workspace::before(const rope_tensor_t &tensor) const {
  rope_tensor_t view = tensor;
  if (const Block *block = block_of(tensor.data)) view.data = const_cast<std::byte *>(block->before(tensor.data));
  return view;
}

void Workspace::accept(const rope_tensor_t &tensor, const Index &index) {
  const void *element = element_at(tensor, index);
  block_of(tensor.data)->expect_as_now(element, oracle::element_size(tensor.dtype));
}

bool Workspace::untouched_elsewhere(std::string *where) const {
  for (auto &block : blocks_) {
    if (!block->is_as_expected(where)) return false;
  }
  return true;
}

bool Workspace::guards_hold() const {
  for (auto &block : blocks_) {
    if (!block->guards_hold()) return false;
  }
  return true;
}

std::vector<std::byte> Workspace::image() const {
  std::vector<std::byte> all;
  for (auto &block : blocks_) {
    all.insert(all.end(), block->payload(), block->payload() + block->payload_size());
  }
  return all;
}

rope_tensor_t narrow(const rope_tensor_t &tensor, int axis, int64_t start, int64_t length) {
  rope_tensor_t view;
  REQUIRE(rope_tensor_narrow(&tensor, axis, start, length, &view) == ROPE_STATUS_SUCCESS);
  return view;
}

rope_tensor_t select(const rope_tensor_t &tensor, int axis, int64_t index) {
  rope_tensor_t view;
  REQUIRE(rope_tensor_select(&tensor, axis, index, &view) == ROPE_STATUS_SUCCESS);
  return view;
}
