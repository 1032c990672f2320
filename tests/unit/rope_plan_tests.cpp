// rope_plan_tests.cpp - the plan of every legal RoPE problem is a legal launch whose threads do each piece of work
// once, and says in words what it is
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <cstring>
#include <functional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "plan/explain.hpp"
#include "plan/rope_plan.hpp"
#include "plan/tuning.hpp"
#include "support/oracle.hpp"
#include "support/random.hpp"
#include "unit/fake_tensors.hpp"

namespace {

constexpr uint32_t kLargestGridX = 2147483647, kLargestGridY = 65535;
constexpr uint32_t kSharedBytes = 48 << 10;  // of every CUDA device, without asking

const rope::DeviceInfo kDevices[] = {
    {true, 0, 14, 75, 48 << 10},  {true, 0, 72, 75, 48 << 10},   {true, 0, 108, 80, 48 << 10},
    {true, 0, 56, 80, 48 << 10},  {true, 0, 132, 90, 48 << 10},  {true, 0, 78, 90, 48 << 10},
    {true, 0, 1, 90, 48 << 10},   {true, 0, 148, 100, 48 << 10}, {true, 0, 170, 120, 48 << 10},
    {true, 0, 20, 120, 48 << 10},
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
rope_tensor_t random_tensor(Random *random, const Scene &scene, int number, const std::vector<int64_t> &shape) {
  const size_t channels = shape.size() - 1;
  const int64_t alignment = int64_t{1} << random->below(5);  // of gaps and data, in elements
  std::vector<size_t> order;
  for (size_t axis = 0; axis < channels; ++axis) order.push_back(axis);
  for (size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[static_cast<size_t>(random->below(static_cast<int64_t>(i)))]);
  }
  std::vector<int64_t> stride(shape.size());
  const int64_t steps[] = {1, 1, 1, 1, 1, 1, 2, -1};
  stride[channels] = steps[random->below(8)];
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

// A table or angles, sequences and fault words for some of the calls.
void draw_operands(Random *random, const rope_config_t &config, int64_t width, rope_args_t *args) {
  const rope_dtype_t dtypes[] = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64};
  const std::vector<int64_t> shape = {64, random->below(3) == 0 ? width : width / 2};
  const int64_t table = random->below(6);
  if (table < 2) {
    const rope_dtype_t dtype = dtypes[random->below(4)];
    args->cos = compact_tensor(far_address(0), dtype, shape);
    args->sin = compact_tensor(far_address(1), dtype, shape);
  } else if (table == 2) {
    args->angles = compact_tensor(far_address(0), dtypes[random->below(3)], shape);
  }
  if (config.layout == ROPE_LAYOUT_THD && random->below(4) == 0) {
    args->cu_seqlens = compact_tensor(far_address(2), ROPE_DTYPE_I32, {4});
  }
  if (random->below(8) == 0) args->fault = compact_tensor(far_address(3), ROPE_DTYPE_I64, {2});
}

// False where the random problem is not a legal one.
bool draw(Random *random, const Sizes &sizes, Scene *scene) {
  rope_config_t config = {};
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
  if (rope::make_rope_geometry("rope_desc_create", config, &scene->geometry) != ROPE_STATUS_SUCCESS) return false;

  int64_t left = int64_t{1} << random->below(sizes.total + 1);
  const auto take = [&](int exponent) {
    const int64_t size = std::min(up_to_power(random, exponent), left);
    left /= size;
    return size;
  };
  int64_t batches = 1, tokens = 1, heads[3] = {};
  // Either may be the one that gets large.
  const bool heads_first = random->below(2) == 0;
  if (heads_first) heads[0] = take(sizes.heads - 1);
  if (config.layout != ROPE_LAYOUT_THD && random->below(3) != 0) batches = take(sizes.batch);
  tokens = take(sizes.tokens - 1);
  if (!heads_first) heads[0] = take(sizes.heads - 1);
  for (int i = 1; i < 3; ++i)
    heads[i] = random->below(3) == 0 ? heads[0] : random->below(2) * std::min(heads[0], 1 + random->below(8));
  if (random->below(16) == 0 && heads[1] > 0) heads[0] = 0;

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
    *in[i] = random_tensor(random, *scene, 2 * i, shape);
    if (random->below(2) == 0) *out[i] = random_tensor(random, *scene, 2 * i + 1, shape);
  }
  draw_operands(random, config, width, &scene->args);
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
       << plan.units_per_token << " units a token, " << plan.threads << " threads, " << plan.blocks_per_token
       << " blocks a token, " << plan.tokens_per_block << " tokens a block, " << plan.units_per_block
       << " units a block, " << plan.tokens_per_grid_row << " tokens a row, grid " << plan.grid_x << " x "
       << plan.grid_y << ", shared " << plan.shared_bytes;
  return text.str();
}

// Whether vectors of so many elements stay aligned and inside their part of a head, everywhere.
bool allows_vectors(const Scene &scene, int64_t elements) {
  const int64_t size = scene.element_size(), bytes = elements * size;
  const rope::RopeGeometry &geometry = scene.geometry;
  if (elements == 1) return true;
  if (bytes > 16 || geometry.rotary_offset % elements != 0) return false;
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

// What the header of plans says of the kernels.
rope::RopeKernel expected_kernel(const Scene &scene) {
  const rope::RopeProblem &problem = scene.problem;
  const int pairs = scene.geometry.rotary_dim / 2;
  const bool is_plain = scene.geometry.dtype != ROPE_DTYPE_F64 && scene.geometry.num_axes == 1 &&
                        !problem.sequences.is_present && problem.fault.data == nullptr && !scene.is_converted() &&
                        (problem.in_distance == 1 || problem.in_distance == pairs);
  if (is_plain && problem.angles == rope::AngleSource::kIncrements) return rope::RopeKernel::kComputed;
  const bool is_plain_table = problem.angles == rope::AngleSource::kTable && problem.table.width == pairs &&
                              problem.table.dtype != ROPE_DTYPE_F64;
  return is_plain && is_plain_table ? rope::RopeKernel::kTable : rope::RopeKernel::kGeneral;
}

int64_t widest_vectors(const Scene &scene) {
  int64_t elements = 16 / scene.element_size();
  while (!allows_vectors(scene, elements)) elements /= 2;
  const bool is_general = expected_kernel(scene) == rope::RopeKernel::kGeneral;
  return is_general && elements * scene.element_size() < 8 ? 1 : elements;
}

int64_t divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// "" or what is wrong with a plan as a launch.
std::string fault_of(const Scene &scene, const rope::RopePlan &plan) {
  const rope::RopeProblem &problem = scene.problem;
  const rope::RopeGeometry &geometry = scene.geometry;
  const auto fails = [](const char *what) { return std::string(what); };

  if (plan.grid_x < 1 || plan.grid_x > kLargestGridX) return fails("grid_x");
  if (plan.grid_y < 1 || plan.grid_y > kLargestGridY) return fails("grid_y");
  if (plan.threads < 1 || plan.threads > 1024 || plan.threads % 32 != 0) return fails("threads");
  const int64_t elements = plan.vector_elements, pairs = geometry.rotary_dim / 2, size = scene.element_size();
  const bool has_whole_heads = scene.converts_in_place();
  int64_t most_threads = rope::kMaxRopeThreads;
  if (has_whole_heads) most_threads = std::max<int64_t>(most_threads, 1024 / elements);
  if (plan.threads > most_threads) return fails("threads beyond the launch bounds");
  if (plan.shared_bytes > kSharedBytes) return fails("shared_bytes");

  if (plan.kernel != expected_kernel(scene)) return fails("kernel");
  const rope::Pairing pairing = scene.is_converted()     ? rope::Pairing::kConverted
                                : scene.is_interleaved() ? rope::Pairing::kInterleaved
                                                         : rope::Pairing::kHalf;
  if (plan.pairing != pairing) return fails("pairing");
  const bool is_general = plan.kernel == rope::RopeKernel::kGeneral;
  if (elements != 1 && elements * size != 16 && elements * size != 8 && (is_general || elements * size != 4)) {
    return fails("vector_elements");
  }
  if (!allows_vectors(scene, elements)) return fails("vectors are not aligned");
  // Bytes are few only in small problems, where narrower vectors may start sooner.
  const int64_t widest = widest_vectors(scene);
  if (elements * size < std::min<int64_t>(widest * size, 8)) return fails("vectors are needlessly narrow");
  const bool is_large = scene.num_tokens() * problem.heads_per_token() >= int64_t{1} << 24;
  if (is_large && elements != widest) return fails("vectors of a large problem are needlessly narrow");

  if (plan.rotary_units_per_head != pairs / elements) return fails("rotary_units_per_head");
  uint64_t units = 0;
  for (int i = 0; i < problem.num_tensors; ++i) {
    const bool has_copies = has_whole_heads ? scene.has_copies() : !problem.tensor[i].is_in_place;
    const int64_t copied = has_copies ? (geometry.head_dim - geometry.rotary_dim) / elements : 0;
    if (plan.units_per_head[i] != pairs / elements + copied) return fails("units_per_head");
    units += plan.units_per_head[i] * static_cast<uint64_t>(problem.tensor[i].heads);
  }
  if (plan.units_per_token != units) return fails("units_per_token");

  if (plan.tokens_per_block < 1 || plan.blocks_per_token < 1) return fails("an empty block");
  if (plan.tokens_per_block > 1 && plan.blocks_per_token > 1) return fails("blocks and tokens both divided");
  const uint64_t units_per_block = plan.units_per_block;
  if (units_per_block < 1 || units_per_block > plan.threads) return fails("more units a block than threads");
  if (!has_whole_heads && units_per_block != plan.threads) return fails("threads without a unit");
  if (has_whole_heads && units_per_block % plan.units_per_head[0] != 0) return fails("a head in two blocks");
  if (plan.tokens_per_block * units > units_per_block && plan.tokens_per_block > 1)
    return fails("too many tokens a block");
  if (plan.blocks_per_token * units_per_block < units) return fails("too few blocks a token");
  if ((plan.blocks_per_token - 1) * units_per_block >= units) return fails("a block without work");
  const int64_t real = geometry.dtype == ROPE_DTYPE_F64 ? 8 : 4, arrays = problem.table.is_by_channel ? 4 : 2;
  const int64_t info = is_general ? static_cast<int64_t>(sizeof(rope::TokenInfo)) : 4;
  if (plan.tokens_per_block * (arrays * pairs * real + info) > plan.shared_bytes) {
    return fails("shared memory too small");
  }

  const int64_t row = plan.tokens_per_grid_row;
  if (row < 1 || row > INT32_MAX) return fails("tokens_per_grid_row");
  if (row * plan.grid_y < scene.num_tokens()) return fails("tokens left over");
  if (row * (int64_t{plan.grid_y} - 1) >= scene.num_tokens()) return fails("a row without tokens");
  if (divide_up(row, plan.tokens_per_block) * plan.blocks_per_token != plan.grid_x) return fails("grid_x and the row");
  if (problem.batches > 1 && row % problem.tokens != 0) return fails("a row with a part of a batch");
  if (problem.batches == 1 && plan.grid_y > 1 && row % plan.tokens_per_block != 0)
    return fails("a row with a part of a block");
  return "";
}

// How often each channel is written and each pair rotated when a launch runs, thread by thread, as rope_plan.hpp says.
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
    for (uint32_t y = 0; y < plan_.grid_y; ++y) {
      for (uint32_t x = 0; x < plan_.grid_x; ++x) {
        for (uint32_t thread = 0; thread < plan_.threads; ++thread) {
          const std::string fault = run_thread(x, y, thread);
          if (!fault.empty()) return fault;
        }
      }
    }
    return check_counts();
  }

 private:
  struct Place {
    int64_t batch, token;
    int tensor;
    int64_t head;
    size_t row;  // of heads of tokens
  };

  std::string run_thread(uint32_t x, uint32_t y, uint32_t thread) {
    const int64_t group = x / plan_.blocks_per_token;
    int64_t token_of_block = 0, unit = int64_t{x % plan_.blocks_per_token} * plan_.units_per_block + thread;
    if (thread >= plan_.units_per_block) return "";
    if (plan_.tokens_per_block > 1) {
      token_of_block = thread / plan_.units_per_token;
      unit = thread % plan_.units_per_token;
    }
    if (token_of_block >= plan_.tokens_per_block || unit >= plan_.units_per_token) return "";
    const int64_t in_row = group * plan_.tokens_per_block + token_of_block;
    const int64_t token = y * plan_.tokens_per_grid_row + in_row;
    if (in_row >= plan_.tokens_per_grid_row || token >= scene_.num_tokens()) return "";

    const rope::RopeProblem &problem = scene_.problem;
    Place place = {token / problem.tokens, token % problem.tokens, 0, 0, 0};
    while (unit >= plan_.units_per_head[place.tensor] * problem.tensor[place.tensor].heads) {
      unit -= plan_.units_per_head[place.tensor] * problem.tensor[place.tensor].heads;
      if (++place.tensor >= problem.num_tensors) return "a unit of no tensor";
    }
    place.head = unit / plan_.units_per_head[place.tensor];
    unit %= plan_.units_per_head[place.tensor];
    place.row =
        static_cast<size_t>(token) * heads_per_token_ + first_head_[place.tensor] + static_cast<size_t>(place.head);
    if (scene_.is_converted() && problem.tensor[place.tensor].is_in_place) {
      const int64_t block = int64_t{y} * plan_.grid_x + x;
      if (block_of_row_[place.row] >= 0 && block_of_row_[place.row] != block) return "a head in two blocks";
      block_of_row_[place.row] = block;
    }
    if (unit < plan_.rotary_units_per_head) return rotate(place, unit);
    // Where blocks have whole heads, heads in place have units with nothing to do beside heads that are copied.
    if (problem.tensor[place.tensor].is_in_place) return scene_.converts_in_place() ? "" : "a copy in place";
    return copy(place, unit - plan_.rotary_units_per_head);
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

  // Which pairs a unit's vectors hold, both channels of each; empty where one is not whole.
  std::vector<int> pairs_of(std::pair<int, int> vectors, int distance) const {
    std::vector<int> channels, pairs;
    for (const int first : {vectors.first, vectors.second}) {
      for (int i = 0; i < plan_.vector_elements; ++i) channels.push_back(first + i);
    }
    for (const int channel : channels) {
      const bool is_second = channel / distance % 2 != 0;
      const int partner = is_second ? channel - distance : channel + distance;
      if (std::find(channels.begin(), channels.end(), partner) == channels.end()) return {};
      if (!is_second) pairs.push_back(channel / (2 * distance) * distance + channel % distance);
    }
    return pairs;
  }

  std::string rotate(const Place &place, int64_t unit) {
    const rope::RopeProblem &problem = scene_.problem;
    const std::pair<int, int> from = vectors_of(unit, problem.in_distance), to = vectors_of(unit, problem.out_distance);
    const std::vector<int> pairs = pairs_of(from, problem.in_distance);
    if (pairs.empty()) return "a pair in two units";
    if (pairs != pairs_of(to, problem.out_distance)) return "other pairs written than read";
    for (const int channel : {from.first, from.second}) {
      const std::string fault = check_vector(place, scene_.geometry.rotary_offset + channel, false);
      if (!fault.empty()) return fault;
    }
    for (const int channel : {to.first, to.second}) {
      const std::string fault = write(place, scene_.geometry.rotary_offset + channel);
      if (!fault.empty()) return fault;
    }
    for (const int pair : pairs) {
      ++rotated_[place.row * static_cast<size_t>(scene_.geometry.rotary_dim / 2) + static_cast<size_t>(pair)];
    }
    return "";
  }

  // One vector of the channels outside the window.
  std::string copy(const Place &place, int64_t unit) {
    const rope::RopeGeometry &geometry = scene_.geometry;
    int channel = static_cast<int>(unit) * plan_.vector_elements;
    if (channel >= geometry.rotary_offset) channel += geometry.rotary_dim;
    const std::string fault = check_vector(place, channel, false);
    return fault.empty() ? write(place, channel) : fault;
  }

  std::string check_vector(const Place &place, int channel, bool is_out) const {
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

  std::string write(const Place &place, int channel) {
    const std::string fault = check_vector(place, channel, true);
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
  std::vector<uint8_t> written_, rotated_;
  std::vector<int64_t> block_of_row_;  // of heads that are converted in place
};

// The same launch in rows of at most `tokens`, by the rule for rows: whole batches, or whole blocks of the one batch.
rope::RopePlan in_short_rows(const Scene &scene, rope::RopePlan plan, int64_t tokens) {
  const int64_t unit = scene.problem.batches > 1 ? scene.problem.tokens : plan.tokens_per_block;
  plan.tokens_per_grid_row = std::max(tokens / unit, int64_t{1}) * unit;
  plan.grid_x =
      static_cast<uint32_t>(divide_up(plan.tokens_per_grid_row, plan.tokens_per_block)) * plan.blocks_per_token;
  plan.grid_y = static_cast<uint32_t>(divide_up(scene.num_tokens(), plan.tokens_per_grid_row));
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

// As the model has it.
void set_problem(Scene *scene, rope_dtype_t dtype, int64_t batches, int64_t tokens, int64_t heads, int32_t head_dim) {
  set_problem(scene, some_config(dtype, head_dim), {batches, tokens, heads, head_dim});
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
  int of_kernel[3] = {}, of_pairing[3] = {};
  for (int round = 0; round < 40000; ++round) {
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
        int64_t units = 0;
        for (int i = 0; i < scene.problem.num_tensors; ++i) {
          const rope::RotatedTensor &tensor = scene.problem.tensor[i];
          const int64_t copied = tensor.is_in_place ? 0 : scene.geometry.head_dim - scene.geometry.rotary_dim;
          units += tensor.heads * ((scene.geometry.rotary_dim / 2 + copied) / widest_vectors(scene));
        }
        const int64_t blocks_per_token = divide_up(units, rope::kMaxRopeThreads);
        const bool fills_grid = scene.num_tokens() / kLargestGridY >= kLargestGridX / 8 / blocks_per_token;
        const bool fills_row =
            scene.problem.batches > 1 && scene.problem.tokens >= kLargestGridX / 8 / blocks_per_token;
        REQUIRE((fills_grid || fills_row));
        continue;
      }
      ++planned;
      const std::string fault = fault_of(scene, plan);
      if (!fault.empty()) {
        INFO(describe(scene) << "; sm_" << device.compute_capability << ": " << describe(plan));
        FAIL(fault);
      }
      ++(plan.vector_elements > 1 ? wide : scalar);
      rows += plan.grid_y > 1;
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
  CHECK(of_2_to_40_tokens > 10);
  CHECK(of_2_to_19_heads > 100);
  CHECK(whole_heads > 1000);
  for (const int count : of_kernel) CHECK(count > 1000);
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
    set_problem(&scene, ROPE_DTYPE_F16, 2, int64_t{1} << 32, 1, 128);
    CHECK(rope::plan_rope("rope_backward", scene.problem, device, &plan) == ROPE_STATUS_NOT_SUPPORTED);
    // As one batch they do.
    set_problem(&scene, ROPE_DTYPE_F16, 1, int64_t{1} << 33, 1, 128);
    CHECK(rope::plan_rope("rope_backward", scene.problem, device, &plan) == ROPE_STATUS_SUCCESS);
    CHECK(fault_of(scene, plan).empty());
  }
}

TEST_CASE("a launch does each piece of work once", "[rope plan]") {
  Random random(2);
  Scene scene;
  int launches = 0, of_several_tokens = 0, of_several_blocks = 0, short_rows = 0, wide_copies = 0;
  int whole_heads = 0, large_heads = 0, idle_units = 0, wide_blocks = 0, wide_converted = 0;
  for (int round = 0; round < 6000; ++round) {
    if (!draw(&random, kSmallSizes, &scene)) continue;
    const rope::DeviceInfo &device = kDevices[round % 10];
    rope::RopePlan plan;
    REQUIRE(rope::plan_rope("rope_forward", scene.problem, device, &plan) == ROPE_STATUS_SUCCESS);
    rope::RopePlan rows = in_short_rows(scene, plan, 1 + random.below(scene.num_tokens()));
    for (const rope::RopePlan *variant : {&plan, &rows}) {
      INFO(describe(scene) << "; sm_" << device.compute_capability << ": " << describe(*variant));
      const std::string not_legal = fault_of(scene, *variant);
      if (!not_legal.empty()) FAIL(not_legal);
      const std::string fault = Launch(scene, *variant).run();
      if (!fault.empty()) FAIL(fault);
    }
    ++launches;
    of_several_tokens += plan.tokens_per_block > 1 && scene.num_tokens() > plan.tokens_per_block;
    of_several_blocks += plan.blocks_per_token > 1;
    short_rows += rows.grid_y > 1;
    wide_copies += plan.vector_elements > 1 && plan.units_per_head[0] > plan.rotary_units_per_head;
    whole_heads += scene.converts_in_place();
    large_heads += plan.threads > static_cast<uint32_t>(rope::kMaxRopeThreads);
    idle_units += scene.converts_in_place() && scene.has_copies();
    wide_blocks += plan.vector_elements > 1 && scene.is_half() && scene.block() < scene.geometry.rotary_dim;
    wide_converted += plan.vector_elements > 1 && scene.is_converted();
  }
  CHECK(launches > 4000);
  CHECK(of_several_tokens > 100);
  CHECK(of_several_blocks > 100);
  CHECK(short_rows > 1000);
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
              config.out_style = style == ROPE_STYLE_HALF ? ROPE_STYLE_INTERLEAVED : ROPE_STYLE_HALF;
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
              for (const int device : {0, 4}) {
                const rope::RopePlan plan = plan_of(scene, kDevices[device]);
                INFO(describe(scene) << ": " << describe(plan));
                const std::string fault = fault_of(scene, plan) + Launch(scene, plan).run();
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
            for (const int device : {0, 4, 9}) {
              rope::RopePlan plan;
              REQUIRE(rope::plan_rope("rope_forward", scene.problem, kDevices[device], &plan) == ROPE_STATUS_SUCCESS);
              rope::RopePlan rows = in_short_rows(scene, plan, tokens / 2);
              for (const rope::RopePlan *variant : {&plan, &rows}) {
                const std::string fault = fault_of(scene, *variant) + Launch(scene, *variant).run();
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
      CHECK(fault_of(scene, plan).empty());
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
  const rope::RopeKernel computed = rope::RopeKernel::kComputed, simple_table = rope::RopeKernel::kTable;
  const rope::RopeKernel general = rope::RopeKernel::kGeneral;
  const struct {
    const char *title;
    rope::RopeKernel kernel;
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
       [](rope_config_t &, rope_args_t &args) {
         args.positions = compact_tensor(far_address(2), ROPE_DTYPE_I32, {2, 64});
         args.start_positions = compact_tensor(far_address(3), ROPE_DTYPE_I64, {2});
       }},
      {"F32 table", simple_table, rope::Pairing::kHalf,
       [&](rope_config_t &, rope_args_t &args) { args = table(ROPE_DTYPE_F32, 64); }},
      {"BF16 table by token", simple_table, rope::Pairing::kHalf,
       [&](rope_config_t &, rope_args_t &args) {
         args = table(ROPE_DTYPE_BF16, 64);
         args.table_rows = ROPE_TABLE_BY_TOKEN;
       }},
      {"F64 table", general, rope::Pairing::kHalf,
       [&](rope_config_t &, rope_args_t &args) { args = table(ROPE_DTYPE_F64, 64); }},
      {"table of a column a channel", general, rope::Pairing::kHalf,
       [&](rope_config_t &, rope_args_t &args) { args = table(ROPE_DTYPE_F32, 128); }},
      {"angles", general, rope::Pairing::kHalf,
       [](rope_config_t &, rope_args_t &args) {
         args.angles = compact_tensor(far_address(0), ROPE_DTYPE_F32, {64, 64});
       }},
      {"F64", general, rope::Pairing::kHalf,
       [](rope_config_t &config, rope_args_t &) { config.dtype = ROPE_DTYPE_F64; }},
      {"several axes", general, rope::Pairing::kHalf,
       [](rope_config_t &config, rope_args_t &) { config.num_axes = 2; }},
      {"blocks", general, rope::Pairing::kHalf, [](rope_config_t &config, rope_args_t &) { config.pair_block = 64; }},
      {"another out_style", general, rope::Pairing::kConverted,
       [](rope_config_t &config, rope_args_t &) { config.out_style = ROPE_STYLE_INTERLEAVED; }},
      {"fault", general, rope::Pairing::kHalf,
       [](rope_config_t &, rope_args_t &args) { args.fault = compact_tensor(far_address(2), ROPE_DTYPE_I64, {2}); }},
      {"sequences", general, rope::Pairing::kHalf,
       [](rope_config_t &config, rope_args_t &args) {
         config.layout = ROPE_LAYOUT_THD;
         args.cu_seqlens = compact_tensor(far_address(2), ROPE_DTYPE_I32, {9});
       }},
  };
  Scene scene;
  for (const auto &feature : features) {
    rope_config_t config = some_config(ROPE_DTYPE_BF16, 128);
    rope_args_t args = {};
    feature.change(config, args);
    const bool is_thd = config.layout == ROPE_LAYOUT_THD;
    set_problem(&scene, config, is_thd ? std::vector<int64_t>{64, 8, 128} : std::vector<int64_t>{2, 64, 8, 128}, args);
    INFO(feature.title);
    for (const rope::DeviceInfo &device : kDevices) {
      const rope::RopePlan plan = plan_of(scene, device);
      CHECK(plan.kernel == feature.kernel);
      CHECK(plan.pairing == feature.pairing);
      CHECK(fault_of(scene, plan).empty());
    }
  }
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
               {ROPE_DTYPE_BF16, half, half, 4, 1},  // 4 bytes, which the general kernel does not have
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
      CHECK(fault_of(scene, plan).empty());
    }
  }
}

TEST_CASE("a few tokens take narrower vectors on devices with room for more threads", "[rope plan]") {
  Scene scene;
  for (const rope_dtype_t dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_BF16, ROPE_DTYPE_F64}) {
    const int64_t size = oracle::element_size(dtype), wide_units = 8 * 64 * size / 16;
    for (const int multiprocessors : {1, 14, 16, 26, 60, 132, 264}) {
      const rope::DeviceInfo device = {true, 0, multiprocessors, 90, 48 << 10};
      const int64_t most = rope::kSmallLaunchThreadsPerMultiprocessor * multiprocessors / wide_units;
      for (const int64_t tokens : {most, most + 1}) {
        if (tokens == 0) continue;
        set_problem(&scene, dtype, 1, tokens, 8, 128);
        const rope::RopePlan plan = plan_of(scene, device);
        INFO(describe(scene) << "; " << multiprocessors << " multiprocessors: " << describe(plan));
        CHECK(plan.vector_elements * size == (tokens == most ? 8 : 16));
        CHECK(fault_of(scene, plan).empty());
        if (multiprocessors <= 60) CHECK(Launch(scene, plan).run().empty());
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
  CHECK(
      explain(scene, kH200) ==
      "rope BF16 half on CUDA: computed angles kernel, vectors of 16 bytes, grid 32768 x 1 of 128 threads, 1 tokens a "
      "block, 516 bytes shared, 268.435 MB read and written");
  CHECK(explain(scene, {false, 12, 0, 0, 0}) ==
        "rope BF16 half on the CPU: 12 of 12 threads, 268.435 MB read and written");
  CHECK(explain(scene, {false, 1000, 0, 0, 0}) ==
        "rope BF16 half on the CPU: 256 of 1000 threads, 268.435 MB read and written");

  // One token of a decoder: 1024 wide units are fewer than 132 multiprocessors take, more than 3 do.
  set_problem(&scene, ROPE_DTYPE_F32, 1, 1, 64, 128);
  CHECK(explain(scene, kH200) ==
        "rope F32 half on CUDA: computed angles kernel, vectors of 8 bytes, grid 16 x 1 of 128 threads, 1 tokens a "
        "block, "
        "516 bytes shared, 0.065536 MB read and written");
  CHECK(explain(scene, {true, 0, 3, 75, 48 << 10}) ==
        "rope F32 half on CUDA: computed angles kernel, vectors of 16 bytes, grid 8 x 1 of 128 threads, 1 tokens a "
        "block, "
        "516 bytes shared, 0.065536 MB read and written");
  CHECK(explain(scene, {false, 12, 0, 0, 0}) ==
        "rope F32 half on the CPU: 1 of 12 threads, 0.065536 MB read and written");

  rope_args_t args = {};
  args.cos = compact_tensor(far_address(0), ROPE_DTYPE_F16, {4096, 64});
  args.sin = compact_tensor(far_address(1), ROPE_DTYPE_F16, {4096, 64});
  rope_config_t config = some_config(ROPE_DTYPE_F16, 128);
  config.style = ROPE_STYLE_INTERLEAVED;
  set_problem(&scene, config, {1, 4096, 1, 128}, args);
  const std::string table = explain(scene, kH200);
  INFO(table);
  CHECK(table.rfind("rope F16 interleaved on CUDA: table kernel, vectors of ", 0) == 0);
  CHECK(table.find(", 2.09715 MB read and written") != std::string::npos);

  config.out_style = ROPE_STYLE_HALF;
  config.dtype = ROPE_DTYPE_F64;
  set_problem(&scene, config, {1, 1 << 16, 3, 128});
  for (const rope::DeviceInfo &device : kDevices) {
    const rope::RopePlan plan = plan_of(scene, device);
    std::ostringstream expected;
    expected << "rope F64 converted on CUDA: general kernel, vectors of 16 bytes, grid " << plan.grid_x << " x "
             << plan.grid_y << " of " << plan.threads << " threads, " << plan.tokens_per_block << " tokens a block, "
             << plan.shared_bytes << " bytes shared, 402.653 MB read and written";
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
    for (const rope::DeviceInfo &device : {kDevices[round % 10], rope::DeviceInfo{false, 64, 0, 0, 0}}) {
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
