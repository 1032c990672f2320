// SPDX-License-Identifier: Apache-2.0
// prepared_case.cpp - creates descriptors, views and references from the words of a case
#include "prepared_case.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <deque>
#include <numeric>
#include <thread>

#if defined(ROPE_BENCH_CUDA)
#include "gpu_timer.hpp"
#endif

namespace bench {

namespace {

constexpr int64_t kCheckedTokens = 16;
constexpr int64_t kCheckedRows = 4;
constexpr int64_t kDecodePositions = 8192;
constexpr double kNormEps = 1e-6;

void synchronize(rope_device_t device) {
#if defined(ROPE_BENCH_CUDA)
  if (device == ROPE_DEVICE_CUDA) gpu_synchronize();
#endif
  (void)device;
}

uint64_t scramble(uint64_t value) {
  value = (value + 1) * 0x9e3779b97f4a7c15u;
  return (value ^ (value >> 31)) * 0xbf58476d1ce4e5b9u >> 20;
}

// The first index, the last one, and some in between with irregular distances.
std::vector<int64_t> samples_of(int64_t count, int64_t wanted) {
  std::vector<int64_t> samples;
  if (count <= wanted) {
    for (int64_t i = 0; i < count; ++i) samples.push_back(i);
    return samples;
  }
  for (int64_t i = 0; i < wanted; ++i) {
    const int64_t begin = count * i / wanted, end = count * (i + 1) / wanted;
    samples.push_back(begin +
                      static_cast<int64_t>(scramble(static_cast<uint64_t>(i)) % static_cast<uint64_t>(end - begin)));
  }
  samples.front() = 0;
  samples.back() = count - 1;
  return samples;
}

// The relative 2-norm of rounding errors for the type; 1.6e-3, 2e-4 and, with fp32 arithmetic, 1e-7 were measured.
double allowed_error(rope_dtype_t dtype) {
  switch (dtype) {
    case ROPE_DTYPE_BF16:
      return 2.5e-3;
    case ROPE_DTYPE_F16:
      return 4e-4;
    case ROPE_DTYPE_F8_E4M3:
      return 4e-2;
    case ROPE_DTYPE_F4_E2M1X2:
      return 1.5e-1;
    default:
      return 1e-6;
  }
}

// The least precise type that a case writes.
rope_dtype_t written_dtype_of(const Case &item) {
  return item.code_dtype != 0 ? item.code_dtype : item.dtype;
}

// The rounding error of one number below 1.
double table_error(rope_dtype_t dtype) {
  switch (dtype) {
    case ROPE_DTYPE_BF16:
      return 2.1e-3;
    case ROPE_DTYPE_F16:
      return 2.6e-4;
    default:
      return 2e-7;
  }
}

void require_accuracy(const Accuracy &accuracy, double allowed) {
  if (accuracy.relative() <= allowed) return;
  char text[160];
  std::snprintf(text, sizeof text, "wrong result: relative error %.2e, largest %.2e; %.1e is allowed",
                accuracy.relative(), accuracy.largest(), allowed);
  throw std::runtime_error(text);
}

rope_tensor_t tensor(void *data, rope_dtype_t dtype, std::initializer_list<int64_t> shape) {
  rope_tensor_t result = {};
  result.data = data;
  result.dtype = dtype;
  for (int64_t length : shape) result.shape[result.ndim++] = length;
  return result;
}

rope_tensor_t narrowed(const rope_tensor_t &source, int dim, int64_t start, int64_t length) {
  rope_tensor_t view;
  require(rope_tensor_narrow(&source, dim, start, length, &view));
  return view;
}

// ---- RoPE ----

constexpr float kCodeScale = 0x1p-5f;

class PreparedRope : public PreparedCase {
 public:
  PreparedRope(const Case &item, Memory &memory, int sets) : item_(item), memory_(memory) {
    fill_config();
    norm_.struct_size = sizeof norm_;
    const auto begin = std::chrono::steady_clock::now();
    one_.desc = created(config_);
    create_us_ = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
    fill_positions();
    make_table();
    if (item_.weight_dtype != 0) make_weights();
    if (item_.code_dtype != 0) make_scales();
    if (item_.cache != CacheLayout::kNone) make_slots();
    for (int i = 0; i < sets; ++i) one_.args.push_back(make_args());
    if (item_.is_beside_separate) make_separate();
  }

  void create_once() const override { created(config_); }

  void call(int set, rope_stream_t stream) const override {
    const rope_args_t *args = &one_.args[static_cast<size_t>(set)];
    require(item_.is_backward ? rope_backward(one_.desc.get(), args, stream)
                              : rope_forward(one_.desc.get(), args, stream));
  }

  void call_separately(int set, rope_stream_t stream) const override {
    for (const Calls &part : separate_)
      require(rope_forward(part.desc.get(), &part.args[static_cast<size_t>(set)], stream));
  }

  std::string explanation() const override {
    char text[256] = "";
    return rope_explain(one_.desc.get(), &one_.args[0], text, sizeof text) == ROPE_STATUS_SUCCESS ? text : "";
  }

  Accuracy check() const override {
    const Accuracy accuracy = accuracy_of(false);
    // cos or sin, a product and a sum are rounded, instead of only a sum.
    const double roundings_of_call = item_.rounds_each ? 3 : 1;
    require_accuracy(accuracy, allowed_error(written_dtype_of(item_)) * std::sqrt(num_repeats() * roundings_of_call));
    if (!separate_.empty()) {
      // Each call rounds its results.
      const double roundings = static_cast<double>(separate_.size()) * num_repeats();
      require_accuracy(accuracy_of(true), allowed_error(written_dtype_of(item_)) * std::sqrt(roundings));
    }
    return accuracy;
  }

 private:
  using Heads = std::vector<std::vector<double>>;  // one token after another
  using Descriptor = std::unique_ptr<rope_desc_t, void (*)(rope_desc_t *)>;

  struct Calls {
    Descriptor desc{nullptr, rope_desc_destroy};
    std::vector<rope_args_t> args;  // one per set
  };

  struct Block {
    void *data;
    size_t bytes;
  };

  static Descriptor created(const rope_config_t &config) {
    rope_desc_t *desc = nullptr;
    require(rope_desc_create(&config, &desc));
    return Descriptor(desc, rope_desc_destroy);
  }

  // Overlapping launches must wait for each other, which a single launch cannot test.
  int num_repeats() const { return item_.is_programmatic && !item_.is_out_of_place ? 4 : 1; }

  Accuracy accuracy_of(bool is_separate) const {
    const int repeats = num_repeats();
    const rope_args_t &args = one_.args[0];
    const std::vector<int64_t> tokens = samples_of(num_tokens(), kCheckedTokens);
    const rope_tensor_t absent = {};
    const bool has_pass = args.input != nullptr;
    const Heads q = read_joined(args.q, has_pass ? args.input->q_pass : absent, item_.q_heads, tokens),
                k = read_joined(args.k, has_pass ? args.input->k_pass : absent, item_.k_heads, tokens);
    const Heads v = read_heads(args.v, {}, item_.v_heads, tokens);
    Backward of_q, of_k;
    if (item_.is_backward) {
      of_q = read_backward(args.norm != nullptr ? args.norm->q_in : absent, args.q, args.q_out, item_.q_heads, tokens);
      of_k = read_backward(args.norm != nullptr ? args.norm->k_in : absent, args.k, args.k_out, item_.k_heads, tokens);
    }
    if (item_.has_weight_gradients) zero_sums();
    for (const Block &output : outputs_) {
      if (!item_.accumulates) memory_.poison(output.data, output.bytes);
    }
    synchronize(memory_.device());
    for (int i = 0; i < repeats; ++i) is_separate ? call_separately(0, memory_.stream()) : call(0, memory_.stream());
    synchronize(memory_.device());

    Accuracy accuracy;
    const rope_tensor_t &q_out = args.q_out.ndim != 0 ? args.q_out : args.q;
    const rope_tensor_t &q_scales = args.quant != nullptr ? args.quant->q_scales_out : absent;
    compare(q, read_heads(q_out, q_scales, item_.q_heads, tokens), item_.q_heads, tokens, repeats, q_weights_, of_q,
            &accuracy);
    // Each separate call finds in k the result of the previous one.
    const int k_repeats = item_.has_k_out || is_separate ? repeats : 1;
    if (item_.has_k_out) {
      const rope_tensor_t &k_out = args.k_out.ndim != 0 ? args.k_out : args.k;
      compare(k, read_heads(k_out, {}, item_.k_heads, tokens), item_.k_heads, tokens, k_repeats, k_weights_, of_k,
              &accuracy);
    }
    if (item_.cache != CacheLayout::kNone) {
      const rope_cache_args_t &cache = *args.cache;
      compare(k, read_cached(cache.k_cache, cache.k_scales, tokens), item_.k_heads, tokens, k_repeats, k_weights_, {},
              &accuracy);
      if (item_.v_heads > 0) {
        compare(v, read_cached(cache.v_cache, cache.v_scales, tokens), item_.v_heads, tokens, 0, {}, {}, &accuracy);
      }
    }
    if (item_.has_weight_gradients && repeats == 1) {
      check_sums(of_q, item_.q_heads, q_weights_, args.norm->grad_q_weight);
      check_sums(of_k, item_.k_heads, k_weights_, args.norm->grad_k_weight);
    }
    return accuracy;
  }

  // Inputs of backward beside the gradients, for the checked tokens, and both parts for the first run.
  struct Backward {
    Heads inputs;  // of the norm
    Heads held;    // initial contents of outputs that are added to
    Heads run_gradients, run_inputs;
  };

  Backward read_backward(const rope_tensor_t &inputs, const rope_tensor_t &gradients, const rope_tensor_t &outputs,
                         int64_t num_heads, const std::vector<int64_t> &tokens) const {
    Backward backward;
    if (item_.accumulates) backward.held = read_heads(outputs, {}, num_heads, tokens);
    if (!is_norm_gradient(item_)) return backward;
    backward.inputs = read_heads(inputs, {}, num_heads, tokens);
    if (item_.has_weight_gradients) {
      const std::vector<int64_t> of_run = first_run();
      backward.run_gradients = read_heads(gradients, {}, num_heads, of_run);
      backward.run_inputs = read_heads(inputs, {}, num_heads, of_run);
    }
    return backward;
  }

  int64_t num_runs() const {
#if defined(ROPE_BENCH_CUDA)
    if (memory_.device() == ROPE_DEVICE_CUDA) return 4 * gpu().num_multiprocessors;
#endif
    return 4 * (item_.num_threads > 0 ? item_.num_threads : static_cast<int>(std::thread::hardware_concurrency()));
  }

  std::vector<int64_t> first_run() const {
    std::vector<int64_t> tokens(static_cast<size_t>((num_tokens() - 1) / num_runs() + 1));
    std::iota(tokens.begin(), tokens.end(), 0);
    return tokens;
  }

  void zero_sums() const {
    for (const rope_tensor_t &sums : {one_.args[0].norm->grad_q_weight, one_.args[0].norm->grad_k_weight}) {
      const std::vector<float> zeros(static_cast<size_t>(num_runs() * item_.head_dim));
      memory_.upload(sums.data, zeros.data(), zeros.size() * sizeof(float));
    }
  }

  // Checks the sums of the first run. Sums of many terms of either sign are less accurate than one term.
  void check_sums(const Backward &backward, int64_t num_heads, const std::vector<double> &weights,
                  const rope_tensor_t &sums) const {
    std::vector<double> exact(static_cast<size_t>(item_.head_dim)), cosine, sine;
    std::vector<int64_t> indices(exact.size());
    std::iota(indices.begin(), indices.end(), 0);
    for (const int64_t token : first_run()) {
      const auto begin = static_cast<std::ptrdiff_t>(token * num_heads);
      const auto heads_in = [&](const Heads &heads) {
        return Heads(heads.begin() + begin, heads.begin() + begin + num_heads);
      };
      angles_of(token, &cosine, &sine);
      Heads gradients = heads_in(backward.run_gradients);
      take_back(cosine, sine, weights, heads_in(backward.run_inputs), &gradients, &exact);
    }
    const std::vector<double> got = memory_.read(sums.data, sums.dtype, indices);
    Accuracy accuracy;
    for (size_t channel = 0; channel < exact.size(); ++channel) accuracy.add(got[channel], exact[channel]);
    require_accuracy(accuracy, 1e-5);
  }

  // Propagates a token's gradients through a norm, and adds to the gradients of the weights, if there are any.
  void take_back(const std::vector<double> &cosine, const std::vector<double> &sine, const std::vector<double> &weights,
                 Heads inputs, Heads *gradients, std::vector<double> *of_weights) const {
    const bool is_after = item_.norm_order == ROPE_NORM_ORDER_AFTER;
    const NormForm form = {item_.norm, item_.norm_extent, kNormEps};
    const auto turn = [&](bool is_backward, Heads *heads) {
      for (std::vector<double> &head : *heads) head = rotated(window_of(is_backward), cosine, sine, head);
    };
    turn(!is_after, is_after ? &inputs : gradients);
    norm_gradient(form, weights, inputs, gradients, of_weights);
    if (is_after) turn(true, gradients);
  }

  void fill_config() {
    config_.struct_size = sizeof config_;
    config_.device = memory_.device();
    config_.dtype = item_.dtype;
    config_.layout = item_.layout;
    config_.style = item_.style;
    config_.out_style = item_.out_style;
    config_.rotation_rounding = item_.rounds_each ? ROPE_ROTATION_ROUND_EACH : 0;
    config_.head_dim = item_.head_dim;
    config_.rotary_dim = item_.rotary_dim;
    config_.rotary_offset = item_.rotary_offset;
    config_.theta = item_.theta;
    config_.num_threads = memory_.device() == ROPE_DEVICE_CPU ? item_.num_threads : 0;
    config_.norm = item_.norm;
    config_.norm_order = item_.norm_order;
    config_.norm_extent = item_.norm_extent;
    config_.norm_eps = item_.norm != 0 ? kNormEps : 0;
    const int num_pairs = item_.rotary_dim / 2;
    for (int i = 0; i < num_pairs; ++i) inv_freq_.push_back(std::pow(item_.theta, -2.0 * i / item_.rotary_dim));
    pair_axis_.assign(static_cast<size_t>(num_pairs), 0);
    if (item_.has_yarn) {
      rope_scaling_t scaling = {};
      scaling.struct_size = sizeof scaling;
      scaling.type = ROPE_SCALING_YARN;
      scaling.flags = ROPE_SCALING_FLAG_NO_TRUNCATE;
      scaling.factor = 32;
      scaling.original_max_position = 4096;
      // 0, because repeated rotation in place with a factor above 1 would end at infinity.
      double attention_scale = 0;
      require(rope_scaled_frequencies(item_.rotary_dim, item_.theta, &scaling, inv_freq_.data(), &attention_scale));
      config_.inv_freq = inv_freq_.data();
    }
    if (item_.axes != Axes::kOne) {
      rope_sections_t sections = {};
      sections.struct_size = sizeof sections;
      if (item_.axes == Axes::kMrope) {
        // Qwen2-VL's 16, 24, 24 of 64 pairs.
        sections.type = ROPE_SECTIONS_CHUNKED;
        sections.num_sections = 3;
        sections.section[0] = num_pairs / 4;
        sections.section[1] = num_pairs * 3 / 8;
        sections.section[2] = num_pairs - sections.section[0] - sections.section[1];
      } else {
        sections.type = ROPE_SECTIONS_RESTARTED;
        sections.num_sections = 2;
        sections.section[0] = num_pairs / 2;
        sections.section[1] = num_pairs - num_pairs / 2;
        config_.pair_block = item_.rotary_dim / 2;
      }
      require(rope_section_axes(item_.rotary_dim, item_.theta, &sections, pair_axis_.data(), inv_freq_.data()));
      config_.inv_freq = inv_freq_.data();
      config_.pair_axis = pair_axis_.data();
      config_.num_axes = sections.num_sections;
    }
  }

  size_t num_axes() const {
    return static_cast<size_t>(config_.num_axes > 0 ? config_.num_axes : 1);
  }
  int64_t num_tokens() const {
    return item_.batches * item_.tokens;
  }

  // Sequences of different lengths that contain all tokens.
  void fill_sequences() {
    const int64_t count = item_.num_sequences;
    int64_t weights = 0, begun = 0;
    for (int64_t i = 0; i < count; ++i) weights += 1 + i * 5 % count;
    for (int64_t i = 0; i <= count; ++i) {
      sequences_.push_back(static_cast<int32_t>(item_.tokens * begun / weights));
      begun += 1 + i * 5 % count;
    }
  }

  // Sets every token's position on every axis, and the tensor of positions.
  void fill_positions() {
    if (item_.num_sequences > 0) fill_sequences();
    for (size_t axis = 0; axis < num_axes(); ++axis) {
      for (int64_t token = 0; token < num_tokens(); ++token) {
        int64_t position = item_.has_row_per_token ? token : token % item_.tokens;
        if (item_.num_sequences > 0) {
          position -= *(std::upper_bound(sequences_.begin(), sequences_.end(), static_cast<int32_t>(token)) - 1);
        } else if (item_.measure == Measure::kResident || item_.measure == Measure::kLatency) {
          position = static_cast<int64_t>(scramble(static_cast<uint64_t>(token)) % kDecodePositions);
        } else if (num_axes() > 1) {
          // A picture with 64 columns, in frames of 4096 tokens.
          position = axis == 0 && num_axes() == 3 ? position / 4096
                     : axis + 1 == num_axes()     ? position % 64
                                                  : position / 64 % 64;
        }
        positions_.push_back(position);
      }
    }
    num_rows_ = *std::max_element(positions_.begin(), positions_.end()) + 1;
    if (item_.measure == Measure::kResident) num_rows_ = kDecodePositions;
    if (item_.position_dtype != 0) {
      position_tensor_ = make_integers(positions_, item_.position_dtype);
      if (num_axes() > 1) position_tensor_.shape[position_tensor_.ndim++] = static_cast<int64_t>(num_axes());
      if (item_.layout != ROPE_LAYOUT_THD) position_tensor_.shape[position_tensor_.ndim++] = item_.batches;
      position_tensor_.shape[position_tensor_.ndim++] = item_.tokens;
    }
    if (item_.num_sequences > 0) {
      void *memory = memory_.allocate(sequences_.size() * sizeof(int32_t));
      memory_.upload(memory, sequences_.data(), sequences_.size() * sizeof(int32_t));
      sequence_tensor_ = tensor(memory, ROPE_DTYPE_I32, {static_cast<int64_t>(sequences_.size())});
    }
  }

  // A tensor without a shape.
  rope_tensor_t make_integers(const std::vector<int64_t> &values, rope_dtype_t dtype) {
    const size_t bytes = values.size() * static_cast<size_t>(size_of(dtype));
    void *memory = memory_.allocate(bytes);
    if (dtype == ROPE_DTYPE_I64) {
      memory_.upload(memory, values.data(), bytes);
    } else {
      const std::vector<int32_t> narrow(values.begin(), values.end());
      memory_.upload(memory, narrow.data(), bytes);
    }
    return tensor(memory, dtype, {});
  }

  // cos and sin side by side in one row, as in serving engines.
  void make_table() {
    if (item_.angles == Angles::kComputed) return;
    const rope_dtype_t dtype = item_.angles == Angles::kTableF32 ? ROPE_DTYPE_F32 : item_.dtype;
    const int64_t width = item_.rotary_dim;
    void *memory = memory_.allocate(static_cast<size_t>(num_rows_ * width * size_of(dtype)));
    table_ = tensor(memory, dtype, {num_rows_, width});
    const rope_tensor_t cosine = narrowed(table_, 1, 0, width / 2), sine = narrowed(table_, 1, width / 2, width / 2);
    require(rope_fill_tables(one_.desc.get(), &cosine, &sine, memory_.stream()));
    synchronize(memory_.device());
  }

  // Weights have magnitude 1: with others, after many calls in place only the largest values would remain.
  void make_weights() {
    for (const bool is_k : {false, true}) {
      std::vector<double> &weights = is_k ? k_weights_ : q_weights_;
      for (int i = 0; i < item_.head_dim; ++i)
        weights.push_back((scramble(static_cast<uint64_t>(2 * i + is_k)) & 1) != 0 ? 1 : -1);
      void *memory = memory_.allocate(weights.size() * static_cast<size_t>(size_of(item_.weight_dtype)));
      upload_weights(weights, memory);
      (is_k ? norm_.k_weight : norm_.q_weight) = tensor(memory, item_.weight_dtype, {item_.head_dim});
    }
  }

  void make_scales() {
    quant_.struct_size = sizeof quant_;
    if (item_.has_written_scales) return;
    void *memory = memory_.allocate(sizeof kCodeScale);
    memory_.upload(memory, &kCodeScale, sizeof kCodeScale);
    quant_.k_scale = tensor(memory, ROPE_DTYPE_F32, {1});
    if (item_.v_heads > 0) quant_.v_scale = quant_.k_scale;
    if (item_.has_code_q) quant_.q_scale = quant_.k_scale;
  }

  void upload_weights(const std::vector<double> &weights, void *memory) {
    if (item_.weight_dtype == ROPE_DTYPE_F32) {
      const std::vector<float> words(weights.begin(), weights.end());
      return memory_.upload(memory, words.data(), words.size() * sizeof(float));
    }
    const unsigned one = item_.weight_dtype == ROPE_DTYPE_BF16 ? 0x3f80 : 0x3c00;
    std::vector<uint16_t> words;
    for (const double weight : weights) words.push_back(static_cast<uint16_t>(one | (weight < 0 ? 0x8000u : 0u)));
    memory_.upload(memory, words.data(), words.size() * sizeof(uint16_t));
  }

  // Pages in random order, half of them unused; or for each token an entry of a separate page.
  void make_slots() {
    std::vector<int64_t> pages(static_cast<size_t>(item_.cache_pages));
    std::iota(pages.begin(), pages.end(), 0);
    for (size_t i = pages.size(); i > 1; --i) std::swap(pages[i - 1], pages[scramble(i) % i]);
    for (int64_t token = 0; token < num_tokens(); ++token) {
      const bool is_alone = item_.has_page_per_token;
      const int64_t page = pages[static_cast<size_t>(is_alone ? token : token / kPageEntries)];
      const int64_t entry = is_alone ? static_cast<int64_t>(scramble(static_cast<uint64_t>(token))) : token;
      slots_.push_back(page * kPageEntries + entry % kPageEntries);
    }
    if (item_.has_page_table) {
      make_page_table();
      return;
    }
    cache_.slots = make_integers(slots_, item_.slot_dtype);
    if (item_.layout != ROPE_LAYOUT_THD) cache_.slots.shape[cache_.slots.ndim++] = item_.batches;
    cache_.slots.shape[cache_.slots.ndim++] = item_.tokens;
  }

  // The page table for slots_: one sequence of many pages, or one sequence of a single page for each token.
  void make_page_table() {
    std::vector<int64_t> pages, sequences, positions;
    const int64_t step = item_.has_page_per_token ? 1 : kPageEntries;
    for (int64_t token = 0; token < num_tokens(); ++token) {
      const int64_t slot = slots_[static_cast<size_t>(token)];
      if (token % step == 0) pages.push_back(slot / kPageEntries);
      sequences.push_back(item_.has_page_per_token ? token : 0);
      positions.push_back(item_.has_page_per_token ? slot % kPageEntries : token);
    }
    const int64_t rows = item_.has_page_per_token ? num_tokens() : 1, count = static_cast<int64_t>(pages.size());
    const auto with_shape = [&](const std::vector<int64_t> &values, std::initializer_list<int64_t> shape) {
      return tensor(make_integers(values, item_.slot_dtype).data, item_.slot_dtype, shape);
    };
    cache_.page_table = with_shape(pages, {rows, count / rows});
    cache_.sequence = with_shape(sequences, {num_tokens()});
    cache_.positions = with_shape(positions, {num_tokens()});
  }

  // q, k or their outputs: compact heads of `pitch` channels.
  rope_tensor_t make_tensor(int64_t num_heads, int64_t pitch) {
    return make_tensor(item_.dtype, num_heads, pitch);
  }

  rope_tensor_t make_tensor(rope_dtype_t dtype, int64_t num_heads, int64_t pitch) {
    rope_tensor_t result = tensor(nullptr, dtype, {});
    if (item_.layout == ROPE_LAYOUT_THD) result = tensor(nullptr, dtype, {item_.tokens, num_heads, pitch});
    if (item_.layout == ROPE_LAYOUT_BSHD)
      result = tensor(nullptr, dtype, {item_.batches, item_.tokens, num_heads, pitch});
    if (item_.layout == ROPE_LAYOUT_SBHD)
      result = tensor(nullptr, dtype, {item_.tokens, item_.batches, num_heads, pitch});
    if (item_.layout == ROPE_LAYOUT_BHSD)
      result = tensor(nullptr, dtype, {item_.batches, num_heads, item_.tokens, pitch});
    const size_t bytes = static_cast<size_t>(num_tokens() * num_heads * pitch * size_of(dtype));
    result.data = memory_.allocate(bytes);
    memory_.fill(result.data, bytes, item_.dtype);
    return result;
  }

  int head_axis() const {
    return item_.layout == ROPE_LAYOUT_THD || item_.layout == ROPE_LAYOUT_BHSD ? 1 : 2;
  }

  rope_args_t make_args() {
    rope_args_t args = {};
    args.struct_size = sizeof args;
    args.flags = launch_flag();
    if (item_.is_unrotated) args.flags |= ROPE_FLAG_UNROTATED;
    if (item_.accumulates) args.flags |= ROPE_FLAG_ACCUMULATE;
    if (item_.v_heads > 0) args.flags |= ROPE_FLAG_V_UNROTATED;
    if (item_.is_packed) {
      const rope_tensor_t qkv = make_tensor(item_.q_heads + 2 * item_.k_heads, item_.head_dim);
      args.q = narrowed(qkv, head_axis(), 0, item_.q_heads);
      args.k = narrowed(qkv, head_axis(), item_.q_heads, item_.k_heads);
      if (item_.v_heads > 0) args.v = narrowed(qkv, head_axis(), item_.q_heads + item_.k_heads, item_.v_heads);
    } else {
      const bool has_pass = item_.pass != Pass::kNone;
      const int q_channels = has_pass ? item_.rotary_dim : item_.head_dim;
      const int64_t q_pitch = item_.pass == Pass::kAll ? item_.rotary_dim : item_.q_pitch;
      if (item_.q_heads > 0) args.q = make_tensor(item_.q_heads, q_pitch);
      if (q_pitch != q_channels) args.q = narrowed(args.q, args.q.ndim - 1, item_.q_from, q_channels);
      if (item_.k_heads > 0) args.k = make_tensor(item_.k_heads, q_channels);
      if (has_pass) args.input = make_pass();
      if (item_.v_heads > 0) args.v = make_tensor(item_.v_heads, item_.head_dim);
    }
    if (item_.is_out_of_place) {
      args.q_out = make_output(item_.has_code_q ? item_.code_dtype : item_.dtype, item_.q_heads);
      if (item_.k_heads > 0 && item_.has_k_out) args.k_out = make_output(item_.dtype, item_.k_heads);
    } else if (item_.cache != CacheLayout::kNone && item_.has_k_out) {
      args.k_out = args.k;
    }
    if (item_.norm != 0) args.norm = is_norm_gradient(item_) ? make_gradients() : &norm_;
    if (item_.cache != CacheLayout::kNone) args.cache = make_cache();
    if (item_.code_dtype != 0) args.quant = make_quant();
    args.positions = position_tensor_;
    args.cu_seqlens = sequence_tensor_;
    if (table_.ndim != 0) {
      const int64_t width = item_.rotary_dim;
      rope_tensor_t rows = table_;
      if (item_.has_row_per_token) {
        args.table_rows = ROPE_TABLE_BY_TOKEN;
        if (item_.layout != ROPE_LAYOUT_THD) {
          rows = tensor(table_.data, table_.dtype, {item_.batches, item_.tokens, width});
        }
      }
      args.cos = narrowed(rows, rows.ndim - 1, 0, width / 2);
      args.sin = narrowed(rows, rows.ndim - 1, width / 2, width / 2);
    }
    return args;
  }

  uint32_t launch_flag() const {
    return item_.is_programmatic ? ROPE_FLAG_PROGRAMMATIC_LAUNCH : 0;
  }

  void keep_output(rope_dtype_t dtype, void *data, int64_t elements) {
    const bool is_checked = one_.args.empty();
    if (is_checked) outputs_.push_back({data, static_cast<size_t>(elements * size_of(dtype))});
  }

  rope_tensor_t make_output(rope_dtype_t dtype, int64_t num_heads) {
    const rope_tensor_t result = make_tensor(dtype, num_heads, item_.head_dim);
    keep_output(dtype, result.data, num_tokens() * num_heads * item_.head_dim);
    return result;
  }

  // [P, E, H, D] with rows of `pitch` channels.
  rope_tensor_t make_pages(int64_t num_heads, int64_t pitch) {
    const int64_t heads_of_page = kPageEntries * num_heads, elements = item_.cache_pages * heads_of_page * pitch;
    const rope_dtype_t dtype = written_dtype_of(item_);
    void *memory = memory_.allocate(static_cast<size_t>(elements * size_of(dtype)));
    keep_output(dtype, memory, elements);
    rope_tensor_t pages = tensor(memory, dtype, {item_.cache_pages, kPageEntries, num_heads, item_.head_dim});
    pages.flags = ROPE_TENSOR_STRIDED;
    const bool is_nhd = item_.cache == CacheLayout::kNhd;
    pages.stride[0] = heads_of_page * pitch;
    pages.stride[1] = is_nhd ? num_heads * pitch : pitch;
    pages.stride[2] = is_nhd ? pitch : kPageEntries * pitch;
    pages.stride[3] = 1;
    return pages;
  }

  const rope_cache_args_t *make_cache() {
    rope_cache_args_t cache = cache_;
    cache.struct_size = sizeof cache;
    if (item_.cache == CacheLayout::kPacked) {
      cache.k_cache = cache.v_cache = make_pages(item_.k_heads, 2 * item_.head_dim);
      cache.v_cache.data = static_cast<char *>(cache.v_cache.data) + item_.head_dim * size_of(cache.v_cache.dtype);
    } else {
      cache.k_cache = make_pages(item_.k_heads, item_.head_dim);
      if (item_.v_heads > 0) cache.v_cache = make_pages(item_.v_heads, item_.head_dim);
    }
    if (item_.has_written_scales) {
      cache.k_scales = make_written_scales({item_.cache_pages, kPageEntries, item_.k_heads, 1});
      cache.v_scales = make_written_scales({item_.cache_pages, kPageEntries, item_.v_heads, 1});
    }
    caches_.push_back(cache);
    return &caches_.back();
  }

  const rope_norm_args_t *make_gradients() {
    rope_norm_args_t norm = norm_;
    if (item_.q_heads > 0) norm.q_in = make_tensor(item_.q_heads, item_.head_dim);
    if (item_.k_heads > 0) norm.k_in = make_tensor(item_.k_heads, item_.head_dim);
    if (item_.has_weight_gradients) {
      norm.grad_q_weight = make_sums();
      norm.grad_k_weight = make_sums();
    }
    norms_.push_back(norm);
    return &norms_.back();
  }

  rope_tensor_t make_sums() {
    const std::vector<float> zeros(static_cast<size_t>(num_runs() * item_.head_dim));
    void *memory = memory_.allocate(zeros.size() * sizeof(float));
    memory_.upload(memory, zeros.data(), zeros.size() * sizeof(float));
    return tensor(memory, ROPE_DTYPE_F32, {num_runs(), item_.head_dim});
  }

  const rope_input_args_t *make_pass() {
    const int channels = item_.head_dim - item_.rotary_dim;
    rope_input_args_t input = {};
    input.struct_size = sizeof input;
    if (item_.pass == Pass::kAll) input.q_pass = make_tensor(item_.q_heads, channels);
    input.k_pass = make_tensor(item_.k_heads, channels);
    inputs_.push_back(input);
    return &inputs_.back();
  }

  const rope_quant_args_t *make_quant() {
    rope_quant_args_t quant = quant_;
    if (item_.has_written_scales && item_.has_code_q) {
      quant.q_scales_out = make_written_scales({num_tokens(), item_.q_heads, 1});
    }
    quants_.push_back(quant);
    return &quants_.back();
  }

  rope_tensor_t make_written_scales(std::initializer_list<int64_t> shape) {
    int64_t elements = 1;
    for (const int64_t extent : shape) elements *= extent;
    void *memory = memory_.allocate(static_cast<size_t>(elements * size_of(ROPE_DTYPE_F32)));
    keep_output(ROPE_DTYPE_F32, memory, elements);
    return tensor(memory, ROPE_DTYPE_F32, shape);
  }

  // Separate calls, as far as the case needs them: the norm in place, the rotation in place, the cache.
  void make_separate() {
    rope_config_t config = config_;
    if (item_.norm != 0) {
      add_separate(config, [&](rope_args_t *part, const rope_args_t &all) {
        part->flags |= ROPE_FLAG_UNROTATED;
        part->q = all.q;
        part->k = all.k;
        part->norm = all.norm;
      });
    }
    config.norm = 0;
    config.norm_order = config.norm_extent = 0;
    config.norm_eps = 0;
    if (!item_.is_unrotated) {
      add_separate(config, [&](rope_args_t *part, const rope_args_t &all) {
        *part = all;
        part->flags &= ~static_cast<uint32_t>(ROPE_FLAG_V_UNROTATED);
        part->v = part->k_out = {};
        part->norm = nullptr;
        part->cache = nullptr;
        part->quant = nullptr;
      });
      if (item_.norm_order == ROPE_NORM_ORDER_AFTER && item_.norm != 0) std::swap(separate_[0], separate_[1]);
    }
    if (item_.cache != CacheLayout::kNone) {
      add_separate(config, [&](rope_args_t *part, const rope_args_t &all) {
        part->flags |= ROPE_FLAG_UNROTATED;
        part->k = all.k;
        part->v = all.v;
        part->cache = all.cache;
        part->quant = all.quant;
      });
    }
  }

  template <typename Take>
  void add_separate(const rope_config_t &config, const Take &take) {
    Calls part;
    part.desc = created(config);
    for (const rope_args_t &all : one_.args) {
      rope_args_t args = {};
      args.struct_size = sizeof args;
      args.flags = launch_flag();
      take(&args, all);
      part.args.push_back(args);
    }
    separate_.push_back(std::move(part));
  }

  // The index of channel 0 of a token's head, in elements from `data`.
  int64_t place_of(const rope_tensor_t &heads, int64_t token, int64_t head) const {
    int64_t stride[4] = {};
    int64_t compact = 1;
    for (int axis = heads.ndim - 1; axis >= 0; --axis) {
      stride[axis] = (heads.flags & ROPE_TENSOR_STRIDED) != 0 ? heads.stride[axis] : compact;
      compact *= heads.shape[axis];
    }
    const int64_t b = token / item_.tokens, s = token % item_.tokens;
    switch (item_.layout) {
      case ROPE_LAYOUT_BSHD:
        return b * stride[0] + s * stride[1] + head * stride[2];
      case ROPE_LAYOUT_SBHD:
        return s * stride[0] + b * stride[1] + head * stride[2];
      case ROPE_LAYOUT_BHSD:
        return b * stride[0] + head * stride[1] + s * stride[2];
      default:
        return s * stride[0] + head * stride[1];
    }
  }

  Heads read_heads(const rope_tensor_t &from, const rope_tensor_t &scales, int64_t num_heads,
                   const std::vector<int64_t> &tokens) const {
    std::vector<int64_t> firsts, places;
    for (int64_t token : tokens) {
      for (int64_t head = 0; head < num_heads; ++head) {
        firsts.push_back(place_of(from, token, head));
        places.push_back(token * num_heads + head);
      }
    }
    return read_rows(from, firsts, scales, places);
  }

  // Combines the window with the channels of `pass` around it.
  Heads read_joined(const rope_tensor_t &from, const rope_tensor_t &pass, int64_t num_heads,
                    const std::vector<int64_t> &tokens) const {
    Heads heads = read_heads(from, {}, num_heads, tokens);
    if (pass.ndim == 0) return heads;
    const Heads others = read_heads(pass, {}, num_heads, tokens);
    for (size_t i = 0; i < heads.size(); ++i) {
      const auto behind = others[i].begin() + item_.rotary_offset;
      heads[i].insert(heads[i].begin(), others[i].begin(), behind);
      heads[i].insert(heads[i].end(), behind, others[i].end());
    }
    return heads;
  }

  Heads read_cached(const rope_tensor_t &pages, const rope_tensor_t &scales, const std::vector<int64_t> &tokens) const {
    std::vector<int64_t> firsts, places;
    for (int64_t token : tokens) {
      const int64_t slot = slots_[static_cast<size_t>(token)];
      const int64_t place = slot / kPageEntries * pages.stride[0] + slot % kPageEntries * pages.stride[1];
      for (int64_t head = 0; head < pages.shape[2]; ++head) {
        firsts.push_back(place + head * pages.stride[2]);
        places.push_back(slot * pages.shape[2] + head);
      }
    }
    return read_rows(pages, firsts, scales, places);
  }

  // Heads by the indices of their first channels, and of their scales if these were written.
  Heads read_rows(const rope_tensor_t &from, const std::vector<int64_t> &firsts, const rope_tensor_t &scales,
                  const std::vector<int64_t> &places) const {
    std::vector<int64_t> indices;
    Heads heads;
    if (firsts.empty()) return heads;
    const int64_t channels = from.shape[from.ndim - 1];
    for (const int64_t first : firsts) {
      for (int64_t channel = 0; channel < channels; ++channel) indices.push_back(first + channel);
    }
    std::vector<double> values = memory_.read(from.data, from.dtype, indices);
    if (from.dtype == item_.code_dtype) {
      const bool are_written = scales.ndim != 0;
      const std::vector<double> written =
          are_written ? memory_.read(scales.data, scales.dtype, places) : std::vector<double>();
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] *= are_written ? written[i / static_cast<size_t>(channels)] : double{kCodeScale};
      }
    }
    for (auto at = values.begin(); at != values.end(); at += channels) heads.emplace_back(at, at + channels);
    return heads;
  }

  void angles_of(int64_t token, std::vector<double> *cosine, std::vector<double> *sine) const {
    const size_t num_pairs = inv_freq_.size();
    std::vector<int64_t> indices;
    cosine->assign(item_.is_unrotated ? num_pairs : 0, 1);
    sine->assign(item_.is_unrotated ? num_pairs : 0, 0);
    if (item_.is_unrotated) return;
    for (size_t i = 0; i < num_pairs; ++i) {
      const int64_t position = positions_[static_cast<size_t>(pair_axis_[i] * num_tokens() + token)];
      cosine->push_back(std::cos(static_cast<double>(position) * inv_freq_[i]));
      sine->push_back(std::sin(static_cast<double>(position) * inv_freq_[i]));
      indices.push_back(position * item_.rotary_dim + static_cast<int64_t>(i));
    }
    if (table_.ndim == 0) return;
    // The expected result uses the table's values, which are checked separately.
    for (size_t i = 0; i < num_pairs; ++i) indices.push_back(indices[i] + static_cast<int64_t>(num_pairs));
    const std::vector<double> values = memory_.read(table_.data, table_.dtype, indices);
    for (size_t i = 0; i < num_pairs; ++i) {
      const double error = std::max(std::fabs(values[i] - (*cosine)[i]), std::fabs(values[i + num_pairs] - (*sine)[i]));
      if (!(error <= table_error(table_.dtype))) throw std::runtime_error("wrong table");
      (*cosine)[i] = values[i];
      (*sine)[i] = values[i + num_pairs];
    }
  }

  RopeWindow window_of(bool is_backward) const {
    RopeWindow window = {};
    window.style = item_.style;
    window.out_style = item_.out_style != 0 ? item_.out_style : item_.style;
    window.rotary_dim = item_.rotary_dim;
    window.rotary_offset = item_.rotary_offset;
    window.pair_block = config_.pair_block != 0 ? config_.pair_block : item_.rotary_dim;
    window.is_backward = is_backward;
    return window;
  }

  // `repeats` 0: the expected result equals the input.
  void compare(const Heads &before, const Heads &after, int64_t num_heads, const std::vector<int64_t> &tokens,
               int repeats, const std::vector<double> &weights, const Backward &backward, Accuracy *accuracy) const {
    RopeWindow window = window_of(item_.is_backward);
    const bool is_window = !before.empty() && before[0].size() == static_cast<size_t>(item_.rotary_dim);
    if (is_window) window.rotary_offset = 0;
    const NormForm form = {item_.norm, item_.norm_extent, kNormEps};
    const bool is_normed_after = item_.norm_order == ROPE_NORM_ORDER_AFTER;
    std::vector<double> cosine, sine;
    for (size_t first = 0; first < before.size(); first += static_cast<size_t>(num_heads)) {
      angles_of(tokens[first / static_cast<size_t>(num_heads)], &cosine, &sine);
      Heads exact(before.begin() + static_cast<std::ptrdiff_t>(first),
                  before.begin() + static_cast<std::ptrdiff_t>(first) + num_heads);
      for (int repeat = 0; repeat < repeats; ++repeat) {
        if (is_norm_gradient(item_)) {
          const auto of_token = backward.inputs.begin() + static_cast<std::ptrdiff_t>(first);
          std::vector<double> no_sums;
          take_back(cosine, sine, weights, Heads(of_token, of_token + num_heads), &exact, &no_sums);
          continue;
        }
        if (item_.norm != 0 && !is_normed_after) norm(form, weights, &exact);
        for (std::vector<double> &head : exact) head = rotated(window, cosine, sine, head);
        if (item_.norm != 0 && is_normed_after) norm(form, weights, &exact);
      }
      for (size_t head = 0; head < exact.size(); ++head) {
        for (size_t channel = 0; channel < exact[head].size(); ++channel)
          accuracy->add(after[first + head][channel],
                        exact[head][channel] + (item_.accumulates ? backward.held[first + head][channel] : 0));
      }
    }
  }

  const Case &item_;
  Memory &memory_;
  rope_config_t config_ = {};
  std::vector<double> inv_freq_;
  std::vector<int32_t> pair_axis_;
  std::vector<int64_t> positions_;  // one axis after another
  std::vector<int32_t> sequences_;
  std::vector<int64_t> slots_;
  std::vector<double> q_weights_, k_weights_;
  int64_t num_rows_ = 0;
  rope_tensor_t position_tensor_ = {}, sequence_tensor_ = {}, table_ = {};
  rope_cache_args_t cache_ = {};  // with the places of tokens
  rope_norm_args_t norm_ = {};
  rope_quant_args_t quant_ = {};
  std::deque<rope_cache_args_t> caches_;
  std::deque<rope_norm_args_t> norms_;  // for backward
  std::deque<rope_input_args_t> inputs_;
  std::deque<rope_quant_args_t> quants_;
  std::vector<Block> outputs_;  // of set 0, not in place
  Calls one_;
  std::vector<Calls> separate_;
};

// ---- SwiGLU ----

class PreparedSwiglu : public PreparedCase {
 public:
  PreparedSwiglu(const Case &item, Memory &memory, int sets) : item_(item), memory_(memory) {
    config_.struct_size = sizeof config_;
    config_.device = memory.device();
    config_.dtype = item.dtype;
    config_.num_threads = memory.device() == ROPE_DEVICE_CPU ? item.num_threads : 0;
    config_.alpha = item.alpha;
    config_.limit = item.limit;
    config_.up_offset = item.up_offset;
    config_.activation = item.activation;
    config_.limit_rule = item.limit_rule;
    config_.gate_softcap = item.gate_softcap;
    config_.up_softcap = item.up_softcap;
    swiglu_desc_t *desc = nullptr;
    require(swiglu_desc_create(&config_, &desc));
    desc_.reset(desc);
    quants_.resize(static_cast<size_t>(sets), SWIGLU_QUANT_ARGS_INIT);
    columns_.resize(static_cast<size_t>(sets), SWIGLU_COLUMN_ARGS_INIT);
    for (size_t set = 0; set < quants_.size(); ++set) args_.push_back(make_args(&quants_[set], &columns_[set]));
  }

  void create_once() const override {
    swiglu_desc_t *desc = nullptr;
    require(swiglu_desc_create(&config_, &desc));
    swiglu_desc_destroy(desc);
  }

  void call(int set, rope_stream_t stream) const override {
    const swiglu_args_t *args = &args_[static_cast<size_t>(set)];
    require(item_.is_backward ? swiglu_backward(desc_.get(), args, stream) : swiglu_forward(desc_.get(), args, stream));
  }

  std::string explanation() const override {
    char text[256] = "";
    return swiglu_explain(desc_.get(), &args_[0], text, sizeof text) == ROPE_STATUS_SUCCESS ? text : "";
  }

  Accuracy check() const override {
    const swiglu_args_t args = as_matrices(args_[0]);
    const std::vector<int64_t> rows = samples_of_existing();
    std::vector<double> gate = read(args.gate, rows), up = read(args.up, rows);
    add_bias(input_.gate_bias, &gate);
    add_bias(input_.up_bias, &up);
    const std::vector<double> grad_out = item_.is_backward ? read(args.grad_out, rows) : std::vector<double>();
    for (const rope_tensor_t *out : {&args.out, &args.grad_gate, &args.grad_up}) {
      // A packed gradient is poisoned completely through its first half.
      if (out->ndim != 0) poison(*out);
    }
    synchronize(memory_.device());
    call(0, memory_.stream());
    synchronize(memory_.device());

    GateNumbers numbers;
    numbers.alpha = item_.alpha != 0 ? item_.alpha : 1;
    numbers.limit = item_.limit;
    numbers.up_offset = item_.up_offset;
    numbers.activation = item_.activation;
    numbers.limit_rule = item_.limit_rule;
    numbers.gate_softcap = item_.gate_softcap;
    numbers.up_softcap = item_.up_softcap;
    Accuracy accuracy;
    const swiglu_quant_args_t &quant = quants_[0];
    const swiglu_column_args_t &column = columns_[0];
    std::vector<double> exact[2];
    for (size_t i = 0; i < gate.size(); ++i) {
      if (item_.is_backward) {
        const GateGradient gradient = gate_gradient(numbers, gate[i], up[i], grad_out[i]);
        exact[0].push_back(gradient.gate);
        exact[1].push_back(gradient.up);
      } else {
        exact[0].push_back(gated(numbers, gate[i], up[i]));
      }
    }
    const auto compare = [&](int output, const std::vector<double> &values) {
      for (size_t i = 0; i < values.size(); ++i) accuracy.add(values[i], exact[output][i]);
    };
    const bool has_codes = item_.code_dtype != 0;
    if (item_.is_backward) {
      compare(0, has_codes ? read_codes(args.grad_gate, quant.grad_gate_scales_out, rows) : read(args.grad_gate, rows));
      compare(1, has_codes ? read_codes(args.grad_up, quant.grad_up_scales_out, rows) : read(args.grad_up, rows));
    } else {
      const rope_tensor_t &scales = item_.scale_group == 0 ? quant.scale : quant.scales_out;
      compare(0, has_codes ? read_codes(args.out, scales, rows) : read(args.out, rows));
    }
    if (item_.has_columns && item_.is_backward) {
      compare(0, read_column_codes(column.grad_gate, column.grad_gate_scales_out, rows));
      compare(1, read_column_codes(column.grad_up, column.grad_up_scales_out, rows));
    } else if (item_.has_columns) {
      compare(0, read_column_codes(column.out, column.scales_out, rows));
    }
    require_accuracy(accuracy, allowed_error(written_dtype_of(item_)));
    return accuracy;
  }

 private:
  rope_tensor_t make_tensor(int64_t columns) {
    const size_t bytes = static_cast<size_t>(room_of_rows(item_) * columns * size_of(item_.dtype));
    void *memory = memory_.allocate(bytes);
    memory_.fill(memory, bytes, item_.dtype);
    return tensor(memory, item_.dtype, {room_of_rows(item_), columns});
  }

  // [rows, groups].
  rope_tensor_t make_scales() {
    const rope_dtype_t dtype = scale_dtype_of(item_);
    const int64_t groups = item_.columns / item_.scale_group;
    void *memory = memory_.allocate(static_cast<size_t>(room_of_rows(item_) * groups * size_of(dtype)));
    return tensor(memory, dtype, {room_of_rows(item_), groups});
  }

  // [rows / 32, columns].
  rope_tensor_t make_column_scales() {
    const int64_t groups = item_.rows / item_.scale_group;
    void *memory = memory_.allocate(static_cast<size_t>(groups * item_.columns));
    return tensor(memory, ROPE_DTYPE_F8_E8M0, {groups, item_.columns});
  }

  rope_tensor_t make_codes() {
    const int64_t elements = item_.code_dtype == ROPE_DTYPE_F4_E2M1X2 ? item_.columns / 2 : item_.columns;
    void *memory = memory_.allocate(static_cast<size_t>(room_of_rows(item_) * elements));
    return tensor(memory, item_.code_dtype, {room_of_rows(item_), elements});
  }

  rope_tensor_t make_bias() {
    const size_t bytes = static_cast<size_t>(item_.columns * size_of(item_.bias_dtype));
    void *memory = memory_.allocate(bytes);
    memory_.fill(memory, bytes, item_.bias_dtype);
    return tensor(memory, item_.bias_dtype, {item_.columns});
  }

  rope_tensor_t make_list(const std::vector<int64_t> &list) {
    void *memory = memory_.allocate(list.size() * sizeof list[0]);
    memory_.upload(memory, list.data(), list.size() * sizeof list[0]);
    return tensor(memory, ROPE_DTYPE_I64, {static_cast<int64_t>(list.size())});
  }

  rope_tensor_t make_expert_offsets() {
    const std::vector<int64_t> rows = expert_rows_of(item_);
    std::vector<int64_t> offsets(rows.size() + 1);
    std::partial_sum(rows.begin(), rows.end(), offsets.begin() + 1);
    return make_list(offsets);
  }

  bool is_masked() const { return item_.num_experts != 0 && !item_.is_back_to_back; }

  // [rows, columns] as [experts, rows, columns], and back.
  rope_tensor_t by_expert(const rope_tensor_t &view) const {
    if (!is_masked() || view.ndim == 0) return view;
    rope_tensor_t split = view;
    split.ndim = 3;
    split.flags |= ROPE_TENSOR_STRIDED;
    const int64_t shape[] = {item_.num_experts, item_.rows, view.shape[1]};
    const int64_t stride[] = {item_.rows * stride_of(view, 0), stride_of(view, 0), stride_of(view, 1)};
    std::copy(shape, shape + 3, split.shape);
    std::copy(stride, stride + 3, split.stride);
    return split;
  }

  rope_tensor_t as_matrix(const rope_tensor_t &view) const {
    if (!is_masked() || view.ndim == 0) return view;
    rope_tensor_t joined = view;
    joined.ndim = 2;
    const int64_t shape[] = {room_of_rows(item_), view.shape[2]};
    std::copy(shape, shape + 2, joined.shape);
    std::copy(view.stride + 1, view.stride + 3, joined.stride);
    return joined;
  }

  swiglu_args_t as_matrices(swiglu_args_t args) const {
    for (rope_tensor_t *view : {&args.gate, &args.up, &args.out, &args.grad_out, &args.grad_gate, &args.grad_up}) {
      *view = as_matrix(*view);
    }
    return args;
  }

  std::vector<int64_t> samples_of_existing() const {
    std::vector<int64_t> samples = samples_of(existing_rows_of(item_), kCheckedRows);
    if (!is_masked()) return samples;
    std::vector<int64_t> existing;
    const std::vector<int64_t> counts = expert_rows_of(item_);
    for (size_t expert = 0; expert < counts.size(); ++expert) {
      for (int64_t row = 0; row < counts[expert]; ++row) {
        existing.push_back(static_cast<int64_t>(expert) * item_.rows + row);
      }
    }
    for (int64_t &sample : samples) sample = existing[static_cast<size_t>(sample)];
    return samples;
  }

  // Adds a bias to rows of values.
  void add_bias(const rope_tensor_t &bias, std::vector<double> *values) const {
    if (bias.ndim == 0) return;
    std::vector<int64_t> indices(static_cast<size_t>(item_.columns));
    std::iota(indices.begin(), indices.end(), 0);
    const std::vector<double> numbers = memory_.read(bias.data, item_.bias_dtype, indices);
    for (size_t i = 0; i < values->size(); ++i) (*values)[i] += numbers[i % numbers.size()];
  }

  void make_pair(rope_tensor_t *gate, rope_tensor_t *up) {
    if (item_.gate == Gate::kSeparate) {
      *gate = make_tensor(item_.columns);
      *up = make_tensor(item_.columns);
    } else if (item_.gate == Gate::kPacked) {
      const rope_tensor_t packed = make_tensor(2 * item_.columns);
      *gate = narrowed(packed, 1, 0, item_.columns);
      *up = narrowed(packed, 1, item_.columns, item_.columns);
    } else {
      rope_tensor_t interleaved = make_tensor(2 * item_.columns);
      interleaved = tensor(interleaved.data, item_.dtype, {item_.rows, item_.columns, 2});
      require(rope_tensor_select(&interleaved, 2, 0, gate));
      require(rope_tensor_select(&interleaved, 2, 1, up));
    }
  }

  swiglu_args_t make_args(swiglu_quant_args_t *quant, swiglu_column_args_t *column) {
    swiglu_args_t args = {};
    args.struct_size = sizeof args;
    args.flags = item_.is_programmatic ? ROPE_FLAG_PROGRAMMATIC_LAUNCH : 0;
    make_pair(&args.gate, &args.up);
    if (item_.is_backward) {
      args.grad_out = make_tensor(item_.columns);
      if (item_.code_dtype == 0) make_pair(&args.grad_gate, &args.grad_up);
    } else {
      args.out = item_.code_dtype == 0 ? make_tensor(item_.columns) : make_codes();
    }
    if (item_.has_columns) {
      if (item_.is_backward) {
        column->grad_gate = make_codes();
        column->grad_up = make_codes();
        column->grad_gate_scales_out = make_column_scales();
        column->grad_up_scales_out = make_column_scales();
      } else {
        column->out = make_codes();
        column->scales_out = make_column_scales();
      }
      args.column = column;
    }
    if (item_.code_dtype != 0) {
      if (item_.is_backward) {
        args.grad_gate = make_codes();
        args.grad_up = make_codes();
        quant->grad_gate_scales_out = make_scales();
        quant->grad_up_scales_out = make_scales();
      } else if (item_.scale_group != 0) {
        quant->scales_out = make_scales();
      } else {
        void *memory = memory_.allocate(sizeof kCodeScale);
        memory_.upload(memory, &kCodeScale, sizeof kCodeScale);
        quant->scale = tensor(memory, ROPE_DTYPE_F32, {1});
      }
      args.quant = quant;
    }
    if (item_.bias_dtype != 0 && input_.gate_bias.ndim == 0) {
      input_.gate_bias = make_bias();
      input_.up_bias = make_bias();
    }
    if (item_.is_back_to_back) {
      if (input_.expert_offsets.ndim == 0) input_.expert_offsets = make_expert_offsets();
    } else if (is_masked()) {
      if (input_.expert_rows.ndim == 0) input_.expert_rows = make_list(expert_rows_of(item_));
      for (rope_tensor_t *view : {&args.gate, &args.up, &args.out, &args.grad_out, &args.grad_gate, &args.grad_up}) {
        *view = by_expert(*view);
      }
      quant->scales_out = by_expert(quant->scales_out);
    }
    if (item_.bias_dtype != 0 || item_.num_experts != 0) args.input = &input_;
    return args;
  }

  static int64_t stride_of(const rope_tensor_t &view, int axis) {
    if ((view.flags & ROPE_TENSOR_STRIDED) != 0) return view.stride[axis];
    return axis == 0 ? view.shape[1] : 1;
  }

  // Poisons everything from the view's first element to its last: gaps of a view hold the other half of a pair of
  // outputs.
  void poison(const rope_tensor_t &view) const {
    const int64_t last = (view.shape[0] - 1) * stride_of(view, 0) + (view.shape[1] - 1) * stride_of(view, 1);
    memory_.poison(view.data, static_cast<size_t>((last + 1) * size_of(view.dtype)));
  }

  std::vector<double> read(const rope_tensor_t &view, const std::vector<int64_t> &rows) const {
    std::vector<int64_t> indices;
    for (int64_t row : rows) {
      for (int64_t i = 0; i < item_.columns; ++i) indices.push_back(row * stride_of(view, 0) + i * stride_of(view, 1));
    }
    return memory_.read(view.data, item_.dtype, indices);
  }

  std::vector<double> read_codes(const rope_tensor_t &view, const rope_tensor_t &scales,
                                 const std::vector<int64_t> &rows) const {
    std::vector<int64_t> indices, places;
    const int64_t groups = item_.scale_group == 0 ? 1 : item_.columns / item_.scale_group;
    for (int64_t row : rows) {
      for (int64_t i = 0; i < item_.columns; ++i) indices.push_back(row * item_.columns + i);
      for (int64_t i = 0; i < groups; ++i) places.push_back(item_.scale_group == 0 ? 0 : row * groups + i);
    }
    const std::vector<double> scale = memory_.read(scales.data, scales.dtype, places);
    std::vector<double> values = memory_.read(view.data, view.dtype, indices);
    const auto of_group = static_cast<size_t>(item_.columns / groups);
    for (size_t i = 0; i < values.size(); ++i) values[i] *= scale[i / of_group];
    return values;
  }

  std::vector<double> read_column_codes(const rope_tensor_t &view, const rope_tensor_t &scales,
                                        const std::vector<int64_t> &rows) const {
    std::vector<int64_t> indices, places;
    for (int64_t row : rows) {
      for (int64_t i = 0; i < item_.columns; ++i) {
        indices.push_back(row * item_.columns + i);
        places.push_back(row / item_.scale_group * item_.columns + i);
      }
    }
    const std::vector<double> scale = memory_.read(scales.data, scales.dtype, places);
    std::vector<double> values = memory_.read(view.data, view.dtype, indices);
    for (size_t i = 0; i < values.size(); ++i) values[i] *= scale[i];
    return values;
  }

  const Case &item_;
  Memory &memory_;
  swiglu_config_t config_ = {};
  swiglu_input_args_t input_ = SWIGLU_INPUT_ARGS_INIT;
  std::unique_ptr<swiglu_desc_t, void (*)(swiglu_desc_t *)> desc_{nullptr, swiglu_desc_destroy};
  std::vector<swiglu_quant_args_t> quants_;
  std::vector<swiglu_column_args_t> columns_;
  std::vector<swiglu_args_t> args_;
};

}  // namespace

void require(rope_status_t status) {
  if (status == ROPE_STATUS_SUCCESS) return;
  const std::string text = std::string(rope_status_name(status)) + ": " + rope_last_error();
  if (status == ROPE_STATUS_NOT_SUPPORTED || status == ROPE_STATUS_NO_DEVICE) throw NotServed(text);
  throw std::runtime_error(text);
}

std::unique_ptr<PreparedCase> prepare(const Case &item, Memory &memory, int sets) {
  if (item.is_swiglu) return std::make_unique<PreparedSwiglu>(item, memory, sets);
  return std::make_unique<PreparedRope>(item, memory, sets);
}

}  // namespace bench
