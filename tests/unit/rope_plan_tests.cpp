// rope_plan_tests.cpp - the plan of every legal RoPE problem is a legal launch whose threads do each piece of work
// once, and says in words what it is
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <cstring>
#include <functional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plan/explain.hpp"
#include "plan/rope_catalogue.hpp"
#include "plan/rope_plan.hpp"
#include "plan/tuning.hpp"
#include "support/oracle.hpp"
#include "support/random.hpp"
#include "unit/fake_tensors.hpp"

namespace {

constexpr uint32_t kLargestGridX = 2147483647, kLargestGridY = 65535;
// Today all GPUs have the numbers of one.
const rope::RopeTuning &kTuning = rope::rope_tuning_of(90);
constexpr int kKernels = static_cast<int>(rope::RopeKernel::kGeneral) + 1;
constexpr uint32_t kSharedBytes = 48 << 10;  // of every CUDA device, without asking

const rope::DeviceInfo kDevices[] = {
    {true, 0, 14, 75, 48 << 10},  {true, 0, 72, 75, 48 << 10},   {true, 0, 108, 80, 48 << 10},
    {true, 0, 56, 80, 48 << 10},  {true, 0, 132, 90, 48 << 10},  {true, 0, 78, 90, 48 << 10},
    {true, 0, 1, 90, 48 << 10},   {true, 0, 148, 100, 48 << 10}, {true, 0, 170, 120, 48 << 10},
    {true, 0, 20, 120, 48 << 10}, {true, 0, 16, 90, 48 << 10},
};

// A problem and the geometry it points to.
struct Scene {
  rope::RopeGeometry geometry = {};
  rope_args_t args = {};
  rope::RopeProblem problem = {};

  Scene() = default;
  Scene(const Scene &) = delete;
  Scene &operator=(const Scene &) = delete;

  int64_t element_size() const { return oracle::element_size(geometry.dtype); }
  int64_t num_tokens() const { return problem.batches * problem.tokens; }
  bool is_half() const { return problem.in_distance == problem.out_distance && problem.in_distance > 1; }
  bool is_interleaved() const { return problem.in_distance == 1 && problem.out_distance == 1; }
  bool is_converted() const { return problem.in_distance != problem.out_distance; }
  int block() const { return 2 * std::max(problem.in_distance, problem.out_distance); }
  // Blocks must then have whole heads.
  bool converts_in_place() const {
    bool found = false;
    for (int i = 0; i < problem.num_tensors; ++i) found = found || problem.tensor[i].is_in_place;
    return found && is_converted();
  }
  bool has_copies() const {
    bool found = false;
    for (int i = 0; i < problem.num_tensors; ++i) found = found || !problem.tensor[i].is_in_place;
    return found;
  }
};

// Which problems to draw: powers of two that sizes stay below.
struct Sizes {
  int batch, tokens, heads, total;
};
constexpr Sizes kAnySizes = {20, 41, 21, 42};
constexpr Sizes kSmallSizes = {3, 5, 4, 8};

int64_t up_to_power(Random *random, int exponent) {
  return 1 + (static_cast<int64_t>(random->bits() >> 1) & ((int64_t{1} << random->below(exponent + 1)) - 1));
}

// Channels close together, the other axes in any order in memory, with or without gaps.
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

uintptr_t far_address(int number) {
  return static_cast<uintptr_t>(number + 14) << 59;
}

// Cosines or sines, mostly with columns next to each other and rows that begin with vectors.
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

// A table that most kernels read, for half of the calls.
void draw_plain_operands(Random *random, int64_t width, rope_args_t *args) {
  const rope_dtype_t dtypes[] = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16};
  if (random->below(2) != 0) return;
  const rope_dtype_t dtype = dtypes[random->below(3)];
  args->cos = random_table(random, 0, dtype, {64, width / 2});
  args->sin = random_table(random, 1, dtype, {64, width / 2});
}

// A table or angles, sequences and fault words for some of the calls.
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

// False where the random problem is not a legal one.
bool draw(Random *random, const Sizes &sizes, Scene *scene) {
  rope_config_t config = {};
  // Some are what models ask for.
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
  // Either may be the one that gets large.
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
    // Mostly as the input.
    if (random->below(4) != 0) std::copy(in[i]->stride, in[i]->stride + shape.size(), out[i]->stride);
  }
  if (is_plain) {
    draw_plain_operands(random, width, &scene->args);
  } else {
    draw_operands(random, config, batches, tokens, width, &scene->args);
  }
  if (random->below(2) == 0) scene->args.flags = ROPE_FLAG_PROGRAMMATIC_LAUNCH;
  return rope::make_rope_problem("rope_forward", scene->geometry, scene->args, random->below(2) == 0,
                                 &scene->problem) == ROPE_STATUS_SUCCESS &&
         !scene->problem.is_empty();
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
  text << "kernel " << static_cast<int>(plan.kernel) << ", vectors of " << plan.vector_elements << ", "
       << plan.units.per_token << " units a token, " << plan.thread_rows << " rows of " << plan.threads << " threads, "
       << plan.blocks_per_token << " blocks a token, " << plan.tokens_per_block << " tokens a block, "
       << plan.blocks.units_per_block << " units a block, " << plan.blocks.tokens_per_grid_row << " tokens a row, grid "
       << plan.grid_x << " x " << plan.grid_y << ", shared " << plan.shared_bytes
       << (plan.is_batch_fastest ? ", batch fastest" : "") << (plan.rows.is_part_slowest ? ", part slowest" : "")
       << (plan.is_programmatic ? ", programmatic" : "");
  return text.str();
}

// Whether vectors of so many elements stay aligned and inside their part of a head, everywhere.
bool allows_vectors(const Scene &scene, int64_t elements) {
  const int64_t size = scene.element_size(), bytes = elements * size;
  const rope::RopeGeometry &geometry = scene.geometry;
  if (elements == 1) return true;
  if ((bytes != 8 && bytes != 16) || geometry.rotary_offset % elements != 0) return false;
  // Vectors of interleaved pairs begin with the first and the second half of the window, others with halves of blocks.
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

// Where a row of a batch's table begins. Rows by position serve all batches.
uintptr_t table_row(const Scene &scene, const rope::TableColumns &columns, int64_t batch, int64_t row) {
  const int64_t offset = batch * columns.batch_stride + row * columns.row_stride;
  return reinterpret_cast<uintptr_t>(columns.data) +
         static_cast<uintptr_t>(offset * oracle::element_size(scene.problem.table.dtype));
}

// Neighbouring pairs of a unit: vectors of interleaved channels hold half as many, twice.
int64_t run_length(const Scene &scene, int64_t elements) {
  return scene.is_interleaved() && elements > 1 ? elements / 2 : elements;
}

// Whether the entries of each such run are one vector, or several of 16 bytes, in every row.
bool allows_table_vectors(const Scene &scene, int64_t elements) {
  const rope::AngleTable &table = scene.problem.table;
  const int64_t bytes = std::min<int64_t>(16, run_length(scene, elements) * oracle::element_size(table.dtype));
  for (const rope::TableColumns *columns : {&table.cos, &table.sin}) {
    if (columns->column_stride != 1) return false;
    for (const int64_t batch : {int64_t{0}, std::min<int64_t>(1, scene.problem.batches - 1)}) {
      for (const int64_t row : {int64_t{0}, std::min<int64_t>(1, table.rows - 1)}) {
        if (table_row(scene, *columns, batch, row) % static_cast<uintptr_t>(bytes) != 0) return false;
      }
    }
  }
  return true;
}

bool is_programmatic(const Scene &scene, const rope::DeviceInfo &device) {
  return (scene.args.flags & ROPE_FLAG_PROGRAMMATIC_LAUNCH) != 0 && device.compute_capability >= 90;
}

bool is_scattered(rope::RopeKernel kernel) {
  return kernel == rope::RopeKernel::kScattered || kernel == rope::RopeKernel::kScatteredTable;
}

// Whether a kernel is one of those that take what short launches take, in launches of any size.
bool is_of_long_launch(rope::RopeKernel kernel) {
  switch (kernel) {
    case rope::RopeKernel::kLong:
    case rope::RopeKernel::kLongBatches:
    case rope::RopeKernel::kLongConverted:
    case rope::RopeKernel::kLongTable32:
    case rope::RopeKernel::kLongTable16:
      return true;
    default:
      return false;
  }
}

// Whether blocks have rows of threads with a token each.
bool has_token_rows(rope::RopeKernel kernel) {
  switch (kernel) {
    case rope::RopeKernel::kToken:
    case rope::RopeKernel::kTokenAxes:
    case rope::RopeKernel::kTokenSequences:
    case rope::RopeKernel::kTokenTable:
    case rope::RopeKernel::kTokenTableAxes:
    case rope::RopeKernel::kTokenTableSequences:
      return true;
    default:
      return is_scattered(kernel) || is_of_long_launch(kernel);
  }
}

// Whether a kernel is one of those for short launches.
bool is_of_short_launch(rope::RopeKernel kernel) {
  switch (kernel) {
    case rope::RopeKernel::kShortWarp:
    case rope::RopeKernel::kShort:
    case rope::RopeKernel::kShortTable32:
    case rope::RopeKernel::kShortTable16:
    case rope::RopeKernel::kLateTable32:
    case rope::RopeKernel::kLateTable16:
      return true;
    default:
      return false;
  }
}

// Whether the grid has an axis for the parts of a token: a row of threads has a token, or a part of one.
bool is_flat(rope::RopeKernel kernel) {
  switch (kernel) {
    case rope::RopeKernel::kFlat:
    case rope::RopeKernel::kTable32:
    case rope::RopeKernel::kTable16:
      return true;
    default:
      return is_of_short_launch(kernel);
  }
}

// The grid may have several rows of tokens then.
bool shares_angles(rope::RopeKernel kernel) {
  return kernel == rope::RopeKernel::kShared || kernel == rope::RopeKernel::kGeneral;
}

int64_t divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// How work is cut: a copy unit has one vector, or, beside rows of threads, two, or a unit has a pair or a channel of
// several heads.
enum class Cut {
  kSingleCopies,
  kDoubleCopies,
  kScattered
};

Cut cut_of(rope::RopeKernel kernel) {
  return is_scattered(kernel) ? Cut::kScattered : has_token_rows(kernel) ? Cut::kDoubleCopies : Cut::kSingleCopies;
}

int64_t copied_vectors(const Scene &scene, int tensor, int64_t elements) {
  const bool has_copies = scene.converts_in_place() ? scene.has_copies() : !scene.problem.tensor[tensor].is_in_place;
  return has_copies ? (scene.geometry.head_dim - scene.geometry.rotary_dim) / elements : 0;
}

int64_t units_of_head(const Scene &scene, int tensor, int64_t elements, Cut cut) {
  const int64_t copied = copied_vectors(scene, tensor, elements);
  return scene.geometry.rotary_dim / 2 / elements + (cut == Cut::kDoubleCopies ? divide_up(copied, 2) : copied);
}

int64_t units_of_token(const Scene &scene, int64_t elements, Cut cut) {
  int64_t units = 0;
  for (int i = 0; i < scene.problem.num_tensors; ++i) {
    const int64_t heads = scene.problem.tensor[i].heads;
    units += units_of_head(scene, i, elements, cut) *
             (cut == Cut::kScattered ? divide_up(heads, rope::kScatteredHeads) : heads);
  }
  return units;
}

// Whether a problem can have rows of threads for tokens.
bool fits_token_rows(const Scene &scene, int64_t elements, Cut cut) {
  const rope::RopeProblem &problem = scene.problem;
  std::vector<int64_t> units;
  for (int i = 0; i < problem.num_tensors; ++i) {
    const rope::RotatedTensor &tensor = problem.tensor[i];
    if (tensor.heads == 0) continue;
    units.push_back(units_of_head(scene, i, elements, cut));
    for (const int axis : {rope::kToken, rope::kHead}) {
      for (const int64_t stride : {tensor.in_stride[axis], tensor.out_stride[axis]}) {
        if (std::abs(stride) > INT32_MAX / scene.element_size()) return false;
      }
    }
  }
  // One multiplication divides by a head's units, another by those of half a block of pairs: by more than one.
  const int64_t of_token = units_of_token(scene, elements, cut);
  if (units[0] == 1 || of_token > UINT32_MAX / units[0]) return false;
  if (std::count(units.begin(), units.end(), units[0]) != static_cast<int64_t>(units.size())) return false;
  if (scene.is_half() && scene.block() / 2 / elements == 1) return false;
  if (problem.sequences.is_present && problem.sequences.count > INT32_MAX) return false;
  // A token has as many blocks as warps at most.
  return scene.num_tokens() <= kLargestGridX / (of_token / 32 + 1);
}

bool is_computed(const Scene &scene) {
  return scene.problem.angles == rope::AngleSource::kIncrements;
}

// Whether only the general kernel has numbers like those: F64, wide and F64 tables, and angles.
bool has_general_numbers(const Scene &scene) {
  const rope::AngleTable &table = scene.problem.table;
  const bool has_table =
      scene.problem.angles == rope::AngleSource::kTable && !table.is_by_channel && table.dtype != ROPE_DTYPE_F64;
  return scene.geometry.dtype == ROPE_DTYPE_F64 || (!is_computed(scene) && !has_table);
}

// The same, or that pairs move, for which there is but one other kernel.
bool is_general(const Scene &scene) {
  return scene.is_converted() || has_general_numbers(scene);
}

// Who reads positions of several axes counts faults, too, and finds columns that serve several pairs.
bool is_looked_up(const Scene &scene) {
  const rope::RopeProblem &problem = scene.problem;
  const bool has_plain_table =
      is_computed(scene) || (problem.fault.data == nullptr && problem.table.width == scene.geometry.rotary_dim / 2);
  return problem.sequences.is_present || scene.geometry.num_axes > 1 || !has_plain_table;
}

// Whether half of what a launch moves is at most so many vectors of 16 bytes for each multiprocessor.
bool has_few_vectors(const Scene &scene, const rope::DeviceInfo &device, int64_t most) {
  const int64_t elements = widest_vectors(scene);
  const Cut cut = is_general(scene) ? Cut::kSingleCopies : Cut::kDoubleCopies;
  const int64_t bytes_per_token = units_of_token(scene, elements, cut) * elements * scene.element_size();
  return scene.num_tokens() <= most * device.multiprocessors * 16 / bytes_per_token;
}

// Whether the grid may have an axis for parts: of tokens that rows of threads can have, of rotated channels only, in no
// more parts than that axis has even if blocks are the smallest, and positions that are read as they are.
bool allows_flat(const Scene &scene, int64_t elements) {
  const rope::RopeProblem &problem = scene.problem;
  if (problem.in_distance != 1 && problem.in_distance != scene.geometry.rotary_dim / 2) return false;
  if (problem.start_positions.is_present) return false;
  for (int i = 0; i < problem.num_tensors; ++i) {
    if (copied_vectors(scene, i, elements) != 0) return false;
  }
  const int64_t units = units_of_token(scene, elements, Cut::kDoubleCopies);
  return divide_up(units, rope::kMinShortThreads) <= kLargestGridY &&
         fits_token_rows(scene, elements, Cut::kDoubleCopies);
}

// Whether numbers of rows and strides between them, in bytes, have 32 bits, and threads can read their columns.
bool allows_table_rows(const Scene &scene, int64_t elements) {
  const rope::AngleTable &table = scene.problem.table;
  for (const int64_t number : {table.rows, table.cos.row_stride, table.sin.row_stride}) {
    if (std::abs(number) > INT32_MAX / oracle::element_size(table.dtype)) return false;
  }
  return allows_table_vectors(scene, elements);
}

// Whether kernels with few parameters have the problem, but for its batches: they know positions whose distance in
// bytes has 32 bits whatever their type, one stride for a tensor and its output, and one for cosines and sines. Threads
// behind the last head have an address too, which must not be below all others.
bool allows_few_parameters(const Scene &scene, int64_t elements) {
  const rope::RopeProblem &problem = scene.problem;
  if (has_general_numbers(scene) || is_looked_up(scene) || widest_vectors(scene) == 1) return false;
  if (!allows_flat(scene, elements)) return false;
  if (std::abs(problem.positions.token_stride) > INT32_MAX / 8) return false;
  for (int i = 0; i < problem.num_tensors; ++i) {
    if (problem.tensor[i].in_stride[rope::kHead] < 0) return false;
    for (const int axis : {rope::kToken, rope::kHead}) {
      if (problem.tensor[i].in_stride[axis] != problem.tensor[i].out_stride[axis]) return false;
    }
  }
  if (is_computed(scene)) return scene.geometry.rotary_dim / 2 <= rope::kMaxShortPairs;
  return problem.table.cos.row_stride == problem.table.sin.row_stride && allows_table_rows(scene, elements);
}

// Whether the kernels of short launches have the problem, if it is one.
bool allows_short(const Scene &scene) {
  return scene.problem.batches == 1 && !is_general(scene) && allows_few_parameters(scene, 8 / scene.element_size());
}

// Whether a launch is short, for what its angles are and how it is launched.
bool is_short(const Scene &scene, const rope::DeviceInfo &device) {
  int64_t most = kTuning.max_narrow_vectors;
  if (allows_short(scene) && is_computed(scene)) {
    most = kTuning.max_short_vectors;
  } else if (allows_short(scene)) {
    most = kTuning.max_short_table_vectors;
  }
  return has_few_vectors(scene, device, most);
}

// Short launches have twice the threads.
int64_t expected_elements(const Scene &scene, const rope::DeviceInfo &device) {
  const int64_t widest = widest_vectors(scene);
  const bool is_halved = widest > 1 && widest * scene.element_size() == 16 && is_short(scene, device);
  return is_halved ? widest / 2 : widest;
}

// The kernel of a short launch, where there is one for that.
rope::RopeKernel expected_short_kernel(const Scene &scene, const rope::DeviceInfo &device) {
  if (!is_computed(scene)) {
    const bool has_floats = scene.problem.table.dtype == ROPE_DTYPE_F32;
    if (is_programmatic(scene, device) && has_few_vectors(scene, device, kTuning.max_late_table_vectors)) {
      return has_floats ? rope::RopeKernel::kLateTable32 : rope::RopeKernel::kLateTable16;
    }
    return has_floats ? rope::RopeKernel::kShortTable32 : rope::RopeKernel::kShortTable16;
  }
  const int64_t most_of_warps =
      is_programmatic(scene, device) ? kTuning.max_warp_vectors_programmatic : kTuning.max_warp_vectors;
  return has_few_vectors(scene, device, most_of_warps) ? rope::RopeKernel::kShortWarp : rope::RopeKernel::kShort;
}

// Whether q's tokens of a head lie closer together than the heads of a token.
bool has_closer_tokens(const Scene &scene) {
  const rope::RotatedTensor &q = scene.problem.tensor[0];
  return scene.problem.tokens > 1 && q.heads > 1 &&
         std::abs(q.in_stride[rope::kToken]) < std::abs(q.in_stride[rope::kHead]);
}

// Whether batches differ in nothing but where their channels are, each behind the one before, and the grid's second
// axis holds them.
bool allows_batches(const Scene &scene) {
  const rope::RopeProblem &problem = scene.problem;
  if (problem.batches == 1) return true;
  if (problem.batches > kLargestGridY || has_closer_tokens(scene)) return false;
  for (int i = 0; i < problem.num_tensors; ++i) {
    const rope::RotatedTensor &tensor = problem.tensor[i];
    if (tensor.heads == 0) continue;
    for (const int64_t *stride : {tensor.in_stride, tensor.out_stride}) {
      if (stride[rope::kBatch] != problem.tokens * stride[rope::kToken]) return false;
    }
  }
  return problem.positions.batch_stride == 0 && problem.table.cos.batch_stride == 0 &&
         problem.table.sin.batch_stride == 0;
}

// Whether the kernels of long launches have the problem: types of 16 bits in whole vectors, rows of threads for tokens,
// each thread with a pair at most, and numbers of blocks that one multiplication divides by the parts of a token, of
// which each has a warp at least.
bool allows_long(const Scene &scene, int64_t elements) {
  if (scene.element_size() != 2 || elements != 8 || !allows_batches(scene)) return false;
  if (!allows_few_parameters(scene, elements) || scene.geometry.rotary_dim > 2 * rope::kMaxShortPairs) return false;
  const int64_t units = units_of_token(scene, elements, Cut::kDoubleCopies), most_parts = units / 32 + 1;
  return units >= kTuning.min_row_units && scene.problem.tokens <= UINT32_MAX / (most_parts * most_parts);
}

// Whether the kernel of long launches between the styles has the problem: one block of pairs on either side, and heads
// of which any row of threads has whole ones.
bool allows_long_converted(const Scene &scene, int64_t elements) {
  const rope::RopeProblem &problem = scene.problem;
  const int64_t pairs = scene.geometry.pairs();
  const bool has_one_block = (problem.in_distance == 1 && problem.out_distance == pairs) ||
                             (problem.in_distance == pairs && problem.out_distance == 1);
  const int64_t units = pairs / elements;
  return scene.is_converted() && is_computed(scene) && has_one_block && (units == 2 || units == 4 || units == 8) &&
         allows_long(scene, elements);
}

// What the headers of plans say of the kernels.
rope::RopeKernel expected_kernel(const Scene &scene, const rope::DeviceInfo &device, int64_t elements) {
  const rope::RopeProblem &problem = scene.problem;
  const int pairs = scene.geometry.rotary_dim / 2;
  const bool is_from_table = !is_computed(scene);
  if (allows_long_converted(scene, elements)) return rope::RopeKernel::kLongConverted;
  if (is_general(scene)) return rope::RopeKernel::kGeneral;
  if (widest_vectors(scene) == 1) {
    if (!fits_token_rows(scene, 1, Cut::kScattered)) return rope::RopeKernel::kGeneral;
    return is_from_table ? rope::RopeKernel::kScatteredTable : rope::RopeKernel::kScattered;
  }
  if (allows_short(scene) && is_short(scene, device)) return expected_short_kernel(scene, device);
  const bool fits = fits_token_rows(scene, elements, Cut::kDoubleCopies);
  const bool has_units = units_of_token(scene, elements, Cut::kDoubleCopies) >= kTuning.min_row_units;
  const int64_t heads = problem.heads_per_token();
  const bool has_simple_pairs = problem.in_distance == 1 || problem.in_distance == pairs;
  if (!is_looked_up(scene) && has_simple_pairs) {
    const bool is_flat = elements * scene.element_size() == 16 && allows_flat(scene, elements);
    if (is_from_table && is_flat && (heads == 1 || !has_units) && allows_table_rows(scene, elements)) {
      return problem.table.dtype == ROPE_DTYPE_F32 ? rope::RopeKernel::kTable32 : rope::RopeKernel::kTable16;
    }
    if (!is_from_table && is_flat && heads <= kTuning.max_flat_heads) return rope::RopeKernel::kFlat;
    if (allows_long(scene, elements)) {
      const bool has_second_axis = problem.batches > 1 || has_closer_tokens(scene);
      if (!is_from_table) return has_second_axis ? rope::RopeKernel::kLongBatches : rope::RopeKernel::kLong;
      return problem.table.dtype == ROPE_DTYPE_F32 ? rope::RopeKernel::kLongTable32 : rope::RopeKernel::kLongTable16;
    }
    if (!is_from_table && (!fits || !has_units)) return rope::RopeKernel::kShared;
  }
  if (!fits) return rope::RopeKernel::kGeneral;
  if (problem.sequences.is_present) {
    return is_from_table ? rope::RopeKernel::kTokenTableSequences : rope::RopeKernel::kTokenSequences;
  }
  if (is_looked_up(scene)) return is_from_table ? rope::RopeKernel::kTokenTableAxes : rope::RopeKernel::kTokenAxes;
  return is_from_table ? rope::RopeKernel::kTokenTable : rope::RopeKernel::kToken;
}

// Whether batches are counted before tokens, as q lies in memory, where a row of the grid can have all of them.
bool is_batch_fastest(const Scene &scene, const rope::RopePlan &plan) {
  const int64_t *stride = scene.problem.tensor[0].in_stride;
  int64_t most = kLargestGridX;
  if (shares_angles(plan.kernel)) most = kLargestGridX / plan.blocks_per_token * int64_t{plan.tokens_per_block};
  return scene.problem.batches > 1 && scene.problem.batches <= std::min(most, int64_t{kLargestGridX}) &&
         std::abs(stride[rope::kBatch]) < std::abs(stride[rope::kToken]);
}

// "" or what is wrong with blocks that are aligned to tokens.
std::string fault_of_blocks(const Scene &scene, const rope::RopePlan &plan) {
  const rope::RopeProblem &problem = scene.problem;
  const bool has_whole_heads = scene.converts_in_place(), is_general = plan.kernel == rope::RopeKernel::kGeneral;
  const int64_t elements = plan.vector_elements, pairs = scene.geometry.rotary_dim / 2;
  int64_t most_threads = rope::kMaxRopeThreads;
  if (has_whole_heads) most_threads = std::max<int64_t>(most_threads, 1024 / elements);
  if (plan.threads > most_threads) return "threads beyond the launch bounds";
  if (plan.tokens_per_block < 1 || plan.blocks_per_token < 1) return "an empty block";
  if (plan.tokens_per_block > 1 && plan.blocks_per_token > 1) return "blocks and tokens both divided";
  const uint64_t units = plan.units.per_token, units_per_block = plan.blocks.units_per_block;
  if (units_per_block < 1 || units_per_block > plan.threads) return "more units a block than threads";
  if (!has_whole_heads && units_per_block != plan.threads) return "threads without a unit";
  if (has_whole_heads && units_per_block % plan.units.per_head[0] != 0) return "a head in two blocks";
  if (plan.tokens_per_block * units > units_per_block && plan.tokens_per_block > 1) return "too many tokens a block";
  if (plan.blocks_per_token * units_per_block < units) return "too few blocks a token";
  if ((plan.blocks_per_token - 1) * units_per_block >= units) return "a block without work";
  const int64_t real = scene.geometry.dtype == ROPE_DTYPE_F64 ? 8 : 4, arrays = problem.table.is_by_channel ? 4 : 2;
  const int64_t info = is_general ? static_cast<int64_t>(sizeof(rope::TokenInfo)) : 0;
  if (plan.tokens_per_block * (arrays * pairs * real + info) != plan.shared_bytes) return "shared_bytes";
  const int64_t row = plan.blocks.tokens_per_grid_row;
  if (divide_up(row, plan.tokens_per_block) * plan.blocks_per_token != plan.grid_x) return "grid_x and the row";
  if (problem.batches == 1 && plan.grid_y > 1 && row % plan.tokens_per_block != 0)
    return "a row with a part of a block";
  return "";
}

// Whether rows of whole warps leave more than a sixth of a token's threads idle where rows with a thread for each pair,
// of a warp or more and two to a block, leave none. Threads of a warp may then have several tokens, which look for
// their sequences together.
bool has_rows_of_pairs(const Scene &scene, const rope::RopePlan &plan) {
  if (!has_token_rows(plan.kernel) || is_scattered(plan.kernel) || has_closer_tokens(scene)) return false;
  if (scene.problem.sequences.is_present) return false;
  const int64_t units = plan.units.per_token, pairs = scene.geometry.rotary_dim / 2;
  if (units <= 96 || pairs < 32 || pairs > 64 || units % pairs != 0) return false;
  int64_t least = INT64_MAX;
  for (const uint32_t threads : kTuning.block_threads) least = std::min(least, divide_up(units, threads) * threads);
  return least * 100 > units * kTuning.max_percent_of_threads;
}

// Whether windows with other channels between them have rows of threads of their own, where a block does not hold a
// token and a thread of them has a pair at most.
bool has_gapped_rows(const Scene &scene, const rope::RopePlan &plan) {
  const rope::RotatedTensor &q = scene.problem.tensor[0];
  if (!is_of_long_launch(plan.kernel) || has_closer_tokens(scene)) return false;
  if (plan.units.per_token <= 128 || scene.geometry.pairs() > int64_t{kTuning.gapped_row_threads}) return false;
  return q.heads > 1 && std::abs(q.in_stride[rope::kHead]) > scene.geometry.rotary_dim;
}

// The same of blocks whose rows of threads have a token each.
std::string fault_of_token_rows(const Scene &scene, const rope::DeviceInfo &device, const rope::RopePlan &plan) {
  const int64_t units = plan.units.per_token, threads = plan.threads, rows = plan.thread_rows;
  const bool is_long = is_of_long_launch(plan.kernel);
  // Long launches have batches, or parts that are slowest, on the grid's second axis.
  const int64_t y = !is_long ? 1 : plan.rows.is_part_slowest ? plan.blocks_per_token : scene.problem.batches;
  const int64_t tokens_of_y = is_long ? scene.problem.tokens : scene.num_tokens();
  const int64_t parts_of_x = is_long && plan.rows.is_part_slowest ? 1 : plan.blocks_per_token;
  if (plan.grid_y != y) return "grid_y";
  if (rows < 1 || threads * rows > rope::kMaxRopeThreads) return "threads beyond the launch bounds";
  if (plan.tokens_per_block != rows) return "tokens_per_block";
  if (plan.blocks_per_token != divide_up(units, threads)) return "blocks_per_token";
  if (plan.grid_x != divide_up(tokens_of_y, rows) * parts_of_x) return "grid_x";
  if (plan.rows.is_part_slowest != has_closer_tokens(scene)) return "is_part_slowest";
  const int64_t close_threads = std::min(32 * divide_up(units, 32), int64_t{kTuning.inner_token_row_threads});
  if (plan.rows.is_part_slowest && threads != close_threads) return "other rows beside tokens that lie close together";
  const int64_t pairs = scene.geometry.rotary_dim / 2;
  const bool is_gapped = has_gapped_rows(scene, plan), is_cut = is_gapped || has_rows_of_pairs(scene, plan);
  if (is_gapped && threads != kTuning.gapped_row_threads) return "other rows beside gaps";
  if (is_cut && !is_gapped && threads != pairs) return "other rows than with a thread for each pair";
  if (!is_cut && threads % 32 != 0) return "a row that ends within a warp";
  if (!plan.rows.is_part_slowest && !is_cut && rows > 1 && plan.blocks_per_token > 1) {
    return "blocks and tokens both divided";
  }
  if (!plan.rows.is_part_slowest && units <= 32 * (threads / 32 - 1)) return "a warp without work";
  if (threads * (rows + 1) <= 128) return "room for another row";
  if (is_long && plan.rows.is_part_slowest && scene.problem.batches > 1) return "batches and parts on one axis";
  if (scene.converts_in_place() && threads % plan.units.per_head[0] != 0) return "a head in two blocks";
  if (is_long && (pairs > rope::kMaxShortPairs || pairs > threads)) return "more pairs than a row keeps";
  if (is_long && plan.vector_elements != 8) return "vectors that the kernel does not have";
  if (plan.shared_bytes != rows * 2 * (is_long ? rope::kMaxShortPairs : pairs) * 4) return "shared_bytes";
  // So far on a token's turn comes when those that a device holds, or parts of them, are over.
  const int64_t held = int64_t{device.multiprocessors} * rope::kRopeResidentThreads;
  const int64_t of_token = plan.rows.is_part_slowest ? threads : units;
  if ((plan.rows.tokens_ahead - 1) * of_token > held || plan.rows.tokens_ahead * of_token <= held)
    return "tokens_ahead";
  return "";
}

// Threads of a block, at most, where the grid has an axis for the parts of a token.
int64_t wanted_flat_threads(const Scene &scene, const rope::DeviceInfo &device, rope::RopeKernel kernel) {
  if (!is_of_short_launch(kernel)) return rope::kFlatThreads;
  std::vector<rope::ShortThreads> rows(std::begin(kTuning.short_threads), std::end(kTuning.short_threads));
  if (is_programmatic(scene, device)) {
    rows.assign(std::begin(kTuning.short_threads_programmatic), std::end(kTuning.short_threads_programmatic));
  }
  for (const rope::ShortThreads &row : rows) {
    if (has_few_vectors(scene, device, row.max_vectors)) return row.threads;
  }
  return rope::kMaxShortThreads;
}

// The same of blocks whose rows of threads have a token each, or a part of one.
std::string fault_of_flat(const Scene &scene, const rope::DeviceInfo &device, const rope::RopePlan &plan) {
  const int64_t units = plan.units.per_token, threads = plan.threads, rows = plan.thread_rows, parts = plan.grid_y;
  const int64_t wanted = wanted_flat_threads(scene, device, plan.kernel), pairs = scene.geometry.rotary_dim / 2;
  const bool is_warp = plan.kernel == rope::RopeKernel::kShortWarp, is_row = plan.kernel == rope::RopeKernel::kShort;
  if (rows < 1 || threads * rows > wanted || threads * rows > rope::kMaxShortThreads) {
    return "threads beyond the launch bounds";
  }
  if (parts != divide_up(units, wanted)) return "more parts of a token than it needs, or fewer";
  if (parts * threads < units) return "units left over";
  if ((parts - 1) * threads >= units) return "a part without work";
  if (is_row && threads < pairs) return "a row of fewer threads than pairs";
  if (is_warp || is_row || parts > 1) {
    const int64_t needed = std::max(divide_up(units, parts), is_row ? pairs : 0);
    if (threads % 32 != 0) return "a row that ends within a warp";
    if (threads - 32 >= needed) return "a warp without work";
  } else if (threads != units) {
    return "a row of more threads than units";
  }
  if (rows > 1 && parts > 1) return "blocks and tokens both divided";
  if ((rows + 1) * threads <= wanted) return "room for another row";
  if (plan.blocks_per_token != parts) return "blocks_per_token";
  if (plan.tokens_per_block != rows) return "tokens_per_block";
  if (plan.grid_x != divide_up(scene.num_tokens(), rows)) return "grid_x";
  if (plan.grid_x * rows > UINT32_MAX || parts * threads > UINT32_MAX) return "numbers of more than 32 bits";
  if (plan.rows.is_part_slowest || plan.blocks.tokens_per_grid_row != 0) return "what other kernels have";
  const int64_t bytes = plan.vector_elements * scene.element_size();
  if (bytes != (is_of_short_launch(plan.kernel) ? 8 : 16)) return "vectors that the kernel does not have";
  // Each warp, or each row of threads, has cosines and sines of its own.
  if ((is_warp || is_row) && pairs > rope::kMaxShortPairs) return "more pairs than a warp or a row keeps";
  const int64_t sharers = is_warp ? threads * rows / 32 : is_row ? rows : 0;
  if (plan.shared_bytes != sharers * 2 * rope::kMaxShortPairs * 4) return "shared_bytes";
  return "";
}

// "" or what is wrong with a plan as a launch.
std::string fault_of(const Scene &scene, const rope::DeviceInfo &device, const rope::RopePlan &plan) {
  const rope::RopeProblem &problem = scene.problem;
  const rope::RopeGeometry &geometry = scene.geometry;
  if (plan.grid_x < 1 || plan.grid_x > kLargestGridX) return "grid_x";
  if (plan.grid_y < 1 || plan.grid_y > kLargestGridY) return "grid_y";
  if (plan.threads < 1 || int64_t{plan.threads} * plan.thread_rows > 1024) return "threads";
  if (shares_angles(plan.kernel) && plan.threads % 32 != 0) return "a block that ends within a warp";
  if (plan.shared_bytes > kSharedBytes) return "shared_bytes";
  if (plan.is_programmatic != is_programmatic(scene, device)) return "is_programmatic";

  const rope::Pairing pairing = scene.is_converted()     ? rope::Pairing::kConverted
                                : scene.is_interleaved() ? rope::Pairing::kInterleaved
                                                         : rope::Pairing::kHalf;
  if (plan.pairing != pairing) return "pairing";
  if (!rope::may_have(pairing, plan.kernel)) return "a kernel that descriptors do not load";
  const int64_t elements = plan.vector_elements, pairs = geometry.rotary_dim / 2, size = scene.element_size();
  if (elements != 1 && elements * size != 16 && elements * size != 8) return "vector_elements";
  if (!allows_vectors(scene, elements)) return "vectors are not aligned";
  if (elements != expected_elements(scene, device)) return "vectors of another width than the launch's size asks for";

  if (plan.kernel != expected_kernel(scene, device, elements)) return "kernel";
  if (plan.units.rotary_per_head != pairs / elements) return "rotary_units_per_head";
  for (int i = 0; i < problem.num_tensors; ++i) {
    if (plan.units.per_head[i] != units_of_head(scene, i, elements, cut_of(plan.kernel))) return "units_per_head";
  }
  if (plan.units.per_token != units_of_token(scene, elements, cut_of(plan.kernel))) return "units_per_token";
  if (plan.is_batch_fastest != is_batch_fastest(scene, plan)) return "is_batch_fastest";
  if (has_token_rows(plan.kernel)) return fault_of_token_rows(scene, device, plan);
  if (is_flat(plan.kernel)) return fault_of_flat(scene, device, plan);
  if (plan.thread_rows != 1 || plan.rows.is_part_slowest) return "rows of threads";

  const int64_t row = plan.blocks.tokens_per_grid_row;
  if (row < 1 || row > INT32_MAX) return "tokens_per_grid_row";
  if (row * plan.grid_y < scene.num_tokens()) return "tokens left over";
  if (row * (int64_t{plan.grid_y} - 1) >= scene.num_tokens()) return "a row without tokens";
  if (problem.batches > 1 && row % (plan.is_batch_fastest ? problem.batches : problem.tokens) != 0) {
    return "a row with a part of a batch";
  }
  return fault_of_blocks(scene, plan);
}

// How kernels divide by a number that is known at launch: by ceil(2^32 / divisor).
uint32_t multiply_by_reciprocal(uint32_t n, uint32_t divisor) {
  const uint64_t reciprocal = ((uint64_t{1} << 32) + divisor - 1) / divisor;
  return static_cast<uint32_t>(n * static_cast<uint64_t>(static_cast<uint32_t>(reciprocal)) >> 32);
}

// How often each channel is written and each pair rotated when a launch runs, thread by thread, as the kernels find
// their work.
class Launch {
 public:
  Launch(const Scene &scene, const rope::RopePlan &plan) : scene_(scene), plan_(plan) {
    const rope::RopeProblem &problem = scene.problem;
    size_t heads = 0;
    for (int i = 0; i < problem.num_tensors; ++i) {
      first_head_[i] = heads;
      heads += static_cast<size_t>(problem.tensor[i].heads);
    }
    heads_per_token_ = heads;
    const size_t rows = static_cast<size_t>(scene.num_tokens()) * heads;
    written_.resize(rows * static_cast<size_t>(scene.geometry.head_dim));
    rotated_.resize(rows * static_cast<size_t>(scene.geometry.rotary_dim / 2));
    block_of_row_.resize(rows, -1);
  }

  // "" or what a thread does wrong.
  std::string run() {
    const Fault of_all_threads = check_launch();
    if (!of_all_threads.empty()) return std::string(of_all_threads);
    for (uint32_t y = 0; y < plan_.grid_y; ++y) {
      for (uint32_t x = 0; x < plan_.grid_x; ++x) {
        for (uint32_t thread = 0; thread < plan_.threads * plan_.thread_rows; ++thread) {
          const Fault fault = is_of_long_launch(plan_.kernel) ? run_long_thread(x, y, thread)
                              : has_token_rows(plan_.kernel)  ? run_row_thread(x, thread)
                              : is_flat(plan_.kernel)         ? run_flat_thread(x, y, thread)
                                                              : run_thread(x, y, thread);
          if (!fault.empty()) return std::string(fault);
        }
      }
    }
    return check_counts();
  }

 private:
  // "" or what is wrong: threads are many, and sanitizers make each allocation slow.
  using Fault = std::string_view;

  struct Place {
    int64_t batch, token;
    int tensor;
    int64_t head;
    size_t row;             // of heads of tokens
    uint32_t row_of_block;  // of threads; where warps have their own angles, the warp
  };

  // What is wrong with every thread of the launch.
  Fault check_launch() const {
    const bool is_long = is_of_long_launch(plan_.kernel), is_short = is_of_short_launch(plan_.kernel);
    const bool has_batches = scene_.problem.batches > 1;
    if (is_long && (has_batches || plan_.rows.is_part_slowest) && plan_.kernel == rope::RopeKernel::kLong) {
      return "a second axis that the kernel does not look at";
    }
    if (is_long && has_batches && plan_.rows.is_part_slowest) return "a second axis with two meanings";
    Fault fault;
    if (is_long || is_flat(plan_.kernel)) fault = check_simple_pairs();
    if (fault.empty() && (is_long || is_short)) fault = check_few_parameters();
    return fault;
  }

  // A thread of a block with rows for tokens. The grid counts parts of a token and rows, either of them first.
  Fault run_row_thread(uint32_t x, uint32_t thread) {
    const uint32_t groups = plan_.grid_x / plan_.blocks_per_token;
    const uint32_t part = plan_.rows.is_part_slowest ? x / groups : x % plan_.blocks_per_token;
    const uint32_t group = plan_.rows.is_part_slowest ? x % groups : x / plan_.blocks_per_token;
    const uint32_t row_of_block = thread / plan_.threads, token = group * plan_.thread_rows + row_of_block;
    const uint32_t column = thread % plan_.threads;
    return run_unit(token, part * plan_.threads + column, row_of_block);
  }

  // The same of a long launch: a step on the second axis goes on by a batch's tokens or by a block's units, and a token
  // has the position of its number in its batch.
  Fault run_long_thread(uint32_t x, uint32_t y, uint32_t thread) {
    const rope::RopeProblem &problem = scene_.problem;
    const uint32_t parts = plan_.rows.is_part_slowest ? 1 : plan_.blocks_per_token, group = x / parts;
    const uint32_t row_of_block = thread / plan_.threads, column = thread % plan_.threads;
    const uint32_t in_batch = group * plan_.thread_rows + row_of_block;
    const auto tokens = static_cast<uint32_t>(problem.tokens);
    const uint32_t token = in_batch + (problem.batches > 1 ? y * tokens : 0);
    const uint32_t unit = x % parts * plan_.threads + column + (plan_.rows.is_part_slowest ? y * plan_.threads : 0);
    // One multiplication finds the group, where there are several parts to tell apart.
    if (parts > 1 && multiply_by_reciprocal(x, parts) != group) return "a block of another group";
    const Fault fault = count_angles_of_row(column);
    if (!fault.empty() || in_batch >= tokens) return fault;
    return run_unit(token, unit, row_of_block);
  }

  Fault check_simple_pairs() const {
    const rope::RopeProblem &problem = scene_.problem;
    if (scene_.is_half() && problem.in_distance != scene_.geometry.rotary_dim / 2) return "several blocks of pairs";
    if (problem.start_positions.is_present) return "start_positions, which nobody adds";
    return "";
  }

  // What the kernels of short launches and of long ones know.
  Fault check_few_parameters() const {
    const rope::RopeProblem &problem = scene_.problem;
    const int64_t stride = problem.positions.token_stride * (problem.positions.is_64_bit ? 8 : 4);
    if (problem.batches != 1 && is_of_short_launch(plan_.kernel)) return "several batches, which nobody tells apart";
    if (problem.batches != 1 && problem.positions.batch_stride != 0) return "positions of a batch's own";
    if (problem.batches != 1 && problem.table.cos.batch_stride != 0) return "a table of a batch's own";
    if (problem.batches != 1 && problem.table.sin.batch_stride != 0) return "a table of a batch's own";
    if (stride != static_cast<int32_t>(stride)) return "positions that are too far apart";
    return "";
  }

  // Threads without a unit have an angle too, each at most that of one pair of the row's token.
  Fault count_angles_of_row(uint32_t column) {
    const auto pairs = static_cast<uint32_t>(scene_.geometry.rotary_dim / 2);
    if (column == 0) angles_of_row_ = 0;
    if (column < pairs) ++angles_of_row_;
    return column + 1 == plan_.threads && angles_of_row_ != pairs ? "a pair whose angle no thread of the row has" : "";
  }

  // The same where the grid has an axis for the parts of a token.
  Fault run_flat_thread(uint32_t x, uint32_t y, uint32_t thread) {
    const uint32_t column = thread % plan_.threads, row_of_block = thread / plan_.threads;
    const uint32_t token = x * plan_.thread_rows + row_of_block, unit = y * plan_.threads + column;
    if (plan_.kernel == rope::RopeKernel::kShort) {
      const Fault fault = count_angles_of_row(column);
      if (!fault.empty()) return fault;
    }
    if (plan_.kernel != rope::RopeKernel::kShortWarp) return run_unit(token, unit, row_of_block);
    // Lanes without a unit compute angles too, all of the token of the first.
    if (thread % 32 == 0) token_of_warp_ = token, lanes_ = 0;
    if (token != token_of_warp_) return "a warp with several tokens";
    if (lanes_++ != thread % 32) return "a warp that lacks lanes";
    if (thread + 1 == plan_.threads * plan_.thread_rows && lanes_ != 32) return "a warp that lacks lanes";
    return run_unit(token, unit, thread / 32);
  }

  // A unit's head, or group of heads, comes from one multiplication.
  Fault run_unit(uint32_t token, uint32_t unit_of_token, uint32_t row_of_block) {
    const rope::RopeProblem &problem = scene_.problem;
    if (token >= scene_.num_tokens() || unit_of_token >= plan_.units.per_token) return "";
    Place place = {0, token, 0, 0, 0, row_of_block};
    if (problem.batches > 1 && plan_.is_batch_fastest) {
      place.batch = token % problem.batches;
      place.token = token / problem.batches;
    } else if (problem.batches > 1) {
      place.batch = token / problem.tokens;
      place.token = token % problem.tokens;
    }
    // Heads are numbered through, and all have the same units.
    const int64_t heads_of_unit = is_scattered(plan_.kernel) ? rope::kScatteredHeads : 1;
    uint32_t units_per_head = 0;
    for (int i = 0; i < problem.num_tensors; ++i) {
      if (problem.tensor[i].heads > 0) units_per_head = plan_.units.per_head[i];
    }
    int64_t number = multiply_by_reciprocal(unit_of_token, units_per_head);
    const int64_t unit = unit_of_token - number * units_per_head;
    while (number >= divide_up(problem.tensor[place.tensor].heads, heads_of_unit)) {
      number -= divide_up(problem.tensor[place.tensor].heads, heads_of_unit);
      if (++place.tensor >= problem.num_tensors) return "a unit of no tensor";
    }
    const int64_t first = number * heads_of_unit;
    for (place.head = first; place.head < first + heads_of_unit; ++place.head) {
      if (place.head >= problem.tensor[place.tensor].heads) break;
      const Fault fault = run_row_unit(place, unit);
      if (!fault.empty()) return fault;
    }
    return "";
  }

  Fault run_row_unit(Place place, int64_t unit) {
    place.row = row_of(place);
    if (unit < plan_.units.rotary_per_head) {
      // Where halves of blocks are several units long, another multiplication finds the block.
      const int64_t run = scene_.is_half() ? scene_.problem.in_distance / plan_.vector_elements : 0;
      if (run > 0 && multiply_by_reciprocal(static_cast<uint32_t>(unit), static_cast<uint32_t>(run)) != unit / run) {
        return "a unit in another block";
      }
      return rotate(place, unit);
    }
    if (is_flat(plan_.kernel) || is_of_long_launch(plan_.kernel)) return "a copy, which nobody makes";
    const int64_t copied = copied_vectors(scene_, place.tensor, plan_.vector_elements);
    if (copied == 0) return "a copy in place";
    const int64_t first = unit - plan_.units.rotary_per_head;
    const Fault fault = copy(place, first);
    if (!fault.empty() || is_scattered(plan_.kernel)) return fault;
    // The second vector of a unit lies as many vectors behind the first as there are units; the last may have none.
    const int64_t second = first + plan_.units.per_head[place.tensor] - plan_.units.rotary_per_head;
    return second < copied ? copy(place, second) : "";
  }

  size_t row_of(const Place &place) const {
    return static_cast<size_t>(place.batch * scene_.problem.tokens + place.token) * heads_per_token_ +
           first_head_[place.tensor] + static_cast<size_t>(place.head);
  }

  // A thread's token, counted in the row of the grid, and its unit; false where it has none.
  bool find_work(uint32_t x, uint32_t thread, int64_t *in_row, int64_t *unit) const {
    if (thread >= plan_.blocks.units_per_block) return false;
    int64_t token_of_block = 0;
    *unit = int64_t{x % plan_.blocks_per_token} * plan_.blocks.units_per_block + thread;
    if (plan_.tokens_per_block > 1) {
      token_of_block = thread / plan_.units.per_token;
      *unit = thread % plan_.units.per_token;
    }
    *in_row = int64_t{x / plan_.blocks_per_token} * plan_.tokens_per_block + token_of_block;
    return token_of_block < plan_.tokens_per_block && *unit < plan_.units.per_token &&
           *in_row < plan_.blocks.tokens_per_grid_row;
  }

  Fault run_thread(uint32_t x, uint32_t y, uint32_t thread) {
    int64_t in_row = 0, unit = 0;
    if (!find_work(x, thread, &in_row, &unit)) return "";
    const int64_t token = y * plan_.blocks.tokens_per_grid_row + in_row;
    if (token >= scene_.num_tokens()) return "";

    const rope::RopeProblem &problem = scene_.problem;
    Place place = {0, token, 0, 0, 0, 0};
    // A row begins with a batch where there are several, or with a token of all of them.
    if (problem.batches > 1) {
      const int64_t inner = plan_.is_batch_fastest ? problem.batches : problem.tokens;
      place.batch = y * (plan_.blocks.tokens_per_grid_row / inner) + in_row / inner;
      place.token = in_row % inner;
      if (plan_.is_batch_fastest) std::swap(place.batch, place.token);
      if (place.batch >= problem.batches || place.token >= problem.tokens) return "a token of no batch";
    }
    while (unit >= plan_.units.per_head[place.tensor] * problem.tensor[place.tensor].heads) {
      unit -= plan_.units.per_head[place.tensor] * problem.tensor[place.tensor].heads;
      if (++place.tensor >= problem.num_tensors) return "a unit of no tensor";
    }
    place.head = unit / plan_.units.per_head[place.tensor];
    unit %= plan_.units.per_head[place.tensor];
    place.row = row_of(place);
    if (scene_.is_converted() && problem.tensor[place.tensor].is_in_place) {
      const int64_t block = int64_t{y} * plan_.grid_x + x;
      if (block_of_row_[place.row] >= 0 && block_of_row_[place.row] != block) return "a head in two blocks";
      block_of_row_[place.row] = block;
    }
    if (unit < plan_.units.rotary_per_head) return rotate(place, unit);
    // Where blocks have whole heads, heads in place have units with nothing to do beside heads that are copied.
    if (problem.tensor[place.tensor].is_in_place) return scene_.converts_in_place() ? "" : "a copy in place";
    return copy(place, unit - plan_.units.rotary_per_head);
  }

  // The first channels of a rotary unit's two vectors, in the window, where it is read or written.
  std::pair<int, int> vectors_of(int64_t unit, int distance) const {
    const int elements = plan_.vector_elements, first = static_cast<int>(unit) * elements;
    if (distance > 1) {
      const int low = first / distance * 2 * distance + first % distance;
      return {low, low + distance};
    }
    if (scene_.is_interleaved() && elements > 1) return {first, first + scene_.geometry.rotary_dim / 2};
    return {2 * first, 2 * first + elements};
  }

  // Which pairs a unit's vectors hold, both channels of each; none where one is not whole.
  void find_pairs(std::pair<int, int> vectors, int distance, std::vector<int> *pairs) const {
    const int elements = plan_.vector_elements;
    const auto holds = [&](int channel) {
      return (channel >= vectors.first && channel < vectors.first + elements) ||
             (channel >= vectors.second && channel < vectors.second + elements);
    };
    pairs->clear();
    for (int i = 0; i < 2 * elements; ++i) {
      const int channel = i < elements ? vectors.first + i : vectors.second + i - elements;
      const bool is_second = channel / distance % 2 != 0;
      if (!holds(is_second ? channel - distance : channel + distance)) return pairs->clear();
      if (!is_second) pairs->push_back(channel / (2 * distance) * distance + channel % distance);
    }
  }

  Fault rotate(const Place &place, int64_t unit) {
    const rope::RopeProblem &problem = scene_.problem;
    const std::pair<int, int> from = vectors_of(unit, problem.in_distance), to = vectors_of(unit, problem.out_distance);
    find_pairs(from, problem.in_distance, &read_pairs_);
    find_pairs(to, problem.out_distance, &written_pairs_);
    const std::vector<int> &pairs = read_pairs_;
    if (pairs.empty()) return "a pair in two units";
    const bool has_shared_angles = has_token_rows(plan_.kernel) || plan_.kernel == rope::RopeKernel::kShortWarp ||
                                   plan_.kernel == rope::RopeKernel::kShort;
    Fault angle_fault = has_shared_angles ? check_shared(place, pairs) : check_table(place, pairs);
    if (angle_fault.empty() && is_of_long_launch(plan_.kernel)) angle_fault = check_long_table(place);
    if (!angle_fault.empty()) return angle_fault;
    if (is_of_short_launch(plan_.kernel) || is_of_long_launch(plan_.kernel)) {
      const Fault fault = check_short_addresses(place);
      if (!fault.empty()) return fault;
    }
    if (pairs != written_pairs_) return "other pairs written than read";
    for (const int channel : {from.first, from.second}) {
      const Fault fault = check_vector(place, scene_.geometry.rotary_offset + channel, false);
      if (!fault.empty()) return fault;
    }
    for (const int channel : {to.first, to.second}) {
      const Fault fault = write(place, scene_.geometry.rotary_offset + channel);
      if (!fault.empty()) return fault;
    }
    for (const int pair : pairs) {
      ++rotated_[place.row * static_cast<size_t>(scene_.geometry.rotary_dim / 2) + static_cast<size_t>(pair)];
    }
    return "";
  }

  // The kernels of short launches, and of long ones, have strides of 32 bits, in bytes, and find an output as far from
  // its input as heads and tokens begin. Threads behind the last head compute an address too.
  Fault check_short_addresses(const Place &place) const {
    const rope::RotatedTensor &tensor = scene_.problem.tensor[place.tensor];
    const int64_t token = place.batch * scene_.problem.tokens + place.token;
    const auto address_of = [&](const char *data, int64_t token_bytes, int64_t head_bytes) {
      return reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(token * token_bytes + place.head * head_bytes);
    };
    const int64_t size = scene_.element_size();
    for (const int64_t *stride : {tensor.in_stride, tensor.out_stride}) {
      if (place.batch > 0 && stride[rope::kBatch] != scene_.problem.tokens * stride[rope::kToken]) {
        return "batches that do not follow each other";
      }
    }
    if (tensor.in_stride[rope::kHead] < 0) return "threads without a head have addresses below all others";
    const uintptr_t in = address_of(tensor.in, static_cast<int32_t>(tensor.in_stride[rope::kToken] * size),
                                    static_cast<int32_t>(tensor.in_stride[rope::kHead] * size));
    const uintptr_t in_to_out = reinterpret_cast<uintptr_t>(tensor.out) - reinterpret_cast<uintptr_t>(tensor.in);
    if (in != address_of(tensor.in, tensor.in_stride[rope::kToken] * size, tensor.in_stride[rope::kHead] * size)) {
      return "strides of more than 32 bits";
    }
    if (in + in_to_out !=
        address_of(tensor.out, tensor.out_stride[rope::kToken] * size, tensor.out_stride[rope::kHead] * size)) {
      return "an output with other strides";
    }
    return "";
  }

  // The runs of angles that a thread reads as vectors of up to four, where a row of threads, or a warp, has the cosines
  // of its token's pairs and then the sines. Those of short and of long launches have room for as many pairs as they
  // have at most.
  Fault check_shared(const Place &place, const std::vector<int> &pairs) const {
    const int64_t length = run_length(scene_, plan_.vector_elements), step = std::min<int64_t>(length, 4);
    const int64_t num_pairs = scene_.geometry.rotary_dim / 2;
    const bool has_fixed_room = is_of_short_launch(plan_.kernel) || is_of_long_launch(plan_.kernel);
    const int64_t room = has_fixed_room ? rope::kMaxShortPairs : num_pairs;
    for (size_t i = 0; i < pairs.size(); ++i) {
      const int64_t in_run = static_cast<int64_t>(i) % length;
      if (in_run > 0 && pairs[i] != pairs[i - 1] + 1) return "a run of pairs that are apart";
      if (in_run % step != 0) continue;
      const int64_t cos = place.row_of_block * 2 * room + pairs[i], sin = cos + room;
      if (pairs[i] + step > num_pairs || num_pairs > room) return "an angle that nobody computes";
      if (cos % step != 0 || sin % step != 0) return "a run of angles that is not aligned";
      if ((sin + step) * 4 > plan_.shared_bytes) return "angles past the block's";
    }
    return "";
  }

  // The entries that the threads of a row read, one each: neighbours, in rows of one stride that 32 bits hold.
  Fault check_long_table(const Place &place) const {
    if (is_computed(scene_)) return "";
    const rope::AngleTable &table = scene_.problem.table;
    const int64_t size = oracle::element_size(table.dtype), row_bytes = table.cos.row_stride * size;
    if (size != (plan_.kernel == rope::RopeKernel::kLongTable32 ? 4 : 2)) return "a table of another width";
    if (table.cos.column_stride != 1 || table.sin.column_stride != 1) return "columns that are apart";
    if (table.cos.row_stride != table.sin.row_stride) return "two strides of rows";
    if (row_bytes != static_cast<int32_t>(row_bytes) || table.rows > INT32_MAX) return "rows that 32 bits do not count";
    const int64_t row = table.is_by_token ? place.token : place.token % table.rows;
    for (const rope::TableColumns *columns : {&table.cos, &table.sin}) {
      if (table_row(scene_, *columns, 0, row) % static_cast<uintptr_t>(size) != 0) return "an entry not aligned";
    }
    return "";
  }

  // The runs of a row that a thread reads as vectors.
  Fault check_table(const Place &place, const std::vector<int> &pairs) const {
    if (shares_angles(plan_.kernel) || plan_.kernel == rope::RopeKernel::kFlat) return "";
    const rope::AngleTable &table = scene_.problem.table;
    const int64_t size = oracle::element_size(table.dtype), length = run_length(scene_, plan_.vector_elements);
    const int64_t step = std::min<int64_t>(length, 16 / size);
    const bool has_floats = plan_.kernel == rope::RopeKernel::kTable32 ||
                            plan_.kernel == rope::RopeKernel::kShortTable32 ||
                            plan_.kernel == rope::RopeKernel::kLateTable32;
    if (size != (has_floats ? 4 : 2)) return "a table of another width";
    if (is_of_short_launch(plan_.kernel) && table.cos.row_stride != table.sin.row_stride) return "two strides of rows";
    const int64_t row = table.is_by_token ? place.token : place.token % table.rows;
    for (size_t i = 0; i < pairs.size(); ++i) {
      const int64_t in_run = static_cast<int64_t>(i) % length;
      if (in_run > 0 && pairs[i] != pairs[i - 1] + 1) return "a run of pairs that are apart";
      if (in_run % step != 0) continue;
      for (const rope::TableColumns *columns : {&table.cos, &table.sin}) {
        const uintptr_t address =
            table_row(scene_, *columns, place.batch, row) + static_cast<uintptr_t>(pairs[i] * size);
        if (columns->column_stride != 1) return "columns that are apart";
        if (address % static_cast<uintptr_t>(step * size) != 0) return "a run that is not aligned";
      }
    }
    return "";
  }

  // One vector of the channels outside the window.
  Fault copy(const Place &place, int64_t unit) {
    const rope::RopeGeometry &geometry = scene_.geometry;
    int channel = static_cast<int>(unit) * plan_.vector_elements;
    if (channel >= geometry.rotary_offset) channel += geometry.rotary_dim;
    const Fault fault = check_vector(place, channel, false);
    return fault.empty() ? write(place, channel) : fault;
  }

  Fault check_vector(const Place &place, int channel, bool is_out) const {
    const rope::RotatedTensor &tensor = scene_.problem.tensor[place.tensor];
    const int elements = plan_.vector_elements;
    if (channel < 0 || channel + elements > scene_.geometry.head_dim) return "a vector past its head";
    const int64_t *stride = is_out ? tensor.out_stride : tensor.in_stride;
    const int64_t offset = place.batch * stride[rope::kBatch] + place.token * stride[rope::kToken] +
                           place.head * stride[rope::kHead] + channel * stride[rope::kChannel];
    const uintptr_t address = reinterpret_cast<uintptr_t>(is_out ? tensor.out : tensor.in) +
                              static_cast<uintptr_t>(offset * scene_.element_size());
    if (address % static_cast<uintptr_t>(elements * scene_.element_size()) != 0) return "a vector that is not aligned";
    if (elements > 1 && stride[rope::kChannel] != 1) return "a vector of channels that are apart";
    return "";
  }

  Fault write(const Place &place, int channel) {
    const Fault fault = check_vector(place, channel, true);
    if (!fault.empty()) return fault;
    const size_t first = place.row * static_cast<size_t>(scene_.geometry.head_dim) + static_cast<size_t>(channel);
    for (int i = 0; i < plan_.vector_elements; ++i) ++written_[first + static_cast<size_t>(i)];
    return "";
  }

  std::string check_counts() const {
    const rope::RopeGeometry &geometry = scene_.geometry;
    const auto head_dim = static_cast<size_t>(geometry.head_dim);
    for (size_t i = 0; i < rotated_.size(); ++i) {
      if (rotated_[i] != 1) return "a pair is rotated " + std::to_string(rotated_[i]) + " times";
    }
    for (size_t i = 0; i < written_.size(); ++i) {
      const size_t head = i / head_dim % heads_per_token_;
      const auto channel = static_cast<int>(i % head_dim);
      int tensor = scene_.problem.num_tensors - 1;
      while (first_head_[tensor] > head) --tensor;
      const bool is_rotated =
          channel >= geometry.rotary_offset && channel < geometry.rotary_offset + geometry.rotary_dim;
      const int expected = is_rotated || !scene_.problem.tensor[tensor].is_in_place ? 1 : 0;
      if (written_[i] != expected) {
        return "channel " + std::to_string(channel) + " is written " + std::to_string(written_[i]) + " times";
      }
    }
    return "";
  }

  const Scene &scene_;
  const rope::RopePlan &plan_;
  size_t first_head_[3] = {};
  size_t heads_per_token_ = 0;
  uint32_t token_of_warp_ = 0, lanes_ = 0, angles_of_row_ = 0;
  std::vector<uint8_t> written_, rotated_;
  std::vector<int> read_pairs_, written_pairs_;  // of the unit that is rotated
  std::vector<int64_t> block_of_row_;            // of heads that are converted in place
};

// The same launch in rows of at most `tokens`, by the rule for rows: whole batches, or whole blocks of the one batch.
rope::RopePlan in_short_rows(const Scene &scene, rope::RopePlan plan, int64_t tokens) {
  if (!shares_angles(plan.kernel)) return plan;  // the grid has one row
  int64_t unit = plan.tokens_per_block;
  if (scene.problem.batches > 1) unit = plan.is_batch_fastest ? scene.problem.batches : scene.problem.tokens;
  plan.blocks.tokens_per_grid_row = std::max(tokens / unit, int64_t{1}) * unit;
  plan.grid_y = static_cast<uint32_t>(divide_up(scene.num_tokens(), plan.blocks.tokens_per_grid_row));
  plan.grid_x =
      static_cast<uint32_t>(divide_up(plan.blocks.tokens_per_grid_row, plan.tokens_per_block)) * plan.blocks_per_token;
  return plan;
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

// One tensor q.
void set_problem(Scene *scene, const rope_config_t &config, const std::vector<int64_t> &shape,
                 const rope_args_t &operands = {}) {
  REQUIRE(rope::make_rope_geometry("rope_desc_create", config, &scene->geometry) == ROPE_STATUS_SUCCESS);
  scene->args = operands;
  scene->args.struct_size = sizeof scene->args;
  scene->args.q = compact_tensor(uintptr_t{1} << 61, config.dtype, shape);
  const rope_status_t status =
      rope::make_rope_problem("rope_forward", scene->geometry, scene->args, false, &scene->problem);
  INFO(rope::last_error());
  REQUIRE(status == ROPE_STATUS_SUCCESS);
}

// Args with nothing but q, k and v, and their outputs unless they are in place.
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

// As the model has it.
void set_problem(Scene *scene, rope_dtype_t dtype, int64_t batches, int64_t tokens, int64_t heads, int32_t head_dim) {
  set_problem(scene, some_config(dtype, head_dim), {batches, tokens, heads, head_dim});
}

rope_args_t with_flag(rope_args_t args, bool has_flag = true) {
  if (has_flag) args.flags = ROPE_FLAG_PROGRAMMATIC_LAUNCH;
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
  REQUIRE(std::memchr(text, 0, 256) != nullptr);  // what the header promises
  return text;
}

const rope::DeviceInfo kH200 = {true, 0, 132, 90, 48 << 10};

}  // namespace

TEST_CASE("the plan of every legal RoPE problem is a legal launch", "[rope plan]") {
  Random random(1);
  Scene scene;
  int planned = 0, wide = 0, scalar = 0, rows = 0, of_2_to_40_tokens = 0, of_2_to_19_heads = 0, whole_heads = 0;
  int of_kernel[kKernels] = {}, of_pairing[3] = {}, parts_of_tokens = 0, programmatic = 0, batch_fastest = 0;
  for (int round = 0; round < 80000; ++round) {
    if (!draw(&random, kAnySizes, &scene)) continue;
    for (const rope::DeviceInfo &device : kDevices) {
      rope::RopePlan plan;
      rope::fail(ROPE_STATUS_SUCCESS, "%s", "");
      const rope_status_t status = rope::plan_rope("rope_forward", scene.problem, device, &plan);
      if (status != ROPE_STATUS_SUCCESS) {
        const std::string message = rope::last_error();
        INFO(describe(scene) << ": " << message);
        REQUIRE(status == ROPE_STATUS_NOT_SUPPORTED);
        REQUIRE(message.rfind("rope_forward: q ", 0) == 0);
        // Even with the widest vectors and blocks, tokens do not fit the grid, or a batch does not fit a row of it.
        const int64_t widest = widest_vectors(scene), units = units_of_token(scene, widest, Cut::kSingleCopies);
        const int64_t row = kLargestGridX / 8 / divide_up(units, rope::kMaxRopeThreads);
        REQUIRE(shares_angles(expected_kernel(scene, device, expected_elements(scene, device))));
        const bool fills_grid = scene.num_tokens() / kLargestGridY >= row / 2;
        const bool fills_row = scene.problem.batches > 1 && scene.problem.tokens >= row;
        REQUIRE((fills_grid || fills_row));
        continue;
      }
      ++planned;
      const std::string fault = fault_of(scene, device, plan);
      if (!fault.empty()) {
        INFO(describe(scene) << "; sm_" << device.compute_capability << ": " << describe(plan));
        FAIL(fault);
      }
      ++(plan.vector_elements > 1 ? wide : scalar);
      rows += plan.grid_y > 1 && shares_angles(plan.kernel);
      parts_of_tokens += plan.grid_y > 1 && is_flat(plan.kernel);
      programmatic += plan.is_programmatic;
      batch_fastest += plan.is_batch_fastest;
      whole_heads += scene.converts_in_place();
      ++of_kernel[static_cast<int>(plan.kernel)];
      ++of_pairing[static_cast<int>(plan.pairing)];
      of_2_to_40_tokens += scene.num_tokens() >= int64_t{1} << 39;
      of_2_to_19_heads += scene.problem.heads_per_token() >= int64_t{1} << 19;
    }
  }
  // Every kind of problem was among them.
  CHECK(planned > 100000);
  CHECK(wide > 10000);
  CHECK(scalar > 10000);
  CHECK(rows > 100);
  CHECK(parts_of_tokens > 100);
  CHECK(programmatic > 10000);
  CHECK(batch_fastest > 10000);
  CHECK(of_2_to_40_tokens > 10);
  CHECK(of_2_to_19_heads > 100);
  CHECK(whole_heads > 1000);
  for (int kernel = 0; kernel < kKernels; ++kernel) {
    INFO("kernel " << kernel);
    // Heads in whole vectors are seldom converted.
    CHECK(of_kernel[kernel] > (kernel == static_cast<int>(rope::RopeKernel::kLongConverted) ? 10 : 300));
  }
  for (const int count : of_pairing) CHECK(count > 10000);
}

TEST_CASE("problems beyond one launch are refused with a reason", "[rope plan]") {
  Scene scene;
  for (const rope::DeviceInfo &device : kDevices) {
    rope::RopePlan plan;
    // Each token takes 1600 blocks or more, of which a grid holds 2^47: too few for 2^37 tokens.
    set_problem(&scene, ROPE_DTYPE_F16, 1, int64_t{1} << 37, 1 << 18, 2);
    CHECK(rope::plan_rope("rope_backward", scene.problem, device, &plan) == ROPE_STATUS_NOT_SUPPORTED);
    CHECK(std::string(rope::last_error()).rfind("rope_backward: q ", 0) == 0);
    // Two batches, neither of which fits a row.
    set_problem(&scene, ROPE_DTYPE_F16, 2, int64_t{1} << 32, 2, 128);
    CHECK(rope::plan_rope("rope_backward", scene.problem, device, &plan) == ROPE_STATUS_NOT_SUPPORTED);
    // In a row too few to have one token of each of so many batches, whole batches.
    rope_config_t config = some_config(ROPE_DTYPE_F16, 2);
    config.layout = ROPE_LAYOUT_SBHD;
    set_problem(&scene, config, {2, int64_t{1} << 24, 1 << 18, 2});
    CHECK(rope::plan_rope("rope_backward", scene.problem, device, &plan) == ROPE_STATUS_SUCCESS);
    CHECK_FALSE(plan.is_batch_fastest);
    CHECK(fault_of(scene, device, plan).empty());
    // As one batch they do.
    set_problem(&scene, ROPE_DTYPE_F16, 1, int64_t{1} << 33, 1, 128);
    CHECK(rope::plan_rope("rope_backward", scene.problem, device, &plan) == ROPE_STATUS_SUCCESS);
    CHECK(fault_of(scene, device, plan).empty());
  }
}

TEST_CASE("a launch does each piece of work once", "[rope plan]") {
  Random random(2);
  Scene scene;
  int launches = 0, of_several_tokens = 0, of_several_blocks = 0, short_rows = 0, wide_copies = 0;
  int whole_heads = 0, large_heads = 0, idle_units = 0, wide_blocks = 0, wide_converted = 0;
  int of_kernel[kKernels] = {}, short_rows_of_kernel[kKernels] = {}, short_tables = 0, rows_of_batches = 0,
      batch_fastest = 0;
  int part_slowest = 0, rows_of_threads = 0, double_copies = 0, parts_of_heads = 0, several_tensors = 0;
  for (int round = 0; round < 20000; ++round) {
    if (!draw(&random, kSmallSizes, &scene)) continue;
    // On a device of one multiprocessor small launches are long.
    const rope::DeviceInfo &device = round % 3 == 0 ? kDevices[6] : kDevices[round % 11];
    rope::RopePlan plan;
    REQUIRE(rope::plan_rope("rope_forward", scene.problem, device, &plan) == ROPE_STATUS_SUCCESS);
    rope::RopePlan rows = in_short_rows(scene, plan, 1 + random.below(scene.num_tokens()));
    for (const rope::RopePlan *variant : {&plan, &rows}) {
      INFO(describe(scene) << "; sm_" << device.compute_capability << ": " << describe(*variant));
      const std::string not_legal = fault_of(scene, device, *variant);
      if (!not_legal.empty()) FAIL(not_legal);
      const std::string fault = Launch(scene, *variant).run();
      if (!fault.empty()) FAIL(fault);
    }
    ++launches;
    of_several_tokens += plan.tokens_per_block > 1 && scene.num_tokens() > plan.tokens_per_block;
    of_several_blocks += plan.blocks_per_token > 1;
    short_rows += rows.grid_y > plan.grid_y;
    ++of_kernel[static_cast<int>(plan.kernel)];
    short_rows_of_kernel[static_cast<int>(plan.kernel)] += rows.grid_y > plan.grid_y;
    batch_fastest += plan.is_batch_fastest && rows.grid_y > plan.grid_y;
    rows_of_batches += rows.grid_y > plan.grid_y && scene.problem.batches > 1 &&
                       rows.blocks.tokens_per_grid_row > scene.problem.tokens;
    short_tables += plan.kernel == rope::RopeKernel::kShortTable32 || plan.kernel == rope::RopeKernel::kShortTable16;
    part_slowest += plan.rows.is_part_slowest && plan.blocks_per_token > 1;
    rows_of_threads += plan.thread_rows > 1 && scene.num_tokens() > plan.thread_rows;
    double_copies +=
        has_token_rows(plan.kernel) && plan.vector_elements > 1 && plan.units.per_head[0] > plan.units.rotary_per_head;
    parts_of_heads += is_scattered(plan.kernel) && scene.problem.tensor[0].heads % rope::kScatteredHeads != 0;
    several_tensors += has_token_rows(plan.kernel) && scene.problem.num_tensors > 1;
    wide_copies += plan.vector_elements > 1 && plan.units.per_head[0] > plan.units.rotary_per_head;
    whole_heads += scene.converts_in_place();
    large_heads += plan.threads > static_cast<uint32_t>(rope::kMaxRopeThreads);
    idle_units += scene.converts_in_place() && scene.has_copies();
    wide_blocks += plan.vector_elements > 1 && scene.is_half() && scene.block() < scene.geometry.rotary_dim;
    wide_converted += plan.vector_elements > 1 && scene.is_converted();
  }
  // Tables of tokens of few units are drawn too seldom.
  for (const rope_dtype_t table : {ROPE_DTYPE_F32, ROPE_DTYPE_F16}) {
    for (const int64_t heads : {1, 3, 7}) {
      rope_args_t tables = {};
      tables.cos = compact_tensor(far_address(0), table, {64, 64});
      tables.sin = compact_tensor(far_address(1), table, {64, 64});
      set_problem(&scene, some_config(ROPE_DTYPE_BF16, 128), {1, 307, heads, 128}, tables);
      const rope::RopePlan plan = plan_of(scene, kDevices[6]);
      INFO(describe(scene) << ": " << describe(plan));
      CHECK(fault_of(scene, kDevices[6], plan) == "");
      CHECK(Launch(scene, plan).run() == "");
      ++of_kernel[static_cast<int>(plan.kernel)];
    }
  }
  CHECK(launches > 4000);
  CHECK(of_several_tokens > 100);
  CHECK(of_several_blocks > 100);
  CHECK(short_rows > 1000);
  // Long launches have test cases of their own, and hardly any tokens of few units are so many that theirs is long.
  for (int number = 0; number < kKernels; ++number) {
    INFO("kernel " << number);
    const auto kernel = static_cast<rope::RopeKernel>(number);
    const bool is_seldom = is_flat(kernel) && !is_of_short_launch(kernel);
    if (!is_of_long_launch(kernel)) CHECK(of_kernel[number] > (is_seldom ? 0 : 5));
    if (shares_angles(kernel)) CHECK(short_rows_of_kernel[number] > 4);
  }
  CHECK(rows_of_batches > 100);
  CHECK(batch_fastest > 300);
  CHECK(short_tables > 30);
  CHECK(part_slowest > 50);
  CHECK(rows_of_threads > 50);
  CHECK(double_copies > 10);
  CHECK(parts_of_heads > 50);
  CHECK(several_tensors > 50);
  CHECK(wide_copies > 50);
  CHECK(whole_heads > 200);
  CHECK(large_heads > 50);
  CHECK(idle_units > 50);
  CHECK(wide_blocks > 50);
  CHECK(wide_converted > 50);
}

TEST_CASE("heads that are converted in place are never cut", "[rope plan]") {
  Scene scene;
  uint32_t most_threads = 0;
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_BF16, ROPE_DTYPE_F64}) {
    for (const int32_t head_dim : {2, 6, 64, 192, 322, 514, 576, 1022, 1024}) {
      for (const int32_t rotary_dim : {4, 64, 0}) {
        for (const rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
          for (const int64_t stride : {int64_t{head_dim}, int64_t{head_dim} + 1}) {
            for (const bool is_beside_copies : {false, true}) {
              rope_config_t config = some_config(dtype, head_dim);
              config.layout = ROPE_LAYOUT_THD;
              config.rotary_dim = rotary_dim;
              config.style = style;
              config.out_style = oracle::other_style(style);
              if (rotary_dim > head_dim) continue;
              REQUIRE(rope::make_rope_geometry("rope_desc_create", config, &scene.geometry) == ROPE_STATUS_SUCCESS);
              const std::vector<int64_t> shape = {3, 5, head_dim}, strides = {7 * stride, stride, 1};
              scene.args = {};
              scene.args.struct_size = sizeof scene.args;
              scene.args.q = fake_tensor(uintptr_t{1} << 61, dtype, shape, strides);
              scene.args.k = fake_tensor(uintptr_t{2} << 61, dtype, shape, strides);
              if (is_beside_copies) scene.args.k_out = fake_tensor(uintptr_t{3} << 61, dtype, shape, strides);
              REQUIRE(rope::make_rope_problem("rope_forward", scene.geometry, scene.args, false, &scene.problem) ==
                      ROPE_STATUS_SUCCESS);
              for (const rope::DeviceInfo &device : {kDevices[0], kDevices[4]}) {
                const rope::RopePlan plan = plan_of(scene, device);
                INFO(describe(scene) << ": " << describe(plan));
                const std::string fault = fault_of(scene, device, plan) + Launch(scene, plan).run();
                if (!fault.empty()) FAIL(fault);
                most_threads = std::max(most_threads, plan.threads);
              }
            }
          }
        }
      }
    }
  }
  CHECK(most_threads == 1024);
}

TEST_CASE("a launch of odd sizes does each piece of work once", "[rope plan]") {
  Scene scene;
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_BF16}) {
    for (const int64_t tokens : {1, 2, 7, 31}) {
      for (const int64_t heads : {1, 3, 8, 31}) {
        for (const int32_t head_dim : {2, 6, 34, 64, 80, 128}) {
          for (const int64_t batches : {1, 3}) {
            set_problem(&scene, dtype, batches, tokens, heads, head_dim);
            for (const rope::DeviceInfo &device : {kDevices[0], kDevices[4], kDevices[6], kDevices[9]}) {
              rope::RopePlan plan;
              REQUIRE(rope::plan_rope("rope_forward", scene.problem, device, &plan) == ROPE_STATUS_SUCCESS);
              rope::RopePlan rows = in_short_rows(scene, plan, tokens / 2);
              for (const rope::RopePlan *variant : {&plan, &rows}) {
                const std::string fault = fault_of(scene, device, *variant) + Launch(scene, *variant).run();
                INFO(describe(scene) << ": " << describe(*variant));
                if (!fault.empty()) FAIL(fault);
              }
            }
          }
        }
      }
    }
  }
}

TEST_CASE("a large aligned problem moves 16 bytes at a time", "[rope plan]") {
  Scene scene;
  for (const rope::DeviceInfo &device : kDevices) {
    for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
      set_problem(&scene, dtype, 4, 1 << 18, 64, 128);
      rope::RopePlan plan;
      REQUIRE(rope::plan_rope("rope_forward", scene.problem, device, &plan) == ROPE_STATUS_SUCCESS);
      CHECK(plan.vector_elements * scene.element_size() == 16);
      CHECK(fault_of(scene, device, plan).empty());
    }
  }
}

TEST_CASE("CPU plans of RoPE use threads where there is enough to do", "[rope plan]") {
  Random random(3);
  Scene scene;
  int planned = 0, parallel = 0;
  for (int round = 0; round < 20000; ++round) {
    if (!draw(&random, round % 2 == 0 ? kAnySizes : kSmallSizes, &scene)) continue;
    for (const int num_threads : {1, 2, 7, 64, 1000}) {
      rope::RopePlan plan;
      const rope::DeviceInfo device = {false, num_threads, 0, 0, 0};
      REQUIRE(rope::plan_rope("rope_forward", scene.problem, device, &plan) == ROPE_STATUS_SUCCESS);
      INFO(describe(scene) << ", " << num_threads << " threads: " << plan.num_tasks << " tasks");
      const bool is_legal =
          plan.num_tasks >= 1 && plan.num_tasks <= num_threads &&
          plan.num_tasks <= std::max<int64_t>(1, scene.num_tokens() * scene.problem.heads_per_token());
      if (!is_legal) FAIL("num_tasks");
      ++planned;
      parallel += plan.num_tasks > 1;
    }
  }
  CHECK(planned > 10000);
  CHECK(parallel > 1000);

  rope::RopePlan plan;
  const rope::DeviceInfo device = {false, 16, 0, 0, 0};
  set_problem(&scene, ROPE_DTYPE_F32, 1, 1, 32, 128);
  REQUIRE(rope::plan_rope("rope_forward", scene.problem, device, &plan) == ROPE_STATUS_SUCCESS);
  CHECK(plan.num_tasks == 1);
  set_problem(&scene, ROPE_DTYPE_F32, 1, 1 << 20, 32, 128);
  REQUIRE(rope::plan_rope("rope_forward", scene.problem, device, &plan) == ROPE_STATUS_SUCCESS);
  CHECK(plan.num_tasks == 16);
}

TEST_CASE("every feature has its kernel", "[rope plan]") {
  const auto table = [](rope_dtype_t dtype, int64_t width) {
    rope_args_t args = {};
    args.cos = compact_tensor(far_address(0), dtype, {64, width});
    args.sin = compact_tensor(far_address(1), dtype, {64, width});
    return args;
  };
  const int32_t axes[64] = {};
  int64_t batches = 1;
  using Kernel = rope::RopeKernel;
  // Of many vectors, of some, and of few of one batch, and of many and of few of several batches.
  struct Kernels {
    Kernel many, some, few, of_batches, of_short_batches;
  };
  const Kernels computed = {Kernel::kLong, Kernel::kShort, Kernel::kShortWarp, Kernel::kLongBatches, Kernel::kToken};
  const Kernels table32 = {Kernel::kLongTable32, Kernel::kShortTable32, Kernel::kShortTable32, Kernel::kLongTable32,
                           Kernel::kTokenTable};
  const Kernels table16 = {Kernel::kLongTable16, Kernel::kShortTable16, Kernel::kShortTable16, Kernel::kLongTable16,
                           Kernel::kTokenTable};
  const auto only_short = [](Kernels kernels) {
    kernels.many = kernels.of_batches = kernels.of_short_batches;
    return kernels;
  };
  const auto with_closer_tokens = [](Kernels kernels) {
    if (kernels.many == Kernel::kLong) kernels.many = Kernel::kLongBatches;
    kernels.of_batches = kernels.of_short_batches;
    return kernels;
  };
  const auto always = [](Kernel kernel) { return Kernels{kernel, kernel, kernel, kernel, kernel}; };
  const Kernels converted = {Kernel::kLongConverted, Kernel::kLongConverted, Kernel::kGeneral, Kernel::kLongConverted,
                             Kernel::kGeneral};
  const auto late = [](Kernel kernel) {
    return kernel == Kernel::kShortTable32   ? Kernel::kLateTable32
           : kernel == Kernel::kShortTable16 ? Kernel::kLateTable16
                                             : kernel;
  };
  const auto out_of_place = [&](const rope_config_t &config, rope_args_t *args) {
    args->q_out = compact_tensor(far_address(5), ROPE_DTYPE_BF16, {batches, 64, 8, config.head_dim});
  };
  const auto sequences = [](rope_config_t *config, rope_args_t *args) {
    config->layout = ROPE_LAYOUT_THD;
    args->cu_seqlens = compact_tensor(far_address(2), ROPE_DTYPE_I32, {9});
  };
  const struct {
    const char *title;
    Kernels kernels;
    rope::Pairing pairing;
    std::function<void(rope_config_t &, rope_args_t &)> change;
  } features[] = {
      {"half", computed, rope::Pairing::kHalf, [](rope_config_t &, rope_args_t &) {}},
      {"interleaved", computed, rope::Pairing::kInterleaved,
       [](rope_config_t &config, rope_args_t &) { config.style = ROPE_STYLE_INTERLEAVED; }},
      {"out_style that is style", computed, rope::Pairing::kHalf,
       [](rope_config_t &config, rope_args_t &) { config.out_style = ROPE_STYLE_HALF; }},
      {"pair_block of the whole window", computed, rope::Pairing::kHalf,
       [](rope_config_t &config, rope_args_t &) { config.pair_block = 128; }},
      {"pair_block of two channels", computed, rope::Pairing::kInterleaved,
       [](rope_config_t &config, rope_args_t &) { config.pair_block = 2; }},
      {"pair_axis of one axis", computed, rope::Pairing::kHalf,
       [&](rope_config_t &config, rope_args_t &) { config.num_axes = 1, config.pair_axis = axes; }},
      {"positions", computed, rope::Pairing::kHalf,
       [&](rope_config_t &, rope_args_t &args) {
         args.positions = compact_tensor(far_address(2), ROPE_DTYPE_I32, {batches, 64});
       }},
      {"positions of 64 bits", computed, rope::Pairing::kHalf,
       [&](rope_config_t &, rope_args_t &args) {
         args.positions = compact_tensor(far_address(2), ROPE_DTYPE_I64, {batches, 64});
       }},
      {"positions of all batches", computed, rope::Pairing::kHalf,
       [](rope_config_t &, rope_args_t &args) {
         args.positions = compact_tensor(far_address(2), ROPE_DTYPE_I32, {64});
       }},
      {"positions far apart", always(Kernel::kToken), rope::Pairing::kHalf,
       [](rope_config_t &, rope_args_t &args) {
         args.positions = fake_tensor(far_address(2), ROPE_DTYPE_I32, {64}, {INT32_MAX / 8 + 1});
       }},
      {"positions far apart and a table", always(Kernel::kTokenTable), rope::Pairing::kHalf,
       [&](rope_config_t &, rope_args_t &args) {
         args = table(ROPE_DTYPE_F32, 64);
         args.positions = fake_tensor(far_address(2), ROPE_DTYPE_I32, {64}, {-(INT32_MAX / 8) - 1});
       }},
      {"positions and start_positions", always(Kernel::kToken), rope::Pairing::kHalf,
       [&](rope_config_t &, rope_args_t &args) {
         args.positions = compact_tensor(far_address(2), ROPE_DTYPE_I32, {batches, 64});
         args.start_positions = compact_tensor(far_address(3), ROPE_DTYPE_I64, {batches});
       }},
      {"start_positions", always(Kernel::kToken), rope::Pairing::kInterleaved,
       [&](rope_config_t &config, rope_args_t &args) {
         config.style = ROPE_STYLE_INTERLEAVED;
         args.start_positions = compact_tensor(far_address(3), ROPE_DTYPE_I32, {batches});
       }},
      {"start_positions and a table", always(Kernel::kTokenTable), rope::Pairing::kHalf,
       [&](rope_config_t &, rope_args_t &args) {
         args = table(ROPE_DTYPE_F32, 64);
         args.start_positions = compact_tensor(far_address(3), ROPE_DTYPE_I64, {batches});
       }},
      {"out of place", computed, rope::Pairing::kHalf,
       [&](rope_config_t &config, rope_args_t &args) { out_of_place(config, &args); }},
      {"out of place by a table", table16, rope::Pairing::kHalf,
       [&](rope_config_t &config, rope_args_t &args) {
         args = table(ROPE_DTYPE_BF16, 64);
         out_of_place(config, &args);
       }},
      {"an output with another stride of tokens", always(Kernel::kToken), rope::Pairing::kHalf,
       [&](rope_config_t &config, rope_args_t &args) {
         out_of_place(config, &args);
         args.q_out.stride[0] *= 2;
         args.q_out.stride[1] += 128;
       }},
      {"an output with another stride of heads, by a table", always(Kernel::kTokenTable), rope::Pairing::kHalf,
       [&](rope_config_t &config, rope_args_t &args) {
         args = table(ROPE_DTYPE_F32, 64);
         out_of_place(config, &args);
         args.q_out.stride[0] *= 2;
         args.q_out.stride[1] += 8 * 8;
         args.q_out.stride[2] += 8;
       }},
      {"half of each head", computed, rope::Pairing::kHalf,
       [](rope_config_t &config, rope_args_t &) { config.head_dim = 256, config.rotary_dim = 128; }},
      {"half of each head by a table", table16, rope::Pairing::kHalf,
       [&](rope_config_t &config, rope_args_t &args) {
         config.head_dim = 256, config.rotary_dim = 128;
         args = table(ROPE_DTYPE_F16, 64);
       }},
      {"half of each head, the rest copied", always(Kernel::kToken), rope::Pairing::kHalf,
       [&](rope_config_t &config, rope_args_t &args) {
         config.head_dim = 256, config.rotary_dim = 128;
         out_of_place(config, &args);
       }},
      {"half of each head by a table, the rest copied", always(Kernel::kTokenTable), rope::Pairing::kHalf,
       [&](rope_config_t &config, rope_args_t &args) {
         config.head_dim = 256, config.rotary_dim = 128;
         args = table(ROPE_DTYPE_F32, 64);
         out_of_place(config, &args);
       }},
      {"more pairs than a warp or a row of threads keeps", always(Kernel::kToken), rope::Pairing::kHalf,
       [](rope_config_t &config, rope_args_t &) { config.head_dim = 2 * rope::kMaxShortPairs + 16; }},
      {"more pairs than that by a table", only_short(table32), rope::Pairing::kHalf,
       [&](rope_config_t &config, rope_args_t &args) {
         config.head_dim = 2 * rope::kMaxShortPairs + 16;
         args = table(ROPE_DTYPE_F32, rope::kMaxShortPairs + 8);
       }},
      {"fault, where nothing can be faulty", computed, rope::Pairing::kHalf,
       [](rope_config_t &, rope_args_t &args) { args.fault = compact_tensor(far_address(2), ROPE_DTYPE_I64, {2}); }},
      {"several axes", always(Kernel::kTokenAxes), rope::Pairing::kHalf,
       [](rope_config_t &config, rope_args_t &) { config.num_axes = 2; }},
      {"several axes, interleaved", always(Kernel::kTokenAxes), rope::Pairing::kInterleaved,
       [](rope_config_t &config, rope_args_t &) {
         config.num_axes = 3;
         config.style = ROPE_STYLE_INTERLEAVED;
       }},
      {"sequences", always(Kernel::kTokenSequences), rope::Pairing::kHalf,
       [](rope_config_t &config, rope_args_t &args) {
         config.layout = ROPE_LAYOUT_THD;
         args.cu_seqlens = compact_tensor(far_address(2), ROPE_DTYPE_I32, {9});
       }},
      {"sequences and fault", always(Kernel::kTokenSequences), rope::Pairing::kHalf,
       [](rope_config_t &config, rope_args_t &args) {
         config.layout = ROPE_LAYOUT_THD;
         args.cu_seqlens = compact_tensor(far_address(2), ROPE_DTYPE_I64, {9});
         args.fault = compact_tensor(far_address(3), ROPE_DTYPE_I64, {2});
       }},
      {"THD without sequences", computed, rope::Pairing::kHalf,
       [](rope_config_t &config, rope_args_t &) { config.layout = ROPE_LAYOUT_THD; }},
      {"F32 table", table32, rope::Pairing::kHalf,
       [&](rope_config_t &, rope_args_t &args) { args = table(ROPE_DTYPE_F32, 64); }},
      {"F32 table, interleaved", table32, rope::Pairing::kInterleaved,
       [&](rope_config_t &config, rope_args_t &args) {
         config.style = ROPE_STYLE_INTERLEAVED;
         args = table(ROPE_DTYPE_F32, 64);
       }},
      {"F16 table", table16, rope::Pairing::kHalf,
       [&](rope_config_t &, rope_args_t &args) { args = table(ROPE_DTYPE_F16, 64); }},
      {"BF16 table by token", table16, rope::Pairing::kHalf,
       [&](rope_config_t &, rope_args_t &args) {
         args = table(ROPE_DTYPE_BF16, 64);
         args.table_rows = ROPE_TABLE_BY_TOKEN;
       }},
      {"columns of a fused cache", table32, rope::Pairing::kHalf,
       [&](rope_config_t &, rope_args_t &args) {
         args.cos = fake_tensor(far_address(0), ROPE_DTYPE_F32, {64, 64}, {128, 1});
         args.sin = fake_tensor(far_address(0) + 256, ROPE_DTYPE_F32, {64, 64}, {128, 1});
       }},
      {"rows of cosines and of sines apart", always(Kernel::kTokenTable), rope::Pairing::kHalf,
       [&](rope_config_t &, rope_args_t &args) {
         args = table(ROPE_DTYPE_F32, 64);
         args.sin = fake_tensor(far_address(1), ROPE_DTYPE_F32, {64, 64}, {128, 1});
       }},
      {"F32", only_short(computed), rope::Pairing::kHalf,
       [](rope_config_t &config, rope_args_t &) { config.dtype = ROPE_DTYPE_F32; }},
      {"F32 and an F32 table", only_short(table32), rope::Pairing::kHalf,
       [&](rope_config_t &config, rope_args_t &args) {
         config.dtype = ROPE_DTYPE_F32;
         args = table(ROPE_DTYPE_F32, 64);
       }},
      {"tokens closer than heads", with_closer_tokens(computed), rope::Pairing::kHalf,
       [](rope_config_t &config, rope_args_t &) { config.layout = ROPE_LAYOUT_BHSD; }},
      {"tokens closer than heads, by a table", with_closer_tokens(table16), rope::Pairing::kHalf,
       [&](rope_config_t &config, rope_args_t &args) {
         config.layout = ROPE_LAYOUT_BHSD;
         args = table(ROPE_DTYPE_F16, 64);
       }},
      {"batches closer than tokens", computed, rope::Pairing::kHalf,
       [](rope_config_t &config, rope_args_t &) { config.layout = ROPE_LAYOUT_SBHD; }},
      {"F64 table", always(Kernel::kGeneral), rope::Pairing::kHalf,
       [&](rope_config_t &, rope_args_t &args) { args = table(ROPE_DTYPE_F64, 64); }},
      {"table of a column a channel", always(Kernel::kGeneral), rope::Pairing::kHalf,
       [&](rope_config_t &, rope_args_t &args) { args = table(ROPE_DTYPE_F32, 128); }},
      {"columns apart", always(Kernel::kTokenTable), rope::Pairing::kHalf,
       [&](rope_config_t &, rope_args_t &args) {
         args.cos = fake_tensor(far_address(0), ROPE_DTYPE_F32, {64, 64}, {128, 2});
         args.sin = fake_tensor(far_address(0) + 4, ROPE_DTYPE_F32, {64, 64}, {128, 2});
       }},
      {"table and fault", always(Kernel::kTokenTableAxes), rope::Pairing::kHalf,
       [&](rope_config_t &, rope_args_t &args) {
         args = table(ROPE_DTYPE_F32, 64);
         args.fault = compact_tensor(far_address(2), ROPE_DTYPE_I64, {2});
       }},
      {"table and sequences", always(Kernel::kTokenTableSequences), rope::Pairing::kHalf,
       [&](rope_config_t &config, rope_args_t &args) {
         args = table(ROPE_DTYPE_F32, 64);
         config.layout = ROPE_LAYOUT_THD;
         args.cu_seqlens = compact_tensor(far_address(2), ROPE_DTYPE_I32, {9});
       }},
      {"table and several axes", always(Kernel::kTokenTableAxes), rope::Pairing::kHalf,
       [&](rope_config_t &config, rope_args_t &args) {
         args = table(ROPE_DTYPE_F32, 64);
         config.num_axes = 2;
       }},
      {"angles", always(Kernel::kGeneral), rope::Pairing::kHalf,
       [](rope_config_t &, rope_args_t &args) {
         args.angles = compact_tensor(far_address(0), ROPE_DTYPE_F32, {64, 64});
       }},
      {"F64", always(Kernel::kGeneral), rope::Pairing::kHalf,
       [](rope_config_t &config, rope_args_t &) { config.dtype = ROPE_DTYPE_F64; }},
      {"F64 and a table", always(Kernel::kGeneral), rope::Pairing::kHalf,
       [&](rope_config_t &config, rope_args_t &args) {
         config.dtype = ROPE_DTYPE_F64;
         args = table(ROPE_DTYPE_F32, 64);
       }},
      {"blocks", always(Kernel::kToken), rope::Pairing::kHalf,
       [](rope_config_t &config, rope_args_t &) { config.pair_block = 64; }},
      {"blocks and a table", always(Kernel::kTokenTable), rope::Pairing::kHalf,
       [&](rope_config_t &config, rope_args_t &args) {
         config.pair_block = 64;
         args = table(ROPE_DTYPE_F32, 64);
       }},
      {"blocks and sequences", always(Kernel::kTokenSequences), rope::Pairing::kHalf,
       [&](rope_config_t &config, rope_args_t &args) {
         config.pair_block = 64;
         sequences(&config, &args);
       }},
      {"blocks with one vector in each half", always(Kernel::kGeneral), rope::Pairing::kHalf,
       [](rope_config_t &config, rope_args_t &) { config.pair_block = 8; }},
      {"table of columns for several pairs", always(Kernel::kTokenTableAxes), rope::Pairing::kHalf,
       [&](rope_config_t &config, rope_args_t &args) {
         config.num_axes = 2;
         args = table(ROPE_DTYPE_F32, 32);
       }},
      {"channels that no vector holds", always(Kernel::kScattered), rope::Pairing::kHalf,
       [](rope_config_t &config, rope_args_t &) { config.pair_block = 4; }},
      {"an odd offset", always(Kernel::kScattered), rope::Pairing::kInterleaved,
       [](rope_config_t &config, rope_args_t &) {
         config.style = ROPE_STYLE_INTERLEAVED;
         config.rotary_dim = 64;
         config.rotary_offset = 1;
       }},
      {"those on several axes", always(Kernel::kScattered), rope::Pairing::kHalf,
       [](rope_config_t &config, rope_args_t &) { config.pair_block = 4, config.num_axes = 2; }},
      {"those and sequences", always(Kernel::kScattered), rope::Pairing::kHalf,
       [&](rope_config_t &config, rope_args_t &args) {
         config.pair_block = 4;
         sequences(&config, &args);
       }},
      {"those and a table", always(Kernel::kScatteredTable), rope::Pairing::kHalf,
       [&](rope_config_t &config, rope_args_t &args) {
         config.pair_block = 4;
         args = table(ROPE_DTYPE_F16, 64);
       }},
      {"those, a table and sequences", always(Kernel::kScatteredTable), rope::Pairing::kHalf,
       [&](rope_config_t &config, rope_args_t &args) {
         config.pair_block = 4;
         args = table(ROPE_DTYPE_BF16, 64);
         sequences(&config, &args);
       }},
      {"those and a table of a column a channel", always(Kernel::kGeneral), rope::Pairing::kHalf,
       [&](rope_config_t &config, rope_args_t &args) {
         config.pair_block = 4;
         args = table(ROPE_DTYPE_F32, 128);
       }},
      {"those and F64", always(Kernel::kGeneral), rope::Pairing::kInterleaved,
       [](rope_config_t &config, rope_args_t &) {
         config.dtype = ROPE_DTYPE_F64;
         config.style = ROPE_STYLE_INTERLEAVED;
         config.rotary_dim = 64;
         config.rotary_offset = 1;
       }},
      {"another out_style", converted, rope::Pairing::kConverted,
       [](rope_config_t &config, rope_args_t &) { config.out_style = ROPE_STYLE_INTERLEAVED; }},
      {"another out_style and a table", always(Kernel::kGeneral), rope::Pairing::kConverted,
       [&](rope_config_t &config, rope_args_t &args) {
         config.out_style = ROPE_STYLE_INTERLEAVED;
         args = table(ROPE_DTYPE_F32, 64);
       }},
  };
  Scene scene;
  // 4096 vectors of 16 bytes, or twice as many.
  const rope::DeviceInfo small_device = {true, 0, 1, 90, 48 << 10}, medium_device = {true, 0, 10, 90, 48 << 10},
                         large_device = {true, 0, 10000, 90, 48 << 10}, old_device = {true, 0, 10000, 89, 48 << 10};
  for (const auto &feature : features) {
    for (const int variant : {0, 1, 2, 3}) {
      const bool has_flag = variant % 2 != 0;
      batches = 1 + variant / 2;
      rope_config_t config = some_config(ROPE_DTYPE_BF16, 128);
      rope_args_t args = {};
      feature.change(config, args);
      if (has_flag) args = with_flag(args);
      const bool is_thd = config.layout == ROPE_LAYOUT_THD;
      const int64_t width = config.head_dim;
      const auto shape = is_thd ? std::vector<int64_t>{64, 8, width} : std::vector<int64_t>{batches, 64, 8, width};
      set_problem(&scene, config, shape, args);
      INFO(feature.title << ", " << batches << " batches" << (has_flag ? ", programmatic" : ""));
      // Several batches may have become one.
      const bool is_one = scene.problem.batches == 1;
      const Kernels &kernels = feature.kernels;
      CHECK(plan_of(scene, small_device).kernel == (is_one ? kernels.many : kernels.of_batches));
      CHECK(plan_of(scene, medium_device).kernel == (is_one ? kernels.some : kernels.of_batches));
      for (const rope::DeviceInfo &device : {large_device, old_device}) {
        const bool is_late = has_flag && device.compute_capability >= 90;
        const Kernel few = is_late ? late(kernels.few) : kernels.few;
        CHECK(plan_of(scene, device).kernel == (is_one ? few : kernels.of_short_batches));
      }
      for (const rope::DeviceInfo &device : kDevices) {
        const rope::RopePlan plan = plan_of(scene, device);
        CHECK(plan.pairing == feature.pairing);
        CHECK(fault_of(scene, device, plan).empty());
      }
    }
  }
}

TEST_CASE("rows of threads do each piece of work once", "[rope plan]") {
  Scene scene;
  const rope::DeviceInfo device = kDevices[6];
  enum Angles {
    kComputed,
    kAxes,
    kSequences,
    kTable,
    kTableAxes,
    kTableSequences,
    kNumAngles
  };
  const struct {
    rope_style_t style;
    int32_t head_dim, rotary_dim, rotary_offset, pair_block;
    bool has_vectors;
  } heads_of[] = {{ROPE_STYLE_HALF, 128, 0, 0, 0, true},         {ROPE_STYLE_INTERLEAVED, 128, 0, 0, 0, true},
                  {ROPE_STYLE_HALF, 192, 64, 64, 0, true},       {ROPE_STYLE_INTERLEAVED, 88, 32, 40, 0, true},
                  {ROPE_STYLE_HALF, 136, 64, 0, 32, true},       {ROPE_STYLE_INTERLEAVED, 24, 16, 8, 0, true},
                  {ROPE_STYLE_HALF, 1024, 0, 0, 0, true},        {ROPE_STYLE_HALF, 128, 0, 0, 4, false},
                  {ROPE_STYLE_INTERLEAVED, 34, 20, 1, 0, false}, {ROPE_STYLE_HALF, 10, 6, 4, 0, false}};
  const int64_t head_counts[][3] = {{8, 2, 0}, {20, 0, 3}, {0, 9, 0}, {0, 1, 17}, {1, 1, 1}, {24, 8, 8}};
  int of_kernel[kKernels] = {}, part_slowest = 0, several_batches = 0, odd_copies = 0;
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_BF16}) {
    for (const auto &head : heads_of) {
      for (const auto &heads : head_counts) {
        for (int angles = 0; angles < kNumAngles; ++angles) {
          for (const rope_layout_t layout :
               {ROPE_LAYOUT_BSHD, ROPE_LAYOUT_SBHD, ROPE_LAYOUT_BHSD, ROPE_LAYOUT_THD, ROPE_LAYOUT_THD}) {
            for (const bool is_in_place : {true, false}) {
              const bool has_sequences = angles == kSequences || angles == kTableSequences;
              if (has_sequences != (layout == ROPE_LAYOUT_THD)) continue;
              rope_config_t config = some_config(dtype, head.head_dim);
              config.layout = layout;
              config.style = head.style;
              config.rotary_dim = head.rotary_dim;
              config.rotary_offset = head.rotary_offset;
              config.pair_block = head.pair_block;
              if (angles == kAxes || angles == kTableAxes) config.num_axes = 3;
              REQUIRE(rope::make_rope_geometry("rope_desc_create", config, &scene.geometry) == ROPE_STATUS_SUCCESS);
              const bool is_thd = layout == ROPE_LAYOUT_THD;
              set_operands(&scene, layout, dtype, is_thd ? 1 : 2, is_thd ? 5 : 3, heads, head.head_dim, is_in_place);
              if (angles >= kTable) {
                const std::vector<int64_t> shape = {64, scene.geometry.pairs()};
                scene.args.cos = compact_tensor(far_address(0), ROPE_DTYPE_F16, shape);
                scene.args.sin = compact_tensor(far_address(1), ROPE_DTYPE_F16, shape);
              }
              if (has_sequences) scene.args.cu_seqlens = compact_tensor(far_address(2), ROPE_DTYPE_I32, {4});
              const rope_status_t status =
                  rope::make_rope_problem("rope_forward", scene.geometry, scene.args, false, &scene.problem);
              INFO(rope::last_error());
              REQUIRE(status == ROPE_STATUS_SUCCESS);
              const rope::RopePlan plan = plan_of(scene, device);
              INFO(describe(scene) << ": " << describe(plan));
              const std::string fault = fault_of(scene, device, plan) + Launch(scene, plan).run();
              if (!fault.empty()) FAIL(fault);
              ++of_kernel[static_cast<int>(plan.kernel)];
              if (!has_token_rows(plan.kernel)) continue;
              REQUIRE(is_scattered(plan.kernel) == !head.has_vectors);
              part_slowest += plan.rows.is_part_slowest;
              several_batches += scene.problem.batches > 1;
              odd_copies += copied_vectors(scene, 0, plan.vector_elements) % 2;
            }
          }
        }
      }
    }
  }
  for (int kernel = 0; kernel < kKernels; ++kernel) {
    INFO("kernel " << kernel);
    const auto which = static_cast<rope::RopeKernel>(kernel);
    if (has_token_rows(which) && !is_of_long_launch(which)) CHECK(of_kernel[kernel] > 50);
  }
  CHECK(part_slowest > 50);
  CHECK(several_batches > 50);
  CHECK(odd_copies > 50);
}

TEST_CASE("one multiplication divides units by those of a head", "[rope plan]") {
  Random random(6);
  int64_t wrong = 0;
  // As long as no unit of a token times the divisor takes more than 32 bits.
  for (uint32_t divisor = 2; divisor <= 1024; ++divisor) {
    const uint32_t last = UINT32_MAX / divisor - 1;
    const auto check = [&](uint32_t n) { wrong += multiply_by_reciprocal(n, divisor) != n / divisor; };
    for (uint32_t below = 0; below <= 2 * divisor; ++below) check(last - below);
    for (uint32_t n = 0; n <= 2 * divisor; ++n) check(n);
    for (int i = 0; i < 200; ++i) {
      const auto multiple = static_cast<uint32_t>(random.below(last / divisor)) * divisor;
      for (const uint32_t n : {multiple, multiple + 1, multiple + divisor - 1}) check(n);
    }
  }
  CHECK(wrong == 0);
  // By one, and far beyond, it does not.
  CHECK(multiply_by_reciprocal(7, 1) != 7);
  CHECK(multiply_by_reciprocal(UINT32_MAX / 641 * 641 - 1, 641) == UINT32_MAX / 641 - 1);
  CHECK(multiply_by_reciprocal(UINT32_MAX / 643 * 643 - 1, 643) != UINT32_MAX / 643 - 1);
}

TEST_CASE("rows of threads need tokens with enough units", "[rope plan]") {
  Scene scene;
  rope_args_t table = {};
  table.cos = compact_tensor(far_address(0), ROPE_DTYPE_F32, {64, 64});
  table.sin = compact_tensor(far_address(1), ROPE_DTYPE_F32, {64, 64});
  for (int64_t heads = 3; heads < 12; ++heads) {
    const bool is_enough = heads * 8 >= kTuning.min_row_units;
    rope_config_t config = some_config(ROPE_DTYPE_BF16, 128);
    const std::vector<int64_t> shape = {1, 4096, heads, 128};
    set_problem(&scene, config, shape);
    CHECK(plan_of(scene, kDevices[6]).kernel == (is_enough ? rope::RopeKernel::kLong : rope::RopeKernel::kShared));
    set_problem(&scene, config, shape, table);
    CHECK(plan_of(scene, kDevices[6]).kernel ==
          (is_enough ? rope::RopeKernel::kLongTable32 : rope::RopeKernel::kTable32));
    // With as many units in wider elements.
    config.dtype = ROPE_DTYPE_F32;
    config.rotary_dim = 64;
    set_problem(&scene, config, shape);
    CHECK(plan_of(scene, kDevices[6]).kernel == (is_enough ? rope::RopeKernel::kToken : rope::RopeKernel::kShared));
    rope_args_t narrow_table = {};
    narrow_table.cos = compact_tensor(far_address(0), ROPE_DTYPE_F32, {64, 32});
    narrow_table.sin = compact_tensor(far_address(1), ROPE_DTYPE_F32, {64, 32});
    set_problem(&scene, config, shape, narrow_table);
    CHECK(plan_of(scene, kDevices[6]).kernel ==
          (is_enough ? rope::RopeKernel::kTokenTable : rope::RopeKernel::kTable32));
    config = some_config(ROPE_DTYPE_BF16, 128);
    // Positions that the kernels without a barrier do not add.
    rope_args_t starts = table;
    starts.start_positions = compact_tensor(far_address(2), ROPE_DTYPE_I64, {1});
    set_problem(&scene, config, shape, starts);
    CHECK(plan_of(scene, kDevices[6]).kernel == rope::RopeKernel::kTokenTable);
    // What no simpler kernel has.
    config.num_axes = 2;
    set_problem(&scene, config, shape);
    CHECK(plan_of(scene, kDevices[6]).kernel == rope::RopeKernel::kTokenAxes);
    set_problem(&scene, config, shape, table);
    CHECK(plan_of(scene, kDevices[6]).kernel == rope::RopeKernel::kTokenTableAxes);
    config.num_axes = 0;
    config.pair_block = 32;
    set_problem(&scene, config, shape);
    CHECK(plan_of(scene, kDevices[6]).kernel == rope::RopeKernel::kToken);
  }
}

TEST_CASE("rows of threads need strides of 32 bits, in bytes", "[rope plan]") {
  Scene scene;
  const int64_t largest = INT32_MAX / 16 * 8;  // in elements of two bytes, whole vectors
  using Kernel = rope::RopeKernel;
  // What has other kernels where a tensor and its output have other strides has those of 32 bits, too.
  const struct {
    Kernel kernel, with_other_strides, with_large_strides;
    int64_t batches, tokens, heads;
    bool has_axes, has_table;
    rope::DeviceInfo device;
  } cases[] = {{Kernel::kToken, Kernel::kToken, Kernel::kShared, 2, 64, 8, false, false, kDevices[6]},
               {Kernel::kTokenAxes, Kernel::kTokenAxes, Kernel::kGeneral, 2, 64, 8, true, false, kDevices[6]},
               {Kernel::kTokenTable, Kernel::kTokenTable, Kernel::kGeneral, 2, 64, 8, false, true, kDevices[6]},
               {Kernel::kFlat, Kernel::kFlat, Kernel::kShared, 1, 200, 1, false, false, kDevices[6]},
               {Kernel::kTable32, Kernel::kTable32, Kernel::kGeneral, 2, 64, 1, false, true, kDevices[6]},
               {Kernel::kLong, Kernel::kToken, Kernel::kShared, 1, 64, 8, false, false, kDevices[6]},
               {Kernel::kLongTable32, Kernel::kTokenTable, Kernel::kGeneral, 1, 64, 8, false, true, kDevices[6]},
               {Kernel::kShortWarp, Kernel::kToken, Kernel::kShared, 1, 64, 8, false, false, kDevices[4]},
               {Kernel::kShort, Kernel::kToken, Kernel::kShared, 1, 12, 8, false, false, kDevices[6]},
               {Kernel::kShortTable32, Kernel::kTokenTable, Kernel::kGeneral, 1, 64, 8, false, true, kDevices[4]}};
  for (const auto &one : cases) {
    for (const bool is_in_place : {true, false}) {
      for (const bool is_in : {true, false}) {
        for (const bool is_out : {true, false}) {
          if (is_in_place ? !is_in || !is_out : !is_in && !is_out) continue;
          const std::vector<int64_t> shape = {one.batches, one.tokens, one.heads, 128};
          rope_config_t config = some_config(ROPE_DTYPE_BF16, 128);
          config.num_axes = one.has_axes ? 2 : 1;
          const auto kernel_with = [&](int axis, int64_t stride) {
            rope_args_t args = {};
            if (!is_in_place) args.q_out = compact_tensor(uintptr_t{3} << 61, ROPE_DTYPE_BF16, shape);
            if (one.has_table) {
              args.cos = compact_tensor(far_address(0), ROPE_DTYPE_F32, {64, 64});
              args.sin = compact_tensor(far_address(1), ROPE_DTYPE_F32, {64, 64});
            }
            set_problem(&scene, config, shape, args);
            rope::RotatedTensor &q = scene.problem.tensor[0];
            // Batches that follow each other would have other kernels.
            q.in_stride[rope::kBatch] += 1024;
            q.out_stride[rope::kBatch] += 1024;
            if (is_out) q.out_stride[axis] = stride;
            if (is_in) q.in_stride[axis] = stride;
            const rope::RopePlan plan = plan_of(scene, one.device);
            INFO(describe(scene) << ": " << describe(plan));
            const std::string fault = fault_of(scene, one.device, plan) + Launch(scene, plan).run();
            CHECK(fault == "");
            return plan.kernel;
          };
          for (const int axis : {rope::kToken, rope::kHead}) {
            for (const int64_t stride : {int64_t{0}, int64_t{-128}, largest, -largest}) {
              // Those of threads without a head must not lead down, and tokens closer than heads have their own kernel.
              const int64_t token_stride = axis == rope::kToken ? stride : 128 * one.heads;
              const int64_t head_stride = axis == rope::kHead ? stride : 128;
              const bool is_upwards = head_stride >= 0 || one.kernel == one.with_other_strides;
              const bool is_close = std::abs(token_stride) < std::abs(head_stride);
              const Kernel same = one.kernel == Kernel::kLong && is_close ? Kernel::kLongBatches : one.kernel;
              const bool is_same = is_in && is_out && is_upwards;
              CHECK(kernel_with(axis, stride) == (is_same ? same : one.with_other_strides));
            }
            for (const int64_t stride : {largest + 8, -largest - 8, int64_t{1} << 31, int64_t{1} << 50}) {
              CHECK(kernel_with(axis, stride) == one.with_large_strides);
            }
          }
          for (const int64_t stride : {int64_t{0}, largest + 8, -(int64_t{1} << 50)}) {
            CHECK(kernel_with(rope::kBatch, stride) == one.kernel);
          }
        }
      }
    }
  }
}

TEST_CASE("short launches need one batch, and long ones, too, one stride of what lies twice", "[rope plan]") {
  Scene scene;
  using Kernel = rope::RopeKernel;
  for (const int variant : {0, 1, 2, 3}) {
    const bool has_table = variant % 2 != 0, is_long = variant >= 2;
    const Kernel few = is_long ? (has_table ? Kernel::kLongTable16 : Kernel::kLong)
                               : (has_table ? Kernel::kShortTable16 : Kernel::kShortWarp);
    const Kernel other = has_table ? Kernel::kTokenTable : Kernel::kToken;
    const Kernel of_batches = !is_long ? other : has_table ? Kernel::kLongTable16 : Kernel::kLongBatches;
    const rope::DeviceInfo device = is_long ? kDevices[6] : kH200;
    const int64_t tokens = is_long ? 24 : 7;
    const auto kernel_with = [&](int64_t batches, const std::function<void(rope::RopeProblem *)> &change) {
      rope_args_t args = {};
      const std::vector<int64_t> shape = {batches, tokens, 8, 128}, k_shape = {batches, tokens, 2, 128};
      args.q_out = compact_tensor(uintptr_t{3} << 60, ROPE_DTYPE_BF16, shape);
      args.k = compact_tensor(uintptr_t{4} << 60, ROPE_DTYPE_BF16, k_shape);
      args.k_out = compact_tensor(uintptr_t{5} << 60, ROPE_DTYPE_BF16, k_shape);
      args.v = compact_tensor(uintptr_t{6} << 60, ROPE_DTYPE_BF16, k_shape);
      if (has_table) {
        args.cos = compact_tensor(far_address(0), ROPE_DTYPE_F16, {64, 64});
        args.sin = compact_tensor(far_address(1), ROPE_DTYPE_F16, {64, 64});
      }
      args.positions = compact_tensor(far_address(2), ROPE_DTYPE_I64, {tokens});
      set_problem(&scene, some_config(ROPE_DTYPE_BF16, 128), shape, args);
      change(&scene.problem);
      const rope::RopePlan plan = plan_of(scene, device);
      INFO(describe(scene) << ": " << describe(plan));
      CHECK(plan.vector_elements == (is_long ? 8 : 4));
      const std::string fault = fault_of(scene, device, plan) + Launch(scene, plan).run();
      CHECK(fault == "");
      return plan.kernel;
    };
    const auto nothing = [](rope::RopeProblem *) {};
    CHECK(kernel_with(1, nothing) == few);
    CHECK(kernel_with(2, nothing) == of_batches);
    // Batches that lie apart, or have positions or rows of their own.
    for (int i = 0; i < 3; ++i) {
      for (const int64_t more : {-8, 8}) {
        CHECK(kernel_with(2, [&](rope::RopeProblem *problem) { problem->tensor[i].in_stride[rope::kBatch] += more; }) ==
              other);
        CHECK(kernel_with(2, [&](rope::RopeProblem *problem) {
                problem->tensor[i].out_stride[rope::kBatch] += more;
              }) == other);
        CHECK(kernel_with(2, [&](rope::RopeProblem *problem) {
                problem->tensor[i].in_stride[rope::kBatch] += more;
                problem->tensor[i].out_stride[rope::kBatch] += more;
              }) == other);
      }
    }
    CHECK(kernel_with(2, [](rope::RopeProblem *problem) { problem->positions.batch_stride = 1; }) == other);
    if (has_table) {
      for (const auto member : {&rope::AngleTable::cos, &rope::AngleTable::sin}) {
        CHECK(kernel_with(2, [&](rope::RopeProblem *problem) { (problem->table.*member).batch_stride = 64; }) == other);
      }
    }
    for (int i = 0; i < 3; ++i) {
      for (const int axis : {rope::kBatch, rope::kToken, rope::kHead}) {
        for (const int64_t more : {-8, 8}) {
          const Kernel apart = axis == rope::kBatch ? few : other;
          CHECK(kernel_with(1, [&](rope::RopeProblem *problem) { problem->tensor[i].in_stride[axis] += more; }) ==
                apart);
          CHECK(kernel_with(1, [&](rope::RopeProblem *problem) { problem->tensor[i].out_stride[axis] += more; }) ==
                apart);
          CHECK(kernel_with(1, [&](rope::RopeProblem *problem) {
                  problem->tensor[i].in_stride[axis] += more;
                  problem->tensor[i].out_stride[axis] += more;
                }) == few);
        }
      }
    }
    // Tokens may follow each other either way, heads only upwards, or be one and the same.
    for (int i = 0; i < 3; ++i) {
      for (const int axis : {rope::kToken, rope::kHead}) {
        for (const int64_t factor : {-1, 0}) {
          const Kernel expected = axis == rope::kHead && factor < 0 ? other : few;
          if (is_long && i == 0 && axis == rope::kToken && factor == 0 && !has_table) continue;  // closer than heads
          CHECK(kernel_with(1, [&](rope::RopeProblem *problem) {
                  problem->tensor[i].in_stride[axis] *= factor;
                  problem->tensor[i].out_stride[axis] *= factor;
                }) == expected);
        }
      }
    }
    // In bytes, of positions of 64 bits.
    const int64_t most = INT32_MAX / 8;
    for (const bool is_64_bit : {false, true}) {
      const auto with_stride = [&](int64_t stride) {
        return kernel_with(1, [&](rope::RopeProblem *problem) {
          problem->positions.is_64_bit = is_64_bit;
          problem->positions.token_stride = stride;
        });
      };
      for (const int64_t stride : {int64_t{0}, int64_t{-1}, most, -most}) CHECK(with_stride(stride) == few);
      for (const int64_t stride : {most + 1, -most - 1, int64_t{1} << 32, -(int64_t{1} << 50)}) {
        CHECK(with_stride(stride) == other);
      }
    }
    // That of batches is never used.
    CHECK(kernel_with(1, [&](rope::RopeProblem *problem) { problem->positions.batch_stride = most + 1; }) == few);
    if (!has_table) continue;
    // Whole vectors, too.
    const Kernel by_vectors_of_8 = is_long ? other : few;
    CHECK(kernel_with(1, [](rope::RopeProblem *problem) {
            problem->table.cos.row_stride = problem->table.sin.row_stride = 60;
          }) == by_vectors_of_8);
    for (const auto member : {&rope::AngleTable::cos, &rope::AngleTable::sin}) {
      CHECK(kernel_with(1, [&](rope::RopeProblem *problem) { (problem->table.*member).column_stride = 2; }) == other);
    }
    for (const int64_t stride : {72, 64, 56, -64, 0}) {
      CHECK(kernel_with(1, [&](rope::RopeProblem *problem) { problem->table.cos.row_stride = stride; }) ==
            (stride == 64 ? few : other));
      CHECK(kernel_with(1, [&](rope::RopeProblem *problem) { problem->table.sin.row_stride = stride; }) ==
            (stride == 64 ? few : other));
      CHECK(kernel_with(1, [&](rope::RopeProblem *problem) {
              problem->table.cos.row_stride = problem->table.sin.row_stride = stride;
            }) == few);
    }
  }
}

TEST_CASE("short launches with computed angles have heads of so many pairs", "[rope plan]") {
  Scene scene;
  using Kernel = rope::RopeKernel;
  const int32_t most = 2 * rope::kMaxShortPairs;
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_BF16}) {
    const int32_t step = 16 / static_cast<int32_t>(oracle::element_size(dtype));  // pairs in vectors of 8 bytes
    for (const rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
      for (const int32_t width : {most - step, most, most + step, 2 * most}) {
        rope_config_t config = some_config(dtype, width);
        config.style = style;
        // Few vectors, and more.
        set_problem(&scene, config, {1, 16, 8, width});
        for (const rope::DeviceInfo &device :
             {rope::DeviceInfo{true, 0, 100, 90, 48 << 10}, {true, 0, 3, 90, 48 << 10}}) {
          const rope::RopePlan plan = plan_of(scene, device);
          INFO(describe(scene) << ": " << describe(plan));
          const Kernel few = device.multiprocessors == 100 ? Kernel::kShortWarp : Kernel::kShort;
          CHECK(plan.kernel == (width <= most ? few : Kernel::kToken));
          const std::string fault = fault_of(scene, device, plan) + Launch(scene, plan).run();
          CHECK(fault == "");
        }
      }
    }
  }
}

TEST_CASE("long launches have types of 16 bits, whole vectors, and heads of so many pairs", "[rope plan]") {
  Scene scene;
  using Kernel = rope::RopeKernel;
  enum Angles {
    kComputed,
    kFloatTable,
    kHalfTable,
    kNumAngles
  };
  const Kernel of_long[] = {Kernel::kLong, Kernel::kLongTable32, Kernel::kLongTable16};
  const Kernel of_others[] = {Kernel::kToken, Kernel::kTokenTable, Kernel::kTokenTable};
  const rope_dtype_t of_table[] = {{}, ROPE_DTYPE_F32, ROPE_DTYPE_BF16};
  const int32_t most = 2 * rope::kMaxShortPairs;
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (const rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
      for (const int32_t width : {32, 64, 80, most - 8, most - 16, most, most + 8, most + 16, 2 * most}) {
        for (int angles = 0; angles < kNumAngles; ++angles) {
          for (const bool has_other_channels : {false, true}) {
            rope_config_t config = some_config(dtype, has_other_channels ? width + 16 : width);
            config.rotary_dim = width;
            config.style = style;
            rope_args_t args = {};
            if (angles != kComputed) {
              args.cos = compact_tensor(far_address(0), of_table[angles], {64, width / 2});
              args.sin = compact_tensor(far_address(1), of_table[angles], {64, width / 2});
            }
            for (const int multiprocessors : {1, 10000}) {
              const rope::DeviceInfo device = {true, 0, multiprocessors, 90, 48 << 10};
              set_problem(&scene, config, {1, 31, 32, config.head_dim}, args);
              const rope::RopePlan plan = plan_of(scene, device);
              INFO(describe(scene) << ": " << describe(plan));
              const bool is_wide = oracle::element_size(dtype) * width / 2 % 16 == 0;
              const bool is_long = dtype != ROPE_DTYPE_F32 && is_wide && width <= most && multiprocessors == 1;
              CHECK((plan.kernel == of_long[angles]) == is_long);
              if (multiprocessors == 1 && is_wide && !is_long) CHECK(plan.kernel == of_others[angles]);
              CHECK(fault_of(scene, device, plan) == "");
              if (multiprocessors == 1) CHECK(Launch(scene, plan).run() == "");
            }
          }
        }
      }
    }
  }
}

TEST_CASE("rows of threads are as long as heads have pairs where whole warps leave many idle", "[rope plan]") {
  Scene scene;
  using Kernel = rope::RopeKernel;
  struct Case {
    rope_dtype_t dtype;
    int32_t head_dim;
    int64_t heads;
    uint32_t threads, rows, parts;
  };
  const auto check = [&](const Case &one, const rope_config_t &config, int64_t batches, const rope_args_t &args,
                         Kernel kernel) {
    std::vector<int64_t> shape = {batches, 43, one.heads, one.head_dim};
    if (config.layout == ROPE_LAYOUT_THD) shape.erase(shape.begin());
    set_problem(&scene, config, shape, args);
    const rope::RopePlan plan = plan_of(scene, kDevices[6]);
    INFO(describe(scene) << ": " << describe(plan));
    CHECK(plan.kernel == kernel);
    CHECK(plan.threads == one.threads);
    CHECK(plan.thread_rows == one.rows);
    CHECK(plan.tokens_per_block == one.rows);
    CHECK(plan.blocks_per_token == one.parts);
    CHECK(plan.grid_x == (scene.num_tokens() + one.rows - 1) / one.rows * one.parts);
    CHECK(fault_of(scene, kDevices[6], plan) == "");
    CHECK(Launch(scene, plan).run() == "");
  };
  const auto some_tables = [](int32_t head_dim) {
    rope_args_t args = {};
    args.cos = compact_tensor(far_address(0), ROPE_DTYPE_BF16, {64, head_dim / 2});
    args.sin = compact_tensor(far_address(1), ROPE_DTYPE_BF16, {64, head_dim / 2});
    return args;
  };
  const rope_dtype_t f32 = ROPE_DTYPE_F32, bf16 = ROPE_DTYPE_BF16;
  const rope_args_t starts = [] {
    rope_args_t args = {};
    args.start_positions = compact_tensor(far_address(2), ROPE_DTYPE_I64, {1});
    return args;
  }();
  const Case cases[] = {
      // 200 units: 256 threads, more than 240.
      {bf16, 80, 40, 40, 3, 5},
      {f32, 80, 20, 40, 3, 5},
      // 195, 205 and 240, which rows of 40 do not fill, or need not.
      {bf16, 80, 39, 128, 1, 2},
      {bf16, 80, 41, 128, 1, 2},
      {bf16, 80, 48, 128, 1, 2},
      // 160 in rows of 160 threads, and 120 in 128.
      {bf16, 80, 32, 160, 1, 1},
      {bf16, 80, 24, 128, 1, 1},
      // 208 units: 249.6 threads are the most. 216: 259.2.
      {f32, 104, 16, 52, 2, 4},
      {f32, 72, 24, 128, 1, 2},
      // Too few pairs for a warp, and too many for two rows of a block.
      {f32, 40, 40, 128, 1, 2},
      {f32, 160, 10, 128, 1, 2},
  };
  for (const Case &one : cases) {
    const bool is_wide = one.dtype == bf16;
    rope_config_t config = some_config(one.dtype, one.head_dim);
    for (const rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
      config.style = style;
      check(one, config, 1, {}, is_wide ? Kernel::kLong : Kernel::kToken);
      check(one, config, 1, some_tables(one.head_dim), is_wide ? Kernel::kLongTable16 : Kernel::kTokenTable);
      check(one, config, 1, starts, Kernel::kToken);
      rope_args_t both = some_tables(one.head_dim);
      both.start_positions = starts.start_positions;
      check(one, config, 1, both, Kernel::kTokenTable);
      rope_args_t counted = some_tables(one.head_dim);
      counted.fault = compact_tensor(far_address(3), ROPE_DTYPE_I64, {2});
      check(one, config, 1, counted, Kernel::kTokenTableAxes);
      rope_config_t axes = config;
      axes.num_axes = 2;
      check(one, axes, 1, {}, Kernel::kTokenAxes);
    }
  }
  // 104 units, for which 128 threads are too many, and 108, for which they are not, with vectors of 8 bytes.
  const Case narrow = {f32, 104, 4, 52, 2, 2}, narrow_uncut = {f32, 72, 6, 128, 1, 1};
  for (const Case &one : {narrow, narrow_uncut}) {
    rope_config_t config = some_config(f32, one.head_dim);
    config.num_axes = 2;
    set_problem(&scene, config, {1, 3, one.heads, one.head_dim});
    const rope::RopePlan plan = plan_of(scene, kH200);
    INFO(describe(scene) << ": " << describe(plan));
    CHECK(plan.vector_elements == 2);
    CHECK(plan.threads == one.threads);
    CHECK(plan.thread_rows == one.rows);
    CHECK(plan.blocks_per_token == one.parts);
    CHECK(fault_of(scene, kH200, plan) == "");
    CHECK(Launch(scene, plan).run() == "");
  }
  // Whole warps look for the sequences of their tokens, and tokens that lie closer than heads have rows of their own.
  const Case warps = {bf16, 80, 40, 128, 1, 2};
  rope_config_t config = some_config(bf16, 80);
  config.layout = ROPE_LAYOUT_THD;
  rope_args_t sequences = {};
  sequences.cu_seqlens = compact_tensor(far_address(2), ROPE_DTYPE_I32, {9});
  check(warps, config, 1, sequences, Kernel::kTokenSequences);
  rope_args_t sequences_by_table = some_tables(80);
  sequences_by_table.cu_seqlens = sequences.cu_seqlens;
  check(warps, config, 1, sequences_by_table, Kernel::kTokenTableSequences);
  config.layout = ROPE_LAYOUT_BHSD;
  set_problem(&scene, config, {1, 40, 43, 80});
  const rope::RopePlan plan = plan_of(scene, kDevices[6]);
  CHECK(plan.kernel == Kernel::kLongBatches);
  CHECK(plan.threads == kTuning.inner_token_row_threads);
  CHECK(fault_of(scene, kDevices[6], plan) == "");
}

TEST_CASE("long launches do each piece of work once", "[rope plan]") {
  Scene scene;
  const struct {
    rope_style_t style;
    int32_t head_dim, rotary_dim, rotary_offset;
  } heads_of[] = {{ROPE_STYLE_HALF, 128, 0, 0},   {ROPE_STYLE_INTERLEAVED, 128, 0, 0},
                  {ROPE_STYLE_HALF, 192, 64, 64}, {ROPE_STYLE_INTERLEAVED, 88, 32, 40},
                  {ROPE_STYLE_HALF, 80, 0, 0},    {ROPE_STYLE_INTERLEAVED, 96, 80, 16}};
  const int64_t head_counts[][3] = {{8, 2, 0},  {20, 0, 3}, {0, 29, 0}, {0, 1, 17},
                                    {32, 4, 4}, {41, 8, 8}, {8, 0, 0},  {9, 0, 7}};
  const rope_dtype_t of_table[] = {{}, ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16};
  int of_kernel[kKernels] = {}, several_parts[kKernels] = {}, several_rows[kKernels] = {}, cut_warps[kKernels] = {};
  int several_tensors = 0, idle_rows = 0, threads_behind_heads = 0, gapped_rows = 0, several_batches = 0;
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (const auto &head : heads_of) {
      for (const auto &heads : head_counts) {
        for (const rope_dtype_t table : of_table) {
          const struct {
            rope_layout_t layout;
            int64_t batches;
            bool has_other_out_style;
          } layouts[] = {{ROPE_LAYOUT_BSHD, 1, false}, {ROPE_LAYOUT_SBHD, 3, false}, {ROPE_LAYOUT_THD, 1, false},
                         {ROPE_LAYOUT_BSHD, 3, false}, {ROPE_LAYOUT_BHSD, 1, false}, {ROPE_LAYOUT_BHSD, 2, false},
                         {ROPE_LAYOUT_BSHD, 3, true},  {ROPE_LAYOUT_BHSD, 1, true},  {ROPE_LAYOUT_SBHD, 2, true},
                         {ROPE_LAYOUT_THD, 1, true}};
          for (const auto &[layout, batches, has_other_out_style] : layouts) {
            for (const bool is_in_place : {true, false}) {
              rope_config_t config = some_config(dtype, head.head_dim);
              config.layout = layout;
              config.style = head.style;
              config.rotary_dim = head.rotary_dim;
              config.rotary_offset = head.rotary_offset;
              if (has_other_out_style) config.out_style = oracle::other_style(head.style);
              REQUIRE(rope::make_rope_geometry("rope_desc_create", config, &scene.geometry) == ROPE_STATUS_SUCCESS);
              const int64_t units = (heads[0] + heads[1] + heads[2]) * scene.geometry.pairs() / 8;
              const int64_t tokens = kTuning.max_short_table_vectors / (units * batches) + 2;
              set_operands(&scene, layout, dtype, batches, tokens, heads, head.head_dim, is_in_place);
              const bool has_table = table != rope_dtype_t{};
              if (has_table) {
                const std::vector<int64_t> shape = {64, scene.geometry.pairs()};
                scene.args.cos = compact_tensor(far_address(0), table, shape);
                scene.args.sin = compact_tensor(far_address(1), table, shape);
              }
              const rope_status_t status =
                  rope::make_rope_problem("rope_forward", scene.geometry, scene.args, false, &scene.problem);
              INFO(rope::last_error());
              REQUIRE(status == ROPE_STATUS_SUCCESS);
              const rope::RopePlan plan = plan_of(scene, kDevices[6]);
              INFO(describe(scene) << ": " << describe(plan));
              const bool has_copies = !is_in_place && head.rotary_dim != 0;
              // Batches of SBHD, and of BHSD but from tables, are heads.
              const bool has_merged = layout == ROPE_LAYOUT_SBHD || (layout == ROPE_LAYOUT_BHSD && !has_table);
              const bool has_rows = units * (has_merged ? batches : 1) >= kTuning.min_row_units &&
                                    !(layout == ROPE_LAYOUT_BHSD && has_table && batches > 1);
              const bool is_cut = scene.geometry.pairs() % 3 == 0 || scene.geometry.pairs() % 5 == 0;
              const bool has_general = has_other_out_style && (has_table || is_cut);
              if (is_of_long_launch(plan.kernel) != (has_rows && !has_copies && !has_general)) FAIL("kernel");
              const std::string fault = fault_of(scene, kDevices[6], plan) + Launch(scene, plan).run();
              if (!fault.empty()) FAIL(fault);
              const auto kernel = static_cast<int>(plan.kernel);
              ++of_kernel[kernel];
              several_parts[kernel] += plan.blocks_per_token > 1;
              several_rows[kernel] += plan.thread_rows > 1;
              cut_warps[kernel] += plan.threads % 32 != 0;
              if (!is_of_long_launch(plan.kernel)) continue;
              several_tensors += heads[0] > 0 && heads[1] > 0 && heads[2] > 0;
              idle_rows += tokens % plan.thread_rows != 0;
              threads_behind_heads += plan.blocks_per_token * plan.threads > plan.units.per_token;
              gapped_rows += plan.threads == kTuning.gapped_row_threads && has_gapped_rows(scene, plan);
              several_batches += scene.problem.batches > 1;
            }
          }
        }
      }
    }
  }
  for (int kernel = 0; kernel < kKernels; ++kernel) {
    INFO("kernel " << kernel);
    if (!is_of_long_launch(static_cast<rope::RopeKernel>(kernel))) continue;
    CHECK(of_kernel[kernel] > 100);
    CHECK(several_parts[kernel] > 50);
    CHECK(several_rows[kernel] > 20);
  }
  CHECK(cut_warps[static_cast<int>(rope::RopeKernel::kLong)] > 5);
  CHECK(several_tensors > 100);
  CHECK(idle_rows > 20);
  CHECK(threads_behind_heads > 100);
  CHECK(gapped_rows > 100);
  CHECK(several_batches > 100);
}

TEST_CASE("long launches have as many batches as the grid's second axis", "[rope plan]") {
  Scene scene;
  for (const int64_t more : {0, 1}) {
    set_problem(&scene, ROPE_DTYPE_BF16, kLargestGridY + more, 3, 8, 128);
    const rope::RopePlan plan = plan_of(scene, kH200);
    INFO(describe(scene) << ": " << describe(plan));
    CHECK(plan.kernel == (more == 0 ? rope::RopeKernel::kLongBatches : rope::RopeKernel::kToken));
    CHECK(fault_of(scene, kH200, plan) == "");
  }
}

TEST_CASE("one multiplication divides blocks of the largest long launches by the parts of a token", "[rope plan]") {
  Scene scene;
  Random random(8);
  int several_rows = 0, divided = 0;
  int64_t wrong = 0;
  for (const int32_t head_dim : {32, 64, 80, 128}) {
    for (int64_t heads = 4; heads < 9000; heads += 1 + heads / 64) {
      const int64_t units = heads * head_dim / 16, warps = units / 32 + 1;
      if (units < kTuning.min_row_units) continue;
      set_problem(&scene, ROPE_DTYPE_BF16, 1, UINT32_MAX / (warps * warps), heads, head_dim);
      const rope::RopePlan plan = plan_of(scene, kH200);
      INFO(describe(scene) << ": " << describe(plan));
      const std::string fault = fault_of(scene, kH200, plan);
      if (!fault.empty()) FAIL(fault);
      REQUIRE(is_of_long_launch(plan.kernel));
      several_rows += plan.blocks_per_token > 1 && plan.thread_rows > 1;
      const uint32_t parts = plan.blocks_per_token, last = plan.grid_x - 1;
      if (parts == 1) continue;
      ++divided;
      const auto check = [&](uint32_t n) { wrong += n <= last && multiply_by_reciprocal(n, parts) != n / parts; };
      for (uint32_t n = 0; n <= 2 * parts; ++n) check(n);
      for (uint32_t below = 0; below <= std::min(2 * parts, last); ++below) check(last - below);
      for (int i = 0; i < 1000; ++i) {
        const auto multiple = static_cast<uint32_t>(random.below(last / parts + 1)) * parts;
        for (const uint32_t n : {multiple, multiple + 1, multiple + parts - 1}) check(n);
      }
    }
  }
  CHECK(wrong == 0);
  CHECK(several_rows > 0);
  CHECK(divided > 200);
}

TEST_CASE("rows of threads need heads that are cut alike, into several units", "[rope plan]") {
  Scene scene;
  const auto kernel_of = [&](const rope_config_t &config, const int64_t(&heads)[2], bool copies_q, bool copies_k) {
    rope_args_t args = {};
    const std::vector<int64_t> q_shape = {1, 256, heads[0], config.head_dim};
    const std::vector<int64_t> k_shape = {1, 256, heads[1], config.head_dim};
    args.k = compact_tensor(uintptr_t{2} << 61, config.dtype, k_shape);
    if (copies_q) args.q_out = compact_tensor(uintptr_t{3} << 61, config.dtype, q_shape);
    if (copies_k) args.k_out = compact_tensor(uintptr_t{5} << 60, config.dtype, k_shape);
    set_problem(&scene, config, q_shape, args);
    const rope::RopePlan plan = plan_of(scene, kDevices[6]);
    INFO(describe(scene) << ": " << describe(plan));
    const std::string fault = fault_of(scene, kDevices[6], plan) + Launch(scene, plan).run();
    CHECK(fault == "");
    return plan.kernel;
  };
  const rope::RopeKernel token = rope::RopeKernel::kToken, shared = rope::RopeKernel::kShared;
  const rope::RopeKernel without_copies = rope::RopeKernel::kLong;
  rope_config_t config = some_config(ROPE_DTYPE_BF16, 128);
  for (const bool copies_q : {false, true}) {
    for (const bool copies_k : {false, true}) {
      // Whole heads have nothing to copy.
      config.rotary_dim = 128;
      CHECK(kernel_of(config, {16, 4}, copies_q, copies_k) == without_copies);
      config.rotary_dim = 64;
      const rope::RopeKernel alike = copies_q || copies_k ? token : without_copies;
      CHECK(kernel_of(config, {16, 4}, copies_q, copies_k) == (copies_q == copies_k ? alike : shared));
      // Who has no heads does not count.
      CHECK(kernel_of(config, {16, 0}, copies_q, copies_k) == alike);
      CHECK(kernel_of(config, {0, 16}, copies_q, copies_k) == alike);
    }
  }
  config.rotary_dim = 64;
  config.num_axes = 2;
  CHECK(kernel_of(config, {16, 4}, true, false) == rope::RopeKernel::kGeneral);
  // One unit a head, and one half of a block.
  config = some_config(ROPE_DTYPE_BF16, 16);
  CHECK(kernel_of(config, {64, 8}, false, false) == shared);
  config.style = ROPE_STYLE_INTERLEAVED;
  CHECK(kernel_of(config, {64, 8}, false, false) == shared);
  config.head_dim = 32;
  config.rotary_dim = 16;
  CHECK(kernel_of(config, {64, 8}, true, true) == token);
  config.style = ROPE_STYLE_HALF;
  CHECK(kernel_of(config, {64, 8}, true, true) == shared);
  // Single pairs of heads of two channels.
  config = some_config(ROPE_DTYPE_BF16, 2);
  CHECK(kernel_of(config, {64, 8}, false, false) == rope::RopeKernel::kGeneral);
  config.head_dim = 4;
  CHECK(kernel_of(config, {64, 8}, false, false) == rope::RopeKernel::kScattered);
  CHECK(kernel_of(config, {0, 9}, false, false) == rope::RopeKernel::kScattered);
}

TEST_CASE("rows of threads need tokens that one grid holds", "[rope plan]") {
  Scene scene;
  for (const bool has_closer_tokens : {false, true}) {
    const auto plan_with = [&](rope_dtype_t dtype, int64_t tokens, int64_t heads, int32_t head_dim) {
      set_problem(&scene, some_config(dtype, head_dim), {1, tokens, heads, head_dim});
      // As in BHSD, but that heads so far apart had strides of more than 32 bits.
      int64_t *const strides[] = {scene.problem.tensor[0].in_stride, scene.problem.tensor[0].out_stride};
      for (int64_t *stride : strides) {
        if (has_closer_tokens) std::swap(stride[rope::kToken], stride[rope::kHead]);
      }
      const rope::RopePlan plan = plan_of(scene, kDevices[4]);
      INFO(describe(scene) << ": " << describe(plan));
      CHECK(fault_of(scene, kDevices[4], plan) == "");
      return plan;
    };
    const int64_t most = kLargestGridX;
    if (!has_closer_tokens) {
      CHECK(plan_with(ROPE_DTYPE_BF16, most, 1, 128).kernel == rope::RopeKernel::kFlat);
      CHECK(plan_with(ROPE_DTYPE_BF16, most + 1, 1, 128).kernel == rope::RopeKernel::kShared);
    }
    // 64 units, for which the check allows three warps, 96, and 800.
    for (const int64_t heads : {8, 12, 100}) {
      const int64_t most_tokens = most / (heads * 8 / 32 + 1);
      CHECK(plan_with(ROPE_DTYPE_BF16, most_tokens, heads, 128).kernel == rope::RopeKernel::kToken);
      CHECK(plan_with(ROPE_DTYPE_BF16, most_tokens + 1, heads, 128).kernel == rope::RopeKernel::kShared);
      // Those that a block's number is divided for are fewer.
      const int64_t warps = heads * 8 / 32 + 1, most_of_long = UINT32_MAX / (warps * warps);
      const rope::RopeKernel fewer = has_closer_tokens ? rope::RopeKernel::kLongBatches : rope::RopeKernel::kLong;
      CHECK(plan_with(ROPE_DTYPE_BF16, most_of_long, heads, 128).kernel == fewer);
      CHECK(plan_with(ROPE_DTYPE_BF16, most_of_long + 1, heads, 128).kernel == rope::RopeKernel::kToken);
    }
    const rope::RopePlan scattered = plan_with(ROPE_DTYPE_BF16, most, 8, 4);
    CHECK(scattered.kernel == rope::RopeKernel::kScattered);
    CHECK(scattered.grid_x == uint32_t{1} << 29);
    CHECK(plan_with(ROPE_DTYPE_BF16, most + 1, 8, 4).kernel == rope::RopeKernel::kGeneral);
    // 128 units a head: 2^32 is their product with those of a token.
    CHECK(plan_with(ROPE_DTYPE_F32, 3, (1 << 18) - 1, 1024).kernel == rope::RopeKernel::kToken);
    CHECK(plan_with(ROPE_DTYPE_F32, 3, 1 << 18, 1024).kernel == rope::RopeKernel::kShared);
  }
}

TEST_CASE("short launches have narrower vectors, and mostly kernels of their own", "[rope plan]") {
  Scene scene;
  using Kernel = rope::RopeKernel;
  enum Angles {
    kComputed,
    kFloatTable,
    kHalfTable,
    kAxes,
    kNumAngles
  };
  const int64_t vectors_per_token = 64;  // of 16 bytes, one of the two of a unit
  int warps = 0, rows = 0;
  for (const int capability : {75, 80, 89, 90, 120}) {
    for (const int multiprocessors : {1, 3, 20}) {
      for (int variant = 0; variant < 2 * kNumAngles; ++variant) {
        const bool has_flag = variant % 2 != 0;
        const int angles = variant / 2;
        const bool has_table = angles == kFloatTable || angles == kHalfTable;
        const rope::DeviceInfo device = {true, 0, multiprocessors, capability, 48 << 10};
        const bool is_programmatic = has_flag && capability >= 90;
        int64_t most = kTuning.max_narrow_vectors, most_of_warps = kTuning.max_warp_vectors;
        if (is_programmatic) most_of_warps = kTuning.max_warp_vectors_programmatic;
        if (angles == kComputed) {
          most = kTuning.max_short_vectors;
        } else if (has_table) {
          most = kTuning.max_short_table_vectors;
        }
        rope_args_t args = {};
        const rope_dtype_t table_dtype = angles == kFloatTable ? ROPE_DTYPE_F32 : ROPE_DTYPE_BF16;
        if (has_table) args.cos = compact_tensor(far_address(0), table_dtype, {4096, 32});
        if (has_table) args.sin = compact_tensor(far_address(1), table_dtype, {4096, 32});
        rope_config_t config = some_config(ROPE_DTYPE_BF16, 64);
        config.num_axes = angles == kAxes ? 2 : 1;
        int64_t shortest = 0;
        for (int64_t tokens = 1; tokens < 1000; ++tokens) {
          set_problem(&scene, config, {1, tokens, 16, 64}, with_flag(args, has_flag));
          const rope::RopePlan plan = plan_of(scene, device);
          const int64_t vectors = tokens * vectors_per_token;
          const bool is_few = vectors <= most * multiprocessors, is_warp = vectors <= most_of_warps * multiprocessors;
          INFO(tokens << " tokens on " << multiprocessors << " multiprocessors of sm_" << capability << ": "
                      << describe(plan));
          REQUIRE(plan.is_programmatic == is_programmatic);
          const Kernel many[] = {Kernel::kLong, Kernel::kLongTable32, Kernel::kLongTable16, Kernel::kTokenAxes};
          const bool is_late = is_programmatic && vectors <= kTuning.max_late_table_vectors * multiprocessors;
          const Kernel few[] = {is_warp ? Kernel::kShortWarp : Kernel::kShort,
                                is_late ? Kernel::kLateTable32 : Kernel::kShortTable32,
                                is_late ? Kernel::kLateTable16 : Kernel::kShortTable16, Kernel::kTokenAxes};
          REQUIRE(plan.kernel == (is_few ? few : many)[angles]);
          REQUIRE(plan.vector_elements * 2 == (is_few ? 8 : 16));
          REQUIRE(fault_of(scene, device, plan).empty());
          shortest += is_few;
          warps += plan.kernel == Kernel::kShortWarp;
          rows += plan.kernel == Kernel::kShort;
          // More tokens never come back to it.
          REQUIRE(shortest == (is_few ? tokens : shortest));
        }
        CHECK(shortest > 0);
        CHECK(shortest < 999);
      }
    }
  }
  CHECK(warps > 100);
  CHECK(rows > 1000);
}

TEST_CASE("threads of blocks without a barrier", "[rope plan]") {
  Scene scene;
  const rope::DeviceInfo device = {true, 0, 10, 90, 48 << 10};
  for (const bool has_table : {false, true}) {
    for (const bool has_flag : {false, true}) {
      // Long launches have vectors of 16 bytes, and the same blocks with programmatic launch.
      rope_args_t args = {};
      if (has_table) args.cos = compact_tensor(far_address(0), ROPE_DTYPE_F32, {4096, 64});
      if (has_table) args.sin = compact_tensor(far_address(1), ROPE_DTYPE_F32, {4096, 64});
      const struct {
        int64_t heads;
        uint32_t threads, rows;
      } cases[] = {{1, 8, 16}, {2, 16, 8}, {3, 24, 5}, {7, 56, 2}};
      for (const auto &one : cases) {
        if (!has_table && one.heads > 1) continue;
        set_problem(&scene, some_config(ROPE_DTYPE_BF16, 128), {1, 4000, one.heads, 128}, with_flag(args, has_flag));
        const rope::RopePlan plan = plan_of(scene, device);
        INFO(describe(scene) << ": " << describe(plan));
        CHECK(plan.kernel == (has_table ? rope::RopeKernel::kTable32 : rope::RopeKernel::kFlat));
        CHECK(plan.vector_elements == 8);
        CHECK(plan.threads == one.threads);
        CHECK(plan.thread_rows == one.rows);
        CHECK(plan.grid_x == (4000 + one.rows - 1) / one.rows);
        CHECK(plan.grid_y == 1);
        CHECK(plan.shared_bytes == 0);
        CHECK(fault_of(scene, device, plan) == "");
        CHECK(Launch(scene, plan).run() == "");
      }
      // One head in several parts.
      if (has_table) args.cos = compact_tensor(far_address(0), ROPE_DTYPE_F32, {4096, 512});
      if (has_table) args.sin = compact_tensor(far_address(1), ROPE_DTYPE_F32, {4096, 512});
      set_problem(&scene, some_config(ROPE_DTYPE_F32, 1024), {1, 200, 1, 1024}, with_flag(args, has_flag));
      const rope::RopePlan plan = plan_of(scene, kDevices[6]);
      INFO(describe(scene) << ": " << describe(plan));
      CHECK(plan.kernel == (has_table ? rope::RopeKernel::kTable32 : rope::RopeKernel::kFlat));
      CHECK(plan.threads == 128);
      CHECK(plan.thread_rows == 1);
      CHECK(plan.grid_x == 200);
      CHECK(plan.grid_y == 1);
      CHECK(fault_of(scene, kDevices[6], plan) == "");
      CHECK(Launch(scene, plan).run() == "");
    }
  }
}

TEST_CASE("threads of blocks in short launches", "[rope plan]") {
  Scene scene;
  using Kernel = rope::RopeKernel;
  struct Shape {
    uint32_t threads, rows, parts;
  };
  const uint32_t sizes[] = {64, 128, 160, 256, 320};
  // Tokens of so many heads of 16 units, and blocks of up to so many threads.
  const struct {
    int64_t heads;
    Shape shape[5];
  } of_table[] = {{1, {{16, 4, 1}, {16, 8, 1}, {16, 10, 1}, {16, 16, 1}, {16, 20, 1}}},
                  {2, {{32, 2, 1}, {32, 4, 1}, {32, 5, 1}, {32, 8, 1}, {32, 10, 1}}},
                  {3, {{48, 1, 1}, {48, 2, 1}, {48, 3, 1}, {48, 5, 1}, {48, 6, 1}}},
                  {5, {{64, 1, 2}, {80, 1, 1}, {80, 2, 1}, {80, 3, 1}, {80, 4, 1}}},
                  {8, {{64, 1, 2}, {128, 1, 1}, {128, 1, 1}, {128, 2, 1}, {128, 2, 1}}},
                  {9, {{64, 1, 3}, {96, 1, 2}, {144, 1, 1}, {144, 1, 1}, {144, 2, 1}}},
                  {20, {{64, 1, 5}, {128, 1, 3}, {160, 1, 2}, {160, 1, 2}, {320, 1, 1}}},
                  {21, {{64, 1, 6}, {128, 1, 3}, {128, 1, 3}, {192, 1, 2}, {192, 1, 2}}},
                  {40, {{64, 1, 10}, {128, 1, 5}, {160, 1, 4}, {224, 1, 3}, {320, 1, 2}}}},
    // Warps that share angles are whole.
      of_warps[] = {{1, {{32, 2, 1}, {32, 4, 1}, {32, 5, 1}, {32, 8, 1}, {32, 10, 1}}},
                    {2, {{32, 2, 1}, {32, 4, 1}, {32, 5, 1}, {32, 8, 1}, {32, 10, 1}}},
                    {3, {{64, 1, 1}, {64, 2, 1}, {64, 2, 1}, {64, 4, 1}, {64, 5, 1}}},
                    {5, {{64, 1, 2}, {96, 1, 1}, {96, 1, 1}, {96, 2, 1}, {96, 3, 1}}},
                    {8, {{64, 1, 2}, {128, 1, 1}, {128, 1, 1}, {128, 2, 1}, {128, 2, 1}}},
                    {9, {{64, 1, 3}, {96, 1, 2}, {160, 1, 1}, {160, 1, 1}, {160, 2, 1}}},
                    {20, {{64, 1, 5}, {128, 1, 3}, {160, 1, 2}, {160, 1, 2}, {320, 1, 1}}},
                    {21, {{64, 1, 6}, {128, 1, 3}, {128, 1, 3}, {192, 1, 2}, {192, 1, 2}}},
                    {40, {{64, 1, 10}, {128, 1, 5}, {160, 1, 4}, {224, 1, 3}, {320, 1, 2}}}},
    // A row of threads has one for each of the 64 pairs.
      of_rows[] = {{1, {{64, 1, 1}, {64, 2, 1}, {64, 2, 1}, {64, 4, 1}, {64, 5, 1}}},
                   {2, {{64, 1, 1}, {64, 2, 1}, {64, 2, 1}, {64, 4, 1}, {64, 5, 1}}},
                   {3, {{64, 1, 1}, {64, 2, 1}, {64, 2, 1}, {64, 4, 1}, {64, 5, 1}}},
                   {5, {{64, 1, 2}, {96, 1, 1}, {96, 1, 1}, {96, 2, 1}, {96, 3, 1}}},
                   {8, {{64, 1, 2}, {128, 1, 1}, {128, 1, 1}, {128, 2, 1}, {128, 2, 1}}},
                   {9, {{64, 1, 3}, {96, 1, 2}, {160, 1, 1}, {160, 1, 1}, {160, 2, 1}}},
                   {20, {{64, 1, 5}, {128, 1, 3}, {160, 1, 2}, {160, 1, 2}, {320, 1, 1}}},
                   {21, {{64, 1, 6}, {128, 1, 3}, {128, 1, 3}, {192, 1, 2}, {192, 1, 2}}},
                   {40, {{64, 1, 10}, {128, 1, 5}, {160, 1, 4}, {224, 1, 3}, {320, 1, 2}}}};
  const rope::DeviceInfo device = {true, 0, 2, 90, 48 << 10};
  int of_kernel[kKernels][5] = {};
  for (const bool has_table : {false, true}) {
    for (const bool has_flag : {false, true}) {
      rope_args_t args = {};
      if (has_table) args.cos = compact_tensor(far_address(0), ROPE_DTYPE_F32, {4096, 64});
      if (has_table) args.sin = compact_tensor(far_address(1), ROPE_DTYPE_F32, {4096, 64});
      std::vector<rope::ShortThreads> rows(std::begin(kTuning.short_threads), std::end(kTuning.short_threads));
      int64_t most = has_table ? kTuning.max_short_table_vectors : kTuning.max_short_vectors;
      int64_t most_of_warps = kTuning.max_warp_vectors;
      if (has_flag) {
        rows.assign(std::begin(kTuning.short_threads_programmatic), std::end(kTuning.short_threads_programmatic));
        most_of_warps = kTuning.max_warp_vectors_programmatic;
      }
      // Launches at each limit, and with one token more.
      std::vector<int64_t> limits = {most, most_of_warps, kTuning.max_late_table_vectors};
      for (const rope::ShortThreads &row : rows) limits.push_back(row.max_vectors);
      for (size_t which = 0; which < std::size(of_table); ++which) {
        const int64_t heads = of_table[which].heads, vectors_per_token = 8 * heads;
        for (const int64_t limit : limits) {
          for (const int64_t more : {0, 1}) {
            const int64_t tokens = limit * device.multiprocessors / vectors_per_token + more;
            const int64_t vectors = tokens * vectors_per_token;
            if (tokens == 0 || vectors > most * device.multiprocessors) continue;
            set_problem(&scene, some_config(ROPE_DTYPE_BF16, 128), {1, tokens, heads, 128}, with_flag(args, has_flag));
            const rope::RopePlan plan = plan_of(scene, device);
            INFO(describe(scene) << ": " << describe(plan) << (has_flag ? ", programmatic" : ""));
            uint32_t wanted = rope::kMaxShortThreads;
            for (size_t i = rows.size(); i-- > 0;) {
              if (vectors <= int64_t{rows[i].max_vectors} * device.multiprocessors) wanted = rows[i].threads;
            }
            const auto size = static_cast<size_t>(std::find(std::begin(sizes), std::end(sizes), wanted) - sizes);
            REQUIRE(size < std::size(sizes));
            const bool is_warp = !has_table && vectors <= most_of_warps * device.multiprocessors;
            const Shape shape = (has_table ? of_table : is_warp ? of_warps : of_rows)[which].shape[size];
            const bool is_late =
                plan.is_programmatic && vectors <= int64_t{kTuning.max_late_table_vectors} * device.multiprocessors;
            const Kernel by_table = is_late ? Kernel::kLateTable32 : Kernel::kShortTable32;
            CHECK(plan.kernel == (has_table ? by_table : is_warp ? Kernel::kShortWarp : Kernel::kShort));
            CHECK(plan.threads == shape.threads);
            CHECK(plan.thread_rows == shape.rows);
            CHECK(plan.grid_y == shape.parts);
            // 512 bytes a warp, or a row of threads.
            const uint32_t sharers = has_table ? 0 : is_warp ? shape.threads * shape.rows / 32 : shape.rows;
            CHECK(plan.shared_bytes == sharers * 512);
            CHECK(fault_of(scene, device, plan) == "");
            CHECK(Launch(scene, plan).run() == "");
            ++of_kernel[static_cast<int>(plan.kernel)][size];
          }
        }
      }
    }
  }
  // Every limit was met.
  for (const size_t size : {size_t{0}, size_t{1}, size_t{2}, size_t{3}, size_t{4}}) {
    const bool is_plain = sizes[size] == 128, is_both = sizes[size] == 256;
    INFO("blocks of " << sizes[size]);
    CHECK((of_kernel[static_cast<int>(Kernel::kShortTable32)][size] > 5) ==
          (is_plain || is_both || sizes[size] == rope::kMaxShortThreads));
    CHECK((of_kernel[static_cast<int>(Kernel::kLateTable32)][size] > 5) ==
          (sizes[size] == rope::kMinShortThreads || sizes[size] == 160));
    CHECK((of_kernel[static_cast<int>(Kernel::kShortWarp)][size] > 5) == (is_plain || is_both || sizes[size] == 64));
    CHECK((of_kernel[static_cast<int>(Kernel::kShort)][size] > 5) == (sizes[size] > 128));
  }
}

TEST_CASE("launches without a barrier do each piece of work once", "[rope plan]") {
  Scene scene;
  const struct {
    rope_style_t style;
    int32_t head_dim, rotary_dim, rotary_offset;
  } heads_of[] = {{ROPE_STYLE_HALF, 128, 0, 0},        {ROPE_STYLE_INTERLEAVED, 128, 0, 0},
                  {ROPE_STYLE_HALF, 192, 64, 64},      {ROPE_STYLE_INTERLEAVED, 88, 32, 40},
                  {ROPE_STYLE_HALF, 80, 0, 0},         {ROPE_STYLE_INTERLEAVED, 24, 16, 8},
                  {ROPE_STYLE_INTERLEAVED, 144, 0, 0}, {ROPE_STYLE_HALF, 512, 0, 0}};
  const int64_t head_counts[][3] = {{8, 2, 0}, {20, 0, 3}, {0, 9, 0}, {0, 1, 17},
                                    {1, 0, 0}, {0, 0, 1},  {0, 2, 1}, {41, 8, 8}};
  const rope_dtype_t of_table[] = {{}, ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16};
  int of_kernel[kKernels] = {}, several_parts[kKernels] = {}, several_rows[kKernels] = {};
  int several_batches = 0, batch_fastest = 0, several_tensors = 0, rows_within_warps = 0, idle_lanes = 0;
  int rows_as_long_as_pairs = 0;
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_BF16}) {
    for (const auto &head : heads_of) {
      for (const auto &heads : head_counts) {
        for (const rope_dtype_t table : of_table) {
          for (const rope_layout_t layout : {ROPE_LAYOUT_BSHD, ROPE_LAYOUT_SBHD, ROPE_LAYOUT_BHSD, ROPE_LAYOUT_THD}) {
            for (const int variant : {0, 1, 2, 3, 4, 5}) {
              // Short launches of one batch, and those of two that are long on a device of one multiprocessor.
              const int64_t batches = variant < 2 ? 1 : 2, tokens = variant < 4 ? 5 : 40;
              if (batches > 1 && layout == ROPE_LAYOUT_THD) continue;
              if (tokens > 5 && heads[0] + heads[1] + heads[2] > 3) continue;
              rope_config_t config = some_config(dtype, head.head_dim);
              config.layout = layout;
              config.style = head.style;
              config.rotary_dim = head.rotary_dim;
              config.rotary_offset = head.rotary_offset;
              REQUIRE(rope::make_rope_geometry("rope_desc_create", config, &scene.geometry) == ROPE_STATUS_SUCCESS);
              set_operands(&scene, layout, dtype, batches, tokens, heads, head.head_dim, variant % 2 == 0);
              // Batches that are not the same as more tokens, nor as more heads.
              if (batches > 1) {
                scene.args.positions = fake_tensor(far_address(2), ROPE_DTYPE_I32, {batches, tokens}, {tokens + 1, 1});
              }
              const bool has_table = table != rope_dtype_t{};
              if (has_table) {
                const std::vector<int64_t> shape = {64, scene.geometry.pairs()};
                scene.args.cos = compact_tensor(far_address(0), table, shape);
                scene.args.sin = compact_tensor(far_address(1), table, shape);
              }
              for (const bool has_flag : {false, true}) {
                scene.args.flags = has_flag ? ROPE_FLAG_PROGRAMMATIC_LAUNCH : 0;
                const rope_status_t status =
                    rope::make_rope_problem("rope_forward", scene.geometry, scene.args, false, &scene.problem);
                INFO(rope::last_error());
                REQUIRE(status == ROPE_STATUS_SUCCESS);
                // Blocks of few threads, of more and of most.
                for (const rope::DeviceInfo &device : {kDevices[4], kDevices[6], {true, 0, 2, 90, 48 << 10}}) {
                  const rope::RopePlan plan = plan_of(scene, device);
                  INFO(describe(scene) << ": " << describe(plan));
                  const std::string not_legal = fault_of(scene, device, plan);
                  if (!not_legal.empty()) FAIL(not_legal);
                  if (!is_flat(plan.kernel)) continue;
                  const std::string fault = Launch(scene, plan).run();
                  if (!fault.empty()) FAIL(fault);
                  ++of_kernel[static_cast<int>(plan.kernel)];
                  several_parts[static_cast<int>(plan.kernel)] += plan.grid_y > 1;
                  several_rows[static_cast<int>(plan.kernel)] += plan.thread_rows > 1;
                  several_batches += scene.problem.batches > 1;
                  batch_fastest += plan.is_batch_fastest;
                  const int64_t shared_threads = divide_up(plan.units.per_token, 32) * 32;
                  rows_as_long_as_pairs += plan.kernel == rope::RopeKernel::kShort && plan.threads > shared_threads;
                  several_tensors += heads[0] > 0 && heads[1] > 0 && heads[2] > 0;
                  rows_within_warps += plan.threads % 32 != 0;
                  idle_lanes += plan.grid_y * plan.threads > plan.units.per_token;
                }
              }
            }
          }
        }
      }
    }
  }
  for (int kernel = 0; kernel < kKernels; ++kernel) {
    INFO("kernel " << kernel);
    if (!is_flat(static_cast<rope::RopeKernel>(kernel))) continue;
    CHECK(of_kernel[kernel] > 100);
    // Tokens of several heads or of few units have no parts, but one with as many as a grid has.
    if (is_of_short_launch(static_cast<rope::RopeKernel>(kernel))) CHECK(several_parts[kernel] > 10);
    CHECK(several_rows[kernel] > 50);
  }
  CHECK(several_batches > 500);
  CHECK(rows_as_long_as_pairs > 10);
  CHECK(batch_fastest > 100);
  CHECK(several_tensors > 100);
  CHECK(rows_within_warps > 100);
  CHECK(idle_lanes > 100);
}

TEST_CASE("tokens of short launches have no more parts than the grid's second axis", "[rope plan]") {
  Scene scene;
  using Kernel = rope::RopeKernel;
  // 32 units a head with vectors of 8 bytes.
  const rope::DeviceInfo huge = {true, 0, 40000, 90, 48 << 10}, large = {true, 0, 5000, 90, 48 << 10};
  const int64_t most = int64_t{kLargestGridY} * rope::kMinShortThreads / 32;
  const auto plan_with = [&](int64_t heads, bool has_table, bool has_flag, const rope::DeviceInfo &device) {
    rope_args_t args = {};
    if (has_table) {
      args.cos = compact_tensor(far_address(0), ROPE_DTYPE_F32, {64, 64});
      args.sin = compact_tensor(far_address(1), ROPE_DTYPE_F32, {64, 64});
    }
    set_problem(&scene, some_config(ROPE_DTYPE_F32, 128), {1, 1, heads, 128}, with_flag(args, has_flag));
    const rope::RopePlan plan = plan_of(scene, device);
    INFO(describe(scene) << ": " << describe(plan));
    CHECK(plan.vector_elements == (heads <= most || device.multiprocessors > 10000 ? 2 : 4));
    CHECK(fault_of(scene, device, plan) == "");
    return plan;
  };
  const rope::RopePlan longest = plan_with(most, false, true, huge);
  CHECK(longest.kernel == Kernel::kShortWarp);
  CHECK(longest.grid_x == 1);
  CHECK(longest.grid_y == kLargestGridY);
  CHECK(Launch(scene, longest).run() == "");
  CHECK(plan_with(most, true, true, huge).grid_y == kLargestGridY);
  CHECK(plan_with(most, false, true, large).kernel == Kernel::kShort);
  CHECK(plan_with(most, true, false, large).kernel == Kernel::kShortTable32);
  // Even where blocks would be larger.
  for (const rope::DeviceInfo &device : {huge, large}) {
    CHECK(plan_with(most + 1, false, true, device).kernel == Kernel::kToken);
    CHECK(plan_with(most + 1, true, false, device).kernel == Kernel::kTokenTable);
  }
  // 29 units a head, of which so many heads have a single unit too many.
  const int64_t heads = (kLargestGridY * rope::kMinShortThreads + 1) / 29;
  REQUIRE(heads * 29 == kLargestGridY * rope::kMinShortThreads + 1);
  for (const int64_t fewer : {1, 0}) {
    set_problem(&scene, ROPE_DTYPE_F32, 1, 1, heads - fewer, 116);
    const rope::RopePlan plan = plan_of(scene, huge);
    INFO(describe(scene) << ": " << describe(plan));
    CHECK(plan.kernel == (fewer > 0 ? Kernel::kShortWarp : Kernel::kToken));
    CHECK(fault_of(scene, huge, plan) == "");
  }
}

TEST_CASE("threads that look up angles themselves need rows that 32 bits count", "[rope plan]") {
  Scene scene;
  using Kernel = rope::RopeKernel;
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16}) {
    const struct {
      Kernel kernel;
      int64_t batches, tokens, heads;
      rope::DeviceInfo device;
    } cases[] = {{dtype == ROPE_DTYPE_F32 ? Kernel::kTable32 : Kernel::kTable16, 2, 100, 1, kDevices[6]},
                 {dtype == ROPE_DTYPE_F32 ? Kernel::kTable32 : Kernel::kTable16, 2, 100, 7, kDevices[6]},
                 {dtype == ROPE_DTYPE_F32 ? Kernel::kShortTable32 : Kernel::kShortTable16, 1, 5, 1, kH200},
                 {dtype == ROPE_DTYPE_F32 ? Kernel::kShortTable32 : Kernel::kShortTable16, 1, 5, 2, kH200},
                 {dtype == ROPE_DTYPE_F32 ? Kernel::kShortTable32 : Kernel::kShortTable16, 1, 5, 8, kH200}};
    for (const auto &one : cases) {
      const auto kernel_with = [&](const std::function<void(rope::AngleTable *)> &change) {
        rope_args_t args = {};
        args.cos = compact_tensor(far_address(0), dtype, {64, 64});
        args.sin = compact_tensor(far_address(1), dtype, {64, 64});
        const std::vector<int64_t> shape = {one.batches, one.tokens, one.heads, 128};
        set_problem(&scene, some_config(ROPE_DTYPE_BF16, 128), shape, args);
        change(&scene.problem.table);
        const rope::RopePlan plan = plan_of(scene, one.device);
        INFO(describe(scene) << ": " << describe(plan));
        CHECK(fault_of(scene, one.device, plan) == "");
        CHECK(Launch(scene, plan).run() == "");
        return plan.kernel;
      };
      const bool is_short = is_of_short_launch(one.kernel);
      // In entries, strides of whole vectors.
      const int64_t most = INT32_MAX / oracle::element_size(dtype), largest = most / 8 * 8;
      CHECK(kernel_with([&](rope::AngleTable *rows) { rows->rows = most; }) == one.kernel);
      CHECK(kernel_with([&](rope::AngleTable *rows) { rows->rows = most + 1; }) == Kernel::kTokenTable);
      for (const int64_t stride : {int64_t{0}, int64_t{-64}, largest, -largest}) {
        const auto set_both = [&](rope::AngleTable *rows) { rows->cos.row_stride = rows->sin.row_stride = stride; };
        CHECK(kernel_with(set_both) == one.kernel);
      }
      for (const int64_t stride : {largest + 8, -largest - 8}) {
        const auto set_both = [&](rope::AngleTable *rows) { rows->cos.row_stride = rows->sin.row_stride = stride; };
        CHECK(kernel_with(set_both) == Kernel::kTokenTable);
      }
      for (const bool is_sin : {false, true}) {
        const auto with_stride = [&](int64_t stride) {
          return kernel_with([&](rope::AngleTable *rows) { (is_sin ? rows->sin : rows->cos).row_stride = stride; });
        };
        for (const int64_t stride : {int64_t{0}, int64_t{-64}, largest, -largest}) {
          CHECK(with_stride(stride) == (is_short ? Kernel::kTokenTable : one.kernel));
        }
        for (const int64_t stride : {largest + 8, -largest - 8, int64_t{1} << 32, int64_t{1} << 50}) {
          CHECK(with_stride(stride) == Kernel::kTokenTable);
        }
        // Those between batches have as many as they like.
        for (const int64_t stride : {int64_t{1} << 32, -(int64_t{1} << 50)}) {
          CHECK(kernel_with([&](rope::AngleTable *rows) { (is_sin ? rows->sin : rows->cos).batch_stride = stride; }) ==
                one.kernel);
        }
      }
    }
  }
}

TEST_CASE("a single head has nobody to share angles with", "[rope plan]") {
  Scene scene;
  using Kernel = rope::RopeKernel;
  const int32_t most = 2 * rope::kMaxShortPairs;
  for (const int32_t head_dim : {2, 64, most, most + 2, most + 8, most + 16, 1024}) {
    for (const int64_t batches : {1, 2}) {
      for (const int64_t tokens : {int64_t{2}, int64_t{1} << 20, int64_t{1} << 36}) {
        for (const rope::DeviceInfo &device : kDevices) {
          for (const bool has_flag : {false, true}) {
            if (batches > 1 && tokens > int64_t{1} << 30) continue;
            const rope_config_t config = some_config(ROPE_DTYPE_BF16, head_dim);
            const std::vector<int64_t> shape = {batches, tokens, 1, head_dim};
            rope_args_t args = with_flag({}, has_flag);
            // Batches that are not the same as more heads.
            const auto positions =
                fake_tensor(far_address(3), ROPE_DTYPE_I32, {batches, tokens}, {batches > 1 ? tokens + 1 : 0, 1});
            if (batches > 1) args.positions = positions;
            const auto plan_with = [&] {
              set_problem(&scene, config, shape, args);
              const rope::RopePlan plan = plan_of(scene, device);
              INFO(describe(scene) << "; sm_" << device.compute_capability << ": " << describe(plan));
              CHECK(fault_of(scene, device, plan) == "");
              return plan;
            };
            // A single pair is no vector, nor are an odd number of them.
            const bool fits_grid = tokens < int64_t{1} << 30, has_vectors = head_dim % 8 == 0;
            const bool is_few = tokens == 2, is_short = is_few && batches == 1;
            // Nor are vectors of 8 bytes those of own angles.
            const bool is_wide = head_dim % 16 == 0 && !is_few;
            const Kernel odd = head_dim == 2 || !fits_grid ? Kernel::kGeneral : Kernel::kScattered;
            // A long head is worth a row of threads.
            const bool has_rows = head_dim == 1024 && fits_grid;
            const Kernel any = has_rows ? Kernel::kToken : Kernel::kShared;
            const Kernel own = is_short && head_dim <= most ? Kernel::kShortWarp
                               : is_wide && fits_grid       ? Kernel::kFlat
                                                            : any;
            CHECK(plan_with().kernel == (has_vectors ? own : odd));
            args.start_positions = compact_tensor(far_address(2), ROPE_DTYPE_I64, {batches});
            CHECK(plan_with().kernel == (has_vectors ? any : odd));
            // However many rows are read.
            args = with_flag({}, has_flag);
            args.cos = compact_tensor(far_address(0), ROPE_DTYPE_BF16, {4096, head_dim / 2});
            args.sin = compact_tensor(far_address(1), ROPE_DTYPE_BF16, {4096, head_dim / 2});
            const Kernel odd_table = odd == Kernel::kScattered ? Kernel::kScatteredTable : Kernel::kGeneral;
            const Kernel any_table = fits_grid ? Kernel::kTokenTable : Kernel::kGeneral;
            const bool is_late = has_flag && device.compute_capability >= 90;
            const Kernel own_table = is_short               ? is_late ? Kernel::kLateTable16 : Kernel::kShortTable16
                                     : is_wide && fits_grid ? Kernel::kTable16
                                                            : any_table;
            CHECK(plan_with().kernel == (has_vectors ? own_table : odd_table));
            // One more is not worth the sharing, two are.
            args = with_flag({}, has_flag);
            if (batches > 1) args.positions = positions;
            for (const int64_t others : {1, 2}) {
              // Of two long heads a few tokens are many.
              if (tokens >= int64_t{1} << 36 || (others == 1 && is_few)) continue;
              args.k = compact_tensor(uintptr_t{2} << 61, ROPE_DTYPE_BF16, {batches, tokens, others, head_dim});
              CHECK((plan_with().kernel == Kernel::kFlat) == (others == 1 && own == Kernel::kFlat && has_vectors));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("programmatic launches from compute capability 9.0 on", "[rope plan]") {
  Scene scene;
  rope_args_t table = {};
  table.cos = compact_tensor(far_address(0), ROPE_DTYPE_F32, {64, 64});
  table.sin = compact_tensor(far_address(1), ROPE_DTYPE_F32, {64, 64});
  for (const rope_dtype_t dtype : {ROPE_DTYPE_BF16, ROPE_DTYPE_F64}) {
    for (const rope_args_t &operands : {rope_args_t{}, table}) {
      for (const bool has_flag : {false, true}) {
        set_problem(&scene, some_config(dtype, 128), {2, 64, 8, 128}, with_flag(operands, has_flag));
        for (const int capability : {75, 80, 86, 89, 90, 100, 103, 120, 121}) {
          const rope::RopePlan plan = plan_of(scene, {true, 0, 100, capability, 48 << 10});
          CHECK(plan.is_programmatic == (has_flag && capability >= 90));
        }
        CHECK_FALSE(plan_of(scene, {false, 8, 0, 0, 0}).is_programmatic);
      }
    }
  }
}

TEST_CASE("threads that look up angles themselves need rows that begin with vectors", "[rope plan]") {
  // What a thread reads of a table at a time is as many entries as a vector has elements, interleaved half as many.
  Scene scene;
  using Kernel = rope::RopeKernel;
  int tables = 0, short_tables = 0, shared = 0, scattered = 0;
  enum Misplaced {
    kCosData,
    kSinData,
    kCosRow,
    kSinRow,
    kRows,
    kCosBatch,
    kSinBatch,
    kNumMisplaced
  };
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (const rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
      for (const int32_t head_dim : {128, 24, 6}) {
        for (const rope_dtype_t table_dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
          for (int misplaced = 0; misplaced < kNumMisplaced; ++misplaced) {
            for (const int64_t entries : {0, 1, 2, 3, 4, 6, 8, 12, 16}) {
              for (const int64_t batches : {1, 2}) {
                const int64_t size = oracle::element_size(table_dtype), pairs = head_dim / 2;
                const auto moved = [&](Misplaced what) { return misplaced == what ? entries : 0; };
                const auto columns = [&](int number, Misplaced data, Misplaced row, Misplaced batch) {
                  const auto address = far_address(number) + static_cast<uintptr_t>(moved(data) * size);
                  return fake_tensor(address, table_dtype, {batches, 100, pairs},
                                     {(1 << 20) + moved(batch), 512 + moved(row) + moved(kRows), 1});
                };
                rope_config_t config = some_config(dtype, head_dim);
                config.style = style;
                rope_args_t args = {};
                args.cos = columns(0, kCosData, kCosRow, kCosBatch);
                args.sin = columns(1, kSinData, kSinRow, kSinBatch);
                args.table_rows = ROPE_TABLE_BY_TOKEN;
                set_problem(&scene, config, {batches, 100, 2, head_dim}, args);

                // Who has one batch does not look at the stride between them.
                const bool is_batch = misplaced == kCosBatch || misplaced == kSinBatch;
                const bool is_row = misplaced == kCosRow || misplaced == kSinRow;
                const auto is_aligned_for = [&](int64_t bytes) {
                  const int64_t elements = bytes / oracle::element_size(dtype);
                  const int64_t run = style == ROPE_STYLE_INTERLEAVED ? elements / 2 : elements;
                  return (is_batch && batches == 1) || entries * size % std::min<int64_t>(16, run * size) == 0;
                };
                const int64_t widest = (pairs * oracle::element_size(dtype)) & -(pairs * oracle::element_size(dtype));
                for (const rope::DeviceInfo &device : {kDevices[6], kDevices[4]}) {
                  const rope::RopePlan plan = plan_of(scene, device);
                  INFO(describe(scene) << ": " << describe(plan) << "; table of " << oracle::dtype_name(table_dtype)
                                       << ", " << entries << " entries off at " << misplaced);
                  REQUIRE((plan.vector_elements > 1) == (widest >= 8));
                  const bool has_floats = table_dtype == ROPE_DTYPE_F32;
                  const bool is_short_aligned = batches == 1 && is_aligned_for(8) && (!is_row || entries == 0);
                  const bool is_few = is_short(scene, device);
                  // Rows of threads read an entry each.
                  const bool has_rows = plan.units.per_token >= kTuning.min_row_units;
                  Kernel kernel = Kernel::kTokenTable;
                  if (widest < 8) {
                    kernel = Kernel::kScatteredTable;
                  } else if (is_few && is_short_aligned) {
                    kernel = has_floats ? Kernel::kShortTable32 : Kernel::kShortTable16;
                  } else if (!is_few && widest >= 16 && is_aligned_for(16) && !has_rows) {
                    kernel = has_floats ? Kernel::kTable32 : Kernel::kTable16;
                  }
                  REQUIRE(plan.kernel == kernel);
                  const std::string fault = fault_of(scene, device, plan);
                  if (!fault.empty()) FAIL(fault);
                  tables += kernel == Kernel::kTable32 || kernel == Kernel::kTable16;
                  short_tables += kernel == Kernel::kShortTable32 || kernel == Kernel::kShortTable16;
                  shared += kernel == Kernel::kTokenTable;
                  scattered += kernel == Kernel::kScatteredTable;
                }
              }
            }
          }
        }
      }
    }
  }
  CHECK(tables > 500);
  CHECK(short_tables > 1000);
  CHECK(shared > 200);
  CHECK(scattered > 200);
}

TEST_CASE("tokens are counted in the order in which q lies in memory", "[rope plan]") {
  Scene scene;
  for (const rope_layout_t layout : {ROPE_LAYOUT_BSHD, ROPE_LAYOUT_SBHD, ROPE_LAYOUT_BHSD}) {
    for (const int64_t batches : {1, 3}) {
      rope_config_t config = some_config(ROPE_DTYPE_BF16, 128);
      config.layout = layout;
      const std::vector<int64_t> shape = layout == ROPE_LAYOUT_BSHD   ? std::vector<int64_t>{batches, 7, 4, 128}
                                         : layout == ROPE_LAYOUT_SBHD ? std::vector<int64_t>{7, batches, 4, 128}
                                                                      : std::vector<int64_t>{batches, 4, 7, 128};
      // Batches with positions of their own do not become heads.
      rope_args_t args = {};
      args.positions = compact_tensor(far_address(0), ROPE_DTYPE_I32, {batches, 7});
      set_problem(&scene, config, shape, args);
      for (const rope::DeviceInfo &device : kDevices) {
        const rope::RopePlan plan = plan_of(scene, device);
        CHECK(plan.is_batch_fastest == (layout == ROPE_LAYOUT_SBHD && batches > 1));
        if (has_token_rows(plan.kernel)) CHECK(plan.rows.is_part_slowest == (layout == ROPE_LAYOUT_BHSD));
        const std::string fault = fault_of(scene, device, plan) + Launch(scene, plan).run();
        CHECK(fault.empty());
      }
    }
  }
  // Rows of threads are short beside tokens that lie close together.
  const struct {
    int64_t heads;
    uint32_t threads, rows, parts;
  } cases[] = {{3, 32, 4, 1}, {4, 32, 4, 1}, {5, 64, 2, 1}, {8, 64, 2, 1}, {9, 64, 2, 2}, {24, 64, 2, 3}};
  for (const auto &one : cases) {
    rope_config_t config = some_config(ROPE_DTYPE_BF16, 128);
    config.layout = ROPE_LAYOUT_BHSD;
    config.num_axes = 2;
    set_problem(&scene, config, {1, one.heads, 4096, 128});
    const rope::RopePlan plan = plan_of(scene, kDevices[6]);
    INFO(describe(scene) << ": " << describe(plan));
    CHECK(plan.kernel == rope::RopeKernel::kTokenAxes);
    CHECK(plan.rows.is_part_slowest);
    CHECK(plan.threads == one.threads);
    CHECK(plan.thread_rows == one.rows);
    CHECK(plan.blocks_per_token == one.parts);
    CHECK(plan.grid_x == (4096 / one.rows) * one.parts);
    CHECK(fault_of(scene, kDevices[6], plan) == "");
  }
  // A broadcast axis is the fastest there is; the direction of an axis does not count.
  for (const bool is_reversed : {false, true}) {
    rope_config_t config = some_config(ROPE_DTYPE_BF16, 128);
    set_problem(&scene, config, {3, 7, 4, 128});
    int64_t *stride = scene.problem.tensor[0].in_stride;
    std::swap(stride[rope::kBatch], stride[rope::kToken]);
    if (is_reversed) stride[rope::kToken] = -stride[rope::kToken];
    CHECK(plan_of(scene, kDevices[4]).is_batch_fastest);
    stride[rope::kToken] = 0;
    CHECK_FALSE(plan_of(scene, kDevices[4]).is_batch_fastest);
    stride[rope::kBatch] = 0;
    CHECK_FALSE(plan_of(scene, kDevices[4]).is_batch_fastest);
  }
}

TEST_CASE("blocks of the size that leaves the fewest threads idle", "[rope plan]") {
  Scene scene;
  // Units of a token: 8 for each of these heads.
  const struct {
    int64_t heads;
    uint32_t threads, thread_rows, tokens_per_block, blocks_per_token;
  } cases[] = {{3, 96, 1, 4, 1},   {4, 128, 1, 4, 1},  {7, 128, 1, 2, 1},  {8, 64, 2, 2, 1},
               {12, 96, 1, 1, 1},  {13, 128, 1, 1, 1}, {16, 128, 1, 1, 1}, {20, 160, 1, 1, 1},
               {24, 96, 1, 1, 2},  {32, 128, 1, 1, 2}, {40, 160, 1, 1, 2}, {36, 96, 1, 1, 3},
               {64, 128, 1, 1, 4}, {72, 96, 1, 1, 6},  {80, 128, 1, 1, 5}, {100, 160, 1, 1, 5}};
  const rope::DeviceInfo device = kDevices[6];
  for (const auto &one : cases) {
    set_problem(&scene, ROPE_DTYPE_BF16, 1, 4096, one.heads, 128);
    const rope::RopePlan plan = plan_of(scene, device);
    INFO(describe(scene) << ": " << describe(plan));
    CHECK(plan.threads == one.threads);
    CHECK(plan.thread_rows == one.thread_rows);
    CHECK(plan.tokens_per_block == one.tokens_per_block);
    CHECK(plan.blocks_per_token == one.blocks_per_token);
  }
  Random random(5);
  int planned = 0, long_rows = 0;
  for (int round = 0; round < 10000; ++round) {
    if (!draw(&random, kAnySizes, &scene) || scene.converts_in_place()) continue;
    rope::RopePlan plan;
    if (rope::plan_rope("rope_forward", scene.problem, device, &plan) != ROPE_STATUS_SUCCESS) continue;
    const bool has_long_rows = has_token_rows(plan.kernel) && !plan.rows.is_part_slowest && plan.units.per_token > 96;
    if ((!shares_angles(plan.kernel) && !has_long_rows) || has_gapped_rows(scene, plan)) continue;
    long_rows += has_long_rows;
    const auto threads_of = [](int64_t threads, int64_t blocks, int64_t tokens) {
      return static_cast<double>(threads * blocks) / static_cast<double>(tokens);
    };
    const int64_t rows = has_long_rows ? plan.thread_rows : 1;
    const double spent = threads_of(plan.threads * rows, plan.blocks_per_token, plan.tokens_per_block);
    for (const uint32_t threads : kTuning.block_threads) {
      const uint32_t units = plan.units.per_token;
      const double other = threads_of(threads, divide_up(units, threads), std::max(threads / units, 1u));
      INFO(describe(scene) << ": " << describe(plan) << "; blocks of " << threads);
      // Fractions of threads are rounded to 1/1024 where they are compared.
      if (spent > other + 1.0 / 512) FAIL("a block size that leaves fewer threads idle");
    }
    ++planned;
  }
  CHECK(planned > 1000);
  CHECK(long_rows > 200);
}

TEST_CASE("vectors stay inside blocks of pairs", "[rope plan]") {
  Scene scene;
  const rope_style_t half = ROPE_STYLE_HALF, interleaved = ROPE_STYLE_INTERLEAVED;
  const struct {
    rope_dtype_t dtype;
    rope_style_t style, out_style;
    int32_t pair_block;
    int elements;
  } cases[] = {{ROPE_DTYPE_BF16, half, half, 64, 8},
               {ROPE_DTYPE_BF16, half, half, 16, 8},
               {ROPE_DTYPE_BF16, half, half, 8, 4},
               {ROPE_DTYPE_BF16, half, half, 4, 1},  // 4 bytes, which no kernel has
               {ROPE_DTYPE_BF16, half, half, 2, 8},  // interleaved in other words
               {ROPE_DTYPE_BF16, half, interleaved, 0, 8},
               {ROPE_DTYPE_BF16, interleaved, half, 8, 4},
               {ROPE_DTYPE_BF16, interleaved, half, 4, 1},
               {ROPE_DTYPE_F32, half, half, 4, 2},
               {ROPE_DTYPE_F32, interleaved, half, 16, 4},
               {ROPE_DTYPE_F64, half, half, 0, 2},
               {ROPE_DTYPE_F64, half, interleaved, 4, 2},
               {ROPE_DTYPE_F64, half, half, 2, 2},
               {ROPE_DTYPE_F64, interleaved, interleaved, 0, 2}};
  for (const auto &one : cases) {
    rope_config_t config = some_config(one.dtype, 128);
    config.style = one.style;
    config.out_style = one.out_style;
    config.pair_block = one.pair_block;
    set_problem(&scene, config, {4, 1 << 18, 64, 128});
    for (const rope::DeviceInfo &device : kDevices) {
      const rope::RopePlan plan = plan_of(scene, device);
      INFO(describe(scene) << "; sm_" << device.compute_capability << ": " << describe(plan));
      CHECK(plan.vector_elements == one.elements);
      CHECK(fault_of(scene, device, plan).empty());
    }
  }
}

TEST_CASE("a few tokens take narrower vectors on devices with room for more threads", "[rope plan]") {
  Scene scene;
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_BF16, ROPE_DTYPE_F64}) {
    const int64_t size = oracle::element_size(dtype), wide_units = 8 * 64 * size / 16;
    for (const int64_t batches : {1, 2}) {
      const bool has_short_kernel = batches == 1 && dtype != ROPE_DTYPE_F64;
      const int64_t most_vectors = has_short_kernel ? kTuning.max_short_vectors : kTuning.max_narrow_vectors;
      for (const int multiprocessors : {1, 14, 16, 26, 60, 132, 264}) {
        const rope::DeviceInfo device = {true, 0, multiprocessors, 90, 48 << 10};
        const int64_t most = most_vectors * multiprocessors / (wide_units * batches);
        for (const int64_t tokens : {most, most + 1}) {
          if (tokens == 0 || (batches > 1 && tokens == 1)) continue;  // heads of one batch
          set_problem(&scene, dtype, batches, tokens, 8, 128);
          const rope::RopePlan plan = plan_of(scene, device);
          INFO(describe(scene) << "; " << multiprocessors << " multiprocessors: " << describe(plan));
          CHECK(plan.vector_elements * size == (tokens == most ? 8 : 16));
          CHECK(is_of_short_launch(plan.kernel) == (has_short_kernel && tokens == most));
          CHECK(fault_of(scene, device, plan).empty());
          if (multiprocessors <= 60) CHECK(Launch(scene, plan).run().empty());
        }
      }
    }
  }
}

TEST_CASE("bytes that a call moves", "[rope plan]") {
  Scene scene;
  set_problem(&scene, ROPE_DTYPE_BF16, 2, 3, 5, 128);
  CHECK(rope::moved_bytes(scene.problem) == 2 * 2 * 2 * 3 * 5 * 128);
  rope_config_t config = some_config(ROPE_DTYPE_F64, 128);
  config.rotary_dim = 32;
  set_problem(&scene, config, {2, 3, 5, 128});
  CHECK(rope::moved_bytes(scene.problem) == 2 * 8 * 2 * 3 * 5 * 32);  // in place only the window
  rope_args_t args = {};
  args.q_out = compact_tensor(uintptr_t{3} << 61, ROPE_DTYPE_F64, {2, 3, 5, 128});
  args.k = compact_tensor(uintptr_t{4} << 61, ROPE_DTYPE_F64, {2, 3, 1, 128});
  set_problem(&scene, config, {2, 3, 5, 128}, args);
  CHECK(rope::moved_bytes(scene.problem) == 2 * 8 * 2 * 3 * (5 * 128 + 32));
  // The same elements over and over.
  args = {};
  args.q_out = fake_tensor(uintptr_t{3} << 61, ROPE_DTYPE_F64, {1, int64_t{1} << 45, 1, 128}, {0, 128, 0, 1});
  set_problem(&scene, config, {1, int64_t{1} << 45, 1, 128}, args);
  CHECK(rope::moved_bytes(scene.problem) == int64_t{1} << 56);
}

TEST_CASE("a plan in words", "[rope plan]") {
  Scene scene;
  set_problem(&scene, ROPE_DTYPE_BF16, 4, 4096, 32, 128);
  CHECK(explain(scene, kH200) ==
        "rope BF16 half on CUDA: long angles of batches kernel, vectors of 16 bytes, grid 8192 x 4 of 128 threads, 512 "
        "bytes shared, 268.435 MB read and written");
  CHECK(explain(scene, {false, 12, 0, 0, 0}) ==
        "rope BF16 half on the CPU: 12 of 12 threads, 268.435 MB read and written");
  CHECK(explain(scene, {false, 1000, 0, 0, 0}) ==
        "rope BF16 half on the CPU: 256 of 1000 threads, 268.435 MB read and written");

  // One token of a decoder: 1024 wide units are few for 132 multiprocessors, more for 3, and many for 1.
  set_problem(&scene, ROPE_DTYPE_F32, 1, 1, 64, 128);
  CHECK(explain(scene, kH200) ==
        "rope F32 half on CUDA: short warp angles kernel, vectors of 8 bytes, grid 1 x 16 of 128 threads, 2048 bytes "
        "shared, 0.065536 MB read and written");
  CHECK(explain(scene, {true, 0, 3, 75, 48 << 10}) ==
        "rope F32 half on CUDA: short angles kernel, vectors of 8 bytes, grid 1 x 8 of 256 threads, 512 bytes shared, "
        "0.065536 MB read and written");
  CHECK(explain(scene, {true, 0, 1, 75, 48 << 10}) ==
        "rope F32 half on CUDA: token angles kernel, vectors of 16 bytes, grid 8 x 1 of 128 threads, 512 bytes shared, "
        "0.065536 MB read and written");
  CHECK(explain(scene, {false, 12, 0, 0, 0}) ==
        "rope F32 half on the CPU: 1 of 12 threads, 0.065536 MB read and written");

  rope_config_t config = some_config(ROPE_DTYPE_F16, 128);
  config.style = ROPE_STYLE_INTERLEAVED;
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F16, ROPE_DTYPE_F32}) {
    rope_args_t args = {};
    args.cos = compact_tensor(far_address(0), dtype, {1 << 16, 64});
    args.sin = compact_tensor(far_address(1), dtype, {1 << 16, 64});
    set_problem(&scene, config, {1, 4096, 1, 128}, args);
    CHECK(explain(scene, kH200) ==
          "rope F16 interleaved on CUDA: short table kernel, vectors of 8 bytes, grid 256 x 1 of 256 threads, 0 bytes "
          "shared, 2.09715 MB read and written");
    set_problem(&scene, config, {1, 1 << 16, 1, 128}, args);
    CHECK(explain(scene, kH200) ==
          "rope F16 interleaved on CUDA: own table kernel, vectors of 16 bytes, grid 4096 x 1 of 128 threads, 0 bytes "
          "shared, 33.5544 MB read and written");
  }

  set_problem(&scene, some_config(ROPE_DTYPE_F32, 128), {1, 1, 64, 128}, with_flag({}));
  CHECK(explain(scene, kH200) ==
        "rope F32 half on CUDA: short warp angles kernel, vectors of 8 bytes, grid 1 x 32 of 64 threads, 1024 bytes "
        "shared, 0.065536 MB read and written");
  set_problem(&scene, ROPE_DTYPE_F32, 1, 1 << 16, 1, 128);
  CHECK(explain(scene, kH200) ==
        "rope F32 half on CUDA: own angles kernel, vectors of 16 bytes, grid 8192 x 1 of 128 threads, 0 bytes shared, "
        "67.1089 MB read and written");

  rope_args_t wide_rows = {};
  wide_rows.cos = compact_tensor(far_address(0), ROPE_DTYPE_F32, {4096, 64});
  wide_rows.sin = compact_tensor(far_address(1), ROPE_DTYPE_F32, {4096, 64});
  rope_args_t narrow_rows = {};
  narrow_rows.cos = compact_tensor(far_address(0), ROPE_DTYPE_BF16, {4096, 64});
  narrow_rows.sin = compact_tensor(far_address(1), ROPE_DTYPE_BF16, {4096, 64});
  const std::string shape_of_many =
      " kernel, vectors of 16 bytes, grid 8192 x 1 of 128 threads, 512 bytes shared, 67.1089 MB read and written";
  set_problem(&scene, config, {1, 4096, 32, 128});
  CHECK(explain(scene, kH200) == "rope F16 interleaved on CUDA: long angles" + shape_of_many);
  for (const rope_args_t &rows : {wide_rows, narrow_rows}) {
    set_problem(&scene, config, {1, 4096, 32, 128}, rows);
    CHECK(explain(scene, kH200) == "rope F16 interleaved on CUDA: long table" + shape_of_many);
  }
  wide_rows.start_positions = compact_tensor(far_address(2), ROPE_DTYPE_I64, {1});
  set_problem(&scene, config, {1, 4096, 32, 128}, wide_rows);
  CHECK(explain(scene, kH200) == "rope F16 interleaved on CUDA: token table" + shape_of_many);

  rope_args_t by_sequence = {};
  by_sequence.cu_seqlens = compact_tensor(far_address(2), ROPE_DTYPE_I32, {9});
  config.layout = ROPE_LAYOUT_THD;
  set_problem(&scene, config, {64, 8, 128}, by_sequence);
  CHECK(explain(scene, {true, 0, 1, 90, 48 << 10}) ==
        "rope F16 interleaved on CUDA: token sequence angles kernel, vectors of 16 bytes, grid 32 x 1 of 128 threads, "
        "1024 bytes shared, 0.262144 MB read and written");
  by_sequence.cos = wide_rows.cos;
  by_sequence.sin = wide_rows.sin;
  set_problem(&scene, config, {64, 8, 128}, by_sequence);
  CHECK(explain(scene, {true, 0, 1, 90, 48 << 10}) ==
        "rope F16 interleaved on CUDA: token sequence table kernel, vectors of 16 bytes, grid 32 x 1 of 128 threads, "
        "1024 bytes shared, 0.262144 MB read and written");

  config.layout = ROPE_LAYOUT_BSHD;
  config.out_style = ROPE_STYLE_HALF;
  set_problem(&scene, config, {1, 4096, 32, 128});
  CHECK(explain(scene, kH200) == "rope F16 converted on CUDA: long converted angles" + shape_of_many);
  config.dtype = ROPE_DTYPE_F64;
  set_problem(&scene, config, {1, 1 << 16, 3, 128});
  for (const rope::DeviceInfo &device : kDevices) {
    const rope::RopePlan plan = plan_of(scene, device);
    std::ostringstream expected;
    expected << "rope F64 converted on CUDA: general kernel, vectors of 16 bytes, grid " << plan.grid_x << " x "
             << plan.grid_y << " of " << plan.threads << " threads, " << plan.shared_bytes
             << " bytes shared, 402.653 MB read and written";
    CHECK(explain(scene, device) == expected.str());
  }

  set_problem(&scene, ROPE_DTYPE_BF16, 1, 0, 8, 128);
  for (const rope::DeviceInfo &device : {kH200, rope::DeviceInfo{false, 4, 0, 0, 0}}) {
    CHECK(explain(scene, device) == "rope BF16 half: nothing to do, no element is rotated");
  }
}

TEST_CASE("a plan in words is cut to size", "[rope plan]") {
  Random random(4);
  Scene scene;
  size_t longest = 0;
  int explained = 0;
  for (int round = 0; round < 3000; ++round) {
    if (!draw(&random, kAnySizes, &scene)) continue;
    for (const rope::DeviceInfo &device : {kDevices[round % 11], rope::DeviceInfo{false, 64, 0, 0, 0}}) {
      rope::RopePlan plan;
      if (rope::plan_rope("rope_forward", scene.problem, device, &plan) != ROPE_STATUS_SUCCESS) continue;
      const std::string whole = explain(scene, device);
      CHECK(whole.find('\n') == std::string::npos);
      longest = std::max(longest, whole.size());
      for (const size_t size : {size_t{1}, size_t{2}, size_t{10}, whole.size() - 1, whole.size(), whole.size() + 1}) {
        char text[256];
        std::memset(text, '#', sizeof text);
        rope::explain_rope(scene.problem, plan, device, text, size);
        REQUIRE(std::string(text) == whole.substr(0, size - 1));
        REQUIRE(text[size] == '#');
      }
      ++explained;
    }
  }
  CHECK(explained > 1000);
  CHECK(longest > 150);
}
