// SPDX-License-Identifier: Apache-2.0
// scenes.hpp - a call of librope with its tensors on a GPU, and the check of its results
#ifndef ROPE_TESTS_CUDA_SCENES_HPP
#define ROPE_TESTS_CUDA_SCENES_HPP

#include <rope/rope.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
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
  Workspace &workspace() { return workspace_; }

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

// A scene that is compared with the CPU, because its results have identical bits everywhere.
class BitScene : public Scene {
 public:
  void check_fetched() override;
  const std::vector<std::byte> &expected() const { return expected_; }

  // Calls with the tensors that `there` returns for those of the workspace, instead of the image's.
  using There = std::function<rope_tensor_t(const rope_tensor_t &)>;
  virtual void use(const There &there) = 0;

  // A call of some tokens or rows. Only for the thread of the test case.
  virtual rope_status_t call_rows(int64_t first, int64_t length, rope_stream_t stream) const = 0;

  // Multiplies the values of the inputs by a power of two, also on the device. The expected results become those of a
  // call that follows the calls before.
  void multiply_values(double factor);

 protected:
  explicit BitScene(uint64_t seed) : Scene(seed) {}

  virtual rope_status_t call_on_cpu() const = 0;
  // Inputs in the workspace and on the device.
  virtual std::vector<std::pair<rope_tensor_t, rope_tensor_t>> values() const = 0;

  // Freezes the workspace, places the image and uses it.
  void begin(int device_index);
  // Expects the results of a call on the present contents of the workspace.
  void expect();

 private:
  std::vector<std::byte> expected_;
};

// Codes of E4M3 in an output of q, and in the caches.
enum class StepCodes {
  None,
  StaticScales,
  WrittenScales,  // one for each head
  Amax            // static scales, and the largest magnitudes
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
  StepCodes codes = StepCodes::None;
  int64_t tokens = 7;
  uint32_t flags = 0;
  int device_index = 0;
  uint64_t seed = 1;
};

class StepScene : public BitScene {
 public:
  explicit StepScene(const StepSetup &setup);

  rope_status_t call(rope_stream_t stream) const override;
  rope_status_t call_rows(int64_t first, int64_t length, rope_stream_t stream) const override;
  void use(const There &there) override;
  void destroy_descriptor() override { desc_.reset(); }
  std::string describe() const override;

  // Moves the tokens' slots, also on the device, and changes the expected results accordingly.
  void move_slots(int64_t by);

 private:
  // A call's operands. The args point to the others when a call is made.
  struct Operands {
    rope_args_t args = rope_args();
    rope_norm_args_t norm = ROPE_NORM_ARGS_INIT;
    rope_cache_args_t cache = ROPE_CACHE_ARGS_INIT;
    rope_quant_args_t quant = ROPE_QUANT_ARGS_INIT;

    std::vector<rope_tensor_t *> tensors();
  };

  void add_codes();
  rope_status_t call_with(const rope_desc_t *desc, const Operands &operands, rope_stream_t stream) const;
  rope_status_t call_on_cpu() const override;
  std::vector<std::pair<rope_tensor_t, rope_tensor_t>> values() const override;

  StepSetup setup_;
  std::shared_ptr<const rope_desc_t> desc_;
  Operands host_, device_;
};

// Outputs of SwiGLU with codes. All but Groups raise the largest magnitude.
enum class SwigluCodes {
  StaticScale,  // E4M3
  Groups,       // E4M3 with an F32 scale for 128 channels
  Pairs,        // NVFP4
  Columns,      // MXFP8 by row and by column
  Gradients     // both gradients as MXFP8, by row and by column
};
constexpr SwigluCodes all_swiglu_codes[] = {SwigluCodes::StaticScale, SwigluCodes::Groups, SwigluCodes::Pairs,
                                            SwigluCodes::Columns, SwigluCodes::Gradients};

// F16 or BF16, 256 columns. Gates are powers of two so large that their sigmoid is 1, and values are rounded before
// they become codes: all devices have the same values.
struct SwigluCodesSetup {
  rope_dtype_t dtype = ROPE_DTYPE_BF16;
  SwigluCodes codes = SwigluCodes::StaticScale;
  int64_t rows = 64;  // a multiple of 32
  int64_t start = 0;
  uint32_t flags = 0;
  int device_index = 0;
  uint64_t seed = 1;
};

class SwigluCodesScene : public BitScene {
 public:
  explicit SwigluCodesScene(const SwigluCodesSetup &setup);

  rope_status_t call(rope_stream_t stream) const override;
  rope_status_t call_rows(int64_t first, int64_t length, rope_stream_t stream) const override;
  void use(const There &there) override;
  void destroy_descriptor() override { desc_.reset(); }
  std::string describe() const override;

 private:
  struct Operands {
    swiglu_args_t args = swiglu_args();
    swiglu_quant_args_t quant = SWIGLU_QUANT_ARGS_INIT;
    swiglu_column_args_t column = SWIGLU_COLUMN_ARGS_INIT;

    std::vector<rope_tensor_t *> tensors();
  };

  void add_outputs();
  rope_status_t call_with(const swiglu_desc_t *desc, const Operands &operands, rope_stream_t stream) const;
  rope_status_t call_on_cpu() const override;
  std::vector<std::pair<rope_tensor_t, rope_tensor_t>> values() const override;

  SwigluCodesSetup setup_;
  std::shared_ptr<const swiglu_desc_t> desc_;
  Operands host_, device_;
};

std::shared_ptr<const rope_desc_t> share(const rope_config_t &config);
std::shared_ptr<const swiglu_desc_t> share(const swiglu_config_t &config);

using Scenes = std::vector<std::unique_ptr<Scene>>;

// Steps and SwiGLU with each kind of codes. A call is one kernel, and one more call changes nothing. There is no SwiGLU
// of F32, and nothing of F64.
Scenes scenes_with_codes(rope_dtype_t dtype, int device_index = 0);

// One scene for each function: RoPE forward, backward, with tables, out of place, with norms and caches; SwiGLU forward
// and backward; those with codes.
Scenes scenes_of_each_function(rope_dtype_t dtype, int device_index = 0);

#endif
