// rope_plan_tests.cpp - the plan of every legal RoPE problem is a legal launch whose threads do each piece of work once
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

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

// False where the random problem is not a legal one.
bool draw(Random *random, const Sizes &sizes, Scene *scene) {
  rope_config_t config = {};
  const rope_dtype_t dtypes[] = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16};
  const int32_t head_dims[] = {2, 4, 6, 8, 16, 32, 64, 80, 96, 128, 128, 128, 192, 256, 512, 576, 1024};
  config.struct_size = sizeof config;
  config.device = ROPE_DEVICE_CUDA;
  config.dtype = dtypes[random->below(3)];
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
  return rope::make_rope_problem("rope_forward", scene->geometry, scene->args, false, &scene->problem) ==
             ROPE_STATUS_SUCCESS &&
         !scene->problem.is_empty();
}

std::string describe(const Scene &scene) {
  std::ostringstream text;
  const rope::RopeGeometry &geometry = scene.geometry;
  text << oracle::dtype_name(geometry.dtype) << " style " << geometry.style << " head_dim " << geometry.head_dim
       << " rotary_dim " << geometry.rotary_dim << " rotary_offset " << geometry.rotary_offset << " batches "
       << scene.problem.batches << " tokens " << scene.problem.tokens;
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
  text << "vectors of " << plan.vector_elements << ", " << plan.units_per_token << " units a token, " << plan.threads
       << " threads, " << plan.blocks_per_token << " blocks a token, " << plan.tokens_per_block << " tokens a block, "
       << plan.tokens_per_grid_row << " tokens a row, grid " << plan.grid_x << " x " << plan.grid_y << ", shared "
       << plan.shared_bytes;
  return text.str();
}

// Whether vectors of so many elements stay aligned and inside their part of a head, everywhere.
bool allows_vectors(const Scene &scene, int64_t elements) {
  const int64_t size = scene.element_size(), bytes = elements * size;
  const rope::RopeGeometry &geometry = scene.geometry;
  if (elements == 1) return true;
  if (bytes > 16 || geometry.rotary_offset % elements != 0 || geometry.rotary_dim / 2 % elements != 0) return false;
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
  if (plan.threads > static_cast<uint32_t>(rope::kMaxRopeThreads)) return fails("threads beyond the launch bounds");
  if (plan.shared_bytes > kSharedBytes) return fails("shared_bytes");

  const int64_t elements = plan.vector_elements, pairs = geometry.rotary_dim / 2;
  const bool is_float = geometry.dtype == ROPE_DTYPE_F32;
  if (elements != 1 && elements != 2 && elements != 4 && (is_float || elements != 8)) return fails("vector_elements");
  if (!allows_vectors(scene, elements)) return fails("vectors are not aligned");
  // Bytes are few only in small problems, where narrower vectors may start sooner.
  const int64_t widest = widest_vectors(scene), size = scene.element_size();
  if (elements * size < std::min<int64_t>(widest * size, 8)) return fails("vectors are needlessly narrow");
  const bool is_large = scene.num_tokens() * problem.heads_per_token() >= int64_t{1} << 24;
  if (is_large && elements != widest) return fails("vectors of a large problem are needlessly narrow");

  if (plan.rotary_units_per_head != pairs / elements) return fails("rotary_units_per_head");
  uint64_t units = 0;
  for (int i = 0; i < problem.num_tensors; ++i) {
    const int64_t copied = problem.tensor[i].is_in_place ? 0 : (geometry.head_dim - geometry.rotary_dim) / elements;
    if (plan.units_per_head[i] != pairs / elements + copied) return fails("units_per_head");
    units += plan.units_per_head[i] * static_cast<uint64_t>(problem.tensor[i].heads);
  }
  if (plan.units_per_token != units) return fails("units_per_token");

  if (plan.tokens_per_block < 1 || plan.blocks_per_token < 1) return fails("an empty block");
  if (plan.tokens_per_block > 1 && plan.blocks_per_token > 1) return fails("blocks and tokens both divided");
  if (plan.tokens_per_block * units > plan.threads && plan.tokens_per_block > 1)
    return fails("too many tokens a block");
  if (uint64_t{plan.blocks_per_token} * plan.threads < units) return fails("too few blocks a token");
  if (uint64_t{plan.blocks_per_token - 1} * plan.threads >= units) return fails("a block without work");
  const uint64_t angles = static_cast<uint64_t>(plan.tokens_per_block) * static_cast<uint64_t>(2 * pairs + 1);
  if (angles * 4 > plan.shared_bytes) return fails("shared memory too small");

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
    int64_t token_of_block = 0, unit = int64_t{x % plan_.blocks_per_token} * plan_.threads + thread;
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
    return unit < plan_.rotary_units_per_head ? rotate(place, unit) : copy(place, unit - plan_.rotary_units_per_head);
  }

  // Two vectors half a window apart, or one pair.
  std::string rotate(const Place &place, int64_t unit) {
    const rope::RopeGeometry &geometry = scene_.geometry;
    const int elements = plan_.vector_elements, half = geometry.rotary_dim / 2;
    const bool is_interleaved = geometry.style == ROPE_STYLE_INTERLEAVED;
    const bool is_neighbour = elements == 1 && is_interleaved;
    const int low = geometry.rotary_offset + static_cast<int>(unit) * (is_neighbour ? 2 : elements);
    const int high = low + (is_neighbour ? 1 : half);
    std::vector<int> channels;
    for (const int first : {low, high}) {
      const std::string fault = write(place, first);
      if (!fault.empty()) return fault;
      for (int i = 0; i < elements; ++i) channels.push_back(first + i - geometry.rotary_offset);
    }
    for (const int channel : channels) {
      const int partner = is_interleaved ? channel ^ 1 : (channel + half) % geometry.rotary_dim;
      if (std::find(channels.begin(), channels.end(), partner) == channels.end()) return "a pair in two units";
      if (channel > partner) continue;
      ++rotated_[place.row * static_cast<size_t>(half) + static_cast<size_t>(is_interleaved ? channel / 2 : channel)];
    }
    return "";
  }

  // One vector of the channels outside the window.
  std::string copy(const Place &place, int64_t unit) {
    const rope::RopeGeometry &geometry = scene_.geometry;
    int channel = static_cast<int>(unit) * plan_.vector_elements;
    if (channel >= geometry.rotary_offset) channel += geometry.rotary_dim;
    return write(place, channel);
  }

  std::string write(const Place &place, int channel) {
    const rope::RotatedTensor &tensor = scene_.problem.tensor[place.tensor];
    const int elements = plan_.vector_elements;
    if (channel < 0 || channel + elements > scene_.geometry.head_dim) return "a vector past its head";
    for (const bool is_out : {false, true}) {
      const int64_t *stride = is_out ? tensor.out_stride : tensor.in_stride;
      const int64_t offset = place.batch * stride[rope::kBatch] + place.token * stride[rope::kToken] +
                             place.head * stride[rope::kHead] + channel * stride[rope::kChannel];
      const uintptr_t address = reinterpret_cast<uintptr_t>(is_out ? tensor.out : tensor.in) +
                                static_cast<uintptr_t>(offset * scene_.element_size());
      if (address % static_cast<uintptr_t>(elements * scene_.element_size()) != 0)
        return "a vector that is not aligned";
      if (elements > 1 && stride[rope::kChannel] != 1) return "a vector of channels that are apart";
    }
    const size_t first = place.row * static_cast<size_t>(scene_.geometry.head_dim) + static_cast<size_t>(channel);
    for (int i = 0; i < elements; ++i) ++written_[first + static_cast<size_t>(i)];
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

// q of one tensor, as the model has it.
void set_problem(Scene *scene, rope_dtype_t dtype, int64_t batches, int64_t tokens, int64_t heads, int32_t head_dim) {
  rope_config_t config = {};
  config.struct_size = sizeof config;
  config.device = ROPE_DEVICE_CPU;
  config.dtype = dtype;
  config.layout = ROPE_LAYOUT_BSHD;
  config.style = ROPE_STYLE_HALF;
  config.head_dim = head_dim;
  config.theta = 1e4;
  REQUIRE(rope::make_rope_geometry("rope_desc_create", config, &scene->geometry) == ROPE_STATUS_SUCCESS);
  scene->args = {};
  scene->args.struct_size = sizeof scene->args;
  scene->args.q = compact_tensor(uintptr_t{1} << 61, dtype, {batches, tokens, heads, head_dim});
  const rope_status_t status =
      rope::make_rope_problem("rope_forward", scene->geometry, scene->args, false, &scene->problem);
  INFO(rope::last_error());
  REQUIRE(status == ROPE_STATUS_SUCCESS);
}

}  // namespace

TEST_CASE("the plan of every legal RoPE problem is a legal launch", "[rope plan]") {
  Random random(1);
  Scene scene;
  int planned = 0, wide = 0, scalar = 0, rows = 0, of_2_to_40_tokens = 0, of_2_to_19_heads = 0;
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
  }
  CHECK(launches > 4000);
  CHECK(of_several_tokens > 100);
  CHECK(of_several_blocks > 100);
  CHECK(short_rows > 1000);
  CHECK(wide_copies > 50);
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
