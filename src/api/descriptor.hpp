// SPDX-License-Identifier: Apache-2.0
// descriptor.hpp - the memory behind the ABI's opaque handles, and how a stale handle is told from a live one
#pragma once

#include "backend/backend.hpp"

namespace rope {

// First member of every descriptor. The memory of a destroyed descriptor is kept for a later one and never returned to
// the system, so that reading its magic is always safe.
struct DescriptorHeader {
  uint32_t magic;  // 0 once destroyed
  DescriptorHeader *next_free;
};

constexpr uint32_t kRopeMagic = 0x65706f72;    // "rope"
constexpr uint32_t kSwigluMagic = 0x6c677773;  // "swgl"

}  // namespace rope

struct rope_desc {
  rope::DescriptorHeader header;
  const rope::Backend *backend;
  rope::DeviceInfo device;
  int32_t device_index;
  rope::RopeGeometry geometry;
};

struct swiglu_desc {
  rope::DescriptorHeader header;
  const rope::Backend *backend;
  rope::DeviceInfo device;
  int32_t device_index;
  rope_dtype_t dtype;
  rope::GatingForm form;
};

namespace rope {

const Backend &backend_of(rope_device_t device);

// Returns zeroed memory for a descriptor with this magic, not yet live, or NULL if there is no memory.
void *allocate_descriptor(uint32_t magic);
void make_live(DescriptorHeader *header, uint32_t magic);
void release_descriptor(DescriptorHeader *header, uint32_t magic);

// Checks that `desc` is a live descriptor of this kind; the error says what it is instead.
rope_status_t check_descriptor(const char *function, const void *desc, uint32_t magic);

}  // namespace rope
