// SPDX-License-Identifier: Apache-2.0
// step_system.hpp - the step around the rotation in the formulas of other systems: norms, rotations and the places of a
// paged cache
//
// Numbers are ranges. Every operation of the contract (rope.h) is done on both ends and widened by its possible
// rounding, and a rounding to a type rounds both ends. So a test states a system's formula, and its tolerance follows.
#ifndef ROPE_TESTS_SYSTEMS_STEP_SYSTEM_HPP
#define ROPE_TESTS_SYSTEMS_STEP_SYSTEM_HPP

#include "system.hpp"

namespace systems {

// The types of activations in serving systems. They do not compute with F64.
constexpr rope_dtype_t serving[] = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16};
constexpr rope_dtype_t code_types[] = {ROPE_DTYPE_F8_E4M3, ROPE_DTYPE_F8_E5M2};
constexpr rope_dtype_t cache_types[] = {0, ROPE_DTYPE_F8_E4M3, ROPE_DTYPE_F8_E5M2};  // 0: the data's type
constexpr rope_dtype_t of_16_bits[] = {ROPE_DTYPE_F16, ROPE_DTYPE_BF16};

// The channels of a head, or of all heads of a token.
using Row = std::vector<Range>;

struct TurnRange {
  Range cos, sin;
};
using TurnRanges = std::function<TurnRange(int64_t pair)>;

// The largest magnitude of a row.
Range largest_of(const Row &row);

// The scale for values with this largest magnitude. A larger magnitude has no smaller scale.
using ScaleRule = std::function<Real(Real largest)>;

// The results for a group: its scale, and the numbers that become its codes.
struct Group {
  Range scale;
  Row row;
};

// The results for neighbouring groups.
struct ScaledRow {
  Row codes, scales;
};

enum class CodeBy {
  Quotient,   // x / scale
  Reciprocal  // x * (1 / scale), each rounded to fp32
};

// A norm by its formula: y = x * r * (weight + offset) + bias.
struct Norm {
  rope_norm_type_t type = ROPE_NORM_RMS;
  Real eps = 1e-6;
  Real weight_offset = 0;
  int32_t rounding = 0;  // ROPE_NORM_ROUND_ bits

  void fill(rope_config_t &config) const;
};

// Arithmetic with data of the type: fp32, or fp64 for F64. Each result is rounded once.
class Arithmetic {
 public:
  explicit Arithmetic(rope_dtype_t dtype);

  // A number that the arithmetic may have to round.
  Range number(Real value) const;
  Range rounded_to_dtype(Range value) const;
  Row rounded_to_dtype(Row row) const;

  // An absent weight or bias is an empty row.
  Row normed(const Norm &norm, Row x, const Row &weight, const Row &bias = {}) const;

  // Turns the pairs of `width` channels from `first` on.
  Row rotated(rope_style_t style, int64_t first, int64_t width, Row x, const TurnRanges &turn) const;

  // Each number times a factor, or by a divisor, rounded once.
  Row scaled(Row row, Real factor) const;
  Row divided(Row row, Real divisor) const;
  ScaledRow scaled_in_groups(const Row &row, int64_t groups, const ScaleRule &rule, CodeBy by = CodeBy::Quotient) const;

  // Scaled by the rule.
  Group grouped(const Row &row, const ScaleRule &rule, CodeBy by = CodeBy::Reciprocal) const;

  // cos and sin of an angle that librope computes, times its attention_scale.
  TurnRange computed(int64_t position, Real inv_freq, Real scale = 1) const;

 private:
  Range rounded(Range value, Real roundings = 1) const;
  Range plus(Range a, Range b) const;
  Range minus(Range a, Range b) const;
  Range times(Range a, Range b) const;
  Range sum(const Row &terms) const;

  rope_dtype_t dtype_;
  Real unit_;
};

// `count` elements from `first` on, with their contents before the call.
Row read(const Array &array, int64_t first, int64_t count);
void expect(Outcome &outcome, int64_t first, const Row &row);
// `count` elements that keep their bits, and the pairs of as many.
void copy(Formula &formula, int64_t to, int64_t from, int64_t count);
void rotate(Formula &formula, rope_style_t style, int64_t to, int64_t from, int64_t count, const Turn &turn);

// Tables cos | sin [rows, rotary_dim] with a column for each pair, as in serving systems.
void take_cos_sin(RopeCall &call, const Array &table);
Turn turns_of(const Array &table, int64_t row);
TurnRanges turns_of(const Arithmetic &arithmetic, const Array &table, int64_t row);

// The layout of the caches of k and v, with P pages, E entries, H heads and D channels.
enum class CacheLayout {
  Nhd,              // two of [P, E, H, D]
  Hnd,              // two of [P, H, E, D]
  Stacked,          // [2, P, E, H, D]
  StackedPages,     // [P, 2, E, H, D]
  StackedPagesHnd,  // [P, 2, H, E, D]
  Packed,           // [P, H, E, 2D]: k and v of a head side by side
  CrossLayer        // [P, layers, 2, E, H, D]: a page of one layer is part of a page of all layers
};

constexpr CacheLayout cache_layouts[] = {CacheLayout::Nhd,
                                         CacheLayout::Hnd,
                                         CacheLayout::Stacked,
                                         CacheLayout::StackedPages,
                                         CacheLayout::StackedPagesHnd,
                                         CacheLayout::Packed,
                                         CacheLayout::CrossLayer};

struct CacheShape {
  int64_t pages, entries, heads, channels;
};

// Caches of k and v in a layout, full of old values.
struct PagedCaches {
  PagedCaches(RopeCall &call, CacheLayout layout, CacheShape shape, rope_dtype_t dtype = 0);  // 0: the call's type

  const Array &of(bool is_v) const { return arrays[arrays.size() == 2 && is_v]; }
  // The first channel of a head, in of(is_v).
  int64_t at(bool is_v, int64_t page, int64_t entry, int64_t head) const;
  // [P, E, H, D]
  rope_tensor_t view(bool is_v) const;

  CacheLayout layout;
  CacheShape shape;
  std::vector<Array> arrays;
};

rope_cache_args_t cache_args(const PagedCaches &caches);

// DeepSeek's latent head: kv_lora_rank channels that are not turned, then qk_rope_head_dim turned ones.
constexpr int64_t kv_lora_rank = 512, qk_rope_head_dim = 64, latent_dim = kv_lora_rank + qk_rope_head_dim;
void fill_latent(rope_config_t &config);

// Latent rows of 656 bytes, full of old values: codes of kv_lora_rank channels, F32 scales of their four tiles, and the
// turned channels in the call's 16 bits.
struct LatentRows {
  LatentRows(RopeCall &call, int64_t pages, int64_t entries);

  void take(rope_cache_args_t &cache) const;
  int64_t code_at(int64_t page, int64_t entry) const { return bytes.at({page, entry, 0}); }
  int64_t scale_at(int64_t page, int64_t entry) const { return scales.at({page, entry, kv_lora_rank / 4}); }
  int64_t turned_at(int64_t page, int64_t entry) const { return words.at({page, entry, (kv_lora_rank + 16) / 2}); }

  Array bytes, scales, words;  // share one memory
};

// Random rows in groups of `group` channels. The groups' largest magnitudes are the listed ones, cyclically.
Array grouped_data(RopeCall &call, const Shape &shape, int64_t group, const std::vector<Real> &largest);
// A number of fp32.
Real single(Real value);
// The bytes of codes, and the neighbouring data in their rows, as F32.
Array as_floats(const Array &codes);
// Static scales, F32 [1] or [H].
Array scales(RopeCall &call, const std::vector<Real> &values);
// With one row of weights, [D], for all heads.
rope_norm_args_t norm_args(const Array &q_weight, const Array &k_weight);

}  // namespace systems

#endif
