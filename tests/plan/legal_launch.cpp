// SPDX-License-Identifier: Apache-2.0
// legal_launch.cpp - conditions for every plan, with any kernel
#include "plan/legal_launch.hpp"

namespace {

constexpr uint32_t kSharedBytes = 48 << 10;  // available on every CUDA device without opting in

// Whether a row of the grid goes through batches before tokens, in the order of q in memory, if it has room for all
// batches.
bool is_batch_fastest(const Scene &scene, const rope::RopePlan &plan) {
  const int64_t *stride = scene.problem.tensor[0].in_stride;
  int64_t max = kMaxGridX;
  if (shape_of(plan.variant.kernel) == rope::RopeShape::kBlocks) {
    max = kMaxGridX / plan.blocks_per_token * int64_t{plan.tokens_per_block};
  }
  return scene.problem.batches > 1 && scene.problem.batches <= std::min(max, int64_t{kMaxGridX}) &&
         std::abs(stride[rope::kBatch]) < std::abs(stride[rope::kToken]);
}

std::string fault_of_blocks(const Scene &scene, const rope::RopePlan &plan) {
  const rope::RopeProblem &problem = scene.problem;
  const bool has_whole_heads = scene.converts_in_place(),
             is_general = plan.variant.kernel == rope::RopeKernel::kGeneral;
  const int64_t elements = plan.vector_elements, pairs = scene.geometry.rotary_dim / 2;
  int64_t max_threads = rope::kMaxRopeThreads;
  if (has_whole_heads) max_threads = std::max<int64_t>(max_threads, 1024 / elements);
  if (plan.threads > max_threads) return "threads beyond the launch bounds";
  if (plan.threads % 32 != 0) return "a block that ends within a warp";
  if (plan.thread_rows != 1 || plan.rows.is_part_slowest) return "rows of threads";
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
  if (row < 1 || row > INT32_MAX) return "tokens_per_grid_row";
  if (row * plan.grid_y < scene.num_tokens()) return "tokens left over";
  if (row * (int64_t{plan.grid_y} - 1) >= scene.num_tokens()) return "a row without tokens";
  if (problem.batches > 1 && row % (plan.is_batch_fastest ? problem.batches : problem.tokens) != 0) {
    return "a row with a part of a batch";
  }
  if (divide_up(row, plan.tokens_per_block) * plan.blocks_per_token != plan.grid_x) return "grid_x and the row";
  if (problem.batches == 1 && plan.grid_y > 1 && row % plan.tokens_per_block != 0) {
    return "a row with a part of a block";
  }
  return "";
}

std::string fault_of_rows(const Scene &scene, const rope::DeviceInfo &device, const rope::RopePlan &plan) {
  const int64_t units = plan.units.per_token, threads = plan.threads, rows = plan.thread_rows;
  const rope::RopeShape shape = shape_of(plan.variant.kernel);
  const bool is_long = shape == rope::RopeShape::kPairRows;
  const bool has_whole_warps = shape == rope::RopeShape::kWarpRows || scene.problem.sequences.is_present;
  if (plan.grid_y != 1) return "grid_y";
  if (rows < 1 || threads * rows > rope::kMaxRopeThreads) return "threads beyond the launch bounds";
  if (plan.tokens_per_block != rows) return "tokens_per_block";
  if (plan.blocks_per_token != divide_up(units, threads)) return "blocks_per_token";
  if (plan.grid_x != divide_up(scene.num_tokens(), rows) * plan.blocks_per_token) return "grid_x";
  if (has_whole_warps && threads % 32 != 0) return "a row that ends within a warp";
  if (units <= (plan.blocks_per_token - 1) * threads) return "a part without work";
  if (scene.converts_in_place() && threads % plan.units.per_head[0] != 0) return "a head in two blocks";
  const int64_t pairs = scene.geometry.rotary_dim / 2;
  if (is_long && (pairs > rope::kMaxShortPairs || pairs > threads)) return "more pairs than a row keeps";
  if (is_long && plan.vector_elements != 8) return "vectors that the kernel does not have";
  if (plan.shared_bytes != rows * 2 * (is_long ? rope::kMaxShortPairs : pairs) * 4) return "shared_bytes";
  // A token so far ahead is processed after those that the device holds at once, or their parts.
  const int64_t held = int64_t{device.multiprocessors} * rope::kRopeResidentThreads;
  const int64_t of_token = plan.rows.is_part_slowest ? threads : units, ahead = plan.rows.tokens_ahead;
  return (ahead - 1) * of_token > held || ahead * of_token <= held ? "tokens_ahead" : "";
}

std::string fault_of_flat(const Scene &scene, const rope::DeviceInfo &device, const rope::RopePlan &plan) {
  const int64_t units = scene.num_tokens() * plan.units.per_token, blocks = divide_up(units, rope::kFlatThreads);
  const int64_t held = device.multiprocessors * (rope::kFlatResidentThreads / rope::kFlatThreads);
  const bool may_loop = units <= int64_t{rope::rope_tuning_of(device).max_looping_vectors} * device.multiprocessors;
  if (plan.is_programmatic) return "a launch that waits for nothing";
  if (plan.threads != rope::kFlatThreads || plan.thread_rows != 1) return "threads";
  if (plan.grid_y != 1) return "grid_y";
  if (plan.grid_x != (may_loop ? std::min(blocks, held) : blocks)) return "grid_x";
  if (units > UINT32_MAX) return "numbers of more than 32 bits";
  if (plan.tokens_per_block != 1 || plan.blocks_per_token != 1) return "parts or tokens";
  if (plan.rows.is_part_slowest || plan.blocks.tokens_per_grid_row != 0) return "what other kernels have";
  if (plan.vector_elements * scene.element_size() != 16) return "vectors that the kernel does not have";
  return plan.shared_bytes != 0 ? "shared_bytes" : "";
}

std::string fault_of_parts(const Scene &scene, const rope::RopePlan &plan) {
  const int64_t units = plan.units.per_token, threads = plan.threads, rows = plan.thread_rows, parts = plan.grid_y;
  const int64_t pairs = scene.geometry.rotary_dim / 2, bytes = plan.vector_elements * scene.element_size();
  const bool is_short = shape_of(plan.variant.kernel) == rope::RopeShape::kShortParts;
  const rope::SharedAngles shared = rope::algorithm_of(plan.variant.kernel).shared;
  const bool is_warp = shared == rope::SharedAngles::kOfWarps, is_row = shared == rope::SharedAngles::kOfRows;
  if (rows < 1 || threads * rows > (is_short ? rope::kMaxShortThreads : rope::kThreadKernelThreads)) {
    return "threads beyond the launch bounds";
  }
  if (parts * threads < units) return "units left over";
  if ((parts - 1) * threads >= units) return "a part without work";
  if (is_row && threads < pairs) return "a row of fewer threads than pairs";
  if ((is_warp || is_row || parts > 1) && threads % 32 != 0) return "a row that ends within a warp";
  if (rows > 1 && parts > 1) return "blocks and tokens both divided";
  if (plan.blocks_per_token != parts) return "blocks_per_token";
  if (plan.tokens_per_block != rows) return "tokens_per_block";
  if (plan.grid_x != divide_up(scene.num_tokens(), rows)) return "grid_x";
  if (plan.grid_x * rows > UINT32_MAX || parts * threads > UINT32_MAX) return "numbers of more than 32 bits";
  if (plan.rows.is_part_slowest || plan.blocks.tokens_per_grid_row != 0) return "what other kernels have";
  if (bytes != (is_short ? 8 : 16)) return "vectors that the kernel does not have";
  if ((is_warp || is_row) && pairs > rope::kMaxShortPairs) return "more pairs than a warp or a row keeps";
  const int64_t sharers = is_warp ? threads * rows / 32 : is_row ? rows : 0;
  return plan.shared_bytes != sharers * 2 * rope::kMaxShortPairs * 4 ? "shared_bytes" : "";
}

}  // namespace

std::string fault_of(const Scene &scene, const rope::DeviceInfo &device, const rope::RopePlan &plan) {
  if (plan.grid_x < 1 || plan.grid_x > kMaxGridX) return "grid_x";
  if (plan.grid_y < 1 || plan.grid_y > kMaxGridY) return "grid_y";
  if (plan.threads < 1 || int64_t{plan.threads} * plan.thread_rows > 1024) return "threads";
  if (plan.shared_bytes > kSharedBytes) return "shared_bytes";
  if (plan.is_programmatic != is_programmatic(scene, device)) return "is_programmatic";

  const rope::Pairing pairing = scene.is_converted()     ? rope::Pairing::kConverted
                                : scene.is_interleaved() ? rope::Pairing::kInterleaved
                                                         : rope::Pairing::kHalf;
  if (plan.variant.pairing != pairing) return "pairing";
  if (!rope::may_have(pairing, plan.variant.kernel)) return "a kernel that descriptors do not load";
  const int64_t elements = plan.vector_elements, pairs = scene.geometry.rotary_dim / 2, size = scene.element_size();
  if (elements != 1 && elements * size != 16 && elements * size != 8) return "vector_elements";
  if (!allows_vectors(scene, elements)) return "vectors are not aligned";
  const int64_t widest = widest_vectors(scene);
  if (elements != widest && !(2 * elements == widest && widest * size == 16)) return "narrower vectors than needed";

  const rope::RopeAlgorithm &algorithm = rope::algorithm_of(plan.variant.kernel);
  rope::RopeLaunchFacts launch;
  rope::find_facts(scene.problem, device, &launch);
  const bool is_short = algorithm.shape == rope::RopeShape::kShortParts;
  if (is_short && launch.in_short == nullptr) return "a kernel for short launches";
  const rope::RopeFacts &facts = is_short ? *launch.in_short : launch.usual;
  if (facts.vector_elements != elements || !accepts(algorithm, facts)) return "a kernel that does not accept it";

  if (plan.units.rotary_per_head != pairs / elements) return "units.rotary_per_head";
  for (int i = 0; i < scene.problem.num_tensors; ++i) {
    if (plan.units.per_head[i] != units_of_head(scene, i, elements, plan.variant.kernel)) return "units.per_head";
  }
  if (plan.units.per_token != units_of_token(scene, elements, plan.variant.kernel)) return "units.per_token";
  if (plan.is_batch_fastest != is_batch_fastest(scene, plan)) return "is_batch_fastest";
  switch (algorithm.shape) {
    case rope::RopeShape::kBlocks:
      return fault_of_blocks(scene, plan);
    case rope::RopeShape::kParts:
    case rope::RopeShape::kShortParts:
      return fault_of_parts(scene, plan);
    case rope::RopeShape::kFlat:
      return fault_of_flat(scene, device, plan);
    default:
      return fault_of_rows(scene, device, plan);
  }
}
