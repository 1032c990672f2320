// SPDX-License-Identifier: Apache-2.0
// swiglu_tests.cpp - the gate and its gradients over dtypes, packings, strides, aliases and extreme values
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "support/cases.hpp"

using oracle::Real;

namespace {

const std::vector<rope_dtype_t> dtypes = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64};

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
                                  GatePacking::Alternating, GatePacking::AlternatingUpFirst};
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
    for (GatePacking packing :
         {GatePacking::GateFirst, GatePacking::UpFirst, GatePacking::Alternating, GatePacking::AlternatingUpFirst}) {
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

TEST_CASE("packed rows as long as several blocks", "[swiglu]") {
  for (rope_dtype_t dtype : dtypes) {
    for (GatePacking packing : {GatePacking::GateFirst, GatePacking::UpFirst, GatePacking::Blocks}) {
      for (const int64_t columns : {2048, 6144, 2056}) {
        SwigluCase().dtype(dtype).shape({3, columns}).packing(packing, packing).check();
      }
    }
    SwigluCase().dtype(dtype).shape({3, 4096}).packing(GatePacking::Alternating).row_scale(1).check();
  }
}

TEST_CASE("gate and up that alternate, wherever rows begin and end", "[swiglu]") {
  const GatePacking packings[] = {GatePacking::Separate, GatePacking::Alternating, GatePacking::AlternatingUpFirst};
  const auto alternate = [](GatePacking packing, const Placement &both, const Placement &alone) {
    return packing == GatePacking::Separate ? alone : both;
  };
  for (rope_dtype_t dtype : dtypes) {
    for (GatePacking inputs : packings) {
      for (GatePacking gradients : packings) {
        const auto make = [&](const Shape &shape, const Placement &both, const Placement &alone) {
          return SwigluCase()
              .dtype(dtype)
              .shape(shape)
              .packing(inputs, gradients)
              .placed(alone)
              .placed(SwigluTensor::Gate, alternate(inputs, both, alone))
              .placed(SwigluTensor::GradGate, alternate(gradients, both, alone));
        };
        // Shapes have one axis, with and without a remainder of vectors; rows that lie apart, with and without whole
        // vectors; and rows over two axes.
        for (const int64_t columns : {1, 2, 3, 4, 5, 8, 15, 16, 17, 24, 31, 67}) {
          make({columns}, {}, {}).recomputed().check();
          const int64_t pitch = (columns + 23) / 16 * 16;
          const Placement both = Placement().gap(0, 2 * (pitch - columns)), alone = Placement().gap(0, pitch - columns);
          make({4, columns}, both, alone).check();
          make({4, columns}, both, alone).recomputed().row_scale(1).num_rows(3, ROPE_DTYPE_I32).check();
          make({4, columns}, both, alone).form(1.702, 7, 1, 0).row_scale(1, ROPE_DTYPE_F32).check();
          make({2, 3, columns}, Placement(both).gap(0, 32).gap(1, 16), Placement(alone).gap(0, 16).gap(1, 48)).check();
        }
        for (int64_t start = 1; start <= 9; ++start) {
          make({3, 40}, Placement().at(start), {}).check();
          make({3, 40}, {}, Placement().at(start)).check();
        }
        for (int64_t gap = 1; gap <= 9; ++gap) make({3, 40}, Placement().gap(0, gap), {}).check();
        make({3, 40}, Placement().reversed(0), {}).check();
        make({3, 40}, Placement().reversed(1), {}).check();
        make({3, 40}, Placement().gap(1, 1), {}).check();
        make({6, 40}, Placement().order({1, 0}), {}).check();
        make({3, 40}, {}, {}).without(SwigluTensor::GradGate).check();
        make({3, 40}, {}, {}).without(SwigluTensor::GradUp).recomputed().check();
      }
    }
    // This shape is large enough for vectors of full width on GPUs of up to 170 multiprocessors.
    const Shape large = {284 / oracle::element_size(dtype) + 1, 2881};
    SwigluCase()
        .dtype(dtype)
        .shape(large)
        .packing(GatePacking::AlternatingUpFirst, GatePacking::AlternatingUpFirst)
        .form(1.702, 7, 1, 0)
        .check();
    SwigluCase()
        .dtype(dtype)
        .shape(large)
        .packing(GatePacking::Alternating)
        .in_place(SwigluTensor::GradGate, SwigluTensor::Gate)
        .in_place(SwigluTensor::GradUp, SwigluTensor::Up)
        .in_place(SwigluTensor::Out, SwigluTensor::GradOut)
        .recomputed()
        .check();
  }
}

TEST_CASE("gradients in place of gate and up that alternate, over rows", "[swiglu]") {
  for (rope_dtype_t dtype : dtypes) {
    for (GatePacking packing : {GatePacking::Alternating, GatePacking::AlternatingUpFirst}) {
      for (const int64_t columns : {8, 19, 40}) {
        const int64_t pitch = (columns + 15) / 16 * 16;
        const auto make = [&] {
          return SwigluCase()
              .dtype(dtype)
              .shape({5, columns})
              .packing(packing)
              .placed(Placement().gap(0, pitch - columns))
              .placed(SwigluTensor::Gate, Placement().gap(0, 2 * (pitch - columns)))
              .form(1.702, 7, 1, 0)
              .row_scale(1)
              .num_rows(4, ROPE_DTYPE_I64);
        };
        for (const bool is_crosswise : {false, true}) {
          make()
              .in_place(SwigluTensor::GradGate, is_crosswise ? SwigluTensor::Up : SwigluTensor::Gate)
              .in_place(SwigluTensor::GradUp, is_crosswise ? SwigluTensor::Gate : SwigluTensor::Up)
              .check();
        }
        make().in_place(SwigluTensor::Out, SwigluTensor::Gate).check();
        make().in_place(SwigluTensor::GradUp, SwigluTensor::Gate).check();
        make().in_place(SwigluTensor::GradGate, SwigluTensor::GradOut).check();
      }
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

// 34 MiB are enough for CPUs to write past their caches; a seventeenth of the rows is not.
TEST_CASE("an output too large for caches has the bits of its parts, and nothing between rows is written", "[swiglu]") {
  constexpr int64_t kParts = 17;
  const std::pair<rope_dtype_t, int32_t> kinds[] = {{ROPE_DTYPE_F32, SWIGLU_ACTIVATION_SWIGLU},
                                                    {ROPE_DTYPE_F16, SWIGLU_ACTIVATION_SWIGLU},
                                                    {ROPE_DTYPE_BF16, SWIGLU_ACTIVATION_SWIGLU},
                                                    {ROPE_DTYPE_F16, SWIGLU_ACTIVATION_GEGLU_TANH},
                                                    {ROPE_DTYPE_BF16, SWIGLU_ACTIVATION_GEGLU_ERF}};
  for (const auto &[dtype, activation] : kinds) {
    const int64_t size = oracle::element_size(dtype);
    // Rows of 1501 elements begin anywhere in a cache line if there is a gap; without one they form one run.
    for (const int64_t gap : {0, 37}) {
      const int64_t columns = 1501, rows = ((int64_t{34} << 20) / size / columns / kParts + 1) * kParts;
      const int64_t elements = 1 + rows * (columns + gap);
      // The numbers are about 1 in F16 and BF16. Two of them are one number of F32, which is about 1 too.
      std::vector<uint16_t> gate(static_cast<size_t>(elements * size / 2)), up = gate;
      for (size_t i = 0; i < gate.size(); ++i) {
        gate[i] = static_cast<uint16_t>((i * 40503 >> 3 & 0x81ff) + 0x3e00);
        up[i] = static_cast<uint16_t>((i * 25173 >> 5 & 0x81ff) + 0x3e00);
      }
      std::vector<uint16_t> expected(gate.size(), 0xabcd), out = expected, expected_in_place = gate;
      swiglu_config_t config = swiglu_config_for(devices()[0]);
      config.dtype = dtype;
      config.activation = activation;
      const SwigluDesc desc = create(config);
      const auto gate_rows = [&, type = dtype](std::vector<uint16_t> &to, int64_t begin, int64_t count) {
        const auto view_of = [&](std::vector<uint16_t> &data) {
          rope_tensor_t view = {};
          view.data = data.data() + (1 + begin * (columns + gap)) * size / 2;
          view.dtype = type;
          view.flags = ROPE_TENSOR_STRIDED;
          view.ndim = 2;
          view.shape[0] = count;
          view.shape[1] = columns;
          view.stride[0] = columns + gap;
          view.stride[1] = 1;
          return view;
        };
        swiglu_args_t args = swiglu_args();
        args.gate = view_of(gate);
        args.up = view_of(up);
        args.out = view_of(to);
        REQUIRE(swiglu_forward(desc.get(), &args, nullptr) == ROPE_STATUS_SUCCESS);
      };
      for (int64_t part = 0; part < kParts; ++part) gate_rows(expected, part * rows / kParts, rows / kParts);
      gate_rows(out, 0, rows);
      INFO(oracle::dtype_name(dtype) << ", activation " << activation << ", rows apart by " << gap);
      const bool same = out == expected;
      CHECK(same);
      for (int64_t row = 0; row < rows; ++row) {
        const auto at = (1 + row * (columns + gap)) * size / 2;
        std::copy_n(expected.begin() + at, columns * size / 2, expected_in_place.begin() + at);
      }
      gate_rows(gate, 0, rows);
      const bool same_in_place = gate == expected_in_place;
      CHECK(same_in_place);
    }
  }
}

TEST_CASE("gates from one end of sigmoid to the other", "[swiglu]") {
  constexpr int64_t count = 40000;
  for (rope_dtype_t dtype : dtypes) {
    SwigluCase()
        .dtype(dtype)
        .shape({count})
        .values([dtype](SwigluTensor tensor, const Index &index) -> Real {
          const Real end = dtype == ROPE_DTYPE_F64 ? 760 : 110;
          if (tensor == SwigluTensor::Gate) return -end + 2 * end * static_cast<Real>(index[0]) / count;
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
    const Real top = oracle::max_finite(dtype), normal = oracle::min_normal(dtype), min = oracle::min_positive(dtype);
    std::vector<Real> values;
    for (Real value :
         {Real{0}, min, normal, normal * 3, Real{1}, Real{0.625}, Real{20}, Real{85}, Real{88.5}, Real{95.25},
          Real{104}, Real{200}, Real{700}, Real{744.5}, std::sqrt(normal), std::sqrt(top), top / 2, top}) {
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
        // For these gates sigmoid is normal and 1 + gate * (1 - sigmoid(gate)) does not cancel.
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

TEST_CASE("infinite inputs show, whatever the form and row_scale", "[swiglu]") {
  for (rope_dtype_t dtype : dtypes) {
    for (const Device &device : devices()) {
      INFO(oracle::dtype_name(dtype) << " on " << device);
      Workspace workspace(40);
      swiglu_args_t args = swiglu_args();
      // Each row has one infinity: in up, in grad_out, in row_scale, in gate.
      const Shape shape = {4, 100};
      for (rope_tensor_t *tensor : {&args.gate, &args.up, &args.grad_out, &args.grad_gate, &args.grad_up, &args.out}) {
        *tensor = workspace.tensor(dtype, shape);
      }
      args.row_scale = workspace.tensor(dtype, {4});
      args.grad_row_scale = workspace.tensor(dtype, {4});
      const auto fill = [&](const rope_tensor_t &tensor, int64_t row) {
        workspace.fill(tensor, [&](const Index &at) -> Real {
          return at[0] == row && (tensor.ndim == 1 || at[1] == 50) ? INFINITY : 1 + static_cast<Real>(at[1] % 3);
        });
      };
      fill(args.up, 0);
      fill(args.grad_out, 1);
      fill(args.row_scale, 2);
      fill(args.gate, 3);
      workspace.freeze();
      workspace.restore();
      swiglu_config_t config = swiglu_config_for(device);
      config.dtype = dtype;
      config.alpha = 0.25;
      config.up_offset = 1;
      config.out_scale = 0.125;
      const SwigluDesc desc = create(config);
      REQUIRE(run(device, desc.get(), Direction::Backward, args, workspace) == ROPE_STATUS_SUCCESS);
      CHECK(value_at(args.out, {0, 50}) == INFINITY);
      CHECK(value_at(args.grad_gate, {0, 50}) == INFINITY);
      CHECK(value_at(args.grad_gate, {1, 50}) == INFINITY);
      CHECK(value_at(args.grad_up, {1, 50}) == INFINITY);
      CHECK(value_at(args.out, {2, 7}) == INFINITY);
      CHECK(value_at(args.grad_up, {2, 7}) == INFINITY);
      CHECK(value_at(args.out, {3, 50}) == INFINITY);
      for (const int64_t row : {0, 1, 3}) CHECK(value_at(args.grad_row_scale, {row}) == INFINITY);
      CHECK(std::isfinite(value_at(args.grad_row_scale, {2})));
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
      // Values lie around the limit, and exactly at it.
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

TEST_CASE("a form or a row_scale with extreme numbers gives no NaN", "[swiglu]") {
  for (const Device &device : devices()) {
    for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F64}) {
      INFO(oracle::dtype_name(dtype) << " on " << device);
      const double max = static_cast<double>(oracle::max_finite(dtype)), top = 3.4e38;
      std::vector<double> values = {0, 1, 88, 200, 1e30, max};
      for (double value : std::vector<double>(values)) values.push_back(-value);
      const auto count = static_cast<int64_t>(values.size());
      Workspace workspace(35);
      swiglu_args_t args = swiglu_args();
      const Shape shape = {count, count, count};
      for (rope_tensor_t *tensor : {&args.gate, &args.up, &args.grad_out, &args.grad_gate, &args.grad_up, &args.out}) {
        *tensor = workspace.tensor(dtype, shape);
      }
      workspace.fill(args.gate, [&](const Index &index) -> Real { return values[index[2]]; });
      workspace.fill(args.up, [&](const Index &index) -> Real { return values[index[0]]; });
      workspace.fill(args.grad_out, [&](const Index &index) -> Real { return values[index[1]]; });
      const rope_tensor_t row_scale = workspace.tensor(dtype, {count});
      const rope_tensor_t grad_row_scale = workspace.tensor(dtype, {count});
      workspace.fill(row_scale, [&](const Index &index) -> Real { return values[(index[0] + 5) % count]; });
      workspace.freeze();
      enum Scaled {
        no,
        yes,
        and_its_gradient
      };
      for (double alpha : {1.702, -3.0, top}) {
        for (double up_offset : {1.0, top, -top}) {
          for (double out_scale : {1.0, 1e-30, top}) {
            for (const Scaled scaled : {no, yes, and_its_gradient}) {
              swiglu_config_t config = swiglu_config_for(device);
              config.dtype = dtype;
              config.alpha = alpha;
              config.up_offset = up_offset;
              config.out_scale = out_scale;
              const SwigluDesc desc = create(config);
              workspace.restore();
              args.row_scale = scaled == no ? rope_tensor_t{} : row_scale;
              args.grad_row_scale = scaled == and_its_gradient ? grad_row_scale : rope_tensor_t{};
              REQUIRE(run(device, desc.get(), Direction::Backward, args, workspace) == ROPE_STATUS_SUCCESS);
              int64_t num_nans = 0;
              for (const rope_tensor_t &output : {args.grad_gate, args.grad_up, args.out, args.grad_row_scale}) {
                if (output.ndim == 0) continue;
                for_each_index(output, [&](const Index &at) { num_nans += std::isnan(value_at(output, at)); });
              }
              INFO("alpha " << alpha << ", up_offset " << up_offset << ", out_scale " << out_scale << ", row_scale "
                            << scaled);
              CHECK(num_nans == 0);
            }
          }
        }
      }
    }
  }
}

namespace {

const struct NamedForm {
  const char *name;
  double alpha, limit, up_offset, out_scale;
} named_forms[] = {{"plain", 0, 0, 0, 0},     {"alpha", 1.702, 0, 0, 0},    {"limit", 0, 7, 0, 0},
                   {"up_offset", 0, 0, 1, 0}, {"out_scale", 0, 0, 0, -2.5}, {"all", 1.702, 0.75, 1, 0.5}};

SwigluCase formed(const NamedForm &form, rope_dtype_t dtype) {
  return SwigluCase().dtype(dtype).form(form.alpha, form.limit, form.up_offset, form.out_scale);
}

// The types that row_scale may have.
std::vector<rope_dtype_t> row_scale_dtypes(rope_dtype_t dtype) {
  return dtype == ROPE_DTYPE_F32 ? std::vector<rope_dtype_t>{ROPE_DTYPE_F32}
                                 : std::vector<rope_dtype_t>{ROPE_DTYPE_F32, dtype};
}

struct PackedShape {
  GatePacking packing;
  Shape shape;
  int row_axes;
};

const PackedShape packed_shapes[] = {
    {GatePacking::Separate, {5, 40}, 1},      {GatePacking::Separate, {3, 4, 17}, 1},
    {GatePacking::Separate, {3, 4, 16}, 2},   {GatePacking::GateFirst, {5, 24}, 1},
    {GatePacking::UpFirst, {2, 3, 19}, 2},    {GatePacking::Alternating, {6, 21}, 1},
    {GatePacking::Alternating, {2, 3, 8}, 1}, {GatePacking::AlternatingUpFirst, {5, 32}, 1},
    {GatePacking::Blocks, {5, 3, 32}, 1},     {GatePacking::Blocks, {4, 2, 32}, 2},
    {GatePacking::Blocks, {3, 5, 7}, 1},      {GatePacking::Separate, {2, 3, 2, 9}, 3}};

}  // namespace

TEST_CASE("row_scale over forms and packings", "[swiglu]") {
  for (rope_dtype_t dtype : dtypes) {
    for (const NamedForm &form : named_forms) {
      for (const PackedShape &packed : packed_shapes) {
        for (rope_dtype_t scale : row_scale_dtypes(dtype)) {
          const SwigluCase scaled =
              formed(form, dtype).shape(packed.shape).packing(packed.packing).row_scale(packed.row_axes, scale);
          SwigluCase(scaled).check();
          SwigluCase(scaled).recomputed().grad_row_scale().check();
          SwigluCase(scaled).packing(packed.packing, packed.packing).grad_row_scale_in_place().check();
        }
      }
    }
  }
}

TEST_CASE("num_rows over forms and packings, with and without row_scale", "[swiglu]") {
  for (rope_dtype_t dtype : dtypes) {
    for (const NamedForm &form : {named_forms[0], named_forms[5]}) {
      for (const PackedShape &packed : packed_shapes) {
        const int64_t rows = packed.shape[0];
        for (const int64_t count : {int64_t{0}, int64_t{1}, rows - 1, rows, rows + 3, int64_t{-2}}) {
          for (rope_dtype_t type : {ROPE_DTYPE_I32, ROPE_DTYPE_I64}) {
            const SwigluCase limited =
                formed(form, dtype).shape(packed.shape).packing(packed.packing).num_rows(count, type);
            SwigluCase(limited).recomputed().check();
            SwigluCase(limited).row_scale(packed.row_axes, ROPE_DTYPE_F32).check();
            SwigluCase(limited).row_scale(packed.row_axes, ROPE_DTYPE_F32).grad_row_scale().check();
          }
        }
        for (const int64_t count : {INT64_MIN, INT64_MAX, int64_t{1} << 32}) {
          const SwigluCase limited = formed(form, dtype).shape(packed.shape).num_rows(count, ROPE_DTYPE_I64);
          SwigluCase(limited).check();
          SwigluCase(limited).row_scale(packed.row_axes, ROPE_DTYPE_F32).grad_row_scale().check();
        }
      }
    }
  }
}

TEST_CASE("num_rows of a tensor of one axis, and of a first axis of length 1", "[swiglu]") {
  for (rope_dtype_t dtype : dtypes) {
    for (const int64_t count : {-1, 0, 1, 100, 129, 500}) {
      SwigluCase().dtype(dtype).shape({129}).num_rows(count, ROPE_DTYPE_I32).check();
      SwigluCase().dtype(dtype).shape({129, 1}).row_scale(1).grad_row_scale().num_rows(count, ROPE_DTYPE_I64).check();
      SwigluCase().dtype(dtype).shape({1, 129}).row_scale(1).grad_row_scale().num_rows(count, ROPE_DTYPE_I32).check();
      SwigluCase().dtype(dtype).shape({1, 7, 20}).row_scale(2).num_rows(count, ROPE_DTYPE_I32).check();
      SwigluCase().dtype(dtype).shape({1, 1}).row_scale(1).grad_row_scale().num_rows(count, ROPE_DTYPE_I32).check();
      SwigluCase().dtype(dtype).shape({1}).num_rows(count, ROPE_DTYPE_I32).check();
    }
  }
}

TEST_CASE("row_scale, its gradient and num_rows over layouts", "[swiglu]") {
  const std::vector<Placement> placements = {
      Placement().order({1, 0}), Placement().gap(0, 1),   Placement().gap(0, 8),       Placement().gap(1, 1),
      Placement().reversed(0),   Placement().reversed(1), Placement().at(1),           Placement().order({2, 0, 1}),
      Placement().gap(1, 16),    Placement().at(8),       Placement().order({0, 2, 1})};
  for (rope_dtype_t dtype : dtypes) {
    for (const Placement &placement : placements) {
      for (const Shape &shape : {Shape{5, 24}, Shape{3, 4, 16}}) {
        if (!placement.axis_order.empty() && placement.axis_order.size() != shape.size()) continue;
        for (int axes = 1; axes < static_cast<int>(shape.size()); ++axes) {
          const auto make = [&] { return SwigluCase().dtype(dtype).shape(shape).row_scale(axes, ROPE_DTYPE_F32); };
          make().placed(placement).check();
          make().placed(placement).grad_row_scale().recomputed().check();
          make().placed(placement).grad_row_scale().num_rows(2, ROPE_DTYPE_I64).check();
          make().placed(SwigluTensor::Gate, placement).num_rows(2, ROPE_DTYPE_I64).check();
          make().placed(SwigluTensor::Gate, placement).grad_row_scale().check();
          make().placed(SwigluTensor::GradGate, placement).grad_row_scale().check();
        }
      }
    }
    // row_scale has different strides.
    for (const Placement &placement : {Placement().gap(0, 2), Placement().reversed(0), Placement().order({1, 0}),
                                       Placement().gap(1, 3).reversed(1), Placement().at(1)}) {
      const auto make = [&] {
        return SwigluCase().dtype(dtype).shape({3, 4, 16}).row_scale(2, ROPE_DTYPE_F32, placement);
      };
      make().check();
      make().grad_row_scale().check();
      make().grad_row_scale(placement).check();
      make().grad_row_scale_in_place().num_rows(2, ROPE_DTYPE_I32).check();
    }
    // Gaps keep the three axes of rows separate.
    const Placement apart = Placement().gap(0, 24).gap(1, 16).gap(2, 8);
    SwigluCase().dtype(dtype).shape({2, 3, 4, 16}).placed(apart).row_scale(3).grad_row_scale(apart).check();
    for (int axis : {0, 1}) {
      const auto make = [&] {
        return SwigluCase().dtype(dtype).shape({3, 4, 16}).row_scale(2, ROPE_DTYPE_F32, Placement().expanded(axis));
      };
      make().check();
      make().grad_row_scale().check();
    }
  }
}

TEST_CASE("every tensor of a backward call at once", "[swiglu]") {
  for (rope_dtype_t dtype : dtypes) {
    const auto all = [&] {
      return SwigluCase().dtype(dtype).row_scale(1).recomputed().grad_row_scale().num_rows(4, ROPE_DTYPE_I32);
    };
    all().shape({6, 40}).check();
    all().shape({6, 3, 5, 7}).check();
  }
}

TEST_CASE("the gradient of row_scale alone, and with one other", "[swiglu]") {
  for (rope_dtype_t dtype : dtypes) {
    for (const Shape &shape : {Shape{4, 40}, Shape{3, 5, 7}}) {
      const auto make = [&] { return SwigluCase().dtype(dtype).shape(shape).row_scale(1).grad_row_scale(); };
      make().without(SwigluTensor::GradGate).without(SwigluTensor::GradUp).check();
      make().without(SwigluTensor::GradGate).without(SwigluTensor::GradUp).recomputed().check();
      make().without(SwigluTensor::GradGate).check();
      make().without(SwigluTensor::GradUp).check();
      make()
          .in_place(SwigluTensor::GradGate, SwigluTensor::Gate)
          .in_place(SwigluTensor::GradUp, SwigluTensor::Up)
          .in_place(SwigluTensor::Out, SwigluTensor::GradOut)
          .recomputed()
          .grad_row_scale_in_place()
          .check();
    }
  }
}

TEST_CASE("rows of every length are summed", "[swiglu]") {
  for (rope_dtype_t dtype : dtypes) {
    for (const int64_t columns : {1, 2, 3, 7, 8, 31, 127, 128, 255, 257, 2039, 2048, 2053, 4099, 14336}) {
      SwigluCase().dtype(dtype).shape({3, columns}).row_scale(1, ROPE_DTYPE_F32).grad_row_scale().check();
      SwigluCase()
          .dtype(dtype)
          .shape({2, columns})
          .packing(GatePacking::Alternating)
          .row_scale(1, ROPE_DTYPE_F32)
          .grad_row_scale()
          .check();
    }
    SwigluCase().dtype(dtype).shape({2, 448, 32}).packing(GatePacking::Blocks).row_scale(1).grad_row_scale().check();
    SwigluCase().dtype(dtype).shape({40013, 3}).row_scale(1, ROPE_DTYPE_F32).grad_row_scale().check();
    SwigluCase().dtype(dtype).shape({67, 2731}).row_scale(1).grad_row_scale().num_rows(61, ROPE_DTYPE_I32).check();
    SwigluCase().dtype(dtype).shape({67, 2731}).row_scale(1).num_rows(61, ROPE_DTYPE_I32).check();
  }
}

TEST_CASE("the sum of a row loses nothing to cancellation", "[swiglu]") {
  // Pairs of large terms cancel exactly, and leave small ones.
  for (rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F64}) {
    for (const Device &device : devices()) {
      INFO(oracle::dtype_name(dtype) << " on " << device);
      Workspace workspace(36);
      swiglu_args_t args = swiglu_args();
      const Shape shape = {1, 3000};
      for (rope_tensor_t *tensor : {&args.gate, &args.up, &args.grad_out}) *tensor = workspace.tensor(dtype, shape);
      args.row_scale = workspace.tensor(dtype, {1});
      args.grad_row_scale = workspace.tensor(dtype, {1});
      const Real large = dtype == ROPE_DTYPE_F32 ? 0x1p20L : 0x1p45L;
      workspace.fill(args.gate, [&](const Index &) -> Real { return 1; });
      workspace.fill(args.up, [&](const Index &) -> Real { return 1; });
      workspace.fill(args.grad_out, [&](const Index &index) -> Real {
        return index[1] % 3 == 0 ? large : index[1] % 3 == 1 ? 1 : -large;
      });
      workspace.fill(args.row_scale, [&](const Index &) -> Real { return 1; });
      workspace.freeze();
      workspace.restore();
      swiglu_config_t config = swiglu_config_for(device);
      config.dtype = dtype;
      const SwigluDesc desc = create(config);
      REQUIRE(run(device, desc.get(), Direction::Backward, args, workspace) == ROPE_STATUS_SUCCESS);
      const Real exact = 1000 * oracle::swiglu(1, 1);
      CHECK(std::fabs(value_at(args.grad_row_scale, {0}) - exact) <= 12 * oracle::ulp(dtype, exact));
    }
  }
}

TEST_CASE("row sums do not depend on how tensors lie", "[swiglu]") {
  for (rope_dtype_t dtype : dtypes) {
    for (const Device &device : devices()) {
      INFO(oracle::dtype_name(dtype) << " on " << device);
      const Shape shape = {3, 5, 160};
      std::vector<std::vector<Real>> sums;
      for (const Placement &placement : {Placement(), Placement().at(1), Placement().gap(2, 1), Placement().gap(1, 3),
                                         Placement().order({2, 1, 0}), Placement().reversed(1).reversed(2)}) {
        Workspace workspace(37);
        swiglu_args_t args = swiglu_args();
        Random random(38);
        for (rope_tensor_t *tensor : {&args.gate, &args.up, &args.grad_out}) {
          *tensor = workspace.tensor(dtype, shape, placement);
          workspace.fill(*tensor, [&](const Index &) -> Real { return random.mixed(); });
        }
        args.row_scale = workspace.tensor(ROPE_DTYPE_F32, {3});
        args.grad_row_scale = workspace.tensor(ROPE_DTYPE_F32, {3});
        workspace.fill_normal(args.row_scale);
        workspace.freeze();
        workspace.restore();
        swiglu_config_t config = swiglu_config_for(device);
        config.dtype = dtype;
        const SwigluDesc desc = create(config);
        REQUIRE(run(device, desc.get(), Direction::Backward, args, workspace) == ROPE_STATUS_SUCCESS);
        sums.emplace_back();
        for (int64_t row = 0; row < 3; ++row) sums.back().push_back(value_at(args.grad_row_scale, {row}));
        CHECK(sums.back() == sums.front());
      }
    }
  }
}

TEST_CASE("empty tensors with row_scale and num_rows", "[swiglu]") {
  for (rope_dtype_t dtype : dtypes) {
    for (const Shape &shape : {Shape{0, 5}, Shape{5, 0}, Shape{2, 0, 3}, Shape{2, 3, 4, 0}}) {
      SwigluCase().dtype(dtype).shape(shape).row_scale(1).grad_row_scale().num_rows(2, ROPE_DTYPE_I32).check();
      SwigluCase().dtype(dtype).shape(shape).row_scale(1).check();
    }
  }
}

TEST_CASE("large SwiGLU calls with row_scale on several threads", "[swiglu]") {
  for (rope_dtype_t dtype : dtypes) {
    SwigluCase().dtype(dtype).shape({11, 14336}).packing(GatePacking::GateFirst).row_scale(1).grad_row_scale().check();
    SwigluCase().dtype(dtype).shape({61, 2731}).row_scale(1).num_rows(55, ROPE_DTYPE_I64).check();
    SwigluCase().dtype(dtype).shape({20011, 7}).row_scale(1).recomputed().check();
  }
}

TEST_CASE("numbers of an F64 form are not rounded to fp32", "[swiglu]") {
  SwigluCase().dtype(ROPE_DTYPE_F64).form(1.1, 0.3, 0.7, 1.3).shape({4, 100}).row_scale(1).grad_row_scale().check();
}

TEST_CASE("SwiGLU gradients are the derivatives of the output", "[swiglu]") {
  SECTION("gradient check") {
    constexpr int64_t rows = 6, columns = 40;
    constexpr double step = 1e-3, kink = 0.02;
    for (const Device &device : devices()) {
      for (const NamedForm &form : named_forms) {
        for (const bool has_row_scale : {false, true}) {
          INFO(form.name << (has_row_scale ? " with row_scale" : "") << " on " << device);
          Workspace workspace(39);
          swiglu_args_t args = swiglu_args();
          for (rope_tensor_t *tensor :
               {&args.gate, &args.up, &args.out, &args.grad_out, &args.grad_gate, &args.grad_up}) {
            *tensor = workspace.tensor(ROPE_DTYPE_F64, {rows, columns});
          }
          const rope_tensor_t row_scale = workspace.tensor(ROPE_DTYPE_F64, {rows});
          const rope_tensor_t grad_row_scale = workspace.tensor(ROPE_DTYPE_F64, {rows});
          // Values keep away from the limit, where the function has a kink.
          const auto draw = [&](double size) {
            const double limit = form.limit == 0 ? 1e9 : form.limit;
            for (;;) {
              const double value = workspace.random().uniform(-size, size);
              if (std::fabs(std::fabs(value) - limit) > kink) return value;
            }
          };
          for (const rope_tensor_t &tensor : {args.gate, args.up, args.grad_out, row_scale}) {
            workspace.fill(tensor, [&](const Index &) -> Real { return draw(form.limit == 7 ? 9 : 3); });
          }
          if (has_row_scale) args.row_scale = row_scale;
          workspace.freeze();
          swiglu_config_t config = swiglu_config_for(device);
          config.dtype = ROPE_DTYPE_F64;
          config.alpha = form.alpha;
          config.limit = form.limit;
          config.up_offset = form.up_offset;
          config.out_scale = form.out_scale;
          const SwigluDesc desc = create(config);
          swiglu_args_t forward = args;
          forward.grad_out = forward.grad_gate = forward.grad_up = rope_tensor_t{};

          // Returns grad_out * out after `shift` is added to every element of `moved`.
          const auto weighted_outputs = [&](const rope_tensor_t &moved, double shift) {
            workspace.restore();
            for_each_index(moved, [&](const Index &at) {
              oracle::encode(ROPE_DTYPE_F64, value_at(moved, at) + static_cast<Real>(shift), element_at(moved, at));
            });
            REQUIRE(run(device, desc.get(), Direction::Forward, forward, workspace) == ROPE_STATUS_SUCCESS);
            std::vector<Real> outputs;
            for_each_index(args.out, [&](const Index &at) {
              outputs.push_back(value_at(args.out, at) * value_at(args.grad_out, at));
            });
            return outputs;
          };
          // Central differences of five points: their error is step^4 / 30 of the fifth derivative.
          const auto derivatives = [&](const rope_tensor_t &moved) {
            const auto near_up = weighted_outputs(moved, step), near_down = weighted_outputs(moved, -step);
            const auto far_up = weighted_outputs(moved, 2 * step), far_down = weighted_outputs(moved, -2 * step);
            std::vector<Real> result(near_up.size());
            for (size_t i = 0; i < result.size(); ++i) {
              result[i] = (8 * (near_up[i] - near_down[i]) - (far_up[i] - far_down[i])) / (12 * Real{step});
            }
            return result;
          };
          const std::vector<Real> by_gate = derivatives(args.gate), by_up = derivatives(args.up);
          std::vector<Real> by_row_scale(rows);
          if (has_row_scale) {
            const std::vector<Real> each = derivatives(row_scale);
            for (size_t i = 0; i < each.size(); ++i) by_row_scale[i / columns] += each[i];
            args.grad_row_scale = grad_row_scale;
          }

          workspace.restore();
          REQUIRE(run(device, desc.get(), Direction::Backward, args, workspace) == ROPE_STATUS_SUCCESS);
          int64_t wrong = 0;
          const auto compare = [&](const rope_tensor_t &gradient, const std::vector<Real> &expected) {
            size_t i = 0;
            for_each_index(gradient, [&](const Index &at) {
              const Real exact = expected[i++];
              wrong += !(std::fabs(value_at(gradient, at) - exact) <= 1e-9L * std::fmax(1.0L, std::fabs(exact)));
            });
          };
          compare(args.grad_gate, by_gate);
          compare(args.grad_up, by_up);
          if (has_row_scale) compare(args.grad_row_scale, by_row_scale);
          CHECK(wrong == 0);
        }
      }
    }
  }
}
