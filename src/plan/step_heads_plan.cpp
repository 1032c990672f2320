// SPDX-License-Identifier: Apache-2.0
// step_heads_plan.cpp - selects a kernel of whole heads for a call with a step, and cuts its pieces into blocks
#include "core/problem/step_problem.hpp"
#include "plan/launch_shape.hpp"
#include "plan/step_plan_checks.hpp"

namespace rope {

namespace {

bool is_one_batch(const RopeProblem &problem, const TokenIntegers &integers) {
  return is_one_batch(problem, integers.token_stride, integers.batch_stride) &&
         fits(token_stride_of(problem, true, integers), 8);
}

// Whether tokens of all batches can be counted as one batch.
bool is_flat(const RopeProblem &problem, const StepPieces &pieces) {
  const StepProblem &step = *problem.step;
  const int64_t size = dtype_size(problem.geometry->dtype);
  for (const StepPiece &piece : pieces) {
    if (!is_one_batch(problem, piece.in_stride, size)) return false;
    if (piece.is_written && !is_one_batch(problem, piece.out_stride, size)) return false;
    const int64_t *const scales = piece.out_scales->row_stride;
    const RowFactor &factor = *piece.factor;
    if (!is_one_batch(problem, scales[1], scales[0]) ||
        !is_one_batch(problem, factor.token_stride, factor.batch_stride)) {
      return false;
    }
  }
  const bool has_implicit_positions = step.is_turned && !problem.positions.is_present;
  if (has_implicit_positions && problem.batches > 1 && problem.tokens > 1) return false;
  if (step.is_turned && problem.positions.is_present && !is_one_batch(problem, problem.positions)) return false;
  const CachePlaces &places = step.places;
  return !step.has_caches || (is_one_batch(problem, places_source(problem)) &&
                              (problem.batches == 1 || places.cached_tokens >= problem.tokens) &&
                              (problem.batches == 1 || problem.tokens == 1 || places.slots.is_present));
}

// Whether a piece is either copied or gets all that the call does to a tensor, and has a layout that the kernels
// support.
bool takes_piece(const RopeProblem &problem, const StepPieces &pieces, bool is_flat, const StepPiece &piece,
                 int channels) {
  const StepProblem &step = *problem.step;
  const bool is_changed = piece.is_normed || piece.is_turned;
  const bool has_one_block = piece.channels == channels;
  if (is_changed && (piece.is_normed != step.has_norm || piece.is_turned != step.is_turned)) return false;
  if (step.has_norm && pieces.count() > kMaxNormedStepPieces) return false;
  if (!has_one_block && (is_changed || step.has_norm || piece.channels % channels != 0)) return false;
  if (!piece.is_written || piece.has_code_out()) return true;
  const int64_t *const in = piece.in_stride, *const out = piece.out_stride;
  const auto fits_shift = [&](int64_t from, int64_t to) {
    int64_t shift;
    return !__builtin_sub_overflow(to, from, &shift) && fits(shift, dtype_size(problem.geometry->dtype));
  };
  if (!fits_shift(token_stride_of(problem, is_flat, in), token_stride_of(problem, is_flat, out))) return false;
  if (!step.has_norm) return piece.heads == 1 || fits_shift(in[kHead], out[kHead]);
  return (piece.heads == 1 || in[kHead] == out[kHead]) && (is_flat || in[kBatch] == out[kBatch]);
}

bool is_power_of_two(int number) {
  return (number & (number - 1)) == 0;
}

// Units of a thread in long launches with codes, or with windows of normed heads.
constexpr int kUnitsOfCodes = 2;

// Whether the kernels of whole heads can make the codes of a piece that is cut into blocks of `channels`.
bool takes_codes(const RopeProblem &problem, const StepPiece &piece, int channels) {
  if (!piece.has_codes()) return true;
  const int64_t size = dtype_size(problem.geometry->dtype);
  const auto takes_scales = [&](const WrittenScales &scales) {
    if (!scales.is_present()) return true;
    const int of_group = piece.channels / scales.groups;
    return of_group % channels == 0 && is_power_of_two(of_group / channels) &&
           step_lanes_log2(of_group, kUnitsOfCodes * static_cast<int>(kLongStepVectorBytes / size)) <= kWarpLanesLog2;
  };
  return can_be_codes(problem, piece) && takes_scales(*piece.out_scales) && takes_scales(*piece.cache_scales);
}

// Returns the channels of a block of a head, or 0 if the kernels of whole heads cannot serve the call with any size of
// vectors. Channels that are changed are one block; all others are cut into blocks of the same size.
int count_block_channels(const RopeProblem &problem, const StepHeads &heads) {
  const StepProblem &step = *problem.step;
  const StepPieces &pieces = heads.pieces;
  int channels = 0;
  for (const StepPiece &piece : pieces) channels = static_cast<int>(greatest_common_divisor(channels, piece.channels));
  for (const StepPiece &piece : pieces) {
    if (piece.is_normed || piece.is_turned) channels = piece.channels;
  }
  for (const StepPiece &piece : pieces) {
    if (!takes_piece(problem, pieces, heads.is_flat, piece, channels) || !takes_codes(problem, piece, channels) ||
        !takes_factor(problem, *piece.factor)) {
      return 0;
    }
  }
  const AngleTable &table = problem.table;
  const bool takes_angles = !step.is_turned || problem.angles != AngleSource::kTable ||
                            (table.cos.column_stride == 1 && table.sin.column_stride == 1 &&
                             table.cos.row_stride == table.sin.row_stride && table.cos.axis_stride == 0 &&
                             table.sin.axis_stride == 0 && fits(table.cos.row_stride, 4) && table.rows <= kMaxInt32);
  return takes_angles ? channels : 0;
}

// The instance that makes the codes of a long launch, and multiplies by row factors.
StepCodes codes_of(const RopeProblem &problem, const StepPieces &pieces, bool has_more) {
  bool has_scales = false, needs_all = problem.step->has_codes && (has_more || problem.geometry->rounds_before_codes);
  for (const StepPiece &piece : pieces) {
    const bool is_plain = !piece.has_words() && piece.amax == nullptr && piece.code_dtype() == ROPE_DTYPE_F8_E4M3;
    if (piece.factor->is_present() || (piece.has_codes() && !is_plain)) needs_all = true;
    if (piece.has_written_scales()) has_scales = true;
  }
  if (needs_all) return StepCodes::kAll;
  if (!problem.step->has_codes) return StepCodes::kNone;
  return has_scales ? StepCodes::kScales : StepCodes::kStatic;
}

// Whether the norm is one that kWarp, kShort and kLong lack.
bool has_more_norm(const RopeProblem &problem, const StepPieces &pieces) {
  const StepProblem &step = *problem.step;
  const NormGeometry &norm = problem.geometry->norm;
  bool has_head_weights = false;
  for (const StepPiece &piece : pieces) {
    if (piece.is_normed && piece.weight->head_stride != 0) has_head_weights = true;
  }
  return step.has_norm && (norm.type != ROPE_NORM_RMS || (step.is_turned && norm.is_after) || has_head_weights);
}

bool fit_vectors(const RopeProblem &problem, const StepPieces &pieces, int64_t vector_bytes) {
  for (const StepPiece &piece : pieces) {
    if (!fits_vectors(problem, piece, vector_bytes)) return false;
  }
  return true;
}

// Finds the units of blocks of `channels`, and the threads of each piece. Returns false if the kernels of whole heads
// do not support that number. A piece of several blocks has blocks of a power of two of units, and so has a head with a
// window, whose threads have at most one unit of it.
bool shape_pieces(const RopeProblem &problem, int channels, int64_t vector_bytes, int units_of_thread, RopePlan *plan) {
  StepHeads *const heads = &plan->heads;
  const int V = static_cast<int>(vector_bytes / dtype_size(problem.geometry->dtype)), units = channels / (2 * V);
  if (units < 4 || units > static_cast<int>(kWarpThreads) || units % 2 != 0 || channels != units * 2 * V) return false;
  if (!fit_vectors(problem, heads->pieces, vector_bytes)) return false;
  plan->vector_elements = V;
  heads->units = heads->window_units = static_cast<uint32_t>(units);
  heads->units_of_thread = units_of_thread;
  if (heads->pieces.has_windows()) {
    const int of_window = heads->pieces.window_channels / (2 * V);
    if (!is_power_of_two(units) || !is_power_of_two(of_window) || of_window < 2 ||
        of_window > units / units_of_thread || heads->pieces.window_channels != of_window * 2 * V) {
      return false;
    }
    heads->window_units = static_cast<uint32_t>(of_window);
  }
  int64_t per_token = 0;
  for (int i = 0; i < heads->pieces.count(); ++i) {
    const StepPiece &piece = heads->pieces[i];
    if (piece.channels != channels && !is_power_of_two(units)) return false;
    heads->blocks[i] = {};
    heads->blocks[i].lanes_log2 = static_cast<uint32_t>(step_lanes_log2(piece.channels, units_of_thread * V));
    per_token += piece.heads << heads->blocks[i].lanes_log2;
  }
  if (per_token > kMaxInt32) return false;
  plan->units.per_token = static_cast<uint32_t>(per_token);
  return true;
}

// Cuts a group of tokens into blocks, each with one piece. Blocks of a piece that is turned have at most
// max_turned_tokens tokens.
void shape_long(int64_t tokens, uint32_t max_turned_tokens, uint32_t wanted, RopePlan *plan) {
  StepHeads *const heads = &plan->heads;
  const StepPieces &pieces = heads->pieces;
  uint32_t most_rows = 1;
  for (int i = 0; i < pieces.count(); ++i) {
    const StepPiece &piece = pieces[i];
    StepPieceBlocks *const mine = &heads->blocks[i];
    const uint32_t threads = static_cast<uint32_t>(piece.heads) << mine->lanes_log2;
    const auto takes_rows = [&](uint32_t rows) {
      return threads * rows <= wanted && int64_t{rows / 2} * heads->turns < tokens &&
             (!piece.is_turned || rows * heads->turns <= max_turned_tokens);
    };
    mine->rows = 1;
    while (takes_rows(mine->rows * 2)) mine->rows *= 2;
    mine->parts = (threads - 1) / wanted + 1;
    if (mine->rows > most_rows) most_rows = mine->rows;
  }
  uint32_t blocks = 0;
  for (int i = 0; i < pieces.count(); ++i) {
    StepPieceBlocks *const mine = &heads->blocks[i];
    mine->first_block = blocks;
    mine->runs = most_rows / mine->rows;
    blocks += mine->runs * mine->parts;
  }
  heads->blocks_per_group = blocks;
  plan->threads = wanted;
  plan->thread_rows = 1;
  plan->tokens_per_block = most_rows * heads->turns;  // of a group
  plan->blocks_per_token = blocks;                    // of a group
}

// Pairs of a head that is turned.
uint32_t count_pairs(const StepPieces &pieces, int channels) {
  return static_cast<uint32_t>((pieces.has_windows() ? pieces.window_channels : channels) / 2);
}

// Plans a short launch. Its tokens are those of one batch.
bool plan_short_heads(const RopeProblem &problem, int channels, int64_t vectors, RopePlan *plan) {
  const StepProblem &step = *problem.step;
  const StepTuning &tuning = kStepTuning;
  const StepPieces &pieces = plan->heads.pieces;
  bool has_more = has_lookups(problem) || has_more_norm(problem, pieces) || pieces.has_windows();
  for (const StepPiece &piece : pieces) {
    if (piece.weight->data != nullptr && piece.weight->is_f32 && dtype_size(problem.geometry->dtype) == 2) {
      has_more = true;
    }
  }
  const uint32_t pairs = count_pairs(pieces, channels);
  const StepCodes codes = codes_of(problem, pieces, false);
  if (codes != StepCodes::kNone && codes != StepCodes::kStatic) return false;
  if (has_more && codes != StepCodes::kNone && !(step.has_norm && step.is_turned)) return false;
  const int64_t max_vectors = step.has_parts         ? tuning.max_short_part_vectors
                              : pieces.has_windows() ? tuning.max_short_window_vectors
                                                     : tuning.max_short_vectors;
  if (vectors > max_vectors || pairs > kMaxShortStepPairs || pieces.count() > kMaxShortStepPieces ||
      !shape_pieces(problem, channels, kShortStepVectorBytes, 1, plan)) {
    return false;
  }
  const bool has_table = step.is_turned && problem.angles == AngleSource::kTable,
             has_computed = step.is_turned && problem.angles == AngleSource::kIncrements;
  const bool is_warp = !has_more && !(step.has_codes && step.has_norm) &&
                       (!step.is_turned || (has_computed && vectors <= tuning.max_warp_vectors) ||
                        (has_table && step.has_codes && vectors <= tuning.max_few_vectors));
  const bool has_own_angles = has_table && !has_more && !step.has_norm && (is_warp || !step.has_codes);
  const bool shares_angles = step.is_turned && !has_own_angles;
  const uint32_t units = round_up_to_warps(plan->units.per_token);
  const int64_t max_few = step.is_turned ? tuning.max_few_vectors : tuning.max_warp_vectors;
  const uint32_t wanted = vectors <= max_few ? tuning.few_threads : tuning.short_threads;
  plan->threads = units < wanted ? units : wanted;
  if (shares_angles && !is_warp && plan->threads < pairs) plan->threads = round_up_to_warps(pairs);
  plan->thread_rows = 1;
  plan->blocks_per_token = (plan->units.per_token - 1) / plan->threads + 1;
  if (plan->blocks_per_token > kMaxGridY) return false;
  plan->grid_x = static_cast<uint32_t>(problem.batches * problem.tokens);
  plan->grid_y = plan->blocks_per_token;
  const uint32_t angles = 2 * kMaxShortStepPairs * static_cast<uint32_t>(sizeof(float));
  plan->shared_bytes = !shares_angles ? 0 : is_warp ? plan->threads / kWarpThreads * angles : angles;
  const StepKernel kernel = has_more ? StepKernel::kShortMore : is_warp ? StepKernel::kWarp : StepKernel::kShort;
  plan->step = variant_of(problem, kernel);
  return true;
}

bool plan_long_heads(const RopeProblem &problem, const DeviceInfo &device, int channels, RopePlan *plan) {
  const StepProblem &step = *problem.step;
  StepHeads *const heads = &plan->heads;
  const bool has_windows = heads->pieces.has_windows();
  plan->step = variant_of(problem, has_windows ? StepKernel::kLongWindow : StepKernel::kLong);
  plan->step.codes = codes_of(problem, heads->pieces, plan->step.has_more);
  if (has_windows && (dtype_size(problem.geometry->dtype) != 2 || plan->step.has_more ||
                      (plan->step.has_codes() && plan->step.codes != StepCodes::kStatic))) {
    return false;
  }
  const bool makes_codes = has_windows || plan->step.has_codes();
  if (makes_codes) plan->step.has_more = false;
  const uint32_t pairs = count_pairs(heads->pieces, channels);
  if (static_cast<uint32_t>(channels / 2) > kMaxLongStepPairs ||
      !shape_pieces(problem, channels, kLongStepVectorBytes, makes_codes ? kUnitsOfCodes : 1, plan)) {
    return false;
  }
  const int resident_threads =
      makes_codes ? kStepCodesResidentThreads[step.has_norm && !has_windows] : kStepLongResidentThreads[step.has_norm];
  const uint32_t held_threads = static_cast<uint32_t>(device.multiprocessors * resident_threads);
  const int64_t units = saturated_product(problem.batches * problem.tokens, plan->units.per_token);
  const uint32_t max_turns = (makes_codes ? kStepTuning.code_turns : kStepTuning.turns)[step.has_norm];
  heads->turns = 1;
  while (heads->turns < max_turns && units / held_threads > heads->turns) ++heads->turns;
  // Norm and a table 111.3 us against 116.3 without prefetching (H100); but latent heads 700 against 630.
  heads->prefetches = makes_codes && !step.has_parts && heads->turns > 1;
  // The angles of a lane, and its weights, lie together.
  const auto of_vector = static_cast<uint32_t>(plan->vector_elements), number = static_cast<uint32_t>(sizeof(float));
  const uint32_t of_lane = 2 * of_vector * static_cast<uint32_t>(has_windows ? 1 : heads->units_of_thread),
                 weights_of_lane = has_windows ? of_vector : of_lane;
  heads->angle_floats = 2 * pairs / of_lane * padded_lane(of_lane);
  const uint32_t weights =
      step.has_norm ? static_cast<uint32_t>(channels) / weights_of_lane * padded_lane(weights_of_lane) : 0;
  const int64_t batches = heads->is_flat ? 1 : problem.batches, tokens = problem.batches / batches * problem.tokens;
  shape_long(tokens, kStepTuning.long_angle_bytes / (2 * pairs * number), kStepTuning.long_threads, plan);
  const int64_t groups = (tokens - 1) / plan->tokens_per_block + 1;
  if (groups > kMaxGridX / heads->blocks_per_group || batches > kMaxGridY) return false;
  plan->grid_x = static_cast<uint32_t>(groups) * heads->blocks_per_group;
  plan->grid_y = static_cast<uint32_t>(batches);
  heads->tokens_ahead = held_threads / plan->units.per_token * heads->turns + 1;
  uint32_t most_tokens = 0;  // the largest number of a block with angles
  for (int i = 0; i < heads->pieces.count(); ++i) {
    const uint32_t of_block = heads->blocks[i].rows * heads->turns;
    if (heads->pieces[i].is_turned && of_block > most_tokens) most_tokens = of_block;
  }
  const uint32_t lost = plan->step.angles == StepAngles::kTable ? (most_tokens + 3) / 4 * 16 : 0;
  plan->shared_bytes = (most_tokens * heads->angle_floats + weights) * number + lost;
  return true;
}

}  // namespace

bool is_one_batch(const RopeProblem &problem, int64_t token_stride, int64_t batch_stride) {
  int64_t of_batch;
  return problem.batches == 1 || problem.tokens == 1 ||
         (!__builtin_mul_overflow(problem.tokens, token_stride, &of_batch) && of_batch == batch_stride);
}

bool is_one_batch(const RopeProblem &problem, const int64_t *stride, int64_t size) {
  return is_one_batch(problem, stride[kToken], stride[kBatch]) && fits(token_stride_of(problem, true, stride), size);
}

bool plan_heads(const RopeProblem &problem, const DeviceInfo &device, RopePlan *plan) {
  StepHeads *const heads = &plan->heads;
  if (!takes_tokens(problem) || has_token_norm(problem) || !make_step_pieces(problem, &heads->pieces)) return false;
  heads->is_flat = is_flat(problem, heads->pieces);
  const int channels = count_block_channels(problem, *heads);
  if (channels == 0 || problem.batches * problem.tokens > kMaxInt32) return false;
  const int64_t vectors = moved_bytes(problem) / (2 * kMaxVectorBytes) / device.multiprocessors;
  if (heads->is_flat && plan_short_heads(problem, channels, vectors, plan)) return true;
  // Rows are faster for heads with a window in launches that are not large.
  const int64_t max_of_rows =
      problem.step->has_codes ? kStepTuning.max_short_window_vectors : kStepTuning.max_short_vectors;
  if (heads->pieces.has_windows() && heads->is_flat && vectors <= max_of_rows) return false;
  return !has_more_norm(problem, heads->pieces) && plan_long_heads(problem, device, channels, plan);
}

}  // namespace rope
