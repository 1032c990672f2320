// SPDX-License-Identifier: Apache-2.0
// import.hpp - turns a caller's struct of any version into the current one; the only reader of struct_size
#pragma once

#include <stdint.h>

#include "core/problem/status.hpp"

namespace rope {

// Sizes of the structs in their first release. No release's header produces a smaller struct_size.
constexpr uint32_t kRopeConfigFirstSize = 88;
constexpr uint32_t kRopeArgsFirstSize = 1064;
constexpr uint32_t kRopeNormArgsFirstSize = 888;
constexpr uint32_t kRopeCacheArgsFirstSize = 888;
constexpr uint32_t kRopeQuantArgsFirstSize = 656;
constexpr uint32_t kRopeInputArgsFirstSize = 408;
constexpr uint32_t kRopeScalingFirstSize = 144;
constexpr uint32_t kRopeSectionsFirstSize = 48;
constexpr uint32_t kSwigluConfigFirstSize = 56;
constexpr uint32_t kSwigluArgsFirstSize = 728;
constexpr uint32_t kSwigluQuantArgsFirstSize = 424;
constexpr uint32_t kSwigluInputArgsFirstSize = 408;
constexpr uint32_t kSwigluColumnArgsFirstSize = 584;

// Copies the part that both versions have and zeroes the rest of `target`. A non-zero byte beyond `known_size` belongs
// to a field that this version lacks, and is refused.
rope_status_t import_struct(const char *function, const char *name, const void *source, uint32_t first_size,
                            void *target, uint32_t known_size);

// import_struct for the arguments of a call and their groups. A struct of this version is used in place; any other is
// imported into `copy`.
template <typename Args>
rope_status_t import_args(const char *function, const char *name, const Args *given, uint32_t first_size, Args *copy,
                          const Args **args) {
  const bool is_aligned = reinterpret_cast<uintptr_t>(given) % alignof(Args) == 0;
  const bool is_known = given != nullptr && is_aligned && given->struct_size == sizeof *given;
  *args = is_known ? given : copy;
  if (is_known) return ROPE_STATUS_SUCCESS;
  return import_struct(function, name, given, first_size, copy, sizeof *copy);
}

}  // namespace rope
