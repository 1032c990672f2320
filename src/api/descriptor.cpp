// SPDX-License-Identifier: Apache-2.0
// descriptor.cpp - memory of descriptors
#include "api/descriptor.hpp"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

namespace rope {

namespace {

// A queue: the oldest block is reused first, so that a destroyed descriptor is recognised as long as possible.
struct FreeList {
  DescriptorHeader *first;
  DescriptorHeader *last;
};

FreeList free_rope_descriptors;
FreeList free_swiglu_descriptors;
pthread_mutex_t free_mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_once_t fork_handlers_once = PTHREAD_ONCE_INIT;

// fork() takes this lock first, so that the child's copy of the lists is consistent.
void lock_lists() {
  pthread_mutex_lock(&free_mutex);
}
void unlock_lists() {
  pthread_mutex_unlock(&free_mutex);
}
void install_fork_handlers() {
  pthread_atfork(lock_lists, unlock_lists, unlock_lists);
}

FreeList &free_list_of(uint32_t magic) {
  return magic == kRopeMagic ? free_rope_descriptors : free_swiglu_descriptors;
}

size_t size_of(uint32_t magic) {
  return magic == kRopeMagic ? sizeof(rope_desc) : sizeof(swiglu_desc);
}

}  // namespace

const Backend &backend_of(rope_device_t device) {
  return device == ROPE_DEVICE_CPU ? kCpuBackend : kCudaBackend;
}

void *allocate_descriptor(uint32_t magic) {
  pthread_once(&fork_handlers_once, install_fork_handlers);
  FreeList &list = free_list_of(magic);
  pthread_mutex_lock(&free_mutex);
  DescriptorHeader *header = list.first;
  if (header != nullptr) {
    list.first = header->next_free;
    if (list.first == nullptr) list.last = nullptr;
  }
  pthread_mutex_unlock(&free_mutex);
  if (header == nullptr) return calloc(1, size_of(magic));
  return memset(static_cast<void *>(header), 0, size_of(magic));
}

void make_live(DescriptorHeader *header, uint32_t magic) {
  __atomic_store_n(&header->magic, magic, __ATOMIC_RELEASE);
}

void release_descriptor(DescriptorHeader *header, uint32_t magic) {
  FreeList &list = free_list_of(magic);
  pthread_mutex_lock(&free_mutex);
  __atomic_store_n(&header->magic, 0, __ATOMIC_RELEASE);
  header->next_free = nullptr;
  (list.last != nullptr ? list.last->next_free : list.first) = header;
  list.last = header;
  pthread_mutex_unlock(&free_mutex);
}

rope_status_t check_descriptor(const char *function, const void *desc, uint32_t magic) {
  if (desc == nullptr) return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: desc is NULL: it is required", function);
  const uint32_t found = __atomic_load_n(&static_cast<const DescriptorHeader *>(desc)->magic, __ATOMIC_ACQUIRE);
  if (found == magic) return ROPE_STATUS_SUCCESS;
  return fail(ROPE_STATUS_INVALID_ARGUMENT, "%s: desc is %p: it is %s", function, desc,
              found == 0                                     ? "a destroyed descriptor"
              : found == kRopeMagic || found == kSwigluMagic ? "a descriptor of the other operation"
                                                             : "not a descriptor");
}

}  // namespace rope
