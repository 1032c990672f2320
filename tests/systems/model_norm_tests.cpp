// SPDX-License-Identifier: Apache-2.0
// model_norm_tests.cpp - norms of q and k in Hugging Face's models, on the models' own tensors: projections [B, S, H *
// D], and cos and sin [B, S, R] of each token
//
// The norm rounds like the models. Their rotation rounds products to the data's type, librope's does not.
#include <catch2/catch_test_macros.hpp>
#include <vector>

#include "step_system.hpp"

using namespace systems;

namespace {

constexpr int64_t batch = 2;
constexpr int32_t round_both = ROPE_NORM_ROUND_BEFORE_WEIGHT | ROPE_NORM_ROUND_AFTER_WEIGHT;
constexpr int32_t all_three = ROPE_NORM_TENSOR_Q | ROPE_NORM_TENSOR_K | ROPE_NORM_TENSOR_V;

struct Model {
  Norm norm;
  int64_t seq = 5, head_dim = 128, rotary_dim = 128, heads = 4, k_heads = 2;
  rope_style_t style = ROPE_STYLE_HALF;
  rope_norm_order_t order = ROPE_NORM_ORDER_BEFORE;
  rope_norm_extent_t extent = ROPE_NORM_EXTENT_HEAD;
  int32_t tensors = 0;
  bool is_rotated = true;
  bool has_weights = true, has_biases = false;
  bool is_by_head = false;     // weights [H, D]
  bool is_transposed = false;  // q, k, v as [B, H, S, D] views
};

// [B, S, R]: both channels of a pair have the pair's cosine, or sine.
Array channel_table(RopeCall &call, rope_dtype_t dtype, const Model &model) {
  const int64_t seq = model.seq, pairs = model.rotary_dim / 2;
  const Array of_pairs = call.table(dtype, {batch, seq, pairs});
  return call.values(dtype, {batch, seq, 2 * pairs}, [&](const Shape &at) {
    return of_pairs.value({at[0], at[1], model.style == ROPE_STYLE_HALF ? at[2] % pairs : at[2] / 2});
  });
}

// All heads of a token, normed one by one or together.
Row normed_heads(const Arithmetic &arithmetic, const Model &model, const Row &row, const Row &weight, const Row &bias) {
  if (model.extent == ROPE_NORM_EXTENT_TOKEN) return arithmetic.normed(model.norm, row, weight, bias);
  const auto head = [&](const Row &all, int64_t first) {
    if (static_cast<int64_t>(all.size()) <= model.head_dim) return all;
    return Row(all.begin() + first, all.begin() + first + model.head_dim);
  };
  Row result;
  for (int64_t first = 0; first < static_cast<int64_t>(row.size()); first += model.head_dim) {
    const Row y = arithmetic.normed(model.norm, head(row, first), head(weight, first), head(bias, first));
    result.insert(result.end(), y.begin(), y.end());
  }
  return result;
}

void check(const Model &model) {
  const int64_t seq = model.seq, d = model.head_dim;
  const bool is_token = model.extent == ROPE_NORM_EXTENT_TOKEN;
  const int32_t tensors = model.tensors ? model.tensors : ROPE_NORM_TENSOR_Q | ROPE_NORM_TENSOR_K;
  for (rope_dtype_t dtype : serving) {
    RopeCall call(dtype, static_cast<int32_t>(d));
    const Arithmetic arithmetic(dtype);
    model.norm.fill(call.config);
    call.config.norm_order = model.order;
    call.config.norm_extent = model.extent;
    call.config.norm_tensors = model.tensors;
    call.config.layout = model.is_transposed ? ROPE_LAYOUT_BHSD : ROPE_LAYOUT_BSHD;
    call.config.style = model.style;
    call.config.rotary_dim = static_cast<int32_t>(model.rotary_dim);
    call.config.theta = 0;
    const Array cos = channel_table(call, dtype, model), sin = channel_table(call, dtype, model);
    if (model.is_rotated) {
      call.args.cos = cos.tensor();
      call.args.sin = sin.tensor();
      call.args.table_rows = ROPE_TABLE_BY_TOKEN;
    } else {
      call.args.flags = ROPE_FLAG_UNROTATED;
    }
    rope_norm_args_t norms = ROPE_NORM_ARGS_INIT;
    call.args.norm = &norms;

    struct Operand {
      int32_t bit;
      int64_t heads;
      rope_tensor_t *view, *weight, *bias;
    };
    const Operand operands[] = {
        {ROPE_NORM_TENSOR_Q, model.heads, &call.args.q, &norms.q_weight, &norms.q_bias},
        {ROPE_NORM_TENSOR_K, model.k_heads, &call.args.k, &norms.k_weight, &norms.k_bias},
        {ROPE_NORM_TENSOR_V, model.k_heads, &call.args.v, nullptr, nullptr},
    };
    for (const Operand &operand : operands) {
      const bool is_v = operand.bit == ROPE_NORM_TENSOR_V, is_normed = tensors & operand.bit;
      if (is_v && !is_normed) continue;
      if (is_v) call.args.flags = ROPE_FLAG_V_UNROTATED;
      const Array array = call.data({batch, seq, operand.heads * d});
      const rope_tensor_t view = array.as({batch, seq, operand.heads, d});
      *operand.view = model.is_transposed ? permuted(view, {0, 2, 1, 3}) : view;
      const int64_t weight_count = model.is_by_head || is_token ? operand.heads * d : d;
      const auto parameter = [&](bool is_there, rope_tensor_t *tensor) -> Row {
        if (!is_there || is_v || !is_normed) return {};
        const Array values = call.data({weight_count});
        *tensor = weight_count == d ? values.tensor() : values.as({operand.heads, d});
        return read(values, 0, weight_count);
      };
      const Row weight = parameter(model.has_weights, operand.weight);
      const Row bias = parameter(model.has_biases, operand.bias);
      const auto normed = [&](const Row &row) {
        return is_normed ? normed_heads(arithmetic, model, row, weight, bias) : row;
      };
      Outcome &outcome = call.outcome(array);
      for_each({batch, seq}, [&](const Shape &at) {
        const int64_t first = array.at({at[0], at[1], 0});
        const auto turn = [&](int64_t i) {
          const Shape column = {at[0], at[1], model.style == ROPE_STYLE_HALF ? i : 2 * i};
          return TurnRange{arithmetic.number(cos.value(column)), arithmetic.number(sin.value(column))};
        };
        Row row = read(array, first, operand.heads * d);
        if (model.order == ROPE_NORM_ORDER_BEFORE) row = normed(row);
        for (int64_t h = 0; model.is_rotated && !is_v && h < operand.heads; ++h) {
          row = arithmetic.rotated(model.style, h * d, model.rotary_dim, row, turn);
        }
        if (model.order == ROPE_NORM_ORDER_AFTER) row = normed(row);
        if (is_normed) return expect(outcome, first, row);
        // in place: channels outside the window do not change
        for (int64_t h = 0; h < operand.heads; ++h) {
          expect(outcome, first + h * d, Row(row.begin() + h * d, row.begin() + h * d + model.rotary_dim));
        }
      });
    }
    call.check(Direction::Forward);
  }
}

}  // namespace

// weight * (x * r).to(dtype)
TEST_CASE("Qwen3: rounded before the weight and after it", "[systems][step]") {
  Model model;
  model.norm.rounding = round_both;
  check(model);
  model.is_transposed = true;
  check(model);
}

// (x * r * (1 + weight)).to(dtype)
TEST_CASE("Gemma 3: 1 + w, head_dim 256", "[systems][step]") {
  Model model;
  model.head_dim = model.rotary_dim = 256;
  model.norm.weight_offset = 1;
  model.norm.rounding = ROPE_NORM_ROUND_AFTER_WEIGHT;
  check(model);
}

TEST_CASE("Gemma 4: head_dim 512, v without weights", "[systems][step]") {
  Model model;
  model.head_dim = model.rotary_dim = 512;
  model.norm.rounding = ROPE_NORM_ROUND_AFTER_WEIGHT;
  model.tensors = all_three;
  check(model);
}

// (weight * (x * r)).to(dtype) over all heads of a token
TEST_CASE("OLMo-2: one norm for all heads of a token", "[systems][step]") {
  Model model;
  model.extent = ROPE_NORM_EXTENT_TOKEN;
  model.heads = 5;
  model.k_heads = 3;
  model.norm.rounding = ROPE_NORM_ROUND_AFTER_WEIGHT;
  check(model);
}

TEST_CASE("MiniMax-M2: one norm for all heads, half of each turned", "[systems][step]") {
  Model model;
  model.extent = ROPE_NORM_EXTENT_TOKEN;
  model.rotary_dim = 64;
  model.heads = 6;
  model.norm.rounding = round_both;
  check(model);
}

TEST_CASE("Cohere: layer norm with a weight for each head", "[systems][step]") {
  Model model;
  model.norm.type = ROPE_NORM_LAYER;
  model.norm.eps = 1e-5;
  model.norm.rounding = ROPE_NORM_ROUND_AFTER_WEIGHT;
  model.style = ROPE_STYLE_INTERLEAVED;
  model.is_by_head = true;
  check(model);
  // enough bytes for several threads, with shares that begin at any head
  model.seq = 301;
  model.heads = 5;
  check(model);
}

TEST_CASE("StableLM: layer norm of each head, a quarter turned", "[systems][step]") {
  Model model;
  model.norm.type = ROPE_NORM_LAYER;
  model.norm.eps = 1e-5;
  model.norm.rounding = ROPE_NORM_ROUND_AFTER_WEIGHT;
  model.head_dim = 80;
  model.rotary_dim = 20;
  model.is_by_head = true;
  check(model);
}

TEST_CASE("Persimmon and Phi: layer norm with a bias", "[systems][step]") {
  Model model;
  model.norm.type = ROPE_NORM_LAYER;
  model.norm.eps = 1e-5;
  model.head_dim = 64;
  model.rotary_dim = 32;
  model.has_biases = true;
  check(model);
}

// The keys of the indexer are normed, its queries not.
TEST_CASE("DeepSeek V3.2 indexer: layer norm of k alone", "[systems][step]") {
  Model model;
  model.norm.type = ROPE_NORM_LAYER;
  model.rotary_dim = 64;
  model.heads = 8;
  model.k_heads = 1;
  model.has_biases = true;
  model.tensors = ROPE_NORM_TENSOR_K;
  check(model);
}

TEST_CASE("Llama-4: after the rotation, without weights", "[systems][step]") {
  Model model;
  model.norm.eps = 1e-5;
  model.order = ROPE_NORM_ORDER_AFTER;
  model.style = ROPE_STYLE_INTERLEAVED;
  model.has_weights = false;
  check(model);
}

TEST_CASE("HunYuan: after the rotation, with weights", "[systems][step]") {
  Model model;
  model.norm.eps = 1e-5;
  model.norm.rounding = round_both;
  model.order = ROPE_NORM_ORDER_AFTER;
  check(model);
}

// Layers without positions have norms, too.
TEST_CASE("EXAONE 4: a norm without a rotation", "[systems][step]") {
  Model model;
  model.norm.rounding = round_both;
  model.is_rotated = false;
  check(model);
}

// Weights have the order of the interleaved input's channels; the rotation writes halves.
TEST_CASE("Dots3: k_pe normed alone, interleaved in, half out", "[systems][step]") {
  const int64_t T = 6, heads = 3, nope = 128, rotary_dim = 64, half = rotary_dim / 2;
  for (rope_dtype_t dtype : serving) {
    RopeCall call(dtype, rotary_dim);
    const Arithmetic arithmetic(dtype);
    const Norm norm;
    norm.fill(call.config);
    call.config.norm_tensors = ROPE_NORM_TENSOR_K;
    call.config.layout = ROPE_LAYOUT_THD;
    call.config.style = ROPE_STYLE_INTERLEAVED;
    call.config.out_style = ROPE_STYLE_HALF;
    const Array q = call.data({T, heads, nope + rotary_dim}), k_pe = call.data({T, rotary_dim});
    const Array k_out = call.data({T, rotary_dim}), k_weight = call.data({rotary_dim});
    rope_norm_args_t norms = ROPE_NORM_ARGS_INIT;
    norms.k_weight = k_weight.tensor();
    call.args.q = narrow(q.tensor(), 2, nope, rotary_dim);
    call.args.k = k_pe.as({T, 1, rotary_dim});
    call.args.k_out = k_out.as({T, 1, rotary_dim});
    call.args.norm = &norms;
    Outcome &q_outcome = call.outcome(q), &k_outcome = call.outcome(k_out);
    const auto turned = [&](int64_t t, const Row &row) {
      const Row pairs = arithmetic.rotated(ROPE_STYLE_INTERLEAVED, 0, rotary_dim, row, [&](int64_t i) {
        return arithmetic.computed(t, frequency(10000, i, rotary_dim));
      });
      Row halves;
      for (int64_t c = 0; c < rotary_dim; ++c) halves.push_back(pairs[c < half ? 2 * c : 2 * (c - half) + 1]);
      return halves;
    };
    for (int64_t t = 0; t < T; ++t) {
      const Row k = read(k_pe, k_pe.at({t, 0}), rotary_dim);
      expect(k_outcome, k_out.at({t, 0}), turned(t, arithmetic.normed(norm, k, read(k_weight, 0, rotary_dim))));
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t tail = q.at({t, h, nope});
        expect(q_outcome, tail, turned(t, read(q, tail, rotary_dim)));
      }
    }
    call.check(Direction::Forward);
  }
}
