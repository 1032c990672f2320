// rope_problem.cpp - validates RoPE configs and calls
#include "core/rope_problem.hpp"

#include <math.h>
#include <string.h>

#include "core/view.hpp"

namespace rope {

namespace {

constexpr rope_status_t kInvalid = ROPE_STATUS_INVALID_ARGUMENT;
constexpr rope_status_t kUnsupported = ROPE_STATUS_NOT_SUPPORTED;

long long printable(int64_t value) {
  return static_cast<long long>(value);
}

// Where a layout keeps the canonical axes; -1: it has none (one batch).
struct LayoutAxes {
  const char *name;
  int ndim;
  int axis[kNumAxes];
};

const LayoutAxes *find_layout(rope_layout_t layout) {
  static constexpr LayoutAxes kLayouts[] = {
      {"BSHD", 4, {0, 1, 2, 3}}, {"SBHD", 4, {1, 0, 2, 3}}, {"BHSD", 4, {0, 2, 1, 3}}, {"THD", 3, {-1, 0, 1, 2}}};
  return layout >= ROPE_LAYOUT_BSHD && layout <= ROPE_LAYOUT_THD ? &kLayouts[layout - ROPE_LAYOUT_BSHD] : nullptr;
}

int64_t length_of(const View &view, const LayoutAxes &layout, Axis axis) {
  return layout.axis[axis] < 0 ? 1 : view.shape[layout.axis[axis]];
}

void canonical_strides(const View &view, const LayoutAxes &layout, int64_t *stride) {
  for (int axis = 0; axis < kNumAxes; ++axis) stride[axis] = layout.axis[axis] < 0 ? 0 : view.stride[layout.axis[axis]];
}

rope_status_t check_geometry(const char *function, const rope_config_t &config) {
  if (find_layout(config.layout) == nullptr) {
    return fail(kInvalid, "%s: layout is %d: it must be a ROPE_LAYOUT_ value", function, config.layout);
  }
  if (config.style != ROPE_STYLE_HALF && config.style != ROPE_STYLE_INTERLEAVED) {
    return fail(kInvalid, "%s: style is %d: it must be ROPE_STYLE_HALF or ROPE_STYLE_INTERLEAVED", function,
                config.style);
  }
  if (config.head_dim < 2 || config.head_dim > kMaxHeadDim || config.head_dim % 2 != 0) {
    return fail(kInvalid, "%s: head_dim is %d: it must be even, 2 to %d", function, config.head_dim, kMaxHeadDim);
  }
  if (config.rotary_dim < 0 || config.rotary_dim > config.head_dim || config.rotary_dim % 2 != 0) {
    return fail(kInvalid, "%s: rotary_dim is %d: it must be even, at most head_dim %d, or 0 for head_dim", function,
                config.rotary_dim, config.head_dim);
  }
  const int rotary_dim = config.rotary_dim != 0 ? config.rotary_dim : config.head_dim;
  if (config.rotary_offset < 0 || config.rotary_offset > config.head_dim - rotary_dim) {
    return fail(kInvalid, "%s: rotary_offset is %d: with rotary_dim %d it must be 0 to %d, inside head_dim %d",
                function, config.rotary_offset, rotary_dim, config.head_dim - rotary_dim, config.head_dim);
  }
  return ROPE_STATUS_SUCCESS;
}

rope_status_t check_unserved_config(const char *function, const rope_config_t &config) {
  if (config.flags != 0) {
    return fail(kUnsupported, "%s: flags is 0x%x: this version knows no flag", function, config.flags);
  }
  if (config.pair_axis != nullptr) return fail(kUnsupported, "%s: pair_axis is set: not served yet", function);
  if (config.num_axes < 0) {
    return fail(kInvalid, "%s: num_axes is %d: it must be at least 0", function, config.num_axes);
  }
  if (config.num_axes > 1) {
    return fail(kUnsupported, "%s: num_axes is %d: more than one axis is not served yet", function, config.num_axes);
  }
  if (config.pair_block < 0) {
    return fail(kInvalid, "%s: pair_block is %d: it must be at least 0", function, config.pair_block);
  }
  if (config.pair_block != 0) {
    return fail(kUnsupported, "%s: pair_block is %d: not served yet, leave it 0", function, config.pair_block);
  }
  if (config.out_style != 0 && config.out_style != ROPE_STYLE_HALF && config.out_style != ROPE_STYLE_INTERLEAVED) {
    return fail(kInvalid, "%s: out_style is %d: it must be a ROPE_STYLE_ value, or 0 for style", function,
                config.out_style);
  }
  if (config.out_style != 0 && config.out_style != config.style) {
    return fail(kUnsupported, "%s: out_style is %d: a style other than that of the input is not served yet", function,
                config.out_style);
  }
  return ROPE_STATUS_SUCCESS;
}

rope_status_t check_unserved_args(const char *function, const rope_args_t &args) {
  if (args.flags != 0) return fail(kUnsupported, "%s: flags is 0x%x: this version knows no flag", function, args.flags);
  if (args.reserved0 != 0) {
    return fail(kUnsupported, "%s: reserved0 is %d: it must be 0", function, args.reserved0);
  }
  const struct {
    const char *field;
    const rope_tensor_t *tensor;
  } unserved[] = {{"cu_seqlens", &args.cu_seqlens}, {"angles", &args.angles}, {"fault", &args.fault}};
  for (const auto &entry : unserved) {
    if (entry.tensor->ndim != 0) return fail(kUnsupported, "%s: %s is set: not served yet", function, entry.field);
    View absent;
    ROPE_TRY(read_view(function, entry.field, *entry.tensor, &absent));
  }
  if (args.table_rows != ROPE_TABLE_BY_POSITION && args.table_rows != ROPE_TABLE_BY_TOKEN) {
    return fail(kInvalid, "%s: table_rows is %d: it must be a ROPE_TABLE_ value", function, args.table_rows);
  }
  return ROPE_STATUS_SUCCESS;
}

rope_status_t copy_frequencies(const char *function, const rope_config_t &config, RopeGeometry *geometry) {
  const int pairs = geometry->rotary_dim / 2;
  const double theta = config.theta;
  const double scale = config.attention_scale;
  if (!(fabs(scale) <= 3.4028234663852886e38) || (scale != 0.0 && static_cast<float>(scale) == 0.0f)) {
    return fail(kInvalid, "%s: attention_scale is %g: it must be a finite number other than 0 in fp32, or 0 for 1",
                function, scale);
  }
  geometry->attention_scale = scale == 0.0 ? 1.0f : static_cast<float>(scale);
  if (theta != 0.0 && !(theta >= kSmallestTheta && theta <= kLargestTheta)) {
    return fail(kInvalid, "%s: theta is %g: it must be %g to %g, or 0 for none", function, theta, kSmallestTheta,
                kLargestTheta);
  }
  geometry->has_frequencies = config.inv_freq != nullptr || theta != 0.0;
  if (config.inv_freq != nullptr) {
    for (int pair = 0; pair < pairs; ++pair) {
      if (!isfinite(config.inv_freq[pair])) {
        return fail(kInvalid, "%s: inv_freq[%d] is %g: it must be finite", function, pair, config.inv_freq[pair]);
      }
    }
    increments_from_frequencies(config.inv_freq, pairs, geometry->increments);
  } else if (theta != 0.0) {
    increments_from_theta(theta, geometry->rotary_dim, geometry->increments);
  }
  return ROPE_STATUS_SUCCESS;
}

// Reads a call's tensors one by one into a problem, and keeps the views that the overlap check needs.
class ProblemReader {
 public:
  ProblemReader(const char *function, const RopeGeometry &geometry, RopeProblem *problem)
      : function_(function), geometry_(geometry), layout_(*find_layout(geometry.layout)), problem_(problem) {}

  rope_status_t read_rotated(const char *field, const char *out_field, const rope_tensor_t &in,
                             const rope_tensor_t &out) {
    View in_view, out_view;
    ROPE_TRY(read(field, in, &in_view));
    ROPE_TRY(read(out_field, out, &out_view));
    if (in_view.is_absent()) {
      if (out_view.is_absent()) return ROPE_STATUS_SUCCESS;
      return fail(kInvalid, "%s: %s is set but %s is absent: an output needs its input", function_, out_field, field);
    }
    ROPE_TRY(check_shape(field, in_view));
    const bool is_in_place = out_view.is_absent() || is_same_view(in_view, out_view);
    const View &written = out_view.is_absent() ? in_view : out_view;
    if (!out_view.is_absent()) ROPE_TRY(check_alike(out_field, out_view, field, in_view));
    RotatedTensor *tensor = &problem_->tensor[problem_->num_tensors++];
    tensor->in = in_view.data;
    tensor->out = written.data;
    tensor->heads = length_of(in_view, layout_, kHead);
    tensor->is_in_place = is_in_place;
    canonical_strides(in_view, layout_, tensor->in_stride);
    canonical_strides(written, layout_, tensor->out_stride);

    // In place only the rotated window is read and written, so neighbours may live in the other channels.
    const int channels = layout_.axis[kChannel];
    const View touched =
        is_in_place ? narrow_view(written, channels, geometry_.rotary_offset, geometry_.rotary_dim) : written;
    const char *written_field = out_view.is_absent() ? field : out_field;
    ROPE_TRY(check_output_strides(function_, written_field, touched));
    keep_output(written_field, touched);
    if (!is_in_place) keep_input(field, in_view);
    return ROPE_STATUS_SUCCESS;
  }

  rope_status_t read_positions(const rope_args_t &args) {
    View positions, start;
    ROPE_TRY(read_integers("positions", args.positions, &positions));
    ROPE_TRY(read_integers("start_positions", args.start_positions, &start));
    const long long batches = printable(problem_->batches), tokens = printable(problem_->tokens);
    const bool is_thd = layout_.ndim == 3;
    if (!positions.is_absent() && !is_by_token(positions)) {
      const ShapeText shape(positions);
      return is_thd
                 ? fail(kInvalid, "%s: positions has shape %s: it must be [T], [%lld]", function_, shape.text, tokens)
                 : fail(kInvalid, "%s: positions has shape %s: it must be [S], [%lld], or [B, S], [%lld, %lld]",
                        function_, shape.text, tokens, batches, tokens);
    }
    if (!start.is_absent()) {
      const bool is_by_batch = start.ndim == 1 && start.shape[0] == problem_->batches;
      // [S] is not taken: with S = B it would silently mean [B].
      const bool is_for_each_token = is_by_token(start) && (is_thd || start.ndim == 2);
      if (!is_by_batch && !is_for_each_token) {
        const ShapeText shape(start);
        return is_thd
                   ? fail(kInvalid, "%s: start_positions has shape %s: it must be [B], [1], or [T], [%lld]", function_,
                          shape.text, tokens)
                   : fail(kInvalid, "%s: start_positions has shape %s: it must be [B], [%lld], or [B, S], [%lld, %lld]",
                          function_, shape.text, batches, batches, tokens);
      }
      problem_->start_positions =
          is_by_batch ? TokenIntegers{start.data, true, start.dtype == ROPE_DTYPE_I64, start.stride[0], 0}
                      : by_token(start);
      keep_input("start_positions", start);
    }
    if (!positions.is_absent()) {
      problem_->positions = by_token(positions);
      keep_input("positions", positions);
    }
    problem_->position_offset = args.position_offset;
    return ROPE_STATUS_SUCCESS;
  }

  rope_status_t read_angles(const rope_args_t &args) {
    View cos, sin;
    ROPE_TRY(read("cos", args.cos, &cos));
    ROPE_TRY(read("sin", args.sin, &sin));
    if (cos.is_absent() != sin.is_absent()) {
      return fail(kInvalid, "%s: %s is absent: cos and sin come together", function_, cos.is_absent() ? "cos" : "sin");
    }
    const bool is_by_token = args.table_rows == ROPE_TABLE_BY_TOKEN;
    if (cos.is_absent()) {
      if (is_by_token) return fail(kInvalid, "%s: table_rows is ROPE_TABLE_BY_TOKEN but cos is absent", function_);
      if (geometry_.has_frequencies) return ROPE_STATUS_SUCCESS;
      return fail(kInvalid, "%s: cos is absent: a descriptor with theta 0 and without inv_freq needs cos and sin",
                  function_);
    }
    if (is_by_token) ROPE_TRY(refuse_positions());
    ROPE_TRY(check_table("cos", cos, is_by_token));
    ROPE_TRY(check_table("sin", sin, is_by_token));
    ROPE_TRY(check_alike("sin", sin, "cos", cos));
    problem_->has_table = true;
    problem_->table = {columns_of(cos), columns_of(sin), cos.dtype, cos.shape[cos.ndim - 2]};
    keep_input("cos", cos);
    keep_input("sin", sin);
    return ROPE_STATUS_SUCCESS;
  }

  rope_status_t check_overlaps() const {
    for (int i = 0; i < num_outputs_; ++i) {
      for (int j = i + 1; j < num_outputs_; ++j) ROPE_TRY(check_disjoint(output_[i], output_[j]));
      for (int j = 0; j < num_inputs_; ++j) ROPE_TRY(check_disjoint(output_[i], input_[j]));
    }
    return ROPE_STATUS_SUCCESS;
  }

 private:
  struct NamedView {
    const char *field;
    View view;
  };

  struct ShapeText {
    explicit ShapeText(const View &view) {
      size_t used = 0;
      for (int axis = 0; axis < view.ndim; ++axis) used = append(used, axis == 0 ? "[" : ", ", view.shape[axis]);
      text[used] = ']';
      text[used + 1] = '\0';
    }
    size_t append(size_t used, const char *separator, int64_t value) {
      for (; *separator != '\0'; ++separator) text[used++] = *separator;
      char digits[20];
      int count = 0;
      do digits[count++] = static_cast<char>('0' + value % 10);
      while ((value /= 10) != 0);
      while (count > 0) text[used++] = digits[--count];
      return used;
    }
    char text[4 * 22];
  };

  rope_status_t read(const char *field, const rope_tensor_t &tensor, View *view) {
    ROPE_TRY(read_view(function_, field, tensor, view));
    view->forget_unused_strides();
    return ROPE_STATUS_SUCCESS;
  }

  rope_status_t check_shape(const char *field, const View &view) {
    if (view.dtype != geometry_.dtype) {
      return fail(kInvalid, "%s: %s.dtype is %s: it must be the descriptor's, %s", function_, field,
                  dtype_name(view.dtype), dtype_name(geometry_.dtype));
    }
    if (view.ndim != layout_.ndim) {
      return fail(kInvalid, "%s: %s.ndim is %d: layout %s has %d axes", function_, field, view.ndim, layout_.name,
                  layout_.ndim);
    }
    const int64_t channels = length_of(view, layout_, kChannel);
    if (channels != geometry_.head_dim) {
      return fail(kInvalid, "%s: %s.shape[%d] is %lld: it must be head_dim, %d", function_, field,
                  layout_.axis[kChannel], printable(channels), geometry_.head_dim);
    }
    const int64_t heads = length_of(view, layout_, kHead);
    if (heads > kMaxHeads) {
      return fail(kUnsupported, "%s: %s.shape[%d] is %lld: at most %lld heads are served", function_, field,
                  layout_.axis[kHead], printable(heads), printable(kMaxHeads));
    }
    const int64_t batches = length_of(view, layout_, kBatch), tokens = length_of(view, layout_, kToken);
    if (problem_->num_tensors == 0) {
      problem_->batches = batches;
      problem_->tokens = tokens;
    } else if (batches != problem_->batches) {
      return fail(kInvalid, "%s: %s.shape[%d] is %lld: it must be that of q, %lld batches", function_, field,
                  layout_.axis[kBatch], printable(batches), printable(problem_->batches));
    } else if (tokens != problem_->tokens) {
      return fail(kInvalid, "%s: %s.shape[%d] is %lld: it must be that of q, %lld tokens", function_, field,
                  layout_.axis[kToken], printable(tokens), printable(problem_->tokens));
    }
    return ROPE_STATUS_SUCCESS;
  }

  rope_status_t check_alike(const char *field, const View &view, const char *other_field, const View &other) {
    if (view.dtype != other.dtype) {
      return fail(kInvalid, "%s: %s.dtype is %s: it must be that of %s, %s", function_, field, dtype_name(view.dtype),
                  other_field, dtype_name(other.dtype));
    }
    return check_same_shape(function_, field, view, other_field, other);
  }

  rope_status_t read_integers(const char *field, const rope_tensor_t &tensor, View *view) {
    ROPE_TRY(read(field, tensor, view));
    if (!view->is_absent() && view->dtype != ROPE_DTYPE_I32 && view->dtype != ROPE_DTYPE_I64) {
      return fail(kInvalid, "%s: %s.dtype is %s: it must be I32 or I64", function_, field, dtype_name(view->dtype));
    }
    return ROPE_STATUS_SUCCESS;
  }

  // [T] under THD, otherwise [S] or [B, S].
  bool is_by_token(const View &view) const {
    const bool has_batches = view.ndim == 2 && layout_.ndim == 4 && view.shape[0] == problem_->batches;
    return (view.ndim == 1 || has_batches) && view.shape[view.ndim - 1] == problem_->tokens;
  }

  static TokenIntegers by_token(const View &view) {
    return {view.data, true, view.dtype == ROPE_DTYPE_I64, view.ndim == 2 ? view.stride[0] : 0,
            view.stride[view.ndim - 1]};
  }

  rope_status_t refuse_positions() const {
    const char *field = problem_->positions.is_present         ? "positions"
                        : problem_->start_positions.is_present ? "start_positions"
                        : problem_->position_offset != 0       ? "position_offset"
                                                               : nullptr;
    if (field == nullptr) return ROPE_STATUS_SUCCESS;
    return fail(kInvalid, "%s: %s is set: with ROPE_TABLE_BY_TOKEN the row is the token, whatever its position",
                function_, field);
  }

  rope_status_t check_table(const char *field, const View &view, bool is_by_token) {
    if (view.dtype != ROPE_DTYPE_F32 && view.dtype != ROPE_DTYPE_F16 && view.dtype != ROPE_DTYPE_BF16) {
      const bool is_later = view.dtype == ROPE_DTYPE_F64;
      return fail(is_later ? kUnsupported : kInvalid, "%s: %s.dtype is %s: %s", function_, field,
                  dtype_name(view.dtype), is_later ? "F64 is not served yet" : "it must be F32, F16 or BF16");
    }
    const bool has_batches = is_by_token && layout_.ndim == 4 && view.ndim == 3;
    if (view.ndim != 2 && !has_batches) {
      return fail(kInvalid, "%s: %s.ndim is %d: it must be %s", function_, field, view.ndim,
                  !is_by_token        ? "2, [M, R/2]"
                  : layout_.ndim == 3 ? "2, [T, R/2]"
                                      : "2, [S, R/2], or 3, [B, S, R/2]");
    }
    const int last = view.ndim - 1;
    const int64_t pairs = geometry_.rotary_dim / 2;
    if (view.shape[last] == 2 * pairs) {
      return fail(kUnsupported,
                  "%s: %s.shape[%d] is %lld: tables of full width are not served yet; narrow it to R/2, %lld",
                  function_, field, last, printable(view.shape[last]), printable(pairs));
    }
    if (view.shape[last] != pairs) {
      return fail(kInvalid, "%s: %s.shape[%d] is %lld: it must be R/2, %lld", function_, field, last,
                  printable(view.shape[last]), printable(pairs));
    }
    if (is_by_token && view.shape[last - 1] != problem_->tokens) {
      return fail(kInvalid, "%s: %s.shape[%d] is %lld: by token it must be that of q, %lld tokens", function_, field,
                  last - 1, printable(view.shape[last - 1]), printable(problem_->tokens));
    }
    if (has_batches && view.shape[0] != 1 && view.shape[0] != problem_->batches) {
      return fail(kInvalid, "%s: %s.shape[0] is %lld: it must be that of q, %lld batches, or 1", function_, field,
                  printable(view.shape[0]), printable(problem_->batches));
    }
    return ROPE_STATUS_SUCCESS;
  }

  // An axis of length 1 has stride 0 here, which is what lets one batch serve all.
  static TableColumns columns_of(const View &view) {
    const int last = view.ndim - 1;
    return {view.data, view.ndim == 3 ? view.stride[0] : 0, view.stride[last - 1], view.stride[last]};
  }

  void keep_output(const char *field, const View &view) { output_[num_outputs_++] = {field, view}; }
  void keep_input(const char *field, const View &view) { input_[num_inputs_++] = {field, view}; }

  rope_status_t check_disjoint(const NamedView &output, const NamedView &other) const {
    if (!views_overlap(output.view, other.view)) return ROPE_STATUS_SUCCESS;
    return fail(kInvalid, "%s: %s at %p shares elements with %s at %p: an output must be its own input or disjoint",
                function_, output.field, static_cast<void *>(output.view.data), other.field,
                static_cast<void *>(other.view.data));
  }

  const char *function_;
  const RopeGeometry &geometry_;
  const LayoutAxes &layout_;
  RopeProblem *problem_;
  NamedView output_[3];
  NamedView input_[7];
  int num_outputs_ = 0;
  int num_inputs_ = 0;
};

}  // namespace

int64_t RopeProblem::heads_per_token() const {
  int64_t heads = 0;
  for (int i = 0; i < num_tensors; ++i) heads += tensor[i].heads;
  return heads;
}

rope_status_t check_device(const char *function, rope_device_t device, int32_t device_index, int32_t num_threads) {
  if (device != ROPE_DEVICE_CPU && device != ROPE_DEVICE_CUDA) {
    return fail(kInvalid, "%s: device is %d: it must be ROPE_DEVICE_CPU or ROPE_DEVICE_CUDA", function, device);
  }
  if (device_index < 0 || (device == ROPE_DEVICE_CPU && device_index != 0)) {
    return fail(kInvalid, "%s: device_index is %d: it must be %s", function, device_index,
                device == ROPE_DEVICE_CPU ? "0 for the CPU" : "at least 0");
  }
  if (num_threads < 0) {
    return fail(kInvalid, "%s: num_threads is %d: it must be at least 0", function, num_threads);
  }
  return ROPE_STATUS_SUCCESS;
}

rope_status_t check_data_type(const char *function, rope_dtype_t dtype) {
  if (dtype >= ROPE_DTYPE_F32 && dtype <= ROPE_DTYPE_F64) return ROPE_STATUS_SUCCESS;
  return fail(kInvalid, "%s: dtype is %d (%s): it must be F32, F16, BF16 or F64", function, dtype, dtype_name(dtype));
}

rope_status_t check_cpu_stream(const char *function, rope_stream_t stream) {
  if (stream == nullptr) return ROPE_STATUS_SUCCESS;
  return fail(kInvalid, "%s: stream is %p: a CPU descriptor takes NULL", function, static_cast<void *>(stream));
}

rope_status_t make_rope_geometry(const char *function, const rope_config_t &config, RopeGeometry *geometry) {
  ROPE_TRY(check_device(function, config.device, config.device_index, config.num_threads));
  ROPE_TRY(check_data_type(function, config.dtype));
  if (config.dtype == ROPE_DTYPE_F64) return fail(kUnsupported, "%s: dtype is F64: not served yet", function);
  ROPE_TRY(check_geometry(function, config));
  ROPE_TRY(check_unserved_config(function, config));
  geometry->dtype = config.dtype;
  geometry->layout = config.layout;
  geometry->style = config.style;
  geometry->head_dim = config.head_dim;
  geometry->rotary_dim = config.rotary_dim != 0 ? config.rotary_dim : config.head_dim;
  geometry->rotary_offset = config.rotary_offset;
  return copy_frequencies(function, config, geometry);
}

rope_status_t make_rope_problem(const char *function, const RopeGeometry &geometry, const rope_args_t &args,
                                bool is_transposed, RopeProblem *problem) {
  *problem = RopeProblem{};
  problem->geometry = &geometry;
  problem->is_transposed = is_transposed;
  ROPE_TRY(check_unserved_args(function, args));
  ProblemReader reader(function, geometry, problem);
  if (args.q.ndim == 0 && args.q.data == nullptr) return fail(kInvalid, "%s: q is absent: it is required", function);
  ROPE_TRY(reader.read_rotated("q", "q_out", args.q, args.q_out));
  ROPE_TRY(reader.read_rotated("k", "k_out", args.k, args.k_out));
  ROPE_TRY(reader.read_rotated("v", "v_out", args.v, args.v_out));
  ROPE_TRY(reader.read_positions(args));
  ROPE_TRY(reader.read_angles(args));
  return reader.check_overlaps();
}

}  // namespace rope
