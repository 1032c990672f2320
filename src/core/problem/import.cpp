// SPDX-License-Identifier: Apache-2.0
// import.cpp - accepts structs of any released size
#include "core/problem/import.hpp"

#include <string.h>

namespace rope {

// Far above the size of any struct of this ABI. A larger struct_size is garbage, and the bytes behind it are not read.
constexpr uint32_t kMaxStructBytes = 4096;

constexpr uint32_t kWordBytes = 8;

rope_status_t import_struct(const char *function, const char *name, const void *source, uint32_t first_size,
                            void *target, uint32_t known_size) {
  if (source == nullptr) return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: %s is NULL: it is required", function, name);
  uint32_t size;
  memcpy(&size, source, sizeof size);
  if (size < first_size || size > kMaxStructBytes) {
    return fail(
        ROPE_STATUS_INVALID_ARGUMENT,
        "%s: %s.struct_size is %u: it must be sizeof the struct (%u in this version); zero the struct and set it",
        function, name, size, known_size);
  }
  // Structs of all releases are whole words of 8 bytes. A size that cuts a word leaves half a pointer.
  if (size < known_size && size % kWordBytes != 0) {
    return fail(
        ROPE_STATUS_INVALID_ARGUMENT,
        "%s: %s.struct_size is %u, which ends inside a field: it must be sizeof the struct (%u in this version)",
        function, name, size, known_size);
  }
  const unsigned char *bytes = static_cast<const unsigned char *>(source);
  for (uint32_t i = known_size; i < size; ++i) {
    if (bytes[i] != 0) {
      return fail(ROPE_STATUS_NOT_SUPPORTED,
                  "%s: %s has a non-zero byte at offset %u: a field added after librope %d.%d.%d, which knows %u bytes",
                  function, name, i, ROPE_VERSION_MAJOR, ROPE_VERSION_MINOR, ROPE_VERSION_PATCH, known_size);
    }
  }
  const uint32_t shared = size < known_size ? size : known_size;
  memcpy(target, source, shared);
  memset(static_cast<char *>(target) + shared, 0, known_size - shared);
  return ROPE_STATUS_SUCCESS;
}

}  // namespace rope
