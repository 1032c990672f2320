/* SPDX-License-Identifier: Apache-2.0 */
/* header.c - the public header is self-contained, may be included twice, and is valid C and C++ */
#include <rope/rope.h>

rope_status_t call(rope_desc_t *desc, const rope_args_t *args);
rope_status_t call(rope_desc_t *desc, const rope_args_t *args) {
  return rope_forward(desc, args, 0);
}
