// swiglu_tests.cpp - the gate and its gradients over dtypes, packings, strides, aliases and extreme values
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstring>
#include <vector>

#include "support/cases.hpp"

using oracle::Real;

namespace {

const std::vector<rope_dtype_t> dtypes = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16};

const std::vector<Shape> shapes = {{1},        {7},           {64},         {3, 1},        {5, 8},   {3, 33},
                                   {2, 3, 17}, {4, 1, 6},     {2, 3, 4, 5}, {1, 7, 1, 31}, {1, 257}, {2, 1024},
                                   {13, 3},    {2, 2, 2, 24}, {1, 1, 1, 1}, {31, 127}};

constexpr SwigluTensor all_tensors[] = {SwigluTensor::Gate,    SwigluTensor::Up,       SwigluTensor::Out,
                                        SwigluTensor::GradOut, SwigluTensor::GradGate, SwigluTensor::GradUp};

}  // namespace

TEST_CASE("every dtype, rank and width, separate tensors", "[swiglu]") {
  for (rope_dtype_t dtype : dtypes) {
    for (const Shape &shape : shapes) SwigluCase().dtype(dtype).shape(shape).check();
  }
}

TEST_CASE("empty tensors", "[swiglu]") {
  for (rope_dtype_t dtype : dtypes) {
    for (const Shape &shape : {Shape{0}, Shape{0, 5}, Shape{5, 0}, Shape{2, 0, 3}, Shape{2, 3, 4, 0}}) {
      SwigluCase().dtype(dtype).shape(shape).check();
    }
  }
}

TEST_CASE("gate and up packed in one tensor, in either order or alternating", "[swiglu]") {
  const GatePacking packings[] = {GatePacking::Separate, GatePacking::GateFirst, GatePacking::UpFirst,
                                  GatePacking::Alternating};
  for (rope_dtype_t dtype : dtypes) {
    for (GatePacking inputs : packings) {
      for (GatePacking gradients : packings) {
        for (const Shape &shape : {Shape{3, 8}, Shape{5, 33}, Shape{64}, Shape{2, 3, 16}, Shape{2, 2, 3, 7}}) {
          SwigluCase().dtype(dtype).shape(shape).packing(inputs, gradients).check();
        }
      }
    }
  }
}

TEST_CASE("gradients in place in packed inputs", "[swiglu]") {
  for (rope_dtype_t dtype : dtypes) {
    for (GatePacking packing : {GatePacking::GateFirst, GatePacking::UpFirst, GatePacking::Alternating}) {
      SwigluCase()
          .dtype(dtype)
          .shape({5, 40})
          .packing(packing)
          .in_place(SwigluTensor::GradGate, SwigluTensor::Gate)
          .in_place(SwigluTensor::GradUp, SwigluTensor::Up)
          .in_place(SwigluTensor::Out, SwigluTensor::Gate)
          .check();
      SwigluCase()
          .dtype(dtype)
          .shape({5, 19})
          .packing(packing)
          .in_place(SwigluTensor::GradGate, SwigluTensor::Up)
          .in_place(SwigluTensor::GradUp, SwigluTensor::Gate)
          .in_place(SwigluTensor::Out, SwigluTensor::Up)
          .check();
    }
  }
}

TEST_CASE("each output over each input", "[swiglu]") {
  const SwigluTensor inputs[] = {SwigluTensor::Gate, SwigluTensor::Up, SwigluTensor::GradOut};
  for (rope_dtype_t dtype : dtypes) {
    for (const Shape &shape : {Shape{3, 24}, Shape{2, 3, 7}}) {
      SwigluCase().dtype(dtype).shape(shape).in_place(SwigluTensor::Out, SwigluTensor::Gate).check();
      SwigluCase().dtype(dtype).shape(shape).in_place(SwigluTensor::Out, SwigluTensor::Up).check();
      for (SwigluTensor gate_over : inputs) {
        SwigluCase().dtype(dtype).shape(shape).in_place(SwigluTensor::GradGate, gate_over).check();
        SwigluCase().dtype(dtype).shape(shape).in_place(SwigluTensor::GradUp, gate_over).check();
        for (SwigluTensor up_over : inputs) {
          if (up_over == gate_over) continue;
          SwigluCase()
              .dtype(dtype)
              .shape(shape)
              .in_place(SwigluTensor::GradGate, gate_over)
              .in_place(SwigluTensor::GradUp, up_over)
              .check();
        }
      }
    }
  }
}

TEST_CASE("gate and up the same tensor", "[swiglu]") {
  for (rope_dtype_t dtype : dtypes) {
    SwigluCase same;
    same.dtype(dtype).shape({3, 24}).in_place(SwigluTensor::Up, SwigluTensor::Gate);
    SwigluCase(same).check();
    SwigluCase(same).in_place(SwigluTensor::Out, SwigluTensor::Gate).check();
  }
}

TEST_CASE("one gradient alone", "[swiglu]") {
  for (rope_dtype_t dtype : dtypes) {
    for (const Shape &shape : {Shape{3, 24}, Shape{5, 7}}) {
      SwigluCase().dtype(dtype).shape(shape).without(SwigluTensor::GradGate).check();
      SwigluCase().dtype(dtype).shape(shape).without(SwigluTensor::GradUp).check();
      SwigluCase()
          .dtype(dtype)
          .shape(shape)
          .without(SwigluTensor::GradUp)
          .in_place(SwigluTensor::GradGate, SwigluTensor::GradOut)
          .check();
    }
  }
}

TEST_CASE("strides of each tensor", "[swiglu]") {
  const std::vector<Placement> placements = {Placement().order({1, 0}),       Placement().gap(0, 1),
                                             Placement().gap(0, 8),           Placement().gap(1, 1),
                                             Placement().gap(1, 2).gap(0, 3), Placement().reversed(0),
                                             Placement().reversed(1),         Placement().at(1),
                                             Placement().at(4).gap(0, 4),     Placement().order({1, 0}).reversed(1)};
  for (rope_dtype_t dtype : dtypes) {
    for (const Placement &placement : placements) {
      for (SwigluTensor tensor : all_tensors) {
        SwigluCase().dtype(dtype).shape({5, 24}).placed(tensor, placement).check();
      }
      SwigluCase().dtype(dtype).shape({5, 24}).placed(placement).check();
      SwigluCase()
          .dtype(dtype)
          .shape({5, 24})
          .placed(placement)
          .in_place(SwigluTensor::Out, SwigluTensor::Up)
          .in_place(SwigluTensor::GradGate, SwigluTensor::Gate)
          .check();
    }
    for (int axis = 0; axis < 4; ++axis) {
      SwigluCase().dtype(dtype).shape({2, 3, 4, 5}).placed(Placement().reversed(axis).gap(axis, 3)).check();
    }
    SwigluCase().dtype(dtype).shape({2, 3, 4, 5}).placed(Placement().order({2, 0, 3, 1})).check();
    SwigluCase().dtype(dtype).shape({4, 9}).placed(Placement().implicit()).check();
  }
}

TEST_CASE("pointers and rows at every misalignment", "[swiglu]") {
  for (rope_dtype_t dtype : dtypes) {
    for (int64_t start = 0; start <= 8; ++start) {
      SwigluCase().dtype(dtype).shape({3, 40}).placed(Placement().at(start)).check();
      for (SwigluTensor tensor : all_tensors) {
        SwigluCase().dtype(dtype).shape({3, 40}).placed(tensor, Placement().at(start)).check();
      }
    }
    for (int64_t gap = 1; gap <= 8; ++gap) {
      SwigluCase().dtype(dtype).shape({3, 40}).placed(Placement().gap(0, gap)).check();
      SwigluCase().dtype(dtype).shape({3, 40}).placed(SwigluTensor::Up, Placement().gap(0, gap)).check();
    }
  }
}

TEST_CASE("expanded inputs of SwiGLU", "[swiglu]") {
  for (rope_dtype_t dtype : dtypes) {
    for (SwigluTensor input : {SwigluTensor::Gate, SwigluTensor::Up, SwigluTensor::GradOut}) {
      for (int axis : {0, 1, 2}) {
        SwigluCase().dtype(dtype).shape({3, 4, 9}).placed(input, Placement().expanded(axis)).check();
      }
      SwigluCase().dtype(dtype).shape({3, 4, 9}).placed(input, Placement().expanded(0).expanded(1).expanded(2)).check();
    }
  }
}

TEST_CASE("SwiGLU calls large enough for several threads", "[swiglu]") {
  for (rope_dtype_t dtype : dtypes) {
    SwigluCase().dtype(dtype).shape({67, 2731}).packing(GatePacking::GateFirst).check();
    SwigluCase().dtype(dtype).shape({150001}).check();
    SwigluCase().dtype(dtype).shape({20011, 7}).placed(SwigluTensor::Up, Placement().gap(0, 1)).check();
  }
}

TEST_CASE("gates from one end of sigmoid to the other", "[swiglu]") {
  constexpr int64_t count = 40000;
  for (rope_dtype_t dtype : dtypes) {
    SwigluCase()
        .dtype(dtype)
        .shape({count})
        .values([](SwigluTensor tensor, const Index &index) -> Real {
          if (tensor == SwigluTensor::Gate) return -110 + 220 * static_cast<Real>(index[0]) / count;
          return tensor == SwigluTensor::Up ? 1.37L : 0.71L;
        })
        .check();
    SwigluCase()
        .dtype(dtype)
        .shape({count})
        .values([](SwigluTensor tensor, const Index &index) -> Real {
          if (tensor == SwigluTensor::Gate) return -4 + 8 * static_cast<Real>(index[0]) / count;
          return tensor == SwigluTensor::Up ? -1.91L : 1.03L;
        })
        .check();
  }
}

TEST_CASE("the gradient of the gate around its zero", "[swiglu]") {
  // 1 + gate * (1 - sigmoid(gate)) vanishes at -1.278464542761074.
  for (rope_dtype_t dtype : dtypes) {
    SwigluCase()
        .dtype(dtype)
        .shape({4001})
        .without(SwigluTensor::GradUp)
        .values([](SwigluTensor tensor, const Index &index) -> Real {
          const auto step = static_cast<Real>(index[0] - 2000);
          return tensor == SwigluTensor::Gate ? -1.278464542761074L + step * step * step * 1e-12L : 1;
        })
        .check();
  }
}

TEST_CASE("extreme finite values give the right limits", "[swiglu]") {
  for (rope_dtype_t dtype : dtypes) {
    const Real top = oracle::largest(dtype), normal = oracle::smallest_normal(dtype), least = oracle::smallest(dtype);
    std::vector<Real> values;
    for (Real value : {Real{0}, least, normal, normal * 3, Real{1}, Real{0.625}, Real{20}, Real{85}, Real{88.5},
                       Real{95.25}, Real{104}, Real{200}, std::sqrt(normal), std::sqrt(top), top / 2, top}) {
      values.push_back(value);
      values.push_back(-value);
    }
    const auto count = static_cast<int64_t>(values.size());
    SwigluCase()
        .dtype(dtype)
        .shape({count, count, count})
        .values([&](SwigluTensor tensor, const Index &index) {
          return values[index[tensor == SwigluTensor::Gate ? 0 : tensor == SwigluTensor::Up ? 1 : 2]];
        })
        .check();
  }
}

TEST_CASE("random finite bits never give NaN", "[swiglu]") {
  for (rope_dtype_t dtype : dtypes) {
    Random random(31);
    SwigluCase()
        .dtype(dtype)
        .shape({30000})
        .values([&](SwigluTensor, const Index &) {
          for (;;) {
            const uint64_t bits = random.bits();
            const Real value = oracle::decode(dtype, &bits);
            if (std::isfinite(value)) return value;
          }
        })
        .check();
  }
}

TEST_CASE("products of large and small factors", "[swiglu]") {
  SwigluCase()
      .shape({20000})
      .values([random = Random(34)](SwigluTensor tensor, const Index &) mutable -> Real {
        // Where sigmoid is normal and 1 + gate * (1 - sigmoid(gate)) does not cancel.
        if (tensor == SwigluTensor::Gate) return random.bits() & 1 ? random.uniform(-60, -2) : random.uniform(0.1, 60);
        return std::ldexp(random.normal(), static_cast<int>(random.below(240)) - 120);
      })
      .check();
}

TEST_CASE("NaN and infinite inputs of SwiGLU", "[swiglu]") {
  for (rope_dtype_t dtype : dtypes) {
    for (const Device &device : devices()) {
      INFO(oracle::dtype_name(dtype) << " on " << device);
      Workspace workspace(32);
      swiglu_args_t args = swiglu_args();
      const Real gates[] = {NAN, 1, INFINITY, 1, INFINITY, 1};
      const Real ups[] = {1, NAN, 2, INFINITY, -2, -INFINITY};
      args.gate = workspace.tensor(dtype, {6});
      args.up = workspace.tensor(dtype, {6});
      args.out = workspace.tensor(dtype, {6});
      workspace.fill(args.gate, [&](const Index &index) { return gates[index[0]]; });
      workspace.fill(args.up, [&](const Index &index) { return ups[index[0]]; });
      workspace.freeze();
      workspace.restore();
      swiglu_config_t config = swiglu_config_for(device);
      config.dtype = dtype;
      const SwigluDesc desc = create(config);
      REQUIRE(run(device, desc.get(), Direction::Forward, args, workspace) == ROPE_STATUS_SUCCESS);
      CHECK(std::isnan(value_at(args.out, {0})));
      CHECK(std::isnan(value_at(args.out, {1})));
      CHECK(value_at(args.out, {2}) == INFINITY);
      CHECK(value_at(args.out, {3}) == INFINITY);
      CHECK(value_at(args.out, {4}) == -INFINITY);
      CHECK(value_at(args.out, {5}) == -INFINITY);
    }
  }
}

TEST_CASE("alpha 1 and out_scale 1 are the same as 0", "[swiglu]") {
  for (const Device &device : devices()) {
    INFO(device);
    Workspace workspace(33);
    swiglu_args_t args = swiglu_args();
    args.gate = workspace.tensor(ROPE_DTYPE_F32, {100});
    args.up = workspace.tensor(ROPE_DTYPE_F32, {100});
    args.out = workspace.tensor(ROPE_DTYPE_F32, {100});
    workspace.fill_normal(args.gate);
    workspace.fill_normal(args.up);
    workspace.freeze();
    std::vector<std::vector<std::byte>> images;
    for (double one : {0.0, 1.0}) {
      swiglu_config_t config = swiglu_config_for(device);
      config.alpha = config.out_scale = one;
      const SwigluDesc desc = create(config);
      workspace.restore();
      REQUIRE(run(device, desc.get(), Direction::Forward, args, workspace) == ROPE_STATUS_SUCCESS);
      images.push_back(workspace.image());
    }
    const bool same = images[0] == images[1];
    CHECK(same);
  }
}

TEST_CASE("forms of SwiGLU: alpha, limit, up_offset and out_scale, alone and as gpt-oss has them", "[swiglu]") {
  const struct {
    double alpha, limit, up_offset, out_scale;
  } forms[] = {{1.702, 7, 1, 0}, {1.702, 0, 0, 0}, {0, 7, 0, 0}, {0, 0, 1, 0}, {0, 0, 0, 2.5}, {-0.5, 0.75, -0.25, -3}};
  for (rope_dtype_t dtype : dtypes) {
    for (const auto &form : forms) {
      const auto make = [&] {
        return SwigluCase().dtype(dtype).form(form.alpha, form.limit, form.up_offset, form.out_scale);
      };
      make().shape({7, 131}).check();
      make().shape({3, 64}).packing(GatePacking::GateFirst).recomputed().check();
      make().shape({5, 33}).packing(GatePacking::Alternating, GatePacking::Alternating).check();
      make().shape({67, 2731}).recomputed().check();
      make().shape({129}).in_place(SwigluTensor::GradGate, SwigluTensor::Gate).without(SwigluTensor::GradUp).check();
      // Around the limit, and where it is met exactly.
      make()
          .shape({25, 25})
          .values([&](SwigluTensor tensor, const Index &index) -> Real {
            const Real step = (static_cast<Real>(index[tensor == SwigluTensor::Gate ? 0 : 1]) - 12) / 8;
            if (tensor == SwigluTensor::GradOut) return 1.25L;
            return form.limit == 0 ? 4 * step : static_cast<Real>(form.limit) * step;
          })
          .check();
    }
  }
}

TEST_CASE("backward writes the output again, in place or not", "[swiglu]") {
  for (rope_dtype_t dtype : dtypes) {
    SwigluCase().dtype(dtype).shape({5, 77}).recomputed().check();
    SwigluCase().dtype(dtype).shape({5, 77}).recomputed().without(SwigluTensor::GradUp).check();
    SwigluCase()
        .dtype(dtype)
        .shape({6, 32})
        .recomputed()
        .in_place(SwigluTensor::GradGate, SwigluTensor::Gate)
        .in_place(SwigluTensor::GradUp, SwigluTensor::Up)
        .in_place(SwigluTensor::Out, SwigluTensor::GradOut)
        .check();
  }
}

TEST_CASE("a form with extreme numbers gives no NaN", "[swiglu]") {
  for (const Device &device : devices()) {
    INFO(device);
    const double top = 3.4e38;
    std::vector<double> values = {0, 1, 88, 200, 1e30, top};
    for (double value : std::vector<double>(values)) values.push_back(-value);
    const auto count = static_cast<int64_t>(values.size());
    Workspace workspace(35);
    swiglu_args_t args = swiglu_args();
    const Shape shape = {count, count, count};
    for (rope_tensor_t *tensor : {&args.gate, &args.up, &args.grad_out, &args.grad_gate, &args.grad_up, &args.out}) {
      *tensor = workspace.tensor(ROPE_DTYPE_F32, shape);
    }
    workspace.fill(args.gate, [&](const Index &index) -> Real { return values[index[0]]; });
    workspace.fill(args.up, [&](const Index &index) -> Real { return values[index[1]]; });
    workspace.fill(args.grad_out, [&](const Index &index) -> Real { return values[index[2]]; });
    workspace.freeze();
    for (double alpha : {1.702, -3.0, top}) {
      for (double up_offset : {1.0, top, -top}) {
        for (double out_scale : {1.0, 1e-30, top}) {
          swiglu_config_t config = swiglu_config_for(device);
          config.alpha = alpha;
          config.up_offset = up_offset;
          config.out_scale = out_scale;
          const SwigluDesc desc = create(config);
          workspace.restore();
          REQUIRE(run(device, desc.get(), Direction::Backward, args, workspace) == ROPE_STATUS_SUCCESS);
          int64_t num_nans = 0;
          for (const rope_tensor_t &output : {args.grad_gate, args.grad_up, args.out}) {
            for_each_index(output, [&](const Index &at) { num_nans += std::isnan(value_at(output, at)); });
          }
          INFO("alpha " << alpha << ", up_offset " << up_offset << ", out_scale " << out_scale);
          CHECK(num_nans == 0);
        }
      }
    }
  }
}
