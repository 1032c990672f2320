// SPDX-License-Identifier: Apache-2.0
// scene.cpp - RoPE problems at invented addresses, for tests of plans
#include "plan/scene.hpp"

#include <catch2/catch_test_macros.hpp>
#include <cstring>
#include <sstream>
#include <utility>

#include "plan/explain.hpp"

namespace {

int64_t up_to_power(Random *random, int exponent) {
  return 1 + (static_cast<int64_t>(random->bits() >> 1) & ((int64_t{1} << random->below(exponent + 1)) - 1));
}

// Channels are close together; the other axes have any order in memory, with or without gaps.
rope_tensor_t random_tensor(Random *random, const Scene &scene, bool is_plain, int number,
                            const std::vector<int64_t> &shape) {
  const size_t channels = shape.size() - 1;
  const int64_t alignment = is_plain ? 8 : int64_t{1} << random->below(5);  // of gaps and data, in elements
  std::vector<size_t> order;
  for (size_t axis = 0; axis < channels; ++axis) order.push_back(axis);
  for (size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[static_cast<size_t>(random->below(static_cast<int64_t>(i)))]);
  }
  std::vector<int64_t> stride(shape.size());
  const int64_t steps[] = {1, 1, 1, 1, 1, 1, 2, -1};
  stride[channels] = is_plain ? 1 : steps[random->below(8)];
  int64_t next = shape[channels] * std::abs(stride[channels]);
  for (const size_t axis : order) {
    next += random->below(3) == 0 ? random->below(4) * alignment : 0;
    stride[axis] = random->below(8) == 0 ? -next : next;
    next *= shape[axis];
  }
  const uintptr_t offset = static_cast<uintptr_t>(random->below(8) * alignment * scene.element_size());
  return fake_tensor((static_cast<uintptr_t>(2 * number + 2) << 59) + offset, scene.geometry.dtype, shape, stride);
}

// Cosines or sines; columns are mostly adjacent, and rows mostly begin aligned to vectors.
rope_tensor_t random_table(Random *random, int number, rope_dtype_t dtype, const std::vector<int64_t> &shape) {
  const int64_t size = oracle::element_size(dtype), step = random->below(16) == 0 ? 2 : 1;
  std::vector<int64_t> stride(shape.size());
  int64_t next = step;
  for (size_t axis = shape.size(); axis-- > 0;) {
    stride[axis] = next;
    next = next * shape[axis] + (random->below(8) == 0 ? random->below(9) : 0);
  }
  const int64_t start = random->below(8) == 0 ? random->below(9) : 0;
  return fake_tensor(far_address(number) + static_cast<uintptr_t>(start * size), dtype, shape, stride);
}

// Half of the calls get a table that most kernels accept.
void draw_plain_operands(Random *random, int64_t width, rope_args_t *args) {
  const rope_dtype_t dtypes[] = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16};
  if (random->below(2) != 0) return;
  const rope_dtype_t dtype = dtypes[random->below(3)];
  args->cos = random_table(random, 0, dtype, {64, width / 2});
  args->sin = random_table(random, 1, dtype, {64, width / 2});
}

// Some calls get a table or angles, sequences and fault words.
void draw_operands(Random *random, const rope_config_t &config, int64_t batches, int64_t tokens, int64_t width,
                   rope_args_t *args) {
  const rope_dtype_t dtypes[] = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64};
  std::vector<int64_t> shape = {64, random->below(3) == 0 ? width : width / 2};
  const int64_t table = random->below(6);
  if (table < 3 && random->below(3) == 0) {
    args->table_rows = ROPE_TABLE_BY_TOKEN;
    shape[0] = tokens;
    if (config.layout != ROPE_LAYOUT_THD && random->below(2) == 0) shape.insert(shape.begin(), batches);
  }
  if (table < 2) {
    const rope_dtype_t dtype = dtypes[random->below(4)];
    args->cos = random_table(random, 0, dtype, shape);
    args->sin = random_table(random, 1, dtype, shape);
  } else if (table == 2) {
    args->angles = compact_tensor(far_address(0), dtypes[random->below(3)], shape);
  }
  if (config.layout == ROPE_LAYOUT_THD && random->below(2) == 0) {
    args->cu_seqlens = compact_tensor(far_address(2), ROPE_DTYPE_I32, {4});
  }
  if (random->below(8) == 0) args->fault = compact_tensor(far_address(3), ROPE_DTYPE_I64, {2});
  if (config.layout != ROPE_LAYOUT_THD && config.num_axes < 2 && random->below(8) == 0) {
    args->start_positions = compact_tensor(far_address(4), ROPE_DTYPE_I64, {batches});
  }
}

}  // namespace

uintptr_t far_address(int number) {
  return static_cast<uintptr_t>(number + 14) << 59;
}

bool draw(Random *random, const Sizes &sizes, Scene *scene) {
  rope_config_t config = {};
  // Some are typical of models.
  const bool is_plain = random->below(4) == 0, is_prefill = is_plain && random->below(3) == 0;
  const rope_dtype_t dtypes[] = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64};
  const int32_t head_dims[] = {2, 4, 6, 8, 16, 32, 64, 80, 96, 128, 128, 128, 192, 256, 512, 576, 1024};
  config.struct_size = sizeof config;
  config.device = ROPE_DEVICE_CUDA;
  config.dtype = dtypes[random->below(4)];
  config.layout = static_cast<rope_layout_t>(1 + random->below(4));
  config.style = static_cast<rope_style_t>(1 + random->below(2));
  config.head_dim =
      random->below(4) == 0 ? 2 * static_cast<int32_t>(1 + random->below(512)) : head_dims[random->below(17)];
  if (random->below(2) == 0) config.rotary_dim = 2 * static_cast<int32_t>(1 + random->below(config.head_dim / 2));
  if (random->below(4) == 0 && config.head_dim >= 32) config.rotary_dim = config.head_dim / 32 * 16;
  if (is_prefill) {
    config.dtype = dtypes[1 + random->below(2)];
    config.head_dim = 16 * static_cast<int32_t>(4 + random->below(6));
    config.rotary_dim = 0;
  }
  if (config.rotary_dim != 0) {
    const int32_t room = config.head_dim - config.rotary_dim;
    const int32_t offsets[] = {0, room, static_cast<int32_t>(random->below(room + 1))};
    config.rotary_offset = offsets[random->below(3)];
  }
  config.theta = 1e4;
  const int32_t width = config.rotary_dim != 0 ? config.rotary_dim : config.head_dim;
  if (random->below(3) == 0) config.out_style = static_cast<rope_style_t>(1 + random->below(2));
  if (random->below(4) == 0) config.pair_block = 2 * static_cast<int32_t>(1 + random->below(width / 2));
  if (random->below(4) == 0 && width % 4 == 0) config.pair_block = width / 2;
  if (random->below(8) == 0) config.num_axes = static_cast<int32_t>(1 + random->below(8));
  if (is_plain) config.out_style = {}, config.pair_block = config.num_axes = 0;
  if (is_prefill && random->below(16) == 0) config.out_style = oracle::other_style(config.style);
  if (rope::make_rope_geometry("rope_desc_create", config, &scene->geometry) != ROPE_STATUS_SUCCESS) return false;

  int64_t left = int64_t{1} << (is_prefill ? sizes.total : random->below(sizes.total + 1));
  const auto take = [&](int exponent) {
    const int64_t size = std::min(up_to_power(random, exponent), left);
    left /= size;
    return size;
  };
  int64_t batches = 1, tokens = 1, heads[3] = {};
  // Either of the two may become large.
  const bool heads_first = random->below(2) == 0;
  if (heads_first) heads[0] = take(sizes.heads - 1);
  if (config.layout != ROPE_LAYOUT_THD && !is_prefill && random->below(3) != 0) batches = take(sizes.batch);
  tokens = take(sizes.tokens - 1);
  if (!heads_first) heads[0] = take(sizes.heads - 1);
  for (int i = 1; i < 3; ++i)
    heads[i] = random->below(3) == 0 ? heads[0] : random->below(2) * std::min(heads[0], 1 + random->below(8));
  if (random->below(16) == 0 && heads[1] > 0) heads[0] = 0;
  if (is_plain && !is_prefill && random->below(2) == 0) heads[0] = 1, heads[1] = random->below(3), heads[2] = 0;

  scene->args = {};
  scene->args.struct_size = sizeof scene->args;
  rope_tensor_t *in[] = {&scene->args.q, &scene->args.k, &scene->args.v};
  rope_tensor_t *out[] = {&scene->args.q_out, &scene->args.k_out, &scene->args.v_out};
  for (int i = 0; i < 3; ++i) {
    if (i > 0 && heads[i] == 0) continue;
    std::vector<int64_t> shape;
    for (const char *axis = config.layout == ROPE_LAYOUT_BSHD   ? "BSHD"
                            : config.layout == ROPE_LAYOUT_SBHD ? "SBHD"
                            : config.layout == ROPE_LAYOUT_BHSD ? "BHSD"
                                                                : "SHD";
         *axis != 0; ++axis) {
      shape.push_back(*axis == 'B' ? batches : *axis == 'S' ? tokens : *axis == 'H' ? heads[i] : config.head_dim);
    }
    *in[i] = random_tensor(random, *scene, is_plain, 2 * i, shape);
    if (random->below(2) != 0) continue;
    *out[i] = random_tensor(random, *scene, is_plain, 2 * i + 1, shape);
    // Mostly equal to the input's.
    if (random->below(4) != 0) std::copy(in[i]->stride, in[i]->stride + shape.size(), out[i]->stride);
  }
  if (is_plain) {
    draw_plain_operands(random, width, &scene->args);
  } else {
    draw_operands(random, config, batches, tokens, width, &scene->args);
  }
  if (random->below(2) == 0) scene->args.flags = ROPE_FLAG_PROGRAMMATIC_LAUNCH;
  return rope::make_rope_problem("rope_forward", scene->geometry, scene->args, random->below(2) == 0, &scene->problem,
                                 &scene->step) == ROPE_STATUS_SUCCESS &&
         !scene->problem.is_empty();
}

rope_config_t some_config(rope_dtype_t dtype, int32_t head_dim) {
  rope_config_t config = {};
  config.struct_size = sizeof config;
  config.device = ROPE_DEVICE_CPU;
  config.dtype = dtype;
  config.layout = ROPE_LAYOUT_BSHD;
  config.style = ROPE_STYLE_HALF;
  config.head_dim = head_dim;
  config.theta = 1e4;
  return config;
}

void set_problem(Scene *scene, const rope_config_t &config, const std::vector<int64_t> &shape,
                 const rope_args_t &operands) {
  REQUIRE(rope::make_rope_geometry("rope_desc_create", config, &scene->geometry) == ROPE_STATUS_SUCCESS);
  scene->args = operands;
  scene->args.struct_size = sizeof scene->args;
  scene->args.q = compact_tensor(uintptr_t{1} << 61, config.dtype, shape);
  const rope_status_t status =
      rope::make_rope_problem("rope_forward", scene->geometry, scene->args, false, &scene->problem, &scene->step);
  INFO(rope::last_error());
  REQUIRE(status == ROPE_STATUS_SUCCESS);
}

void set_operands(Scene *scene, rope_layout_t layout, rope_dtype_t dtype, int64_t batches, int64_t tokens,
                  const int64_t (&heads)[3], int32_t head_dim, bool is_in_place) {
  rope_args_t &args = scene->args;
  args = {};
  args.struct_size = sizeof args;
  rope_tensor_t *in[] = {&args.q, &args.k, &args.v};
  rope_tensor_t *out[] = {&args.q_out, &args.k_out, &args.v_out};
  for (int i = 0; i < 3; ++i) {
    std::vector<int64_t> shape = {batches, tokens, heads[i], head_dim};
    if (layout == ROPE_LAYOUT_SBHD) shape = {tokens, batches, heads[i], head_dim};
    if (layout == ROPE_LAYOUT_BHSD) shape = {batches, heads[i], tokens, head_dim};
    if (layout == ROPE_LAYOUT_THD) shape = {tokens, heads[i], head_dim};
    *in[i] = compact_tensor(static_cast<uintptr_t>(2 * i + 2) << 59, dtype, shape);
    if (!is_in_place) *out[i] = compact_tensor(static_cast<uintptr_t>(2 * i + 3) << 59, dtype, shape);
  }
}

void set_problem(Scene *scene, rope_dtype_t dtype, int64_t batches, int64_t tokens, int64_t heads, int32_t head_dim) {
  set_problem(scene, some_config(dtype, head_dim), {batches, tokens, heads, head_dim});
}

rope_args_t with_flag(rope_args_t args) {
  args.flags = ROPE_FLAG_PROGRAMMATIC_LAUNCH;
  return args;
}

rope::RopePlan plan_of(const Scene &scene, const rope::DeviceInfo &device) {
  rope::RopePlan plan;
  const rope_status_t status = rope::plan_rope("rope_forward", scene.problem, device, &plan);
  INFO(rope::last_error());
  REQUIRE(status == ROPE_STATUS_SUCCESS);
  return plan;
}

std::string explain(const Scene &scene, const rope::DeviceInfo &device) {
  char text[512];
  std::memset(text, '#', sizeof text);
  rope::RopePlan plan = {};
  if (!scene.problem.is_empty()) plan = plan_of(scene, device);
  rope::explain_rope(scene.problem, plan, device, text, sizeof text);
  REQUIRE(std::memchr(text, 0, 256) != nullptr);  // the header's guarantee
  return text;
}

std::string function_of(const rope::RopeVariant &variant) {
  const rope::RopeKernel kernel = variant.kernel;
  std::string name = rope::algorithm_of(kernel).name;
  if (kernel == rope::RopeKernel::kGeneral) return name;
  const bool is_computed = variant.angles == rope::kComputedAngles, is_token = kernel == rope::RopeKernel::kToken;
  const bool has_one_table = is_token || kernel == rope::RopeKernel::kScalar;
  std::ostringstream text;
  text << name << (is_computed ? " angles" : " table");
  if (!is_computed && !has_one_table) text << (variant.angles == rope::kTable32 ? " of 32 bits" : " of 16 bits");
  if (is_token && variant.lookup == rope::kSequencesLookup) text << " in sequences";
  if (is_token && !is_computed && variant.lookup == rope::kAxesLookup) text << " on axes";
  if (kernel == rope::RopeKernel::kLong && is_computed && variant.has_simple_grid) text << ", simple grid";
  return text.str();
}

std::map<std::string, rope::RopeKernel> all_functions() {
  std::map<std::string, rope::RopeKernel> functions;
  for (const rope::Pairing pairing : {rope::Pairing::kHalf, rope::Pairing::kConverted}) {
    rope::for_each_variant(pairing,
                           [&](const rope::RopeVariant &variant) { functions[function_of(variant)] = variant.kernel; });
  }
  return functions;
}

std::string describe(const Scene &scene) {
  std::ostringstream text;
  const rope::RopeGeometry &geometry = scene.geometry;
  text << oracle::dtype_name(geometry.dtype) << " distances " << scene.problem.in_distance << " and "
       << scene.problem.out_distance << " angles " << static_cast<int>(scene.problem.angles) << " head_dim "
       << geometry.head_dim << " rotary_dim " << geometry.rotary_dim << " rotary_offset " << geometry.rotary_offset
       << " batches " << scene.problem.batches << " tokens " << scene.problem.tokens;
  for (int i = 0; i < scene.problem.num_tensors; ++i) {
    const rope::RotatedTensor &tensor = scene.problem.tensor[i];
    text << "; " << tensor.heads << " heads at " << static_cast<const void *>(tensor.in) << " to "
         << static_cast<const void *>(tensor.out) << ", strides";
    for (const int64_t stride : tensor.in_stride) text << ' ' << stride;
    if (tensor.is_in_place) continue;
    text << " to";
    for (const int64_t stride : tensor.out_stride) text << ' ' << stride;
  }
  return text.str();
}

std::string describe(const rope::RopePlan &plan) {
  std::ostringstream text;
  text << "kernel " << static_cast<int>(plan.variant.kernel) << ", vectors of " << plan.vector_elements << ", "
       << plan.units.per_token << " units a token, " << plan.thread_rows << " rows of " << plan.threads << " threads, "
       << plan.blocks_per_token << " blocks a token, " << plan.tokens_per_block << " tokens a block, "
       << plan.blocks.units_per_block << " units a block, " << plan.blocks.tokens_per_grid_row << " tokens a row, grid "
       << plan.grid_x << " x " << plan.grid_y << ", shared " << plan.shared_bytes
       << (plan.is_batch_fastest ? ", batch fastest" : "") << (plan.rows.is_part_slowest ? ", part slowest" : "")
       << (plan.is_programmatic ? ", programmatic" : "");
  return text.str();
}

bool allows_vectors(const Scene &scene, int64_t elements) {
  const int64_t size = scene.element_size(), bytes = elements * size;
  const rope::RopeGeometry &geometry = scene.geometry;
  if (elements == 1) return true;
  if ((bytes != 8 && bytes != 16) || geometry.rotary_offset % elements != 0) return false;
  // Vectors of interleaved pairs begin with the first or the second half of the window, others with halves of blocks.
  const int64_t edge = scene.is_interleaved() ? geometry.rotary_dim / 2 : scene.block() / 2;
  if (edge % elements != 0) return false;
  for (int i = 0; i < scene.problem.num_tensors; ++i) {
    const rope::RotatedTensor &tensor = scene.problem.tensor[i];
    if (tensor.heads == 0) continue;
    if (!tensor.is_in_place && geometry.head_dim % elements != 0) return false;
    const int64_t lengths[] = {scene.problem.batches, scene.problem.tokens, tensor.heads};
    for (const bool is_out : {false, true}) {
      const int64_t *stride = is_out ? tensor.out_stride : tensor.in_stride;
      if (reinterpret_cast<uintptr_t>(is_out ? tensor.out : tensor.in) % static_cast<uintptr_t>(bytes) != 0)
        return false;
      if (stride[rope::kChannel] != 1) return false;
      for (int axis = 0; axis < 3; ++axis) {
        if (lengths[axis] > 1 && stride[axis] * size % bytes != 0) return false;
      }
    }
  }
  return true;
}

int64_t widest_vectors(const Scene &scene) {
  int64_t elements = 16 / scene.element_size();
  while (!allows_vectors(scene, elements)) elements /= 2;
  return elements;
}

uintptr_t table_row(const Scene &scene, const rope::TableColumns &columns, int64_t batch, int64_t row) {
  const int64_t offset = batch * columns.batch_stride + row * columns.row_stride;
  return reinterpret_cast<uintptr_t>(columns.data) +
         static_cast<uintptr_t>(offset * oracle::element_size(scene.problem.table.dtype));
}

int64_t run_length(const Scene &scene, int64_t elements) {
  return scene.is_interleaved() && elements > 1 ? elements / 2 : elements;
}

bool is_programmatic(const Scene &scene, const rope::DeviceInfo &device) {
  return (scene.args.flags & ROPE_FLAG_PROGRAMMATIC_LAUNCH) != 0 && device.compute_capability >= 90;
}

int64_t divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

int64_t copied_vectors(const Scene &scene, int tensor, int64_t elements) {
  const bool has_copies = scene.converts_in_place() ? scene.has_copies() : !scene.problem.tensor[tensor].is_in_place;
  return has_copies ? (scene.geometry.head_dim - scene.geometry.rotary_dim) / elements : 0;
}

bool is_computed(const Scene &scene) {
  return scene.problem.angles == rope::AngleSource::kIncrements;
}

int64_t units_of_head(const Scene &scene, int tensor, int64_t elements, rope::RopeKernel kernel) {
  const bool has_pairs = has_token_rows(kernel) && !is_scalar(kernel);
  const int64_t copied = copied_vectors(scene, tensor, elements);
  return scene.geometry.rotary_dim / 2 / elements + (has_pairs ? divide_up(copied, 2) : copied);
}

int64_t units_of_token(const Scene &scene, int64_t elements, rope::RopeKernel kernel) {
  const bool has_groups = is_scalar(kernel);
  int64_t units = 0;
  for (int i = 0; i < scene.problem.num_tensors; ++i) {
    const int64_t heads = scene.problem.tensor[i].heads;
    units += units_of_head(scene, i, elements, kernel) * (has_groups ? divide_up(heads, rope::kScalarHeads) : heads);
  }
  return units;
}
