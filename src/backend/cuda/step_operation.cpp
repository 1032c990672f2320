// SPDX-License-Identifier: Apache-2.0
// step_operation.cpp - calls with norms, caches or heads that are not turned on CUDA: makes params from problem and
// plan
#include <type_traits>

#include "backend/cuda/kernels.hpp"
#include "backend/cuda/kernels/step_params.hpp"
#include "backend/cuda/operations.hpp"
#include "backend/cuda/param_parts.hpp"
#include "core/problem/visit_dtype.hpp"
#include "plan/step_plan.hpp"

namespace rope {

namespace {

const void *find_step_kernel(rope_dtype_t dtype, const StepVariant &variant) {
  const bool is_gradient = variant.kernel == StepKernel::kNormGradient;  // one for all types that are computed in fp32
  if (is_gradient && dtype != ROPE_DTYPE_F64) return step_kernel_of(float{}, variant);
  return visit_dtype(dtype, [&](auto element) { return step_kernel_of(element, variant); });
}

// The stride of heads in weights or in a bias.
int32_t head_bytes(const RopeProblem &problem, const ChannelNumbers &numbers) {
  return static_cast<int32_t>(numbers.head_stride * (numbers.is_f32 ? 4 : dtype_size(problem.geometry->dtype)));
}

// The size of a cache's element, or the data's if there is no cache.
int64_t cache_size(const RopeProblem &problem, const CacheView &cache) {
  return dtype_size(cache.data != nullptr ? cache.dtype : problem.geometry->dtype);
}

// The destinations that have codes, the codes' type, and whether a destination has the data's type.
uint32_t code_flags(const StepPiece &piece) {
  const auto flag = [](bool is_set, StepFlags bit) { return is_set ? uint32_t{bit} : 0u; };
  return flag(piece.has_code_out(), kHasCodeOut) | flag(piece.has_code_cache(), kHasCodeCache) |
         flag(piece.code_dtype() == ROPE_DTYPE_F8_E5M2, kHasE5M2) | flag(piece.has_words(), kHasWords);
}

void set_row_tensor(const RopeProblem &problem, const RopePlan &plan, int index, uint32_t begin, uint32_t cache_index,
                    StepRowTensor *params) {
  const RopeGeometry &geometry = *problem.geometry;
  const RotatedTensor &tensor = problem.tensor[index];
  const StepTensor &step = problem.step->tensor[index];
  const int64_t size = dtype_size(geometry.dtype);
  const int V = plan.vector_elements;
  const auto flag = [](bool is_set, StepFlags bit) { return is_set ? uint32_t{bit} : 0u; };
  params->flags = flag(step.is_turned, kIsTurned) | flag(step.is_normed, kIsNormed) |
                  flag(step.weight.is_f32 && size == 2, kHasWideWeight) |
                  flag(step.bias.is_f32 && size == 2, kHasWideBias) |
                  flag(step.is_normed || step.is_whole || step.is_cached(), kReadsOutside) |
                  flag(step.is_whole, kWritesOutside) | code_flags(whole_piece(problem, index));
  params->begin = begin;
  params->heads = static_cast<uint32_t>(tensor.heads);
  params->lanes_log2 = static_cast<uint32_t>(step_lanes_log2(step.channels, V));
  params->units_per_head = static_cast<uint32_t>(step.channels / (2 * V));
  params->in = make_row_side(tensor.in, tensor.in_stride, size, 0);
  if (step.is_written) params->out = make_row_side(tensor.out, tensor.out_stride, dtype_size(step.out_dtype), 0);
  params->cache = step.cache.data;
  params->cache_index = cache_index;
  params->cache_head = static_cast<int32_t>(step.cache.head_stride * cache_size(problem, step.cache));
  params->weight = step.weight.data;
  params->weight_head = head_bytes(problem, step.weight);
  params->bias = step.bias.data;
  params->bias_head = head_bytes(problem, step.bias);
  // A tensor without styles has no window: its units are copied, two vectors side by side.
  params->rotary_units = step.has_styles ? static_cast<uint32_t>(geometry.pairs() / V) : 0;
  params->window_begin = step.has_styles ? static_cast<int32_t>(step.window_begin * size) : 0;
  params->window_size = step.has_styles ? static_cast<int32_t>(geometry.rotary_dim * size) : 0;
  params->to_high = static_cast<int32_t>(geometry.pairs() * size);
  params->inverse_count = norm_form<float>(problem, index).inverse_count;
}

int64_t integer_bytes(bool is_64_bit) {
  return is_64_bit ? 8 : 4;
}

void set_pages(const CachePlaces &places, StepPages *params) {
  const PageTable &table = places.table;
  const int64_t integer = integer_bytes(table.is_64_bit), of_sequence = integer_bytes(places.sequence.is_64_bit);
  params->table = table.data;
  params->indptr = table.indptr;
  if (places.sequence.is_present) params->sequences = places.sequence.data;
  params->row_bytes = static_cast<int32_t>(table.row_stride * integer);
  params->column_bytes = static_cast<int32_t>(table.column_stride * integer);
  params->indptr_bytes = static_cast<int32_t>(table.indptr_stride * integer_bytes(table.is_indptr_64_bit));
  params->sequence_token_bytes = static_cast<int32_t>(places.sequence.token_stride * of_sequence);
  params->sequence_batch_bytes = static_cast<int32_t>(places.sequence.batch_stride * of_sequence);
  params->columns = static_cast<uint32_t>(table.columns);
  params->rows = static_cast<uint32_t>(table.rows);
  params->is_64_bit = table.is_64_bit;
  params->is_indptr_64_bit = table.is_indptr_64_bit;
  params->is_sequence_64_bit = places.sequence.is_64_bit;
}

// `is_flat`: tokens of all batches are counted as one batch to find a token's slot, or its position in the caches.
void set_slots(const RopeProblem &problem, bool is_flat, StepSlots *params) {
  const StepProblem &step = *problem.step;
  const CachePlaces &places = step.places;
  *params = {};
  params->has_caches = step.has_caches;
  params->entries = FastDivmod::by(1);
  if (!step.has_caches) return;
  const TokenIntegers &integers = places_source(problem);
  const int64_t integer = integer_bytes(integers.is_64_bit);
  if (integers.is_present) params->data = integers.data;
  params->token_bytes = static_cast<int32_t>(token_stride_of(problem, is_flat, integers) * integer);
  params->batch_bytes = static_cast<int32_t>(integers.batch_stride * integer);
  params->is_64_bit = integers.is_present && integers.is_64_bit;
  params->skips_slot_0 = places.skips_slot_0;
  params->entries = FastDivmod::by(static_cast<uint32_t>(places.entries));
  params->cached_tokens = static_cast<uint32_t>(places.cached_tokens);
  if (is_flat && problem.batches > 1) {
    params->cached_tokens = static_cast<uint32_t>(problem.batches * problem.tokens);
  }
  params->end = static_cast<uint32_t>(places.slots.is_present ? places.pages * places.entries : places.pages);
}

void set_lookups(const RopeProblem &problem, StepLookups *params) {
  const RopeGeometry &geometry = *problem.geometry;
  const CachePlaces &places = problem.step->places;
  *params = {};
  if (geometry.num_axes > 1) params->used_axes = geometry.used_axes;
  params->position_axis_bytes =
      static_cast<int32_t>(problem.positions.axis_stride * integer_bytes(problem.positions.is_64_bit));
  for (int pair = 0; pair < geometry.pairs(); ++pair) {
    params->pair_axis[pair / 16] |= static_cast<uint32_t>(geometry.pair_axis[pair]) << (pair % 16 * 2);
  }
  if (!problem.step->has_caches || places.slots.is_present) return;
  set_pages(places, &params->pages);
  if (!places.positions.is_present) params->slot_offset = static_cast<uint64_t>(problem.position_offset);
}

// The parameters of tokens that all kernels but the general one read.
template <typename Params>
void set_token_params(const RopeProblem &problem, bool is_flat, Params *params) {
  const RopeGeometry &geometry = *problem.geometry;
  const TokenIntegers &positions = problem.positions;
  const int64_t integer = integer_bytes(positions.is_64_bit);
  params->positions = positions.data;
  params->position_bytes = static_cast<int32_t>(token_stride_of(problem, is_flat, positions) * integer);
  params->has_positions = positions.is_present;
  params->has_wide_positions = positions.is_present && positions.is_64_bit;
  params->pairs = static_cast<uint32_t>(geometry.pairs());
  set_slots(problem, is_flat, &params->slots);
  int normed = 0;
  while (normed < problem.num_tensors - 1 && !problem.step->tensor[normed].is_normed) ++normed;
  params->norm = norm_form<float>(problem, normed);
  params->position_offset = static_cast<uint64_t>(problem.position_offset);
  set_scales(problem, params);
  params->fault = problem.fault;
}

void set_params(const RopeProblem &problem, const RopePlan &plan, StepRowParams *params) {
  const StepProblem &step = *problem.step;
  set_token_params(problem, false, params);
  set_lookups(problem, &params->lookups);
  params->num_tokens = static_cast<uint32_t>(problem.batches * problem.tokens);
  params->parts = FastDivmod::by(plan.blocks_per_token);
  params->tokens_per_batch = FastDivmod::by(static_cast<uint32_t>(problem.tokens));
  params->has_one_batch = problem.batches == 1;
  params->position_batch_bytes =
      static_cast<int32_t>(problem.positions.batch_stride * integer_bytes(problem.positions.is_64_bit));
  params->is_after = problem.geometry->norm.is_after;
  params->is_full_window = true;
  uint32_t begin = 0, caches = 0;
  for (int i = 0; i < 3; ++i) {
    params->tensor[i] = {};
    params->tensor[i].begin = ~uint32_t{0};
    if (i >= problem.num_tensors) continue;
    params->tensor[i].begin = begin;
    if (problem.tensor[i].heads == 0) continue;
    const StepTensor &tensor = step.tensor[i];
    StepRowTensor *const mine = &params->tensor[i];
    begin = static_cast<uint32_t>(step_tensor_begin(problem, plan, i, begin));
    set_row_tensor(problem, plan, i, begin, caches, mine);
    begin += static_cast<uint32_t>(problem.tensor[i].heads) << mine->lanes_log2;
    if (tensor.is_cached()) {
      const int64_t size = cache_size(problem, tensor.cache);
      params->page_bytes[caches] = tensor.cache.page_stride * size;
      params->entry_bytes[caches] = tensor.cache.entry_stride * size;
      ++caches;
    }
    if (tensor.is_normed && mine->rotary_units != 1u << mine->lanes_log2) params->is_full_window = false;
  }
  for (; caches < 2; ++caches) params->page_bytes[caches] = params->entry_bytes[caches] = 0;
  params->table = problem.table;
}

// A piece's factor, and the address of its largest magnitude. `is_flat` is that of set_slots.
StepHeadFactor make_factor(const RopeProblem &problem, bool is_flat, const RowFactor &factor, char *amax) {
  const int64_t size = factor.is_f32 ? 4 : dtype_size(problem.geometry->dtype);
  const int64_t token = is_flat && problem.tokens == 1 ? factor.batch_stride : factor.token_stride;
  return {factor.data, factor.batch_stride * size, static_cast<int32_t>(token * size),
          static_cast<int32_t>(factor.head_stride * size), reinterpret_cast<uint32_t *>(amax)};
}

int32_t scale_head_bytes(const StaticScale &scale) {
  return static_cast<int32_t>(scale.head_stride * dtype_size(ROPE_DTYPE_F32));
}

void set_params(const RopeProblem &problem, const RopePlan &plan, StepRowCodeParams *params) {
  const StepProblem &step = *problem.step;
  set_params(problem, plan, static_cast<StepRowParams *>(params));
  params->has_norm = step.has_norm;
  params->is_of_token = step.has_norm && problem.geometry->norm.is_of_token;
  params->needs_magnitudes = false;
  params->scale_multiplies = step.scale_multiplies;
  params->rounds_before_codes = problem.geometry->rounds_before_codes;
  params->accumulates = step.accumulates;
  for (int i = 0; i < problem.num_tensors; ++i) {
    const StepTensor &tensor = step.tensor[i];
    if (tensor.amax != nullptr || tensor.out_scales.is_present() || tensor.cache_scales.is_present()) {
      params->needs_magnitudes = true;
    }
    params->codes[i] = {tensor.scale.data, scale_head_bytes(tensor.scale),
                        make_factor(problem, false, tensor.factor, tensor.amax), tensor.out_scales,
                        tensor.cache_scales};
    if (tensor.factor.is_f32) params->tensor[i].flags |= kHasWideFactor;
  }
}

// ---- Whole heads ----

void set_head_tensor(const RopeProblem &problem, const RopePlan &plan, int index, StepHeadTensor *params) {
  const RopeGeometry &geometry = *problem.geometry;
  const StepPiece &piece = plan.heads.pieces.piece[index];
  const int64_t size = dtype_size(geometry.dtype), weight_size = piece.weight->is_f32 ? 4 : size;
  const int64_t in_token = token_stride_of(problem, plan.heads.is_flat, piece.in_stride) * size;
  params->in = piece.in;
  params->in_token = static_cast<int32_t>(in_token);
  params->head = static_cast<int32_t>(piece.in_stride[kHead] * size);
  params->lanes_log2 = plan.heads.blocks[index].lanes_log2;
  params->units = static_cast<uint32_t>(piece.channels / (2 * plan.vector_elements));
  if (piece.is_normed || piece.is_turned) params->flags |= kIsChanged;
  if (piece.is_written) params->flags |= kHasOut;
  params->flags |= code_flags(piece);
  if (piece.is_written && !piece.has_code_out()) {
    params->in_to_out =
        static_cast<int64_t>(reinterpret_cast<uintptr_t>(piece.out) - reinterpret_cast<uintptr_t>(piece.in));
    params->token_shift =
        static_cast<int32_t>(token_stride_of(problem, plan.heads.is_flat, piece.out_stride) * size - in_token);
    if (piece.heads > 1) {
      params->head_shift = static_cast<int32_t>((piece.out_stride[kHead] - piece.in_stride[kHead]) * size);
    }
  }
  const int64_t of_cache = cache_size(problem, piece.cache);
  params->cache = piece.cache.data;
  params->page_bytes = piece.cache.page_stride * of_cache;
  params->entry_bytes = piece.cache.entry_stride * of_cache;
  params->cache_head = static_cast<int32_t>(piece.cache.head_stride * of_cache);
  const bool has_weight = piece.is_normed && piece.weight->data != nullptr;
  params->weight = has_weight ? piece.weight->data : nullptr;
  params->weight_offset = has_weight ? static_cast<float>(geometry.norm.weight_offset) : 1.0f;
  if (weight_size > size) params->flags |= kHasWideWeight;
}

// The parameters that all kernels of whole heads read, without their tensors.
void set_head_params(const RopeProblem &problem, const RopePlan &plan, StepHeadParams *params) {
  set_token_params(problem, plan.heads.is_flat, params);
  const uint32_t units = plan.heads.units;
  params->units_per_block = units;
  const int channels = 2 * plan.vector_elements * static_cast<int>(units);
  params->lanes_log2 =
      static_cast<uint32_t>(step_lanes_log2(channels, plan.heads.units_of_thread * plan.vector_elements));
  // If units are no power of two, each head is one block.
  params->block_mask = (units & (units - 1)) == 0 ? ~(units - 1) : 0;
  params->pairs = units * static_cast<uint32_t>(plan.vector_elements);
  params->to_high = static_cast<int32_t>(params->pairs * dtype_size(problem.geometry->dtype));
  params->implicit_mask = problem.tokens == 1 ? 0 : ~uint32_t{0};
  params->rounds = params->norm.rounds_before_weight || params->norm.rounds_after_weight;
}

template <bool IsNormed>
void set_params(const RopeProblem &problem, const RopePlan &plan, StepShortHeadParams<IsNormed> *params) {
  *params = {};
  set_head_params(problem, plan, params);
  params->units_per_token = plan.units.per_token;
  params->counting_unit = ~uint32_t{0};
  for (uint32_t &begin : params->begins) begin = ~uint32_t{0};
  uint32_t unit = 0;
  for (int i = 0; i < plan.heads.pieces.count; ++i) {
    if (i > 0) params->begins[i - 1] = unit;
    StepHeadTensor *const mine = &params->tensor[i];
    set_head_tensor(problem, plan, i, mine);
    const int64_t heads = unit >> mine->lanes_log2;
    mine->in -= heads * mine->head;
    mine->in_to_out -= heads * mine->head_shift;
    if (mine->cache != nullptr) {
      if (params->counting_unit == ~uint32_t{0}) params->counting_unit = unit;
      mine->cache -= heads * mine->cache_head;
    }
    unit += static_cast<uint32_t>(plan.heads.pieces.piece[i].heads) << mine->lanes_log2;
  }
}

template <bool IsNormed>
void set_params(const RopeProblem &problem, const RopePlan &plan, StepShortMoreParams<IsNormed> *params) {
  *params = {};
  set_params(problem, plan, static_cast<StepShortHeadParams<IsNormed> *>(params));
  params->is_after = problem.geometry->norm.is_after;
  set_lookups(problem, &params->lookups);
  int64_t units = 0;
  for (int i = 0; i < plan.heads.pieces.count; ++i) {
    const StepPiece &piece = plan.heads.pieces.piece[i];
    StepHeadTensor *const tensor = &params->tensor[i];
    StepMoreTensor *const mine = &params->more[i];
    const int64_t heads = units >> tensor->lanes_log2;
    mine->weight_head = head_bytes(problem, *piece.weight);
    mine->bias_head = head_bytes(problem, *piece.bias);
    if (piece.is_normed && piece.bias->data != nullptr) mine->bias = piece.bias->data - heads * mine->bias_head;
    if (tensor->weight != nullptr) tensor->weight -= heads * mine->weight_head;
    if (piece.bias->is_f32 && problem.geometry->dtype != ROPE_DTYPE_F32) tensor->flags |= kHasWideBias;
    units += piece.heads << tensor->lanes_log2;
  }
}

void set_params(const RopeProblem &problem, const RopePlan &plan, StepLongHeadParams *params) {
  *params = {};
  set_head_params(problem, plan, params);
  set_lookups(problem, &params->lookups);
  const int64_t batches = plan.heads.is_flat ? 1 : problem.batches;
  params->num_tokens = static_cast<uint32_t>(problem.batches / batches * problem.tokens);
  params->position_batch_bytes =
      static_cast<int32_t>(problem.positions.batch_stride * integer_bytes(problem.positions.is_64_bit));
  params->turns = plan.heads.turns;
  params->turns_that_prefetch = plan.heads.turns_that_prefetch;
  params->blocks_of_group = FastDivmod::by(plan.heads.blocks_per_group);
  params->by_pairs = FastDivmod::by(params->pairs);
  uint32_t wanted = kCountsPositions | kCountsPlaces;  // flags that some tensor must have
  for (int i = 0; i < kMaxStepPieces; ++i) {
    StepLongTensor *const mine = &params->tensor[i];
    mine->first_block = ~uint32_t{0};
    if (i >= plan.heads.pieces.count) continue;
    const StepPiece &piece = plan.heads.pieces.piece[i];
    const StepPieceBlocks &blocks = plan.heads.blocks[i];
    set_head_tensor(problem, plan, i, mine);
    mine->first_block = blocks.first_block;
    const int64_t size = dtype_size(problem.geometry->dtype);
    mine->batch = piece.in_stride[kBatch] * size;
    if (piece.is_written && batches > 1) mine->batch_shift = piece.out_stride[kBatch] * size - mine->batch;
    mine->heads = static_cast<uint32_t>(piece.heads);
    mine->rows = blocks.rows;
    mine->threads = mine->heads << blocks.lanes_log2;
    mine->threads_reciprocal = 0xffffffffu / mine->threads + 1;
    mine->runs = blocks.runs;
    mine->parts = FastDivmod::by(blocks.parts);
    const uint32_t counts = (piece.is_turned ? kCountsPositions : 0u) | (mine->cache != nullptr ? kCountsPlaces : 0u);
    mine->flags |= counts & wanted;
    wanted &= ~counts;
  }
}

template <typename Params>
void set_params(const RopeProblem &problem, const RopePlan &plan, WithTable<Params> *params) {
  set_params(problem, plan, static_cast<Params *>(params));
  set_table_params(problem, params);
}

void set_params(const RopeProblem &problem, const RopePlan &plan, StepLongTableParams *params) {
  set_params(problem, plan, static_cast<WithTable<StepLongHeadParams> *>(params));
  const int64_t ahead = plan.heads.tokens_ahead, rows = problem.table.rows - ahead;
  params->rows_that_prefetch = rows > 0 ? static_cast<uint64_t>(rows) : 0;
  params->row_bytes_ahead = ahead * params->row_bytes;
  params->position_bytes_ahead = ahead * params->position_bytes;
  params->tokens_that_prefetch =
      params->has_positions && params->num_tokens > ahead ? static_cast<uint32_t>(params->num_tokens - ahead) : 0;
}

template <typename Params, uint32_t kPairs>
void set_params(const RopeProblem &problem, const RopePlan &plan, WithAngles<Params, kPairs> *params) {
  set_params(problem, plan, static_cast<Params *>(params));
  copy_increments(*problem.geometry, params->increments);
}

template <typename Params>
void set_params(const RopeProblem &problem, const RopePlan &plan, WithCodes<Params> *params) {
  set_params(problem, plan, static_cast<Params *>(params));
  params->scale_multiplies = problem.step->scale_multiplies;
  params->rounds_before_codes = problem.geometry->rounds_before_codes;
  // Short launches number units through all pieces.
  const bool is_short = plan.step.kernel != StepKernel::kLong;
  int64_t units = 0;
  for (int i = 0; i < plan.heads.pieces.count; ++i) {
    const StepPiece &piece = plan.heads.pieces.piece[i];
    const int64_t heads = is_short ? units >> plan.heads.blocks[i].lanes_log2 : 0;
    StepHeadCodes *const codes = &params->codes[i];
    *codes = {};
    codes->scale_head = scale_head_bytes(*piece.scale);
    if (piece.scale->data != nullptr) codes->scale = piece.scale->data - heads * codes->scale_head;
    codes->cache_unit = static_cast<int32_t>(plan.vector_elements * cache_size(problem, piece.cache));
    codes->out_head = static_cast<int32_t>(piece.out_stride[kHead]);
    codes->out = piece.out - heads * codes->out_head;
    codes->out_batch = piece.out_stride[kBatch];
    codes->out_token = static_cast<int32_t>(token_stride_of(problem, plan.heads.is_flat, piece.out_stride));
    units += piece.heads << plan.heads.blocks[i].lanes_log2;
  }
}

template <typename Params>
void set_params(const RopeProblem &problem, const RopePlan &plan, WithScales<Params> *params) {
  set_params(problem, plan, static_cast<WithCodes<Params> *>(params));
  for (int i = 0; i < plan.heads.pieces.count; ++i) {
    const StepPiece &piece = plan.heads.pieces.piece[i];
    StepHeadScales *const scales = &params->scales[i];
    *scales = {*piece.out_scales, *piece.cache_scales, 0};
    scales->out.row_stride[kToken] = token_stride_of(problem, plan.heads.is_flat, piece.out_scales->row_stride);
    params->factors[i] = make_factor(problem, plan.heads.is_flat, *piece.factor, piece.amax);
    if (piece.factor->is_f32) params->tensor[i].flags |= kHasWideFactor;
    const WrittenScales &written = piece.out_scales->is_present() ? *piece.out_scales : *piece.cache_scales;
    if (written.is_present()) {
      const int of_thread = plan.heads.units_of_thread * plan.vector_elements;
      scales->lanes_log2 = static_cast<uint32_t>(step_lanes_log2(piece.channels / written.groups, of_thread));
    }
  }
}

// Strides in bytes, if `size` is that of an element.
CacheView scaled(const CacheView &cache, int64_t size) {
  return {cache.data,
          cache.dtype,
          cache.page_stride * size,
          cache.entry_stride * size,
          cache.head_stride * size,
          cache.channel_stride * size};
}

void set_params(const RopeProblem &problem, const RopePlan &plan, StepGeneralParams *params) {
  const RopeGeometry &geometry = *problem.geometry;
  const StepProblem &step = *problem.step;
  const int64_t size = dtype_size(geometry.dtype);
  set_lookup_params(problem, params);
  params->num_tensors = problem.num_tensors;
  for (int i = 0; i < problem.num_tensors; ++i) {
    const RotatedTensor &tensor = problem.tensor[i];
    const StepTensor &of_step = step.tensor[i];
    StepGeneralTensor *const mine = &params->tensor[i];
    mine->in = make_side(tensor.in, tensor.in_stride, size);
    mine->out = make_side(tensor.out, tensor.out_stride, dtype_size(of_step.out_dtype));
    mine->pass = {};
    if (of_step.pass.is_present) {
      // Addresses are computed, not strides: a stride that fits for the window alone may be too long for all channels.
      const auto before =
          static_cast<uintptr_t>(of_step.window_begin) * static_cast<uintptr_t>(mine->in.stride[kChannel]);
      mine->in.data = reinterpret_cast<char *>(reinterpret_cast<uintptr_t>(mine->in.data) - before);
      mine->pass = make_side(of_step.pass.data, of_step.pass.stride, size);
    }
    mine->cache = mine->pass_cache = {};
    if (of_step.is_cached()) mine->cache = scaled(of_step.cache, dtype_size(of_step.cache.dtype));
    if (of_step.pass_cache.data != nullptr) {
      mine->pass_cache = scaled(of_step.pass_cache, dtype_size(of_step.pass_cache.dtype));
    }
    mine->cache_part = of_step.cache_part;
    mine->weight = of_step.weight;
    mine->bias = of_step.bias;
    mine->factor = of_step.factor;
    mine->scale = of_step.scale;
    mine->out_scales = of_step.out_scales;
    mine->cache_scales = of_step.cache_scales;
    mine->pass_scale = of_step.pass_scale;
    mine->pass_scales = of_step.pass_scales;
    mine->amax = of_step.amax;
    mine->out_dtype = of_step.out_dtype;
    mine->heads = tensor.heads;
    mine->norm = norm_form<double>(problem, i);
    if (geometry.dtype != ROPE_DTYPE_F64) mine->norm.inverse_count = norm_form<float>(problem, i).inverse_count;
    mine->channels = of_step.channels;
    mine->window_begin = of_step.window_begin;
    mine->is_turned = of_step.is_turned;
    mine->has_styles = of_step.has_styles;
    mine->is_normed = of_step.is_normed;
    mine->is_written = of_step.is_written;
    mine->is_whole = of_step.is_whole;
  }
  params->rotary_dim = geometry.rotary_dim;
  params->row_channels = plan.general.row_channels;
  params->warps = plan.general.warps;
  params->blocks_per_token = plan.general.blocks_per_token;
  params->heads_per_block = plan.general.heads_per_block;
  params->is_turned = step.is_turned;
  params->has_caches = step.has_caches;
  params->is_after = geometry.norm.is_after;
  params->is_of_token = step.has_norm && geometry.norm.is_of_token;
  params->scale_multiplies = step.scale_multiplies;
  params->rounds_before_codes = geometry.rounds_before_codes;
  params->accumulates = step.accumulates;
  if (step.has_caches) params->places = step.places;
}

void set_params(const RopeProblem &problem, const RopePlan &plan, NormGradientParams *params) {
  set_params(problem, plan, static_cast<StepGeneralParams *>(params));
  params->dtype = problem.geometry->dtype;
  params->counting_tensor = 0;
  while (problem.tensor[params->counting_tensor].heads == 0) ++params->counting_tensor;
  params->num_items = 0;
  for (int i = 0; i < problem.num_tensors; ++i) {
    const StepTensor &tensor = problem.step->tensor[i];
    NormGradientTensor *const mine = &params->gradient[i];
    mine->in = make_side(tensor.norm_in.data, tensor.norm_in.stride, dtype_size(problem.geometry->dtype));
    mine->weight_sums = tensor.weight_sums;
    mine->bias_sums = tensor.bias_sums;
    mine->tokens_of_run = tensor.runs > 0 ? tokens_of_run(params->num_tokens, tensor.runs) : 1;
    mine->kept_channels = plan.general.kept_channels[i];
    if (problem.tensor[i].heads > 0) params->num_items += (params->num_tokens - 1) / mine->tokens_of_run + 1;
    mine->end_item = params->num_items;
  }
}

void set_params(const RopeProblem &problem, const RopePlan &plan, NormGradientRowParams *params) {
  const StepProblem &step = *problem.step;
  const StepGradients &gradients = plan.gradients;
  const int64_t size = dtype_size(problem.geometry->dtype);
  set_params(problem, plan, static_cast<WithAngles<StepRowParams, kMaxLongStepPairs> *>(params));
  params->weight_units = gradients.weight_units;
  params->shared_tokens_log2 = gradients.shared_tokens_log2;
  params->shared_angles = gradients.shared_angles;
  params->shared_lost = gradients.shared_lost;
  params->has_table = plan.step.angles == StepAngles::kTable;
  params->is_flat = gradients.is_flat;
  params->is_of_token = step.has_norm && problem.geometry->norm.is_of_token;
  params->usual_units = 0;
  params->has_factors = step.has_factor;
  params->accumulates = step.accumulates;
  for (int i = 0; i < 3; ++i) {
    NormGradientRowTensor *const mine = &params->gradient[i];
    *mine = {};
    if (i >= problem.num_tensors || problem.tensor[i].heads == 0) continue;
    const StepTensor &tensor = step.tensor[i];
    const auto make_side = [&](const char *data, const int64_t *stride) {
      RopeRowSide side = make_row_side(data, stride, size, 0);
      side.token = static_cast<int32_t>(token_stride_of(problem, params->is_flat, stride) * size);
      return side;
    };
    StepRowTensor *const of_rows = &params->tensor[i];
    of_rows->begin = gradients.first_thread[i];
    of_rows->in = make_side(problem.tensor[i].in, problem.tensor[i].in_stride);
    if (tensor.is_written) of_rows->out = make_side(problem.tensor[i].out, problem.tensor[i].out_stride);
    if (tensor.factor.is_f32) of_rows->flags |= kHasWideFactor;
    mine->factor = make_factor(problem, false, tensor.factor, nullptr);
    mine->weight_sums = tensor.weight_sums;
    if (!tensor.is_normed) continue;
    mine->in = make_side(tensor.norm_in.data, tensor.norm_in.stride);
    if (params->is_full_window && of_rows->lanes_log2 > 1) params->usual_units = of_rows->units_per_head;
  }
  bool is_counted = false;
  for (int i = 0; i < 3; ++i) {
    NormGradientGroup *const mine = &params->group[i];
    *mine = {};
    mine->first_block = ~uint32_t{0};
    if (i >= gradients.num_groups) continue;
    const GradientGroup &group = gradients.group[i];
    mine->first_block = group.first_block;
    mine->first_tensor = static_cast<uint32_t>(group.first_tensor);
    mine->end_tensor = static_cast<uint32_t>(group.end_tensor);
    mine->row_threads = group.row_threads;
    mine->rows = group.rows;
    mine->parts = group.parts;
    mine->tokens_of_run = group.tokens_of_run;
    mine->runs = group.runs;
    mine->is_normed = step.tensor[group.first_tensor].is_normed;
    for (int index = group.first_tensor; index < group.end_tensor; ++index) {
      if (gradients.first_thread[index] != ~uint32_t{0} && step.tensor[index].is_turned) mine->is_turned = true;
    }
    mine->counts_faults = mine->is_turned && !is_counted;
    if (mine->is_turned) is_counted = true;
  }
}

template <typename Params>
rope_status_t launch_step(const char *function, const RopeProblem &problem, const RopePlan &plan, int32_t device_index,
                          rope_stream_t stream) {
  const void *kernel = find_step_kernel(problem.geometry->dtype, plan.step);
  const dim3 grid(plan.grid_x, plan.grid_y), block(plan.threads, plan.thread_rows);
  Params params;
  set_params(problem, plan, &params);
  return launch(function, {kernel, grid, block, plan.shared_bytes, plan.is_programmatic}, &params, device_index,
                stream);
}

bool has_code_instances(StepKernel kernel) {
  return kernel == StepKernel::kWarp || kernel == StepKernel::kShort || kernel == StepKernel::kLong ||
         kernel == StepKernel::kLongRows;
}

}  // namespace

void load_step_kernels(const RopeGeometry &geometry, Preloader *preloader) {
  const auto load = [&](const StepVariant &variant) { preloader->load(find_step_kernel(geometry.dtype, variant)); };
  const bool is_interleaved = geometry.in_distance == 1;
  load({StepKernel::kGeneral, StepNorm::kNone, StepAngles::kNone, false, StepCodes::kNone, false});
  if (geometry.norm.type != 0) {
    load({StepKernel::kNormGradient, StepNorm::kNone, StepAngles::kNone, false, StepCodes::kNone, false});
  }
  if (!may_have_rows(geometry)) return;
  constexpr StepKernel kKernels[] = {StepKernel::kWarp, StepKernel::kShort,     StepKernel::kShortMore,
                                     StepKernel::kLong, StepKernel::kShortRows, StepKernel::kLongRows};
  constexpr StepCodes kCodes[] = {StepCodes::kStatic, StepCodes::kScales, StepCodes::kAll};
  constexpr bool kHasMore[] = {false, true};
  const bool may_have_codes = dtype_size(geometry.dtype) == 2,
             has_gradient_rows = may_have_codes && geometry.norm.type != 0;
  for (const bool has_sums : kHasMore) {
    if (!has_gradient_rows) break;
    load({StepKernel::kNormGradientRows, StepNorm::kNone, StepAngles::kNone, is_interleaved, StepCodes::kNone,
          has_sums});
  }
  constexpr StepAngles kAngles[] = {StepAngles::kNone, StepAngles::kComputed, StepAngles::kTable};
  for (const StepKernel kernel : kKernels) {
    for (const StepAngles angles : kAngles) {
      const auto load_instances = [&](StepCodes codes, bool has_more) {
        // A call without the tensors that are normed has no norm to compute.
        load({kernel, StepNorm::kNone, angles, is_interleaved, codes, has_more});
        const StepNorm norm = step_norm_of(geometry);
        if (norm == StepNorm::kOfToken && kernel != StepKernel::kLongRows) return;
        if (norm != StepNorm::kNone) load({kernel, norm, angles, is_interleaved, codes, has_more});
      };
      for (const bool has_more : kHasMore) load_instances(StepCodes::kNone, has_more);
      for (const StepCodes codes : kCodes) {
        if (may_have_codes && has_code_instances(kernel)) load_instances(codes, false);
      }
    }
  }
}

rope_status_t run_cuda_step(const char *function, const RopeProblem &problem, const RopePlan &plan,
                            int32_t device_index, rope_stream_t stream) {
  const auto launch_with = [&](auto launch_plain, auto launch_angles, auto launch_table) {
    const auto launch_it = plan.step.angles == StepAngles::kNone       ? launch_plain
                           : plan.step.angles == StepAngles::kComputed ? launch_angles
                                                                       : launch_table;
    return launch_it(function, problem, plan, device_index, stream);
  };
  const bool has_codes = plan.step.has_codes();
  const auto launch_short = [&](auto is_normed) {
    using Plain = StepShortHeadParams<decltype(is_normed)::value>;
    using More = StepShortMoreParams<decltype(is_normed)::value>;
    if (plan.step.kernel == StepKernel::kShortMore) {
      return launch_with(launch_step<More>, launch_step<WithAngles<More, kMaxShortStepPairs>>,
                         launch_step<WithTable<More>>);
    }
    if (has_codes) {
      return launch_with(launch_step<WithCodes<Plain>>, launch_step<WithCodes<WithAngles<Plain, kMaxShortStepPairs>>>,
                         launch_step<WithCodes<WithTable<Plain>>>);
    }
    return launch_with(launch_step<Plain>, launch_step<WithAngles<Plain, kMaxShortStepPairs>>,
                       launch_step<WithTable<Plain>>);
  };
  switch (plan.step.kernel) {
    case StepKernel::kWarp:
    case StepKernel::kShort:
    case StepKernel::kShortMore:
      return plan.step.norm != StepNorm::kNone ? launch_short(std::true_type()) : launch_short(std::false_type());
    case StepKernel::kLong:
      if (has_codes && plan.step.codes != StepCodes::kStatic) {
        return launch_with(launch_step<WithScales<StepLongHeadParams>>,
                           launch_step<WithScales<WithAngles<StepLongHeadParams, kMaxLongStepPairs>>>,
                           launch_step<WithScales<StepLongTableParams>>);
      }
      if (has_codes) {
        return launch_with(launch_step<WithCodes<StepLongHeadParams>>,
                           launch_step<WithCodes<WithAngles<StepLongHeadParams, kMaxLongStepPairs>>>,
                           launch_step<WithCodes<StepLongTableParams>>);
      }
      return launch_with(launch_step<StepLongHeadParams>,
                         launch_step<WithAngles<StepLongHeadParams, kMaxLongStepPairs>>,
                         launch_step<StepLongTableParams>);
    case StepKernel::kShortRows:
      return launch_with(launch_step<StepRowParams>, launch_step<WithAngles<StepRowParams, kMaxShortStepPairs>>,
                         launch_step<StepRowParams>);
    case StepKernel::kLongRows:
      if (has_codes) {
        return launch_with(launch_step<StepRowCodeParams>,
                           launch_step<WithAngles<StepRowCodeParams, kMaxLongStepPairs>>,
                           launch_step<StepRowCodeParams>);
      }
      return launch_with(launch_step<StepRowParams>, launch_step<WithAngles<StepRowParams, kMaxLongStepPairs>>,
                         launch_step<StepRowParams>);
    case StepKernel::kNormGradientRows:
      return launch_step<NormGradientRowParams>(function, problem, plan, device_index, stream);
    case StepKernel::kNormGradient:
      return launch_step<NormGradientParams>(function, problem, plan, device_index, stream);
    default:
      return launch_step<StepGeneralParams>(function, problem, plan, device_index, stream);
  }
}

}  // namespace rope
