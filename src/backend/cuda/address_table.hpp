// SPDX-License-Identifier: Apache-2.0
// address_table.hpp - a lock-free hash table of addresses, to which entries are added and from which none is removed
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace rope {

// Entry has a member `address`, which is NULL in a free slot. A table of static storage is empty at first.
template <typename Entry, int kSlotBits>
struct AddressTable {
  static constexpr size_t kSlots = size_t{1} << kSlotBits;

  // Finds the entry of an address, or adds one. Returns NULL if it has none and there is no room.
  Entry *find(const void *address) {
    const uint64_t hash = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(address)) * 0x9e3779b97f4a7c15u;
    size_t slot = static_cast<size_t>(hash >> (64 - kSlotBits));
    for (size_t searched = 0; searched < kSlots; ++searched, slot = (slot + 1) % kSlots) {
      const void **place = &slots[slot].address;
      const void *there = __atomic_load_n(place, __ATOMIC_RELAXED);
      if (there == nullptr) {
        // If another thread was faster, `there` receives the address that it stored.
        if (__atomic_compare_exchange_n(place, &there, address, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
          return &slots[slot];
        }
      }
      if (there == address) return &slots[slot];
    }
    return nullptr;
  }

  Entry slots[kSlots];
};

}  // namespace rope
