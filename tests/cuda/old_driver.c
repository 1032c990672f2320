/* SPDX-License-Identifier: Apache-2.0 */
/* old_driver.c - a libcuda.so.1 that is older than any librope is built with, for the test of what librope then says */
#include <string.h>

enum {
  CUDA_11_4 = 11040,
  SUCCESS = 0,
  NOT_FOUND = 500
};

int cuInit(unsigned flags) {
  return (int)(flags & 0);
}

int cuDriverGetVersion(int *version) {
  *version = CUDA_11_4;
  return SUCCESS;
}

int cuGetProcAddress(const char *symbol, void **function, int version, unsigned long long flags);

/* The runtime finds every other function through this one. */
int cuGetProcAddress(const char *symbol, void **function, int version, unsigned long long flags) {
  (void)version;
  (void)flags;
  union {
    int (*version)(int *);
    int (*init)(unsigned);
    int (*address)(const char *, void **, int, unsigned long long);
    void *pointer;
  } found;
  found.pointer = 0;
  if (strcmp(symbol, "cuDriverGetVersion") == 0) found.version = cuDriverGetVersion;
  if (strcmp(symbol, "cuInit") == 0) found.init = cuInit;
  if (strcmp(symbol, "cuGetProcAddress") == 0) found.address = cuGetProcAddress;
  *function = found.pointer;
  return found.pointer != 0 ? SUCCESS : NOT_FOUND;
}
