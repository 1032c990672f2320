// SPDX-License-Identifier: Apache-2.0
// step_operation.cpp - calls with norms, caches or heads that are not turned on CUDA: sets the params of kernels of
// whole heads, and finds and launches a kernel
#include <type_traits>

#include "backend/cuda/kernels.hpp"
#include "backend/cuda/operations.hpp"
#include "backend/cuda/step_param_parts.hpp"

namespace rope {

namespace {

void set_head_tensor(const RopeProblem &problem, const RopePlan &plan, int index, StepHeadTensor *params) {
  const RopeGeometry &geometry = *problem.geometry;
  const StepPiece &piece = plan.heads.pieces[index];
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
  const uint32_t units = plan.heads.units, of_window = plan.heads.window_units;
  params->units_per_block = units;
  const int channels = 2 * plan.vector_elements * static_cast<int>(units);
  params->lanes_log2 =
      static_cast<uint32_t>(step_lanes_log2(channels, plan.heads.units_of_thread * plan.vector_elements));
  // If units are no power of two, each head is one block. Heads with a window are cut into blocks of its size.
  params->block_mask = (units & (units - 1)) == 0 ? ~(of_window - 1) : 0;
  params->pairs = of_window * static_cast<uint32_t>(plan.vector_elements);
  params->to_high = static_cast<int32_t>(params->pairs * dtype_size(problem.geometry->dtype));
  params->implicit_mask = problem.tokens == 1 ? 0 : ~uint32_t{0};
  params->rounds = params->norm.rounds_before_weight || params->norm.rounds_after_weight;
}

}  // namespace

// The next functions are outside of the unnamed namespace: set_params of WithAngles must find them.

template <bool IsNormed>
void set_params(const RopeProblem &problem, const RopePlan &plan, StepShortHeadParams<IsNormed> *params) {
  *params = {};
  set_head_params(problem, plan, params);
  params->units_per_token = plan.units.per_token;
  params->counting_unit = ~uint32_t{0};
  for (uint32_t &begin : params->begins) begin = ~uint32_t{0};
  uint32_t unit = 0;
  for (int i = 0; i < plan.heads.pieces.count(); ++i) {
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
    unit += static_cast<uint32_t>(plan.heads.pieces[i].heads) << mine->lanes_log2;
  }
}

template <bool IsNormed>
void set_params(const RopeProblem &problem, const RopePlan &plan, StepShortMoreParams<IsNormed> *params) {
  *params = {};
  set_params(problem, plan, static_cast<StepShortHeadParams<IsNormed> *>(params));
  params->is_after = problem.geometry->norm.is_after;
  params->window_units = plan.heads.window_units;
  params->first_window_unit = plan.heads.pieces.is_window_last ? plan.heads.units - plan.heads.window_units : 0;
  set_lookups(problem, &params->lookups);
  int64_t units = 0;
  for (int i = 0; i < plan.heads.pieces.count(); ++i) {
    const StepPiece &piece = plan.heads.pieces[i];
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
  params->angle_floats = plan.heads.angle_floats;
  params->prefetches = plan.heads.prefetches;
  params->blocks_of_group = FastDivmod::by(plan.heads.blocks_per_group);
  params->by_pairs = FastDivmod::by(params->pairs);
  uint32_t wanted = kCountsPositions | kCountsPlaces;  // flags that some tensor must have
  for (int i = 0; i < kMaxStepPieces; ++i) {
    StepLongTensor *const mine = &params->tensor[i];
    mine->first_block = ~uint32_t{0};
    if (i >= plan.heads.pieces.count()) continue;
    const StepPiece &piece = plan.heads.pieces[i];
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

// Whether threads of short launches can load the entries of a unit's pairs as vectors, or blocks of long launches can
// copy rows by 16 bytes.
bool has_aligned_rows(const RopeProblem &problem, const RopePlan &plan) {
  const AngleTable &table = problem.table;
  const int64_t size = dtype_size(table.dtype);
  const bool is_short = plan.step.kernel < StepKernel::kLong, is_interleaved = problem.geometry->in_distance == 1;
  const int64_t run = plan.vector_elements / (is_interleaved ? 2 : 1) * size, alignment = is_short ? run : 16;
  const auto is_multiple = [&](const char *data) {
    return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(alignment) == 0;
  };
  const bool is_aligned =
      is_multiple(table.cos.data) && is_multiple(table.sin.data) && table.cos.row_stride * size % alignment == 0;
  if (is_short) return is_aligned;
  const RopeGeometry &geometry = *problem.geometry;
  return is_aligned && table.dtype == ROPE_DTYPE_F32 && geometry.num_axes == 1 && geometry.pairs() % 4 == 0 &&
         !problem.is_transposed;
}

template <typename Params>
void set_params(const RopeProblem &problem, const RopePlan &plan, WithTable<Params> *params) {
  set_params(problem, plan, static_cast<Params *>(params));
  set_table_params(problem, params);
  params->has_aligned_rows = has_aligned_rows(problem, plan);
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

// The channels that have one written scale, or all of them.
int channels_of_group(const StepPiece &piece) {
  return piece.has_written_scales() ? piece.channels / piece.written_scales().groups : piece.channels;
}

template <typename Params>
void set_params(const RopeProblem &problem, const RopePlan &plan, WithCodes<Params> *params) {
  set_params(problem, plan, static_cast<Params *>(params));
  params->scale_multiplies = problem.step->scale_multiplies;
  params->rounds_before_codes = problem.geometry->rounds_before_codes;
  // Short launches number units through all pieces.
  const bool is_short = plan.step.kernel < StepKernel::kLong;
  int64_t units = 0;
  for (int i = 0; i < plan.heads.pieces.count(); ++i) {
    const StepPiece &piece = plan.heads.pieces[i];
    const int64_t heads = is_short ? units >> plan.heads.blocks[i].lanes_log2 : 0;
    StepHeadCodes *const codes = &params->codes[i];
    *codes = {};
    if (piece.has_codes() && piece.scale->data != nullptr) {
      codes->scale_head = scale_head_bytes(*piece.scale);
      codes->scale = piece.scale->data - heads * codes->scale_head;
    }
    codes->cache_unit = static_cast<uint8_t>(plan.vector_elements * cache_size(problem, piece.cache));
    codes->out_head = static_cast<int32_t>(piece.out_stride[kHead]);
    codes->out = piece.out - heads * codes->out_head;
    codes->out_batch = piece.out_stride[kBatch];
    codes->out_token = static_cast<int32_t>(token_stride_of(problem, plan.heads.is_flat, piece.out_stride));
    if (!is_short) {
      const int of_thread = plan.heads.units_of_thread * plan.vector_elements, block = channels_of_group(piece);
      codes->block_lanes_log2 = static_cast<uint8_t>(block == piece.channels ? 31 : step_lanes_log2(block, of_thread));
      codes->half_block = static_cast<uint16_t>(block / 2);
    }
    units += piece.heads << plan.heads.blocks[i].lanes_log2;
  }
}

template <typename Params>
void set_params(const RopeProblem &problem, const RopePlan &plan, WithWindow<Params> *params) {
  set_params(problem, plan, static_cast<WithCodes<Params> *>(params));
  const StepHeads &heads = plan.heads;
  const int64_t size = dtype_size(problem.geometry->dtype);
  const uint32_t lanes = heads.units / static_cast<uint32_t>(heads.units_of_thread);
  const auto half = static_cast<int32_t>(heads.units) * plan.vector_elements;
  params->window_lanes = heads.window_units;
  params->first_window_lane = 0;
  params->to_other = half;
  if (!heads.pieces.is_window_last) return;
  params->first_window_lane = lanes - heads.window_units;
  params->to_other = -half;
  for (int i = 0; i < heads.pieces.count(); ++i) {
    StepLongTensor *const tensor = &params->tensor[i];
    tensor->in += half * size;
    if (tensor->cache != nullptr) tensor->cache += half * cache_size(problem, heads.pieces[i].cache);
    params->codes[i].out += half;
  }
}

template <typename Params>
void set_params(const RopeProblem &problem, const RopePlan &plan, WithScales<Params> *params) {
  set_params(problem, plan, static_cast<WithCodes<Params> *>(params));
  for (int i = 0; i < plan.heads.pieces.count(); ++i) {
    const StepPiece &piece = plan.heads.pieces[i];
    StepHeadScales *const scales = &params->scales[i];
    *scales = {*piece.out_scales, *piece.cache_scales, 0};
    scales->out.row_stride[kToken] = token_stride_of(problem, plan.heads.is_flat, piece.out_scales->row_stride);
    params->factors[i] = make_factor(problem, plan.heads.is_flat, *piece.factor, piece.amax);
    if (piece.factor->is_f32) params->tensor[i].flags |= kHasWideFactor;
    const int of_thread = plan.heads.units_of_thread * plan.vector_elements;
    scales->lanes_log2 = static_cast<uint32_t>(step_lanes_log2(channels_of_group(piece), of_thread));
  }
}

namespace {

template <typename Params>
rope_status_t launch_step(const char *function, const RopeProblem &problem, const RopePlan &plan, int32_t device_index,
                          rope_stream_t stream) {
  const Kernel kernel = find_step_kernel(problem.geometry->dtype, plan.step);
  Params params;
  set_params(problem, plan, &params);
  return launch(function, launch_of(plan, kernel), &params, device_index, stream);
}

bool has_code_instances(StepKernel kernel) {
  return kernel <= StepKernel::kLong || kernel == StepKernel::kLongRows;
}

}  // namespace

void visit_step_kernels(const RopeGeometry &geometry, KernelVisitor visit) {
  const auto load = [&](const StepVariant &variant) { visit(find_step_kernel(geometry.dtype, variant)); };
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
  const NormGeometry &norm_form = geometry.norm;
  const bool may_have_windows = may_have_codes && step_norm_of(geometry) == StepNorm::kBefore &&
                                norm_form.type == ROPE_NORM_RMS && !norm_form.rounds_before_weight &&
                                !norm_form.rounds_after_weight && geometry.num_axes == 1 &&
                                geometry.rotary_dim != geometry.head_dim;
  for (const StepAngles angles : kAngles) {
    if (may_have_windows && angles != StepAngles::kNone) {
      load({StepKernel::kLongWindow, StepNorm::kBefore, angles, is_interleaved, StepCodes::kStatic, false});
    }
    for (const StepKernel kernel : kKernels) {
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
  const auto launch_plain = [&](auto *plain) {
    using Plain = std::remove_pointer_t<decltype(plain)>;
    if (has_codes) {
      return launch_with(launch_step<StepShortParams<Plain, true, StepAngles::kNone>>,
                         launch_step<StepShortParams<Plain, true, StepAngles::kComputed>>,
                         launch_step<StepShortParams<Plain, true, StepAngles::kTable>>);
    }
    return launch_with(launch_step<StepShortParams<Plain, false, StepAngles::kNone>>,
                       launch_step<StepShortParams<Plain, false, StepAngles::kComputed>>,
                       launch_step<StepShortParams<Plain, false, StepAngles::kTable>>);
  };
  const auto launch_short = [&](auto is_normed) {
    constexpr bool kIsNormed = decltype(is_normed)::value;
    if (plan.step.kernel == StepKernel::kShortMore) {
      return launch_plain(static_cast<StepShortMoreParams<kIsNormed> *>(nullptr));
    }
    return launch_plain(static_cast<StepShortHeadParams<kIsNormed> *>(nullptr));
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
    case StepKernel::kLongWindow:
      return launch_with(launch_step<WithWindow<StepLongHeadParams>>,
                         launch_step<WithWindow<WithAngles<StepLongHeadParams, kMaxLongStepPairs>>>,
                         launch_step<WithWindow<StepLongTableParams>>);
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
