// SPDX-License-Identifier: Apache-2.0
// scenes.hpp - a call of librope with its tensors on a GPU, and the check of its results
#ifndef ROPE_TESTS_CUDA_SCENES_HPP
#define ROPE_TESTS_CUDA_SCENES_HPP

#include <rope/rope.h>

#include <memory>
#include <string>
#include <vector>

#include "gpu.hpp"
#include "support/device.hpp"

// A copy of a frozen workspace in the memory of the device that was current, with all blocks in one allocation.
// Functions that return a cudaError_t may be called from any thread.
class DeviceImage {
 public:
  explicit DeviceImage(Workspace &workspace);

  // The tensor of the workspace, in device memory.
  rope_tensor_t there(const rope_tensor_t &tensor) const;

  // Resets the device memory to the frozen contents.
  cudaError_t enqueue_reset(cudaStream_t stream) const;
  void reset() const;
  // Changes every byte of the device memory.
  void spoil() const;

  // Copies the device memory to the host. read() waits only for its own stream.
  cudaError_t enqueue_read(cudaStream_t stream) const;
  void read() const;

  // Whether the fetched contents are the frozen ones.
  bool is_as_frozen() const;
  std::vector<std::byte> bytes() const;
  bool is_same_as(const std::vector<std::byte> &bytes) const;
  void copy_to_workspace() const;

  std::byte *device_data() const { return device_.data(); }
  const std::byte *frozen_data() const { return frozen_.data(); }
  int64_t size() const { return size_; }

 private:
  Workspace &workspace_;
  int64_t size_;
  DeviceMemory device_;
  PinnedMemory frozen_, fetched_;
  cudaStream_t copies_;
};

// A call in one direction with a descriptor.
class Scene {
 public:
  virtual ~Scene() = default;

  // May be called from any thread.
  virtual rope_status_t call(rope_stream_t stream) const = 0;

  // Checks the fetched image: outputs by the oracle, all other bytes by their former values.
  virtual void check_fetched() = 0;
  void check() {
    image().read();
    check_fetched();
  }

  virtual void destroy_descriptor() = 0;
  virtual std::string describe() const = 0;
  DeviceImage &image() { return *image_; }

 protected:
  explicit Scene(uint64_t seed) : workspace_(seed) {}
  void place(int device_index);

  Workspace workspace_;
  std::unique_ptr<DeviceImage> image_;
};

// Makes a call that must be accepted. Only for the thread of the test case.
void require_call(const Scene &scene, rope_stream_t stream);

// q with 3 heads and k with 2 heads of 64 channels, 48 of them rotated, in two batches. Token s has position
// first_position + 3 s, from a tensor.
struct RopeSetup {
  rope_dtype_t dtype = ROPE_DTYPE_F32;
  rope_style_t style = ROPE_STYLE_HALF;
  bool is_converted = false;  // forward's output has the other style
  Direction direction = Direction::Forward;
  bool is_in_place = true;
  bool has_table = false;
  int64_t tokens = 7;
  int64_t first_position = 5;
  int64_t start = 0;  // offset of the tensors from the alignment, in elements: it limits the width of vectors
  int device_index = 0;
  uint64_t seed = 1;
};

rope_config_t config_for(const RopeSetup &setup);

class RopeScene : public Scene {
 public:
  explicit RopeScene(const RopeSetup &setup);  // creates its own descriptor
  RopeScene(const RopeSetup &setup, std::shared_ptr<const rope_desc_t> desc);

  rope_status_t call(rope_stream_t stream) const override;
  void check_fetched() override { check_turned(1); }
  // Checks the result of so many in-place calls, for F32 and computed angles only: each call may add the error
  // permitted for one.
  void check_turned(int times);
  void destroy_descriptor() override { desc_.reset(); }
  std::string describe() const override;

 private:
  struct Turn;
  int64_t position_of(int64_t token) const { return setup_.first_position + 3 * token; }
  Turn turn_of(int64_t token, int times) const;

  RopeSetup setup_;
  std::shared_ptr<const rope_desc_t> desc_;
  rope_args_t host_args_ = rope_args(), device_args_ = rope_args();
  rope_tensor_t in_[2], out_[2];
};

// Rows of 37 elements with a stride of 48.
struct SwigluSetup {
  rope_dtype_t dtype = ROPE_DTYPE_F32;
  Direction direction = Direction::Forward;
  int64_t rows = 5;
  int64_t start = 0;
  int device_index = 0;
  uint64_t seed = 1;
};

class SwigluScene : public Scene {
 public:
  explicit SwigluScene(const SwigluSetup &setup);
  SwigluScene(const SwigluSetup &setup, std::shared_ptr<const swiglu_desc_t> desc);

  rope_status_t call(rope_stream_t stream) const override;
  void check_fetched() override;
  void destroy_descriptor() override { desc_.reset(); }
  std::string describe() const override;

 private:
  SwigluSetup setup_;
  std::shared_ptr<const swiglu_desc_t> desc_;
  swiglu_args_t host_args_ = swiglu_args(), device_args_ = swiglu_args();
};

// q with 3, k and v with 2 heads of 64 channels, all rotated except v; with a cache, k and v go to pages of 4 entries.
struct StepSetup {
  rope_dtype_t dtype = ROPE_DTYPE_F32;
  rope_style_t style = ROPE_STYLE_HALF;
  rope_norm_type_t norm = ROPE_NORM_RMS;  // LAYER runs on the general kernel
  rope_norm_order_t norm_order = ROPE_NORM_ORDER_BEFORE;
  bool is_turned = true;
  bool has_cache = true;
  bool has_table = false;
  int64_t tokens = 7;
  uint32_t flags = 0;
  int device_index = 0;
  uint64_t seed = 1;
};

// Compared with the CPU, because a step has identical bits everywhere.
class StepScene : public Scene {
 public:
  explicit StepScene(const StepSetup &setup);

  rope_status_t call(rope_stream_t stream) const override;
  void check_fetched() override;
  void destroy_descriptor() override { desc_.reset(); }
  std::string describe() const override;

  // Moves the tokens' slots, also on the device, and changes the expected results accordingly.
  void move_slots(int64_t by);

 private:
  void expect(int64_t slots_moved_by);

  StepSetup setup_;
  std::shared_ptr<const rope_desc_t> desc_;
  rope_args_t host_args_ = rope_args(), device_args_ = rope_args();
  rope_norm_args_t norm_ = ROPE_NORM_ARGS_INIT, device_norm_ = ROPE_NORM_ARGS_INIT;
  rope_cache_args_t cache_ = ROPE_CACHE_ARGS_INIT, device_cache_ = ROPE_CACHE_ARGS_INIT;
  std::vector<std::byte> expected_;
};

std::shared_ptr<const rope_desc_t> share(const rope_config_t &config);
std::shared_ptr<const swiglu_desc_t> share(const swiglu_config_t &config);

using Scenes = std::vector<std::unique_ptr<Scene>>;

// One scene for each function: RoPE forward, backward, with tables, out of place, with norms and caches; SwiGLU forward
// and backward.
Scenes scenes_of_each_function(rope_dtype_t dtype, int device_index = 0);

#endif
