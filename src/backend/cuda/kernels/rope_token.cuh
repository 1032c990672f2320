// rope_token.cuh - the RoPE kernel whose blocks have rows of threads with a token each
//
// Moves what rope_shared.cuh moves and shares angles in the same way, for tensors that a few numbers describe: strides
// of 32 bits, and as many units in each head. The grid counts tokens itself, so that nothing is divided but a unit's
// number by the units of a head. Angles come from increments or from a table, and positions may have to be looked up.
#pragma once

#include <type_traits>

#include "backend/cuda/kernels/rope_shared.cuh"

namespace rope {

// Which angles a kernel makes, and how: of pair `pair` of token `at`, of which `position` is known.
struct ComputedAngles {
  using Params = RopeTokenAngleParams;
  static constexpr int kResidentThreads = kRopeResidentThreads;
  static constexpr bool kHasRows = false;
};

struct TableAngles {
  using Params = RopeTokenTableParams;
  static constexpr int kResidentThreads = kTokenTableResidentThreads;
  static constexpr bool kHasRows = true;
};

// The cosine and the sine of a row and column. Both are loaded before either is used.
__device__ __forceinline__ CosSin<float> load_angle(const AngleTable &table, int axis, int64_t batch, int64_t row,
                                                    uint32_t column) {
  const auto entry = [&](const TableColumns &columns) {
    return axis * columns.axis_stride + batch * columns.batch_stride + row * columns.row_stride +
           column * columns.column_stride;
  };
  const int64_t cos_at = entry(table.cos), sin_at = entry(table.sin);
  if (table.dtype == ROPE_DTYPE_F32) {
    return {reinterpret_cast<const float *>(table.cos.data)[cos_at],
            reinterpret_cast<const float *>(table.sin.data)[sin_at]};
  }
  const uint16_t cos = reinterpret_cast<const uint16_t *>(table.cos.data)[cos_at];
  const uint16_t sin = reinterpret_cast<const uint16_t *>(table.sin.data)[sin_at];
  if (table.dtype == ROPE_DTYPE_F16) return {to_float(Float16{cos}), to_float(Float16{sin})};
  return {to_float(BFloat16{cos}), to_float(BFloat16{sin})};
}

// How a kernel finds positions.
enum class Lookup {
  kNone,      // one axis, no sequences
  kAxes,      // several axes, no sequences
  kSequences  // all there is
};

// Whether all positions of a token have rows in the table.
template <Lookup kLookup, typename Params>
__device__ __forceinline__ bool has_rows(const Params &params, BatchToken at, SequencePlace place) {
  const uint64_t rows = static_cast<uint64_t>(params.table.rows);
  if constexpr (kLookup == Lookup::kNone) {
    return finish_position(params, load_position(params, at)) < rows;
  } else {
    for (int axis = 0; axis < params.num_axes; ++axis) {
      const bool is_used = (params.used_axes >> axis & 1u) != 0;
      if (is_used && position_on(params, axis, place.sequence, at.token, place.index) >= rows) return false;
    }
    return true;
  }
}

template <typename Angles, Lookup kLookup>
using TokenKernelParams =
    std::conditional_t<kLookup == Lookup::kNone, typename Angles::Params, RopeTokenLookup<typename Angles::Params>>;

template <typename T, int V, bool IsInterleaved, typename Angles, Lookup kLookup>
__global__ void __launch_bounds__(kMaxRopeThreads,
                                  min_blocks_per_multiprocessor(Angles::kResidentThreads, kMaxRopeThreads))
    rope_token_kernel(const __grid_constant__ TokenKernelParams<Angles, kLookup> params) {
  constexpr int kVectorBytes = V * static_cast<int>(sizeof(T));
  begin_dependent_launch();
  extern __shared__ float4 shared[];
  const uint32_t pairs = params.pairs;
  float *cos = reinterpret_cast<float *>(shared) + threadIdx.y * (2 * pairs), *sin = cos + pairs;

  const Divided block = params.grid.divide(blockIdx.x);
  const uint32_t rows = params.is_part_slowest ? block.remainder : block.quotient;
  const uint32_t part = params.is_part_slowest ? block.quotient : block.remainder;
  const uint32_t flat_token = rows * blockDim.y + threadIdx.y;
  const bool is_present = flat_token < params.num_tokens;
  BatchToken at = {0, flat_token};
  if (!params.has_one_batch) {
    const Divided inner = params.inner.divide(flat_token);
    at = {inner.quotient, inner.remainder};
    if (params.is_batch_fastest) at = {inner.remainder, inner.quotient};
  }
  uint32_t pair = is_present ? threadIdx.x : pairs;
  uint64_t increment = 0;
  int axis = 0;
  if (pair < pairs) {
    if constexpr (!Angles::kHasRows) increment = through_memory(params.increments)[pair];
    if constexpr (kLookup == Lookup::kAxes) axis = through_memory(params.pair_axis)[pair];
  }
  const uint32_t unit = part * blockDim.x + threadIdx.x;
  const uint32_t head = __umulhi(unit, params.head_reciprocal), number = unit - head * params.units_per_head;
  const int which = (head >= params.tensor_begins[0]) + (head >= params.tensor_begins[1]);
  const RopeTokenTensor &tensor = params.tensor[which];
  const bool is_active = is_present && unit < params.units_per_token, is_rotary = number < params.rotary_units_per_head;
  int32_t channel = params.window_begin + static_cast<int32_t>(number) * kVectorBytes;
  if (!is_rotary) {
    channel = static_cast<int32_t>(number - params.rotary_units_per_head) * kVectorBytes;
    if (channel >= params.window_begin) channel += params.window_size;
  }
  const int32_t token32 = static_cast<int32_t>(at.token), head32 = static_cast<int32_t>(head);
  const auto offset = [&](int32_t token_stride, int32_t head_stride, int64_t batch_stride) {
    int64_t result = static_cast<int64_t>(token32) * token_stride + static_cast<int64_t>(head32) * head_stride;
    if (!params.has_one_batch) result += at.batch * batch_stride;
    return result + channel;
  };
  wait_for_previous_launch();

  // What the whole block waits for comes first.
  LoadedInteger position = {};
  if (kLookup != Lookup::kSequences && pair < pairs) position = load_position(params, at, axis);
  CosSin<float> first_angle;
  bool has_first_angle = false;
  if constexpr (Angles::kHasRows && kLookup == Lookup::kNone) {
    if (!params.has_positions && !params.has_start_positions) {
      const uint64_t row = finish_position(params, position);
      has_first_angle = pair < pairs && row < static_cast<uint64_t>(params.table.rows);
      if (has_first_angle) first_angle = load_angle(params.table, 0, at.batch, static_cast<int64_t>(row), pair);
    }
  }
  Vector<T, V> low, high;
  char *low_out;
  if (is_active) {
    const char *low_in = tensor.in + offset(tensor.in_token, tensor.in_head, params.in_batch_stride[which]);
    low = load_vector<Vector<T, V>>(low_in);
    if (is_rotary) high = load_vector<Vector<T, V>>(low_in + params.bytes_to_high);
    low_out = const_cast<char *>(low_in);
    if (!params.is_in_place) {
      low_out = tensor.out + offset(tensor.out_token, tensor.out_head, params.out_batch_stride[which]);
    }
  }

  bool is_absent = false, is_lost = false;
  SequencePlace place = {at.batch, static_cast<uint64_t>(at.token)};
  if constexpr (kLookup == Lookup::kSequences) {
    if (params.sequences.is_present) {
      is_absent = !is_in_sequences(params.sequences, at.token);
      if (is_absent) {
        if (is_present && unit == 0 && at.token < sequence_entry(params.sequences, 0)) {
          count_fault(params.fault, at.token);
        }
        pair = pairs;
      } else if (threadIdx.x / 32 * 32 < pairs) {
        place = find_sequence_by_warp(params.sequences, at.token);
      }
    }
    check_sequences(params);
  }
#pragma unroll 1
  while (pair < pairs) {
    uint64_t number_of;
    if constexpr (kLookup == Lookup::kSequences) {
      axis = through_memory(params.pair_axis)[pair];
      number_of = position_on(params, axis, place.sequence, at.token, place.index);
    } else {
      number_of = finish_position(params, position);
    }
    CosSin<float> angle;
    if constexpr (Angles::kHasRows) {
      const AngleTable &table = params.table;
      uint32_t column = pair;
      if constexpr (kLookup != Lookup::kNone) {
        if (table.is_by_token) number_of = static_cast<uint64_t>(at.token);
        column = params.table_width.divide(pair).remainder;
      }
      if (number_of >= static_cast<uint64_t>(table.rows)) {
        is_lost = true;
        break;
      }
      if (has_first_angle) {
        angle = first_angle;
      } else {
        angle = load_angle(table, axis, at.batch, static_cast<int64_t>(number_of), column);
      }
      has_first_angle = false;
      if (params.sin_scale < 0.0f) angle.sin = -angle.sin;
    } else {
      angle = compute_angle(params, number_of, increment);
    }
    cos[pair] = angle.cos;
    sin[pair] = angle.sin;
    pair += blockDim.x;
    if (pair >= pairs) break;
    if constexpr (!Angles::kHasRows) increment = through_memory(params.increments)[pair];
    if constexpr (kLookup == Lookup::kAxes) {
      axis = through_memory(params.pair_axis)[pair];
      position = load_position(params, at, axis);
    }
  }
  if constexpr (Angles::kHasRows) {
    // Seldom, so that it may take long: another token of the block may be the one.
    if (__syncthreads_or(is_lost)) {
      if constexpr (kLookup == Lookup::kSequences) {
        if (params.sequences.is_present && !is_absent) place = find_sequence(params.sequences, at.token);
      }
      is_lost = is_present && !is_absent && !has_rows<kLookup>(params, at, place);
      if constexpr (kLookup != Lookup::kNone) {
        if (is_lost && unit == 0) count_fault(params.fault, at.batch * params.tokens_per_batch + at.token);
      }
    }
  } else {
    __syncthreads();
  }

  if (!is_active || is_absent || (is_lost && params.is_in_place)) return;
  if (is_rotary && !is_lost) {
    float x[V], y[V];
    to_floats<T, V>(low, x);
    to_floats<T, V>(high, y);
    rotate_unit<V, IsInterleaved>(x, y, number, pairs, cos, sin);
    low = from_floats<T, V>(x);
    high = from_floats<T, V>(y);
  }
  store_vector(low_out, low);
  if (is_rotary) store_vector(low_out + params.bytes_to_high, high);
}

template <typename T, int V, bool IsInterleaved>
const void *find_token_kernel(RopeKernel kernel) {
  switch (kernel) {
    case RopeKernel::kToken:
      return reinterpret_cast<const void *>(rope_token_kernel<T, V, IsInterleaved, ComputedAngles, Lookup::kNone>);
    case RopeKernel::kTokenAxes:
      return reinterpret_cast<const void *>(rope_token_kernel<T, V, IsInterleaved, ComputedAngles, Lookup::kAxes>);
    case RopeKernel::kTokenSequences:
      return reinterpret_cast<const void *>(rope_token_kernel<T, V, IsInterleaved, ComputedAngles, Lookup::kSequences>);
    case RopeKernel::kTokenTable:
      return reinterpret_cast<const void *>(rope_token_kernel<T, V, IsInterleaved, TableAngles, Lookup::kNone>);
    default:
      return reinterpret_cast<const void *>(rope_token_kernel<T, V, IsInterleaved, TableAngles, Lookup::kSequences>);
  }
}

// The kernel for a vector width, or NULL for a width that T has none of.
template <typename T>
const void *find_token_kernel(RopeKernel kernel, int vector_elements, bool is_interleaved) {
  constexpr int kSize = static_cast<int>(sizeof(T)), kWide = 16 / kSize, kNarrow = 8 / kSize;
  if (vector_elements == kWide) {
    return is_interleaved ? find_token_kernel<T, kWide, true>(kernel) : find_token_kernel<T, kWide, false>(kernel);
  }
  if (vector_elements == kNarrow) {
    return is_interleaved ? find_token_kernel<T, kNarrow, true>(kernel) : find_token_kernel<T, kNarrow, false>(kernel);
  }
  return nullptr;
}

}  // namespace rope
