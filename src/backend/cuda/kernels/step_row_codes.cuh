// SPDX-License-Identifier: Apache-2.0
// step_row_codes.cuh - the values of a unit as words and codes, in the step's kernels of rows
#pragma once

#include "backend/cuda/kernels/codes.cuh"
#include "backend/cuda/kernels/step_row_units.cuh"

namespace rope {

// Multiplies the values of a unit's channels by a row factor and stores them to each destination as words or codes.
template <typename T, int V>
struct UnitStores {
  const StepRowCodeParams &params;
  const StepUnit<V *static_cast<int>(sizeof(T))> &unit;
  const StepRowTensor &tensor;
  const StepRowCodes &codes;
  const StepShared &of_token;

  __device__ __forceinline__ void multiply(UnitValues<T, V> *values) const {
    const StepAt &at = unit.at;
    values->multiply(load_factor<T>(codes.factor, tensor.flags, at.batch, at.token, unit.head, unit.is_active));
  }

  // Adds the present values of the output.
  __device__ __forceinline__ void accumulate(UnitValues<T, V> *values) const {
    if (!writes_out()) return;
    const char *const held = unit.address_in(tensor.out);
    values->add({load_vector<Vector<T, V>>(held), load_vector<Vector<T, V>>(held + unit.place.to_high)});
  }

  __device__ __forceinline__ void store_words(const Vector<T, V> &low, const Vector<T, V> &high) const {
    store(false, low, high, 0);
  }

  // Stores codes and their scale. All lanes of the warp take part: they may belong to tensors with different numbers of
  // lanes, so each exchange runs for all of them, and a lane uses those of its head only.
  __device__ __forceinline__ void store_codes(UnitValues<T, V> *values) const {
    const bool has_codes = (tensor.flags & kHasCodes) != 0;
    const WrittenScales &written = codes.out_scales.is_present() ? codes.out_scales : codes.cache_scales;
    const bool is_e5m2 = (tensor.flags & kHasE5M2) != 0;
    if (params.rounds_before_codes) values->round();
    uint32_t magnitude = 0, scale = 0;
    if (params.needs_magnitudes) {
      if (has_codes && unit.is_active) magnitude = bits_of(values->largest());
      for (uint32_t distance = 1; distance < 32; distance *= 2) {
        const uint32_t larger = max_with_lane(magnitude, distance);
        if (distance >> tensor.lanes_log2 == 0) magnitude = larger;
      }
    }
    if (!has_codes || !unit.is_active) return;
    float factor = 1.0f;
    if (written.is_present()) {
      const GroupScale of_head = written_scale(written, is_e5m2, magnitude);
      scale = of_head.bits;
      factor = of_head.factor;
    } else if (codes.scale != nullptr) {
      const float given = *reinterpret_cast<const float *>(step(codes.scale, unit.head, codes.scale_head));
      factor = code_factor(given, params.scale_multiplies);
    }
    Vector<T, V> low, high;
    values->put_codes(factor, is_e5m2, &low, &high);
    const bool is_stored = store(true, low, high, scale);
    if (is_stored && unit.number == 0 && codes.factor.amax != nullptr) raise_magnitude(codes.factor.amax, magnitude);
  }

 private:
  __device__ __forceinline__ bool writes_out() const {
    return tensor.out.data != nullptr && (unit.place.is_rotary || (tensor.flags & kWritesOutside) != 0);
  }

  // The size of codes for a size of words.
  static __device__ __forceinline__ int32_t bytes_of(bool as_codes, int32_t of_words) {
    return as_codes ? of_words / static_cast<int32_t>(sizeof(T)) : of_words;
  }

  __device__ __forceinline__ void store_at(bool as_codes, char *head, const Vector<T, V> &low,
                                           const Vector<T, V> &high) const {
    char *const to = head + bytes_of(as_codes, unit.place.low);
    const int32_t to_high = bytes_of(as_codes, unit.place.to_high);
    if (as_codes) {
      store_code_halves(to, to_high, low, high);
    } else {
      store_vector(to, low);
      store_vector(to + to_high, high);
    }
  }

  // Stores to the destinations of words, or to those of codes with a scale of these bits. Returns whether there are
  // any.
  __device__ __forceinline__ bool store(bool as_codes, const Vector<T, V> &low, const Vector<T, V> &high,
                                        uint32_t scale) const {
    const auto takes = [&](StepFlags bit) { return as_codes == ((tensor.flags & bit) != 0); };
    const auto store_scale = [&](const WrittenScales &scales, int64_t row) {
      if (as_codes && scales.is_present() && unit.number == 0) scales.store(row, unit.head, 0, scale);
    };
    bool is_stored = false;
    if (takes(kHasCodeOut) && writes_out()) {
      store_at(as_codes, unit.head_in(tensor.out), low, high);
      store_scale(codes.out_scales, codes.out_scales.row(unit.at.batch, unit.at.token));
      is_stored = true;
    }
    if (tensor.cache != nullptr && takes(kHasCodeCache) && of_token.is_cached) {
      char *const row = tensor.cache + of_token.cache_row[tensor.cache_index];
      store_at(as_codes, const_cast<char *>(step(row, unit.head, tensor.cache_head)), low, high);
      store_scale(codes.cache_scales, codes.cache_scales.row(of_token.page, of_token.entry));
      is_stored = true;
    }
    return is_stored;
  }
};

}  // namespace rope
