// device.hpp - the devices of this machine, and calls that run on each of them over a workspace
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

// The CPU, and the first CUDA device where the library reports one.
const std::vector<Device> &devices();

bool has_cuda();

// What rope_last_error() said about the absence of CUDA devices; "" where there is one.
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

// A config whose required fields are set: F32, BSHD, HALF, theta 10000.
rope_config_t rope_config_for(const Device &device, int32_t head_dim);
swiglu_config_t swiglu_config_for(const Device &device);
rope_args_t rope_args();
swiglu_args_t swiglu_args();

// Descriptors that must be served; a refusal fails the test with the library's words.
RopeDesc create(const rope_config_t &config);
SwigluDesc create(const swiglu_config_t &config);

// Runs one call on the device: the workspace travels there and back, and args are given in host addresses.
rope_status_t run(const Device &device, const rope_desc_t *desc, Direction direction, const rope_args_t &args,
                  Workspace &workspace);
rope_status_t run(const Device &device, const swiglu_desc_t *desc, Direction direction, const swiglu_args_t &args,
                  Workspace &workspace);

// The same for rope_fill_tables.
rope_status_t run(const Device &device, const rope_desc_t *desc, const rope_tensor_t &cos_out,
                  const rope_tensor_t &sin_out, Workspace &workspace);

#endif
