// SPDX-License-Identifier: Apache-2.0
// device_info.hpp - the properties of a device on which plans depend, as plain data, so that tests can plan for any GPU
#pragma once

namespace rope {

struct DeviceInfo {
  bool is_cuda;
  int num_threads;         // CPU: threads available to a call
  int multiprocessors;     // CUDA
  int compute_capability;  // CUDA: 90 for 9.0
  int memory_bus_bits;     // CUDA: distinguishes GPUs of one compute capability: 5120 on H100, 6016 on H200
};

}  // namespace rope
