// SPDX-License-Identifier: Apache-2.0
// step_system.cpp - ranges of fp32 results, norms, and the layouts of paged caches
#include "step_system.hpp"

#include <algorithm>
#include <cmath>

#include "support/random.hpp"
#include "support/tolerance.hpp"

namespace systems {
namespace {

constexpr int64_t num_layers = 3, this_layer = 1;  // for CacheLayout::CrossLayer

bool is_narrow(rope_dtype_t dtype) {
  return dtype == ROPE_DTYPE_F16 || dtype == ROPE_DTYPE_BF16;
}

Shape shape_of(CacheLayout layout, const CacheShape &s) {
  switch (layout) {
    case CacheLayout::Nhd:
      return {s.pages, s.entries, s.heads, s.channels};
    case CacheLayout::Hnd:
      return {s.pages, s.heads, s.entries, s.channels};
    case CacheLayout::Stacked:
      return {2, s.pages, s.entries, s.heads, s.channels};
    case CacheLayout::StackedPages:
      return {s.pages, 2, s.entries, s.heads, s.channels};
    case CacheLayout::StackedPagesHnd:
      return {s.pages, 2, s.heads, s.entries, s.channels};
    case CacheLayout::Packed:
      return {s.pages, s.heads, s.entries, 2 * s.channels};
    case CacheLayout::CrossLayer:
      return {s.pages, num_layers, 2, s.entries, s.heads, s.channels};
  }
  return {};
}

}  // namespace

Range largest_of(const Row &row) {
  Range largest = {0, 0};
  for (const Range &x : row) {
    const Real near = x.low < 0 && x.high > 0 ? 0 : std::min(std::fabs(x.low), std::fabs(x.high));
    largest.low = std::max(largest.low, near);
    largest.high = std::max({largest.high, std::fabs(x.low), std::fabs(x.high)});
  }
  return largest;
}

void Norm::fill(rope_config_t &config) const {
  config.norm = type;
  config.norm_eps = static_cast<double>(eps);
  config.norm_weight_offset = static_cast<double>(weight_offset);
  config.norm_rounding = rounding;
}

// Half a unit in the last place, and a little for the roundings of long double in this model.
Arithmetic::Arithmetic(rope_dtype_t dtype)
    : dtype_(dtype), unit_((dtype == ROPE_DTYPE_F64 ? 0x1p-53L : 0x1p-24L) * (1 + 0x1p-6L)) {}

Range Arithmetic::rounded(Range value, Real roundings) const {
  return {value.low - roundings * unit_ * std::fabs(value.low), value.high + roundings * unit_ * std::fabs(value.high)};
}

Range Arithmetic::number(Real value) const {
  const bool is_exact = oracle::nearest(dtype_ == ROPE_DTYPE_F64 ? ROPE_DTYPE_F64 : ROPE_DTYPE_F32, value) == value;
  return is_exact ? Range{value, value} : rounded({value, value});
}

Range Arithmetic::rounded_to_dtype(Range value) const {
  if (!is_narrow(dtype_)) return value;
  return {oracle::nearest(dtype_, value.low), oracle::nearest(dtype_, value.high)};
}

Row Arithmetic::rounded_to_dtype(Row row) const {
  for (Range &value : row) value = rounded_to_dtype(value);
  return row;
}

Range Arithmetic::plus(Range a, Range b) const {
  return rounded({a.low + b.low, a.high + b.high});
}

Range Arithmetic::minus(Range a, Range b) const {
  return plus(a, {-b.high, -b.low});
}

Range Arithmetic::times(Range a, Range b) const {
  const auto [low, high] = std::minmax({a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high});
  return rounded({low, high});
}

// A term passes through as many additions as its tree has levels, or fewer. A tree over heads of trees over channels
// may have one level more.
Range Arithmetic::sum(const Row &terms) const {
  Range total = {0, 0};
  Real size = 0;
  for (const Range &term : terms) {
    total = {total.low + term.low, total.high + term.high};
    size += std::max(std::fabs(term.low), std::fabs(term.high));
  }
  const Real slack = unit_ * size * (std::ceil(std::log2(static_cast<Real>(terms.size()))) + 1);
  return {total.low - slack, total.high + slack};
}

Row Arithmetic::normed(const Norm &norm, Row x, const Row &weight, const Row &bias) const {
  const Range inverse_count = number(1 / static_cast<Real>(x.size()));
  if (norm.type == ROPE_NORM_LAYER) {
    const Range mean = times(sum(x), inverse_count);
    for (Range &value : x) value = minus(value, mean);
  }
  Row squares;
  for (const Range &value : x) squares.push_back(times(value, value));
  const Range v = plus(times(sum(squares), inverse_count), number(norm.eps));
  const Range r = rounded({1 / std::sqrt(v.high), 1 / std::sqrt(v.low)}, 2);  // F64: the root and the quotient
  for (size_t i = 0; i < x.size(); ++i) {
    Range &y = x[i];
    y = times(y, r);
    if (norm.rounding & ROPE_NORM_ROUND_BEFORE_WEIGHT) y = rounded_to_dtype(y);
    if (!weight.empty())
      y = times(y, norm.weight_offset == 0 ? weight[i] : plus(weight[i], number(norm.weight_offset)));
    if (norm.rounding & ROPE_NORM_ROUND_AFTER_WEIGHT) y = rounded_to_dtype(y);
    if (bias.empty()) continue;
    y = plus(y, bias[i]);
    if (norm.rounding & ROPE_NORM_ROUND_AFTER_WEIGHT) y = rounded_to_dtype(y);
  }
  return x;
}

Row Arithmetic::rotated(rope_style_t style, int64_t first, int64_t width, Row row, const TurnRanges &turn) const {
  for (int64_t i = 0; i < width / 2; ++i) {
    const bool is_half = style == ROPE_STYLE_HALF;
    Range &x = row[first + (is_half ? i : 2 * i)], &y = row[first + (is_half ? i + width / 2 : 2 * i + 1)];
    const TurnRange by = turn(i);
    const Range turned = minus(times(x, by.cos), times(y, by.sin));
    y = plus(times(x, by.sin), times(y, by.cos));
    x = turned;
  }
  return row;
}

// Rounding keeps the order of numbers, so the ends of a product or quotient come from the ends of its operands.
Row Arithmetic::scaled(Row row, Real factor) const {
  const rope_dtype_t wide = dtype_ == ROPE_DTYPE_F64 ? ROPE_DTYPE_F64 : ROPE_DTYPE_F32;
  for (Range &x : row) {
    x = {oracle::nearest(wide, x.low * factor), oracle::nearest(wide, x.high * factor)};
    if (factor < 0) std::swap(x.low, x.high);
  }
  return row;
}

Row Arithmetic::divided(Row row, Real divisor) const {
  const rope_dtype_t wide = dtype_ == ROPE_DTYPE_F64 ? ROPE_DTYPE_F64 : ROPE_DTYPE_F32;
  for (Range &x : row) {
    x = {oracle::nearest(wide, x.low / divisor), oracle::nearest(wide, x.high / divisor)};
    if (divisor < 0) std::swap(x.low, x.high);
  }
  return row;
}

Group Arithmetic::grouped(const Row &row, const ScaleRule &rule, CodeBy by) const {
  const Range largest = largest_of(row);
  const Range scale = {rule(largest.low), rule(largest.high)};
  const auto with = [&](Real of) { return by == CodeBy::Quotient ? divided(row, of) : scaled(row, single(1 / of)); };
  Group group = {scale, with(scale.low)};
  const Row other = with(scale.high);
  for (size_t i = 0; i < row.size(); ++i) {
    group.row[i] = {std::min(group.row[i].low, other[i].low), std::max(group.row[i].high, other[i].high)};
  }
  return group;
}

ScaledRow Arithmetic::scaled_in_groups(const Row &row, int64_t groups, const ScaleRule &rule, CodeBy by) const {
  ScaledRow result;
  const int64_t channels = static_cast<int64_t>(row.size()) / groups;
  for (int64_t g = 0; g < groups; ++g) {
    const Group group = grouped(Row(row.begin() + g * channels, row.begin() + (g + 1) * channels), rule, by);
    result.scales.push_back(group.scale);
    result.codes.insert(result.codes.end(), group.row.begin(), group.row.end());
  }
  return result;
}

TurnRange Arithmetic::computed(int64_t position, Real inv_freq, Real scale) const {
  const oracle::Rotation exact = by_angle(static_cast<Real>(position) * inv_freq);
  const Real slack = dtype_ == ROPE_DTYPE_F64 ? 4e-16L + tolerance::phase(position, inv_freq)
                                              : tolerance::rotation(position, inv_freq);
  const Range cos = {exact.cos - slack, exact.cos + slack}, sin = {exact.sin - slack, exact.sin + slack};
  return scale == 1 ? TurnRange{cos, sin} : TurnRange{times(cos, number(scale)), times(sin, number(scale))};
}

Row read(const Array &array, int64_t first, int64_t count) {
  Row row;
  for (int64_t c = 0; c < count; ++c) {
    const Real value = value_at(array.memory, {first + c});
    row.push_back({value, value});
  }
  return row;
}

void expect(Outcome &outcome, int64_t first, const Row &row) {
  for (size_t c = 0; c < row.size(); ++c) outcome.push_back({first + static_cast<int64_t>(c), row[c]});
}

void copy(Formula &formula, int64_t to, int64_t from, int64_t count) {
  for (int64_t c = 0; c < count; ++c) formula.copy(to + c, from + c);
}

void rotate(Formula &formula, rope_style_t style, int64_t to, int64_t from, int64_t count, const Turn &turn) {
  formula.rotate_pairs(
      style, count, [&](int64_t c) { return to + c; }, [&](int64_t c) { return from + c; }, turn);
}

void take_cos_sin(RopeCall &call, const Array &table) {
  const int64_t pairs = table.shape[1] / 2;
  call.config.theta = 0;
  call.args.cos = narrow(table.tensor(), 1, 0, pairs);
  call.args.sin = narrow(table.tensor(), 1, pairs, pairs);
}

Turn turns_of(const Array &table, int64_t row) {
  return [&table, row](int64_t pair) {
    return Rotation{table.value({row, pair}), table.value({row, table.shape[1] / 2 + pair})};
  };
}

TurnRanges turns_of(const Arithmetic &arithmetic, const Array &table, int64_t row) {
  return [&arithmetic, exact = turns_of(table, row)](int64_t pair) {
    return TurnRange{arithmetic.number(exact(pair).cos), arithmetic.number(exact(pair).sin)};
  };
}

PagedCaches::PagedCaches(RopeCall &call, CacheLayout layout, CacheShape shape, rope_dtype_t dtype)
    : layout(layout), shape(shape) {
  const bool is_apart = layout == CacheLayout::Nhd || layout == CacheLayout::Hnd;
  for (int i = 0; i < (is_apart ? 2 : 1); ++i) arrays.push_back(call.data(shape_of(layout, shape), dtype));
}

int64_t PagedCaches::at(bool is_v, int64_t page, int64_t entry, int64_t head) const {
  const Array &array = of(is_v);
  switch (layout) {
    case CacheLayout::Nhd:
      return array.at({page, entry, head, 0});
    case CacheLayout::Hnd:
      return array.at({page, head, entry, 0});
    case CacheLayout::Stacked:
      return array.at({is_v, page, entry, head, 0});
    case CacheLayout::StackedPages:
      return array.at({page, is_v, entry, head, 0});
    case CacheLayout::StackedPagesHnd:
      return array.at({page, is_v, head, entry, 0});
    case CacheLayout::Packed:
      return array.at({page, head, entry, is_v ? shape.channels : 0});
    case CacheLayout::CrossLayer:
      return array.at({page, this_layer, is_v, entry, head, 0});
  }
  return -1;
}

rope_tensor_t PagedCaches::view(bool is_v) const {
  const Array &array = of(is_v);
  const auto [p, e, h, d] = shape;
  switch (layout) {
    case CacheLayout::Nhd:
      return array.tensor();
    case CacheLayout::Hnd:
      return permuted(array.tensor(), {0, 2, 1, 3});
    case CacheLayout::Stacked:
      return narrow(array.as({2 * p, e, h, d}), 0, is_v * p, p);
    case CacheLayout::StackedPages:
      return narrow(array.as({p, 2 * e, h, d}), 1, is_v * e, e);
    case CacheLayout::StackedPagesHnd:
      return permuted(narrow(array.as({p, 2 * h, e, d}), 1, is_v * h, h), {0, 2, 1, 3});
    case CacheLayout::Packed:
      return permuted(narrow(array.tensor(), 3, is_v * d, d), {0, 2, 1, 3});
    case CacheLayout::CrossLayer:
      return narrow(array.as({p, num_layers * 2 * e, h, d}), 1, (2 * this_layer + is_v) * e, e);
  }
  return {};
}

rope_cache_args_t cache_args(const PagedCaches &caches) {
  rope_cache_args_t args = ROPE_CACHE_ARGS_INIT;
  args.k_cache = caches.view(false);
  args.v_cache = caches.view(true);
  return args;
}

void fill_latent(rope_config_t &config) {
  config.layout = ROPE_LAYOUT_THD;
  config.rotary_dim = qk_rope_head_dim;
  config.rotary_offset = kv_lora_rank;
}

LatentRows::LatentRows(RopeCall &call, int64_t pages, int64_t entries)
    : bytes(call.data({pages, entries, kv_lora_rank + 4 * 4 + 2 * qk_rope_head_dim}, ROPE_DTYPE_F8_E4M3)),
      scales(as_type(bytes, ROPE_DTYPE_F32)),
      words(as_type(bytes, call.config.dtype)) {}

void LatentRows::take(rope_cache_args_t &cache) const {
  const int64_t pages = bytes.shape[0], entries = bytes.shape[1];
  const auto part = [&](const Array &array, int64_t first, int64_t count) {
    return narrow(array.as({pages, entries, 1, array.shape[2]}), 3, first, count);
  };
  cache.k_pass_cache = part(bytes, code_at(0, 0), kv_lora_rank);
  cache.k_pass_scales = part(scales, scale_at(0, 0), 4);
  cache.k_cache = part(words, turned_at(0, 0), qk_rope_head_dim);
}

Array grouped_data(RopeCall &call, const Shape &shape, int64_t group, const std::vector<Real> &largest) {
  Random random(static_cast<uint64_t>(group));
  int64_t number = 0;
  return call.values(call.config.dtype, shape, [&](const Shape &) {
    const int64_t g = number / group, c = number % group;
    ++number;
    const Real most = largest[g % static_cast<int64_t>(largest.size())], share = random.uniform(-1, 1);
    return c == g * 29 % group ? std::copysign(most, share) : most * share;
  });
}

Real single(Real value) {
  return oracle::nearest(ROPE_DTYPE_F32, value);
}

Array as_floats(const Array &codes) {
  Array floats = codes;
  floats.shape.back() /= 4;
  floats.memory.dtype = ROPE_DTYPE_F32;
  floats.memory.shape[0] /= 4;
  return floats;
}

Array scales(RopeCall &call, const std::vector<Real> &values) {
  return call.values(ROPE_DTYPE_F32, {static_cast<int64_t>(values.size())},
                     [&](const Shape &at) { return values[at[0]]; });
}

rope_norm_args_t norm_args(const Array &q_weight, const Array &k_weight) {
  rope_norm_args_t args = ROPE_NORM_ARGS_INIT;
  args.q_weight = q_weight.tensor();
  args.k_weight = k_weight.tensor();
  return args;
}

}  // namespace systems
