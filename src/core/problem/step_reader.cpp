// step_reader.cpp - validates what a call asks for around the rotation
#include "core/problem/step_reader.hpp"

#include "core/problem/import.hpp"
#include "core/problem/overlap.hpp"

namespace rope {

namespace {

constexpr rope_status_t kInvalid = ROPE_STATUS_INVALID_ARGUMENT;
constexpr rope_status_t kUnsupported = ROPE_STATUS_NOT_SUPPORTED;

constexpr int32_t kNormBits[kNumTensorNames] = {ROPE_NORM_TENSOR_Q, ROPE_NORM_TENSOR_K, ROPE_NORM_TENSOR_V};
constexpr const char *kNames[kNumTensorNames] = {"q", "k", "v"};
constexpr const char *kOutNames[kNumTensorNames] = {"q_out", "k_out", "v_out"};

constexpr double kMinFloat = 0x1p-149, kMaxFloat = 0x1.fffffep127;  // the numbers of F32 above 0
constexpr float kDefaultFloor = 1e-10f;                             // of F32 scales

// The index of a tensor in the problem; -1: it is absent.
int index_of(TensorName name, const RopeProblem &problem, const ReadTensor *tensors) {
  for (int i = 0; i < problem.num_tensors; ++i) {
    if (tensors[i].name == name) return i;
  }
  return -1;
}

struct GivenTensor {
  const char *field;
  const rope_tensor_t &tensor;
};

// The field of the first that is set; NULL: none is.
template <size_t kCount>
const char *first_set(const GivenTensor (&list)[kCount]) {
  for (const GivenTensor &given : list) {
    if (!is_zeroed(given.tensor)) return given.field;
  }
  return nullptr;
}

}  // namespace

rope_status_t StepReader::begin(const rope_args_t &args, bool is_transposed) {
  is_unrotated_ = (args.flags & ROPE_FLAG_UNROTATED) != 0;
  is_v_unrotated_ = is_unrotated_ || (args.flags & ROPE_FLAG_V_UNROTATED) != 0;
  is_present_ = is_v_unrotated_ || args.norm != nullptr || args.cache != nullptr || args.quant != nullptr ||
                args.input != nullptr || geometry_.norm.type != 0;
  return is_present_ ? check_groups(args, is_transposed) : ROPE_STATUS_SUCCESS;
}

rope_status_t StepReader::check_groups(const rope_args_t &args, bool is_transposed) {
  if (is_transposed && geometry_.norm.type != 0) {
    return fail(kUnsupported, "%s: desc has a norm: this version has no gradients of norms yet", function_);
  }
  if ((args.norm != nullptr) != (geometry_.norm.type != 0)) {
    return args.norm != nullptr ? fail(kInvalid, "%s: norm is set: it belongs to a descriptor with a norm", function_)
                                : fail(kInvalid, "%s: norm is NULL: a descriptor with a norm needs it", function_);
  }
  if (is_transposed && args.cache != nullptr) {
    return fail(kUnsupported, "%s: cache is set: only forward writes caches", function_);
  }
  if (is_transposed && args.quant != nullptr) {
    return fail(kUnsupported, "%s: quant is set: only forward quantises", function_);
  }
  const char *group = args.norm != nullptr    ? "norm"
                      : args.cache != nullptr ? "cache"
                      : args.quant != nullptr ? "quant"
                      : args.input != nullptr ? "input"
                                              : nullptr;
  if (group != nullptr && !is_v_unrotated_ && !is_zeroed(args.v)) {
    return fail(kUnsupported,
                "%s: v is set beside %s: it needs ROPE_FLAG_UNROTATED or ROPE_FLAG_V_UNROTATED, without which it would "
                "be rotated",
                function_, group);
  }
  if (args.norm != nullptr) {
    ROPE_TRY(import_args(function_, "norm", args.norm, kRopeNormArgsFirstSize, &norm_copy_, &norm_));
    if (norm_->flags != 0) {
      return fail(kUnsupported, "%s: norm.flags is 0x%x: this version knows no flag", function_, norm_->flags);
    }
    ROPE_TRY(refuse_gradients());
  }
  if (args.quant != nullptr) ROPE_TRY(check_quant(args));
  if (args.input != nullptr) ROPE_TRY(check_input(args, is_transposed));
  return args.cache != nullptr ? check_cache(args) : ROPE_STATUS_SUCCESS;
}

rope_status_t StepReader::check_cache(const rope_args_t &args) {
  ROPE_TRY(import_args(function_, "cache", args.cache, kRopeCacheArgsFirstSize, &cache_copy_, &cache_));
  if ((cache_->flags & ~uint32_t{ROPE_CACHE_FLAG_SKIP_SLOT_0}) != 0) {
    return fail(kUnsupported, "%s: cache.flags is 0x%x: this version knows ROPE_CACHE_FLAG_SKIP_SLOT_0 (0x%x) only",
                function_, cache_->flags, ROPE_CACHE_FLAG_SKIP_SLOT_0);
  }
  if (!is_zeroed(cache_->k_pass_cache) && is_zeroed(cache_->k_cache)) {
    return fail(kInvalid, "%s: cache.k_pass_cache is set but cache.k_cache is absent: the window goes there",
                function_);
  }
  if (!is_zeroed(cache_->k_cache) || !is_zeroed(cache_->v_cache)) return ROPE_STATUS_SUCCESS;
  return fail(kInvalid, "%s: cache.k_cache is absent, and so is cache.v_cache: one of them is required", function_);
}

rope_status_t StepReader::refuse_gradients() const {
  const GivenTensor gradients[] = {{"q_in", norm_->q_in},
                                   {"k_in", norm_->k_in},
                                   {"v_in", norm_->v_in},
                                   {"grad_q_weight", norm_->grad_q_weight},
                                   {"grad_k_weight", norm_->grad_k_weight},
                                   {"grad_q_bias", norm_->grad_q_bias},
                                   {"grad_k_bias", norm_->grad_k_bias}};
  const char *const field = first_set(gradients);
  if (field != nullptr) {
    return fail(kInvalid, "%s: norm.%s is set: it belongs to backward", function_, field);
  }
  return ROPE_STATUS_SUCCESS;
}

rope_status_t StepReader::check_quant(const rope_args_t &args) {
  ROPE_TRY(import_args(function_, "quant", args.quant, kRopeQuantArgsFirstSize, &quant_copy_, &quant_));
  constexpr uint32_t kFlags = ROPE_QUANT_FLAG_SCALE_MULTIPLIES | ROPE_QUANT_FLAG_POWER_OF_TWO;
  if ((quant_->flags & ~kFlags) != 0) {
    return fail(kUnsupported,
                "%s: quant.flags is 0x%x: this version knows ROPE_QUANT_FLAG_SCALE_MULTIPLIES (0x1) and "
                "ROPE_QUANT_FLAG_POWER_OF_TWO (0x2) only",
                function_, quant_->flags);
  }
  const double floor = quant_->scale_floor;
  if (floor != 0 && !(floor >= kMinFloat && floor <= kMaxFloat)) {
    return fail(kInvalid, "%s: quant.scale_floor is %g: it must be 0 or a number of F32 above it", function_, floor);
  }
  return ROPE_STATUS_SUCCESS;
}

rope_status_t StepReader::check_input(const rope_args_t &args, bool is_transposed) {
  ROPE_TRY(import_args(function_, "input", args.input, kRopeInputArgsFirstSize, &input_copy_, &input_));
  if (input_->flags != 0) {
    return fail(kUnsupported, "%s: input.flags is 0x%x: this version knows no flag", function_, input_->flags);
  }
  const GivenTensor passed[] = {{"q_pass", input_->q_pass}, {"k_pass", input_->k_pass}};
  const char *const field = first_set(passed);
  if (field == nullptr || !is_transposed) return ROPE_STATUS_SUCCESS;
  return fail(kUnsupported, "%s: input.%s is set: only forward reads it", function_, field);
}

const rope_tensor_t *StepReader::pass_of(TensorName name) const {
  if (input_ == nullptr || name == kV) return nullptr;
  const rope_tensor_t &pass = name == kQ ? input_->q_pass : input_->k_pass;
  return is_zeroed(pass) ? nullptr : &pass;
}

TensorUse StepReader::use_of(TensorName name) const {
  TensorUse use;
  use.is_turned = name == kV ? !is_v_unrotated_ : !is_unrotated_;
  use.has_styles = name != kV || use.is_turned;
  use.is_normed = (geometry_.norm.tensors & kNormBits[name]) != 0;
  use.is_cached = cache_ != nullptr && name != kQ && !is_zeroed(name == kK ? cache_->k_cache : cache_->v_cache);
  use.has_factor = input_ != nullptr && !is_zeroed(name == kQ   ? input_->q_row_factor
                                                   : name == kK ? input_->k_row_factor
                                                                : input_->v_row_factor);
  return use;
}

rope_status_t StepReader::read(const RopeProblem &problem, const ReadTensor *tensors, StepProblem *step) {
  step->is_turned = step->has_norm = step->has_caches = step->has_factor = step->has_parts = step->has_codes = false;
  step->scale_multiplies = false;
  for (int i = 0; i < problem.num_tensors; ++i) {
    StepTensor *tensor = &step->tensor[i];
    describe(problem.tensor[i], tensors[i], tensor);
    step->is_turned = step->is_turned || (tensor->is_turned && problem.tensor[i].heads > 0);
    step->has_norm = step->has_norm || tensor->is_normed;
  }
  if (norm_ != nullptr) ROPE_TRY(read_norm(problem, tensors, step));
  if (input_ != nullptr) {
    ROPE_TRY(read_factor("input.q_row_factor", input_->q_row_factor, kQ, problem, tensors, step));
    ROPE_TRY(read_factor("input.k_row_factor", input_->k_row_factor, kK, problem, tensors, step));
    ROPE_TRY(read_factor("input.v_row_factor", input_->v_row_factor, kV, problem, tensors, step));
  }
  if (cache_ != nullptr) ROPE_TRY(read_caches(problem, tensors, step));
  for (int i = 0; i < problem.num_tensors; ++i) {
    step->has_codes = step->has_codes || step->tensor[i].has_codes();
    step->has_parts = step->has_parts || step->tensor[i].has_parts;
  }
  ROPE_TRY(read_written_scales(problem, tensors, step));
  return quant_ != nullptr ? read_quant(problem, tensors, step) : ROPE_STATUS_SUCCESS;
}

rope_status_t StepReader::find_tensor(const char *field, TensorName name, const RopeProblem &problem,
                                      const ReadTensor *tensors, int *index) const {
  *index = index_of(name, problem, tensors);
  if (*index >= 0) return ROPE_STATUS_SUCCESS;
  return fail(kInvalid, "%s: %s is set but %s is absent: it needs its tensor", function_, field, kNames[name]);
}

rope_status_t StepReader::check_number_type(const char *field, const View &view) const {
  if (view.dtype == ROPE_DTYPE_F32 || view.dtype == geometry_.dtype) return ROPE_STATUS_SUCCESS;
  return fail(kInvalid, "%s: %s.dtype is %s: it must be F32 or the descriptor's, %s", function_, field,
              dtype_name(view.dtype), dtype_name(geometry_.dtype));
}

void StepReader::describe(const RotatedTensor &rotated, const ReadTensor &read, StepTensor *tensor) const {
  const TensorUse &use = read.use;
  *tensor = {};
  tensor->channels = read.channels;
  tensor->window_begin = read.channels == geometry_.head_dim ? geometry_.rotary_offset : 0;
  tensor->is_turned = use.is_turned;
  tensor->has_styles = use.has_styles;
  tensor->is_normed = use.is_normed;
  tensor->is_written = read.is_written;
  tensor->is_whole = use.changes_all_channels() || !rotated.is_in_place;
  tensor->out_dtype = read.out_dtype;
  tensor->pass = read.pass;
  tensor->has_parts = read.pass.is_present;
}

rope_status_t StepReader::read_norm(const RopeProblem &problem, const ReadTensor *tensors, StepProblem *step) {
  ROPE_TRY(read_channels("norm.q_weight", norm_->q_weight, kQ, problem, tensors, step, false));
  ROPE_TRY(read_channels("norm.k_weight", norm_->k_weight, kK, problem, tensors, step, false));
  ROPE_TRY(read_channels("norm.q_bias", norm_->q_bias, kQ, problem, tensors, step, true));
  return read_channels("norm.k_bias", norm_->k_bias, kK, problem, tensors, step, true);
}

// A weight or bias of q or k.
rope_status_t StepReader::read_channels(const char *field, const rope_tensor_t &given, TensorName name,
                                        const RopeProblem &problem, const ReadTensor *tensors, StepProblem *step,
                                        bool is_bias) {
  Operand *operand;
  ROPE_TRY(operands_->read(Role::kIn, field, given, &operand));
  if (operand == nullptr) return ROPE_STATUS_SUCCESS;
  int index;
  ROPE_TRY(find_tensor(field, name, problem, tensors, &index));
  if (!step->tensor[index].is_normed) {
    return fail(kInvalid, "%s: %s is set: norm_tensors leaves %s out", function_, field, kNames[name]);
  }
  if (is_bias && geometry_.norm.type != ROPE_NORM_LAYER) {
    return fail(kInvalid, "%s: %s is set: it belongs to ROPE_NORM_LAYER", function_, field);
  }
  const View &view = operand->view;
  ROPE_TRY(check_number_type(field, view));
  const int64_t heads = problem.tensor[index].heads, channels = step->tensor[index].channels;
  const bool is_by_head = view.ndim == 2;
  if ((view.ndim != 1 && !is_by_head) || view.shape[view.ndim - 1] != channels ||
      (is_by_head && view.shape[0] != heads)) {
    return fail(kInvalid, "%s: %s has shape %s: it must be [%lld], or [%lld, %lld] for each head", function_, field,
                ShapeText(view).text, printable(channels), printable(heads), printable(channels));
  }
  ChannelNumbers *numbers = is_bias ? &step->tensor[index].bias : &step->tensor[index].weight;
  *numbers = {view.data, view.dtype == ROPE_DTYPE_F32, is_by_head ? view.stride[0] : 0, view.stride[view.ndim - 1]};
  return ROPE_STATUS_SUCCESS;
}

rope_status_t StepReader::read_quant(const RopeProblem &problem, const ReadTensor *tensors, StepProblem *step) {
  step->scale_multiplies = (quant_->flags & ROPE_QUANT_FLAG_SCALE_MULTIPLIES) != 0;
  ROPE_TRY(read_scale("quant.q_scale", quant_->q_scale, kQ, problem, tensors, step));
  ROPE_TRY(read_scale("quant.k_scale", quant_->k_scale, kK, problem, tensors, step));
  ROPE_TRY(read_scale("quant.v_scale", quant_->v_scale, kV, problem, tensors, step));
  ROPE_TRY(read_pass_scale(problem, tensors, step));
  return read_amax(problem, tensors, step);
}

// The axes that scales share with what they are written beside: their lengths, and which of them are the two of rows and
// that of heads; -1: there is none.
struct StepReader::ScaleRows {
  const char *beside;  // its field
  rope_dtype_t dtype;
  int count;
  int64_t length[3];
  int axis[3];
};

rope_status_t StepReader::read_written_scales(const RopeProblem &problem, const ReadTensor *tensors,
                                              StepProblem *step) {
  if (quant_ != nullptr) {
    ROPE_TRY(read_scales_out("quant.q_scales_out", quant_->q_scales_out, kQ, problem, tensors, step));
    ROPE_TRY(read_scales_out("quant.k_scales_out", quant_->k_scales_out, kK, problem, tensors, step));
    ROPE_TRY(read_scales_out("quant.v_scales_out", quant_->v_scales_out, kV, problem, tensors, step));
  }
  if (cache_ != nullptr) {
    ROPE_TRY(read_cache_scales("cache.k_scales", cache_->k_scales, "cache.k_cache", kK, problem, tensors, step, false));
    ROPE_TRY(read_cache_scales("cache.v_scales", cache_->v_scales, "cache.v_cache", kV, problem, tensors, step, false));
    ROPE_TRY(read_cache_scales("cache.k_pass_scales", cache_->k_pass_scales, "cache.k_pass_cache", kK, problem, tensors,
                               step, true));
  }
  const bool has_any =
      written_[kQ] != nullptr || written_[kK] != nullptr || written_[kV] != nullptr || pass_written_ != nullptr;
  if (quant_ == nullptr || has_any) return ROPE_STATUS_SUCCESS;
  if ((quant_->flags & ROPE_QUANT_FLAG_POWER_OF_TWO) != 0) {
    return fail(kInvalid, "%s: quant.flags is 0x%x: ROPE_QUANT_FLAG_POWER_OF_TWO (0x2) needs scales that are written",
                function_, quant_->flags);
  }
  if (quant_->scale_floor == 0) return ROPE_STATUS_SUCCESS;
  return fail(kInvalid, "%s: quant.scale_floor is %g: it needs scales that are written", function_,
              quant_->scale_floor);
}

rope_status_t StepReader::read_scales_out(const char *field, const rope_tensor_t &given, TensorName name,
                                          const RopeProblem &problem, const ReadTensor *tensors, StepProblem *step) {
  if (is_zeroed(given)) return ROPE_STATUS_SUCCESS;
  int index;
  ROPE_TRY(find_tensor(field, name, problem, tensors, &index));
  StepTensor *const tensor = &step->tensor[index];
  const int *const axis = layout_.axis;
  ScaleRows rows = {kOutNames[name], tensor->out_dtype, axis[kChannel], {}, {axis[kBatch], axis[kToken], axis[kHead]}};
  const int64_t lengths[] = {problem.batches, problem.tokens, problem.tensor[index].heads};
  for (int i = 0; i < 3; ++i) {
    if (rows.axis[i] >= 0) rows.length[rows.axis[i]] = lengths[i];
  }
  written_[name] = field;
  return read_scales(field, given, rows, tensor->channels, &tensor->out_scales);
}

rope_status_t StepReader::read_cache_scales(const char *field, const rope_tensor_t &given, const char *beside,
                                            TensorName name, const RopeProblem &problem, const ReadTensor *tensors,
                                            StepProblem *step, bool is_of_pass) {
  if (is_zeroed(given)) return ROPE_STATUS_SUCCESS;
  int index;
  ROPE_TRY(find_tensor(field, name, problem, tensors, &index));
  StepTensor *const tensor = &step->tensor[index];
  const CachePlaces &places = step->places;
  const rope_dtype_t dtype = is_of_pass ? tensor->pass_cache.dtype : tensor->cache.dtype;
  const ScaleRows rows = {beside, dtype, 3, {places.pages, places.entries, problem.tensor[index].heads}, {0, 1, 2}};
  (is_of_pass ? pass_written_ : written_[name]) = field;
  const ChannelPart part = is_of_pass ? ChannelPart::others(tensor->window_begin) : tensor->cache_part;
  return read_scales(field, given, rows, part.count(tensor->channels, geometry_.rotary_dim),
                     is_of_pass ? &tensor->pass_scales : &tensor->cache_scales);
}

// Behind the axes of rows [G] groups of the channels, or, where there is an axis left, [G / 4, 4].
rope_status_t StepReader::read_scales(const char *field, const rope_tensor_t &given, const ScaleRows &rows,
                                      int64_t channels, WrittenScales *scales) {
  Operand *operand;
  ROPE_TRY(operands_->read(Role::kDisjointOut, field, given, &operand));
  const View &view = operand->view;
  if (!is_code(rows.dtype)) {
    return fail(kInvalid, "%s: %s is set: %s is absent or has no 8 bits", function_, field, rows.beside);
  }
  if (view.dtype == ROPE_DTYPE_F8_E4M3) {
    return fail(kUnsupported, "%s: %s.dtype is F8_E4M3: this version does not write such scales yet", function_, field);
  }
  if (view.dtype != ROPE_DTYPE_F32 && view.dtype != ROPE_DTYPE_F8_E8M0) {
    return fail(kInvalid, "%s: %s.dtype is %s: it must be F32 or F8_E8M0", function_, field, dtype_name(view.dtype));
  }
  const int count = rows.count;
  const bool is_split = view.ndim == count + 2 && view.shape[count + 1] == 4;
  bool fits = is_split || view.ndim == count + 1;
  for (int i = 0; fits && i < count; ++i) fits = view.shape[i] == rows.length[i];
  const int64_t groups = fits && view.shape[count] <= channels ? view.shape[count] * (is_split ? 4 : 1) : 0;
  if (groups == 0 || channels % groups != 0) {
    View expected = {};
    expected.ndim = count;
    for (int i = 0; i < count; ++i) expected.shape[i] = rows.length[i];
    return fail(kInvalid,
                "%s: %s has shape %s: it must have the axes of %s before its channels, %s, then G%s, where G divides "
                "%lld channels",
                function_, field, ShapeText(view).text, rows.beside, ShapeText(expected).text,
                count + 2 <= kMaxAxes ? ", or G/4 and 4" : "", printable(channels));
  }
  ROPE_TRY(check_output_strides(function_, field, view));
  const auto stride_of = [&](int axis) { return axis < 0 ? 0 : view.stride[axis]; };
  const bool is_e8m0 = view.dtype == ROPE_DTYPE_F8_E8M0;
  const bool is_power_of_two = quant_ != nullptr && (quant_->flags & ROPE_QUANT_FLAG_POWER_OF_TWO) != 0;
  const float given_floor = quant_ != nullptr ? static_cast<float>(quant_->scale_floor) : 0;
  scales->data = view.data;
  scales->form = is_e8m0 ? ScaleForm::kE8M0 : is_power_of_two ? ScaleForm::kPowerOfTwo : ScaleForm::kF32;
  scales->floor = bits_of(given_floor != 0 || is_e8m0 ? given_floor : kDefaultFloor);
  scales->groups = static_cast<int>(groups);
  scales->row_stride[0] = stride_of(rows.axis[0]);
  scales->row_stride[1] = stride_of(rows.axis[1]);
  scales->head_stride = stride_of(rows.axis[2]);
  scales->group_stride = view.stride[is_split ? count + 1 : count];
  scales->four_stride = is_split ? view.stride[count] : groups > 4 ? 4 * view.stride[count] : 0;
  return ROPE_STATUS_SUCCESS;
}

rope_status_t StepReader::read_scale(const char *field, const rope_tensor_t &given, TensorName name,
                                     const RopeProblem &problem, const ReadTensor *tensors, StepProblem *step) {
  if (is_zeroed(given)) return ROPE_STATUS_SUCCESS;
  int index;
  ROPE_TRY(find_tensor(field, name, problem, tensors, &index));
  StepTensor *const tensor = &step->tensor[index];
  if (!tensor->may_take_scale()) {
    return fail(kInvalid, "%s: %s is set: neither %s nor a cache of %s has 8 bits%s", function_, field, kOutNames[name],
                kNames[name],
                is_code(tensor->pass_cache.dtype) ? "; that of cache.k_pass_cache is quant.k_pass_scale" : "");
  }
  return read_static_scale(field, given, problem.tensor[index].heads, written_[name], &tensor->scale);
}

rope_status_t StepReader::read_pass_scale(const RopeProblem &problem, const ReadTensor *tensors, StepProblem *step) {
  constexpr const char *kField = "quant.k_pass_scale";
  if (is_zeroed(quant_->k_pass_scale)) return ROPE_STATUS_SUCCESS;
  int index;
  ROPE_TRY(find_tensor(kField, kK, problem, tensors, &index));
  StepTensor *const tensor = &step->tensor[index];
  if (!is_code(tensor->pass_cache.dtype)) {
    return fail(kInvalid, "%s: %s is set: cache.k_pass_cache is absent or has no 8 bits", function_, kField);
  }
  return read_static_scale(kField, quant_->k_pass_scale, problem.tensor[index].heads, pass_written_,
                           &tensor->pass_scale);
}

// In the place of `written`, the field of scales that are; NULL: none are.
rope_status_t StepReader::read_static_scale(const char *field, const rope_tensor_t &given, int64_t heads,
                                            const char *written, StaticScale *scale) {
  Operand *operand;
  ROPE_TRY(operands_->read(Role::kIn, field, given, &operand));
  if (written != nullptr) {
    return fail(kInvalid, "%s: %s is set beside %s: scales are given or written, not both", function_, field, written);
  }
  const View &view = operand->view;
  if (view.dtype != ROPE_DTYPE_F32) {
    return fail(kInvalid, "%s: %s.dtype is %s: it must be F32", function_, field, dtype_name(view.dtype));
  }
  if (view.ndim != 1 || (view.shape[0] != 1 && view.shape[0] != heads)) {
    return fail(kInvalid, "%s: %s has shape %s: it must be [1], or [%lld] with a scale for each head", function_, field,
                ShapeText(view).text, printable(heads));
  }
  *scale = {view.data, view.shape[0] == 1 ? 0 : view.stride[0]};
  return ROPE_STATUS_SUCCESS;
}

// [3]: of q, k and v, whichever of them there are.
rope_status_t StepReader::read_amax(const RopeProblem &problem, const ReadTensor *tensors, StepProblem *step) {
  Operand *operand;
  ROPE_TRY(operands_->read(Role::kDisjointOut, "quant.amax_out", quant_->amax_out, &operand));
  if (operand == nullptr) return ROPE_STATUS_SUCCESS;
  const View &view = operand->view;
  bool is_needed = false;
  for (int i = 0; i < problem.num_tensors; ++i) is_needed = is_needed || step->tensor[i].may_have_codes();
  if (!is_needed) {
    return fail(kInvalid, "%s: quant.amax_out is set: nothing that is written has 8 bits", function_);
  }
  if (view.dtype != ROPE_DTYPE_F32) {
    return fail(kInvalid, "%s: quant.amax_out.dtype is %s: it must be F32", function_, dtype_name(view.dtype));
  }
  if (view.ndim != 1 || view.shape[0] != kNumTensorNames) {
    return fail(kInvalid, "%s: quant.amax_out has shape %s: it must be [3]", function_, ShapeText(view).text);
  }
  ROPE_TRY(check_output_strides(function_, "quant.amax_out", view));
  for (int i = 0; i < problem.num_tensors; ++i) {
    if (!step->tensor[i].has_codes()) continue;
    step->tensor[i].amax = view.data + tensors[i].name * view.stride[0] * dtype_size(ROPE_DTYPE_F32);
  }
  return ROPE_STATUS_SUCCESS;
}

// [S], [B, S] or [B, S, H], of which an axis B of length 1 serves all; THD [T] or [T, H].
rope_status_t StepReader::read_factor(const char *field, const rope_tensor_t &given, TensorName name,
                                      const RopeProblem &problem, const ReadTensor *tensors, StepProblem *step) {
  Operand *operand;
  ROPE_TRY(operands_->read(Role::kIn, field, given, &operand));
  if (operand == nullptr) return ROPE_STATUS_SUCCESS;
  int index;
  ROPE_TRY(find_tensor(field, name, problem, tensors, &index));
  const View &view = operand->view;
  ROPE_TRY(check_number_type(field, view));
  const bool is_thd = layout_.ndim == 3;
  const int64_t heads = problem.tensor[index].heads, tokens = problem.tokens;
  const bool is_by_head = view.ndim == (is_thd ? 2 : 3), has_batches = !is_thd && view.ndim >= 2;
  const int token_axis = has_batches ? 1 : 0;
  const bool fits = view.ndim <= token_axis + 2 && view.shape[token_axis] == tokens &&
                    (!has_batches || view.shape[0] == problem.batches || view.shape[0] == 1) &&
                    (!is_by_head || view.shape[view.ndim - 1] == heads);
  if (!fits && is_thd) {
    return fail(kInvalid, "%s: %s has shape %s: it must be [T], [%lld], or [T, H], [%lld, %lld]", function_, field,
                ShapeText(view).text, printable(tokens), printable(tokens), printable(heads));
  }
  if (!fits) {
    return fail(
        kInvalid,
        "%s: %s has shape %s: it must be [S], [%lld], [B, S], [%lld, %lld], or [B, S, H], [%lld, %lld, %lld]; B "
        "may be 1",
        function_, field, ShapeText(view).text, printable(tokens), printable(problem.batches), printable(tokens),
        printable(problem.batches), printable(tokens), printable(heads));
  }
  step->has_factor = true;
  step->tensor[index].factor = {view.data, view.dtype == ROPE_DTYPE_F32, has_batches ? view.stride[0] : 0,
                                view.stride[token_axis], is_by_head ? view.stride[view.ndim - 1] : 0};
  return ROPE_STATUS_SUCCESS;
}

rope_status_t StepReader::read_caches(const RopeProblem &problem, const ReadTensor *tensors, StepProblem *step) {
  step->has_caches = true;
  step->places = {};
  ROPE_TRY(read_caches_of(kK, "cache.k_cache", cache_->k_cache, cache_->k_pass_cache, problem, tensors, step));
  ROPE_TRY(read_caches_of(kV, "cache.v_cache", cache_->v_cache, rope_tensor_t{}, problem, tensors, step));
  step->places.skips_slot_0 = (cache_->flags & ROPE_CACHE_FLAG_SKIP_SLOT_0) != 0;
  return read_places(problem, &step->places);
}

// All channels of a tensor in one cache, or the window in it and the others in that of pass.
rope_status_t StepReader::read_caches_of(TensorName name, const char *field, const rope_tensor_t &given,
                                         const rope_tensor_t &pass, const RopeProblem &problem,
                                         const ReadTensor *tensors, StepProblem *step) {
  if (is_zeroed(given)) return ROPE_STATUS_SUCCESS;
  int index;
  ROPE_TRY(find_tensor(field, name, problem, tensors, &index));
  StepTensor *const tensor = &step->tensor[index];
  const int begin = tensor->window_begin, end = begin + geometry_.rotary_dim;
  const bool has_pass = !is_zeroed(pass);
  if (has_pass && tensor->channels == geometry_.rotary_dim) {
    return fail(kInvalid, "%s: cache.k_pass_cache is set: k has no channels outside the window, %d of %d", function_,
                geometry_.rotary_dim, tensor->channels);
  }
  tensor->cache_part = {true, !has_pass, has_pass ? 0 : begin, end};
  ROPE_TRY(read_cache(field, given, name, problem, tensors, step, tensor->cache_part, &tensor->cache));
  if (!has_pass) return ROPE_STATUS_SUCCESS;
  tensor->has_parts = true;
  return read_cache("cache.k_pass_cache", pass, name, problem, tensors, step, ChannelPart::others(begin),
                    &tensor->pass_cache);
}

rope_status_t StepReader::read_cache(const char *field, const rope_tensor_t &given, TensorName name,
                                     const RopeProblem &problem, const ReadTensor *tensors, StepProblem *step,
                                     const ChannelPart &part, CacheView *cache) {
  Operand *operand;
  ROPE_TRY(operands_->read(Role::kDisjointOut, field, given, &operand));
  const int index = index_of(name, problem, tensors);
  const View &view = operand->view;
  ROPE_TRY(check_written_type(function_, field, view.dtype, geometry_.dtype));
  if (view.ndim != 4) {
    return fail(kInvalid, "%s: %s.ndim is %d: it must be 4, [pages, entries, heads, channels]", function_, field,
                view.ndim);
  }
  const int64_t heads = problem.tensor[index].heads;
  const int64_t channels = part.count(step->tensor[index].channels, geometry_.rotary_dim);
  if (view.shape[2] != heads || view.shape[3] != channels) {
    return fail(kInvalid,
                "%s: %s has shape %s: it must be [pages, entries, %lld, %lld], as %s has heads and channels%s",
                function_, field, ShapeText(view).text, printable(heads), printable(channels), kNames[name],
                part.has_others && part.has_window ? ""
                : part.has_window                  ? " of the window, beside cache.k_pass_cache"
                                                   : " outside the window");
  }
  CachePlaces *places = &step->places;
  if (first_cache_ != nullptr && (view.shape[0] != places->pages || view.shape[1] != places->entries)) {
    return fail(kInvalid, "%s: %s has %lld pages of %lld entries: all caches have those of %s, %lld of %lld", function_,
                field, printable(view.shape[0]), printable(view.shape[1]), first_cache_, printable(places->pages),
                printable(places->entries));
  }
  first_cache_ = field;
  places->pages = view.shape[0];
  places->entries = view.shape[1];
  ROPE_TRY(check_output_strides(function_, field, view));
  // A cache without memory has no place for a token either, so that its data is never read.
  *cache = {view.data, view.dtype, view.stride[0], view.stride[1], view.stride[2], view.stride[3]};
  return ROPE_STATUS_SUCCESS;
}

rope_status_t StepReader::read_places(const RopeProblem &problem, CachePlaces *places) {
  places->cached_tokens = problem.tokens;
  const bool has_slots = !is_zeroed(cache_->slots), has_table = !is_zeroed(cache_->page_table);
  if (has_slots == has_table) {
    return fail(kInvalid, "%s: cache.slots is %s: one of it and cache.page_table says where tokens go", function_,
                has_slots ? "set beside cache.page_table" : "absent, and so is cache.page_table");
  }
  return has_slots ? read_slots(problem, places) : read_pages(problem, places);
}

rope_status_t StepReader::read_slots(const RopeProblem &problem, CachePlaces *places) {
  const GivenTensor others[] = {
      {"page_indptr", cache_->page_indptr}, {"sequence", cache_->sequence}, {"positions", cache_->positions}};
  const char *const field = first_set(others);
  if (field != nullptr) {
    return fail(kInvalid, "%s: cache.%s is set: it belongs to cache.page_table, not to cache.slots", function_, field);
  }
  return read_for_each_token("cache.slots", cache_->slots, problem, &places->slots, &places->cached_tokens);
}

rope_status_t StepReader::read_pages(const RopeProblem &problem, CachePlaces *places) {
  Operand *table, *indptr;
  ROPE_TRY(operands_->read_integers("cache.page_table", cache_->page_table, &table));
  ROPE_TRY(operands_->read_integers("cache.page_indptr", cache_->page_indptr, &indptr));
  const View &pages = table->view;
  const bool is_list = indptr != nullptr;
  if (pages.ndim != (is_list ? 1 : 2)) {
    return fail(kInvalid, "%s: cache.page_table has shape %s: it must be %s", function_, ShapeText(pages).text,
                is_list ? "one list, [any], with cache.page_indptr" : "[B, any], or have cache.page_indptr");
  }
  places->table = {pages.data,
                   pages.dtype == ROPE_DTYPE_I64,
                   is_list ? 0 : pages.stride[0],
                   pages.stride[pages.ndim - 1],
                   pages.shape[pages.ndim - 1],
                   is_list ? 0 : pages.shape[0],
                   nullptr,
                   false,
                   0};
  if (is_list) {
    const View &begins = indptr->view;
    if (begins.ndim != 1 || begins.shape[0] == 0) {
      return fail(kInvalid, "%s: cache.page_indptr has shape %s: it must be [B + 1]", function_,
                  ShapeText(begins).text);
    }
    places->table.rows = begins.shape[0] - 1;
    places->table.indptr = begins.data;
    places->table.is_indptr_64_bit = begins.dtype == ROPE_DTYPE_I64;
    places->table.indptr_stride = begins.stride[0];
  }
  int64_t tokens = problem.tokens;
  ROPE_TRY(read_for_each_token("cache.sequence", cache_->sequence, problem, &places->sequence, &tokens));
  if (places->sequence.is_present) places->cached_tokens = tokens;
  ROPE_TRY(read_for_each_token("cache.positions", cache_->positions, problem, &places->positions, &tokens));
  if (places->positions.is_present && tokens < places->cached_tokens) places->cached_tokens = tokens;
  const int64_t sequences = problem.sequences.is_present ? problem.sequences.count : problem.batches;
  if (!places->sequence.is_present && places->table.rows != sequences) {
    return fail(kInvalid,
                "%s: cache.%s has %lld sequences: without cache.sequence it must have those of the call, %lld",
                function_, is_list ? "page_indptr" : "page_table", printable(places->table.rows), printable(sequences));
  }
  if (!places->positions.is_present && (geometry_.num_axes > 1 || problem.table.is_by_token)) {
    return fail(kInvalid, "%s: cache.positions is absent: with %s it is required", function_,
                geometry_.num_axes > 1 ? "several position axes" : "ROPE_TABLE_BY_TOKEN");
  }
  return ROPE_STATUS_SUCCESS;
}

// [B, S]; THD [T], or [N] for the first N tokens.
rope_status_t StepReader::read_for_each_token(const char *field, const rope_tensor_t &given, const RopeProblem &problem,
                                              TokenIntegers *integers, int64_t *tokens) {
  Operand *operand;
  ROPE_TRY(operands_->read_integers(field, given, &operand));
  if (operand == nullptr) return ROPE_STATUS_SUCCESS;
  const View &view = operand->view;
  const bool is_thd = layout_.ndim == 3;
  const bool fits = is_thd ? view.ndim == 1 && view.shape[0] <= problem.tokens
                           : view.ndim == 2 && view.shape[0] == problem.batches && view.shape[1] == problem.tokens;
  if (!fits && is_thd) {
    return fail(kInvalid, "%s: %s has shape %s: it must be [T], [%lld], or [N] for the first N tokens", function_,
                field, ShapeText(view).text, printable(problem.tokens));
  }
  if (!fits) {
    return fail(kInvalid, "%s: %s has shape %s: it must be [B, S], [%lld, %lld]", function_, field,
                ShapeText(view).text, printable(problem.batches), printable(problem.tokens));
  }
  *integers = {
      view.data, true, view.dtype == ROPE_DTYPE_I64, 0, is_thd ? 0 : view.stride[0], view.stride[view.ndim - 1]};
  *tokens = view.shape[view.ndim - 1];
  return ROPE_STATUS_SUCCESS;
}

}  // namespace rope
