// SPDX-License-Identifier: Apache-2.0
// swiglu_plan_tests.cpp - the plan of every legal SwiGLU problem is a legal launch that processes each element once
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "plan/explain.hpp"
#include "plan/swiglu_plan.hpp"
#include "plan/tuning.hpp"
#include "support/oracle.hpp"
#include "support/random.hpp"
#include "support/swiglu_call.hpp"
#include "unit/fake_tensors.hpp"

namespace {

constexpr rope::GatingForm kPlain = {{1, INFINITY, 0, 1, true}};

constexpr uint32_t kMaxGridX = 2147483647, kMaxGridY = 65535;

const rope::DeviceInfo kDevices[] = {{true, 0, 72, 75, 0},   {true, 0, 108, 80, 0},  {true, 0, 132, 90, 0},
                                     {true, 0, 148, 100, 0}, {true, 0, 170, 120, 0}, {true, 0, 1, 90, 0},
                                     {true, 0, 16, 90, 0}};

uintptr_t region(int number) {
  return static_cast<uintptr_t>(2 * number + 2) << 59;
}

// Makes a random problem. Returns false if it is not a legal one.
bool draw(Random *random, int size_exponent, rope::SwigluProblem *problem) {
  const rope_dtype_t dtypes[] = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64};
  const rope_dtype_t dtype = dtypes[random->below(4)];
  const int64_t size = oracle::element_size(dtype);
  const auto rank = static_cast<size_t>(1 + random->below(4));
  std::vector<int64_t> shape(rank);
  int64_t left = int64_t{1} << random->below(size_exponent + 1);
  for (int64_t &length : shape) {
    length = std::min(
        1 + (static_cast<int64_t>(random->bits() >> 1) & ((int64_t{1} << random->below(size_exponent + 1)) - 1)), left);
    // Most widths are multiples of 16.
    if (length > 16 && random->below(3) != 0) length = length / 16 * 16;
    left /= length;
  }
  std::swap(shape[0], shape[static_cast<size_t>(random->below(static_cast<int64_t>(rank)))]);
  const bool is_transposed = random->below(8) == 0;
  const auto tensor = [&](int number) {
    const int64_t alignment = int64_t{1} << random->below(5);
    std::vector<int64_t> stride(rank);
    int64_t next = random->below(8) == 0 ? 2 : 1;
    for (size_t i = 0; i < rank; ++i) {
      const size_t axis = is_transposed ? i : rank - 1 - i;
      stride[axis] = random->below(16) == 0 ? -next : next;
      next = next * shape[axis] + (random->below(3) == 0 ? random->below(3) * alignment : 0);
    }
    const auto offset = static_cast<uintptr_t>((random->below(3) == 0 ? random->below(9) : 0) * alignment * size);
    rope_tensor_t result = fake_tensor(region(number) + offset, dtype, shape, stride);
    if (number < 3 && random->below(16) == 0) result.stride[random->below(static_cast<int64_t>(rank))] = 0;
    return result;
  };
  swiglu_args_t args = {};
  args.struct_size = sizeof args;
  if (random->below(4) == 0) args.flags = ROPE_FLAG_PROGRAMMATIC_LAUNCH;
  const bool is_backward = random->below(2) == 0;
  // Returns a dense tensor over the first axes.
  const auto row_tensor = [&](int number, size_t axes) {
    return compact_tensor(region(number), ROPE_DTYPE_F32,
                          std::vector<int64_t>(shape.begin(), shape.begin() + static_cast<std::ptrdiff_t>(axes)));
  };
  if (random->below(4) == 0) args.num_rows = compact_tensor(region(7), ROPE_DTYPE_I32, {1});
  if (rank > 1 && random->below(2) == 0) {
    const auto axes = static_cast<size_t>(1 + random->below(static_cast<int64_t>(rank) - 1));
    args.row_scale = row_tensor(5, axes);
    if (is_backward && random->below(2) == 0) args.grad_row_scale = row_tensor(6, axes);
  }
  if (random->below(3) == 0) args.flags = ROPE_FLAG_PROGRAMMATIC_LAUNCH;
  // Makes a pair of tensors. They often alternate, in either order; some have a distance or strides that prevent
  // vectors.
  const auto pair = [&](int number, rope_tensor_t *gate, rope_tensor_t *up) {
    *gate = tensor(number);
    *up = tensor(number + 1);
    if (random->below(3) != 0) return;
    const auto axis = static_cast<int64_t>(is_transposed ? 0 : rank - 1);
    for (int64_t other = 0; other < static_cast<int64_t>(rank); ++other) gate->stride[other] *= 2;
    if (random->below(8) != 0) gate->stride[axis] = 2;
    const auto address = reinterpret_cast<uintptr_t>(gate->data) / 32 * 32 +
                         static_cast<uintptr_t>((random->below(4) == 0 ? random->below(32 / size) : 0) * size);
    const auto distance = static_cast<uintptr_t>((random->below(8) == 0 ? 3 : 1) * size);
    const bool is_up_first = random->below(2) == 0;
    *up = *gate;
    gate->data = reinterpret_cast<void *>(is_up_first ? address + distance : address);
    up->data = reinterpret_cast<void *>(is_up_first ? address : address + distance);
    if (random->below(16) == 0) up->stride[random->below(static_cast<int64_t>(rank))] += 8;
  };
  pair(0, &args.gate, &args.up);
  if (is_backward) {
    args.grad_out = tensor(2);
    pair(3, &args.grad_gate, &args.grad_up);
    const int64_t wanted = random->below(8);
    if (wanted < 2) (wanted == 0 ? args.grad_gate : args.grad_up) = rope_tensor_t{};
    // The gradients are in place, each over its own input or over the other one.
    if (wanted == 2) args.grad_gate = args.gate, args.grad_up = args.up;
    if (wanted == 3) args.grad_gate = args.up, args.grad_up = args.gate;
    if (random->below(8) == 0) args.out = tensor(8);
  } else {
    args.out = random->below(4) == 0 ? args.gate : tensor(3);
  }
  return swiglu_call::make_problem("swiglu_forward", dtype, kPlain, args, is_backward, problem) == ROPE_STATUS_SUCCESS;
}

std::string describe(const rope::SwigluProblem &problem, const rope::SwigluPlan &plan) {
  std::ostringstream text;
  text << oracle::dtype_name(problem.dtype) << (problem.is_backward ? " backward" : " forward");
  for (int axis = 0; axis < problem.ndim; ++axis) text << (axis == 0 ? " of " : " x ") << problem.shape[axis];
  for (int i = 0; i < problem.num_inputs(); ++i) {
    text << "; " << static_cast<const void *>(problem.in[i]) << " by";
    for (int axis = 0; axis < problem.ndim; ++axis) text << ' ' << problem.in_stride[i][axis];
  }
  for (int i = 0; i < problem.num_outputs(); ++i) {
    text << "; to " << static_cast<void *>(problem.out[i]) << " by";
    for (int axis = 0; axis < problem.ndim; ++axis) text << ' ' << problem.out_stride[i][axis];
  }
  text << "; row_scale by";
  for (int axis = 0; axis < problem.ndim; ++axis) text << ' ' << problem.row_scale_stride[axis];
  text << ", its gradient over " << problem.num_row_axes << " axes: vectors of " << plan.vector_elements << ", "
       << plan.vectors_per_row << " a row, " << plan.num_vectors << " in all, inputs " << static_cast<int>(plan.inputs)
       << ", gradients " << static_cast<int>(plan.gradients) << ", grid " << plan.grid_x << " x " << plan.grid_y;
  return text.str();
}

using rope::GateUpLayout;

struct Layouts {
  GateUpLayout inputs = GateUpLayout::kSeparate, gradients = GateUpLayout::kSeparate;

  bool are_separate() const { return inputs == GateUpLayout::kSeparate && gradients == GateUpLayout::kSeparate; }
};

// Returns the layout of a pair of tensors.
GateUpLayout layout_of(const rope::SwigluProblem &problem, const char *gate, const int64_t *gate_stride, const char *up,
                       const int64_t *up_stride) {
  if (gate == nullptr || up == nullptr) return GateUpLayout::kSeparate;
  if (!std::equal(gate_stride, gate_stride + problem.ndim, up_stride)) return GateUpLayout::kSeparate;
  if (gate_stride[problem.ndim - 1] != 2) return GateUpLayout::kSeparate;
  const auto distance = static_cast<int64_t>(reinterpret_cast<uintptr_t>(up) - reinterpret_cast<uintptr_t>(gate));
  const int64_t size = oracle::element_size(problem.dtype);
  return distance == size    ? GateUpLayout::kAlternating
         : distance == -size ? GateUpLayout::kAlternatingUpFirst
                             : GateUpLayout::kSeparate;
}

Layouts layouts_of(const rope::SwigluProblem &problem) {
  Layouts layouts;
  layouts.inputs = layout_of(problem, problem.in[0], problem.in_stride[0], problem.in[1], problem.in_stride[1]);
  if (problem.is_backward) {
    layouts.gradients =
        layout_of(problem, problem.out[0], problem.out_stride[0], problem.out[1], problem.out_stride[1]);
  }
  return layouts;
}

// An access of a thread: to a tensor, or to two that alternate, from the first of them on.
struct Access {
  const char *data;
  const int64_t *stride;
  bool is_alternating;
};

std::vector<Access> accesses_of(const rope::SwigluProblem &problem, const Layouts &layouts) {
  std::vector<Access> accesses;
  const auto add = [&](GateUpLayout layout, const char *gate, const int64_t *gate_stride, const char *up,
                       const int64_t *up_stride) {
    if (layout != GateUpLayout::kSeparate) {
      accesses.push_back({std::min(gate, up), gate_stride, true});
      return;
    }
    if (gate != nullptr) accesses.push_back({gate, gate_stride, false});
    if (up != nullptr) accesses.push_back({up, up_stride, false});
  };
  add(layouts.inputs, problem.in[0], problem.in_stride[0], problem.in[1], problem.in_stride[1]);
  if (!problem.is_backward) {
    accesses.push_back({problem.out[0], problem.out_stride[0], false});
    return accesses;
  }
  accesses.push_back({problem.in[2], problem.in_stride[2], false});
  add(layouts.gradients, problem.out[0], problem.out_stride[0], problem.out[1], problem.out_stride[1]);
  if (problem.out[2] != nullptr) accesses.push_back({problem.out[2], problem.out_stride[2], false});
  return accesses;
}

// Whether vectors of `elements` elements are aligned at every multiple of this number in a row.
bool allows_vectors(const rope::SwigluProblem &problem, int64_t elements, const Layouts &layouts = {}) {
  const int64_t size = oracle::element_size(problem.dtype);
  const int last = problem.ndim - 1;
  const bool is_summed = problem.grad_row_scale != nullptr;
  if (elements > 1 || !layouts.are_separate()) {
    // A vector has one row.
    if (!is_summed && (problem.row_scale_stride[last] != 0 || problem.row_index_stride[last] != 0)) return false;
    // Groups of a summed row do not cross the end of an axis.
    if (is_summed && problem.num_row_axes > last) return false;
    if (is_summed && problem.num_row_axes < last && problem.shape[last] % elements != 0) return false;
  }
  for (const Access &access : accesses_of(problem, layouts)) {
    const int64_t bytes = access.is_alternating ? 16 : elements * size;
    if (reinterpret_cast<uintptr_t>(access.data) % static_cast<uintptr_t>(bytes) != 0) return false;
    for (int axis = 0; axis < last; ++axis) {
      if (access.stride[axis] * size % bytes != 0) return false;
    }
    if (elements > 1 && access.stride[last] != (access.is_alternating ? 2 : 1)) return false;
  }
  return elements * size <= 16;
}

// Returns the largest possible width of vectors. Tensors that alternate count as such if their vectors have at least 8
// bytes.
int64_t widest_vector(const rope::SwigluProblem &problem, Layouts *layouts) {
  const int64_t size = oracle::element_size(problem.dtype);
  *layouts = layouts_of(problem);
  if (!layouts->are_separate()) {
    // F64 has no vectors of alternating tensors.
    for (const int64_t bytes : {int64_t{16}, int64_t{8}}) {
      if (size == 8) break;
      if (bytes <= rope::kSwigluAlternatingVectorBytes && allows_vectors(problem, bytes / size, *layouts)) {
        return bytes / size;
      }
    }
    *layouts = {};
  }
  int64_t widest = 16 / size;
  while (!allows_vectors(problem, widest)) widest /= 2;
  return widest * size < 8 ? 1 : widest;
}

// Whether a problem fulfils the conditions of the kernel of matrices, such as whole vectors in each row.
bool is_matrix(const rope::SwigluProblem &problem, int64_t widest, const Layouts &layouts) {
  if (problem.dtype == ROPE_DTYPE_F64 || !layouts.are_separate()) return false;
  if (problem.row_scale != nullptr || problem.num_rows != nullptr || problem.ndim > 2) return false;
  const int64_t size = oracle::element_size(problem.dtype), columns = problem.shape[problem.ndim - 1];
  const auto has_narrow_rows = [&](const int64_t *stride) {
    return problem.ndim == 1 || (stride[0] >= 0 && stride[0] * size < int64_t{1} << 32);
  };
  for (int i = 0; i < problem.num_inputs(); ++i) {
    if (!has_narrow_rows(problem.in_stride[i])) return false;
  }
  for (int i = 0; i < problem.num_outputs(); ++i) {
    if (!has_narrow_rows(problem.out_stride[i])) return false;
  }
  if (problem.is_backward && (size != 2 || !problem.form.is_plain || problem.out[2] != nullptr)) return false;
  return widest * size >= 8 && columns % widest == 0 && problem.num_elements() < int64_t{1} << 32;
}

// Whether a matrix backward is one row, of at most 560 vectors of 16 bytes for each multiprocessor.
bool is_flat(const rope::SwigluProblem &problem, const rope::DeviceInfo &device) {
  const bool has_gradients = problem.out[0] != nullptr && problem.out[1] != nullptr;
  return problem.is_backward && problem.ndim == 1 && has_gradients &&
         problem.num_elements() / 8 / device.multiprocessors <= 560;
}

// Returns the fault of a plan that sums rows: each block has a row, its threads process groups of 16 bytes in turn.
std::string fault_of_row_sums(const rope::SwigluProblem &problem, const rope::SwigluPlan &plan) {
  const int64_t group = 16 / oracle::element_size(problem.dtype);
  const int64_t columns = problem.num_summed_elements(), rows = problem.num_elements() / columns;
  const int64_t groups = (columns + group - 1) / group;
  if (plan.is_alternating()) return "alternating";
  const bool has_vectors = problem.dtype != ROPE_DTYPE_F64 && allows_vectors(problem, group);
  if (plan.vector_elements != (has_vectors ? group : 1)) return "vector_elements";
  if (plan.vectors_per_row != groups) return "vectors_per_row";
  if (plan.num_vectors != groups * rows) return "num_vectors";
  if (plan.threads % 32 != 0 || plan.threads < 32 || plan.threads > 256) return "threads";
  if (plan.threads != 256 && (plan.threads < groups || plan.threads >= groups + 32)) return "needless threads";
  const int64_t blocks = int64_t{plan.grid_x} * plan.grid_y;
  if (blocks < rows) return "rows left over";
  if (blocks - plan.grid_y >= rows) return "too many blocks";
  return "";
}

std::string fault_of(const rope::SwigluProblem &problem, const rope::DeviceInfo &device, const rope::SwigluPlan &plan) {
  if (plan.grid_x < 1 || plan.grid_x > kMaxGridX) return "grid_x";
  if (plan.grid_y < 1 || plan.grid_y > kMaxGridY) return "grid_y";
  if (plan.is_programmatic != (problem.is_programmatic && device.compute_capability >= 90)) return "is_programmatic";
  if (problem.grad_row_scale != nullptr) return fault_of_row_sums(problem, plan);
  const int64_t size = oracle::element_size(problem.dtype), elements = plan.vector_elements;
  if (elements != 1 && elements != 2 && elements != 4 && (size == 4 || elements != 8)) return "vector_elements";
  Layouts layouts;
  const int64_t widest = widest_vector(problem, &layouts);
  if (plan.inputs != layouts.inputs) return "inputs";
  if (plan.gradients != layouts.gradients) return "gradients";
  if (plan.is_matrix != is_matrix(problem, widest, layouts)) return "is_matrix";
  if (plan.is_flat != (plan.is_matrix && !plan.is_programmatic && is_flat(problem, device))) return "is_flat";
  if (plan.threads != 128 && (plan.threads != 256 || !plan.is_matrix)) return "threads";
  const bool has_small_vectors = elements * size != 16 && !problem.is_backward;
  if (plan.begins_last && (!plan.is_matrix || !plan.is_programmatic || has_small_vectors)) return "begins_last";
  if (!allows_vectors(problem, elements, layouts)) return "vectors are not aligned";
  if (!plan.is_flat && elements * size < std::min<int64_t>(widest * size, 8)) return "vectors are needlessly narrow";
  if (plan.is_matrix && problem.is_backward) {
    if (elements * size != (plan.is_flat ? 4 : 8)) return "vectors that the kernel does not have";
  } else if (problem.num_elements() >= int64_t{1} << 30 && elements != widest) {
    return "vectors of a large problem are narrow";
  }
  const int64_t columns = problem.shape[problem.ndim - 1];
  if (plan.vectors_per_row != (columns + elements - 1) / elements) return "vectors_per_row";
  if (plan.num_vectors != problem.num_elements() / columns * plan.vectors_per_row) return "num_vectors";
  const int64_t blocks = int64_t{plan.grid_x} * plan.grid_y;
  if (blocks * plan.threads < plan.num_vectors) return "vectors left over";
  // At most one block in a row of the grid is idle.
  if ((blocks - plan.grid_y) * plan.threads >= plan.num_vectors) return "too many blocks";
  return "";
}

// Processes every vector. Returns a fault unless each element occurs once and each whole vector is aligned in every
// tensor.
std::string run(const rope::SwigluProblem &problem, const rope::SwigluPlan &plan) {
  const bool is_summed = problem.grad_row_scale != nullptr;
  const int64_t columns = is_summed ? problem.num_summed_elements() : problem.shape[problem.ndim - 1];
  const int64_t rows = problem.num_elements() / columns;
  const int64_t size = oracle::element_size(problem.dtype), elements = is_summed ? 16 / size : plan.vector_elements;
  const Layouts layouts = {plan.inputs, plan.gradients};
  std::vector<uint8_t> taken(static_cast<size_t>(problem.num_elements()));
  const int64_t threads = is_summed ? plan.num_vectors : int64_t{plan.grid_x} * plan.grid_y * plan.threads;
  for (int64_t thread = 0; thread < threads; ++thread) {
    if (thread >= plan.num_vectors) break;
    const int64_t row = thread / plan.vectors_per_row, first = thread % plan.vectors_per_row * elements;
    if (row >= rows) return "a vector of no row";
    const int64_t count = std::min(elements, columns - first);
    for (int64_t i = 0; i < count; ++i) ++taken[static_cast<size_t>(row * columns + first + i)];
    if (count < elements || (is_summed && plan.vector_elements == 1)) continue;
    if (first % problem.shape[problem.ndim - 1] + count > problem.shape[problem.ndim - 1]) return "a broken vector";
    for (const Access &access : accesses_of(problem, layouts)) {
      int64_t offset = 0, rest = row * columns + first;
      for (int axis = problem.ndim - 1; axis >= 0; --axis) {
        offset += rest % problem.shape[axis] * access.stride[axis];
        rest /= problem.shape[axis];
      }
      const uintptr_t address = reinterpret_cast<uintptr_t>(access.data) + static_cast<uintptr_t>(offset * size);
      const int64_t alignment = access.is_alternating ? 16 : elements * size;
      if (address % static_cast<uintptr_t>(alignment) != 0) return "a vector that is not aligned";
    }
  }
  return std::all_of(taken.begin(), taken.end(), [](uint8_t n) { return n == 1; }) ? "" : "an element not taken once";
}

// The further properties of a problem.
struct Options {
  rope::GatingForm form = kPlain;
  bool has_biases = false, has_experts = false;
  int64_t experts = 0;         // experts of expert_offsets; 0: absent
  bool has_row_index = false;  // with a row_scale
  int64_t bias_step = 0;       // the stride of biases by expert of expert_offsets; 0: all experts have one bias
  rope_dtype_t code = 0;       // of out, forward; 0: none
  int64_t code_group = 0;      // channels of a written scale; 0: none
};

rope::SwigluProblem compact_problem(rope_dtype_t dtype, const std::vector<int64_t> &shape, bool is_backward,
                                    uint32_t flags = 0, bool has_row_scale = false, const Options &options = {}) {
  swiglu_args_t args = {};
  swiglu_input_args_t input = SWIGLU_INPUT_ARGS_INIT;
  if (options.has_biases) {
    input.gate_bias = compact_tensor(region(7), ROPE_DTYPE_F32, {shape.back()});
    input.up_bias = compact_tensor(region(8), dtype, {shape.back()});
  }
  if (options.bias_step != 0) {
    for (rope_tensor_t *bias : {&input.gate_bias, &input.up_bias}) {
      bias->ndim = 2;
      bias->flags = ROPE_TENSOR_STRIDED;
      bias->shape[1] = bias->shape[0];
      bias->shape[0] = options.experts;
      bias->stride[0] = options.bias_step;
      bias->stride[1] = 1;
    }
  }
  if (options.experts != 0) {
    input.expert_offsets = compact_tensor(region(9), ROPE_DTYPE_I32, {options.experts + 1});
  }
  if (options.has_row_index) input.row_index = compact_tensor(region(10), ROPE_DTYPE_I64, {shape[0]});
  if (options.has_experts) input.expert_rows = compact_tensor(region(9), ROPE_DTYPE_I32, {shape[0]});
  args.input = &input;
  args.struct_size = sizeof args;
  args.flags = flags;
  if (has_row_scale) {
    std::vector<int64_t> rows = {shape[0]};
    if (options.has_experts) rows.push_back(shape[1]);
    args.row_scale = compact_tensor(region(5), ROPE_DTYPE_F32, options.has_row_index ? std::vector<int64_t>{77} : rows);
    if (is_backward) args.grad_row_scale = compact_tensor(region(6), ROPE_DTYPE_F32, rows);
  }
  args.gate = compact_tensor(region(0), dtype, shape);
  args.up = compact_tensor(region(1), dtype, shape);
  if (is_backward) {
    args.grad_out = compact_tensor(region(2), dtype, shape);
    args.grad_gate = compact_tensor(region(3), dtype, shape);
    args.grad_up = compact_tensor(region(4), dtype, shape);
  } else {
    std::vector<int64_t> out_shape = shape;
    if (options.code == ROPE_DTYPE_F4_E2M1X2) out_shape.back() /= 2;
    args.out = compact_tensor(region(3), options.code != 0 ? options.code : dtype, out_shape);
  }
  swiglu_quant_args_t quant = SWIGLU_QUANT_ARGS_INIT;
  if (options.code_group != 0) {
    std::vector<int64_t> scales = shape;
    scales.back() /= options.code_group;
    quant.scales_out = compact_tensor(region(11), ROPE_DTYPE_F32, scales);
  }
  args.quant = &quant;
  rope::SwigluProblem problem;
  const rope_status_t status =
      swiglu_call::make_problem("swiglu_forward", dtype, options.form, args, is_backward, &problem);
  INFO(rope::last_error());
  REQUIRE(status == ROPE_STATUS_SUCCESS);
  return problem;
}

}  // namespace

TEST_CASE("the plan of every legal SwiGLU problem is a legal launch", "[swiglu plan]") {
  Random random(1);
  int planned = 0, wide = 0, scalar = 0, rows = 0, summed = 0, programmatic = 0, alternating = 0, matrices = 0;
  for (int round = 0; round < 40000; ++round) {
    rope::SwigluProblem problem;
    if (!draw(&random, 55, &problem)) continue;
    for (const rope::DeviceInfo &device : kDevices) {
      rope::SwigluPlan plan;
      const rope_status_t status = rope::plan_swiglu("swiglu_forward", problem, device, &plan);
      if (status != ROPE_STATUS_SUCCESS) {
        INFO(rope::last_error());
        REQUIRE(status == ROPE_STATUS_NOT_SUPPORTED);
        REQUIRE(std::string(rope::last_error()).rfind("swiglu_forward: gate ", 0) == 0);
        const int64_t min_elements =
            problem.grad_row_scale != nullptr ? problem.num_summed_elements() : rope::kSwigluThreads;
        REQUIRE(problem.num_elements() / min_elements / kMaxGridX >= kMaxGridY / 2);
        continue;
      }
      ++planned;
      const std::string fault = fault_of(problem, device, plan);
      if (!fault.empty()) {
        INFO(describe(problem, plan));
        FAIL(fault);
      }
      ++(plan.vector_elements > 1 ? wide : scalar);
      alternating += plan.is_alternating();
      matrices += plan.is_matrix;
      rows += plan.grid_y > 1;
      summed += problem.grad_row_scale != nullptr;
      programmatic += plan.is_programmatic;
    }
  }
  CHECK(programmatic > 10000);
  CHECK(planned > 100000);
  CHECK(wide > 10000);
  CHECK(scalar > 10000);
  CHECK(alternating > 5000);
  CHECK(matrices > 5000);
  CHECK(rows > 100);
  CHECK(summed > 5000);
}

TEST_CASE("a SwiGLU launch takes each element once", "[swiglu plan]") {
  Random random(2);
  int launches = 0, wide = 0, short_vectors = 0, summed = 0, alternating = 0;
  for (int round = 0; round < 10000; ++round) {
    rope::SwigluProblem problem;
    if (!draw(&random, 12, &problem)) continue;
    rope::SwigluPlan plan;
    const rope::DeviceInfo &device = kDevices[round % 7];
    REQUIRE(rope::plan_swiglu("swiglu_forward", problem, device, &plan) == ROPE_STATUS_SUCCESS);
    const std::string fault = fault_of(problem, device, plan) + run(problem, plan);
    if (!fault.empty()) {
      INFO(describe(problem, plan));
      FAIL(fault);
    }
    ++launches;
    summed += problem.grad_row_scale != nullptr;
    alternating += plan.is_alternating();
    wide += plan.vector_elements > 1;
    short_vectors += problem.shape[problem.ndim - 1] % plan.vector_elements != 0;
  }
  CHECK(launches > 5000);
  CHECK(summed > 500);
  CHECK(wide > 500);
  CHECK(alternating > 300);
  CHECK(short_vectors > 100);
}

TEST_CASE("SwiGLU beyond one launch is refused with a reason", "[swiglu plan]") {
  rope::SwigluPlan plan;
  // Single elements: 2^55 of them need 2^48 blocks, more than 65535 rows of 2^31 - 1.
  rope::SwigluProblem problem = compact_problem(ROPE_DTYPE_F16, {int64_t{1} << 55}, false);
  problem.in[0] += 2;
  CHECK(rope::plan_swiglu("swiglu_forward", problem, kDevices[2], &plan) == ROPE_STATUS_NOT_SUPPORTED);
  CHECK(std::string(rope::last_error()).rfind("swiglu_forward: gate ", 0) == 0);
  problem.in[0] -= 2;
  CHECK(rope::plan_swiglu("swiglu_forward", problem, kDevices[2], &plan) == ROPE_STATUS_SUCCESS);
  CHECK(fault_of(problem, kDevices[2], plan).empty());
}

TEST_CASE("large aligned SwiGLU moves 16 bytes at a time, plain matrices of 16 bits backward 8", "[swiglu plan]") {
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64}) {
    for (const bool is_backward : {false, true}) {
      const rope::SwigluProblem problem = compact_problem(dtype, {1 << 17, 14336}, is_backward);
      rope::SwigluPlan plan;
      REQUIRE(rope::plan_swiglu("swiglu_forward", problem, kDevices[2], &plan) == ROPE_STATUS_SUCCESS);
      const int64_t size = oracle::element_size(dtype);
      CHECK(plan.vector_elements * size == (is_backward && size == 2 ? 8 : 16));
      CHECK(fault_of(problem, kDevices[2], plan).empty());
    }
  }
}

// Sizes are vectors of 16 bytes of gate for each of 132 multiprocessors; 8192 x 14336 has 111 212.
TEST_CASE("the shape of a matrix follows its size", "[swiglu plan]") {
  bool is_backward = false, has_gate_gradient = true;
  const auto shape_of = [&](int64_t rows, int64_t columns, uint32_t flags) {
    rope::SwigluProblem problem = compact_problem(ROPE_DTYPE_BF16, {rows, columns}, is_backward, flags);
    if (!has_gate_gradient) problem.out[0] = nullptr;
    rope::SwigluPlan plan;
    REQUIRE(rope::plan_swiglu("swiglu_forward", problem, kDevices[2], &plan) == ROPE_STATUS_SUCCESS);
    REQUIRE(plan.is_matrix);
    return std::to_string(plan.vector_elements * 2) + " bytes, " + std::to_string(plan.threads) + " threads" +
           (plan.begins_last ? ", last" : "") + (plan.is_flat ? ", flat" : "");
  };
  const uint32_t programmatic = ROPE_FLAG_PROGRAMMATIC_LAUNCH;
  CHECK(shape_of(60, 132 * 8, 0) == "8 bytes, 128 threads");
  CHECK(shape_of(61, 132 * 8, 0) == "8 bytes, 256 threads");
  CHECK(shape_of(530, 132 * 8, 0) == "8 bytes, 256 threads");
  CHECK(shape_of(531, 132 * 8, 0) == "16 bytes, 128 threads");
  CHECK(shape_of(1301, 132 * 8, 0) == "16 bytes, 256 threads");
  CHECK(shape_of(2001, 132 * 8, 0) == "16 bytes, 128 threads");
  CHECK(shape_of(8192, 14336, 0) == "16 bytes, 128 threads");
  CHECK(shape_of(300, 132 * 8, programmatic) == "8 bytes, 128 threads");
  CHECK(shape_of(301, 132 * 8, programmatic) == "16 bytes, 256 threads");
  CHECK(shape_of(1601, 132 * 8, programmatic) == "16 bytes, 256 threads, last");
  CHECK(shape_of(1901, 132 * 8, programmatic) == "16 bytes, 256 threads");
  CHECK(shape_of(2301, 132 * 8, programmatic) == "16 bytes, 128 threads");
  CHECK(shape_of(131072, 32752, programmatic) == "16 bytes, 128 threads");
  // In backward begins_last means behind the loads.
  is_backward = true;
  CHECK(shape_of(1, 132 * 8, 0) == "4 bytes, 256 threads, flat");
  CHECK(shape_of(560, 132 * 8, 0) == "4 bytes, 256 threads, flat");
  CHECK(shape_of(561, 132 * 8, 0) == "8 bytes, 256 threads");
  has_gate_gradient = false;
  CHECK(shape_of(70, 132 * 8, 0) == "8 bytes, 128 threads");
  CHECK(shape_of(71, 132 * 8, 0) == "8 bytes, 256 threads");
  CHECK(shape_of(131072, 32752, 0) == "8 bytes, 256 threads");
  CHECK(shape_of(230, 132 * 8, programmatic) == "8 bytes, 128 threads");
  CHECK(shape_of(231, 132 * 8, programmatic) == "8 bytes, 256 threads, last");
  CHECK(shape_of(451, 132 * 8, programmatic) == "8 bytes, 256 threads");
  CHECK(shape_of(1301, 132 * 8, programmatic) == "8 bytes, 256 threads, last");
}

TEST_CASE("threads take several rows of large matrices with biases or soft caps", "[swiglu plan]") {
  rope::GatingForm caps = kPlain;
  caps.is_plain = false;
  caps.has_options = true;
  caps.up_softcap = 4;
  const auto rows_of = [](const Options &options, int64_t rows) {
    rope::SwigluProblem problem = compact_problem(ROPE_DTYPE_BF16, {rows, 1056}, false, 0, false, options);
    // Gate and up are packed side by side, so that rows do not follow each other.
    problem.ndim = 2;
    problem.shape[0] = rows, problem.shape[1] = 1056;
    for (int64_t *stride : {problem.in_stride[0], problem.in_stride[1]}) stride[0] = 2 * 1056, stride[1] = 1;
    problem.out_stride[0][0] = 1056, problem.out_stride[0][1] = 1;
    rope::SwigluPlan plan;
    REQUIRE(rope::plan_swiglu("swiglu_forward", problem, kDevices[2], &plan) == ROPE_STATUS_SUCCESS);
    REQUIRE(plan.is_matrix);
    CHECK(plan.num_vectors == (rows + plan.rows_per_thread - 1) / plan.rows_per_thread * 132);
    return plan.rows_per_thread;
  };
  CHECK(rows_of({kPlain, true}, 6000) == 1);
  CHECK(rows_of({kPlain, true}, 6001) == 8);
  CHECK(rows_of({caps}, 20000) == 1);
  CHECK(rows_of({caps}, 20001) == 8);
  // All rows of separate tensors form one row.
  const rope::SwigluProblem separate = compact_problem(ROPE_DTYPE_BF16, {20001, 1056}, false, 0, false, {caps});
  rope::SwigluPlan plan;
  REQUIRE(rope::plan_swiglu("swiglu_forward", separate, kDevices[2], &plan) == ROPE_STATUS_SUCCESS);
  CHECK(plan.rows_per_thread == 1);
}

TEST_CASE("one launch of SwiGLU writes codes by row and by column", "[swiglu plan]") {
  struct Scene {
    rope_dtype_t dtype = ROPE_DTYPE_BF16;
    std::vector<int64_t> shape = {64, 160};
    bool is_backward = false, has_rows = true, has_columns = true, has_words = false, has_row_scale = false;
    int64_t group = 32;
    bool is_packed = false;  // gate and up are halves of one tensor
    uintptr_t gate = 1 << 20;

    rope::SwigluCall call() const {
      const int64_t columns = shape.back();
      int64_t rows = 1;
      for (size_t axis = 0; axis + 1 < shape.size(); ++axis) rows *= shape[axis];
      const auto codes = [&](uintptr_t place) { return compact_tensor(place << 20, ROPE_DTYPE_F8_E4M3, shape); };
      const auto scales = [&](uintptr_t place, bool by_column) {
        if (group == 0) return rope_tensor_t{};
        std::vector<int64_t> of_rows = shape;
        of_rows.back() = columns / group;
        const std::vector<int64_t> of_columns = {rows / group, columns};
        return compact_tensor(place << 20, ROPE_DTYPE_F8_E8M0, by_column ? of_columns : of_rows);
      };
      swiglu_args_t args = SWIGLU_ARGS_INIT;
      swiglu_quant_args_t quant = SWIGLU_QUANT_ARGS_INIT;
      swiglu_column_args_t column = SWIGLU_COLUMN_ARGS_INIT;
      args.gate = compact_tensor(gate, dtype, shape);
      args.up = compact_tensor(2 << 20, dtype, shape);
      if (is_packed) {
        args.up.data = static_cast<char *>(args.gate.data) + 2 * columns;
        for (rope_tensor_t *const half : {&args.gate, &args.up}) {
          half->flags = ROPE_TENSOR_STRIDED;
          int64_t stride = 2 * columns;
          for (int axis = half->ndim - 2; axis >= 0; --axis) {
            half->stride[axis] = stride;
            stride *= half->shape[axis];
          }
          half->stride[half->ndim - 1] = 1;
        }
      }
      if (has_row_scale) args.row_scale = compact_tensor(3 << 20, ROPE_DTYPE_F32, {rows});
      args.quant = &quant;
      args.column = &column;
      if (is_backward) {
        args.grad_out = compact_tensor(4 << 20, dtype, shape);
        if (has_rows) args.grad_gate = codes(5), quant.grad_gate_scales_out = scales(6, false);
        if (has_columns) column.grad_gate = codes(7), column.grad_gate_scales_out = scales(8, true);
        if (has_words) args.grad_up = compact_tensor(9 << 20, dtype, shape);
        if (has_rows && !has_words) args.grad_up = codes(9), quant.grad_up_scales_out = scales(10, false);
        if (has_columns && !has_words) column.grad_up = codes(11), column.grad_up_scales_out = scales(12, true);
      } else {
        if (has_rows) args.out = codes(5), quant.scales_out = scales(6, false);
        if (has_columns) column.out = codes(7), column.scales_out = scales(8, true);
      }
      rope::SwigluCall result;
      REQUIRE(rope::make_swiglu_call("call", dtype, kPlain, args, is_backward, &result) == ROPE_STATUS_SUCCESS);
      return result;
    }
  };
  const rope::DeviceInfo &device = kDevices[2];
  const auto plan_of = [&](const Scene &scene) {
    rope::SwigluCallPlan plan;
    REQUIRE(rope::plan_swiglu_call("call", scene.call(), device, &plan) == ROPE_STATUS_SUCCESS);
    return plan;
  };
  for (const bool is_backward : {false, true}) {
    Scene scene;
    scene.is_backward = is_backward;
    INFO("backward " << is_backward);
    const rope::SwigluCallPlan plan = plan_of(scene);
    CHECK(scene.call().count == (is_backward ? 4 : 2));
    REQUIRE(plan.has_blocks);
    CHECK(plan.num_launches(scene.call()) == 1);
    rope::SwigluCallPlan older;
    REQUIRE(rope::plan_swiglu_call("call", scene.call(), kDevices[1], &older) == ROPE_STATUS_SUCCESS);
    CHECK_FALSE(older.has_blocks);
    const auto has_blocks = [&](const auto &change) {
      rope::SwigluCall call = scene.call();
      for (int i = 0; i < call.count; ++i) change(&call.problems[i]);
      rope::SwigluCallPlan changed;
      REQUIRE(rope::plan_swiglu_call("call", call, device, &changed) == ROPE_STATUS_SUCCESS);
      CHECK(changed.blocks.is_programmatic == (changed.has_blocks && call.problems[0].is_programmatic));
      return changed.has_blocks;
    };
    CHECK(has_blocks([](rope::SwigluProblem *problem) { problem->is_programmatic = true; }));
    CHECK(has_blocks([](rope::SwigluProblem *problem) { problem->in_stride[rope::kUp][0] = 168; }));
    CHECK_FALSE(has_blocks([](rope::SwigluProblem *problem) { problem->in_stride[rope::kUp][0] = 164; }));
    CHECK_FALSE(has_blocks([](rope::SwigluProblem *problem) { problem->in[rope::kGate] += 8; }));
    CHECK_FALSE(
        has_blocks([](rope::SwigluProblem *problem) { problem->out_stride[problem->coded_output()][0] = 164; }));
    CHECK(plan.blocks.vector_elements == 8);
    // Two groups of rows, each of 5 warps backward and 3 forward, in blocks of four warps.
    CHECK(plan.blocks.grid_x == (is_backward ? 3 : 2));
    CHECK(plan.blocks.grid_y == 1);
    char text[256];
    rope::explain_swiglu(scene.call(), plan, device, text, sizeof text);
    CHECK(std::string(text).find("blocks of codes kernel") != std::string::npos);
    CHECK(std::string(text).find("more launch") == std::string::npos);
    const int64_t elements = 64 * 160;
    CHECK(rope::moved_bytes(scene.call()) ==
          (is_backward ? 10 * elements + 4 * elements / 32 : 6 * elements + 2 * elements / 32));
    scene.has_rows = false;
    CHECK(plan_of(scene).has_blocks);
    scene.has_rows = true;
    scene.has_columns = false;
    CHECK(plan_of(scene).has_blocks == is_backward);  // forward has a kernel for them
    scene.has_columns = true;
    const Scene served = scene;
    scene.has_row_scale = true;
    CHECK_FALSE(plan_of(scene).has_blocks);
    CHECK(plan_of(scene).num_launches(scene.call()) == (is_backward ? 4 : 2));
    rope::explain_swiglu(scene.call(), plan_of(scene), device, text, sizeof text);
    CHECK(std::string(text).find(is_backward ? ", and 3 more launches" : ", and 1 more launch") != std::string::npos);
    scene = served;
    scene.group = 16;
    CHECK_FALSE(plan_of(scene).has_blocks);
    scene = served;
    scene.has_columns = false;
    for (const int64_t group : {32, 0}) {
      for (const bool is_packed : {false, true}) {
        scene.group = group;
        scene.is_packed = is_packed;
        for (const std::vector<int64_t> &shape : {std::vector<int64_t>{64, 160}, {2, 32, 160}, {4, 2, 8, 160}}) {
          scene.shape = shape;
          INFO("groups of " << group << ", packed " << is_packed << ", rank " << shape.size());
          const rope::SwigluCallPlan by_row = plan_of(scene);
          CHECK(by_row.has_blocks == is_backward);
          if (is_backward) CHECK(by_row.blocks.grid_x == 3);
        }
      }
    }
    scene = served;
    scene.dtype = ROPE_DTYPE_F32;
    CHECK_FALSE(plan_of(scene).has_blocks);
    scene = served;
    scene.gate += 8;
    CHECK_FALSE(plan_of(scene).has_blocks);
  }
  Scene scene;
  scene.is_backward = scene.has_words = true;
  CHECK(scene.call().count == 3);
  CHECK_FALSE(scene.call().problems[0].has_codes());
  CHECK(plan_of(scene).has_blocks);
  CHECK(plan_of(scene).num_launches(scene.call()) == 2);
}

TEST_CASE("programmatic launches of SwiGLU from compute capability 9.0 on", "[swiglu plan]") {
  for (const bool is_backward : {false, true}) {
    rope::SwigluProblem problem = compact_problem(ROPE_DTYPE_BF16, {64, 128}, is_backward);
    CHECK_FALSE(problem.is_programmatic);
    for (const bool has_flag : {false, true}) {
      for (const bool has_row_sums : {false, true}) {
        problem = compact_problem(ROPE_DTYPE_BF16, {64, 128}, is_backward, has_flag ? ROPE_FLAG_PROGRAMMATIC_LAUNCH : 0,
                                  has_row_sums);
        CHECK((problem.grad_row_scale != nullptr) == (has_row_sums && is_backward));
        for (const int capability : {75, 80, 86, 89, 90, 100, 103, 120, 121}) {
          rope::SwigluPlan plan;
          REQUIRE(rope::plan_swiglu("swiglu_forward", problem, {true, 0, 100, capability, 0}, &plan) ==
                  ROPE_STATUS_SUCCESS);
          CHECK(plan.is_programmatic == (has_flag && capability >= 90));
        }
        rope::SwigluPlan plan;
        REQUIRE(rope::plan_swiglu("swiglu_forward", problem, {false, 8, 0, 0, 0}, &plan) == ROPE_STATUS_SUCCESS);
        CHECK_FALSE(plan.is_programmatic);
      }
    }
  }
}

namespace {

// gpt-oss: gate and up alternate in [tokens, 2 * columns], and so may their gradients, in place or not.
struct Interleaved {
  rope_dtype_t dtype = ROPE_DTYPE_BF16;
  int64_t tokens = 16384, columns = 2880;
  bool is_backward = false;
  uintptr_t in_start = 0;  // bytes
  bool is_up_first = false, are_gradients_interleaved = true, is_in_place = false, has_row_scale = false;

  swiglu_args_t args() const {
    swiglu_args_t args = {};
    args.struct_size = sizeof args;
    const auto size = static_cast<uintptr_t>(oracle::element_size(dtype));
    const auto pair = [&](uintptr_t address, rope_tensor_t *gate, rope_tensor_t *up) {
      *gate = fake_tensor(address + (is_up_first ? size : 0), dtype, {tokens, columns}, {2 * columns, 2});
      *up = fake_tensor(address + (is_up_first ? 0 : size), dtype, {tokens, columns}, {2 * columns, 2});
    };
    pair(region(0) + in_start, &args.gate, &args.up);
    if (has_row_scale) args.row_scale = compact_tensor(region(5), ROPE_DTYPE_F32, {tokens});
    if (!is_backward) {
      args.out = compact_tensor(region(2), dtype, {tokens, columns});
      return args;
    }
    args.grad_out = compact_tensor(region(2), dtype, {tokens, columns});
    args.grad_gate = compact_tensor(region(3), dtype, {tokens, columns});
    args.grad_up = compact_tensor(region(4), dtype, {tokens, columns});
    if (are_gradients_interleaved) pair(region(3), &args.grad_gate, &args.grad_up);
    if (is_in_place) args.grad_gate = args.gate, args.grad_up = args.up;
    return args;
  }
};

rope::SwigluPlan planned(const Interleaved &scene, const swiglu_args_t &args,
                         const rope::DeviceInfo &device = kDevices[2]) {
  rope::SwigluProblem problem;
  const rope_status_t made =
      swiglu_call::make_problem("swiglu_forward", scene.dtype, kPlain, args, scene.is_backward, &problem);
  INFO(rope::last_error());
  REQUIRE(made == ROPE_STATUS_SUCCESS);
  rope::SwigluPlan plan;
  REQUIRE(rope::plan_swiglu("swiglu_forward", problem, device, &plan) == ROPE_STATUS_SUCCESS);
  CHECK(fault_of(problem, device, plan).empty());
  return plan;
}

rope::SwigluPlan planned(const Interleaved &scene) {
  return planned(scene, scene.args());
}

}  // namespace

TEST_CASE("gate and up that alternate are taken by vectors", "[swiglu plan]") {
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (const rope::DeviceInfo &device : kDevices) {
      for (const bool is_up_first : {false, true}) {
        for (const bool has_row_scale : {false, true}) {
          const GateUpLayout layout = is_up_first ? GateUpLayout::kAlternatingUpFirst : GateUpLayout::kAlternating;
          const auto elements = static_cast<int>(rope::kSwigluAlternatingVectorBytes / oracle::element_size(dtype));
          Interleaved scene;
          scene.dtype = dtype;
          scene.is_up_first = is_up_first;
          scene.has_row_scale = has_row_scale;
          rope::SwigluPlan plan = planned(scene, scene.args(), device);
          CHECK(plan.inputs == layout);
          CHECK(plan.gradients == GateUpLayout::kSeparate);
          CHECK(plan.vector_elements == elements);
          scene.is_backward = true;
          plan = planned(scene, scene.args(), device);
          CHECK(plan.inputs == layout);
          CHECK(plan.gradients == layout);
          CHECK(plan.vector_elements == elements);
          scene.is_in_place = true;
          plan = planned(scene, scene.args(), device);
          CHECK(plan.inputs == layout);
          CHECK(plan.gradients == layout);
          scene.is_in_place = scene.are_gradients_interleaved = false;
          plan = planned(scene, scene.args(), device);
          CHECK(plan.inputs == layout);
          CHECK(plan.gradients == GateUpLayout::kSeparate);
          CHECK(plan.vector_elements == elements);
        }
      }
    }
  }
}

TEST_CASE("alternating gradients of separate gate and up, and crosswise in place", "[swiglu plan]") {
  Interleaved scene;
  scene.is_backward = true;
  swiglu_args_t args = scene.args();
  args.gate = compact_tensor(region(0), ROPE_DTYPE_BF16, {16384, 2880});
  args.up = compact_tensor(region(1), ROPE_DTYPE_BF16, {16384, 2880});
  CHECK(planned(scene, args).inputs == GateUpLayout::kSeparate);
  CHECK(planned(scene, args).gradients == GateUpLayout::kAlternating);
  args = scene.args();
  std::swap(args.grad_gate, args.grad_up);
  CHECK(planned(scene, args).inputs == GateUpLayout::kAlternating);
  CHECK(planned(scene, args).gradients == GateUpLayout::kAlternatingUpFirst);
}

TEST_CASE("few alternating elements are taken by narrower vectors", "[swiglu plan]") {
  Interleaved scene;
  scene.tokens = 1;
  CHECK(planned(scene).inputs == GateUpLayout::kAlternating);
  CHECK(planned(scene).vector_elements == 4);
}

TEST_CASE("alternating F64 is taken element by element", "[swiglu plan]") {
  Interleaved scene;
  scene.dtype = ROPE_DTYPE_F64;
  CHECK(planned(scene).inputs == GateUpLayout::kSeparate);
  CHECK(planned(scene).vector_elements == 1);
}

TEST_CASE("what keeps alternating gate and up from vectors", "[swiglu plan]") {
  const auto is_single = [](const Interleaved &scene, const swiglu_args_t &args) {
    const rope::SwigluPlan plan = planned(scene, args);
    return !plan.is_alternating() && plan.vector_elements == 1;
  };
  Interleaved scene;
  const swiglu_args_t args = scene.args();
  CHECK(!is_single(scene, args));

  Interleaved unaligned = scene;
  unaligned.in_start = 4;
  CHECK(is_single(unaligned, unaligned.args()));

  swiglu_args_t changed = args;
  changed.up.data = static_cast<std::byte *>(changed.up.data) + 4;  // three elements behind gate
  CHECK(is_single(scene, changed));
  changed = args;
  changed.up = compact_tensor(region(1), ROPE_DTYPE_BF16, {16384, 2880});
  CHECK(is_single(scene, changed));
  changed = args;
  changed.up.stride[0] += 16;
  changed.gate.shape[0] = changed.up.shape[0] = changed.out.shape[0] = 1000;
  CHECK(is_single(scene, changed));
  changed = args;
  changed.gate.stride[0] = changed.up.stride[0] = 2 * 2880 + 2;  // rows start anywhere
  CHECK(is_single(scene, changed));
  changed = args;
  changed.out = fake_tensor(region(2) + 2, ROPE_DTYPE_BF16, {16384, 2880}, {2880, 1});
  CHECK(is_single(scene, changed));
  changed = args;
  changed.out = changed.gate;
  CHECK(is_single(scene, changed));

  Interleaved backward = scene;
  backward.is_backward = true;
  changed = backward.args();
  CHECK(!is_single(backward, changed));
  changed.grad_up = rope_tensor_t{};  // the call must not write the place of an absent gradient
  CHECK(is_single(backward, changed));
  changed = backward.args();
  changed.grad_up = compact_tensor(region(4), ROPE_DTYPE_BF16, {16384, 2880});
  CHECK(is_single(backward, changed));

  // The starts of the rows of separate tensors are aligned to 8 bytes only.
  changed = args;
  changed.out = fake_tensor(region(2) + 8, ROPE_DTYPE_BF16, {16384, 2880}, {2880, 1});
  CHECK(planned(scene, changed).inputs == GateUpLayout::kAlternating);
  CHECK(planned(scene, changed).vector_elements == 4);
}

TEST_CASE("CPU plans of SwiGLU use threads where there is enough to do", "[swiglu plan]") {
  Random random(3);
  int planned = 0, parallel = 0;
  for (int round = 0; round < 10000; ++round) {
    rope::SwigluProblem problem;
    if (!draw(&random, round % 2 == 0 ? 55 : 12, &problem)) continue;
    for (const int num_threads : {1, 2, 7, 64, 1000}) {
      rope::SwigluPlan plan;
      REQUIRE(rope::plan_swiglu("swiglu_forward", problem, {false, num_threads, 0, 0, 0}, &plan) ==
              ROPE_STATUS_SUCCESS);
      if (plan.num_tasks < 1 || plan.num_tasks > num_threads || plan.num_tasks > problem.num_elements())
        FAIL(plan.num_tasks);
      ++planned;
      parallel += plan.num_tasks > 1;
    }
  }
  CHECK(planned > 10000);
  CHECK(parallel > 1000);
  rope::SwigluPlan plan;
  const rope::DeviceInfo device = {false, 16, 0, 0, 0};
  REQUIRE(rope::plan_swiglu("swiglu_forward", compact_problem(ROPE_DTYPE_F32, {4096}, false), device, &plan) ==
          ROPE_STATUS_SUCCESS);
  CHECK(plan.num_tasks == 1);
  REQUIRE(rope::plan_swiglu("swiglu_forward", compact_problem(ROPE_DTYPE_F32, {8192, 14336}, true), device, &plan) ==
          ROPE_STATUS_SUCCESS);
  CHECK(plan.num_tasks == 16);
  // 2^58 elements of six F64 tensors: more bytes than 63 bits count.
  swiglu_args_t args = {};
  args.struct_size = sizeof args;
  args.gate = args.up = args.grad_out =
      fake_tensor(region(0), ROPE_DTYPE_F64, {int64_t{1} << 50, int64_t{1} << 8}, {0, 0});
  args.row_scale = fake_tensor(region(1), ROPE_DTYPE_F32, {int64_t{1} << 50}, {0});
  args.grad_row_scale = compact_tensor(region(2), ROPE_DTYPE_F32, {int64_t{1} << 50});
  rope::SwigluProblem problem;
  REQUIRE(swiglu_call::make_problem("swiglu_backward", ROPE_DTYPE_F64, kPlain, args, true, &problem) ==
          ROPE_STATUS_SUCCESS);
  REQUIRE(rope::plan_swiglu("swiglu_backward", problem, device, &plan) == ROPE_STATUS_SUCCESS);
  CHECK(plan.num_tasks == 16);
}

TEST_CASE("bytes that a call of SwiGLU moves", "[swiglu plan]") {
  rope::SwigluProblem problem = compact_problem(ROPE_DTYPE_BF16, {3, 5}, false);
  CHECK(rope::moved_bytes(swiglu_call::call_of(problem)) == 3 * 3 * 5 * 2);
  problem = compact_problem(ROPE_DTYPE_F64, {3, 5}, true);
  CHECK(rope::moved_bytes(swiglu_call::call_of(problem)) == 5 * 3 * 5 * 8);
  problem.out[rope::kRecomputedOut] = problem.out[rope::kGradUp];
  CHECK(rope::moved_bytes(swiglu_call::call_of(problem)) == 6 * 3 * 5 * 8);
  problem.out[rope::kGradUp] = problem.out[rope::kGradGate] = nullptr;
  CHECK(rope::moved_bytes(swiglu_call::call_of(problem)) == 4 * 3 * 5 * 8);
  problem.ndim = 1;
  problem.shape[0] = int64_t{1} << 58;
  CHECK(rope::moved_bytes(swiglu_call::call_of(problem)) == INT64_MAX);
}

namespace {

std::string explain(const rope::SwigluProblem &problem, const rope::DeviceInfo &device) {
  rope::SwigluPlan plan = {};
  if (!problem.is_empty()) {
    REQUIRE(rope::plan_swiglu("swiglu_explain", problem, device, &plan) == ROPE_STATUS_SUCCESS);
  }
  char text[512];
  std::memset(text, '#', sizeof text);
  rope::explain_swiglu(swiglu_call::call_of(problem), swiglu_call::plan_of(plan), device, text, sizeof text);
  REQUIRE(std::memchr(text, 0, 256) != nullptr);  // the header states that 256 bytes suffice
  return text;
}

}  // namespace

TEST_CASE("a plan of SwiGLU in words", "[swiglu plan][explain]") {
  const rope::DeviceInfo &gpu = kDevices[2];
  const uint32_t programmatic = ROPE_FLAG_PROGRAMMATIC_LAUNCH;
  rope::SwigluProblem problem = compact_problem(ROPE_DTYPE_BF16, {8192, 14336}, false);
  CHECK(explain(problem, gpu) ==
        "swiglu BF16 forward on CUDA: matrix kernel, vectors of 16 bytes, grid 114688 x 1 of 128 threads, 704.643 MB "
        "read and written");
  CHECK(explain(problem, {false, 12, 0, 0, 0}) ==
        "swiglu BF16 forward on the CPU: 12 of 12 threads, 704.643 MB read and written");
  problem = compact_problem(ROPE_DTYPE_BF16, {512, 1056}, false, programmatic);
  CHECK(explain(problem, gpu) ==
        "swiglu BF16 forward on CUDA: matrix kernel, vectors of 16 bytes, grid 264 x 1 of 256 threads, programmatic, "
        "3.24403 MB read and written");
  CHECK(explain(problem, kDevices[1]) ==
        "swiglu BF16 forward on CUDA: matrix kernel, vectors of 16 bytes, grid 528 x 1 of 128 threads, 3.24403 MB read "
        "and written");
  problem = compact_problem(ROPE_DTYPE_F64, {512, 1056}, false);
  CHECK(
      explain(problem, gpu) ==
      "swiglu F64 forward on CUDA: general kernel, vectors of 16 bytes, grid 2112 x 1 of 128 threads, 12.9761 MB read "
      "and written");
  problem = compact_problem(ROPE_DTYPE_F16, {512, 1056}, true, programmatic);
  CHECK(explain(problem, gpu) ==
        "swiglu F16 backward on CUDA: matrix kernel, vectors of 8 bytes, grid 528 x 1 of 256 threads, programmatic, "
        "5.40672 MB read and written");
  problem = compact_problem(ROPE_DTYPE_F16, {512, 1056}, true, 0, true);
  CHECK(explain(problem, gpu) ==
        "swiglu F16 backward on CUDA: row sums kernel, vectors of 16 bytes, grid 512 x 1 of 160 threads, 5.40672 MB "
        "read and written");
  problem = compact_problem(ROPE_DTYPE_F32, {int64_t{1} << 45}, true);
  CHECK(explain(problem, gpu) ==
        "swiglu F32 backward on CUDA: general kernel, vectors of 16 bytes, grid 2082408386 x 33 of 128 threads, "
        "7.03687e+08 MB read and written");

  Interleaved scene;
  scene.is_backward = true;
  for (const bool are_gradients_interleaved : {false, true}) {
    scene.are_gradients_interleaved = are_gradients_interleaved;
    REQUIRE(swiglu_call::make_problem("swiglu_explain", scene.dtype, kPlain, scene.args(), true, &problem) ==
            ROPE_STATUS_SUCCESS);
    CHECK(explain(problem, gpu) ==
          "swiglu BF16 backward on CUDA: alternating kernel, vectors of 16 bytes, grid 46080 x 1 of 128 threads, "
          "471.859 MB read and written");
  }

  problem = compact_problem(ROPE_DTYPE_BF16, {0, 8}, false);
  for (const rope::DeviceInfo &device : {gpu, rope::DeviceInfo{false, 4, 0, 0, 0}}) {
    CHECK(explain(problem, device) == "swiglu BF16 forward: nothing to do, no element is gated");
  }
}

TEST_CASE("plans of options and experts, in words", "[swiglu plan][explain]") {
  const auto with = [](auto change) {
    rope::GatingForm form = kPlain;
    form.is_plain = false;
    form.has_options = true;
    change(&form);
    return form;
  };
  const rope::GatingForm geglu = with([](auto *form) { form->activation = rope::Activation::kGegluTanh; });
  const rope::GatingForm reglu = with([](auto *form) { form->activation = rope::Activation::kReglu; });
  const rope::GatingForm caps = with([](auto *form) { form->gate_softcap = 4; });
  const rope::GatingForm late = with([](auto *form) { form->limits_activation = true; });
  const rope::GatingForm moved = with([](auto *form) {
    form->gate_softcap = 4;
    form->up_offset = 1;
  });
  const rope::GatingForm rounded = with([](auto *form) { form->rounds_activation = true; });
  const rope::GatingForm capped_geglu = with([](auto *form) {
    form->activation = rope::Activation::kGegluErf;
    form->up_softcap = 4;
  });
  const std::string matrix = "matrix with options kernel, vectors of 16 bytes", element = "element kernel, vectors of ";
  const std::string half_matrix = "matrix with options kernel, vectors of 8 bytes";
  const std::string expert = "expert kernel, vectors of 16 bytes";
  const struct {
    rope_dtype_t dtype;
    std::vector<int64_t> shape;
    bool is_backward, has_row_scale;
    Options options;
    std::string kernel;
  } rows[] = {
      {ROPE_DTYPE_BF16, {512, 1056}, false, false, {geglu}, matrix + ", grid 264 x 1 of 256"},
      {ROPE_DTYPE_BF16, {512, 1056}, true, false, {geglu}, matrix + ", grid 528 x 1 of 128"},
      {ROPE_DTYPE_F32, {512, 1056}, true, false, {caps}, matrix + ", grid 1056 x 1 of 128"},
      {ROPE_DTYPE_BF16, {200, 1056}, false, false, {geglu}, half_matrix + ", grid 207 x 1 of 256"},
      {ROPE_DTYPE_F16, {200, 1056}, false, false, {caps}, half_matrix + ", grid 207 x 1 of 256"},
      {ROPE_DTYPE_F16, {200, 1056}, false, false, {reglu}, matrix + ", grid 104 x 1 of 256"},
      {ROPE_DTYPE_F32, {100, 1056}, false, false, {geglu}, matrix + ", grid 104 x 1 of 256"},
      {ROPE_DTYPE_BF16, {202, 1056}, false, false, {geglu}, matrix + ", grid 105 x 1 of 256"},
      {ROPE_DTYPE_BF16, {512, 1056}, false, false, {kPlain, true}, matrix + ", grid 264 x 1 of 256"},
      {ROPE_DTYPE_BF16, {512, 1056}, true, false, {kPlain, true}, matrix + ", grid 528 x 1 of 128"},
      {ROPE_DTYPE_BF16, {512, 1056}, false, false, {late}, matrix + ", grid 264 x 1 of 256"},
      {ROPE_DTYPE_BF16, {512, 1056}, false, false, {rounded, true}, matrix + ", grid 264 x 1 of 256"},
      {ROPE_DTYPE_BF16, {512, 1056}, true, false, {late}, matrix + ", grid 528 x 1 of 128"},
      {ROPE_DTYPE_BF16, {512, 1056}, true, false, {late, true}, element + "2 bytes, grid 4224 x 1 of 128"},
      {ROPE_DTYPE_BF16, {512, 1056}, false, false, {moved}, element + "2 bytes, grid 4224 x 1 of 128"},
      {ROPE_DTYPE_BF16, {8191, 1056}, false, false, {kPlain, true}, matrix + ", grid 1056 x 1 of 128"},
      {ROPE_DTYPE_BF16, {512, 1056}, true, false, {capped_geglu}, element + "2 bytes, grid 4224 x 1 of 128"},
      {ROPE_DTYPE_BF16, {512, 1056}, false, true, {geglu}, element + "2 bytes, grid 4224 x 1 of 128"},
      {ROPE_DTYPE_BF16, {511, 1057}, false, false, {geglu}, element + "2 bytes, grid 4220 x 1 of 128"},
      {ROPE_DTYPE_F64, {512, 1056}, false, false, {geglu}, element + "8 bytes, grid 4224 x 1 of 128"},
      {ROPE_DTYPE_F16, {512, 1056}, true, true, {geglu}, "row sums kernel, vectors of 2 bytes, grid 512 x 1 of 256"},
      {ROPE_DTYPE_BF16, {256, 128, 2048}, false, false, {kPlain, false, true}, expert + ", grid 1188 x 1 of 128"},
      {ROPE_DTYPE_BF16, {256, 128, 2048}, false, true, {kPlain, true, true}, expert + ", grid 1188 x 1 of 128"},
      {ROPE_DTYPE_F32, {8, 5, 1024}, true, false, {kPlain, false, true}, expert + ", grid 20 x 1 of 128"},
      {ROPE_DTYPE_BF16, {8, 5, 24}, false, false, {geglu, false, true}, element + "2 bytes, grid 8 x 1 of 128"},
      {ROPE_DTYPE_BF16, {8, 5, 33}, false, false, {kPlain, false, true}, element + "2 bytes, grid 11 x 1 of 128"},
      {ROPE_DTYPE_BF16, {8, 5, 3, 16}, false, false, {kPlain, false, true}, expert + ", grid 10 x 1 of 128"},
      {ROPE_DTYPE_BF16, {8, 1, 64}, false, false, {kPlain, false, true}, element + "2 bytes, grid 4 x 1 of 128"},
      {ROPE_DTYPE_F64, {8, 5, 64}, false, false, {kPlain, false, true}, element + "8 bytes, grid 20 x 1 of 128"},
      {ROPE_DTYPE_BF16,
       {8, 5, 24},
       true,
       true,
       {kPlain, false, true},
       "row sums kernel, vectors of 2 bytes, grid 40 x"},
  };
  for (const auto &row : rows) {
    const rope::SwigluProblem problem =
        compact_problem(row.dtype, row.shape, row.is_backward, 0, row.has_row_scale, row.options);
    const std::string text = explain(problem, kDevices[2]);
    INFO(text << "; wanted: " << row.kernel);
    CHECK(text.find(": " + row.kernel) != std::string::npos);
  }
}

TEST_CASE("plans of rows that are looked up, in words", "[swiglu plan][explain]") {
  rope::GatingForm geglu = kPlain;
  geglu.is_plain = false;
  geglu.has_options = true;
  geglu.activation = rope::Activation::kGegluTanh;
  const std::string row = "row kernel, vectors of 16 bytes, grid ", element = "element kernel, vectors of ";
  const std::string sums = "row sums kernel, vectors of 2 bytes, grid ";
  const struct {
    rope_dtype_t dtype;
    std::vector<int64_t> shape;
    bool is_backward, has_row_scale;
    Options options;
    std::string kernel;
  } rows[] = {
      {ROPE_DTYPE_BF16, {32768, 2048}, false, false, {kPlain, false, false, 256}, row + "1188 x 1 of 128"},
      {ROPE_DTYPE_BF16, {32768, 2048}, true, false, {kPlain, false, false, 256}, row + "1188 x 1 of 128"},
      {ROPE_DTYPE_F16, {40, 64, 32}, false, true, {kPlain, false, false, 3}, row + "20 x 1 of 128"},
      {ROPE_DTYPE_BF16, {40, 1024}, false, true, {kPlain, false, false, 0, true}, row + "10 x 1 of 128"},
      {ROPE_DTYPE_BF16, {40, 1024}, false, true, {kPlain, true, false, 8, true}, row + "10 x 1 of 128"},
      {ROPE_DTYPE_BF16, {40, 1024}, false, false, {kPlain, true, false, 8, false, 1024}, row + "10 x 1 of 128"},
      {ROPE_DTYPE_BF16, {40, 1024}, false, false, {kPlain, true, false, 8, false, 1026}, element + "2 bytes, grid 320"},
      {ROPE_DTYPE_F32, {40, 1024}, false, false, {kPlain, false, false, 1024}, row + "20 x 1 of 128"},
      {ROPE_DTYPE_F32, {40, 1024}, false, false, {kPlain, false, false, 1025}, element + "4 bytes, grid 320"},
      {ROPE_DTYPE_F64, {40, 1024}, false, false, {kPlain, false, false, 4}, element + "8 bytes, grid 320"},
      {ROPE_DTYPE_BF16, {40, 1024}, false, false, {geglu, false, false, 4}, element + "2 bytes, grid 320"},
      {ROPE_DTYPE_BF16, {40, 1023}, false, false, {kPlain, false, false, 4}, element + "2 bytes, grid 320"},
      {ROPE_DTYPE_BF16, {1, 1024}, false, false, {kPlain, false, false, 4}, element + "2 bytes, grid 8"},
      {ROPE_DTYPE_BF16, {40, 1024}, true, true, {kPlain, false, false, 4}, sums + "40 x"},
      {ROPE_DTYPE_BF16, {40, 1024}, true, true, {kPlain, false, false, 0, true}, sums + "40 x"},
  };
  for (const auto &each : rows) {
    const rope::SwigluProblem problem =
        compact_problem(each.dtype, each.shape, each.is_backward, 0, each.has_row_scale, each.options);
    const std::string text = explain(problem, kDevices[2]);
    INFO(text << "; wanted: " << each.kernel);
    CHECK(text.find(": " + each.kernel) != std::string::npos);
  }
}

TEST_CASE("plans of codes, in words", "[swiglu plan][explain]") {
  rope::GatingForm geglu = kPlain;
  geglu.is_plain = false;
  geglu.has_options = true;
  geglu.activation = rope::Activation::kGegluTanh;
  constexpr rope_dtype_t kCode = ROPE_DTYPE_F8_E4M3, kPairs = ROPE_DTYPE_F4_E2M1X2;
  const std::string matrix = "matrix codes kernel, vectors of 16 bytes, grid ";
  const std::string group = "group codes kernel, vectors of 16 bytes, grid ";
  const std::string short_group = "group codes kernel, vectors of 8 bytes, grid ";
  const std::string expert = "expert codes kernel, vectors of 16 bytes, grid ";
  const std::string row = "row codes kernel, vectors of 16 bytes, grid ", element = "codes kernel, vectors of ";
  const struct {
    std::vector<int64_t> shape;
    bool has_row_scale;
    Options options;
    std::string kernel;
  } rows[] = {
      {{20, 2048}, false, {kPlain, false, false, 0, false, 0, kCode}, group + "40 x 1 of 128"},
      {{40, 2048}, false, {kPlain, false, false, 0, false, 0, kCode}, group + "40 x 1 of 256"},
      {{40, 2048}, false, {kPlain, false, false, 0, false, 0, kCode, 128}, short_group + "160 x 1 of 128"},
      {{40, 2056}, false, {kPlain, false, false, 0, false, 0, kCode}, matrix + "81 x 1 of 128"},
      {{40, 2048}, false, {kPlain, false, false, 0, false, 0, kCode, 64}, matrix + "80 x 1 of 128"},
      {{64, 14336}, false, {kPlain, false, false, 0, false, 0, kCode, 128}, group + "896 x 1 of 128"},
      {{40, 2048}, false, {kPlain, false, false, 0, false, 0, kCode, 512}, matrix + "40 x 1 of 128"},
      {{256, 14336}, false, {kPlain, false, false, 0, false, 0, kCode, 128}, group + "3584 x 1 of 128"},
      {{512, 14336}, false, {kPlain, false, false, 0, false, 0, kCode, 128}, group + "7168 x 1 of 128"},
      {{1024, 14336}, false, {kPlain, false, false, 0, false, 0, kCode, 128}, group + "3584 x 1 of 256"},
      {{8191, 14336}, false, {kPlain, false, false, 0, false, 0, kCode, 128}, group + "28669 x 1 of 256"},
      {{8191, 14336}, false, {kPlain, false, false, 0, false, 0, kCode, 64}, matrix + "28672 x 1 of 128"},
      {{8191, 14336}, false, {kPlain, false, false, 0, false, 0, kCode}, group + "57337 x 1 of 256"},
      {{8191, 14336}, false, {kPlain, false, false, 0, false, 0, ROPE_DTYPE_F8_E5M2}, matrix + "114674 x 1 of 128"},
      {{8191, 14336}, false, {kPlain, false, false, 0, false, 0, kPairs, 16}, matrix + "14336 x 1 of 128"},
      {{40, 2048}, false, {kPlain, false, false, 0, false, 0, kCode, 2048}, matrix + "40 x 1 of 64"},
      {{40, 28672}, false, {kPlain, false, false, 0, false, 0, kCode, 28672}, matrix + "40 x 1 of 512"},
      {{40, 2048}, false, {geglu, false, false, 0, false, 0, kCode, 128}, element + "2 bytes"},
      {{256, 128, 2048}, false, {kPlain, false, true, 0, false, 0, kCode}, expert + "1056 x 1 of 128"},
      {{256, 128, 2048}, false, {kPlain, false, true, 0, false, 0, kCode, 128}, expert + "1056 x 1 of 128"},
      {{256, 128, 2048}, false, {kPlain, false, true, 0, false, 0, kCode, 2048}, matrix + "32768 x 1 of 64"},
      {{256, 128, 2048}, false, {kPlain, true, true, 0, false, 0, kCode, 2048}, element + "2 bytes"},
      {{40, 2048}, false, {kPlain, false, false, 8, false, 0, kCode, 16}, row + "20 x 1 of 128"},
      {{40, 2048}, true, {kPlain, false, false, 0, true, 0, kCode, 256}, row + "20 x 1 of 128"},
      {{40, 2048}, true, {kPlain, false, false, 0, false, 0, kCode, 8}, row + "20 x 1 of 128"},
      {{40, 2048}, false, {kPlain, true, false, 0, false, 0, kCode}, row + "20 x 1 of 128"},
      {{40, 2048}, false, {kPlain, true, false, 0, false, 0, kCode, 512}, element + "2 bytes"},
      {{40, 2044}, false, {kPlain, true, false, 0, false, 0, kCode}, element + "2 bytes"},
      {{40, 2048}, false, {geglu, true, false, 0, false, 0, kCode, 128}, element + "2 bytes"},
  };
  for (const auto &each : rows) {
    const rope::SwigluProblem problem =
        compact_problem(ROPE_DTYPE_BF16, each.shape, false, 0, each.has_row_scale, each.options);
    const std::string text = explain(problem, kDevices[2]);
    INFO(text << "; wanted: " << each.kernel);
    CHECK(text.find(": " + each.kernel) != std::string::npos);
  }
}

// As many codes as a thread stores at a time; 1 by the kernel of single elements.
int64_t codes_at_a_time(const rope::SwigluProblem &problem) {
  rope::SwigluPlan plan;
  REQUIRE(rope::plan_swiglu("swiglu_forward", problem, kDevices[2], &plan) == ROPE_STATUS_SUCCESS);
  return int64_t{plan.group_vectors} * plan.vector_elements;
}

TEST_CASE("codes have vectors only where gate, up and out have them", "[swiglu plan]") {
  const auto problem_of = [](rope_dtype_t code, int64_t group) {
    const rope::SwigluProblem problem = compact_problem(ROPE_DTYPE_BF16, {8191, 14336}, false, 0, false,
                                                        {kPlain, false, false, 0, false, 0, code, group});
    REQUIRE(problem.ndim == 2);
    return problem;
  };
  const rope::SwigluProblem wide = problem_of(ROPE_DTYPE_F8_E4M3, 128), pairs = problem_of(ROPE_DTYPE_F4_E2M1X2, 16);
  const struct {
    const rope::SwigluProblem &problem;
    int in;  // whose address and stride are moved, or -1
    int64_t in_bytes, in_elements, out_bytes, out_codes, codes;
  } rows[] = {
      {wide, -1, 0, 0, 0, 0, 16},         {wide, -1, 0, 0, 8, 0, 8},          {wide, -1, 0, 0, 0, 8, 8},
      {wide, -1, 0, 0, 4, 0, 1},          {wide, -1, 0, 0, 0, 4, 1},          {wide, rope::kGate, 8, 0, 0, 0, 1},
      {wide, rope::kUp, 8, 0, 0, 0, 1},   {wide, rope::kGate, 0, 4, 0, 0, 1}, {wide, rope::kUp, 0, 4, 0, 0, 1},
      {wide, rope::kUp, 16, 8, 0, 0, 16}, {pairs, -1, 0, 0, 4, 0, 16},        {pairs, -1, 0, 0, 0, 8, 16},
      {pairs, -1, 0, 0, 2, 0, 1},         {pairs, -1, 0, 0, 0, 4, 1},
  };
  for (const auto &each : rows) {
    INFO("codes of type " << each.problem.codes.dtype << ", input " << each.in << " moved by " << each.in_bytes
                          << ", rows by " << each.in_elements << ", out by " << each.out_bytes << " and "
                          << each.out_codes);
    rope::SwigluProblem problem = each.problem;
    if (each.in >= 0) {
      problem.in[each.in] += each.in_bytes;
      problem.in_stride[each.in][0] += each.in_elements;
    }
    problem.out[rope::kOut] += each.out_bytes;
    problem.out_stride[rope::kOut][0] += each.out_codes;
    CHECK(codes_at_a_time(problem) == each.codes);
  }
  // Tiles of scales, of the rows of one matrix and of every other row.
  rope::SwigluProblem tiles = problem_of(ROPE_DTYPE_F8_E4M3, 32);
  tiles.codes.has_tiles = true;
  tiles.codes.scale_row_stride[0] = 1;
  CHECK(codes_at_a_time(tiles) == 16);
  tiles.codes.scale_row_stride[0] = 2;
  CHECK(codes_at_a_time(tiles) == 1);
  rope::SwigluProblem experts = compact_problem(ROPE_DTYPE_BF16, {256, 128, 2048}, false, 0, false,
                                                {kPlain, false, true, 0, false, 0, ROPE_DTYPE_F8_E4M3, 2048});
  experts.codes.has_tiles = true;
  experts.codes.scale_row_stride[1] = 1;
  CHECK(codes_at_a_time(experts) > 1);
  experts.codes.scale_row_stride[1] = 2;
  CHECK(codes_at_a_time(experts) == 1);
}

TEST_CASE("GPUs without an instruction for codes have one vector of one row for each thread", "[swiglu plan]") {
  const auto matrix_of = [](int64_t group) {
    return compact_problem(ROPE_DTYPE_BF16, {8191, 14336}, false, 0, false,
                           {kPlain, false, false, 0, false, 0, ROPE_DTYPE_F8_E4M3, group});
  };
  const rope::SwigluProblem matrix = matrix_of(64), plain_groups = matrix_of(128);
  const rope::SwigluProblem experts = compact_problem(ROPE_DTYPE_BF16, {8, 64, 2048}, false, 0, false,
                                                      {kPlain, false, true, 0, false, 0, ROPE_DTYPE_F8_E4M3, 128});
  for (const rope::DeviceInfo &device : kDevices) {
    INFO("compute capability " << device.compute_capability);
    const bool has_instruction = device.compute_capability >= 89;
    rope::SwigluPlan plan;
    REQUIRE(rope::plan_swiglu("swiglu_forward", matrix, device, &plan) == ROPE_STATUS_SUCCESS);
    CHECK(plan.is_matrix);
    CHECK(plan.group_vectors == (has_instruction ? 2 : 1));
    CHECK(plan.rows_per_thread == (has_instruction ? 2 : 1));
    REQUIRE(rope::plan_swiglu("swiglu_forward", plain_groups, device, &plan) == ROPE_STATUS_SUCCESS);
    CHECK(plan.has_plain_groups);
    CHECK(plan.group_vectors == (has_instruction ? 2 : 1));
    REQUIRE(rope::plan_swiglu("swiglu_forward", experts, device, &plan) == ROPE_STATUS_SUCCESS);
    CHECK(plan.is_expert_matrix);
    CHECK(plan.formula == (has_instruction ? rope::SwigluFormula::kPlain : rope::SwigluFormula::kBiases));
  }
}

// The kernel of experts computes with numbers of 32 bits.
TEST_CASE("experts beyond 32 bits are taken element by element", "[swiglu plan]") {
  const auto is_expert_matrix = [](int64_t experts, int64_t rows, int64_t columns) {
    const rope::SwigluProblem problem =
        compact_problem(ROPE_DTYPE_BF16, {experts, rows, columns}, false, 0, false, {kPlain, false, true});
    rope::SwigluPlan plan;
    REQUIRE(rope::plan_swiglu("swiglu_forward", problem, kDevices[2], &plan) == ROPE_STATUS_SUCCESS);
    return plan.is_expert_matrix;
  };
  CHECK(is_expert_matrix(2, (int64_t{1} << 30) - 1, 64));
  CHECK_FALSE(is_expert_matrix(2, int64_t{1} << 30, 64));
  CHECK(is_expert_matrix(2, (int64_t{1} << 29) - 1, 2048));
  CHECK_FALSE(is_expert_matrix(2, int64_t{1} << 29, 2048));
  const auto is_row_matrix = [](int64_t rows, int64_t columns) {
    const rope::SwigluProblem problem =
        compact_problem(ROPE_DTYPE_BF16, {rows, columns}, false, 0, false, {kPlain, false, false, 5});
    rope::SwigluPlan plan;
    REQUIRE(rope::plan_swiglu("swiglu_forward", problem, kDevices[2], &plan) == ROPE_STATUS_SUCCESS);
    return plan.is_expert_matrix;
  };
  CHECK(is_row_matrix((int64_t{1} << 31) - 2, 64));
  CHECK_FALSE(is_row_matrix((int64_t{1} << 31) - 1, 64));
  CHECK(is_row_matrix((int64_t{1} << 30) - 1, 2048));
  CHECK_FALSE(is_row_matrix(int64_t{1} << 30, 2048));
}
