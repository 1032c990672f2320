// SPDX-License-Identifier: Apache-2.0
// step_norm_gradient_tests.cpp - backward of norms with the rotation: gradients of inputs, and sums for the gradients
// of weights and biases
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "support/step_case.hpp"

namespace {

const std::vector<rope_dtype_t> dtypes = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64};
const std::vector<rope_layout_t> layouts = {ROPE_LAYOUT_BSHD, ROPE_LAYOUT_SBHD, ROPE_LAYOUT_BHSD, ROPE_LAYOUT_THD};

// Qwen3: q of three heads and k of two, each head normed, with weights.
StepCase normed(rope_dtype_t dtype = ROPE_DTYPE_F32, rope_norm_type_t norm = ROPE_NORM_RMS) {
  StepCase step;
  step.direction = Direction::Backward;
  step.dtype = dtype;
  step.norm = norm;
  for (StepTensor *tensor : {&step.q, &step.k}) {
    tensor->heads = tensor == &step.q ? 3 : 2;
    tensor->out = StepOut::Own;
    tensor->has_weight = tensor->has_grad_weight = true;
    tensor->has_bias = tensor->has_grad_bias = norm == ROPE_NORM_LAYER;
    tensor->runs = 3;
  }
  return step;
}

}  // namespace

TEST_CASE("gradients of norms before and behind the rotation, of each head and of a token", "[rope][step][gradient]") {
  for (const rope_dtype_t dtype : dtypes) {
    for (const rope_norm_type_t norm : {ROPE_NORM_RMS, ROPE_NORM_LAYER}) {
      for (const rope_norm_order_t order : {ROPE_NORM_ORDER_BEFORE, ROPE_NORM_ORDER_AFTER}) {
        for (const rope_norm_extent_t extent : {ROPE_NORM_EXTENT_HEAD, ROPE_NORM_EXTENT_TOKEN}) {
          StepCase step = normed(dtype, norm);
          step.norm_order = order;
          step.norm_extent = extent;
          step.check();
          step.style = ROPE_STYLE_INTERLEAVED;
          step.q.out = StepOut::Absent;  // in place
          step.k.out = StepOut::Same;
          step.q.grads_by_head = step.q.weight_by_head = true;
          step.norm_weight_offset = 1;
          step.check();
        }
      }
    }
  }
}

TEST_CASE("gradients of norms in every layout, of windows, styles, tables and sequences", "[rope][step][gradient]") {
  for (const rope_layout_t layout : layouts) {
    for (const rope_norm_order_t order : {ROPE_NORM_ORDER_BEFORE, ROPE_NORM_ORDER_AFTER}) {
      StepCase step = normed(ROPE_DTYPE_BF16);
      step.layout = layout;
      step.norm_order = order;
      step.head_dim = 80;
      step.rotary_dim = 48;
      step.rotary_offset = 8;
      step.out_style = ROPE_STYLE_INTERLEAVED;
      step.table_rows = 4;  // the last token of five has no row
      step.has_fault = true;
      step.check();
      step.wide_table = true;
      step.q.is_window = true;
      step.v.heads = 2;  // neither turned nor normed
      step.flags = ROPE_FLAG_V_UNROTATED;
      step.check();
      step.flags = ROPE_FLAG_UNROTATED;
      step.table_rows = -1;
      step.check();
    }
  }
}

TEST_CASE("padding adds nothing to the sums of gradients", "[rope][step][gradient]") {
  for (const bool by_head : {false, true}) {
    StepCase step = normed();
    step.layout = ROPE_LAYOUT_THD;
    step.tokens = 11;
    step.cu_seqlens = {0, 2, 5};
    step.q.runs = step.k.runs = 4;  // the last run has no token of a sequence
    step.q.grads_by_head = step.k.grads_by_head = by_head;
    step.check();
  }
}

TEST_CASE("any number of runs, and rows of any strides", "[rope][step][gradient]") {
  for (const int64_t runs : {1, 2, 7, 10, 11, 500}) {
    StepCase step = normed(ROPE_DTYPE_F16, ROPE_NORM_LAYER);
    step.q.runs = runs;
    step.k.runs = 5;
    step.q.grad_placement.gap(0, 3).gap(1, 1).reversed(1);
    step.k.grads_by_head = true;
    step.k.grad_placement.order({2, 0, 1});
    step.q.norm_in_placement.gap(1, 2).reversed(0);
    step.k.norm_in_placement.expanded(0);
    step.check();
  }
}

TEST_CASE("v is normed without a weight, and tensors stand alone", "[rope][step][gradient]") {
  StepCase step = normed();
  step.norm_tensors = ROPE_NORM_TENSOR_V;
  step.q = step.k = {};
  step.v.heads = 2;
  step.v.width = 40;
  step.v.out = StepOut::Own;
  step.flags = ROPE_FLAG_V_UNROTATED;
  step.check();
  step = normed();
  step.q = {};
  step.k.has_weight = false;  // a weight of 1 has a gradient, too
  step.check();
}

TEST_CASE("gradients of norms with row factors, roundings of forward, sums into outputs", "[rope][step][gradient]") {
  for (const rope_dtype_t dtype : dtypes) {
    StepCase step = normed(dtype);
    step.q.factor = RowFactor::ByToken;
    step.k.factor = RowFactor::ByHead;
    step.norm_rounding = ROPE_NORM_ROUND_BEFORE_WEIGHT | ROPE_NORM_ROUND_AFTER_WEIGHT;
    step.check();
    step.norm_order = ROPE_NORM_ORDER_AFTER;
    step.rounds_each = true;
    step.flags = ROPE_FLAG_ACCUMULATE;
    step.check();
  }
}

// More sums than fit at once.
TEST_CASE("sums of many heads and channels", "[rope][step][gradient]") {
  for (const int32_t head_dim : {128, 256, 1024}) {
    for (const rope_norm_extent_t extent : {ROPE_NORM_EXTENT_HEAD, ROPE_NORM_EXTENT_TOKEN}) {
      StepCase step = normed(ROPE_DTYPE_BF16, ROPE_NORM_LAYER);
      step.batch = 1;
      step.tokens = 4;
      step.head_dim = head_dim;
      step.norm_extent = extent;
      step.q.heads = 37;
      step.q.out = StepOut::Absent;
      step.has_fault = true;
      step.table_rows = 2;
      step.check();
      step.norm_order = ROPE_NORM_ORDER_AFTER;
      step.norm = head_dim == 256 ? ROPE_NORM_RMS : ROPE_NORM_LAYER;
      step.q.has_bias = step.k.has_bias = step.q.has_grad_bias = step.k.has_grad_bias = step.norm == ROPE_NORM_LAYER;
      step.check();
    }
  }
}

TEST_CASE("gradients of norms of heads in vectors whose windows fill none", "[rope][step][gradient]") {
  struct Window {
    int32_t offset;
    int32_t channels;
  };
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (const rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
      for (const Window &window : {Window{4, 24}, Window{8, 40}, Window{0, 48}, Window{32, 32}, Window{0, 64}}) {
        StepCase step = normed(dtype);
        step.head_dim = 64;
        step.style = style;
        step.rotary_offset = window.offset;
        step.rotary_dim = window.channels;
        step.check();
      }
    }
  }
}

namespace {

// Heads for which CUDA has vectors.
struct RowsVariant {
  const char *name;
  std::function<void(StepCase *)> apply;
};

const RowsVariant rows_variants[] = {
    {"as it is", [](StepCase *) {}},
    {"sums by head",
     [](StepCase *step) {
       step->q.weight_by_head = step->q.grads_by_head = step->k.grads_by_head = true;
       step->k.grad_placement.order({2, 0, 1}).gap(1, 1);
       step->k.weight_dtype = ROPE_DTYPE_F32;
       step->norm_weight_offset = 1;
     }},
    {"layer norm in place",
     [](StepCase *step) {
       step->norm = ROPE_NORM_LAYER;
       step->style = ROPE_STYLE_INTERLEAVED;
       step->q.out = step->k.out = StepOut::Absent;
     }},
    {"behind the rotation, a table whose last row is missing",
     [](StepCase *step) {
       step->norm_order = ROPE_NORM_ORDER_AFTER;
       step->style = ROPE_STYLE_INTERLEAVED;
       step->table_rows = step->tokens - 1;
       step->has_fault = true;
     }},
    {"over a token",
     [](StepCase *step) {
       step->norm_extent = ROPE_NORM_EXTENT_TOKEN;
       step->q.weight_by_head = step->q.grads_by_head = true;
     }},
    {"layer norm over a token behind the rotation",
     [](StepCase *step) {
       step->norm = ROPE_NORM_LAYER;
       step->norm_order = ROPE_NORM_ORDER_AFTER;
       step->norm_extent = ROPE_NORM_EXTENT_TOKEN;
       step->has_fault = true;
       step->table_rows = 3;
     }},
    {"batches that do not follow each other, row factors",
     [](StepCase *step) {
       step->layout = ROPE_LAYOUT_BHSD;
       step->q.factor = RowFactor::ByHead;
       step->k.factor = RowFactor::ByToken;
       step->k.factor_dtype = ROPE_DTYPE_F32;
     }},
    {"sums into outputs",
     [](StepCase *step) {
       step->layout = ROPE_LAYOUT_SBHD;
       step->flags |= ROPE_FLAG_ACCUMULATE;
     }},
    {"several axes",
     [](StepCase *step) {
       step->num_axes = 3;
       for (int pair = 0; pair < step->head_dim / 2; ++pair) step->pair_axis.push_back(pair % 2 + 1);
       // Axis 0 turns no pair.
       step->positions = [](int64_t axis, int64_t, int64_t token) { return axis == 0 ? 1000000 : token + axis; };
       step->table_rows = step->tokens + 1;
       step->has_fault = true;
     }},
    {"no sums, v as it is",
     [](StepCase *step) {
       step->q.has_grad_weight = step->k.has_grad_weight = false;
       step->flags |= ROPE_FLAG_V_UNROTATED;
       step->v.heads = 2;
       step->v.out = StepOut::Own;
     }},
    {"v normed and not turned, sums of k alone",
     [](StepCase *step) {
       step->norm_tensors = ROPE_NORM_TENSOR_Q | ROPE_NORM_TENSOR_K | ROPE_NORM_TENSOR_V;
       step->flags |= ROPE_FLAG_V_UNROTATED;
       step->q.has_grad_weight = false;
       step->v.heads = 1;
       step->v.out = StepOut::Own;
     }},
    {"other runs of k", [](StepCase *step) { step->k.runs = 7; }},
    {"more heads than threads",
     [](StepCase *step) {
       step->q.heads = std::min(2 * 256 * 16 / step->head_dim + 3, 512);
       step->table_rows = 3;
       step->has_fault = true;
     }},
};

}  // namespace

TEST_CASE("gradients of norms of 16 bits whose heads are vectors", "[rope][step][gradient]") {
  std::vector<std::string> explanations;
  for (const RowsVariant &variant : rows_variants) {
    for (const int32_t head_dim : {16, 36, 64, 96, 128, 256, 512}) {
      INFO(variant.name);
      StepCase step = normed(head_dim % 64 == 0 ? ROPE_DTYPE_BF16 : ROPE_DTYPE_F16);
      step.head_dim = head_dim;
      step.tokens = 7;
      step.explanations = &explanations;
      variant.apply(&step);
      step.check();
      if (head_dim < 128 || step.num_axes > 0) continue;
      step.rotary_dim = head_dim / 2;
      step.rotary_offset = 16;
      step.check();
    }
  }
  check_step_kernels(explanations, {"norm gradient rows"});
}

// The number of tokens makes blocks compute their angles more than once, and makes runs end inside a batch.
TEST_CASE("gradients of norms of 16 bits over many tokens", "[rope][step][gradient]") {
  for (const int64_t runs : {1, 3, 70}) {
    StepCase step = normed(ROPE_DTYPE_BF16);
    step.head_dim = 128;
    step.tokens = 83;
    step.q.heads = 5;
    step.q.runs = step.k.runs = runs;
    step.check();
  }
}

namespace {

using Vector = std::vector<oracle::Real>;

// sum(g * y) of a head that is normed and turned, directly from the formulas.
struct Loss {
  rope_norm_type_t type;
  bool is_after;
  oracle::Real angle;  // of every pair (c, c + D/2)

  Vector turned(const Vector &x) const {
    Vector y = x;
    const size_t half = x.size() / 2;
    for (size_t c = 0; c < half; ++c) {
      y[c] = x[c] * std::cos(angle) - x[c + half] * std::sin(angle);
      y[c + half] = x[c + half] * std::cos(angle) + x[c] * std::sin(angle);
    }
    return y;
  }

  Vector normed_of(Vector x, const Vector &weight) const {
    oracle::Real mean = 0, squares = 0;
    const auto n = static_cast<oracle::Real>(x.size());
    for (const oracle::Real value : x) mean += type == ROPE_NORM_LAYER ? value / n : 0;
    for (oracle::Real &value : x) value -= mean, squares += value * value / n;
    for (size_t c = 0; c < x.size(); ++c) x[c] *= weight[c] / std::sqrt(squares + 1e-6L);
    return x;
  }

  oracle::Real of(const Vector &x, const Vector &weight, const Vector &g) const {
    const Vector y = is_after ? normed_of(turned(x), weight) : turned(normed_of(x, weight));
    oracle::Real sum = 0;
    for (size_t c = 0; c < y.size(); ++c) sum += g[c] * y[c];
    return sum;
  }
};

}  // namespace

TEST_CASE("gradients of norms are those that differences show", "[rope][step][gradient]") {
  constexpr int32_t dim = 24;
  Random random(7);
  for (const rope_norm_type_t type : {ROPE_NORM_RMS, ROPE_NORM_LAYER}) {
    for (const bool is_after : {false, true}) {
      const Loss loss = {type, is_after, 0.7L};
      Workspace workspace(9);
      const auto numbers = [&](const Shape &shape) {
        const rope_tensor_t tensor = workspace.tensor(ROPE_DTYPE_F64, shape);
        workspace.fill_normal(tensor);
        return tensor;
      };
      rope_norm_args_t norm = ROPE_NORM_ARGS_INIT;
      rope_args_t args = rope_args();
      args.q = numbers({1, 1, 1, dim});
      args.q_out = numbers({1, 1, 1, dim});
      norm.q_in = numbers({1, 1, 1, dim});
      norm.q_weight = numbers({dim});
      norm.grad_q_weight = workspace.tensor(ROPE_DTYPE_F64, {1, dim});
      workspace.fill(norm.grad_q_weight, [](const Index &) { return 0; });
      args.angles = workspace.tensor(ROPE_DTYPE_F32, {1, dim / 2});
      workspace.fill(args.angles, [&](const Index &) { return loss.angle; });
      args.norm = &norm;
      workspace.freeze();
      const auto vector_of = [&](const rope_tensor_t &tensor) {
        Vector values;
        for (int64_t c = 0; c < dim; ++c) {
          Index at = {};
          at[tensor.ndim - 1] = c;
          values.push_back(value_at(tensor, at));
        }
        return values;
      };
      const Vector g = vector_of(args.q), x = vector_of(norm.q_in), weight = vector_of(norm.q_weight);
      for (const Device &device : devices()) {
        INFO("on " << device << ", type " << type << (is_after ? ", behind the rotation" : ""));
        rope_config_t config = rope_config_for(device, dim);
        config.dtype = ROPE_DTYPE_F64;
        config.norm = type;
        config.norm_order = is_after ? ROPE_NORM_ORDER_AFTER : ROPE_NORM_ORDER_BEFORE;
        config.norm_eps = 1e-6;
        const RopeDesc desc = create(config);
        workspace.restore();
        REQUIRE(run(device, desc.get(), Direction::Backward, args, workspace) == ROPE_STATUS_SUCCESS);
        const Vector of_x = vector_of(args.q_out), of_weight = vector_of(norm.grad_q_weight);
        const oracle::Real step = 1e-6L;
        for (size_t c = 0; c < dim; ++c) {
          const auto difference = [&](bool of_input) {
            Vector above = of_input ? x : weight, below = above;
            above[c] += step, below[c] -= step;
            const oracle::Real change = of_input ? loss.of(above, weight, g) - loss.of(below, weight, g)
                                                 : loss.of(x, above, g) - loss.of(x, below, g);
            return change / (2 * step);
          };
          // Angles are F32, so the turn differs by up to 1e-8.
          CHECK(std::fabs(of_x[c] - difference(true)) < 1e-6L);
          CHECK(std::fabs(of_weight[c] - difference(false)) < 1e-6L);
        }
      }
    }
  }
}
