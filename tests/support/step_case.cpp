// SPDX-License-Identifier: Apache-2.0
// step_case.cpp - builds the tensors of a StepCase, computes the expected elements, runs the call everywhere and
// compares
#include "step_case.hpp"

#include <algorithm>
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "cases.hpp"
#include "norm_model.hpp"
#include "tolerance.hpp"

using oracle::Real;

// The expected bits of an element after the call. Any NaN may replace a computed NaN.
struct StepCase::Expectation {
  const char *name;
  rope_dtype_t dtype;
  Index at;
  Block *block;
  void *element;
  bool is_computed;
  std::array<std::byte, 8> bits;
  int64_t otherwise = -1;  // another token's permitted result at this place
};

struct StepCase::Scene {
  explicit Scene(uint64_t seed) : workspace(seed) {}
  Workspace workspace;
  rope_args_t args = rope_args();
  rope_norm_args_t norm = ROPE_NORM_ARGS_INIT;
  rope_cache_args_t cache = ROPE_CACHE_ARGS_INIT;
  rope_quant_args_t quant = ROPE_QUANT_ARGS_INIT;
  rope_input_args_t input = ROPE_INPUT_ARGS_INIT;
  rope_tensor_t in[3] = {}, out[3] = {}, caches[3] = {};  // out is absent if only a cache is written
  rope_tensor_t weights[3] = {}, biases[3] = {}, factors[3] = {}, scales[3] = {};
  rope_tensor_t norm_in[3] = {}, grad_weights[3] = {}, grad_biases[3] = {};
  rope_tensor_t out_scales[3] = {}, cache_scales[3] = {};
  rope_tensor_t passes[3] = {}, pass_cache = {}, pass_scale = {}, pass_scales = {};
  std::vector<Expectation> expected;
  std::vector<int64_t> first_of_elements;  // without the elements that `otherwise` names

  // For a channel of a head that is read.
  void *element_of(const StepCase &step, int i, int64_t b, int64_t t, int64_t h, int64_t c) const {
    if (!step.operand(i).has_pass) return element_at(in[i], step.index(b, t, h, c));
    const int64_t begin = step.rotary_offset, end = begin + step.window();
    if (c >= begin && c < end) return element_at(in[i], step.index(b, t, h, c - begin));
    return element_at(passes[i], step.index(b, t, h, c < begin ? c : c - step.window()));
  }
};

bool StepCase::is_turned(int i) const {
  return !(flags & ROPE_FLAG_UNROTATED) && !(i == 2 && flags & ROPE_FLAG_V_UNROTATED);
}

bool StepCase::is_normed(int i) const {
  const int32_t bits = norm_tensors ? norm_tensors : ROPE_NORM_TENSOR_Q | ROPE_NORM_TENSOR_K;
  return norm != 0 && (bits >> i & 1) != 0;
}

int32_t StepCase::width_of(int i) const {
  if (operand(i).is_window) return window();
  return operand(i).width ? operand(i).width : head_dim;
}

Shape StepCase::shape_of(int i, int32_t channels) const {
  return shape_in_layout(layout, batch, tokens, operand(i).heads, channels);
}

Shape StepCase::factor_shape(int i) const {
  const RowFactor factor = operand(i).factor;
  const bool by_head = factor == RowFactor::ByHead || factor == RowFactor::OneBatchHeads;
  Shape shape;
  if (layout != ROPE_LAYOUT_THD && factor != RowFactor::ByToken) {
    shape.push_back(factor == RowFactor::OneBatch || factor == RowFactor::OneBatchHeads ? 1 : batch);
  }
  shape.push_back(tokens);
  if (by_head) shape.push_back(operand(i).heads);
  return shape;
}

rope_dtype_t StepCase::cache_dtype(int i) const {
  const rope_dtype_t given = i == 1 ? cache->k_dtype : cache->v_dtype;
  return given ? given : dtype;
}

bool StepCase::has_codes(int i) const {
  return (operand(i).heads >= 0 && operand(i).out == StepOut::Own && oracle::is_code(operand(i).out_dtype)) ||
         (is_cached(i) &&
          (oracle::is_code(cache_dtype(i)) || (i == 1 && cache->has_k_pass && oracle::is_code(cache->k_pass_dtype))));
}

Index StepCase::index(int64_t in_batch, int64_t token, int64_t head, int64_t channel) const {
  return index_in_layout(layout, in_batch, token, head, channel);
}

// Tokens outside of all sequences.
bool StepCase::is_absent(int64_t token) const {
  return !cu_seqlens.empty() && (token < cu_seqlens.front() || token >= cu_seqlens.back());
}

int64_t StepCase::sequence_of(int64_t in_batch, int64_t token) const {
  if (cu_seqlens.empty()) return in_batch;
  int64_t sequence = 0;
  while (token >= cu_seqlens[sequence + 1]) ++sequence;
  return sequence;
}

int64_t StepCase::position_of(int64_t axis, int64_t in_batch, int64_t token) const {
  const int64_t sequence = sequence_of(in_batch, token);
  auto sum = static_cast<uint64_t>(token - (cu_seqlens.empty() ? 0 : cu_seqlens[sequence]));
  if (positions) sum = static_cast<uint64_t>(positions(axis, in_batch, token));
  if (!start_positions.empty()) sum += static_cast<uint64_t>(start_positions[sequence]);
  return static_cast<int64_t>(sum + static_cast<uint64_t>(position_offset));
}

bool StepCase::has_row(int64_t in_batch, int64_t token) const {
  if (table_rows < 0 || table_by_token) return true;
  for (int pair = 0; pair < window() / 2; ++pair) {
    const int64_t position = position_of(pair_axis.empty() ? 0 : pair_axis[pair], in_batch, token);
    if (position < 0 || position >= table_rows) return false;
  }
  return true;
}

int64_t StepCase::slot_of(int64_t in_batch, int64_t token, bool *is_faulty) const {
  *is_faulty = false;
  const auto fault = [&] { return *is_faulty = true, nowhere; };
  const int64_t number = in_batch * tokens + token;
  const auto is_past = [&](const std::optional<std::vector<int64_t>> &list) {
    return list && number >= static_cast<int64_t>(list->size());
  };
  if (is_past(cache->slots) || is_past(cache->sequence) || is_past(cache->positions)) return nowhere;
  int64_t slot = 0;
  if (cache->slots) {
    slot = (*cache->slots)[number];
    if (slot < 0) return nowhere;
    if (slot == 0 && (cache->flags & ROPE_CACHE_FLAG_SKIP_SLOT_0) != 0) return nowhere;
    if (slot >= cache->pages * cache->entries) return fault();
  } else {
    const int64_t position = cache->positions ? (*cache->positions)[number] : position_of(0, in_batch, token);
    const int64_t row = cache->sequence ? (*cache->sequence)[number] : sequence_of(in_batch, token);
    if (position < 0 || row < 0) return nowhere;
    const int64_t index_in_row = position / cache->entries;
    int64_t page = 0;
    if (cache->page_table) {
      const auto &table = *cache->page_table;
      if (row >= static_cast<int64_t>(table.size())) return fault();
      if (index_in_row >= static_cast<int64_t>(table[row].size())) return fault();
      page = table[row][index_in_row];
    } else {
      const auto &list = *cache->page_list, &indptr = *cache->page_indptr;
      if (row + 1 >= static_cast<int64_t>(indptr.size())) return fault();
      const int64_t begin = indptr[row], end = indptr[row + 1];
      if (begin < 0 || end < begin || end > static_cast<int64_t>(list.size())) return fault();
      if (index_in_row >= end - begin) return fault();
      page = list[begin + index_in_row];
    }
    if (page < 0) return nowhere;
    if (page >= cache->pages) return fault();
    slot = page * cache->entries + position % cache->entries;
  }
  if (slot == 0 && cache->flags & ROPE_CACHE_FLAG_SKIP_SLOT_0) return nowhere;
  return slot;
}

std::string StepCase::describe() const {
  static const char *const layouts[] = {"?", "BSHD", "SBHD", "BHSD", "THD"};
  static const char *const styles[] = {"same", "HALF", "INTERLEAVED"};
  static const char *const outs[] = {"", " out = in", " out"};
  std::ostringstream text;
  text << name_of(direction) << ' ' << oracle::dtype_name(dtype) << ' ' << layouts[layout] << ' ' << styles[style]
       << " to " << styles[out_style] << " B=" << batches() << " S=" << tokens << " D=" << head_dim << " R=" << window()
       << " offset=" << rotary_offset << " block=" << pair_block << " flags=" << flags;
  const auto list = [&](const char *name, const auto &values_of) {
    text << "; " << name;
    for (const auto &value : values_of) text << ' ' << value;
  };
  for (int i = 0; i < 3; ++i) {
    const StepTensor &t = operand(i);
    if (t.heads < 0) continue;
    text << "; "
         << "qkv"[i] << ": H=" << t.heads << " of " << width_of(i) << outs[static_cast<int>(t.out)];
    if (t.out_dtype) text << ' ' << oracle::dtype_name(t.out_dtype);
    text << t.in_placement.describe() << " ->" << t.out_placement.describe();
    if (t.has_weight) text << " weight" << (t.weight_by_head ? " by head" : "");
    if (t.has_bias) text << " bias" << (t.weight_by_head ? " by head" : "");
    if (t.weight_dtype) text << ' ' << oracle::dtype_name(t.weight_dtype);
    text << t.weight_placement.describe();
    if (is_norm_gradient(i)) text << " of" << t.norm_in_placement.describe();
    if (t.has_grad_weight) text << " grad weight";
    if (t.has_grad_bias) text << " grad bias";
    if (t.has_grad_weight || t.has_grad_bias) {
      text << " N=" << t.runs << (t.grads_by_head ? " by head" : "") << t.grad_placement.describe();
    }
    if (t.scale != Scale::None) text << " scale " << static_cast<int>(t.scale) << t.scale_placement.describe();
    const auto written = [&](const char *name, const WrittenScales &scales) {
      if (!scales.dtype) return;
      text << ' ' << name << ' ' << oracle::dtype_name(scales.dtype) << " of " << scales.groups
           << (scales.is_split ? " split" : "") << (scales.is_inline ? " inline" : "") << scales.placement.describe();
    };
    written("out scales", t.out_scales);
    written("cache scales", t.cache_scales);
    if (t.has_pass) text << " pass" << t.pass_placement.describe();
    if (i == 1 && cache && cache->has_k_pass) {
      text << " pass cache" << cache->k_pass_placement.describe();
      if (cache->k_pass_dtype) text << ' ' << oracle::dtype_name(cache->k_pass_dtype);
      if (cache->k_pass_scale != Scale::None) text << " scale " << static_cast<int>(cache->k_pass_scale);
      if (cache->is_k_scale_in_pass_scale) text << " with that of k";
      written("scales", cache->k_pass_scales);
    }
    if (t.factor == RowFactor::None) continue;
    text << " factor " << static_cast<int>(t.factor) << ' '
         << oracle::dtype_name(t.factor_dtype ? t.factor_dtype : dtype) << t.factor_placement.describe();
  }
  if (norm) {
    text << "; " << (norm == ROPE_NORM_RMS ? "RMS" : "LAYER") << " tensors=" << norm_tensors
         << " rounding=" << norm_rounding << (norm_order ? " after" : " before") << (norm_extent ? " token" : " head")
         << " eps=" << norm_eps << " offset=" << norm_weight_offset;
  }
  if (table_rows >= 0) {
    text << "; " << oracle::dtype_name(table_dtype) << " table M=" << table_rows << (table_by_token ? " by token" : "")
         << (wide_table ? " W=R" : "") << table_placement.describe();
  } else {
    text << "; theta=" << theta;
  }
  if (attention_scale != 0) text << " scale=" << attention_scale;
  if (num_axes) text << "; num_axes=" << num_axes;
  if (!pair_axis.empty()) list("pair_axis", pair_axis);
  if (positions) text << "; positions";
  if (!start_positions.empty()) list("start_positions", start_positions);
  if (position_offset) text << "; position_offset=" << position_offset;
  if (!cu_seqlens.empty()) list("cu_seqlens", cu_seqlens);
  if (cache) {
    text << "; cache" << (cache->has_k ? " k " : "")
         << (cache->has_k && cache->k_dtype ? oracle::dtype_name(cache->k_dtype) : "") << (cache->has_v ? " v " : "")
         << (cache->has_v && cache->v_dtype ? oracle::dtype_name(cache->v_dtype) : "") << " P=" << cache->pages
         << " E=" << cache->entries << " storage " << static_cast<int>(cache->storage) << cache->k_placement.describe()
         << cache->v_placement.describe() << " flags=" << cache->flags << ' '
         << oracle::dtype_name(cache->integer_dtype) << cache->integer_placement.describe();
    if (cache->slots) list("slots", *cache->slots);
    if (cache->page_table) {
      for (const auto &row : *cache->page_table) list("row", row);
    }
    if (cache->page_list) list("page_list", *cache->page_list);
    if (cache->page_indptr) list("page_indptr", *cache->page_indptr);
    if (cache->sequence) list("sequence", *cache->sequence);
    if (cache->positions) list("positions", *cache->positions);
  }
  if (quant_flags) text << "; quant flags=" << quant_flags;
  if (scale_floor) text << "; scale floor=" << scale_floor;
  if (quant_rounding) text << "; quant rounding=" << quant_rounding;
  if (has_odd_scales) text << "; odd scales";
  if (rounds_each) text << "; rounding each";
  if (has_amax) text << "; amax";
  if (has_fault) text << "; fault";
  return text.str();
}

void StepCase::fill_operand(int i, Scene *scene) const {
  Workspace &workspace = scene->workspace;
  const StepTensor &of = operand(i);
  bool is_shared = false;
  for (const bool expanded : of.in_placement.expanded_axis) is_shared = is_shared || expanded;
  workspace.fill_bits(scene->in[i]);
  if (of.has_pass) workspace.fill_bits(scene->passes[i]);
  for (const bool expanded : of.pass_placement.expanded_axis) is_shared = is_shared || expanded;
  for (int64_t b = 0; b < batches(); ++b) {
    for (int64_t t = 0; t < tokens; ++t) {
      // Values that are only moved stay random bits.
      const bool turns = is_turned(i) && !is_absent(t) && has_row(b, t);
      for (int64_t h = 0; h < of.heads; ++h) {
        for (int64_t c = 0; c < width_of(i); ++c) {
          const bool is_inside = c >= offset_of(i) && c < offset_of(i) + window();
          void *element = scene->element_of(*this, i, b, t, h, c);
          if (values) {
            oracle::encode(dtype, values(i, b * tokens + t, h, c), element);
          } else if (is_shared || is_normed(i) || (turns && is_inside)) {
            oracle::encode(dtype, workspace.random().mixed(), element);
          }
        }
      }
    }
  }
}

rope_tensor_t StepCase::build_cache_tensor(Scene *scene, rope_dtype_t code, int64_t heads, int64_t width,
                                           Placement placement, const WrittenScales &scales,
                                           rope_tensor_t *inside) const {
  if (cache->storage == CacheStorage::HeadsFirst) placement.order({0, 2, 1, 3});
  const Shape shape = {cache->pages, cache->entries, heads, width};
  if (!scales.is_inline) return scene->workspace.tensor(code, shape, placement);
  const int64_t size = oracle::element_size(scales.dtype), padded = (width + size - 1) / size * size;
  const int64_t row = padded + size * scales.groups;
  const rope_tensor_t rows = scene->workspace.tensor(code, {cache->pages, cache->entries, heads, row}, placement);
  *inside = rows;
  inside->dtype = scales.dtype;
  inside->shape[3] = scales.groups;
  inside->data = element_at(rows, {0, 0, 0, padded});
  for (int axis = 0; axis < 3; ++axis) inside->stride[axis] /= size;
  return narrow(rows, 3, 0, width);
}

void StepCase::build_cache(Scene *scene) const {
  if (!cache) return;
  Workspace &workspace = scene->workspace;
  rope_cache_args_t &args = scene->cache;
  args.flags = cache->flags;
  const int some = cache->has_k ? 1 : 2;
  const int64_t heads = operand(some).heads, width = width_of(some);
  if (cache->storage == CacheStorage::Stacked) {
    const rope_tensor_t both = workspace.tensor(cache_dtype(some), {cache->pages, 2 * cache->entries, heads, width});
    scene->caches[1] = narrow(both, 1, 0, cache->entries);
    scene->caches[2] = narrow(both, 1, cache->entries, cache->entries);
  } else if (cache->storage == CacheStorage::SideBySide) {
    const rope_tensor_t both = workspace.tensor(cache_dtype(some), {cache->pages, cache->entries, heads, 2 * width},
                                                Placement().order({0, 2, 1, 3}));
    scene->caches[1] = narrow(both, 3, 0, width);
    scene->caches[2] = narrow(both, 3, width, width);
  } else {
    for (int i = 1; i < 3; ++i) {
      if (!is_cached(i)) continue;
      scene->caches[i] = build_cache_tensor(scene, cache_dtype(i), operand(i).heads, cache_width(i),
                                            i == 1 ? cache->k_placement : cache->v_placement, operand(i).cache_scales,
                                            &scene->cache_scales[i]);
    }
  }
  if (cache->has_k_pass) {
    const rope_dtype_t code = cache->k_pass_dtype ? cache->k_pass_dtype : dtype;
    args.k_pass_cache = scene->pass_cache =
        build_cache_tensor(scene, code, k.heads, width_of(1) - window(), cache->k_pass_placement, cache->k_pass_scales,
                           &scene->pass_scales);
    workspace.fill_bits(scene->pass_cache);
  }
  for (int i = 1; i < 3; ++i) {
    if (is_cached(i)) {
      workspace.fill_bits(scene->caches[i]);
    } else {
      scene->caches[i] = {};
    }
  }
  args.k_cache = scene->caches[1];
  args.v_cache = scene->caches[2];
  const auto integers = [&](const Shape &shape, const auto &value) {
    const rope_tensor_t view = workspace.tensor(cache->integer_dtype, shape, cache->integer_placement);
    workspace.fill_integers(view, value);
    return view;
  };
  const auto of_tokens = [&](const std::optional<std::vector<int64_t>> &list) -> rope_tensor_t {
    if (!list) return {};
    const bool is_flat = layout == ROPE_LAYOUT_THD;
    return integers(is_flat ? Shape{static_cast<int64_t>(list->size())} : Shape{batch, tokens},
                    [&](const Index &at) { return (*list)[is_flat ? at[0] : at[0] * tokens + at[1]]; });
  };
  const auto flat = [&](const std::vector<int64_t> &list) {
    return integers({static_cast<int64_t>(list.size())}, [&](const Index &at) { return list[at[0]]; });
  };
  args.slots = of_tokens(cache->slots);
  args.sequence = of_tokens(cache->sequence);
  args.positions = of_tokens(cache->positions);
  if (cache->page_table) {
    const auto &table = *cache->page_table;
    const auto columns = table.empty() ? cache->table_columns : static_cast<int64_t>(table[0].size());
    args.page_table =
        integers({static_cast<int64_t>(table.size()), columns}, [&](const Index &at) { return table[at[0]][at[1]]; });
  }
  if (cache->page_list) args.page_table = flat(*cache->page_list);
  if (cache->page_indptr) args.page_indptr = flat(*cache->page_indptr);
  scene->args.cache = &args;
}

void StepCase::build_scales(Scene *scene) const {
  const auto scales_like = [&](rope_tensor_t tensor, const WrittenScales &written) {
    Shape shape(tensor.shape, tensor.shape + tensor.ndim - 1);
    shape.push_back(written.is_split ? written.groups / 4 : written.groups);
    if (written.is_split) shape.push_back(4);
    const rope_tensor_t scales = scene->workspace.tensor(written.dtype, shape, written.placement);
    scene->workspace.fill_bits(scales);
    return scales;
  };
  for (int i = 0; i < 3; ++i) {
    const StepTensor &of = operand(i);
    if (of.out_scales.dtype) scene->out_scales[i] = scales_like(scene->out[i], of.out_scales);
    if (of.cache_scales.dtype && !of.cache_scales.is_inline) {
      scene->cache_scales[i] = scales_like(scene->caches[i], of.cache_scales);
    }
  }
  scene->quant.q_scales_out = scene->out_scales[0];
  scene->quant.k_scales_out = scene->out_scales[1];
  scene->quant.v_scales_out = scene->out_scales[2];
  scene->cache.k_scales = scene->cache_scales[1];
  scene->cache.v_scales = scene->cache_scales[2];
  if (cache && cache->k_pass_scales.dtype) {
    if (!cache->k_pass_scales.is_inline) {
      scene->pass_scales = scales_like(scene->pass_cache, cache->k_pass_scales);
    }
    scene->cache.k_pass_scales = scene->pass_scales;
  }
}

rope_tensor_t StepCase::build_scale(Scene *scene, Scale scale, int64_t heads, const Placement &placement) const {
  Workspace &workspace = scene->workspace;
  const rope_tensor_t tensor = workspace.tensor(ROPE_DTYPE_F32, {scale == Scale::One ? 1 : heads}, placement);
  workspace.fill(tensor, [&](const Index &) -> Real {
    constexpr Real odd[] = {0,          -0.0L, 0x1p-149L, 0x3p-128L, -0x1p-149L,
                            -0x3p-130L, -0.5L, 0x1p-126L, 3.4e38L,   std::numeric_limits<Real>::quiet_NaN()};
    if (has_odd_scales) return odd[workspace.random().below(sizeof odd / sizeof *odd)];
    return std::ldexp(workspace.random().uniform(1, 2), static_cast<int>(workspace.random().below(16)) - 12);
  });
  return tensor;
}

void StepCase::build_quant(Scene *scene) const {
  Workspace &workspace = scene->workspace;
  rope_quant_args_t &args = scene->quant;
  args.flags = quant_flags;
  args.scale_floor = scale_floor;
  rope_tensor_t *const fields[] = {&args.q_scale, &args.k_scale, &args.v_scale};
  bool is_needed = quant_flags != 0 || scale_floor != 0 || has_amax;
  for (int i = 0; i < 3; ++i) {
    const StepTensor &of = operand(i);
    if (of.out_scales.dtype) is_needed = true;
    if (of.scale == Scale::None) continue;
    is_needed = true;
    scene->scales[i] = *fields[i] = build_scale(scene, of.scale, of.heads, of.scale_placement);
  }
  if (cache && cache->k_pass_scale != Scale::None) {
    is_needed = true;
    scene->pass_scale = args.k_pass_scale = build_scale(scene, cache->k_pass_scale, k.heads, {});
    if (cache->is_k_scale_in_pass_scale) scene->scales[1] = args.k_scale = narrow(scene->pass_scale, 0, 0, 1);
  }
  if (has_amax) {
    args.amax_out = workspace.tensor(ROPE_DTYPE_F32, {3}, Placement().gap(0, 1));
    workspace.fill(args.amax_out, [](const Index &at) { return at[0] == 1 ? 1e6L : 0.25L; });
  }
  if (is_needed) scene->args.quant = &args;
}

void StepCase::build_norm_gradient(int i, Scene *scene) const {
  Workspace &workspace = scene->workspace;
  const StepTensor &of = operand(i);
  scene->norm_in[i] = workspace.tensor(dtype, shape_of(i, width_of(i)), of.norm_in_placement);
  workspace.fill(scene->norm_in[i], [&](const Index &) { return workspace.random().mixed(); });
  const Shape shape = of.grads_by_head ? Shape{of.runs, of.heads, width_of(i)} : Shape{of.runs, width_of(i)};
  const auto rows = [&](bool is_wanted) -> rope_tensor_t {
    if (!is_wanted) return {};
    const rope_tensor_t tensor =
        workspace.tensor(dtype == ROPE_DTYPE_F64 ? ROPE_DTYPE_F64 : ROPE_DTYPE_F32, shape, of.grad_placement);
    // Values to which nothing is added keep their bits, even -0.
    workspace.fill(
        tensor, [&](const Index &) { return workspace.random().below(4) == 0 ? -0.0L : workspace.random().normal(); });
    return tensor;
  };
  scene->grad_weights[i] = rows(of.has_grad_weight);
  scene->grad_biases[i] = rows(of.has_grad_bias);
}

void StepCase::build(Scene *scene) const {
  Workspace &workspace = scene->workspace;
  rope_args_t &args = scene->args;
  args.flags = flags;
  args.position_offset = position_offset;
  if (positions) {
    Shape shape = layout == ROPE_LAYOUT_THD ? Shape{tokens} : Shape{batch, tokens};
    if (axes() > 1) shape.insert(shape.begin(), axes());
    args.positions = workspace.tensor(ROPE_DTYPE_I64, shape);
    workspace.fill_integers(args.positions, [&](const Index &at) {
      const int first = axes() > 1 ? 1 : 0;
      const int64_t axis = first ? at[0] : 0;
      return layout == ROPE_LAYOUT_THD ? positions(axis, 0, at[first]) : positions(axis, at[first], at[first + 1]);
    });
  }
  const auto list = [&](const std::vector<int64_t> &values_of) {
    const rope_tensor_t view = workspace.tensor(ROPE_DTYPE_I32, {static_cast<int64_t>(values_of.size())});
    workspace.fill_integers(view, [&](const Index &at) { return values_of[at[0]]; });
    return view;
  };
  if (!start_positions.empty()) args.start_positions = list(start_positions);
  if (!cu_seqlens.empty()) args.cu_seqlens = list(cu_seqlens);
  if (table_rows >= 0) {
    if (table_by_token) args.table_rows = ROPE_TABLE_BY_TOKEN;
    Shape shape = {table_by_token ? tokens : table_rows, wide_table ? window() : window() / 2};
    if (table_by_token && axes() > 1) shape.insert(shape.begin(), axes());
    for (rope_tensor_t *table : {&args.cos, &args.sin}) {
      *table = workspace.tensor(table_dtype, shape, table_placement);
      workspace.fill(*table, [&](const Index &) { return workspace.random().uniform(-1.5, 1.5); });
    }
  }
  if (has_fault) {
    args.fault = workspace.tensor(ROPE_DTYPE_I64, {2});
    workspace.fill_integers(args.fault, [](const Index &) { return 0; });
  }
  for (int i = 0; i < 3; ++i) {
    const StepTensor &of = operand(i);
    if (of.heads < 0) continue;
    scene->in[i] = workspace.tensor(dtype, shape_of(i, of.has_pass ? window() : width_of(i)), of.in_placement);
    if (of.has_pass) {
      scene->passes[i] = workspace.tensor(dtype, shape_of(i, width_of(i) - window()), of.pass_placement);
    }
    fill_operand(i, scene);
    if (of.out == StepOut::Own) {
      scene->out[i] = workspace.tensor(of.out_dtype ? of.out_dtype : dtype, shape_of(i, width_of(i)), of.out_placement);
      if (accumulates()) workspace.fill(scene->out[i], [&](const Index &) { return workspace.random().mixed(); });
    } else if (of.out == StepOut::Same || !is_cached(i)) {
      scene->out[i] = scene->in[i];
    }
    if (is_norm_gradient(i)) build_norm_gradient(i, scene);
    const Shape shape = of.weight_by_head ? Shape{of.heads, width_of(i)} : Shape{width_of(i)};
    const rope_dtype_t weight_dtype = of.weight_dtype ? of.weight_dtype : dtype;
    if (of.has_weight) {
      scene->weights[i] = workspace.tensor(weight_dtype, shape, of.weight_placement);
      workspace.fill(scene->weights[i], [&](const Index &) { return workspace.random().uniform(-0.5, 2); });
    }
    if (of.has_bias) {
      scene->biases[i] = workspace.tensor(weight_dtype, shape, of.weight_placement);
      workspace.fill_normal(scene->biases[i]);
    }
    if (of.factor != RowFactor::None) {
      const rope_dtype_t factor_dtype = of.factor_dtype ? of.factor_dtype : dtype;
      scene->factors[i] = workspace.tensor(factor_dtype, factor_shape(i), of.factor_placement);
      workspace.fill(scene->factors[i], [&](const Index &) { return workspace.random().uniform(-2, 2); });
    }
  }
  args.q = scene->in[0];
  args.k = scene->in[1];
  args.v = scene->in[2];
  const auto out_of = [&](int i) { return operand(i).out == StepOut::Absent ? rope_tensor_t{} : scene->out[i]; };
  args.q_out = out_of(0);
  args.k_out = out_of(1);
  args.v_out = out_of(2);
  if (norm) {
    scene->norm.q_weight = scene->weights[0];
    scene->norm.k_weight = scene->weights[1];
    scene->norm.q_bias = scene->biases[0];
    scene->norm.k_bias = scene->biases[1];
    scene->norm.q_in = scene->norm_in[0];
    scene->norm.k_in = scene->norm_in[1];
    scene->norm.v_in = scene->norm_in[2];
    scene->norm.grad_q_weight = scene->grad_weights[0];
    scene->norm.grad_k_weight = scene->grad_weights[1];
    scene->norm.grad_q_bias = scene->grad_biases[0];
    scene->norm.grad_k_bias = scene->grad_biases[1];
    args.norm = &scene->norm;
  }
  scene->input.q_row_factor = scene->factors[0];
  scene->input.k_row_factor = scene->factors[1];
  scene->input.v_row_factor = scene->factors[2];
  scene->input.q_pass = scene->passes[0];
  scene->input.k_pass = scene->passes[1];
  const auto is_present = [](const rope_tensor_t &tensor) { return tensor.ndim != 0; };
  if (std::any_of(scene->factors, scene->factors + 3, is_present) ||
      std::any_of(scene->passes, scene->passes + 3, is_present)) {
    args.input = &scene->input;
  }
  build_cache(scene);
  build_scales(scene);
  build_quant(scene);
  workspace.freeze();
}

rope_config_t StepCase::config(const Device &device, int32_t threads) const {
  rope_config_t config = rope_config_for(device, head_dim);
  config.dtype = dtype;
  config.layout = layout;
  config.style = style;
  config.out_style = out_style;
  config.pair_block = pair_block;
  config.rotary_dim = rotary_dim;
  config.rotary_offset = rotary_offset;
  config.theta = theta;
  config.attention_scale = attention_scale;
  config.num_axes = num_axes;
  config.pair_axis = pair_axis.empty() ? nullptr : pair_axis.data();
  config.num_threads = threads;
  config.quant_rounding = quant_rounding;
  config.rotation_rounding = rounds_each ? ROPE_ROTATION_ROUND_EACH : 0;
  config.norm = norm;
  if (norm) {
    config.norm_tensors = norm_tensors;
    config.norm_order = norm_order;
    config.norm_extent = norm_extent;
    config.norm_rounding = norm_rounding;
    config.norm_eps = norm_eps;
    config.norm_weight_offset = norm_weight_offset;
  }
  return config;
}

// Computes the step for each element. T is the type of the arithmetic.
template <typename T>
struct StepCase::Model {
  static constexpr rope_dtype_t arithmetic = std::is_same_v<T, double> ? ROPE_DTYPE_F64 : ROPE_DTYPE_F32;

  struct Cell {
    T value = 0;
    bool is_computed = false;
    const void *source = nullptr;  // if the element is not computed
  };
  using Head = std::vector<Cell>;

  // The first two turn x of the output, the others y.
  struct Turn {
    T cos_x, sin_x, cos_y, sin_y;
  };

  const StepCase &step;
  Scene &scene;
  rope_tensor_t probe = {};  // (cos, sin) of computed angles
  std::unordered_map<const void *, int64_t> expectation_of;
  Real distance_of_norm = 0;
  float amax[3] = {};

  Model(const StepCase &of, Scene *in) : step(of), scene(*in) {}

  void expect_all() {
    if (step.table_rows < 0 && !(step.flags & ROPE_FLAG_UNROTATED) && step.token_count() > 0) probe_angles();
    for (int64_t b = 0; b < step.batches(); ++b) {
      for (int64_t t = 0; t < step.tokens; ++t) {
        if (!step.is_absent(t)) expect_token(b, t);
      }
    }
    INFO("distance of the norm from the exact one: " << static_cast<double>(distance_of_norm));
    CHECK(distance_of_norm <= 1);
    if (step.has_fault) expect_fault();
    if (step.has_amax) expect_amax();
    expect_sums("gradient of a weight", scene.grad_weights, weight_sums);
    expect_sums("gradient of a bias", scene.grad_biases, bias_sums);
  }

  // Rotates (1, -0) by every angle of the call. The result is compared with the exact angles.
  void probe_angles() {
    const int pairs = step.window() / 2;
    Workspace &workspace = probe_workspace;
    rope_config_t config = rope_config_for(devices()[0], step.window());
    config.dtype = arithmetic;
    config.style = ROPE_STYLE_INTERLEAVED;
    config.theta = step.theta;
    config.attention_scale = step.attention_scale;
    config.num_axes = step.num_axes;
    config.pair_axis = step.pair_axis.empty() ? nullptr : step.pair_axis.data();
    config.num_threads = 1;
    rope_args_t args = rope_args();
    probe = args.q = workspace.tensor(arithmetic, {step.batches(), step.tokens, 1, step.window()});
    workspace.fill(args.q, [](const Index &at) { return at[3] % 2 == 0 ? 1.0L : -0.0L; });
    Shape shape = {step.batches(), step.tokens};
    if (step.axes() > 1) shape.insert(shape.begin(), step.axes());
    args.positions = workspace.tensor(ROPE_DTYPE_I64, shape);
    workspace.fill_integers(args.positions, [&](const Index &at) {
      const int first = step.axes() > 1 ? 1 : 0;
      if (step.is_absent(at[first + 1])) return int64_t{0};
      return step.position_of(first ? at[0] : 0, at[first], at[first + 1]);
    });
    const RopeDesc desc = create(config);
    REQUIRE(rope_forward(desc.get(), &args, nullptr) == ROPE_STATUS_SUCCESS);
    const Real scale = step.attention_scale == 0 ? 1 : step.attention_scale;
    int64_t wrong = 0;
    for (int64_t b = 0; b < step.batches(); ++b) {
      for (int64_t t = 0; t < step.tokens; ++t) {
        for (int pair = 0; pair < pairs && !step.is_absent(t); ++pair) {
          const int64_t position = step.position_of(step.pair_axis.empty() ? 0 : step.pair_axis[pair], b, t);
          const Real frequency = oracle::frequency(step.theta, step.window(), pair);
          const oracle::Rotation exact = oracle::rotation(position, frequency);
          const Real slack =
              tolerance::rope_slack(arithmetic, std::fabs(scale),
                                    tolerance::angle(arithmetic, tolerance::phase(position, frequency), scale != 1));
          wrong += !(std::fabs(value_at(probe, {b, t, 0, 2 * pair}) - exact.cos * scale) <= slack);
          wrong += !(std::fabs(value_at(probe, {b, t, 0, 2 * pair + 1}) - exact.sin * scale) <= slack);
        }
      }
    }
    INFO("cosines and sines that are not those of the positions: " << wrong);
    CHECK(wrong == 0);
  }

  // Rounds to the data's type if the rotation rounds each operation.
  T rounded(T value) const {
    return step.rounds_each && oracle::element_size(step.dtype) == 2
               ? static_cast<T>(oracle::nearest(step.dtype, value))
               : value;
  }

  Turn turn_of(int64_t b, int64_t t, int pair) const {
    if (step.table_rows < 0) {
      const auto cos = static_cast<T>(value_at(probe, {b, t, 0, 2 * pair}));
      const auto sin = static_cast<T>(value_at(probe, {b, t, 0, 2 * pair + 1}));
      return {rounded(cos), rounded(sin), rounded(cos), rounded(sin)};
    }
    const int64_t axis = step.pair_axis.empty() ? 0 : step.pair_axis[pair];
    const int64_t row = step.table_by_token ? t : step.position_of(axis, b, t);
    const auto cell = [&](const rope_tensor_t &table, int member) {
      const int64_t column = step.wide_table ? channel_of(step.written_style(), pair, member) : pair;
      return rounded(static_cast<T>(value_at(table, table.ndim == 3 ? Index{axis, row, column} : Index{row, column})));
    };
    return {cell(scene.args.cos, 0), cell(scene.args.sin, 0), cell(scene.args.cos, 1), cell(scene.args.sin, 1)};
  }

  // In the window.
  int32_t channel_of(rope_style_t style, int pair, int member) const {
    return oracle::channel_in_window(style, step.pair_block ? step.pair_block : step.window(), pair, member);
  }

  norm_model::Form norm_form() const {
    return {step.norm, step.dtype, step.norm_rounding, step.norm_eps, step.norm_weight_offset};
  }

  // Heads of one norm.
  size_t heads_of_norm(const std::vector<Head> &heads) const {
    return step.norm_extent == ROPE_NORM_EXTENT_TOKEN ? heads.size() : 1;
  }

  // Weights or biases of `heads` heads; empty if they are absent.
  norm_model::Heads<T> numbers_of(int i, const rope_tensor_t &from, size_t first, size_t count) const {
    norm_model::Heads<T> numbers;
    for (size_t h = first; h < first + count && from.ndim != 0; ++h) {
      numbers.emplace_back();
      for (int64_t c = 0; c < step.width_of(i); ++c) {
        const auto head = static_cast<int64_t>(h);
        numbers.back().push_back(static_cast<T>(value_at(from, from.ndim == 2 ? Index{head, c} : Index{c})));
      }
    }
    return numbers;
  }

  static norm_model::Heads<T> values_of(const std::vector<Head> &heads, size_t first, size_t count) {
    norm_model::Heads<T> values;
    for (size_t h = first; h < first + count; ++h) {
      values.emplace_back();
      for (const Cell &cell : heads[h]) values.back().push_back(cell.value);
    }
    return values;
  }

  // Makes gradients of the norm's inputs, `of`, from those of its outputs.
  void norm_gradient(int i, int64_t token_number, const std::vector<Head> &of, std::vector<Head> *heads) {
    const size_t together = heads_of_norm(*heads);
    for (size_t first = 0; first < heads->size(); first += together) {
      const norm_model::Heads<T> in = values_of(of, first, together), given = values_of(*heads, first, together),
                                 weights = numbers_of(i, scene.weights[i], first, together);
      const norm_model::Gradients<T> result = norm_model::gradients(norm_form(), in, weights, given);
      distance_of_norm =
          std::max(distance_of_norm, norm_model::gradient_distance(norm_form(), in, weights, given, result.of_inputs));
      for (size_t h = 0; h < together; ++h) {
        for (size_t c = 0; c < given[h].size(); ++c) {
          const T g = given[h][c];
          const Sum at = {i, token_number / tokens_of_run(i), static_cast<int64_t>(first + h), static_cast<int64_t>(c)};
          add_to_sum(scene.grad_weights[i], at, static_cast<T>(g * result.normed[h][c]), &weight_sums);
          add_to_sum(scene.grad_biases[i], at, g, &bias_sums);
          (*heads)[first + h][c] = {result.of_inputs[h][c], true, nullptr};
        }
      }
    }
  }

  int64_t tokens_of_run(int i) const { return (step.token_count() - 1) / step.operand(i).runs + 1; }

  // Index of a tensor, run, head and channel.
  using Sum = std::array<int64_t, 4>;
  using Sums = std::map<Sum, T>;

  // Sums of each head begin with the contents of the row.
  void add_to_sum(const rope_tensor_t &rows, const Sum &at, T term, Sums *sums) const {
    if (rows.ndim == 0) return;
    T &sum = (*sums)[at];
    if (sums_begun.insert({sums, at}).second) {
      sum = rows.ndim == 3 ? static_cast<T>(value_at(rows, {at[1], at[2], at[3]})) : T{0};
    }
    sum = sum + term;
  }

  void expect_sums(const char *name, const rope_tensor_t *rows_of, const Sums &sums) {
    std::map<Sum, std::vector<T>> added_up;
    for (const auto &[at, sum] : sums) {
      const rope_tensor_t &rows = rows_of[at[0]];
      if (rows.ndim == 3) {
        expect(name, rows, {at[1], at[2], at[3]}, {sum, true, nullptr});
      } else {
        added_up[{at[0], at[1], 0, at[3]}].push_back(sum);
      }
    }
    for (const auto &[at, of_heads] : added_up) {
      const rope_tensor_t &rows = rows_of[at[0]];
      const Index row = {at[1], at[3]};
      const T sum = static_cast<T>(value_at(rows, row)) + norm_model::sum_of_tree(of_heads);
      expect(name, rows, row, {sum, true, nullptr});
    }
  }

  void norm(int i, std::vector<Head> *heads) {
    const norm_model::Form form = norm_form();
    const size_t together = heads_of_norm(*heads);
    for (size_t first = 0; first < heads->size(); first += together) {
      const norm_model::Heads<T> in = values_of(*heads, first, together),
                                 weights = numbers_of(i, scene.weights[i], first, together),
                                 biases = numbers_of(i, scene.biases[i], first, together);
      const norm_model::Heads<T> out = norm_model::rounded(form, in, weights, biases);
      distance_of_norm = std::max(distance_of_norm, norm_model::distance_from_exact(form, in, weights, biases, out));
      for (size_t h = 0; h < together; ++h) {
        for (size_t c = 0; c < out[h].size(); ++c) (*heads)[first + h][c] = {out[h][c], true, nullptr};
      }
    }
  }

  // Changes the order of channels from that of the input to that of the output.
  Head rotated(int i, const Head &head, const std::vector<Turn> &turns, bool is_forward) const {
    if (i == 2 && !step.is_turned(i)) return head;
    const rope_style_t read = is_forward ? step.style : step.written_style();
    const rope_style_t written = is_forward ? step.written_style() : step.style;
    const int32_t offset = step.offset_of(i);
    Head result = head;
    for (int pair = 0; pair < step.window() / 2; ++pair) {
      const Cell &x = head[offset + channel_of(read, pair, 0)], &y = head[offset + channel_of(read, pair, 1)];
      Cell &to_x = result[offset + channel_of(written, pair, 0)], &to_y = result[offset + channel_of(written, pair, 1)];
      if (turns.empty()) {
        to_x = x;
        to_y = y;
        continue;
      }
      const Turn &by = turns[pair];
      const auto product = [&](T value, T of) { return rounded(value * of); };
      if (is_forward) {
        to_x = {rounded(product(x.value, by.cos_x) - product(y.value, by.sin_x)), true, nullptr};
        to_y = {rounded(product(x.value, by.sin_y) + product(y.value, by.cos_y)), true, nullptr};
      } else {
        to_x = {rounded(product(x.value, by.cos_x) + product(y.value, by.sin_y)), true, nullptr};
        to_y = {rounded(product(y.value, by.cos_y) - product(x.value, by.sin_x)), true, nullptr};
      }
    }
    return result;
  }

  // One product for each channel, rounded once.
  void scale(int i, int64_t b, int64_t t, std::vector<Head> *heads) const {
    const rope_tensor_t &factors = scene.factors[i];
    for (size_t h = 0; h < heads->size(); ++h) {
      Index at = {};
      int axis = 0;
      if (step.layout != ROPE_LAYOUT_THD && factors.ndim > 1) at[axis++] = factors.shape[0] == 1 ? 0 : b;
      at[axis++] = t;
      if (axis < factors.ndim) at[axis] = static_cast<int64_t>(h);
      const auto factor = static_cast<T>(value_at(factors, at));
      for (Cell &cell : (*heads)[h]) cell = {cell.value * factor, true, nullptr};
    }
  }

  void expect_token(int64_t b, int64_t t) {
    std::vector<Turn> turns;
    if (!(step.flags & ROPE_FLAG_UNROTATED) && step.has_row(b, t)) {
      for (int pair = 0; pair < step.window() / 2; ++pair) turns.push_back(turn_of(b, t, pair));
    }
    bool is_faulty = false;
    const int64_t slot = step.cache ? step.slot_of(b, t, &is_faulty) : nowhere;
    for (int i = 0; i < 3; ++i) {
      const StepTensor &of = step.operand(i);
      if (of.heads <= 0) continue;
      std::vector<Head> heads;
      for (int64_t h = 0; h < of.heads; ++h) {
        heads.emplace_back();
        for (int64_t c = 0; c < step.width_of(i); ++c) {
          const void *element = scene.element_of(step, i, b, t, h, c);
          heads.back().push_back({static_cast<T>(oracle::decode(step.dtype, element)), false, element});
        }
      }
      const std::vector<Turn> own_turns = step.is_turned(i) ? turns : std::vector<Turn>();
      const bool is_before = step.norm_order == ROPE_NORM_ORDER_BEFORE,
                 is_forward = step.direction == Direction::Forward;
      const auto rotate = [&](std::vector<Head> *rotating, bool forward) {
        for (Head &head : *rotating) head = rotated(i, head, own_turns, forward);
      };
      if (step.is_norm_gradient(i)) {
        std::vector<Head> inputs = heads;
        for (int64_t h = 0; h < of.heads; ++h) {
          for (int64_t c = 0; c < step.width_of(i); ++c) {
            inputs[h][c].value = static_cast<T>(value_at(scene.norm_in[i], step.index(b, t, h, c)));
          }
        }
        if (of.factor != RowFactor::None) scale(i, b, t, &heads);
        is_before ? rotate(&heads, false) : rotate(&inputs, true);
        norm_gradient(i, b * step.tokens + t, inputs, &heads);
        if (!is_before) rotate(&heads, false);
      } else {
        if (step.is_normed(i) && is_before) norm(i, &heads);
        rotate(&heads, is_forward);
        if (step.is_normed(i) && !is_before) norm(i, &heads);
        if (of.factor != RowFactor::None) scale(i, b, t, &heads);
      }
      static const char *const names[] = {"q", "k", "v"}, *const cache_names[] = {"", "k_cache", "v_cache"};
      for (int64_t h = 0; h < of.heads; ++h) {
        if (scene.out[i].ndim != 0) {
          if (step.accumulates()) add_held(scene.out[i], step.index(b, t, h, 0), &heads[h]);
          expect_head(names[i], scene.out[i], scene.scales[i], scene.out_scales[i], i, h, step.index(b, t, h, 0),
                      heads[h]);
        }
        if (!step.is_cached(i) || slot == nowhere) continue;
        const int64_t entries = step.cache->entries;
        const Index place = {slot / entries, slot % entries, h, 0};
        Head cached = heads[h];
        if (i == 1 && step.cache->has_k_pass) {
          const auto begin = heads[h].begin() + step.offset_of(1), end = begin + step.window();
          cached.assign(begin, end);
          Head others(heads[h].begin(), begin);
          others.insert(others.end(), end, heads[h].end());
          expect_head("k_pass_cache", scene.pass_cache, scene.pass_scale, scene.pass_scales, i, h, place, others);
        }
        expect_head(cache_names[i], scene.caches[i], scene.scales[i], scene.cache_scales[i], i, h, place, cached);
      }
    }
  }

  // The output's contents of a head. Its channels begin with `first`.
  void add_held(const rope_tensor_t &out, const Index &first, Head *head) const {
    for (size_t c = 0; c < head->size(); ++c) {
      Index at = first;
      at[out.ndim - 1] = static_cast<int64_t>(c);
      (*head)[c] = {(*head)[c].value + static_cast<T>(value_at(out, at)), true, nullptr};
    }
  }

  // A head's channels in a destination, from `first` on. Scales are static, written, or absent.
  void expect_head(const char *name, const rope_tensor_t &tensor, const rope_tensor_t &static_scale,
                   const rope_tensor_t &scales, int i, int64_t h, const Index &first, const Head &head) {
    const int last = tensor.ndim - 1;
    const auto at = [&](int64_t channel) {
      Index index = first;
      index[last] = channel;
      return index;
    };
    if (!oracle::is_code(tensor.dtype)) {
      for (size_t c = 0; c < head.size(); ++c) expect(name, tensor, at(static_cast<int64_t>(c)), head[c]);
      return;
    }
    const bool is_split = scales.ndim == tensor.ndim + 1;
    const int64_t groups = scales.ndim == 0 ? 1 : scales.shape[last] * (is_split ? 4 : 1);
    const auto channels = static_cast<int64_t>(head.size()) / groups;
    for (int64_t group = 0; group < groups; ++group) {
      std::vector<float> values;
      float largest = 0;
      for (int64_t c = group * channels; c < (group + 1) * channels; ++c) {
        const T value = head[c].value;
        const bool is_first_rounded = step.quant_rounding == ROPE_QUANT_ROUND_FIRST;
        values.push_back(static_cast<float>(is_first_rounded ? oracle::nearest(step.dtype, value) : value));
        const float magnitude = std::fabs(values.back());
        if (!(magnitude <= largest)) largest = std::isnan(largest) ? largest : magnitude;
      }
      if (!(largest <= amax[i])) amax[i] = std::isnan(amax[i]) ? amax[i] : largest;
      float factor = static_factor(static_scale, h);
      if (scales.ndim != 0) {
        const Real scale = written_scale(tensor.dtype, scales.dtype, largest);
        Index of_scale = at(is_split ? group / 4 : group);
        if (is_split) of_scale[last + 1] = group % 4;
        Expectation expected = {"scale", scales.dtype, of_scale, nullptr, element_at(scales, of_scale), true, {}, -1};
        oracle::encode(scales.dtype, scale, expected.bits.data());
        add(expected);
        factor = std::isinf(scale) || scale == 0 ? 0 : static_cast<float>(oracle::nearest(ROPE_DTYPE_F32, 1 / scale));
        if (std::isinf(factor)) factor = std::numeric_limits<float>::max();
      }
      for (int64_t c = 0; c < channels; ++c) {
        const float code = values[c] * factor;
        expect(name, tensor, at(group * channels + c), {static_cast<T>(code), true, nullptr});
      }
    }
  }

  float static_factor(const rope_tensor_t &scales, int64_t head) const {
    if (scales.ndim == 0) return 1;
    const auto scale = static_cast<float>(value_at(scales, {scales.shape[0] == 1 ? 0 : head}));
    if ((step.quant_flags & ROPE_QUANT_FLAG_SCALE_MULTIPLIES) != 0) return scale;
    if (scale == 0) return 0;
    const auto inverse = static_cast<float>(oracle::nearest(ROPE_DTYPE_F32, 1 / static_cast<Real>(scale)));
    return std::isinf(inverse) ? std::copysign(std::numeric_limits<float>::max(), inverse) : inverse;
  }

  // The formula of rope.h, which tries one power of two after another.
  Real written_scale(rope_dtype_t code, rope_dtype_t type, float largest) const {
    const bool is_e8m0 = type == ROPE_DTYPE_F8_E8M0;
    const Real floor =
        step.scale_floor == 0 && !is_e8m0 ? static_cast<Real>(1e-10f) : static_cast<float>(step.scale_floor);
    if (!std::isfinite(largest)) return largest;
    const Real magnitude = std::max<Real>(largest, floor), top = oracle::max_finite(code);
    if (!is_e8m0 && (step.quant_flags & ROPE_QUANT_FLAG_POWER_OF_TWO) == 0) {
      return oracle::nearest(ROPE_DTYPE_F32, magnitude / top);
    }
    Real power = std::ldexp(1.0L, is_e8m0 ? -127 : -149);
    while (power * top < magnitude) power *= 2;
    return power;
  }

  void expect_amax() {
    for (int i = 0; i < 3; ++i) {
      const auto before = static_cast<float>(value_at(scene.quant.amax_out, {i}));
      const bool is_raised = step.has_codes(i) && !(amax[i] <= before);
      Expectation expected = {"amax_out", ROPE_DTYPE_F32, {i}, nullptr, element_at(scene.quant.amax_out, {i}), true, {},
                              -1};
      oracle::encode(ROPE_DTYPE_F32, is_raised ? amax[i] : before, expected.bits.data());
      add(expected);
    }
  }

  void expect(const char *name, const rope_tensor_t &tensor, const Index &at, const Cell &cell) {
    void *element = element_at(tensor, at);
    Expectation expected = {name, tensor.dtype, at, nullptr, element, false, {}, -1};
    if (!cell.is_computed && tensor.dtype == step.dtype) {
      // A call in place without a norm writes nothing; equal bits are expected nevertheless.
      std::memcpy(expected.bits.data(), cell.source, static_cast<size_t>(oracle::element_size(tensor.dtype)));
    } else {
      expected.is_computed = true;
      oracle::encode(tensor.dtype, cell.value, expected.bits.data());
    }
    add(expected);
  }

  void add(Expectation expected) {
    if (block_ == nullptr || !block_->contains(expected.element)) {
      block_ = scene.workspace.block_of(expected.element);
    }
    expected.block = block_;
    const auto number = static_cast<int64_t>(scene.expected.size());
    const auto [found, is_new] = expectation_of.try_emplace(expected.element, number);
    scene.expected.push_back(expected);
    if (is_new) {
      scene.first_of_elements.push_back(number);
    } else {
      scene.expected[number].otherwise = scene.expected[found->second].otherwise;
      scene.expected[found->second].otherwise = number;
    }
  }

  void expect_fault() {
    int64_t count = 0, lowest = 0, heads = 0;
    const auto add_token = [&](int64_t number) {
      ++count;
      lowest = lowest == 0 ? number + 1 : std::min(lowest, number + 1);
    };
    for (int i = 0; i < 3; ++i) heads += std::max<int64_t>(step.operand(i).heads, 0);
    if (!step.cu_seqlens.empty() && step.cu_seqlens[0] != 0) add_token(step.cu_seqlens[0]);
    for (int64_t b = 0; b < step.batches() && heads > 0; ++b) {
      for (int64_t t = 0; t < step.tokens; ++t) {
        bool is_faulty = false;
        if (step.is_absent(t)) {
          if (t < step.cu_seqlens[0]) add_token(t);
          continue;
        }
        if (!(step.flags & ROPE_FLAG_UNROTATED) && !step.has_row(b, t)) add_token(b * step.tokens + t);
        if (step.cache) step.slot_of(b, t, &is_faulty);
        if (is_faulty) add_token(b * step.tokens + t);
      }
    }
    for (int word = 0; word < 2; ++word) {
      const int64_t value = word ? lowest : count;
      Expectation expected = {"fault", ROPE_DTYPE_I64, {word}, nullptr, element_at(scene.args.fault, {word}), false, {},
                              -1};
      std::memcpy(expected.bits.data(), &value, sizeof value);
      add(expected);
    }
  }

 private:
  Sums weight_sums, bias_sums;
  mutable std::set<std::pair<const Sums *, Sum>> sums_begun;
  Workspace probe_workspace{7};
  Block *block_ = nullptr;
};

void StepCase::verify(Scene *scene) const {
  const auto matches = [](const Expectation &expected) {
    const auto size = static_cast<size_t>(oracle::element_size(expected.dtype));
    if (std::memcmp(expected.element, expected.bits.data(), size) == 0) return true;
    return expected.is_computed && std::isnan(oracle::decode(expected.dtype, expected.bits.data())) &&
           std::isnan(oracle::decode(expected.dtype, expected.element));
  };
  int64_t wrong = 0;
  for (const int64_t first : scene->first_of_elements) {
    const Expectation &expected = scene->expected[first];
    const auto size = static_cast<size_t>(oracle::element_size(expected.dtype));
    bool is_right = false;
    for (int64_t i = first; i >= 0 && !is_right; i = scene->expected[i].otherwise) {
      is_right = matches(scene->expected[i]);
    }
    if (!is_right && ++wrong <= 3) {
      const auto words = [&](const void *bytes) {
        uint64_t bits = 0;
        std::memcpy(&bits, bytes, size);
        std::ostringstream text;
        text << std::hex << bits;
        if (expected.dtype != ROPE_DTYPE_I64) text << ' ' << static_cast<double>(oracle::decode(expected.dtype, bytes));
        return text.str();
      };
      UNSCOPED_INFO(expected.name << '[' << expected.at[0] << ',' << expected.at[1] << ',' << expected.at[2] << ','
                                  << expected.at[3] << "]: expected " << words(expected.bits.data())
                                  << (expected.is_computed ? "" : " unchanged") << ", got " << words(expected.element));
    }
    expected.block->expect_as_now(expected.element, static_cast<int64_t>(size));
  }
  INFO(wrong << " of " << scene->first_of_elements.size() << " elements");
  CHECK(wrong == 0);
  std::string where;
  const bool is_untouched = scene->workspace.untouched_elsewhere(&where);
  INFO(where);
  CHECK(is_untouched);
}

void StepCase::check() const {
  const std::string description = describe();
  INFO(description);
  uint64_t seed = 1;
  for (const char letter : description) seed = seed * 31 + static_cast<unsigned char>(letter);
  Scene scene(seed);
  build(&scene);
  if (dtype == ROPE_DTYPE_F64) {
    Model<double>(*this, &scene).expect_all();
  } else {
    Model<float>(*this, &scene).expect_all();
  }
  for (const Device &device : devices()) {
    struct Variant {
      int32_t threads;
      uint32_t flags;
    };
    // The flag makes the CUDA backend select other kernels.
    const std::vector<Variant> variants = device.kind == ROPE_DEVICE_CPU
                                              ? std::vector<Variant>{{1, 0}, {5, 0}, {0, 0}}
                                              : std::vector<Variant>{{0, 0}, {0, ROPE_FLAG_PROGRAMMATIC_LAUNCH}};
    for (const Variant &variant : variants) {
      INFO("on " << device << ", num_threads " << variant.threads << ", flags " << variant.flags);
      const RopeDesc desc = create(config(device, variant.threads));
      scene.args.flags = flags | variant.flags;
      scene.workspace.restore();
      if (explanations != nullptr && device.kind == ROPE_DEVICE_CUDA) {
        char text[256];
        REQUIRE(rope_explain(desc.get(), &scene.args, text, sizeof text) == ROPE_STATUS_SUCCESS);
        explanations->push_back(text);
      }
      const rope_status_t status = run(device, desc.get(), direction, scene.args, scene.workspace);
      if (status != ROPE_STATUS_SUCCESS) {
        FAIL_CHECK(rope_status_name(status) << ": " << rope_last_error());
        return;
      }
      verify(&scene);
    }
  }
}

void check_step_kernels(const std::vector<std::string> &explanations, std::initializer_list<const char *> kernels) {
  if (!has_cuda()) return;
  for (const char *kernel : kernels) {
    INFO(kernel);
    const std::string words = std::string(": ") + kernel + " kernel, ";
    CHECK(std::any_of(explanations.begin(), explanations.end(),
                      [&](const std::string &text) { return text.find(words) != std::string::npos; }));
  }
}
