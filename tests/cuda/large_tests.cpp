// SPDX-License-Identifier: Apache-2.0
// large_tests.cpp - more than 2^31 elements, tokens or steps between elements
//
// Each large call is checked twice: by the oracle at places where a number of 30, 31 or 32 bits would overflow, and
// everywhere by small calls on a copy of the data, which must give the same bits.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "gpu.hpp"
#include "support/device.hpp"
#include "support/tolerance.hpp"

using oracle::Real;

namespace {

constexpr double theta = 10000;
constexpr int64_t gibi = int64_t{1} << 30;

// An array of 16-bit words between guard bands, in device memory.
class GuardedArray {
 public:
  // The array begins `start` words behind the alignment.
  explicit GuardedArray(int64_t words, int64_t start = 0)
      : words_(words), start_(start), memory_(2 * (words + start + 2 * guard_words)) {
    REQUIRE_CUDA(cudaMemset(memory_.data(), 0xFF, static_cast<size_t>(2 * (guard_words + start))));
    REQUIRE_CUDA(cudaMemset(word(words), 0xFF, static_cast<size_t>(2 * guard_words)));
  }

  std::byte *word(int64_t index) const { return memory_.data() + 2 * (guard_words + start_ + index); }
  std::byte *data() const { return word(0); }
  int64_t words() const { return words_; }

  void fill(uint64_t seed) const { REQUIRE_CUDA(fill_random(data(), words_, seed)); }
  void poison() const { REQUIRE_CUDA(cudaMemset(data(), 0xFF, static_cast<size_t>(2 * words_))); }

  std::vector<uint16_t> read(int64_t first, int64_t count) const {
    std::vector<uint16_t> values(static_cast<size_t>(count));
    REQUIRE_CUDA(cudaMemcpy(values.data(), word(first), values.size() * 2, cudaMemcpyDeviceToHost));
    return values;
  }

  void write(int64_t first, const std::vector<uint16_t> &values) const {
    REQUIRE_CUDA(cudaMemcpy(word(first), values.data(), values.size() * 2, cudaMemcpyHostToDevice));
  }

  void check_guards() const {
    const std::vector<uint16_t> poison(guard_words, 0xFFFF);
    const bool holds_before = read(-guard_words, guard_words) == poison;
    const bool holds_after = read(words_, guard_words) == poison;
    CHECK(holds_before);
    CHECK(holds_after);
  }

 private:
  static constexpr int64_t guard_words = int64_t{1} << 19;
  int64_t words_, start_;
  DeviceMemory memory_;
};

void check_same(const GuardedArray &actual, const GuardedArray &expected) {
  Differences found;
  REQUIRE_CUDA(find_differences(actual.data(), expected.data(), actual.words(), &found));
  INFO("first at element " << found.first << " of " << actual.words());
  CHECK(found.count == 0);
}

rope_tensor_t compact(rope_dtype_t dtype, const std::byte *data, const Shape &shape) {
  rope_tensor_t view = {};
  view.data = const_cast<std::byte *>(data);
  view.dtype = dtype;
  view.ndim = static_cast<uint16_t>(shape.size());
  view.flags = ROPE_TENSOR_STRIDED;
  int64_t stride = 1;
  for (size_t axis = shape.size(); axis-- > 0;) {
    view.shape[axis] = shape[axis];
    view.stride[axis] = stride;
    stride *= shape[axis];
  }
  return view;
}

void require_done(rope_status_t status) {
  if (status != ROPE_STATUS_SUCCESS) FAIL(rope_status_name(status) << ": " << rope_last_error());
  REQUIRE_CUDA(cudaDeviceSynchronize());
}

Real value_of(uint16_t word) {
  return oracle::decode(ROPE_DTYPE_BF16, &word);
}

// Checks the heads of one token, forward, with all channels rotated.
void check_token(const std::vector<uint16_t> &before, const std::vector<uint16_t> &after, int head_dim,
                 rope_style_t style, int64_t position) {
  const int pairs = head_dim / 2;
  int64_t wrong = 0;
  for (int pair = 0; pair < pairs; ++pair) {
    const Real frequency = oracle::frequency(theta, head_dim, pair);
    const oracle::Rotation rotation = oracle::rotation(position, frequency);
    const Real phase_error = tolerance::phase(position, frequency);
    for (size_t head = 0; head < before.size(); head += static_cast<size_t>(head_dim)) {
      const size_t x = head + static_cast<size_t>(style == ROPE_STYLE_HALF ? pair : 2 * pair);
      const size_t y = style == ROPE_STYLE_HALF ? x + static_cast<size_t>(pairs) : x + 1;
      const oracle::Pair in = {value_of(before[x]), value_of(before[y])};
      const oracle::Pair exact = oracle::rotate(in, rotation);
      const Real slack = tolerance::rope_slack(ROPE_DTYPE_BF16, std::hypot(in.x, in.y), phase_error);
      wrong += !tolerance::accepts(ROPE_DTYPE_BF16, value_of(after[x]), exact.x, slack);
      wrong += !tolerance::accepts(ROPE_DTYPE_BF16, value_of(after[y]), exact.y, slack);
    }
  }
  CHECK(wrong == 0);
}

rope_config_t bf16_config(int head_dim, rope_layout_t layout, rope_style_t style) {
  rope_config_t config = rope_config_for({ROPE_DEVICE_CUDA, 0, ""}, head_dim);
  config.dtype = ROPE_DTYPE_BF16;
  config.layout = layout;
  config.style = style;
  config.theta = theta;
  return config;
}

// Compact tensors without positions: THD with one batch, BSHD with several.
struct LargeRope {
  int64_t batches, tokens, heads;
  int head_dim;
  rope_style_t style;
  int64_t start;  // offset from the alignment, in elements
  bool is_in_place;
};

void check_large_rope(const LargeRope &large) {
  const int64_t row = large.heads * large.head_dim, rows = large.batches * large.tokens, elements = rows * row;
  const int num_arrays = large.is_in_place ? 2 : 3;
  need_device_memory(num_arrays * (2 * elements + 4 * gibi / 1024));
  const bool is_packed = large.batches == 1;
  const RopeDesc desc =
      create(bf16_config(large.head_dim, is_packed ? ROPE_LAYOUT_THD : ROPE_LAYOUT_BSHD, large.style));
  const Shape shape = is_packed ? Shape{large.tokens, large.heads, large.head_dim}
                                : Shape{large.batches, large.tokens, large.heads, large.head_dim};
  const GuardedArray whole(elements, large.start), parts(elements, large.start);
  whole.fill(1);
  parts.fill(1);

  // The first and last tokens, and those around each power of two, counted in elements and in tokens.
  std::set<int64_t> sampled = {0, 1, rows - 2, rows - 1};
  for (const int power : {30, 31, 32}) {
    const int64_t number = int64_t{1} << power;
    for (const int64_t token : {number / row, number}) {
      for (int64_t near = token - 2; near <= token + 2; ++near) {
        if (near < rows) sampled.insert(near);
      }
    }
  }
  std::map<int64_t, std::vector<uint16_t>> before;
  for (const int64_t token : sampled) before[token] = whole.read(token * row, row);

  rope_args_t args = rope_args();
  args.q = compact(ROPE_DTYPE_BF16, whole.data(), shape);
  std::unique_ptr<GuardedArray> separate;
  if (!large.is_in_place) {
    separate = std::make_unique<GuardedArray>(elements, large.start);
    separate->poison();
    args.q_out = compact(ROPE_DTYPE_BF16, separate->data(), shape);
  }
  require_done(rope_forward(desc.get(), &args, nullptr));
  const GuardedArray &result = large.is_in_place ? whole : *separate;
  for (const auto &[token, values] : before) {
    INFO("token " << token);
    check_token(values, result.read(token * row, row), large.head_dim, large.style, token % large.tokens);
  }
  if (!large.is_in_place) check_same(whole, parts);

  const rope_tensor_t all = compact(ROPE_DTYPE_BF16, parts.data(), shape);
  const int64_t step = std::max<int64_t>(1, gibi / 4 / (is_packed ? row : large.tokens * row));
  for (int64_t first = 0; first < shape[0]; first += step) {
    rope_args_t part = rope_args();
    part.q = narrow(all, 0, first, std::min(step, shape[0] - first));
    part.position_offset = is_packed ? first : 0;
    require_done(rope_forward(desc.get(), &part, nullptr));
  }
  check_same(result, parts);
  result.check_guards();
  parts.check_guards();
}

void check_swiglu(const std::vector<uint16_t> &gate, const std::vector<uint16_t> &up,
                  const std::vector<uint16_t> &out) {
  int64_t wrong = 0;
  for (size_t i = 0; i < gate.size(); ++i) {
    const Real g = value_of(gate[i]), u = value_of(up[i]), exact = oracle::swiglu(g, u);
    wrong += !tolerance::accepts(ROPE_DTYPE_BF16, value_of(out[i]), exact, tolerance::swiglu_slack(exact, g, u, 1));
  }
  CHECK(wrong == 0);
}

SwigluDesc bf16_swiglu() {
  swiglu_config_t config = swiglu_config_for({ROPE_DEVICE_CUDA, 0, ""});
  config.dtype = ROPE_DTYPE_BF16;
  return create(config);
}

}  // namespace

TEST_CASE("a difference is found wherever it is", "[cuda][large]") {
  constexpr int64_t words = 4 * gibi + 12345;
  need_device_memory(2 * (2 * words + 4 * gibi / 1024));
  const GuardedArray a(words, 1), b(words, 3);
  a.fill(7);
  b.fill(7);
  check_same(a, b);
  // Repeating data could hide a shift.
  const bool repeats = a.read(0, 4096) == a.read(2 * gibi, 4096) || a.read(0, 4096) == a.read(4 * gibi, 4096);
  CHECK_FALSE(repeats);
  for (const int64_t place : {int64_t{0}, 2 * gibi - 1, 2 * gibi, 4 * gibi + 1, words - 1}) {
    const std::vector<uint16_t> kept = a.read(place, 1);
    a.write(place, {static_cast<uint16_t>(kept[0] ^ 1)});
    Differences found;
    REQUIRE_CUDA(find_differences(a.data(), b.data(), words, &found));
    CHECK(found.count == 1);
    CHECK(found.first == static_cast<unsigned long long>(place));
    a.write(place, kept);
  }
}

TEST_CASE("RoPE of more than 2^31 elements in place, in 16-byte vectors", "[cuda][large]") {
  // 2^31 elements, and 2^32 bytes, end within a token.
  check_large_rope({1, 264007, 65, 128, ROPE_STYLE_HALF, 0, true});
}

TEST_CASE("RoPE of more than 2^31 elements out of place, interleaved", "[cuda][large]") {
  check_large_rope({1, 264007, 65, 128, ROPE_STYLE_INTERLEAVED, 0, false});
}

TEST_CASE("RoPE of more than 2^31 elements in tokens that share blocks", "[cuda][large]") {
  check_large_rope({1, 16777223, 1, 128, ROPE_STYLE_HALF, 0, true});
}

TEST_CASE("RoPE of more than 2^31 elements in several batches", "[cuda][large]") {
  check_large_rope({7, 37717, 65, 128, ROPE_STYLE_HALF, 4, true});
}

TEST_CASE("RoPE of more than 2^32 elements, one by one", "[cuda][large]") {
  check_large_rope({1, 516401, 65, 128, ROPE_STYLE_HALF, 1, true});
}

TEST_CASE("RoPE of more than 2^31 tokens of one batch", "[cuda][large]") {
  check_large_rope({1, 2 * gibi + 1009, 1, 2, ROPE_STYLE_HALF, 0, true});
}

TEST_CASE("RoPE of more than 2^31 tokens of many batches", "[cuda][large]") {
  check_large_rope({715900001, 3, 1, 2, ROPE_STYLE_INTERLEAVED, 0, true});
}

TEST_CASE("strides of k reach beyond 2^31 elements along each axis", "[cuda][large]") {
  constexpr int64_t far = 2 * gibi + 24, row = 128;
  constexpr int64_t words = far + 16 * row, q_words = 4 * row;
  need_device_memory(2 * (2 * words + 4 * gibi / 1024) + gibi / 16);
  const GuardedArray k(words), before(words), q(q_words);
  before.fill(3);
  const RopeDesc desc = create(bf16_config(128, ROPE_LAYOUT_BSHD, ROPE_STYLE_HALF));
  for (const int far_axis : {0, 1, 2}) {
    for (const bool is_reversed : {false, true}) {
      INFO("far axis " << far_axis << (is_reversed ? ", reversed" : ""));
      k.fill(3);
      q.fill(4);
      const std::vector<uint16_t> q_before = q.read(0, q_words);
      rope_args_t args = rope_args();
      args.position_offset = 11;
      args.q = compact(ROPE_DTYPE_BF16, q.data(), {2, 2, 1, row});
      args.k = compact(ROPE_DTYPE_BF16, k.data(), {2, 2, 2, row});
      args.k.stride[far_axis] = is_reversed ? -far : far;
      const int64_t origin = is_reversed ? far : 0;
      args.k.data = k.word(origin);
      require_done(rope_forward(desc.get(), &args, nullptr));
      for (int64_t batch = 0; batch < 2; ++batch) {
        for (int64_t token = 0; token < 2; ++token) {
          const int64_t q_at = (2 * batch + token) * row;
          const std::vector<uint16_t> q_row(q_before.begin() + q_at, q_before.begin() + q_at + row);
          check_token(q_row, q.read(q_at, row), 128, ROPE_STYLE_HALF, token + 11);
          for (int64_t head = 0; head < 2; ++head) {
            const int64_t at = origin + batch * args.k.stride[0] + token * args.k.stride[1] + head * args.k.stride[2];
            const std::vector<uint16_t> k_row = before.read(at, row);
            check_token(k_row, k.read(at, row), 128, ROPE_STYLE_HALF, token + 11);
            k.write(at, k_row);
          }
        }
      }
      // After the rows are put back, everything else must be unchanged.
      check_same(k, before);
      k.check_guards();
      q.check_guards();
    }
  }
}

TEST_CASE("strides of tables and positions reach beyond 2^31 elements", "[cuda][large]") {
  constexpr int64_t tokens = 3, heads = 2, channels = 128, pairs = channels / 2;
  constexpr int64_t row_step = gibi + 64, position_step = gibi + 1;
  constexpr int64_t cos_at = 0, sin_at = 512, positions_at = 2048, floats = 2 * row_step + 4096;
  need_device_memory(4 * floats + gibi / 16);
  // Memory below the written part holds NaN for tables and -1 for positions.
  const GuardedArray arena(2 * floats);
  arena.poison();
  const auto upload = [&](int64_t at, const void *from, size_t bytes) {
    REQUIRE_CUDA(cudaMemcpy(arena.word(2 * at), from, bytes, cudaMemcpyHostToDevice));
  };
  Random random(5);
  std::vector<std::vector<float>> cos(tokens, std::vector<float>(pairs)), sin = cos;
  for (int64_t r = 0; r < tokens; ++r) {
    for (int64_t pair = 0; pair < pairs; ++pair) {
      cos[r][pair] = static_cast<float>(random.uniform(-1.5, 1.5));
      sin[r][pair] = static_cast<float>(random.uniform(-1.5, 1.5));
    }
    upload(cos_at + r * row_step, cos[r].data(), pairs * sizeof(float));
    upload(sin_at + r * row_step, sin[r].data(), pairs * sizeof(float));
    const auto position = static_cast<int32_t>(tokens - 1 - r);
    upload(positions_at + r * position_step, &position, sizeof position);
  }
  const int64_t elements = tokens * heads * channels;
  std::vector<float> before(elements), after(elements);
  for (float &value : before) value = static_cast<float>(random.normal());
  const GuardedArray q(2 * elements);
  REQUIRE_CUDA(cudaMemcpy(q.data(), before.data(), before.size() * sizeof(float), cudaMemcpyHostToDevice));

  rope_config_t config = rope_config_for({ROPE_DEVICE_CUDA, 0, ""}, channels);
  config.layout = ROPE_LAYOUT_THD;
  config.theta = 0;
  const RopeDesc desc = create(config);
  rope_args_t args = rope_args();
  args.q = compact(ROPE_DTYPE_F32, q.data(), {tokens, heads, channels});
  args.cos = compact(ROPE_DTYPE_F32, arena.word(2 * cos_at), {tokens, pairs});
  args.sin = compact(ROPE_DTYPE_F32, arena.word(2 * sin_at), {tokens, pairs});
  args.cos.stride[0] = args.sin.stride[0] = row_step;
  args.positions = compact(ROPE_DTYPE_I32, arena.word(2 * positions_at), {tokens});
  args.positions.stride[0] = position_step;
  require_done(rope_forward(desc.get(), &args, nullptr));
  REQUIRE_CUDA(cudaMemcpy(after.data(), q.data(), after.size() * sizeof(float), cudaMemcpyDeviceToHost));
  int64_t wrong = 0;
  for (int64_t head = 0; head < tokens * heads; ++head) {
    const int64_t position = tokens - 1 - head / heads;
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const int64_t x = head * channels + pair, y = x + pairs;
      const oracle::Rotation rotation = {cos[position][pair], sin[position][pair]};
      const oracle::Pair exact = oracle::rotate({before[x], before[y]}, rotation);
      const Real length = std::hypot(Real{before[x]}, Real{before[y]}) * std::hypot(rotation.cos, rotation.sin);
      const Real slack = tolerance::rope_slack(ROPE_DTYPE_F32, length, 0);
      wrong += !tolerance::accepts(ROPE_DTYPE_F32, after[x], exact.x, slack);
      wrong += !tolerance::accepts(ROPE_DTYPE_F32, after[y], exact.y, slack);
    }
  }
  CHECK(wrong == 0);
  q.check_guards();
}

TEST_CASE("SwiGLU of more than 2^31 elements", "[cuda][large]") {
  constexpr int64_t columns = 14336, rows = 149801, elements = rows * columns;
  static_assert(elements > 2 * gibi, "");
  need_device_memory(5 * (2 * elements + 4 * gibi / 1024));
  const Shape shape = {rows, columns};
  const GuardedArray gate(elements), up(elements), grad_out(elements), first(elements), second(elements);
  gate.fill(1);
  up.fill(2);
  grad_out.fill(3);
  first.poison();
  second.poison();
  const SwigluDesc desc = bf16_swiglu();
  const auto tensor = [&](const GuardedArray &array) { return compact(ROPE_DTYPE_BF16, array.data(), shape); };
  constexpr int64_t step = 16384, window = 128;
  const int64_t places[] = {0, gibi - window / 2, 2 * gibi - window / 2, elements - window};

  swiglu_args_t args = swiglu_args();
  args.gate = tensor(gate);
  args.up = tensor(up);
  args.out = tensor(first);
  require_done(swiglu_forward(desc.get(), &args, nullptr));
  for (const int64_t place : places) {
    INFO("element " << place);
    check_swiglu(gate.read(place, window), up.read(place, window), first.read(place, window));
  }
  for (int64_t row = 0; row < rows; row += step) {
    const int64_t length = std::min(step, rows - row);
    swiglu_args_t part = swiglu_args();
    part.gate = narrow(tensor(gate), 0, row, length);
    part.up = narrow(tensor(up), 0, row, length);
    part.out = narrow(tensor(second), 0, row, length);
    require_done(swiglu_forward(desc.get(), &part, nullptr));
  }
  check_same(first, second);

  first.poison();
  second.poison();
  args = swiglu_args();
  args.gate = tensor(gate);
  args.up = tensor(up);
  args.grad_out = tensor(grad_out);
  args.grad_gate = tensor(first);
  args.grad_up = tensor(second);
  require_done(swiglu_backward(desc.get(), &args, nullptr));
  for (const int64_t place : places) {
    INFO("element " << place);
    const std::vector<uint16_t> gates = gate.read(place, window), ups = up.read(place, window);
    const std::vector<uint16_t> grads = grad_out.read(place, window);
    const std::vector<uint16_t> grad_gates = first.read(place, window), grad_ups = second.read(place, window);
    int64_t wrong = 0;
    for (size_t i = 0; i < gates.size(); ++i) {
      const Real g = value_of(gates[i]), u = value_of(ups[i]), go = value_of(grads[i]);
      const oracle::SwigluGradients exact = oracle::swiglu_gradients(g, u, go);
      // For |gate| below 2, the second term of grad_gate is the smaller one.
      const Real size = std::fmax(std::fabs(exact.gate), std::fabs(go * u * oracle::sigmoid(g)));
      wrong += !tolerance::accepts(ROPE_DTYPE_BF16, value_of(grad_gates[i]), exact.gate,
                                   tolerance::swiglu_slack(size, g, u, go));
      wrong += !tolerance::accepts(ROPE_DTYPE_BF16, value_of(grad_ups[i]), exact.up,
                                   tolerance::swiglu_slack(exact.up, g, 1, go));
    }
    CHECK(wrong == 0);
  }
  // Small in-place calls, which replace gate and up by the gradients.
  for (int64_t row = 0; row < rows; row += step) {
    const int64_t length = std::min(step, rows - row);
    swiglu_args_t part = swiglu_args();
    part.gate = part.grad_gate = narrow(tensor(gate), 0, row, length);
    part.up = part.grad_up = narrow(tensor(up), 0, row, length);
    part.grad_out = narrow(tensor(grad_out), 0, row, length);
    require_done(swiglu_backward(desc.get(), &part, nullptr));
  }
  check_same(first, gate);
  check_same(second, up);
  for (const GuardedArray *array : {&gate, &up, &grad_out, &first, &second}) array->check_guards();
}

TEST_CASE("SwiGLU's options and experts of more than 2^31 elements", "[cuda][large]") {
  constexpr int64_t columns = 17408, experts = 61, rows_per_expert = 1011, rows = 61681;
  constexpr int64_t packed = 2 * rows * columns, outputs = rows * columns;
  static_assert(packed > 2 * gibi, "");
  need_device_memory(2 * (packed + 4 * outputs + 5 * (4 * gibi / 1024)));
  const GuardedArray gate_up(packed), grads(outputs), bias(2 * columns), whole(outputs), parts(outputs), ups(outputs);
  gate_up.fill(1);
  grads.fill(2);
  bias.fill(3);
  const rope_tensor_t both = compact(ROPE_DTYPE_BF16, gate_up.data(), {rows, 2 * columns});
  const auto tensor = [&](const GuardedArray &array) {
    return compact(ROPE_DTYPE_BF16, array.data(), {rows, columns});
  };
  const auto args_of = [&](int64_t first, int64_t length, bool is_backward, const GuardedArray &out) {
    swiglu_args_t args = swiglu_args();
    args.gate = narrow(narrow(both, 0, first, length), 1, 0, columns);
    args.up = narrow(narrow(both, 0, first, length), 1, columns, columns);
    if (is_backward) {
      args.grad_out = narrow(tensor(grads), 0, first, length);
      args.grad_gate = narrow(tensor(out), 0, first, length);
      args.grad_up = narrow(tensor(ups), 0, first, length);
    } else {
      args.out = narrow(tensor(out), 0, first, length);
    }
    return args;
  };
  const auto run = [](const SwigluDesc &desc, const swiglu_args_t &args, bool is_backward) {
    require_done(is_backward ? swiglu_backward(desc.get(), &args, nullptr)
                             : swiglu_forward(desc.get(), &args, nullptr));
  };
  for (const int option : {0, 1, 2, 3, 4, 5}) {
    swiglu_config_t config = swiglu_config_for({ROPE_DEVICE_CUDA, 0, ""});
    config.dtype = ROPE_DTYPE_BF16;
    if (option < 4) config.activation = option;
    if (option == 4) config.gate_softcap = 7;
    const SwigluDesc desc = create(config);
    for (const bool is_backward : {false, true}) {
      INFO("option " << option << ", backward " << is_backward);
      swiglu_input_args_t biases = {};
      biases.struct_size = sizeof biases;
      biases.gate_bias = compact(ROPE_DTYPE_BF16, bias.data(), {columns});
      biases.up_bias = compact(ROPE_DTYPE_BF16, bias.word(columns), {columns});
      const auto with_biases = [&](swiglu_args_t args) {
        if (option == 5) args.input = &biases;
        return args;
      };
      whole.poison();
      parts.poison();
      run(desc, with_biases(args_of(0, rows, is_backward, whole)), is_backward);
      // Some of these calls have few enough rows for other shapes of a launch.
      for (int64_t row = 0, length; row < rows; row += length) {
        length = std::min(row % 8192 == 0 ? int64_t{8152} : 40, rows - row);
        run(desc, with_biases(args_of(row, length, is_backward, parts)), is_backward);
      }
      check_same(whole, parts);
    }
  }
  // Each expert has some of its rows, and the last rows belong to none.
  const SwigluDesc desc = bf16_swiglu();
  std::vector<int64_t> counts(experts);
  for (int64_t e = 0; e < experts; ++e)
    counts[static_cast<size_t>(e)] = e % 3 == 1 ? 0 : e == experts - 1 ? 1011 : 17 * e;
  const DeviceMemory device_counts(experts * 8);
  REQUIRE_CUDA(cudaMemcpy(device_counts.data(), counts.data(), experts * 8, cudaMemcpyHostToDevice));
  for (const bool is_backward : {false, true}) {
    INFO("experts, backward " << is_backward);
    whole.poison();
    parts.poison();
    const auto run_experts = [&](int64_t first, int64_t length, const GuardedArray &out) {
      swiglu_args_t args = args_of(first * rows_per_expert, length * rows_per_expert, is_backward, out);
      for (rope_tensor_t *each : {&args.gate, &args.up, &args.out, &args.grad_out, &args.grad_gate, &args.grad_up}) {
        if (each->ndim == 0) continue;
        each->ndim = 3;
        each->shape[2] = each->shape[1], each->stride[2] = each->stride[1];
        each->shape[1] = rows_per_expert, each->stride[1] = each->stride[0];
        each->shape[0] = length, each->stride[0] *= rows_per_expert;
      }
      swiglu_input_args_t of_experts = {};
      of_experts.struct_size = sizeof of_experts;
      of_experts.expert_rows = compact(ROPE_DTYPE_I64, device_counts.data() + 8 * first, {length});
      args.input = &of_experts;
      run(desc, args, is_backward);
    };
    run_experts(0, experts, whole);
    // Experts one by one; the derivatives of calls without experts may differ in the last bit.
    for (int64_t e = 0; e < experts; ++e) run_experts(e, 1, parts);
    check_same(whole, parts);
  }
  for (const GuardedArray *array : {&gate_up, &grads, &bias, &whole, &parts, &ups}) array->check_guards();
}

TEST_CASE("codes of SwiGLU of more than 2^31 elements", "[cuda][large][codes]") {
  constexpr int64_t columns = 14336, rows = 149824, elements = rows * columns, step = 16384;
  static_assert(elements > 2 * gibi && rows % 32 == 0 && step % 32 == 0, "");
  constexpr int64_t codes = elements / 2, scales = elements / 32 / 2;  // in words; a scale of MXFP8 has a byte
  need_device_memory(2 * (3 * elements + 6 * codes + 6 * scales + 15 * (4 * gibi / 1024)));
  const GuardedArray gate(elements), up(elements), grad_out(elements);
  gate.fill(1);
  up.fill(2);
  grad_out.fill(3);
  // An output by row, one by column, and a second gradient, each with its scales; of one call, and of many.
  struct Outputs {
    GuardedArray by_row{codes}, by_column{codes}, second{codes};
    GuardedArray row_scales{scales}, column_scales{scales}, second_scales{scales};
    const GuardedArray *all[6] = {&by_row, &by_column, &second, &row_scales, &column_scales, &second_scales};
  };
  const Outputs whole, parts;
  const DeviceMemory offsets(5 * 8);
  const int64_t begins[] = {0, 1000, 1000, 140000, rows};
  REQUIRE_CUDA(cudaMemcpy(offsets.data(), begins, sizeof begins, cudaMemcpyHostToDevice));
  enum class Kind {
    kStatic,
    kGroups,
    kExperts,
    kColumns,
    kGradients
  };
  const auto run_rows = [&](Kind kind, const Outputs &to, int64_t first, int64_t length) {
    const auto values = [&](const GuardedArray &of) {
      return narrow(compact(ROPE_DTYPE_BF16, of.data(), {rows, columns}), 0, first, length);
    };
    const auto coded = [&](const GuardedArray &of) {
      return narrow(compact(ROPE_DTYPE_F8_E4M3, of.data(), {rows, columns}), 0, first, length);
    };
    const auto by_row = [&](const GuardedArray &of) {
      return narrow(compact(ROPE_DTYPE_F8_E8M0, of.data(), {rows, columns / 32}), 0, first, length);
    };
    const auto by_column = [&](const GuardedArray &of) {
      return narrow(compact(ROPE_DTYPE_F8_E8M0, of.data(), {rows / 32, columns}), 0, first / 32, length / 32);
    };
    swiglu_args_t args = swiglu_args();
    swiglu_quant_args_t quant = SWIGLU_QUANT_ARGS_INIT;
    swiglu_column_args_t column = SWIGLU_COLUMN_ARGS_INIT;
    swiglu_input_args_t input = SWIGLU_INPUT_ARGS_INIT;
    args.gate = values(gate);
    args.up = values(up);
    args.quant = &quant;
    if (kind == Kind::kGradients) {
      args.grad_out = values(grad_out);
      args.grad_gate = coded(to.by_row);
      args.grad_up = coded(to.second);
      quant.grad_gate_scales_out = by_row(to.row_scales);
      quant.grad_up_scales_out = by_row(to.second_scales);
      column.grad_gate = coded(to.by_column);
      column.grad_gate_scales_out = by_column(to.column_scales);
      args.column = &column;
    } else {
      args.out = coded(to.by_row);
      if (kind != Kind::kStatic) quant.scales_out = by_row(to.row_scales);
      if (kind == Kind::kColumns) {
        column.out = coded(to.by_column);
        column.scales_out = by_column(to.column_scales);
        args.column = &column;
      }
      if (kind == Kind::kExperts) {
        input.expert_offsets = compact(ROPE_DTYPE_I64, offsets.data(), {5});
        args.input = &input;
      }
    }
    const SwigluDesc desc = bf16_swiglu();
    require_done(kind == Kind::kGradients ? swiglu_backward(desc.get(), &args, nullptr)
                                          : swiglu_forward(desc.get(), &args, nullptr));
  };
  for (const Kind kind : {Kind::kStatic, Kind::kGroups, Kind::kExperts, Kind::kColumns, Kind::kGradients}) {
    INFO("kind " << static_cast<int>(kind));
    for (const Outputs *to : {&whole, &parts}) {
      for (const GuardedArray *of : to->all) of->poison();
    }
    run_rows(kind, whole, 0, rows);
    // All rows have experts, which change nothing without biases and scales of their own.
    const Kind of_parts = kind == Kind::kExperts ? Kind::kGroups : kind;
    for (int64_t row = 0; row < rows; row += step) run_rows(of_parts, parts, row, std::min(step, rows - row));
    const bool has_last_row = whole.by_row.read(codes - 64, 64) != std::vector<uint16_t>(64, 0xFFFF);
    CHECK(has_last_row);
    for (size_t i = 0; i < std::size(whole.all); ++i) check_same(*whole.all[i], *parts.all[i]);
  }
  for (const Outputs *to : {&whole, &parts}) {
    for (const GuardedArray *of : to->all) of->check_guards();
  }
}

TEST_CASE("SwiGLU of more than 2^32 elements, one by one", "[cuda][large]") {
  // Each column has its gate and each row its up, so that few inputs give elements that all differ.
  constexpr int64_t rows = 65551, columns = 65533, elements = rows * columns;
  static_assert(elements > 4 * gibi, "");
  need_device_memory(2 * (2 * elements + 4 * gibi / 1024) + gibi / 16);
  const GuardedArray gate(columns), up(rows), whole(elements), parts(elements);
  gate.fill(1);
  up.fill(2);
  whole.poison();
  parts.poison();
  const SwigluDesc desc = bf16_swiglu();
  swiglu_args_t args = swiglu_args();
  args.gate = args.up = args.out = compact(ROPE_DTYPE_BF16, whole.data(), {rows, columns});
  args.gate.data = gate.data();
  args.gate.stride[0] = 0;
  args.up.data = up.data();
  args.up.stride[0] = 1;
  args.up.stride[1] = 0;
  require_done(swiglu_forward(desc.get(), &args, nullptr));
  const std::vector<uint16_t> gates = gate.read(0, columns), ups = up.read(0, rows);
  const int64_t all_rows[] = {0,
                              1,
                              gibi / columns,
                              2 * gibi / columns,
                              2 * gibi / columns + 1,
                              4 * gibi / columns,
                              4 * gibi / columns + 1,
                              rows - 1};
  for (const int64_t row : all_rows) {
    INFO("row " << row);
    // Every fifth column, because the oracle's exponential is slow.
    const std::vector<uint16_t> out = whole.read(row * columns, columns);
    std::vector<uint16_t> g, u, o;
    for (int64_t column = row % 5; column < columns; column += 5) {
      g.push_back(gates[column]);
      u.push_back(ups[row]);
      o.push_back(out[column]);
    }
    check_swiglu(g, u, o);
  }
  constexpr int64_t step = 4096;
  for (int64_t row = 0; row < rows; row += step) {
    const int64_t length = std::min(step, rows - row);
    swiglu_args_t part = args;
    part.gate = narrow(args.gate, 0, row, length);
    part.up = narrow(args.up, 0, row, length);
    part.out = narrow(compact(ROPE_DTYPE_BF16, parts.data(), {rows, columns}), 0, row, length);
    require_done(swiglu_forward(desc.get(), &part, nullptr));
  }
  check_same(whole, parts);
  for (const GuardedArray *array : {&gate, &up, &whole, &parts}) array->check_guards();
}
