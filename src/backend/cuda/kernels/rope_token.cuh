// rope_token.cuh - the RoPE kernel whose blocks have rows of threads with a token each
//
// Moves what rope_shared.cuh moves and shares angles in the same way, for tensors that a few numbers describe: strides
// of 32 bits, and as many units in each head. The grid counts tokens itself, so that nothing is divided but a unit's
// number by the units of a head. Angles come from increments or from a table, and positions may have to be looked up.
#pragma once

#include <type_traits>

#include "backend/cuda/kernels/rope_shared.cuh"

namespace rope {

// Where a kernel's angles come from.
struct ComputedAngles {
  using Params = RopeTokenAngleParams;
  static constexpr bool kHasRows = false;
};

struct TableAngles {
  using Params = RopeTokenTableParams;
  static constexpr bool kHasRows = true;
};

// How a kernel finds positions.
enum class Lookup {
  kNone,       // one axis, no sequences
  kAxes,       // several axes, no sequences
  kSequences,  // in sequences, of one batch
  kAny
};

template <typename Angles, Lookup kLookup>
using AnglesParams =
    std::conditional_t<kLookup == Lookup::kNone, typename Angles::Params, RopeTokenLookup<typename Angles::Params>>;

// A cosine and a sine as they come from memory. Taking them apart would wait for them.
struct LoadedAngle {
  uint32_t cos;
  uint32_t sin;
};

__device__ __forceinline__ LoadedAngle load_angle(const AngleTable &table, int axis, int64_t batch, int64_t row,
                                                  uint32_t column) {
  const auto entry = [&](const TableColumns &columns) {
    return axis * columns.axis_stride + batch * columns.batch_stride + row * columns.row_stride +
           column * columns.column_stride;
  };
  const int64_t cos = entry(table.cos), sin = entry(table.sin);
  if (table.dtype == ROPE_DTYPE_F32) {
    return {reinterpret_cast<const uint32_t *>(table.cos.data)[cos],
            reinterpret_cast<const uint32_t *>(table.sin.data)[sin]};
  }
  return {reinterpret_cast<const uint16_t *>(table.cos.data)[cos],
          reinterpret_cast<const uint16_t *>(table.sin.data)[sin]};
}

__device__ __forceinline__ float entry_of(uint32_t bits, rope_dtype_t dtype) {
  if (dtype == ROPE_DTYPE_F32) return float_of(bits);
  const uint16_t half = static_cast<uint16_t>(bits);
  return dtype == ROPE_DTYPE_F16 ? to_float(Float16{half}) : to_float(BFloat16{half});
}

// The angles of a row of threads, in shared memory: a cosine for each pair, then the sines. What the whole block waits
// for is asked for early: parameters by the constructor, while the launch may still wait for the previous one, and
// positions and rows by begin, before the channels.
template <typename Angles, Lookup kLookup>
class TokenAngles {
 public:
  using Params = AnglesParams<Angles, kLookup>;

  // `is_first`: of the threads that share the token this one speaks for all.
  __device__ __forceinline__ TokenAngles(const Params &params, BatchToken at, bool is_present, bool is_first,
                                         float *shared)
      : params_(params),
        at_(at),
        is_present_(is_present),
        is_first_(is_present && is_first),
        cos_(shared + threadIdx.y * (2 * params.pairs)),
        pair_(is_present ? threadIdx.x : params.pairs),
        place_({at.batch, static_cast<uint64_t>(at.token)}) {
    // In sequences there are no registers for that.
    if (!kMayHaveSequences && pair_ < params_.pairs) read_parameters();
  }

  __device__ __forceinline__ const float *cos() const { return cos_; }
  __device__ __forceinline__ const float *sin() const { return cos_ + params_.pairs; }

  __device__ __forceinline__ void begin() {
    if (!kMayHaveSequences && pair_ < params_.pairs) position_ = load_position(params_, at_, axis_);
    // Computed angles do not wait for memory again, so there the channels may come first.
    if constexpr (Angles::kHasRows) {
      if constexpr (kMayHaveSequences) find_sequence();
      if (pair_ < params_.pairs) load_row();
    }
  }

  // Ends with a barrier. `is_first_part`: of the blocks that share the token this is the first.
  __device__ __forceinline__ TokenState make(bool is_first_part) {
    if constexpr (kMayHaveSequences && !Angles::kHasRows) find_sequence();
    if constexpr (!kMayHaveSequences) {
      const bool prefetches = static_cast<uint32_t>(at_.token) < params_.tokens_that_prefetch;
      if (prefetches && is_first_part && is_present_) prefetch_position();
    }
    bool is_lost = false;
#pragma unroll 1
    while (pair_ < params_.pairs) {
      CosSin<float> angle;
      if constexpr (Angles::kHasRows) {
        is_lost = !has_row_;
        if (is_lost) break;
        angle = {entry_of(row_.cos, params_.table.dtype), entry_of(row_.sin, params_.table.dtype)};
        if (params_.sin_scale < 0.0f) angle.sin = -angle.sin;
      } else {
        if constexpr (kMayHaveSequences) read_parameters();
        angle = compute_angle(params_, position(), increment_);
      }
      cos_[pair_] = angle.cos;
      cos_[params_.pairs + pair_] = angle.sin;
      pair_ += blockDim.x;
      if (pair_ >= params_.pairs) break;
      if constexpr (!kMayHaveSequences) read_parameters();
      if constexpr (kLookup == Lookup::kAxes) position_ = load_position(params_, at_, axis_);
      if constexpr (Angles::kHasRows) load_row();
    }
    if constexpr (Angles::kHasRows) {
      // Seldom, so that it may take long: another token of the block may be the one.
      if (__syncthreads_or(is_lost)) {
        is_lost = is_present_ && !is_absent_ && !has_rows();
        if constexpr (kLookup != Lookup::kNone) {
          if (is_lost && is_first_) count_fault(params_.fault, at_.batch * params_.tokens_per_batch + at_.token);
        }
      }
    } else {
      __syncthreads();
    }
    return is_absent_ ? kAbsent : is_lost ? kUnrotated : kRotated;
  }

 private:
  static constexpr bool kMayHaveSequences = kLookup == Lookup::kSequences || kLookup == Lookup::kAny;

  __device__ __forceinline__ void read_parameters() {
    if constexpr (!Angles::kHasRows) increment_ = through_memory(params_.increments)[pair_];
    if constexpr (kLookup != Lookup::kNone) {
      if (!kMayHaveSequences || params_.num_axes > 1) axis_ = through_memory(params_.pair_axis)[pair_];
    }
  }

  // Of the token whose turn is next, so that nobody waits for more than the L2 cache.
  __device__ __forceinline__ void prefetch_position() const {
    const int axis = static_cast<int>(threadIdx.x);
    if (axis >= params_.num_position_axes) return;
    const TokenIntegers &source = params_.positions;
    const int64_t at = at_.batch * source.batch_stride + (at_.token + params_.tokens_ahead) * source.token_stride +
                       axis * source.axis_stride;
    prefetch(source.data + (source.is_64_bit ? at * 8 : at * 4));
  }

  // A token that is in no sequence has a place, too, which nobody asks for: looking for it need not wait. Warps without
  // a pair look, too, so that their channels are not asked for long before those of the others (tuning.hpp).
  __device__ __forceinline__ void find_sequence() {
    if (kLookup == Lookup::kSequences || params_.sequences.is_present) {
      const int64_t begin = sequence_entry(params_.sequences, 0);
      const int64_t end = sequence_entry(params_.sequences, params_.sequences.count);
      place_ = find_sequence_by_warp(params_.sequences, at_.token);
      is_absent_ = at_.token < begin || at_.token >= end;
      if (is_absent_) {
        pair_ = params_.pairs;
        if (is_first_ && at_.token < begin) count_fault(params_.fault, at_.token);
      }
    }
    check_sequences(params_);
  }

  // For the current pair.
  __device__ __forceinline__ uint64_t position() const {
    if constexpr (kMayHaveSequences) return position_on(params_, axis_, place_.sequence, at_.token, place_.index);
    return finish_position(params_, position_);
  }

  __device__ __forceinline__ void load_row() {
    const AngleTable &table = params_.table;
    if constexpr (kMayHaveSequences) read_parameters();
    uint64_t row = position();
    uint32_t column = pair_;
    if constexpr (kLookup != Lookup::kNone) {
      if (table.is_by_token) row = static_cast<uint64_t>(at_.token);
      column = params_.table_width.divmod(pair_).remainder;
    }
    has_row_ = row < static_cast<uint64_t>(table.rows);
    if (has_row_) row_ = load_angle(table, axis_, at_.batch, static_cast<int64_t>(row), column);
  }

  // Whether all positions of the token have rows in the table.
  __device__ __forceinline__ bool has_rows() const {
    const uint64_t rows = static_cast<uint64_t>(params_.table.rows);
    if constexpr (kLookup == Lookup::kNone) {
      return finish_position(params_, load_position(params_, at_)) < rows;
    } else {
      SequencePlace place = {at_.batch, static_cast<uint64_t>(at_.token)};
      if (params_.sequences.is_present) place = rope::find_sequence(params_.sequences, at_.token);
      for (int axis = 0; axis < params_.num_axes; ++axis) {
        const bool is_used = (params_.used_axes >> axis & 1u) != 0;
        if (is_used && position_on(params_, axis, place.sequence, at_.token, place.index) >= rows) return false;
      }
      return true;
    }
  }

  const Params &params_;
  const BatchToken at_;
  const bool is_present_;
  const bool is_first_;
  float *const cos_;
  uint32_t pair_;
  SequencePlace place_;
  bool is_absent_ = false;
  uint64_t increment_ = 0;
  int axis_ = 0;
  LoadedInteger position_ = {};
  LoadedAngle row_;
  bool has_row_ = false;
};

// Which token a row of threads has, and which part of it the block.
struct TokenPlace {
  BatchToken at;
  bool is_present;
  uint32_t part;
};

template <bool MayHaveBatches>
__device__ __forceinline__ TokenPlace find_token_place(const RopeTokenParams &params) {
  const DivmodResult block = params.grid.divmod(blockIdx.x);
  const uint32_t rows = params.is_part_slowest ? block.remainder : block.quotient;
  const uint32_t token = rows * blockDim.y + threadIdx.y;
  TokenPlace place = {{0, token}, token < params.num_tokens, block.remainder};
  if (params.is_part_slowest) place.part = block.quotient;
  if (MayHaveBatches && !params.has_one_batch) {
    const DivmodResult inner = params.inner.divmod(token);
    place.at = {inner.quotient, inner.remainder};
    if (params.is_batch_fastest) place.at = {inner.remainder, inner.quotient};
  }
  return place;
}

template <bool MayHaveBatches>
__device__ __forceinline__ int64_t offset_of_head(const RopeTokenParams &params, BatchToken at, uint32_t head,
                                                  int32_t token_stride, int32_t head_stride, int64_t batch_stride) {
  int64_t offset = static_cast<int64_t>(static_cast<int32_t>(at.token)) * token_stride +
                   static_cast<int64_t>(static_cast<int32_t>(head)) * head_stride;
  if (MayHaveBatches && !params.has_one_batch) offset += at.batch * batch_stride;
  return offset;
}

// Bytes to a vector outside the window: they are numbered below it, then above it.
__device__ __forceinline__ int32_t copied_bytes(const RopeTokenParams &params, uint32_t vector, int32_t vector_bytes) {
  const int32_t bytes = static_cast<int32_t>(vector) * vector_bytes;
  return bytes >= params.window_begin ? bytes + params.window_size : bytes;
}

template <typename T, int V, bool IsInterleaved, typename Angles, Lookup kLookup>
__global__ void __launch_bounds__(kMaxRopeThreads, min_blocks_per_multiprocessor(kRopeResidentThreads, kMaxRopeThreads))
    rope_token_kernel(const __grid_constant__ AnglesParams<Angles, kLookup> params) {
  constexpr bool kMayHaveBatches = kLookup != Lookup::kSequences;
  constexpr int32_t kVectorBytes = V * static_cast<int32_t>(sizeof(T));
  begin_dependent_launch();
  extern __shared__ float4 shared[];
  const TokenPlace place = find_token_place<kMayHaveBatches>(params);
  const uint32_t unit = place.part * blockDim.x + threadIdx.x;
  TokenAngles<Angles, kLookup> angles(params, place.at, place.is_present, unit == 0, reinterpret_cast<float *>(shared));

  const uint32_t head = __umulhi(unit, params.head_reciprocal), number = unit - head * params.units_per_head;
  const int which = (head >= params.tensor_begins[0]) + (head >= params.tensor_begins[1]);
  const RopeTokenTensor &tensor = params.tensor[which];
  const bool is_active = place.is_present && unit < params.units_per_token;
  int32_t channel = params.window_begin + static_cast<int32_t>(number) * kVectorBytes, to_high = params.bytes_to_high;
  bool is_rotary = true;
  if (params.has_blocks_or_copies) {
    is_rotary = number < params.rotary_units_per_head;
    if (!IsInterleaved) channel += static_cast<int32_t>(__umulhi(number, params.run_reciprocal)) * to_high;
    if (!is_rotary) {
      const uint32_t first = number - params.rotary_units_per_head, second = first + params.copy_units_per_head;
      channel = copied_bytes(params, first, kVectorBytes);
      // The last unit may have one vector, which it then moves twice.
      to_high = second < params.copied_vectors ? copied_bytes(params, second, kVectorBytes) - channel : 0;
    }
  }
  wait_for_previous_launch();

  angles.begin();
  // Warps without a pair wait for those that look for rows, so that channels are asked for together (tuning.hpp).
  if constexpr (Angles::kHasRows && kLookup == Lookup::kAxes) __syncthreads();
  Vector<T, V> low, high;
  char *low_out;
  if (is_active) {
    const char *low_in = tensor.in + channel +
                         offset_of_head<kMayHaveBatches>(params, place.at, head, tensor.in_token, tensor.in_head,
                                                         params.in_batch[which]);
    low = load_vector<Vector<T, V>>(low_in);
    high = load_vector<Vector<T, V>>(low_in + to_high);
    low_out = const_cast<char *>(low_in);
    if (!params.is_in_place) {
      low_out = tensor.out + channel +
                offset_of_head<kMayHaveBatches>(params, place.at, head, tensor.out_token, tensor.out_head,
                                                params.out_batch[which]);
    }
  }
  const TokenState state = angles.make(place.part == 0);

  if (!is_active || state == kAbsent || (state == kUnrotated && params.is_in_place)) return;
  if (is_rotary && state == kRotated) {
    float x[V], y[V];
    to_floats<T, V>(low, x);
    to_floats<T, V>(high, y);
    rotate_unit<V, IsInterleaved>(x, y, number, params.pairs, angles.cos(), angles.sin());
    low = from_floats<T, V>(x);
    high = from_floats<T, V>(y);
  }
  store_vector(low_out, low);
  store_vector(low_out + to_high, high);
}

// The same for channels that no vector holds, in either style: a unit is one pair, or one channel outside the window,
// of kScatteredHeads heads. Neighbouring threads have neighbouring pairs, and a thread its angle for all of its heads.
template <typename T, typename Angles>
__global__ void __launch_bounds__(kMaxRopeThreads)
    rope_scattered_kernel(const __grid_constant__ RopeScattered<AnglesParams<Angles, Lookup::kAny>> params) {
  begin_dependent_launch();
  extern __shared__ float4 shared[];
  const TokenPlace place = find_token_place<true>(params);
  const uint32_t unit = place.part * blockDim.x + threadIdx.x;
  TokenAngles<Angles, Lookup::kAny> angles(params, place.at, place.is_present, unit == 0,
                                           reinterpret_cast<float *>(shared));
  const uint32_t group = __umulhi(unit, params.head_reciprocal), number = unit - group * params.units_per_head;
  const int which = (group >= params.tensor_begins[0]) + (group >= params.tensor_begins[1]);
  const RopeTokenTensor &tensor = params.tensor[which];
  const ScatteredChannels &channels = params.channels[which];
  const uint32_t head = (group - (which == 0 ? 0 : params.tensor_begins[which - 1])) * kScatteredHeads;
  const bool is_active = place.is_present && unit < params.units_per_token;
  const bool is_rotary = number < params.rotary_units_per_head;
  uint32_t channel =
      params.rotary_offset + number * params.pair_step + __umulhi(number, params.run_reciprocal) * params.distance;
  if (!is_rotary) {
    channel = number - params.rotary_units_per_head;
    if (channel >= params.rotary_offset) channel += params.rotary_dim;
  }
  wait_for_previous_launch();

  angles.begin();
  Words<sizeof(T)> x[kScatteredHeads], y[kScatteredHeads];
  const char *in =
      tensor.in + static_cast<int64_t>(channel) * channels.in_stride +
      offset_of_head<true>(params, place.at, head, tensor.in_token, tensor.in_head, params.in_batch[which]);
  const int64_t in_to_high = params.distance * channels.in_stride, out_to_high = params.distance * channels.out_stride;
  const uint32_t heads = !is_active                                ? 0
                         : channels.heads - head < kScatteredHeads ? channels.heads - head
                                                                   : kScatteredHeads;
#pragma unroll
  for (uint32_t i = 0; i < kScatteredHeads; ++i) {
    if (i >= heads) continue;
    const char *low = in + static_cast<int64_t>(i) * tensor.in_head;
    x[i] = load_vector<Words<sizeof(T)>>(low);
    if (is_rotary) y[i] = load_vector<Words<sizeof(T)>>(low + in_to_high);
  }
  const TokenState state = angles.make(place.part == 0);

  if (state == kAbsent || (state == kUnrotated && params.is_in_place)) return;
  char *out = tensor.out + static_cast<int64_t>(channel) * channels.out_stride +
              offset_of_head<true>(params, place.at, head, tensor.out_token, tensor.out_head, params.out_batch[which]);
  CosSin<float> angle = {};
  if (is_rotary) angle = {angles.cos()[number], angles.sin()[number]};
#pragma unroll
  for (uint32_t i = 0; i < kScatteredHeads; ++i) {
    if (i >= heads) continue;
    char *low = out + static_cast<int64_t>(i) * tensor.out_head;
    if (is_rotary && state == kRotated) {
      float of_x, of_y;
      to_floats<T, 1>(x[i], &of_x);
      to_floats<T, 1>(y[i], &of_y);
      const Pair<float> pair = rotate<float>({of_x, of_y}, angle, angle);
      x[i] = from_floats<T, 1>(&pair.x);
      y[i] = from_floats<T, 1>(&pair.y);
    }
    store_vector(low, x[i]);
    if (is_rotary) store_vector(low + out_to_high, y[i]);
  }
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
    case RopeKernel::kTokenTableAxes:
      return reinterpret_cast<const void *>(rope_token_kernel<T, V, IsInterleaved, TableAngles, Lookup::kAxes>);
    default:
      return reinterpret_cast<const void *>(rope_token_kernel<T, V, IsInterleaved, TableAngles, Lookup::kSequences>);
  }
}

// The kernel for a vector width, or NULL for a width that T has none of.
template <typename T>
const void *find_token_kernel(RopeKernel kernel, int vector_elements, bool is_interleaved) {
  constexpr int kSize = static_cast<int>(sizeof(T)), kWide = 16 / kSize, kNarrow = 8 / kSize;
  if (vector_elements == 1) {
    if (kernel == RopeKernel::kScattered)
      return reinterpret_cast<const void *>(rope_scattered_kernel<T, ComputedAngles>);
    if (kernel == RopeKernel::kScatteredTable) {
      return reinterpret_cast<const void *>(rope_scattered_kernel<T, TableAngles>);
    }
  }
  if (kernel == RopeKernel::kScattered || kernel == RopeKernel::kScatteredTable) return nullptr;
  if (vector_elements == kWide) {
    return is_interleaved ? find_token_kernel<T, kWide, true>(kernel) : find_token_kernel<T, kWide, false>(kernel);
  }
  if (vector_elements == kNarrow) {
    return is_interleaved ? find_token_kernel<T, kNarrow, true>(kernel) : find_token_kernel<T, kNarrow, false>(kernel);
  }
  return nullptr;
}

}  // namespace rope
