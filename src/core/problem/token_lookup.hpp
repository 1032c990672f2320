// SPDX-License-Identifier: Apache-2.0
// token_lookup.hpp - finds a token's sequence, position and place in caches, and detects faulty entries; for host and
// device
#pragma once

#include <stdint.h>

#include "core/math/host_device.hpp"
#include "core/problem/integers.hpp"
#include "core/problem/rope_problem.hpp"
#include "core/problem/step_problem.hpp"

namespace rope {

enum TokenState : uint32_t {
  kUnrotated,  // copied from input to output
  kRotated,
  kAbsent  // in no sequence: neither read nor written
};

ROPE_HOST_DEVICE int64_t sequence_entry(const Sequences &sequences, int64_t index) {
  return read_integer(sequences.data, sequences.is_64_bit, index * sequences.stride);
}

struct SequencePlace {
  int64_t sequence;
  uint64_t index;  // index of the token within its sequence
};

// The sequence of a token that lies in one. The result is a valid sequence even if the entries are faulty.
ROPE_HOST_DEVICE SequencePlace find_sequence(const Sequences &sequences, int64_t token) {
  int64_t low = 0, high = sequences.count;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    const bool is_below = sequence_entry(sequences, middle) <= token;
    low = is_below ? middle : low;
    high = is_below ? high : middle;
  }
  return {low, static_cast<uint64_t>(token) - static_cast<uint64_t>(sequence_entry(sequences, low))};
}

// Whether entry i of cu_seqlens breaks a rule: entries begin with 0, never decrease, and are at most the number of
// tokens. `tokens` is a reference, so that kernels load it again when needed; held as a value it made registers spill.
template <typename Tokens>
ROPE_HOST_DEVICE bool is_faulty_entry(int64_t i, int64_t entry, int64_t before, const Tokens &tokens) {
  return entry < before || entry > tokens || (i == 0 && entry != 0);
}

// The token under which a faulty entry is counted.
template <typename Tokens>
ROPE_HOST_DEVICE int64_t token_of_entry(int64_t entry, const Tokens &tokens) {
  return entry < 0 ? 0 : entry > tokens ? tokens : entry;
}

// The position of a token on an axis. With sequences, `batch` is the sequence and `index` counts within it. Sums are
// unsigned because they wrap, as the header specifies. Source is a RopeProblem or the params of a kernel.
template <typename Source>
ROPE_HOST_DEVICE uint64_t position_on(const Source &source, int axis, int64_t batch, int64_t token, uint64_t index) {
  const auto read = [&](const TokenIntegers &integers) {
    const int64_t at = axis * integers.axis_stride + batch * integers.batch_stride + token * integers.token_stride;
    return static_cast<uint64_t>(read_integer(integers.data, integers.is_64_bit, at));
  };
  uint64_t position = source.positions.is_present ? read(source.positions) : index;
  if (source.start_positions.is_present) position += read(source.start_positions);
  return position + static_cast<uint64_t>(source.position_offset);
}

// ---- Places in caches ----

struct CachePlace {
  int64_t page;
  int64_t entry;
  bool is_cached;
  bool is_faulty;
};

// The place of an entry of a page. Both numbers may have any value.
ROPE_HOST_DEVICE CachePlace place_in_page(const CachePlaces &places, int64_t page, int64_t entry) {
  if (page < 0 || (places.skips_slot_0 && page == 0 && entry == 0)) return {0, 0, false, false};
  const bool is_inside = page < places.pages;
  return {page, entry, is_inside, !is_inside};
}

// The place of a token of a batch, given its sequence and its position in the rotation. For any values the result is a
// place inside the caches, or none. Slots number the entries of all pages consecutively.
ROPE_HOST_DEVICE CachePlace find_cache_place(const CachePlaces &places, int64_t batch, int64_t token, int64_t sequence,
                                             int64_t position) {
  constexpr CachePlace kNowhere = {0, 0, false, false}, kOutside = {0, 0, false, true};
  if (token >= places.cached_tokens) return kNowhere;
  const auto read = [&](const TokenIntegers &integers) {
    return read_integer(integers.data, integers.is_64_bit,
                        batch * integers.batch_stride + token * integers.token_stride);
  };
  const PageTable &table = places.table;
  const int64_t number = places.slots.is_present       ? read(places.slots)
                         : places.positions.is_present ? read(places.positions)
                                                       : position;
  int64_t row = sequence;
  if (places.sequence.is_present) row = read(places.sequence);
  if (number < 0 || row < 0) return kNowhere;
  if (places.skips_slot_0 && places.slots.is_present && number == 0) return kNowhere;
  if (places.entries == 0) return kOutside;
  const int64_t page = number / places.entries, entry = number % places.entries;
  if (places.slots.is_present) return place_in_page(places, page, entry);
  if (row >= table.rows) return kOutside;
  int64_t begin = 0, end = table.columns;
  if (table.indptr != nullptr) {
    begin = read_integer(table.indptr, table.is_indptr_64_bit, row * table.indptr_stride);
    end = read_integer(table.indptr, table.is_indptr_64_bit, (row + 1) * table.indptr_stride);
    if (begin < 0 || end > table.columns) return kOutside;
  }
  if (end <= begin || page >= end - begin) return kOutside;
  const int64_t at = row * table.row_stride + (begin + page) * table.column_stride;
  return place_in_page(places, read_integer(table.data, table.is_64_bit, at), entry);
}

}  // namespace rope
