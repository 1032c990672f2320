/* SPDX-License-Identifier: Apache-2.0 */
/* dlopen.c - loads the library named by its argument, like a plugin host or a language without a linker
 *
 * The library is opened, used so that its thread pool starts, and closed, a hundred times: there is only one pool,
 * and this thread keeps subnormal numbers.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <float.h>
#include <rope/rope.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  TOKENS = 4096,
  HEAD_DIM = 128,
  TIMES = 100
};

typedef struct library {
  uint32_t (*version)(void);
  const char *(*last_error)(void);
  rope_status_t (*desc_create)(const rope_config_t *, rope_desc_t **);
  void (*desc_destroy)(rope_desc_t *);
  rope_status_t (*forward)(const rope_desc_t *, const rope_args_t *, rope_stream_t);
} library_t;

/* dlsym returns an object pointer, and C99 has no cast from it to a function pointer. */
static void find(void *handle, const char *name, void *function) {
  void *symbol = dlsym(handle, name);
  if (symbol == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
  }
  memcpy(function, &symbol, sizeof(symbol));
}

static void *open_library(const char *path, library_t *library) {
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (handle == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
  }
  find(handle, "rope_version", &library->version);
  find(handle, "rope_last_error", &library->last_error);
  find(handle, "rope_desc_create", &library->desc_create);
  find(handle, "rope_desc_destroy", &library->desc_destroy);
  find(handle, "rope_forward", &library->forward);
  return handle;
}

static int rotate(const library_t *library) {
  static float q[TOKENS][HEAD_DIM];
  memset(q, 0, sizeof(q));
  rope_config_t config = {.struct_size = sizeof(config),
                          .device = ROPE_DEVICE_CPU,
                          .dtype = ROPE_DTYPE_F32,
                          .layout = ROPE_LAYOUT_THD,
                          .style = ROPE_STYLE_HALF,
                          .head_dim = HEAD_DIM,
                          .theta = 10000.0,
                          .num_threads = 2};
  rope_args_t args = {.struct_size = sizeof(args),
                      .q = {.data = q, .dtype = ROPE_DTYPE_F32, .ndim = 3, .shape = {TOKENS, 1, HEAD_DIM}}};
  rope_desc_t *desc = NULL;
  for (int t = 0; t < TOKENS; ++t) q[t][0] = 1.0f;
  if (library->desc_create(&config, &desc) != ROPE_STATUS_SUCCESS ||
      library->forward(desc, &args, NULL) != ROPE_STATUS_SUCCESS) {
    fprintf(stderr, "%s\n", library->last_error());
    return 0;
  }
  library->desc_destroy(desc);
  const float error = q[1][0] - 0.5403023f; /* cos 1 */
  return error < 1e-6f && error > -1e-6f;
}

static int count_threads(void) {
  DIR *tasks = opendir("/proc/self/task");
  int count = 0;
  if (tasks == NULL) return 0;
  while (readdir(tasks) != NULL) ++count;
  closedir(tasks);
  return count;
}

/* A library linked with -ffast-math makes the process that loads it flush subnormal numbers to zero. */
static int keeps_subnormals(void) {
  volatile float smallest = FLT_MIN;
  return smallest / 2 > 0;
}

int main(int argc, char **argv) {
  library_t library;
  int first_count = 0;
  if (argc != 2) return 2;
  for (int time = 0; time < TIMES; ++time) {
    void *handle = open_library(argv[1], &library);
    if (library.version() != ROPE_VERSION || !rotate(&library)) return 1;
    dlclose(handle);
    if (!keeps_subnormals()) {
      fprintf(stderr, "%s makes its process flush subnormal numbers to zero\n", argv[1]);
      return 1;
    }
    if (time == 0) first_count = count_threads();
  }
  if (count_threads() != first_count) {
    fprintf(stderr, "%d entries of /proc/self/task became %d\n", first_count, count_threads());
    return 1;
  }
  return 0;
}
