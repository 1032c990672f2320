// SPDX-License-Identifier: Apache-2.0

// Package driver has the functions of the CUDA driver that tests need for tensors on a device: memory and streams,
// through libcuda.so.1. It is a package because tests may not use cgo. Every function panics if it fails.
package driver

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

// Handles and addresses are numbers here: they are no memory of this process.
typedef int result_t;

static void *driver_symbol(const char *name) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  return library != NULL ? dlsym(library, name) : NULL;
}

// CUresult, and -1 where there is no such function.
#define CALL(type, name, ...)                                           \
  do {                                                                  \
    result_t(*function) type = (result_t(*) type)driver_symbol(name);   \
    return function != NULL ? function(__VA_ARGS__) : -1;               \
  } while (0)

static result_t driver_init(void) { CALL((unsigned), "cuInit", 0); }
static result_t driver_device(int *device) { CALL((int *, int), "cuDeviceGet", device, 0); }
static result_t driver_retain(uint64_t *context, int device) {
  CALL((uint64_t *, int), "cuDevicePrimaryCtxRetain", context, device);
}
static result_t driver_current(uint64_t context) { CALL((uint64_t), "cuCtxSetCurrent", context); }
static result_t driver_wait(void) { CALL((void), "cuCtxSynchronize"); }
static result_t driver_alloc(uint64_t *address, size_t size) {
  CALL((uint64_t *, size_t), "cuMemAlloc_v2", address, size);
}
static result_t driver_free(uint64_t address) { CALL((uint64_t), "cuMemFree_v2", address); }
static result_t driver_to_device(uint64_t to, const void *from, size_t size) {
  CALL((uint64_t, const void *, size_t), "cuMemcpyHtoD_v2", to, from, size);
}
static result_t driver_to_host(void *to, uint64_t from, size_t size) {
  CALL((void *, uint64_t, size_t), "cuMemcpyDtoH_v2", to, from, size);
}
static result_t driver_stream(uint64_t *stream) {
  CALL((uint64_t *, unsigned), "cuStreamCreate", stream, 1); // CU_STREAM_NON_BLOCKING
}
static result_t driver_stream_wait(uint64_t stream) { CALL((uint64_t), "cuStreamSynchronize", stream); }
static result_t driver_stream_destroy(uint64_t stream) { CALL((uint64_t), "cuStreamDestroy_v2", stream); }
*/
import "C"

import (
	"fmt"
	"unsafe"
)

func must(result C.result_t) {
	if result != 0 {
		panic(fmt.Sprintf("libcuda.so.1: CUresult %d", result))
	}
}

// Context is the context of device 0 that the CUDA runtime uses, too.
type Context struct{ context C.uint64_t }

// FirstDevice makes the context of device 0 current on this thread.
func FirstDevice() Context {
	var device C.int
	var context C.uint64_t
	must(C.driver_init())
	must(C.driver_device(&device))
	must(C.driver_retain(&context, device))
	return Context{context}.MakeCurrent()
}

// MakeCurrent makes the context current on another thread, which runtime.LockOSThread keeps.
func (c Context) MakeCurrent() Context {
	must(C.driver_current(c.context))
	return c
}

// Alloc returns the address of device memory with these bytes.
func Alloc(host unsafe.Pointer, size uintptr) uintptr {
	var address C.uint64_t
	must(C.driver_alloc(&address, C.size_t(size)))
	must(C.driver_to_device(address, host, C.size_t(size)))
	must(C.driver_wait()) // a copy of pageable memory may return before it arrives
	return uintptr(address)
}

// Free frees memory of Alloc.
func Free(address uintptr) { must(C.driver_free(C.uint64_t(address))) }

// Read copies bytes from the device.
func Read(host unsafe.Pointer, address uintptr, size uintptr) {
	must(C.driver_to_host(host, C.uint64_t(address), C.size_t(size)))
}

// NewStream returns a stream that does not wait for the legacy default one.
func NewStream() uintptr {
	var stream C.uint64_t
	must(C.driver_stream(&stream))
	return uintptr(stream)
}

// Wait waits for a stream; 0 is the legacy default one.
func Wait(stream uintptr) { must(C.driver_stream_wait(C.uint64_t(stream))) }

// DestroyStream frees a stream.
func DestroyStream(stream uintptr) { must(C.driver_stream_destroy(C.uint64_t(stream))) }
