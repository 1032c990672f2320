// SPDX-License-Identifier: Apache-2.0
// stack_tests.cpp - the stack that calls on the CPU need: norms, rotations and destinations in the sizes of the largest
// heads, tables, descriptors and explanations. The calls that check() makes are all measured (device.cpp); large heads
// and the instruction sets of other processors are only here.
#include <catch2/catch_test_macros.hpp>
#include <functional>
#include <vector>

#include "support/cases.hpp"
#include "support/child_process.hpp"
#include "support/small_stack.hpp"
#include "support/step_case.hpp"

namespace {

const std::vector<rope_norm_type_t> norms = {0, ROPE_NORM_RMS, ROPE_NORM_LAYER};
const std::vector<rope_dtype_t> dtypes = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64};

void skip_large_frames() {
  if (!has_frames_of_release()) SKIP("frames are larger without optimisation and under sanitizers");
}

void check_stack(const char *what, const std::function<void()> &code) {
  const size_t bytes = stack_of(code);
  INFO(what << " needs " << bytes << " bytes");
  CHECK(bytes <= max_call_stack);
}

// q and k normed, with all that a norm may have, and v without.
StepCase normed(rope_dtype_t dtype, rope_norm_type_t norm, Direction direction, int32_t head_dim) {
  StepCase step;
  step.dtype = dtype;
  step.norm = norm;
  step.direction = direction;
  step.batch = 1;
  step.tokens = 2;
  step.head_dim = head_dim;
  for (StepTensor *tensor : {&step.q, &step.k}) {
    tensor->heads = tensor == &step.q ? 2 : 1;
    tensor->out = StepOut::Own;
    tensor->has_weight = true;
    tensor->has_bias = norm == ROPE_NORM_LAYER;
    if (direction == Direction::Forward) continue;
    tensor->has_grad_weight = true;
    tensor->has_grad_bias = norm == ROPE_NORM_LAYER;
    tensor->runs = 2;
  }
  return step;
}

}  // namespace

TEST_CASE("the stack of norms of every type, order, extent, direction and dtype", "[stack][step]") {
  skip_large_frames();
  for (const rope_dtype_t dtype : dtypes) {
    for (const rope_norm_type_t norm : {ROPE_NORM_RMS, ROPE_NORM_LAYER}) {
      for (const rope_norm_order_t order : {ROPE_NORM_ORDER_BEFORE, ROPE_NORM_ORDER_AFTER}) {
        for (const rope_norm_extent_t extent : {ROPE_NORM_EXTENT_HEAD, ROPE_NORM_EXTENT_TOKEN}) {
          for (const Direction direction : {Direction::Forward, Direction::Backward}) {
            StepCase step = normed(dtype, norm, direction, 1024);
            step.norm_order = order;
            step.norm_extent = extent;
            step.check();
            // Vectors do not take pairs that move. The tables have a column for each channel.
            step.out_style = ROPE_STYLE_INTERLEAVED;
            step.table_rows = 3;
            step.wide_table = true;
            step.check();
            step.style = ROPE_STYLE_INTERLEAVED;
            step.norm_weight_offset = 1;
            step.q.weight_by_head = true;
            step.q.grads_by_head = direction == Direction::Backward;
            step.check();
          }
        }
      }
    }
  }
}

TEST_CASE("the stack of steps to caches and codes, with factors, a pass and roundings", "[stack][step]") {
  skip_large_frames();
  for (const rope_dtype_t dtype : dtypes) {
    const bool has_codes = dtype != ROPE_DTYPE_F64;
    for (const rope_norm_type_t norm : norms) {
      for (const int32_t head_dim : {128, 1024}) {
        for (const rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
          StepCase step = normed(dtype, norm, Direction::Forward, head_dim);
          if (norm == 0) step.q.has_weight = step.k.has_weight = false;
          step.style = style;
          step.rotary_dim = head_dim / 2;
          step.cache.emplace().has_v = true;
          step.cache->slots = {5, 2};
          step.v.heads = 2;
          step.v.out = StepOut::Own;
          step.flags = ROPE_FLAG_V_UNROTATED;
          step.q.factor = RowFactor::ByHead;
          step.check();
          if (has_codes) {
            step.q.out_dtype = step.cache->k_dtype = ROPE_DTYPE_F8_E4M3;
            step.k.out_dtype = step.v.out_dtype = step.cache->v_dtype = ROPE_DTYPE_F8_E5M2;
            step.check();
            step.q.factor = RowFactor::None;
            step.quant_rounding = ROPE_QUANT_ROUND_FIRST;
            step.has_amax = true;
            step.check();
            step.quant_rounding = 0;
            step.q.out_dtype = step.k.out_dtype = step.v.out_dtype = 0;
          }
          step.q.factor = RowFactor::None;
          step.q.has_pass = step.k.has_pass = true;
          step.cache->has_k_pass = norm == 0;
          step.check();
        }
      }
    }
  }
}

TEST_CASE("the stack of rotations, from one style to another in place too, and of tables", "[stack][rope]") {
  skip_large_frames();
  for (const rope_dtype_t dtype : dtypes) {
    StepCase step;
    step.dtype = dtype;
    step.head_dim = 1024;
    step.tokens = 3;
    step.q.heads = 2;
    step.out_style = ROPE_STYLE_INTERLEAVED;
    step.table_rows = 3;
    step.wide_table = true;
    for (const Direction direction : {Direction::Forward, Direction::Backward}) {
      step.direction = direction;
      step.check();
    }
    Device cpu;
    for (const Device &device : devices()) {
      if (device.kind == ROPE_DEVICE_CPU) cpu = device;
    }
    rope_config_t config = rope_config_for(cpu, 1024);
    config.dtype = dtype;
    check_stack("rope_desc_create and rope_desc_destroy", [&] { create(config); });
    const RopeDesc desc = create(config);
    std::vector<double> memory(3 * 512 * 2);
    rope_tensor_t cos = {};
    cos.data = memory.data();
    cos.dtype = dtype;
    cos.ndim = 2;
    cos.shape[0] = 3;
    cos.shape[1] = 512;
    rope_tensor_t sin = cos;
    sin.data = memory.data() + 3 * 512;
    check_stack("rope_fill_tables", [&] { rope_fill_tables(desc.get(), &cos, &sin, nullptr); });
    rope_args_t args = rope_args();
    args.q = cos;
    args.q.ndim = 4;
    args.q.shape[0] = args.q.shape[1] = args.q.shape[2] = 1;
    args.q.shape[3] = 1024;
    char text[256];
    rope_status_t status = ROPE_STATUS_SUCCESS;
    check_stack("rope_explain", [&] { status = rope_explain(desc.get(), &args, text, sizeof text); });
    CHECK(status == ROPE_STATUS_SUCCESS);
  }
}

TEST_CASE("the stack of SwiGLU with every option", "[stack][swiglu]") {
  skip_large_frames();
  for (const rope_dtype_t dtype : dtypes) {
    for (const int32_t activation :
         {SWIGLU_ACTIVATION_SWIGLU, SWIGLU_ACTIVATION_GEGLU_ERF, SWIGLU_ACTIVATION_GEGLU_TANH}) {
      SwigluCase().dtype(dtype).shape({3, 700}).activation(activation).recomputed().check();
      SwigluCase()
          .dtype(dtype)
          .shape({3, 700})
          .activation(activation)
          .form(activation == SWIGLU_ACTIVATION_SWIGLU ? 1.5 : 1, 4, 1, 2)
          .soft_caps(3, 2)
          .row_scale(1, ROPE_DTYPE_F32)
          .grad_row_scale()
          .biases(ROPE_DTYPE_F32)
          .recomputed()
          .check();
    }
  }
}

TEST_CASE("threads of 64 KiB make calls of every kind", "[stack][threads]") {
  skip_large_frames();
  skip_forks_under_sanitizers();
  const Device &cpu = devices().front();  // found here: CUDA does not survive a fork
  REQUIRE(cpu.kind == ROPE_DEVICE_CPU);
  CHECK(holds_in_child([&] {
    constexpr int64_t tokens = 512, heads = 4, channels = 128, elements = tokens * heads * channels;
    std::vector<double> in(elements), gradient(elements), out(elements), sums(size_t{2} * channels);
    bool are_right = true;
    for (const rope_dtype_t dtype : dtypes) {
      rope_config_t config = rope_config_for(cpu, channels);
      config.dtype = dtype;
      config.layout = ROPE_LAYOUT_THD;
      config.num_threads = 3;
      config.norm = ROPE_NORM_LAYER;
      config.norm_tensors = ROPE_NORM_TENSOR_Q;
      config.norm_extent = ROPE_NORM_EXTENT_TOKEN;
      config.norm_eps = 1e-6;
      run_on_stack(size_t{58} << 10, [&] {  // 6 KiB are the thread's own
        rope_desc_t *desc = nullptr;
        are_right = are_right && rope_desc_create(&config, &desc) == ROPE_STATUS_SUCCESS;
        rope_args_t args = rope_args();
        args.q = {};
        args.q.data = gradient.data();
        args.q.dtype = dtype;
        args.q.ndim = 3;
        args.q.shape[0] = tokens;
        args.q.shape[1] = heads;
        args.q.shape[2] = channels;
        args.q_out = args.q;
        args.q_out.data = out.data();
        rope_norm_args_t norm = ROPE_NORM_ARGS_INIT;
        args.norm = &norm;
        are_right = are_right && rope_forward(desc, &args, nullptr) == ROPE_STATUS_SUCCESS;
        norm.q_in = args.q;
        norm.q_in.data = in.data();
        rope_tensor_t &row = norm.grad_q_weight;
        row.data = sums.data();
        row.dtype = dtype == ROPE_DTYPE_F64 ? ROPE_DTYPE_F64 : ROPE_DTYPE_F32;
        row.ndim = 2;
        row.shape[0] = 1;
        row.shape[1] = channels;
        are_right = are_right && rope_backward(desc, &args, nullptr) == ROPE_STATUS_SUCCESS;
        rope_desc_destroy(desc);
      });
    }
    return are_right;
  }));
}
