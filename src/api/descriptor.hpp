// descriptor.hpp - what the opaque handles of the ABI point to, and how a stale one is told from a live one
#pragma once

#include "backend/backend.hpp"

namespace rope {

// First member of every descriptor. Memory of descriptors is kept for new ones and never returned to the system, so
// that reading the magic of a destroyed one is always safe.
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

// Zeroed memory for a descriptor of this magic, not yet live; NULL when there is none.
void *allocate_descriptor(uint32_t magic);
void make_live(DescriptorHeader *header, uint32_t magic);
void release_descriptor(DescriptorHeader *header, uint32_t magic);

// `desc` is a live descriptor of this kind, or the error says what it is.
rope_status_t check_descriptor(const char *function, const void *desc, uint32_t magic);

}  // namespace rope
