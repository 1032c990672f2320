// cache_reader.hpp - validates caches, and what says where in them tokens go
#pragma once

#include "core/problem/group_reader.hpp"

namespace rope {

class CacheReader : private GroupReader {
 public:
  CacheReader(const char *function, const RopeGeometry &geometry, Operands *operands)
      : GroupReader(function, geometry, operands) {}

  // Imports the group of a call that has it, and reads what comes before the tensors.
  rope_status_t check(const rope_args_t &args);
  // NULL: the call has no caches.
  const rope_cache_args_t *args() const { return cache_; }
  bool has(TensorName name) const;

  rope_status_t read(const StepTarget &target);

 private:
  rope_status_t read_caches_of(TensorName name, const char *field, const rope_tensor_t &given,
                               const rope_tensor_t &pass, const StepTarget &target);
  rope_status_t read_cache(const char *field, const rope_tensor_t &given, TensorName name, const StepTarget &target,
                           const ChannelPart &part, CacheView *cache);
  rope_status_t read_places(const RopeProblem &problem, CachePlaces *places);
  rope_status_t read_slots(const RopeProblem &problem, CachePlaces *places);
  rope_status_t read_pages(const RopeProblem &problem, CachePlaces *places);
  rope_status_t read_for_each_token(const char *field, const rope_tensor_t &given, const RopeProblem &problem,
                                    TokenIntegers *integers, int64_t *tokens);

  const rope_cache_args_t *cache_ = nullptr;
  const char *first_cache_ = nullptr;  // the field of the cache that says how many pages and entries there are
  rope_cache_args_t copy_;             // unset unless a caller's struct has another size
};

}  // namespace rope
