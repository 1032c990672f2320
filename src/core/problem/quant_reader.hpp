// SPDX-License-Identifier: Apache-2.0
// quant_reader.hpp - validates the scales of values that are written in 8 bits, and the memory of their maxima
#pragma once

#include "core/problem/group_reader.hpp"

namespace rope {

class QuantReader : private GroupReader {
 public:
  QuantReader(const char *function, const RopeGeometry &geometry, Operands *operands)
      : GroupReader(function, geometry, operands) {}

  // Imports the group, if the call has it, and reads the fields before the tensors.
  rope_status_t check(const rope_args_t &args);

  // Reads the tensors. It runs after the caches are read, because the caches' group has their written scales. `cache`
  // is NULL if the call has no caches.
  rope_status_t read(const rope_cache_args_t *cache, const GroupTarget &target);

 private:
  struct ScaleRows;
  ScaleRule rule() const { return quant_ != nullptr ? ScaleRule{quant_->flags, quant_->scale_floor} : ScaleRule{}; }
  rope_status_t read_written_scales(const rope_cache_args_t *cache, const GroupTarget &target);
  rope_status_t read_scales_out(const char *field, const rope_tensor_t &given, TensorName name,
                                const GroupTarget &target);
  rope_status_t read_cache_scales(const char *field, const rope_tensor_t &given, const char *beside, TensorName name,
                                  const GroupTarget &target, bool is_of_pass);
  rope_status_t read_scales(const char *field, const rope_tensor_t &given, const ScaleRows &rows, int64_t channels,
                            WrittenScales *scales);
  rope_status_t read_given_scales(const GroupTarget &target);
  rope_status_t read_scale(const char *field, const rope_tensor_t &given, TensorName name, const GroupTarget &target);
  rope_status_t read_pass_scale(const GroupTarget &target);
  rope_status_t read_static_scale(const char *field, const rope_tensor_t &given, int64_t heads, const char *written,
                                  StaticScale *scale);
  rope_status_t read_amax(const GroupTarget &target);

  const rope_quant_args_t *quant_ = nullptr;
  const char *written_[kNumTensorNames] = {};  // for each tensor, the field of scales that the call writes
  const char *pass_written_ = nullptr;         // that field for k_pass_cache
  rope_quant_args_t copy_;                     // unset unless a caller's struct has another size
};

}  // namespace rope
