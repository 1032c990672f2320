// SPDX-License-Identifier: Apache-2.0
// cache_reader.hpp - validates caches and the operands that assign tokens to places in them
#pragma once

#include "core/problem/group_reader.hpp"

namespace rope {

class CacheReader : private GroupReader {
 public:
  CacheReader(const char *function, const RopeGeometry &geometry, Operands *operands)
      : GroupReader(function, geometry, operands) {}

  // Imports a call's cache group and reads the fields that do not depend on its tensors.
  rope_status_t check(const rope_args_t &args);
  // NULL if the call has no caches.
  const rope_cache_args_t *args() const { return cache_; }
  bool has(TensorName name) const;

  rope_status_t read(const GroupTarget &target);

 private:
  rope_status_t read_caches_of(TensorName name, const char *field, const rope_tensor_t &given,
                               const rope_tensor_t &pass, const GroupTarget &target);
  rope_status_t read_cache(const char *field, const rope_tensor_t &given, TensorName name, const GroupTarget &target,
                           const ChannelPart &part, CacheView *cache);
  rope_status_t read_places(const RopeProblem &problem, CachePlaces *places);
  rope_status_t read_slots(const RopeProblem &problem, CachePlaces *places);
  rope_status_t read_pages(const RopeProblem &problem, CachePlaces *places);
  rope_status_t read_for_each_token(const char *field, const rope_tensor_t &given, const RopeProblem &problem,
                                    TokenIntegers *integers, int64_t *tokens);

  const rope_cache_args_t *cache_ = nullptr;
  const char *first_cache_ = nullptr;  // the cache that set the number of pages and entries
  rope_cache_args_t copy_;             // set only if the caller's struct has another size
};

}  // namespace rope
