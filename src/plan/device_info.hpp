// device_info.hpp - what planning needs to know of a device, as plain data, so that tests can plan for any
#pragma once

namespace rope {

struct DeviceInfo {
  bool is_cuda;
  int num_threads;         // CPU: threads that a call may use
  int multiprocessors;     // CUDA
  int compute_capability;  // CUDA: 90 for 9.0
  int memory_bus_bits;     // CUDA: tells apart GPUs of one compute capability, as H100 (5120) and H200 (6016)
};

}  // namespace rope
