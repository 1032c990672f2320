// token_lookup.hpp - where a token's position stands: its sequence, its entries, and what is faulty about them; once for
// host and device
#pragma once

#include <stdint.h>

#include "core/math/host_device.hpp"
#include "core/problem/integers.hpp"
#include "core/problem/rope_problem.hpp"
#include "core/problem/step_problem.hpp"

namespace rope {

enum TokenState : uint32_t {
  kUnrotated,  // it only moves from input to output
  kRotated,
  kAbsent  // it belongs to no sequence and stays as it is
};

ROPE_HOST_DEVICE int64_t sequence_entry(const Sequences &sequences, int64_t index) {
  return read_integer(sequences.data, sequences.is_64_bit, index * sequences.stride);
}

struct SequencePlace {
  int64_t sequence;
  uint64_t index;  // of the token, in its sequence
};

// The sequence of a token that is in one. Whatever the entries are, it is one of them.
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

// Whether entry i of cu_seqlens breaks its rule: from 0 on, never falling, at most the number of tokens. That number is
// a reference so that kernels read it again instead of keeping it: as a value it made registers spill.
template <typename Tokens>
ROPE_HOST_DEVICE bool is_faulty_entry(int64_t i, int64_t entry, int64_t before, const Tokens &tokens) {
  return entry < before || entry > tokens || (i == 0 && entry != 0);
}

// The token that such an entry is counted as.
template <typename Tokens>
ROPE_HOST_DEVICE int64_t token_of_entry(int64_t entry, const Tokens &tokens) {
  return entry < 0 ? 0 : entry > tokens ? tokens : entry;
}

// The position of a token on an axis. `batch` may be a sequence, and `index` counts in it. Sums wrap, as the header
// says; hence unsigned. Source is a RopeProblem, or params of a kernel.
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

// An entry of a page, both of which may have any value.
ROPE_HOST_DEVICE CachePlace place_in_page(const CachePlaces &places, int64_t page, int64_t entry) {
  if (page < 0 || (places.skips_slot_0 && page == 0 && entry == 0)) return {0, 0, false, false};
  const bool is_inside = page < places.pages;
  return {page, entry, is_inside, !is_inside};
}

// Where a token of a batch goes, which is in `sequence` and has the rotation's position; any values lead inside the
// caches or nowhere. Slots count entries through all pages.
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
