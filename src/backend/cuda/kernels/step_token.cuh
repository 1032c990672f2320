// SPDX-License-Identifier: Apache-2.0
// step_token.cuh - a token in the step's kernels of heads and of rows: its positions and its place in the caches
#pragma once

#include "backend/cuda/kernels/addresses.cuh"
#include "backend/cuda/kernels/angles.cuh"
#include "backend/cuda/kernels/loaded_integer.cuh"
#include "backend/cuda/kernels/step_params.hpp"

namespace rope {

__device__ __forceinline__ LoadedInteger load_step_integer(const char *address, bool is_64_bit) {
  const uint32_t *const words = reinterpret_cast<const uint32_t *>(address);
  LoadedInteger integer = {words[0], 0};
  if (is_64_bit) integer.high = words[1];
  return integer;
}

// ---- Positions ----

__device__ __forceinline__ uint32_t axis_of(const StepLookups &lookups, uint32_t pair) {
  return through_memory(lookups.pair_axis)[pair / 16] >> (pair % 16 * 2) & 3u;
}

template <typename Params>
__device__ __forceinline__ uint64_t finish_step_position(const Params &params, LoadedInteger position) {
  return extend(position, params.has_wide_positions || !params.has_positions) + params.position_offset;
}

// Whether one of the positions at `address`, one for each axis, is in no row of the table.
template <typename Params>
__device__ __forceinline__ bool has_lost_axis(const Params &params, const char *address, LoadedInteger implicit,
                                              uint64_t rows) {
  const StepLookups &lookups = params.lookups;
  for (uint32_t axes = lookups.used_axes, axis = 0; axes != 0; axes >>= 1, ++axis) {
    if ((axes & 1u) == 0) continue;
    LoadedInteger position = implicit;
    if (params.has_positions) {
      position = load_step_integer(step(address, axis, lookups.position_axis_bytes), params.has_wide_positions);
    }
    if (finish_step_position(params, position) >= rows) return true;
  }
  return false;
}

// ---- Places in caches ----

// A slot that no token has.
constexpr LoadedInteger kNoSlot = {~0u, ~0u};

struct StepPlace {
  uint32_t page;
  uint32_t entry;
  bool is_cached;
  bool is_faulty;
};

constexpr StepPlace kNowhere = {0, 0, false, false};
constexpr StepPlace kOutside = {0, 0, false, true};

// The place of a slot, which may have any value.
__device__ __forceinline__ StepPlace find_slot(const StepSlots &slots, LoadedInteger loaded) {
  const uint64_t slot = extend(loaded, slots.is_64_bit);
  const bool is_skipped = slots.skips_slot_0 && slot == 0;
  if (slot >= slots.end || is_skipped) return {0, 0, false, static_cast<int64_t>(slot) >= 0 && !is_skipped};
  const DivmodResult place = slots.entries.divmod(static_cast<uint32_t>(slot));
  return {place.quotient, place.remainder, true, false};
}

// The place of a token with position `loaded` in the caches: find_cache_place for pages, safe for any contents of the
// table.
__device__ __forceinline__ StepPlace find_page(const StepSlots &slots, const StepLookups &lookups, LoadedInteger loaded,
                                               uint32_t batch, uint32_t token) {
  const StepPages &pages = lookups.pages;
  const uint64_t position = extend(loaded, slots.is_64_bit) + lookups.slot_offset;
  uint64_t row = batch;
  if (pages.sequences != nullptr) {
    const char *const address =
        step(step(pages.sequences, token, pages.sequence_token_bytes), batch, pages.sequence_batch_bytes);
    row = extend(load_step_integer(address, pages.is_sequence_64_bit), pages.is_sequence_64_bit);
  }
  if (static_cast<int64_t>(position) < 0 || static_cast<int64_t>(row) < 0) return kNowhere;
  if (row >= pages.rows || position > INT32_MAX) return kOutside;
  const DivmodResult place = slots.entries.divmod(static_cast<uint32_t>(position));
  const uint32_t of_row = static_cast<uint32_t>(row);
  int64_t begin = 0, end = pages.columns;
  if (pages.indptr != nullptr) {
    const auto entry = [&](uint32_t at) {
      const LoadedInteger integer =
          load_step_integer(step(pages.indptr, at, pages.indptr_bytes), pages.is_indptr_64_bit);
      return static_cast<int64_t>(extend(integer, pages.is_indptr_64_bit));
    };
    begin = entry(of_row);
    end = entry(of_row + 1);
    if (begin < 0 || end > static_cast<int64_t>(pages.columns)) return kOutside;
  }
  if (end <= begin || place.quotient >= end - begin) return kOutside;
  const uint32_t column = static_cast<uint32_t>(begin) + place.quotient;
  const char *const address = step(step(pages.table, of_row, pages.row_bytes), column, pages.column_bytes);
  const uint64_t page = extend(load_step_integer(address, pages.is_64_bit), pages.is_64_bit);
  const bool is_skipped = slots.skips_slot_0 && page == 0 && place.remainder == 0;
  if (page >= slots.end || is_skipped) return {0, 0, false, static_cast<int64_t>(page) >= 0 && !is_skipped};
  return {static_cast<uint32_t>(page), place.remainder, true, false};
}

// The slot of a token, or its position in the caches. The position is `implicit` if none is in memory.
__device__ __forceinline__ LoadedInteger load_slot(const StepSlots &slots, const char *address, uint32_t implicit) {
  if (slots.data == nullptr) return {implicit, 0};
  return load_step_integer(address, slots.is_64_bit);
}

__device__ __forceinline__ StepPlace find_place(const StepSlots &slots, const StepLookups &lookups, LoadedInteger slot,
                                                uint32_t batch, uint32_t token) {
  if (lookups.pages.table == nullptr) return find_slot(slots, slot);
  return find_page(slots, lookups, slot, batch, token);
}

}  // namespace rope
