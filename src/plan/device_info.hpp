// SPDX-License-Identifier: Apache-2.0
// device_info.hpp - the properties of a device on which plans depend, as plain data, so that tests can plan for any GPU
#pragma once

namespace rope {

struct DeviceInfo {
  bool is_cuda;
  int num_threads;         // CPU: threads available to a call
  int multiprocessors;     // CUDA
  int compute_capability;  // CUDA: capability_of_code, 90 for 9.0
  int memory_bus_bits;     // CUDA: distinguishes GPUs of one compute capability: 5120 on H100, 6016 on H200
};

// Returns the compute capability of the code that runs on a GPU with `capability`, for a library with code for these
// architectures: "sm_75 sm_80 sm_90 compute_90". Machine code of the same major version comes before PTX. With an
// architecture of another name, or without any code, it returns `capability`.
int capability_of_code(const char *architectures, int capability);

}  // namespace rope
