// SPDX-License-Identifier: Apache-2.0
// float_environment_tests.cpp - a caller's rounding mode, flush to zero and traps do not affect results and are
// restored
#include <fenv.h>
#include <rope/rope.h>

#include <catch2/catch_test_macros.hpp>
#include <cstring>
#include <functional>
#include <vector>

#include "support/child_process.hpp"
#include "support/device.hpp"
#include "support/float_state.hpp"

namespace {

using Bytes = std::vector<std::byte>;

struct Setting {
  const char *name;
  std::function<void()> enter;
  bool may_trap = false;
};

const std::vector<Setting> &settings() {
  static const std::vector<Setting> all = {
      {"upward", [] { fesetround(FE_UPWARD); }},
      {"downward", [] { fesetround(FE_DOWNWARD); }},
      {"toward zero", [] { fesetround(FE_TOWARDZERO); }},
      {"flush to zero", flush_to_zero},
      {"exceptions noted", [] { feraiseexcept(FE_DIVBYZERO | FE_OVERFLOW); }},
      {"all at once",
       [] {
         fesetround(FE_UPWARD);
         flush_to_zero();
         feraiseexcept(FE_INVALID);
       }},
      // A trapped exception ends the process. Not every aarch64 processor can trap.
      {"exceptions trapped", [] { feenableexcept(FE_ALL_EXCEPT); }, true},
  };
  return all;
}

// Runs `call` under a setting and then restores the default one. Returns false if the call changed the setting.
bool is_kept_by(const Setting &setting, const std::function<void()> &call) {
  fenv_t before;
  fegetenv(&before);
  feclearexcept(FE_ALL_EXCEPT);
  setting.enter();
  const auto entered = float_state();
  call();
  const auto left = float_state();
  fesetenv(&before);
  return left == entered;
}

void run_under(const Setting &setting, const std::function<void()> &call) {
  INFO("under " << setting.name);
  CHECK(is_kept_by(setting, call));
}

const Setting default_setting = {"the default", [] {}};

void must_succeed(rope_status_t status) {
  if (status != ROPE_STATUS_SUCCESS) FAIL(rope_last_error());
}

// Normal and subnormal numbers, signed zeros, infinities and NaN, enough for several CPU threads. Every run makes the
// same calls; their image is what they write.
class Calls {
 public:
  Calls(const Device &device, int32_t num_threads) : device_(device), num_threads_(num_threads) {
    for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_BF16, ROPE_DTYPE_F64}) {
      Ropes &ropes = ropes_.emplace_back();
      ropes.dtype = dtype;
      ropes.computed = tensor(dtype, {1, 280, 13, 64});
      ropes.by_angles = tensor(dtype, {1, 280, 13, 64});
      ropes.angles = workspace_.tensor(ROPE_DTYPE_F32, {280, 32});
      workspace_.fill_normal(ropes.angles);
      Gates &gates = gates_.emplace_back();
      gates.dtype = dtype;
      gates.gate = tensor(dtype, {280, 1023});
      gates.up = tensor(dtype, {280, 1023});
      gates.out = workspace_.tensor(dtype, {280, 1023});
      gates.grad_out = tensor(dtype, {280, 1023});
      gates.grad_gate = workspace_.tensor(dtype, {280, 1023});
      gates.grad_up = workspace_.tensor(dtype, {280, 1023});
      gates.row_scale = tensor(dtype, {280});
      gates.grad_row_scale = workspace_.tensor(dtype, {280});
      Tables &tables = tables_.emplace_back();
      tables.cos = workspace_.tensor(dtype, {101, 32});
      tables.sin = workspace_.tensor(dtype, {101, 32});
    }
    workspace_.freeze();
  }

  // Creates the descriptors under `creation` and makes each call separately under `calling`.
  Bytes run(const Setting &creation, const Setting &calling) {
    workspace_.restore();
    for (size_t i = 0; i < ropes_.size(); ++i) {
      const Ropes &ropes = ropes_[i];
      rope_config_t config = rope_config_for(device_, 64);
      config.dtype = ropes.dtype;
      config.theta = 12345.678;
      config.attention_scale = 1.1;
      config.num_threads = num_threads_;
      rope_desc_t *made = nullptr;
      run_under(creation, [&] { must_succeed(rope_desc_create(&config, &made)); });
      const RopeDesc desc(made);
      rope_args_t args = rope_args();
      args.q = ropes.computed;
      args.position_offset = 99991;
      call(calling, [&] { must_succeed(::run(device_, desc.get(), Direction::Forward, args, workspace_)); });
      args.q = ropes.by_angles;
      args.angles = ropes.angles;
      args.position_offset = 0;
      args.table_rows = ROPE_TABLE_BY_TOKEN;
      call(calling, [&] { must_succeed(::run(device_, desc.get(), Direction::Backward, args, workspace_)); });
      call(calling, [&] { must_succeed(::run(device_, desc.get(), tables_[i].cos, tables_[i].sin, workspace_)); });
    }
    for (const Gates &gates : gates_) {
      swiglu_config_t config = swiglu_config_for(device_);
      config.dtype = gates.dtype;
      config.alpha = 1.702;
      config.limit = 7.1;
      config.up_offset = 0.3;
      config.out_scale = 1.0 / 3;
      config.num_threads = num_threads_;
      swiglu_desc_t *made = nullptr;
      run_under(creation, [&] { must_succeed(swiglu_desc_create(&config, &made)); });
      const SwigluDesc desc(made);
      swiglu_args_t args = swiglu_args();
      args.gate = gates.gate;
      args.up = gates.up;
      args.row_scale = gates.row_scale;
      args.out = gates.out;
      call(calling, [&] { must_succeed(::run(device_, desc.get(), Direction::Forward, args, workspace_)); });
      args.out = {};
      args.grad_out = gates.grad_out;
      args.grad_gate = gates.grad_gate;
      args.grad_up = gates.grad_up;
      args.grad_row_scale = gates.grad_row_scale;
      call(calling, [&] { must_succeed(::run(device_, desc.get(), Direction::Backward, args, workspace_)); });
    }
    return workspace_.image();
  }

 private:
  struct Ropes {
    rope_dtype_t dtype;
    rope_tensor_t computed, by_angles, angles;
  };
  struct Gates {
    rope_dtype_t dtype;
    rope_tensor_t gate, up, out, grad_out, grad_gate, grad_up, row_scale, grad_row_scale;
  };
  struct Tables {
    rope_tensor_t cos, sin;
  };

  rope_tensor_t tensor(rope_dtype_t dtype, const Shape &shape) {
    const rope_tensor_t result = workspace_.tensor(dtype, shape);
    workspace_.fill_mixed(result);
    return result;
  }

  // The environment after a CUDA call is not checked: run() also copies memory by the CUDA runtime.
  void call(const Setting &setting, const std::function<void()> &call) {
    if (device_.kind == ROPE_DEVICE_CPU) {
      run_under(setting, call);
    } else {
      is_kept_by(setting, call);
    }
  }

  Device device_;
  int32_t num_threads_;
  Workspace workspace_{82};
  std::vector<Ropes> ropes_;
  std::vector<Gates> gates_;
  std::vector<Tables> tables_;
};

}  // namespace

TEST_CASE("no bit depends on the caller's floating-point environment", "[float environment][threads]") {
  for (const Device &device : devices()) {
    for (const int32_t num_threads : {1, 4}) {
      Calls calls(device, num_threads);
      const Bytes expected = calls.run(default_setting, default_setting);
      for (const Setting &setting : settings()) {
        INFO(device << ", " << num_threads << " threads, " << setting.name);
        // the driver's arithmetic cannot be controlled
        if (device.kind == ROPE_DEVICE_CUDA && setting.may_trap) continue;
        const bool are_same_when_called = calls.run(default_setting, setting) == expected;
        CHECK(are_same_when_called);
        const bool are_same_when_created = calls.run(setting, default_setting) == expected;
        CHECK(are_same_when_created);
      }
    }
  }
}

TEST_CASE("threads of the pool keep nothing of the environment they were started in", "[float environment][threads]") {
  skip_forks_under_sanitizers();
  Calls alone(devices()[0], 1), together(devices()[0], 4);
  const Bytes expected = alone.run(default_setting, default_setting);
  const bool are_same_before = together.run(default_setting, default_setting) == expected;
  REQUIRE(are_same_before);
  for (const Setting &setting : settings()) {
    INFO("the first call " << setting.name);
    // The child's first call starts threads. Other tests check the environment after the calls.
    CHECK(holds_in_child([&] {
      together.run(default_setting, setting);
      return together.run(default_setting, default_setting) == expected;
    }));
  }
}

TEST_CASE("recipes and sections are computed in the default environment", "[float environment]") {
  rope_scaling_t scaling = {};
  scaling.struct_size = sizeof scaling;
  scaling.type = ROPE_SCALING_YARN;
  scaling.factor = 3.7;
  scaling.original_max_position = 4096;
  rope_sections_t sections = {};
  sections.struct_size = sizeof sections;
  sections.type = ROPE_SECTIONS_RESTARTED;
  sections.num_sections = 2;
  sections.section[0] = 13;
  sections.section[1] = 51;
  struct Frequencies {
    double scaled[64], scale, sectioned[64];
    int32_t axes[64];
  };
  const auto compute = [&](const Setting &setting) {
    Frequencies result;
    std::memset(&result, 0, sizeof result);
    run_under(setting, [&] {
      must_succeed(rope_scaled_frequencies(128, 54321.987, &scaling, result.scaled, &result.scale));
      must_succeed(rope_section_axes(128, 54321.987, &sections, result.axes, result.sectioned));
    });
    return result;
  };
  const Frequencies expected = compute(default_setting);
  for (const Setting &setting : settings()) {
    INFO(setting.name);
    const Frequencies found = compute(setting);
    CHECK(std::memcmp(&found, &expected, sizeof found) == 0);
  }
}

TEST_CASE("a refusal leaves the environment too", "[float environment]") {
  for (const Setting &setting : settings()) {
    run_under(setting, [] {
      rope_config_t config = rope_config_for(devices()[0], 64);
      config.theta = 1e-310;
      rope_desc_t *desc;
      if (rope_desc_create(&config, &desc) != ROPE_STATUS_INVALID_ARGUMENT) FAIL("served");
    });
  }
}
