// SPDX-License-Identifier: Apache-2.0
// rope_problem.cpp - validates RoPE calls
#include "core/problem/rope_problem.hpp"

#include "core/problem/descriptor_checks.hpp"
#include "core/problem/merge_axes.hpp"
#include "core/problem/operands.hpp"
#include "core/problem/overlap.hpp"
#include "core/problem/rope_layout.hpp"
#include "core/problem/shape_text.hpp"
#include "core/problem/step_reader.hpp"
#include "core/problem/table_problem.hpp"

namespace rope {

namespace {

constexpr rope_status_t kInvalid = ROPE_STATUS_INVALID_ARGUMENT;
constexpr rope_status_t kUnsupported = ROPE_STATUS_NOT_SUPPORTED;
constexpr uint32_t kRopeFlags =
    ROPE_FLAG_PROGRAMMATIC_LAUNCH | ROPE_FLAG_UNROTATED | ROPE_FLAG_V_UNROTATED | ROPE_FLAG_ACCUMULATE;

// Reads a call's tensors, one after another, into a problem.
class ProblemReader {
 public:
  ProblemReader(const char *function, const RopeGeometry &geometry, RopeProblem *problem)
      : function_(function),
        geometry_(geometry),
        layout_(axes_of(geometry.layout)),
        problem_(problem),
        operands_(function),
        step_(function, geometry, &operands_) {}

  rope_status_t begin(const rope_args_t &args) { return step_.begin(args, problem_->is_transposed); }

  // Reads one of q, k, v and its output. An absent tensor is skipped. Without an output, or with one that equals the
  // input, the tensor is rotated in place.
  rope_status_t read_tensor(TensorName name, const char *field, const char *out_field, const rope_tensor_t &in_tensor,
                            const rope_tensor_t &out_tensor) {
    const TensorUse use = step_.use_of(name);
    Operand *in, *out;
    ROPE_TRY(operands_.read(Role::kIn, field, in_tensor, &in));
    ROPE_TRY(operands_.read(Role::kOut, out_field, out_tensor, &out));
    if (in == nullptr) {
      if (out == nullptr && step_.pass_of(name) == nullptr) return ROPE_STATUS_SUCCESS;
      if (out == nullptr) {
        return fail(kInvalid, "%s: input.%s_pass is set but %s is absent: it needs its tensor", function_, field,
                    field);
      }
      return fail(kInvalid, "%s: %s is set but %s is absent: an output needs its input", function_, out_field, field);
    }
    ROPE_TRY(check_shape(field, in->view, use));
    PassSide pass = {};
    ROPE_TRY(read_pass(name, field, out_field, *in, out != nullptr || use.is_cached, &pass));
    if (out != nullptr) ROPE_TRY(check_output(out_field, out->view, field, in->view, pass.is_present));
    // Empty tensors may all have the address 0. To add to one is to leave it alone.
    const bool is_vacant = out != nullptr && out->view.is_empty() && step_.accumulates();
    const bool is_in_place = out == nullptr || (is_same_view(in->view, out->view) && !is_vacant);
    if (is_in_place && step_.accumulates()) {
      return fail(kInvalid, "%s: %s is %s: with ROPE_FLAG_ACCUMULATE it must be a tensor of its own", function_,
                  out_field, out == nullptr ? "absent" : field);
    }
    Operand *written = is_in_place ? in : out;
    const int64_t channels = pass.is_present ? geometry_.head_dim : length_of(in->view, layout_, kChannel);
    if (channels != geometry_.head_dim || written->view.dtype != geometry_.dtype) step_.require();
    // Whether the call changes the tensor at all. If not, an in-place tensor is not written.
    const bool changes = use.is_turned || use.changes_all_channels() ||
                         (use.has_styles && problem_->in_distance != problem_->out_distance);
    const bool is_written = out == nullptr ? !use.is_cached && changes : !is_in_place || changes;
    tensors_[problem_->num_tensors] = {name, use, static_cast<int>(channels), written->view.dtype, is_written, pass};
    RotatedTensor *tensor = &problem_->tensor[problem_->num_tensors++];
    tensor->in = in->view.data;
    tensor->out = written->view.data;
    tensor->heads = length_of(in->view, layout_, kHead);
    tensor->is_in_place = is_in_place;
    canonical_strides(in->view, layout_, tensor->in_stride);
    canonical_strides(written->view, layout_, tensor->out_stride);
    if (out == nullptr && !is_written) return ROPE_STATUS_SUCCESS;
    if (is_in_place) {
      operands_.join(in, out);
      // Only the window is read and written, so the other channels may belong to other data.
      const bool is_window_alone = !use.changes_all_channels() && channels == geometry_.head_dim && !use.is_cached;
      if (is_window_alone) in->view.narrow(layout_.axis[kChannel], geometry_.rotary_offset, geometry_.rotary_dim);
    }
    return check_output_strides(function_, written->field, written->view);
  }

  // Reads the groups of operands if the call is a step.
  rope_status_t read_step(StepProblem *step) {
    if (!step_.is_present()) return ROPE_STATUS_SUCCESS;
    ROPE_TRY(step_.read(*problem_, tensors_, step));
    problem_->step = step;
    return ROPE_STATUS_SUCCESS;
  }

  // Reads cu_seqlens, which only the layout THD has.
  rope_status_t read_sequences(const rope_args_t &args) {
    Operand *operand;
    ROPE_TRY(operands_.read_integers("cu_seqlens", args.cu_seqlens, &operand));
    if (operand == nullptr) return ROPE_STATUS_SUCCESS;
    const View &view = operand->view;
    if (!is_thd()) {
      return fail(kInvalid, "%s: cu_seqlens is set: it belongs to layout THD, not %s", function_, layout_.name);
    }
    if (view.ndim != 1 || view.shape[0] == 0) {
      return fail(kInvalid, "%s: cu_seqlens has shape %s: it must be [B + 1]", function_, ShapeText(view).text);
    }
    problem_->sequences = {view.data, true, view.dtype == ROPE_DTYPE_I64, view.stride[0], view.shape[0] - 1};
    return ROPE_STATUS_SUCCESS;
  }

  // Reads positions and start_positions, and position_offset.
  rope_status_t read_positions(const rope_args_t &args) {
    Operand *positions, *start_positions;
    ROPE_TRY(operands_.read_integers("positions", args.positions, &positions));
    ROPE_TRY(operands_.read_integers("start_positions", args.start_positions, &start_positions));
    if (positions != nullptr) {
      if (!is_for_each_token(positions->view)) {
        return fail(kInvalid, "%s: positions has shape %s: it must be %s", function_, ShapeText(positions->view).text,
                    PositionShapes(*this, false).text);
      }
      problem_->positions = for_each_token(positions->view);
    }
    if (start_positions != nullptr) {
      const View &start = start_positions->view;
      const int64_t batches = problem_->sequences.is_present ? problem_->sequences.count : problem_->batches;
      const bool is_for_each_batch = start.ndim == 1 && is_or_serves(start.shape[0], batches);
      // [S] is not accepted: with S = B it would be ambiguous, and taken for [B].
      const bool may_be_for_each_token = is_thd() || geometry_.num_axes > 1 || start.ndim == 2;
      if (is_for_each_batch) {
        problem_->start_positions = {start.data, true, start.dtype == ROPE_DTYPE_I64, 0, start.stride[0], 0};
      } else if (may_be_for_each_token && is_for_each_token(start)) {
        problem_->start_positions = for_each_token(start);
      } else {
        return fail(kInvalid, "%s: start_positions has shape %s: it must be [B], [%lld], or %s", function_,
                    ShapeText(start).text, printable(batches), PositionShapes(*this, true).text);
      }
    }
    problem_->position_offset = args.position_offset;
    return ROPE_STATUS_SUCCESS;
  }

  // Finds the source of the angles: cos and sin, angles, or the descriptor's frequencies.
  rope_status_t read_angles(const rope_args_t &args) {
    Operand *cos, *sin, *angles;
    ROPE_TRY(operands_.read(Role::kIn, "cos", args.cos, &cos));
    ROPE_TRY(operands_.read(Role::kIn, "sin", args.sin, &sin));
    ROPE_TRY(operands_.read(Role::kIn, "angles", args.angles, &angles));
    if ((cos == nullptr) != (sin == nullptr)) {
      return fail(kInvalid, "%s: %s is absent: cos and sin come together", function_, cos == nullptr ? "cos" : "sin");
    }
    if (angles != nullptr && cos != nullptr) {
      return fail(kInvalid, "%s: angles is set beside cos and sin: one of them must be absent", function_);
    }
    if (args.table_rows != ROPE_TABLE_BY_POSITION && args.table_rows != ROPE_TABLE_BY_TOKEN) {
      return fail(kInvalid, "%s: table_rows is %d: it must be ROPE_TABLE_BY_POSITION or ROPE_TABLE_BY_TOKEN", function_,
                  args.table_rows);
    }
    const bool is_by_token = args.table_rows == ROPE_TABLE_BY_TOKEN;
    if (!step_.is_turned() && (angles != nullptr || cos != nullptr || is_by_token)) {
      return fail(kInvalid, "%s: %s is set: with ROPE_FLAG_UNROTATED nothing is turned", function_,
                  angles != nullptr ? "angles"
                  : cos != nullptr  ? "cos"
                                    : "table_rows");
    }
    if (!step_.is_turned()) return ROPE_STATUS_SUCCESS;
    if (angles == nullptr && cos == nullptr) {
      if (is_by_token) {
        return fail(kInvalid, "%s: table_rows is ROPE_TABLE_BY_TOKEN: it needs cos and sin, or angles", function_);
      }
      if (geometry_.has_frequencies) return ROPE_STATUS_SUCCESS;
      return fail(kInvalid,
                  "%s: cos is absent: a descriptor with theta 0 and without inv_freq needs cos and sin, or angles",
                  function_);
    }
    if (is_by_token) ROPE_TRY(refuse_positions());
    problem_->table.is_by_token = is_by_token;
    if (angles != nullptr) {
      problem_->angles = AngleSource::kAngles;
      if (angles->view.dtype > ROPE_DTYPE_BF16) {
        return fail(kInvalid, "%s: angles.dtype is %s: it must be F32, F16 or BF16", function_,
                    dtype_name(angles->view.dtype));
      }
      ROPE_TRY(read_table(*angles, &problem_->table.cos));
      problem_->table.sin = problem_->table.cos;
      return ROPE_STATUS_SUCCESS;
    }
    problem_->angles = AngleSource::kTable;
    ROPE_TRY(read_table(*cos, &problem_->table.cos));
    ROPE_TRY(check_tables_alike(function_, "sin", sin->view, "cos", cos->view));
    return read_table(*sin, &problem_->table.sin);
  }

  // Reads the two words for faults.
  rope_status_t read_fault(const rope_args_t &args) {
    Operand *fault;
    ROPE_TRY(operands_.read(Role::kOut, "fault", args.fault, &fault));
    if (fault == nullptr) return ROPE_STATUS_SUCCESS;
    const View &view = fault->view;
    if (view.dtype != ROPE_DTYPE_I64) {
      return fail(kInvalid, "%s: fault.dtype is %s: it must be I64", function_, dtype_name(view.dtype));
    }
    if (view.ndim != 1 || view.shape[0] != 2) {
      return fail(kInvalid, "%s: fault has shape %s: it must be [2]", function_, ShapeText(view).text);
    }
    ROPE_TRY(check_output_strides(function_, "fault", view));
    problem_->fault = {view.data, view.stride[0]};
    return ROPE_STATUS_SUCCESS;
  }

  rope_status_t check_operands() const {
    ROPE_TRY(operands_.check_overlaps());
    return problem_->is_empty() ? ROPE_STATUS_SUCCESS : operands_.check_loops();
  }

 private:
  // Checks that the output has the input's type, or a type to which the input may be narrowed.
  rope_status_t check_output(const char *field, const View &view, const char *in_field, const View &in,
                             bool has_pass) const {
    ROPE_TRY(check_written_type(function_, field, view.dtype, in.dtype));
    if (problem_->is_transposed && is_code(view.dtype)) {
      return fail(kUnsupported, "%s: %s.dtype is %s: only forward quantises", function_, field, dtype_name(view.dtype));
    }
    if (has_pass) return check_axes(field, view, in_field, in, geometry_.head_dim, "head_dim");
    return check_same_shape(function_, field, view, in_field, in);
  }

  // Checks that the axes are those of `in`, except for the channels.
  rope_status_t check_axes(const char *field, const View &view, const char *in_field, View in, int64_t channels,
                           const char *rule) const {
    const int axis = layout_.axis[kChannel];
    if (view.ndim == in.ndim && view.shape[axis] != channels) {
      return fail(kInvalid, "%s: %s.shape[%d] is %lld: it must be %s, %lld", function_, field, axis,
                  printable(view.shape[axis]), rule, printable(channels));
    }
    in.shape[axis] = channels;
    return check_same_shape(function_, field, view, in_field, in);
  }

  // Reads the tensor that provides the channels outside the window of q or k.
  rope_status_t read_pass(TensorName name, const char *in_field, const char *out_field, const Operand &in,
                          bool has_destination, PassSide *pass) {
    const rope_tensor_t *const given = step_.pass_of(name);
    if (given == nullptr) return ROPE_STATUS_SUCCESS;
    const char *const field = name == kQ ? "input.q_pass" : "input.k_pass";
    const int axis = layout_.axis[kChannel], others = geometry_.head_dim - geometry_.rotary_dim;
    if (others == 0) {
      return fail(kInvalid, "%s: %s is set: with rotary_dim %d there are no channels outside the window", function_,
                  field, geometry_.rotary_dim);
    }
    if (in.view.shape[axis] != geometry_.rotary_dim) {
      return fail(kInvalid, "%s: %s.shape[%d] is %lld: beside %s it must be rotary_dim, %d", function_, in_field, axis,
                  printable(in.view.shape[axis]), field, geometry_.rotary_dim);
    }
    if (!has_destination) {
      return fail(kInvalid, "%s: %s is set but %s is absent%s: all channels go there", function_, field, out_field,
                  name == kK ? ", and so is cache.k_cache" : "");
    }
    Operand *operand;
    ROPE_TRY(operands_.read(Role::kIn, field, *given, &operand));
    const View &view = operand->view;
    if (view.dtype != geometry_.dtype) {
      return fail(kInvalid, "%s: %s.dtype is %s: it must be the descriptor's, %s", function_, field,
                  dtype_name(view.dtype), dtype_name(geometry_.dtype));
    }
    ROPE_TRY(check_axes(field, view, in_field, in.view, others, "head_dim - rotary_dim"));
    pass->data = view.data;
    pass->is_present = true;
    canonical_strides(view, layout_, pass->stride);
    return ROPE_STATUS_SUCCESS;
  }

  // A tensor has head_dim channels, or only the rotary_dim channels of its window. An unrotated tensor may have any
  // number up to kMaxHeadDim.
  rope_status_t check_width(const char *field, int64_t channels, const TensorUse &use) const {
    const int axis = layout_.axis[kChannel];
    if (channels == geometry_.head_dim) return ROPE_STATUS_SUCCESS;
    if (!use.has_styles) {
      if (channels >= 1 && channels <= kMaxHeadDim) return ROPE_STATUS_SUCCESS;
      return fail(kInvalid, "%s: %s.shape[%d] is %lld: it must be 1 to %d", function_, field, axis, printable(channels),
                  kMaxHeadDim);
    }
    if (channels == geometry_.rotary_dim) return ROPE_STATUS_SUCCESS;
    if (geometry_.rotary_dim == geometry_.head_dim) {
      return fail(kInvalid, "%s: %s.shape[%d] is %lld: it must be head_dim, %d", function_, field, axis,
                  printable(channels), geometry_.head_dim);
    }
    return fail(kInvalid, "%s: %s.shape[%d] is %lld: it must be head_dim, %d, or rotary_dim, %d", function_, field,
                axis, printable(channels), geometry_.head_dim, geometry_.rotary_dim);
  }

  // Checks a tensor's type and shape. The first tensor sets the number of batches and tokens.
  rope_status_t check_shape(const char *field, const View &view, const TensorUse &use) {
    if (view.dtype != geometry_.dtype) {
      return fail(kInvalid, "%s: %s.dtype is %s: it must be the descriptor's, %s", function_, field,
                  dtype_name(view.dtype), dtype_name(geometry_.dtype));
    }
    if (view.ndim != layout_.ndim) {
      return fail(
          kInvalid,
          "%s: %s.ndim is %d: layout %s has %d axes, %s: pass that view of the same memory, by shape and stride",
          function_, field, view.ndim, layout_.name, layout_.ndim, layout_.axes);
    }
    ROPE_TRY(check_width(field, length_of(view, layout_, kChannel), use));
    const int64_t heads = length_of(view, layout_, kHead);
    if (heads > kMaxHeads) {
      return fail(kUnsupported, "%s: %s.shape[%d] is %lld: at most %lld heads are served", function_, field,
                  layout_.axis[kHead], printable(heads), printable(kMaxHeads));
    }
    const int64_t batches = length_of(view, layout_, kBatch), tokens = length_of(view, layout_, kToken);
    if (problem_->num_tensors == 0) {
      first_field_ = field;
      problem_->batches = batches;
      problem_->tokens = tokens;
    } else if (batches != problem_->batches) {
      return fail(kInvalid, "%s: %s.shape[%d] is %lld: it must be that of %s, %lld batches", function_, field,
                  layout_.axis[kBatch], printable(batches), first_field_, printable(problem_->batches));
    } else if (tokens != problem_->tokens) {
      return fail(kInvalid, "%s: %s.shape[%d] is %lld: it must be that of %s, %lld tokens", function_, field,
                  layout_.axis[kToken], printable(tokens), first_field_, printable(problem_->tokens));
    }
    return ROPE_STATUS_SUCCESS;
  }

  bool is_thd() const { return layout_.ndim == 3; }

  // An axis of length 1 has stride 0 here, so one entry applies to all.
  static bool is_or_serves(int64_t length, int64_t wanted) { return length == wanted || length == 1; }

  // The shape is [S] or [B, S] (THD has one batch); with several position axes, these follow an axis of that length.
  bool is_for_each_token(const View &view) const {
    const int axes = geometry_.num_axes > 1 ? 1 : 0;
    if (view.ndim != axes + 1 && view.ndim != axes + 2) return false;
    if (axes == 1 && !is_or_serves(view.shape[0], geometry_.num_axes)) return false;
    if (view.ndim == axes + 2 && !is_or_serves(view.shape[axes], problem_->batches)) return false;
    return view.shape[view.ndim - 1] == problem_->tokens;
  }

  // Strides for a view that is_for_each_token accepts; a missing axis gets stride 0.
  TokenIntegers for_each_token(const View &view) const {
    const int axes = geometry_.num_axes > 1 ? 1 : 0;
    return {view.data,
            true,
            view.dtype == ROPE_DTYPE_I64,
            axes == 1 ? view.stride[0] : 0,
            view.ndim == axes + 2 ? view.stride[axes] : 0,
            view.stride[view.ndim - 1]};
  }

  // The shapes that is_for_each_token accepts, in words.
  struct PositionShapes : FixedText<256> {
    PositionShapes(const ProblemReader &reader, bool is_start) {
      const RopeProblem &problem = *reader.problem_;
      const bool has_axes = reader.geometry_.num_axes > 1;
      View by_token = {}, by_batch = {};
      by_token.ndim = by_batch.ndim = 0;
      const auto add = [](View *view, int64_t length) { view->shape[view->ndim++] = length; };
      if (has_axes) add(&by_token, reader.geometry_.num_axes), add(&by_batch, reader.geometry_.num_axes);
      add(&by_token, problem.tokens);
      add(&by_batch, problem.batches), add(&by_batch, problem.tokens);
      if (reader.is_thd() || !is_start || has_axes) {
        append(reader.is_thd() ? (has_axes ? "[A, T], " : "[T], ") : has_axes ? "[A, S], " : "[S], ");
        append(ShapeText(by_token).text);
        append(", or ");
      }
      append(reader.is_thd() ? (has_axes ? "[A, 1, T], " : "[1, T], ") : has_axes ? "[A, B, S], " : "[B, S], ");
      append(ShapeText(by_batch).text);
      const bool has_batches = is_start || !reader.is_thd();
      append(has_axes ? (has_batches ? "; A and B may be 1" : "; A may be 1") : has_batches ? "; B may be 1" : "");
    }
  };

  // With rows by token, positions would be ignored, so they must be absent.
  rope_status_t refuse_positions() const {
    const char *field = problem_->positions.is_present         ? "positions"
                        : problem_->start_positions.is_present ? "start_positions"
                        : problem_->position_offset != 0       ? "position_offset"
                                                               : nullptr;
    if (field == nullptr) return ROPE_STATUS_SUCCESS;
    return fail(kInvalid, "%s: %s is set: with ROPE_TABLE_BY_TOKEN the row is the token, whatever its position",
                function_, field);
  }

  // Reads cos, sin or angles.
  rope_status_t read_table(const Operand &operand, TableColumns *columns) {
    const char *field = operand.field;
    const View &view = operand.view;
    AngleTable *table = &problem_->table;
    const bool has_axes = geometry_.num_axes > 1 && (table->is_by_token || view.ndim == 3);
    const int row_axis = view.ndim - 2, first = has_axes ? 1 : 0;
    const bool has_batches = table->is_by_token && !is_thd() && view.ndim == first + 3;
    if (row_axis != first + (has_batches ? 1 : 0)) {
      return fail(kInvalid, "%s: %s.ndim is %d: it must be %s", function_, field, view.ndim,
                  !table->is_by_token ? (geometry_.num_axes > 1 ? "2, [M, W], or 3, [A, M, W]" : "2, [M, W]")
                  : is_thd()          ? (has_axes ? "3, [A, T, W]" : "2, [T, W]")
                  : has_axes          ? "3, [A, S, W], or 4, [A, B, S, W]"
                                      : "2, [S, W], or 3, [B, S, W]");
    }
    ROPE_TRY(read_table_columns(function_, field, geometry_, view, &table->width, &table->is_by_channel));
    if (has_axes) ROPE_TRY(check_table_axis(function_, field, geometry_, view));
    if (has_batches && !is_or_serves(view.shape[first], problem_->batches)) {
      return fail(kInvalid, "%s: %s.shape[%d] is %lld: it must be that of %s, %lld batches, or 1", function_, field,
                  first, printable(view.shape[first]), first_field_, printable(problem_->batches));
    }
    if (table->is_by_token && view.shape[row_axis] != problem_->tokens) {
      return fail(kInvalid, "%s: %s.shape[%d] is %lld: by token it must be that of %s, %lld tokens", function_, field,
                  row_axis, printable(view.shape[row_axis]), first_field_, printable(problem_->tokens));
    }
    *columns = {view.data, has_axes ? view.stride[0] : 0, has_batches ? view.stride[first] : 0, view.stride[row_axis],
                view.stride[row_axis + 1]};
    table->dtype = view.dtype;
    table->rows = view.shape[row_axis];
    return ROPE_STATUS_SUCCESS;
  }

  const char *function_;
  const RopeGeometry &geometry_;
  const LayoutAxes &layout_;
  RopeProblem *problem_;
  const char *first_field_ = "q";  // the tensor that set the number of batches and tokens
  Operands operands_;
  StepReader step_;
  ReadTensor tensors_[kNumTensorNames];
};

}  // namespace

int64_t RopeProblem::heads_per_token() const {
  int64_t heads = 0;
  for (int i = 0; i < num_tensors; ++i) heads += tensor[i].heads;
  return heads;
}

rope_status_t make_rope_problem(const char *function, const RopeGeometry &geometry, const rope_args_t &args,
                                bool is_transposed, RopeProblem *problem, StepProblem *step) {
  *problem = RopeProblem{};
  problem->geometry = &geometry;
  problem->is_transposed = is_transposed;
  problem->in_distance = is_transposed ? geometry.out_distance : geometry.in_distance;
  problem->out_distance = is_transposed ? geometry.in_distance : geometry.out_distance;
  ROPE_TRY(check_call_flags(function, args.flags, kRopeFlags,
                            "ROPE_FLAG_PROGRAMMATIC_LAUNCH (0x1), ROPE_FLAG_UNROTATED (0x2), ROPE_FLAG_V_UNROTATED "
                            "(0x4) and ROPE_FLAG_ACCUMULATE (0x8)"));
  if (!is_transposed && (args.flags & ROPE_FLAG_ACCUMULATE) != 0) {
    return fail(kInvalid, "%s: flags is 0x%x: ROPE_FLAG_ACCUMULATE (0x8) belongs to rope_backward", function,
                args.flags);
  }
  problem->is_programmatic = (args.flags & ROPE_FLAG_PROGRAMMATIC_LAUNCH) != 0;
  if (args.reserved0 != 0) {
    return fail(kUnsupported, "%s: reserved0 is %d: it must be 0", function, args.reserved0);
  }
  ProblemReader reader(function, geometry, problem);
  ROPE_TRY(reader.begin(args));
  ROPE_TRY(reader.read_tensor(kQ, "q", "q_out", args.q, args.q_out));
  ROPE_TRY(reader.read_tensor(kK, "k", "k_out", args.k, args.k_out));
  ROPE_TRY(reader.read_tensor(kV, "v", "v_out", args.v, args.v_out));
  if (problem->num_tensors == 0)
    return fail(kInvalid, "%s: q is absent, and so are k and v: one is required", function);
  ROPE_TRY(reader.read_sequences(args));
  ROPE_TRY(reader.read_positions(args));
  ROPE_TRY(reader.read_angles(args));
  ROPE_TRY(reader.read_fault(args));
  ROPE_TRY(reader.read_step(step));
  ROPE_TRY(reader.check_operands());
  if (problem->step == nullptr) merge_axes(problem);
  return ROPE_STATUS_SUCCESS;
}

}  // namespace rope
