// SPDX-License-Identifier: Apache-2.0
// scenes.cpp - builds tensors on a GPU and compares the results of a call with the oracle
#include "scenes.hpp"

#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstring>
#include <map>
#include <sstream>
#include <utility>

#include "support/tolerance.hpp"

using oracle::Real;

namespace {

constexpr int64_t batches = 2, channels = 64;
constexpr int rotary_dim = 48, rotary_offset = 8, pairs = rotary_dim / 2;
constexpr double theta = 10000;

int64_t bytes_of(const Workspace &workspace) {
  int64_t bytes = 0;
  for (const auto &block : workspace.blocks()) bytes += block->size();
  return bytes;
}

// One stream for all images of the current device: among many streams some share a hardware queue, and a stream that is
// held back would hold back the others of its queue.
cudaStream_t stream_for_copies() {
  static std::map<int, std::unique_ptr<Stream>> streams;
  int device = 0;
  REQUIRE_CUDA(cudaGetDevice(&device));
  std::unique_ptr<Stream> &stream = streams[device];
  if (!stream) stream = std::make_unique<Stream>();
  return *stream;
}

// Reports the first few wrong elements of a tensor.
class Judge {
 public:
  explicit Judge(rope_dtype_t dtype) : dtype_(dtype) {}
  void judge(const char *tensor, const Index &at, Real actual, Real exact, Real slack) {
    if (tolerance::accepts(dtype_, actual, exact, slack) || ++wrong_ > 3) return;
    UNSCOPED_INFO(tensor << '[' << at[0] << ',' << at[1] << ',' << at[2] << ',' << at[3] << "]: expected "
                         << static_cast<double>(exact) << " +- " << static_cast<double>(slack) << ", got "
                         << static_cast<double>(actual));
  }

  void conclude() const { CHECK(wrong_ == 0); }

 private:
  rope_dtype_t dtype_;
  int64_t wrong_ = 0;
};

void check_untouched_elsewhere(const Workspace &workspace) {
  std::string where;
  const bool is_untouched = workspace.untouched_elsewhere(&where);
  INFO(where);
  CHECK(is_untouched);
}

swiglu_config_t config_for(const SwigluSetup &setup) {
  swiglu_config_t config = swiglu_config_for({ROPE_DEVICE_CUDA, setup.device_index, ""});
  config.dtype = setup.dtype;
  return config;
}

}  // namespace

DeviceImage::DeviceImage(Workspace &workspace)
    : workspace_(workspace),
      size_(bytes_of(workspace)),
      device_(size_),
      frozen_(size_),
      fetched_(size_),
      copies_(stream_for_copies()) {
  std::byte *next = frozen_.data();
  for (const auto &block : workspace.blocks()) {
    block->open_guards();
    std::memcpy(next, block->begin(), static_cast<size_t>(block->size()));
    next += block->size();
  }
  reset();
  read();
}

rope_tensor_t DeviceImage::there(const rope_tensor_t &tensor) const {
  rope_tensor_t view = tensor;
  int64_t offset = 0;
  for (const auto &block : workspace_.blocks()) {
    if (block->contains(tensor.data)) {
      view.data = device_.data() + offset + (static_cast<std::byte *>(tensor.data) - block->begin());
      break;
    }
    offset += block->size();
  }
  return view;
}

cudaError_t DeviceImage::enqueue_reset(cudaStream_t stream) const {
  return cudaMemcpyAsync(device_.data(), frozen_.data(), static_cast<size_t>(size_), cudaMemcpyHostToDevice, stream);
}

void DeviceImage::reset() const {
  REQUIRE_CUDA(enqueue_reset(copies_));
  REQUIRE_CUDA(cudaStreamSynchronize(copies_));
}

void DeviceImage::spoil() const {
  for (int64_t i = 0; i < size_; ++i) fetched_.data()[i] = ~frozen_.data()[i];
  REQUIRE_CUDA(
      cudaMemcpyAsync(device_.data(), fetched_.data(), static_cast<size_t>(size_), cudaMemcpyHostToDevice, copies_));
  REQUIRE_CUDA(cudaStreamSynchronize(copies_));
}

cudaError_t DeviceImage::enqueue_read(cudaStream_t stream) const {
  return cudaMemcpyAsync(fetched_.data(), device_.data(), static_cast<size_t>(size_), cudaMemcpyDeviceToHost, stream);
}

void DeviceImage::read() const {
  REQUIRE_CUDA(enqueue_read(copies_));
  REQUIRE_CUDA(cudaStreamSynchronize(copies_));
}

bool DeviceImage::is_as_frozen() const {
  return std::memcmp(fetched_.data(), frozen_.data(), static_cast<size_t>(size_)) == 0;
}

std::vector<std::byte> DeviceImage::bytes() const {
  return std::vector<std::byte>(fetched_.data(), fetched_.data() + size_);
}

bool DeviceImage::is_same_as(const std::vector<std::byte> &bytes) const {
  return static_cast<int64_t>(bytes.size()) == size_ &&
         std::memcmp(fetched_.data(), bytes.data(), static_cast<size_t>(size_)) == 0;
}

void DeviceImage::copy_to_workspace() const {
  workspace_.restore();
  const std::byte *next = fetched_.data();
  for (const auto &block : workspace_.blocks()) {
    block->open_guards();
    std::memcpy(block->begin(), next, static_cast<size_t>(block->size()));
    next += block->size();
  }
}

void Scene::place(int device_index) {
  const CurrentDevice here(device_index);
  image_ = std::make_unique<DeviceImage>(workspace_);
}

void require_call(const Scene &scene, rope_stream_t stream) {
  INFO(scene.describe());
  const rope_status_t status = scene.call(stream);
  if (status != ROPE_STATUS_SUCCESS) FAIL(rope_status_name(status) << ": " << rope_last_error());
}

std::shared_ptr<const rope_desc_t> share(const rope_config_t &config) {
  return create(config);
}

std::shared_ptr<const swiglu_desc_t> share(const swiglu_config_t &config) {
  return create(config);
}

rope_config_t config_for(const RopeSetup &setup) {
  rope_config_t config = rope_config_for({ROPE_DEVICE_CUDA, setup.device_index, ""}, channels);
  config.dtype = setup.dtype;
  config.style = setup.style;
  if (setup.is_converted) config.out_style = oracle::other_style(setup.style);
  config.rotary_dim = rotary_dim;
  config.rotary_offset = rotary_offset;
  config.theta = theta;
  return config;
}

RopeScene::RopeScene(const RopeSetup &setup) : RopeScene(setup, share(config_for(setup))) {}

RopeScene::RopeScene(const RopeSetup &setup, std::shared_ptr<const rope_desc_t> desc)
    : Scene(setup.seed), setup_(setup), desc_(std::move(desc)) {
  const int64_t heads[2] = {3, 2};
  for (int i = 0; i < 2; ++i) {
    const Shape shape = {batches, setup.tokens, heads[i], channels};
    in_[i] = out_[i] = workspace_.tensor(setup.dtype, shape, Placement().at(setup.start));
    workspace_.fill_normal(in_[i]);
    if (!setup.is_in_place) out_[i] = workspace_.tensor(setup.dtype, shape, Placement().at(setup.start));
  }
  host_args_.q = in_[0];
  host_args_.k = in_[1];
  if (!setup.is_in_place) {
    host_args_.q_out = out_[0];
    host_args_.k_out = out_[1];
  }
  host_args_.positions = workspace_.tensor(ROPE_DTYPE_I32, {setup.tokens});
  workspace_.fill_integers(host_args_.positions, [&](const Index &index) { return position_of(index[0]); });
  if (setup.has_table) {
    const Shape shape = {position_of(setup.tokens - 1) + 1, pairs};
    host_args_.cos = workspace_.tensor(ROPE_DTYPE_F32, shape);
    host_args_.sin = workspace_.tensor(ROPE_DTYPE_F32, shape);
    const auto rotation = [](const Index &index) {
      return oracle::rotation(index[0], oracle::frequency(theta, rotary_dim, static_cast<int>(index[1])));
    };
    workspace_.fill(host_args_.cos, [&](const Index &index) { return rotation(index).cos; });
    workspace_.fill(host_args_.sin, [&](const Index &index) { return rotation(index).sin; });
  }
  workspace_.freeze();
  place(setup.device_index);
  device_args_ = host_args_;
  for (rope_tensor_t *tensor : {&device_args_.q, &device_args_.q_out, &device_args_.k, &device_args_.k_out,
                                &device_args_.positions, &device_args_.cos, &device_args_.sin}) {
    *tensor = image_->there(*tensor);
  }
}

rope_status_t RopeScene::call(rope_stream_t stream) const {
  return setup_.direction == Direction::Forward ? rope_forward(desc_.get(), &device_args_, stream)
                                                : rope_backward(desc_.get(), &device_args_, stream);
}

// The rotations of a token's pairs, with the length of each and the permitted error of its phase.
struct RopeScene::Turn {
  oracle::Rotation rotation[pairs];
  Real length[pairs];
  Real phase_error[pairs];
};

RopeScene::Turn RopeScene::turn_of(int64_t token, int times) const {
  Turn turn;
  const int64_t position = position_of(token);
  for (int pair = 0; pair < pairs; ++pair) {
    if (setup_.has_table) {
      const Real cos = value_at(workspace_.before(host_args_.cos), {position, pair});
      const Real sin = value_at(workspace_.before(host_args_.sin), {position, pair});
      turn.rotation[pair] = {cos, sin};
      turn.length[pair] = std::hypot(cos, sin);
      turn.phase_error[pair] = 0;
    } else {
      const Real frequency = oracle::frequency(theta, rotary_dim, pair);
      turn.rotation[pair] = oracle::rotation(times * position, frequency);
      turn.length[pair] = 1;
      turn.phase_error[pair] = tolerance::phase(position, frequency);
    }
  }
  return turn;
}

void RopeScene::check_turned(int times) {
  if (times > 1) REQUIRE((setup_.dtype == ROPE_DTYPE_F32 && setup_.is_in_place && !setup_.has_table));
  image_->copy_to_workspace();
  INFO(describe());
  rope_style_t in_style = setup_.style;
  rope_style_t out_style = setup_.is_converted ? oracle::other_style(in_style) : in_style;
  if (setup_.direction == Direction::Backward) std::swap(in_style, out_style);
  Judge judge(setup_.dtype);
  for (int64_t token = 0; token < setup_.tokens; ++token) {
    const Turn turn = turn_of(token, times);
    for (int i = 0; i < 2; ++i) {
      const char *name = i == 0 ? "q" : "k";
      const rope_tensor_t before = workspace_.before(in_[i]);
      for (int64_t row = 0; row < batches * in_[i].shape[2]; ++row) {
        const int64_t batch = row / in_[i].shape[2], head = row % in_[i].shape[2];
        for (int pair = 0; pair < pairs; ++pair) {
          const auto at = [&](rope_style_t style, int member) -> Index {
            const int channel = rotary_offset + oracle::channel_in_window(style, rotary_dim, pair, member);
            return {batch, token, head, channel};
          };
          const oracle::Pair in = {value_at(before, at(in_style, 0)), value_at(before, at(in_style, 1))};
          const Index at_x = at(out_style, 0), at_y = at(out_style, 1);
          const oracle::Pair exact = setup_.direction == Direction::Forward
                                         ? oracle::rotate(in, turn.rotation[pair])
                                         : oracle::rotate_transposed(in, turn.rotation[pair]);
          // Over a thousand calls the length itself drifts by less than 1e-3.
          const Real length = std::hypot(in.x, in.y) * turn.length[pair] * (times > 1 ? 1.001L : 1.0L);
          const Real slack = times * tolerance::rope_slack(setup_.dtype, length, turn.phase_error[pair]);
          judge.judge(name, at_x, value_at(out_[i], at_x), exact.x, slack);
          judge.judge(name, at_y, value_at(out_[i], at_y), exact.y, slack);
          workspace_.accept(out_[i], at_x);
          workspace_.accept(out_[i], at_y);
        }
        for (int64_t channel = 0; channel < channels && !setup_.is_in_place; ++channel) {
          if (channel >= rotary_offset && channel < rotary_offset + rotary_dim) continue;
          const Index at = {batch, token, head, channel};
          judge.judge(name, at, value_at(out_[i], at), value_at(before, at), 0);
          workspace_.accept(out_[i], at);
        }
      }
    }
  }
  judge.conclude();
  check_untouched_elsewhere(workspace_);
}

std::string RopeScene::describe() const {
  std::ostringstream text;
  text << "RoPE " << name_of(setup_.direction) << ' ' << oracle::dtype_name(setup_.dtype) << " style " << setup_.style
       << (setup_.is_converted ? " to the other" : "") << (setup_.is_in_place ? "" : " out of place")
       << (setup_.has_table ? " by tables" : "") << ", 2 x " << setup_.tokens << " tokens, " << setup_.start
       << " elements past the alignment, device " << setup_.device_index;
  return text.str();
}

SwigluScene::SwigluScene(const SwigluSetup &setup) : SwigluScene(setup, share(config_for(setup))) {}

SwigluScene::SwigluScene(const SwigluSetup &setup, std::shared_ptr<const swiglu_desc_t> desc)
    : Scene(setup.seed), setup_(setup), desc_(std::move(desc)) {
  swiglu_args_t &args = host_args_;
  const bool is_forward = setup.direction == Direction::Forward;
  const std::vector<rope_tensor_t *> inputs = is_forward
                                                  ? std::vector<rope_tensor_t *>{&args.gate, &args.up}
                                                  : std::vector<rope_tensor_t *>{&args.gate, &args.up, &args.grad_out};
  const std::vector<rope_tensor_t *> outputs = is_forward
                                                   ? std::vector<rope_tensor_t *>{&args.out}
                                                   : std::vector<rope_tensor_t *>{&args.grad_gate, &args.grad_up};
  const Placement placement = Placement().gap(0, 11).at(setup.start);
  for (rope_tensor_t *input : inputs) {
    *input = workspace_.tensor(setup.dtype, {setup.rows, 37}, placement);
    workspace_.fill_normal(*input);
  }
  for (rope_tensor_t *output : outputs) *output = workspace_.tensor(setup.dtype, {setup.rows, 37}, placement);
  workspace_.freeze();
  place(setup.device_index);
  device_args_ = host_args_;
  for (rope_tensor_t *tensor : {&device_args_.gate, &device_args_.up, &device_args_.out, &device_args_.grad_out,
                                &device_args_.grad_gate, &device_args_.grad_up}) {
    *tensor = image_->there(*tensor);
  }
}

rope_status_t SwigluScene::call(rope_stream_t stream) const {
  return setup_.direction == Direction::Forward ? swiglu_forward(desc_.get(), &device_args_, stream)
                                                : swiglu_backward(desc_.get(), &device_args_, stream);
}

void SwigluScene::check_fetched() {
  image_->copy_to_workspace();
  INFO(describe());
  const swiglu_args_t &args = host_args_;
  Judge judge(setup_.dtype);
  for_each_index(args.gate, [&](const Index &at) {
    const Real gate = value_at(workspace_.before(args.gate), at), up = value_at(workspace_.before(args.up), at);
    if (setup_.direction == Direction::Forward) {
      const Real exact = oracle::swiglu(gate, up);
      judge.judge("out", at, value_at(args.out, at), exact, tolerance::swiglu_slack(exact, gate, up, 1));
      workspace_.accept(args.out, at);
      return;
    }
    const Real grad_out = value_at(workspace_.before(args.grad_out), at);
    const oracle::SwigluGradients exact = oracle::swiglu_gradients(gate, up, grad_out);
    // The two terms of grad_gate may cancel; the permitted error follows from the larger one.
    const Real factor = grad_out * up * oracle::sigmoid(gate);
    const Real size = std::fmax(std::fabs(factor), std::fabs(factor * gate * oracle::sigmoid(-gate)));
    judge.judge("grad_gate", at, value_at(args.grad_gate, at), exact.gate,
                tolerance::swiglu_slack(std::fmax(size, std::fabs(exact.gate)), gate, up, grad_out));
    judge.judge("grad_up", at, value_at(args.grad_up, at), exact.up,
                tolerance::swiglu_slack(exact.up, gate, 1, grad_out));
    workspace_.accept(args.grad_gate, at);
    workspace_.accept(args.grad_up, at);
  });
  judge.conclude();
  check_untouched_elsewhere(workspace_);
}

std::string SwigluScene::describe() const {
  std::ostringstream text;
  text << "SwiGLU " << name_of(setup_.direction) << ' ' << oracle::dtype_name(setup_.dtype) << ", " << setup_.rows
       << " rows, " << setup_.start << " elements past the alignment, device " << setup_.device_index;
  return text.str();
}

void BitScene::begin(int device_index) {
  workspace_.freeze();
  place(device_index);
  use([this](const rope_tensor_t &tensor) { return image_->there(tensor); });
  expect();
}

void BitScene::expect() {
  INFO(describe());
  const rope_status_t status = call_on_cpu();
  if (status != ROPE_STATUS_SUCCESS) FAIL(rope_status_name(status) << ": " << rope_last_error());
  expected_ = workspace_.image();
}

void BitScene::check_fetched() {
  image_->copy_to_workspace();
  INFO(describe());
  const bool is_same = workspace_.image() == expected_;
  CHECK(is_same);
  CHECK(workspace_.guards_hold());
}

namespace {

// Copies a compact tensor to the device.
void copy_to_device(const rope_tensor_t &here, const rope_tensor_t &there) {
  const int64_t bytes = element_count(here) * oracle::element_size(here.dtype);
  REQUIRE_CUDA(cudaMemcpy(there.data, here.data, static_cast<size_t>(bytes), cudaMemcpyHostToDevice));
}

}  // namespace

void BitScene::multiply_values(double factor) {
  for (const auto &[here, there] : values()) {
    const rope_tensor_t &tensor = here;
    workspace_.fill(tensor, [&](const Index &at) { return value_at(tensor, at) * static_cast<Real>(factor); });
    copy_to_device(tensor, there);
  }
  expect();
}

namespace {

rope_config_t config_for(const StepSetup &setup, const Device &device) {
  rope_config_t config = rope_config_for(device, channels);
  config.layout = ROPE_LAYOUT_THD;
  config.dtype = setup.dtype;
  config.style = setup.style;
  config.theta = theta;
  config.norm = setup.norm;
  config.norm_order = setup.norm != 0 ? setup.norm_order : 0;
  config.norm_eps = setup.norm != 0 ? 1e-6 : 0;
  return config;
}

const Device cpu = {ROPE_DEVICE_CPU, 0, ""};

}  // namespace

std::vector<rope_tensor_t *> StepScene::Operands::tensors() {
  return {&args.q,        &args.q_out,    &args.k,        &args.v,        &args.cos,           &args.sin,
          &norm.q_weight, &norm.k_weight, &cache.k_cache, &cache.v_cache, &cache.k_scales,     &cache.v_scales,
          &cache.slots,   &quant.q_scale, &quant.k_scale, &quant.v_scale, &quant.q_scales_out, &quant.amax_out};
}

StepScene::StepScene(const StepSetup &setup)
    : BitScene(setup.seed), setup_(setup), desc_(share(config_for(setup, {ROPE_DEVICE_CUDA, setup.device_index, ""}))) {
  const int64_t pages = setup.tokens / 4 + 3;
  rope_args_t &args = host_.args;
  for (const auto &[tensor, heads] : {std::pair(&args.q, 3), {&args.k, 2}, {&args.v, 2}}) {
    *tensor = workspace_.tensor(setup.dtype, {setup.tokens, heads, channels});
    workspace_.fill_normal(*tensor);
  }
  args.flags = setup.flags | (setup.is_turned ? ROPE_FLAG_V_UNROTATED : ROPE_FLAG_UNROTATED);
  if (setup.norm != 0) {
    for (rope_tensor_t *weight : {&host_.norm.q_weight, &host_.norm.k_weight}) {
      *weight = workspace_.tensor(setup.dtype, {channels});
      workspace_.fill_normal(*weight);
    }
  }
  if (setup.has_cache) {
    const rope_dtype_t dtype = setup.codes == StepCodes::None ? setup.dtype : ROPE_DTYPE_F8_E4M3;
    for (rope_tensor_t *cache : {&host_.cache.k_cache, &host_.cache.v_cache}) {
      *cache = workspace_.tensor(dtype, {pages, 4, 2, channels});
    }
    host_.cache.slots = workspace_.tensor(ROPE_DTYPE_I64, {setup.tokens});
    workspace_.fill_integers(host_.cache.slots, [](const Index &at) { return at[0]; });
  }
  if (setup.has_table) {
    const auto rotation = [](const Index &at) {
      return oracle::rotation(at[0], oracle::frequency(theta, channels, static_cast<int>(at[1])));
    };
    args.cos = workspace_.tensor(ROPE_DTYPE_F32, {setup.tokens, channels / 2});
    args.sin = workspace_.tensor(ROPE_DTYPE_F32, {setup.tokens, channels / 2});
    workspace_.fill(args.cos, [&](const Index &at) { return rotation(at).cos; });
    workspace_.fill(args.sin, [&](const Index &at) { return rotation(at).sin; });
  }
  if (setup.codes != StepCodes::None) add_codes();
  begin(setup.device_index);
}

void StepScene::add_codes() {
  rope_quant_args_t &quant = host_.quant;
  host_.args.q_out = workspace_.tensor(ROPE_DTYPE_F8_E4M3, {setup_.tokens, 3, channels});
  if (setup_.codes == StepCodes::WrittenScales) {
    quant.q_scales_out = workspace_.tensor(ROPE_DTYPE_F32, {setup_.tokens, 3, 1});
    if (!setup_.has_cache) return;
    const Shape shape = {host_.cache.k_cache.shape[0], 4, 2, 1};
    host_.cache.k_scales = workspace_.tensor(ROPE_DTYPE_F32, shape);
    host_.cache.v_scales = workspace_.tensor(ROPE_DTYPE_F8_E8M0, shape);
    return;
  }
  for (const auto &[scale, count] : {std::pair(&quant.q_scale, 3), {&quant.k_scale, 1}, {&quant.v_scale, 2}}) {
    *scale = workspace_.tensor(ROPE_DTYPE_F32, {count});
    workspace_.fill(*scale, [](const Index &at) { return Real{0.013L} * (1 + at[0]); });
  }
  if (setup_.codes != StepCodes::Amax) return;
  quant.amax_out = workspace_.tensor(ROPE_DTYPE_F32, {3});
  workspace_.fill(quant.amax_out, [](const Index &) { return Real{0}; });
}

void StepScene::use(const There &there) {
  device_ = host_;
  for (rope_tensor_t *tensor : device_.tensors()) *tensor = there(*tensor);
}

std::vector<std::pair<rope_tensor_t, rope_tensor_t>> StepScene::values() const {
  return {{host_.args.q, device_.args.q}, {host_.args.k, device_.args.k}, {host_.args.v, device_.args.v}};
}

rope_status_t StepScene::call_with(const rope_desc_t *desc, const Operands &operands, rope_stream_t stream) const {
  rope_args_t args = operands.args;
  if (setup_.norm != 0) args.norm = &operands.norm;
  if (setup_.has_cache) args.cache = &operands.cache;
  if (setup_.codes != StepCodes::None) args.quant = &operands.quant;
  return rope_forward(desc, &args, stream);
}

rope_status_t StepScene::call(rope_stream_t stream) const {
  return call_with(desc_.get(), device_, stream);
}

rope_status_t StepScene::call_rows(int64_t first, int64_t length, rope_stream_t stream) const {
  Operands part = device_;
  part.args.position_offset = first;
  for (rope_tensor_t *tensor :
       {&part.args.q, &part.args.q_out, &part.args.k, &part.args.v, &part.cache.slots, &part.quant.q_scales_out}) {
    if (tensor->ndim != 0) *tensor = narrow(*tensor, 0, first, length);
  }
  return call_with(desc_.get(), part, stream);
}

rope_status_t StepScene::call_on_cpu() const {
  Operands operands = host_;
  operands.args.flags &= ~static_cast<uint32_t>(ROPE_FLAG_PROGRAMMATIC_LAUNCH);
  return call_with(create(config_for(setup_, cpu)).get(), operands, nullptr);
}

void StepScene::move_slots(int64_t by) {
  workspace_.restore();
  workspace_.fill_integers(host_.cache.slots, [&](const Index &at) { return at[0] + by; });
  copy_to_device(host_.cache.slots, device_.cache.slots);
  expect();
}

std::string StepScene::describe() const {
  static const char *const codes[] = {"", ", codes with static scales", ", codes with written scales",
                                      ", codes and amax"};
  std::ostringstream text;
  text << "step " << oracle::dtype_name(setup_.dtype) << " style " << setup_.style << ", norm " << setup_.norm
       << " order " << setup_.norm_order << (setup_.is_turned ? "" : ", not turned")
       << (setup_.has_cache ? ", cached" : "") << (setup_.has_table ? " by tables" : "")
       << codes[static_cast<int>(setup_.codes)] << ", " << setup_.tokens << " tokens, flags " << setup_.flags
       << ", device " << setup_.device_index;
  return text.str();
}

namespace {

constexpr int64_t code_columns = 256;

swiglu_config_t config_for(const SwigluCodesSetup &setup, const Device &device) {
  swiglu_config_t config = swiglu_config_for(device);
  config.dtype = setup.dtype;
  config.quant_rounding = ROPE_QUANT_ROUND_FIRST;
  return config;
}

}  // namespace

std::vector<rope_tensor_t *> SwigluCodesScene::Operands::tensors() {
  return {&args.gate,
          &args.up,
          &args.out,
          &args.grad_out,
          &args.grad_gate,
          &args.grad_up,
          &quant.scale,
          &quant.scales_out,
          &quant.amax_out,
          &quant.grad_gate_scales_out,
          &quant.grad_up_scales_out,
          &column.amax_out,
          &column.out,
          &column.grad_gate,
          &column.grad_up,
          &column.scales_out,
          &column.grad_gate_scales_out,
          &column.grad_up_scales_out};
}

SwigluCodesScene::SwigluCodesScene(const SwigluCodesSetup &setup)
    : BitScene(setup.seed), setup_(setup), desc_(share(config_for(setup, {ROPE_DEVICE_CUDA, setup.device_index, ""}))) {
  swiglu_args_t &args = host_.args;
  const auto add_input = [&](rope_tensor_t *input) {
    *input = workspace_.tensor(setup.dtype, {setup.rows, code_columns}, Placement().at(setup.start));
  };
  const auto power_from = [&](int exponent) {
    return std::ldexp(Real{1}, exponent + static_cast<int>(workspace_.random().below(4)));
  };
  add_input(&args.gate);
  add_input(&args.up);
  workspace_.fill(args.gate, [&](const Index &) { return power_from(6); });
  workspace_.fill_normal(args.up);
  if (setup.codes == SwigluCodes::Gradients) {
    add_input(&args.grad_out);
    workspace_.fill(args.grad_out, [&](const Index &) { return power_from(0); });
  }
  args.flags = setup.flags;
  add_outputs();
  begin(setup.device_index);
}

void SwigluCodesScene::add_outputs() {
  swiglu_args_t &args = host_.args;
  swiglu_quant_args_t &quant = host_.quant;
  swiglu_column_args_t &column = host_.column;
  const int64_t rows = setup_.rows;
  const auto codes = [&](rope_dtype_t dtype, int64_t columns) {
    return workspace_.tensor(dtype, {rows, columns}, Placement().at(setup_.start));
  };
  const auto zero = [&] {
    const rope_tensor_t number = workspace_.tensor(ROPE_DTYPE_F32, {1});
    workspace_.fill(number, [](const Index &) { return Real{0}; });
    return number;
  };
  const auto scale = [&](Real value) {
    quant.scale = workspace_.tensor(ROPE_DTYPE_F32, {1});
    workspace_.fill(quant.scale, [&](const Index &) { return value; });
  };
  const auto add_mxfp8 = [&](rope_tensor_t *by_row, rope_tensor_t *row_scales, rope_tensor_t *by_column,
                             rope_tensor_t *column_scales) {
    *by_row = codes(ROPE_DTYPE_F8_E4M3, code_columns);
    *by_column = codes(ROPE_DTYPE_F8_E4M3, code_columns);
    *row_scales = workspace_.tensor(ROPE_DTYPE_F8_E8M0, {rows, code_columns / 32});
    *column_scales = workspace_.tensor(ROPE_DTYPE_F8_E8M0, {rows / 32, code_columns});
  };
  // With a largest magnitude, scales of groups have another kernel.
  if (setup_.codes != SwigluCodes::Groups) quant.amax_out = zero();
  switch (setup_.codes) {
    case SwigluCodes::StaticScale:
      args.out = codes(ROPE_DTYPE_F8_E4M3, code_columns);
      return scale(3);
    case SwigluCodes::Groups:
      args.out = codes(ROPE_DTYPE_F8_E4M3, code_columns);
      quant.scales_out = workspace_.tensor(ROPE_DTYPE_F32, {rows, code_columns / 128});
      return;
    case SwigluCodes::Pairs:
      args.out = codes(ROPE_DTYPE_F4_E2M1X2, code_columns / 2);
      quant.scales_out = workspace_.tensor(ROPE_DTYPE_F8_E4M3, {rows, code_columns / 16});
      return scale(1.3L);
    case SwigluCodes::Columns:
      add_mxfp8(&args.out, &quant.scales_out, &column.out, &column.scales_out);
      break;
    case SwigluCodes::Gradients:
      add_mxfp8(&args.grad_gate, &quant.grad_gate_scales_out, &column.grad_gate, &column.grad_gate_scales_out);
      add_mxfp8(&args.grad_up, &quant.grad_up_scales_out, &column.grad_up, &column.grad_up_scales_out);
  }
  column.amax_out = zero();
}

void SwigluCodesScene::use(const There &there) {
  device_ = host_;
  for (rope_tensor_t *tensor : device_.tensors()) *tensor = there(*tensor);
}

std::vector<std::pair<rope_tensor_t, rope_tensor_t>> SwigluCodesScene::values() const {
  return {{host_.args.up, device_.args.up}};
}

rope_status_t SwigluCodesScene::call_with(const swiglu_desc_t *desc, const Operands &operands,
                                          rope_stream_t stream) const {
  swiglu_args_t args = operands.args;
  args.quant = &operands.quant;
  if (operands.column.amax_out.ndim != 0) args.column = &operands.column;
  return setup_.codes == SwigluCodes::Gradients ? swiglu_backward(desc, &args, stream)
                                                : swiglu_forward(desc, &args, stream);
}

rope_status_t SwigluCodesScene::call(rope_stream_t stream) const {
  return call_with(desc_.get(), device_, stream);
}

rope_status_t SwigluCodesScene::call_rows(int64_t first, int64_t length, rope_stream_t stream) const {
  Operands part = device_;
  for (rope_tensor_t *tensor : part.tensors()) {
    if (tensor->ndim < 2) continue;
    // Scales of groups of rows have fewer rows.
    const int64_t group = setup_.rows / tensor->shape[0];
    *tensor = narrow(*tensor, 0, first / group, length / group);
  }
  return call_with(desc_.get(), part, stream);
}

rope_status_t SwigluCodesScene::call_on_cpu() const {
  Operands operands = host_;
  operands.args.flags = 0;
  return call_with(create(config_for(setup_, cpu)).get(), operands, nullptr);
}

std::string SwigluCodesScene::describe() const {
  static const char *const codes[] = {"codes with a static scale", "codes with scales of groups", "codes of 4 bits",
                                      "codes by row and by column", "codes of gradients"};
  std::ostringstream text;
  text << "SwiGLU " << oracle::dtype_name(setup_.dtype) << ", " << codes[static_cast<int>(setup_.codes)] << ", "
       << setup_.rows << " rows, " << setup_.start << " elements past the alignment, flags " << setup_.flags
       << ", device " << setup_.device_index;
  return text.str();
}

Scenes scenes_with_codes(rope_dtype_t dtype, int device_index) {
  Scenes scenes;
  if (dtype == ROPE_DTYPE_F64) return scenes;
  StepSetup step;
  step.dtype = dtype;
  step.device_index = device_index;
  step.seed = 20;
  for (const StepCodes codes : {StepCodes::StaticScales, StepCodes::WrittenScales, StepCodes::Amax}) {
    step.codes = codes;
    step.has_table = !step.has_table;
    ++step.seed;
    scenes.push_back(std::make_unique<StepScene>(step));
  }
  if (dtype == ROPE_DTYPE_F32) return scenes;
  SwigluCodesSetup swiglu;
  swiglu.dtype = dtype;
  swiglu.device_index = device_index;
  swiglu.seed = 30;
  // Older GPUs have several kernels for codes by column.
  const bool has_columns = compute_capability(device_index) >= 90;
  for (const SwigluCodes codes : all_swiglu_codes) {
    if (!has_columns && (codes == SwigluCodes::Columns || codes == SwigluCodes::Gradients)) continue;
    swiglu.codes = codes;
    ++swiglu.seed;
    scenes.push_back(std::make_unique<SwigluCodesScene>(swiglu));
  }
  return scenes;
}

Scenes scenes_of_each_function(rope_dtype_t dtype, int device_index) {
  Scenes scenes = scenes_with_codes(dtype, device_index);
  StepSetup step;
  step.dtype = dtype;
  step.device_index = device_index;
  for (const bool has_table : {false, true}) {
    step.has_table = has_table;
    ++step.seed;
    scenes.push_back(std::make_unique<StepScene>(step));
  }
  RopeSetup rope;
  rope.dtype = dtype;
  rope.device_index = device_index;
  SwigluSetup swiglu;
  swiglu.dtype = dtype;
  swiglu.device_index = device_index;
  for (const Direction direction : {Direction::Forward, Direction::Backward}) {
    rope.direction = swiglu.direction = direction;
    for (const bool has_table : {false, true}) {
      for (const bool is_in_place : {true, false}) {
        rope.has_table = has_table;
        rope.is_in_place = is_in_place;
        ++rope.seed;
        scenes.push_back(std::make_unique<RopeScene>(rope));
      }
    }
    ++swiglu.seed;
    scenes.push_back(std::make_unique<SwigluScene>(swiglu));
  }
  return scenes;
}
