// SPDX-License-Identifier: Apache-2.0
// device.hpp - the devices of this machine, and calls that run on each of them with a workspace
#ifndef ROPE_TESTS_SUPPORT_DEVICE_HPP
#define ROPE_TESTS_SUPPORT_DEVICE_HPP

#include <rope/rope.h>

#include <memory>
#include <string>
#include <vector>

#include "tensors.hpp"

struct Device {
  rope_device_t kind;
  int32_t index;
  std::string name;
};

std::ostream &operator<<(std::ostream &out, const Device &device);

// The CPU, and the first CUDA device if the library reports one.
const std::vector<Device> &devices();

bool has_cuda();

// The text of rope_last_error() if there is no CUDA device, otherwise "".
const std::string &why_no_cuda();

enum class Direction {
  Forward,
  Backward
};

const char *name_of(Direction direction);

struct RopeDestroy {
  void operator()(rope_desc_t *desc) const { rope_desc_destroy(desc); }
};
struct SwigluDestroy {
  void operator()(swiglu_desc_t *desc) const { swiglu_desc_destroy(desc); }
};
using RopeDesc = std::unique_ptr<rope_desc_t, RopeDestroy>;
using SwigluDesc = std::unique_ptr<swiglu_desc_t, SwigluDestroy>;

// A config with its required fields set: F32, BSHD, HALF, theta 10000.
rope_config_t rope_config_for(const Device &device, int32_t head_dim);
swiglu_config_t swiglu_config_for(const Device &device);
rope_args_t rope_args();
swiglu_args_t swiglu_args();

// Creates a descriptor. A refusal fails the test with the library's message.
RopeDesc create(const rope_config_t &config);
SwigluDesc create(const swiglu_config_t &config);

// Runs one call on the device. `args` has host addresses; the workspace is copied to the device and back.
rope_status_t run(const Device &device, const rope_desc_t *desc, Direction direction, const rope_args_t &args,
                  Workspace &workspace);
rope_status_t run(const Device &device, const swiglu_desc_t *desc, Direction direction, const swiglu_args_t &args,
                  Workspace &workspace);

// `run` for rope_fill_tables.
rope_status_t run(const Device &device, const rope_desc_t *desc, const rope_tensor_t &cos_out,
                  const rope_tensor_t &sin_out, Workspace &workspace);

#endif
