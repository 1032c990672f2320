/* SPDX-License-Identifier: Apache-2.0 */
/* header_cuda.c - the stream types of the CUDA runtime and driver convert to rope_stream_t without a cast or a
 * warning */
#include <cuda_runtime.h>
#include <rope/rope.h>

typedef struct CUstream_st *driver_stream_t;

rope_status_t call(rope_desc_t *desc, const rope_args_t *args, cudaStream_t stream);
rope_status_t call(rope_desc_t *desc, const rope_args_t *args, cudaStream_t stream) {
  driver_stream_t driver_stream = stream;
  rope_status_t status = rope_forward(desc, args, stream);
  return status == ROPE_STATUS_SUCCESS ? rope_backward(desc, args, driver_stream) : status;
}
