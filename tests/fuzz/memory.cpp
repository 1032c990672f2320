// SPDX-License-Identifier: Apache-2.0
// memory.cpp - exact memory for tensors, and the contract of every call
#include "memory.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "support/float_state.hpp"

namespace {

using Wide = __int128;

// Exceeds every address; sums and products of numbers limited by it do not overflow.
constexpr Wide beyond = Wide{1} << 62;

constexpr int64_t max_bytes = 1 << 15;

int64_t strides_of(const rope_tensor_t &tensor, Wide (&stride)[4]) {
  bool is_compact = !(tensor.flags & ROPE_TENSOR_STRIDED);
  for (int axis = 0; axis < tensor.ndim; ++axis) is_compact = is_compact && tensor.stride[axis] == 0;
  Wide running = 1;
  for (int axis = tensor.ndim - 1; axis >= 0; --axis) {
    stride[axis] = is_compact ? running : tensor.stride[axis];
    running *= tensor.shape[axis];
    running = std::min(running, beyond);
  }
  return oracle::element_size(tensor.dtype);
}

struct Extent {
  Wide low, high;  // offsets in bytes from data; equal if there are no elements
  Wide elements;
};

Extent extent_of(const rope_tensor_t &tensor) {
  if (tensor.ndim == 0 || !has_known_shape(tensor)) return {0, 16, 1};
  if (is_empty(tensor)) return {0, 0, 0};
  Wide stride[4];
  const int64_t size = strides_of(tensor, stride);
  Extent extent = {0, size, 1};
  for (int axis = 0; axis < tensor.ndim; ++axis) {
    const Wide reach = std::clamp((tensor.shape[axis] - 1) * stride[axis], -beyond, beyond) * size;
    (reach < 0 ? extent.low : extent.high) += reach;
    extent.elements = std::min(extent.elements * tensor.shape[axis], beyond);
  }
  return extent;
}

std::vector<uintptr_t> addresses_of(const rope_tensor_t &tensor) {
  std::vector<uintptr_t> all;
  for_each_index(tensor,
                 [&](const Index &index) { all.push_back(reinterpret_cast<uintptr_t>(element_at(tensor, index))); });
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace

bool is_unjudged() {
  static const bool is_set = std::getenv("ROPE_FUZZ_UNJUDGED") != nullptr;
  return is_set;
}

void finding(const std::string &text) {
  std::fprintf(stderr, "FINDING: %s\nlast error: %s\n", text.c_str(), rope_last_error());
  std::abort();
}

namespace {

int drawn_environment = 0;

void enter_drawn_environment() {
  feclearexcept(FE_ALL_EXCEPT);
  switch (drawn_environment) {
    case 8:
      fesetround(FE_UPWARD);
      break;
    case 9:
      fesetround(FE_DOWNWARD);
      break;
    case 10:
      fesetround(FE_TOWARDZERO);
      break;
    case 11:
      flush_to_zero();
      break;
    case 12:
      feraiseexcept(FE_INEXACT | FE_OVERFLOW | FE_INVALID);
      break;
    case 13:
      fesetround(FE_UPWARD);
      feenableexcept(FE_ALL_EXCEPT);
      break;
    case 14:
      feenableexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW);
      break;
    default:
      break;
  }
}

}  // namespace

void draw_float_environment(const uint8_t *data, size_t size) {
  drawn_environment = size > 0 ? data[size - 1] % 16 : 0;
}

Call::Call(const char *function) : function_(function) {
  // Causes an error of another function, so that a later message must come from this call.
  if (std::strncmp(function, "rope_forward", 12) == 0) {
    swiglu_forward(nullptr, nullptr, nullptr);
  } else {
    rope_forward(nullptr, nullptr, nullptr);
  }
  before_ = rope_last_error();
  enter_drawn_environment();
  environment_ = float_state();
}

bool Call::returned(rope_status_t status) const {
  const bool is_kept = float_state() == environment_;
  fesetenv(FE_DFL_ENV);
  expect(is_kept, std::string(function_) + " changed the floating-point environment");
  const std::string message = rope_last_error();
  if (status == ROPE_STATUS_SUCCESS) {
    expect(message == before_, std::string(function_) + " succeeded and changed the last error");
    return true;
  }
  expect(
      status == ROPE_STATUS_INVALID_ARGUMENT || status == ROPE_STATUS_NOT_SUPPORTED || status == ROPE_STATUS_NO_DEVICE,
      std::string(function_) + " returned " + rope_status_name(status));
  const std::string beginning = std::string(function_) + ": ";
  expect(message.compare(0, beginning.size(), beginning) == 0, beginning + "is not how the refusal begins");
  expect(message.size() > beginning.size() + 8 && message.size() < 500, beginning + "the refusal's length");
  const size_t rule = message.find(": ", beginning.size());
  const bool has_rule = rule != std::string::npos && rule + 10 < message.size();
  expect(has_rule || status == ROPE_STATUS_NO_DEVICE, beginning + "the refusal has no rule");
  for (const char letter : message) expect(letter >= ' ' && letter <= '~', beginning + "the refusal's letters");
  return false;
}

bool Call::says(const char *words) {
  return std::strstr(rope_last_error(), words) != nullptr;
}

StructBytes::StructBytes(Input *input, void *source, uint32_t first_size, uint32_t size) {
  uint32_t told = size, lie_at = 0;
  uint8_t lie = 0;
  switch (input->below(48)) {
    case 44:  // a newer header with unused fields
      told = size + static_cast<uint32_t>(input->between(1, 64));
      break;
    case 45:  // a newer header with used fields
      told = static_cast<uint32_t>(input->between(size + 1, max_size));
      lie_at = static_cast<uint32_t>(input->between(size, told - 1));
      lie = static_cast<uint8_t>(input->between(1, 255));
      break;
    case 46:  // an older header, or a mistake
      told = static_cast<uint32_t>(input->chance(50) ? input->between(first_size, size) : input->below(size));
      break;
    case 47:
      told = static_cast<uint32_t>(input->raw(4));
      break;
    default:
      break;
  }
  if (told >= first_size && told < size) told -= told % 8;  // no header ends inside a pointer
  const uint32_t length = told < sizeof told || told > max_size ? sizeof told : told;
  bytes_ = std::make_unique<uint8_t[]>(length);
  std::memcpy(bytes_.get(), source, std::min(length, size));
  std::memcpy(bytes_.get(), &told, sizeof told);
  if (lie_at > 0 && lie_at < length) bytes_[lie_at] = lie;
  if (told >= first_size && told < size) std::memset(static_cast<char *>(source) + told, 0, size - told);
}

bool has_known_shape(const rope_tensor_t &tensor) {
  if (tensor.ndim > 4 || tensor.dtype < ROPE_DTYPE_F32 || tensor.dtype > ROPE_DTYPE_F4_E2M1X2) return false;
  for (int axis = 0; axis < tensor.ndim; ++axis) {
    if (tensor.shape[axis] < 0) return false;
  }
  return true;
}

bool is_empty(const rope_tensor_t &tensor) {
  for (int axis = 0; axis < tensor.ndim && axis < 4; ++axis) {
    if (tensor.shape[axis] == 0) return true;
  }
  return tensor.ndim == 0;
}

Visits visits_of(const rope_tensor_t &tensor) {
  const Extent extent = extent_of(tensor);
  return {static_cast<int64_t>(extent.elements),
          static_cast<int64_t>(std::min<Wide>(extent.high - extent.low, Wide{1} << 62))};
}

void Memory::place(rope_tensor_t *tensor, int64_t lead) {
  groups_.push_back({lead * (has_known_shape(*tensor) ? oracle::element_size(tensor->dtype) : 1), nullptr});
  places_.push_back({tensor, groups_.size() - 1, 0});
}

void Memory::place_over(rope_tensor_t *tensor, const rope_tensor_t *other, int64_t bytes) {
  for (const Place &place : places_) {
    if (place.tensor != other) continue;
    places_.push_back({tensor, place.group, place.offset + bytes});
    return;
  }
  this->place(tensor);
}

bool Memory::allocate(int64_t max_elements) {
  bool is_small = true;
  std::vector<Extent> extents(groups_.size(), {0, 0, 0});
  std::vector<bool> has_extent(groups_.size());
  for (const Place &place : places_) {
    Extent own = extent_of(*place.tensor);
    is_small = is_small && own.elements <= max_elements;
    if (own.low == own.high) continue;
    own.low += place.offset;
    own.high += place.offset;
    Extent &all = extents[place.group];
    all.low = has_extent[place.group] ? std::min(all.low, own.low) : own.low;
    all.high = has_extent[place.group] ? std::max(all.high, own.high) : own.high;
    has_extent[place.group] = true;
  }
  for (const Extent &extent : extents) is_small = is_small && extent.high - extent.low <= max_bytes;
  // Aligned to the elements of the group's first tensor.
  for (size_t i = 0; i < groups_.size() && is_small; ++i) {
    groups_[i].block = std::make_unique<Block>(groups_[i].lead + static_cast<int64_t>(extents[i].high - extents[i].low),
                                               random_.bits());
  }
  constexpr uintptr_t nowhere = uintptr_t{1} << 46;
  const bool has_null = random_.below(2) == 0;
  for (const Place &place : places_) {
    if (has_null && is_empty(*place.tensor)) {  // as torch has it for every empty tensor
      place.tensor->data = nullptr;
      continue;
    }
    const Group &group = groups_[place.group];
    std::byte *const first = is_small ? group.block->payload() : nullptr;
    const auto ahead = group.lead - static_cast<int64_t>(is_small ? extents[place.group].low : 0) + place.offset;
    place.tensor->data = is_small
                             ? static_cast<void *>(first + ahead)
                             : reinterpret_cast<void *>(nowhere * (place.group + 1) + static_cast<uintptr_t>(ahead));
  }
  return is_small;
}

void Memory::fill(const rope_tensor_t &tensor) {
  if (!has_known_shape(tensor)) return;
  if (tensor.dtype > ROPE_DTYPE_F64) return fill_bits(tensor);
  for_each_index(tensor,
                 [&](const Index &index) { oracle::encode(tensor.dtype, random_.mixed(), element_at(tensor, index)); });
}

void Memory::fill_bits(const rope_tensor_t &tensor) {
  if (!has_known_shape(tensor)) return;
  for_each_index(tensor, [&](const Index &index) {
    const uint64_t bits = random_.bits();
    std::memcpy(element_at(tensor, index), &bits, static_cast<size_t>(oracle::element_size(tensor.dtype)));
  });
}

void Memory::freeze() {
  for (Group &group : groups_) {
    if (group.block) group.block->keep_as_before();
  }
}

void Memory::restore() {
  for (Group &group : groups_) {
    if (group.block) group.block->restore_before();
  }
}

Block *Memory::block_of(const void *pointer) const {
  for (const Group &group : groups_) {
    if (group.block && group.block->contains(pointer)) return group.block.get();
  }
  return nullptr;
}

rope_tensor_t Memory::before(const rope_tensor_t &tensor) const {
  rope_tensor_t view = tensor;
  if (const Block *block = block_of(tensor.data)) view.data = const_cast<std::byte *>(block->before(tensor.data));
  return view;
}

void Memory::may_have_changed(const rope_tensor_t &tensor, const Index &index) {
  block_of(tensor.data)->expect_as_now(element_at(tensor, index), oracle::element_size(tensor.dtype));
}

void Memory::expect_no_other_change(const char *function) const {
  std::string where;
  for (const Group &group : groups_) {
    if (group.block) expect(group.block->is_as_expected(&where), std::string(function) + ": " + where);
  }
}

bool share_bytes(const rope_tensor_t &a, const rope_tensor_t &b) {
  if (a.ndim == 0 || b.ndim == 0) return false;
  const std::vector<uintptr_t> first = addresses_of(a), second = addresses_of(b);
  const auto a_size = static_cast<uintptr_t>(oracle::element_size(a.dtype));
  const auto b_size = static_cast<uintptr_t>(oracle::element_size(b.dtype));
  for (size_t i = 0, j = 0; i < first.size() && j < second.size();) {
    if (first[i] + a_size <= second[j]) {
      ++i;
    } else if (second[j] + b_size <= first[i]) {
      ++j;
    } else {
      return true;
    }
  }
  return false;
}

bool has_element_twice(const rope_tensor_t &tensor) {
  const std::vector<uintptr_t> all = addresses_of(tensor);
  return std::adjacent_find(all.begin(), all.end()) != all.end();
}

bool are_few(const rope_tensor_t &a, const rope_tensor_t &b) {
  return element_count(a) * element_count(b) <= 150;
}

bool are_few(const rope_tensor_t &tensor) {
  int64_t differences = 1;
  for (int axis = 0; axis < tensor.ndim; ++axis) differences *= 2 * tensor.shape[axis] - 1;
  return differences <= 500;
}

bool is_same(const rope_tensor_t &a, const rope_tensor_t &b) {
  if (a.data != b.data || a.dtype != b.dtype || a.ndim != b.ndim) return false;
  Wide a_stride[4], b_stride[4];
  strides_of(a, a_stride);
  strides_of(b, b_stride);
  for (int axis = 0; axis < a.ndim; ++axis) {
    if (a.shape[axis] != b.shape[axis]) return false;
    if (a.shape[axis] > 1 && a_stride[axis] != b_stride[axis] && !is_empty(a)) return false;
  }
  return true;
}

void draw_strides(Input *input, rope_tensor_t *tensor, bool is_input) {
  const int64_t kind = input->below(8);
  if (kind < 2) return;  // compact, with implicit strides
  tensor->flags = ROPE_TENSOR_STRIDED;
  int order[4] = {0, 1, 2, 3};
  const bool is_shuffled = kind > 3;
  for (int i = tensor->ndim - 1; i > 0 && is_shuffled; --i) std::swap(order[i], order[input->below(i + 1)]);
  int64_t running = 1;
  for (int i = tensor->ndim - 1; i >= 0; --i) {
    const int axis = order[i];
    const int64_t stride = running + (kind > 2 && input->chance(25) ? input->between(1, 8) : 0);
    tensor->stride[axis] = kind > 2 && input->chance(15) ? -stride : stride;
    running = stride * std::max<int64_t>(1, tensor->shape[axis]);
    if (kind == 7 && input->chance(30)) tensor->stride[axis] = is_input ? 0 : input->between(-12, 12);
  }
}
