// SPDX-License-Identifier: Apache-2.0
// step_random_tests.cpp - seeded random steps with norms, rotations, outputs and caches
//
// ROPE_STEP_CASES sets the number of cases (600), ROPE_STEP_SEED the first seed. A failing case prints its seed:
//   ROPE_STEP_CASES=1 ROPE_STEP_SEED=<that> rope_api_tests "[step][random]"
// runs only this case.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "support/step_case.hpp"

namespace {

constexpr int parts = 2;

// Counts of the features in the drawn steps.
using Coverage = std::map<std::string, int64_t>;

const std::vector<std::string> features = {"q absent",
                                           "k absent",
                                           "v absent",
                                           "lengths of 1",
                                           "window alone",
                                           "v of its own width",
                                           "in place",
                                           "same view",
                                           "out of place",
                                           "16-bit out",
                                           "RMS",
                                           "LAYER",
                                           "order after",
                                           "token extent",
                                           "weight",
                                           "bias",
                                           "weight by head",
                                           "F32 weight",
                                           "weight_offset",
                                           "roundings",
                                           "v normed",
                                           "unrotated",
                                           "v unrotated",
                                           "v turned",
                                           "computed",
                                           "table",
                                           "table by token",
                                           "wide table",
                                           "several axes",
                                           "cu_seqlens",
                                           "out_style",
                                           "rounding each",
                                           "pair_block",
                                           "partial window",
                                           "k cached",
                                           "v cached",
                                           "16-bit cache",
                                           "slots",
                                           "fewer slots",
                                           "page_table",
                                           "page_indptr",
                                           "sequence",
                                           "cache positions",
                                           "skip slot 0",
                                           "stacked",
                                           "side by side",
                                           "heads first",
                                           "strides",
                                           "fault",
                                           "expanded input",
                                           "row factor",
                                           "row factor by head",
                                           "8-bit out",
                                           "8-bit cache",
                                           "scale",
                                           "scale by head",
                                           "scale multiplies",
                                           "odd scales",
                                           "rounded first",
                                           "amax",
                                           "written out scales",
                                           "written cache scales",
                                           "E8M0 scales",
                                           "scales of groups",
                                           "split scales",
                                           "inline scales",
                                           "powers of two",
                                           "scale floor",
                                           "q in parts",
                                           "k in parts",
                                           "k cached in parts",
                                           "8-bit pass cache",
                                           "scale of a pass",
                                           "written scales of a pass",
                                           "backward",
                                           "accumulated",
                                           "norm gradient",
                                           "gradient of a weight",
                                           "gradient of a bias",
                                           "gradients by head"};

class Draw {
 public:
  Draw(uint64_t seed, Coverage *coverage) : random_(seed * 0x9E3779B97F4A7C15u + 3), coverage_(coverage) {}

  StepCase step() {
    draw_geometry();
    draw_tensors();
    draw_norm();
    draw_angles();
    if (!v_is_turned_) draw_cache();
    drawn_.has_fault = saw_if(chance(60), "fault");
    draw_factors();
    draw_codes();
    drawn_.rounds_each = saw_if(chance(10), "rounding each");
    draw_direction();
    return drawn_;
  }

 private:
  void saw(const std::string &feature) {
    const bool is_listed = std::find(features.begin(), features.end(), feature) != features.end();
    INFO(feature);
    CHECK(is_listed);
    ++(*coverage_)[feature];
  }
  bool saw_if(bool condition, const char *feature) {
    if (condition) saw(feature);
    return condition;
  }

  bool chance(int percent) { return random_.below(100) < percent; }
  int64_t between(int64_t low, int64_t high) { return low + random_.below(high - low + 1); }
  template <class Value>
  Value one_of(std::initializer_list<Value> values) {
    return values.begin()[random_.below(static_cast<int64_t>(values.size()))];
  }

  // The length of an axis. In half of the steps it is 1 with odds of a half.
  int64_t length(int64_t most) { return has_ones_ && chance(50) ? 1 : between(1, most); }

  bool is_thd() const { return drawn_.layout == ROPE_LAYOUT_THD; }
  int64_t batches() const { return is_thd() ? 1 : drawn_.batch; }
  int64_t sequences() const {
    return drawn_.cu_seqlens.empty() ? batches() : static_cast<int64_t>(drawn_.cu_seqlens.size()) - 1;
  }

  void draw_geometry() {
    drawn_.dtype = one_of<rope_dtype_t>({ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64});
    drawn_.layout = one_of<rope_layout_t>({ROPE_LAYOUT_BSHD, ROPE_LAYOUT_SBHD, ROPE_LAYOUT_BHSD, ROPE_LAYOUT_THD});
    drawn_.style = one_of<rope_style_t>({ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED});
    if (saw_if(chance(40), "out_style"))
      drawn_.out_style = one_of<rope_style_t>({ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED});
    has_ones_ = saw_if(chance(50), "lengths of 1");
    drawn_.batch = length(3);
    drawn_.tokens = length(is_thd() ? 12 : 6);
    drawn_.head_dim = static_cast<int32_t>(chance(50) ? one_of<int64_t>({8, 16, 32, 64, 128, 256})
                                                      : 2 * between(1, chance(15) ? 300 : 48));
    int32_t window = drawn_.head_dim;
    has_pieces_ = chance(25);
    if (has_pieces_) {
      // Pieces of heads that the kernels of whole heads support.
      drawn_.rotary_dim = window = 64;
      drawn_.head_dim = static_cast<int32_t>(64 * between(2, 5));
      drawn_.rotary_offset = chance(50) ? 0 : drawn_.head_dim - window;
      saw("partial window");
    } else if (chance(50)) {
      drawn_.rotary_dim = window = static_cast<int32_t>(2 * between(1, drawn_.head_dim / 2));
      drawn_.rotary_offset = static_cast<int32_t>(between(0, drawn_.head_dim - window));
      if (window < drawn_.head_dim) saw("partial window");
    }
    const bool has_half = drawn_.style == ROPE_STYLE_HALF || drawn_.out_style == ROPE_STYLE_HALF;
    if (has_half && window % 4 == 0 && saw_if(chance(25), "pair_block")) drawn_.pair_block = window / 2;
    if (saw_if(chance(15), "several axes")) {
      drawn_.num_axes = static_cast<int32_t>(between(2, 4));
      for (int32_t pair = 0; pair < window / 2; ++pair) {
        drawn_.pair_axis.push_back(static_cast<int32_t>(random_.below(drawn_.num_axes)));
      }
    }
    if (is_thd() && saw_if(chance(60), "cu_seqlens")) {
      const int64_t first = chance(10) ? between(0, drawn_.tokens) : 0;
      drawn_.cu_seqlens = {first};
      const int64_t count = length(4);
      for (int64_t i = 0; i < count; ++i) drawn_.cu_seqlens.push_back(between(first, drawn_.tokens));
      std::sort(drawn_.cu_seqlens.begin(), drawn_.cu_seqlens.end());
    }
  }

  Placement placement(int rank, bool is_input) {
    Placement placement;
    if (chance(60)) return placement;
    saw("strides");
    if (chance(50)) {
      std::vector<int> order(rank);
      std::iota(order.begin(), order.end(), 0);
      for (int i = rank - 1; i > 0; --i) std::swap(order[i], order[random_.below(i + 1)]);
      placement.order(order);
    }
    for (int axis = 0; axis < rank; ++axis) {
      if (chance(25)) placement.gap(axis, one_of<int64_t>({1, 2, 3, 8}));
      if (chance(10)) placement.reversed(axis);
    }
    if (chance(30)) placement.at(between(1, 7));
    if (is_input && saw_if(chance(15), "expanded input")) placement.expanded(static_cast<int>(random_.below(rank)));
    return placement;
  }

  void draw_tensors() {
    StepTensor *const tensors[] = {&drawn_.q, &drawn_.k, &drawn_.v};
    const auto present = between(1, 7);
    const int64_t flag = random_.below(100);
    if (flag < 20) {
      drawn_.flags = ROPE_FLAG_UNROTATED;
      saw("unrotated");
    } else if (flag < 80) {
      drawn_.flags = ROPE_FLAG_V_UNROTATED;
      saw("v unrotated");
    }
    // Without q and k, and with v not turned, nothing is turned, with or without the flag. UNROTATED expresses this.
    if (present == 4 && drawn_.flags == ROPE_FLAG_V_UNROTATED) drawn_.flags = ROPE_FLAG_UNROTATED;
    v_is_turned_ = saw_if(drawn_.flags == 0 && (present & 4) != 0, "v turned");
    const int rank = is_thd() ? 3 : 4;
    for (int i = 0; i < 3; ++i) {
      static const char *const absent[] = {"q absent", "k absent", "v absent"};
      if (saw_if((present >> i & 1) == 0, absent[i])) continue;
      StepTensor &tensor = *tensors[i];
      tensor.heads = has_ones_ && chance(50) ? 1 : one_of<int64_t>({1, 2, 3, 5});
      const bool moves = i < 2 || v_is_turned_;
      tensor.is_window = saw_if(drawn_.rotary_dim != 0 && chance(25), "window alone");
      if (!moves && !tensor.is_window && saw_if(chance(40), "v of its own width")) {
        tensor.width = static_cast<int32_t>(length(70));
      }
      tensor.out = one_of({StepOut::Absent, StepOut::Same, StepOut::Own});
      static const char *const outs[] = {"in place", "same view", "out of place"};
      saw(outs[static_cast<int>(tensor.out)]);
      if (tensor.out == StepOut::Own && drawn_.dtype == ROPE_DTYPE_F32 && saw_if(chance(40), "16-bit out")) {
        tensor.out_dtype = one_of<rope_dtype_t>({ROPE_DTYPE_F16, ROPE_DTYPE_BF16});
      }
      const bool has_others = !tensor.is_window && drawn_.rotary_dim != 0 && drawn_.rotary_dim < drawn_.head_dim;
      if (i < 2 && !v_is_turned_ && has_others &&
          saw_if(chance(has_pieces_ ? 80 : 40), i == 0 ? "q in parts" : "k in parts")) {
        tensor.has_pass = true;
        tensor.out = StepOut::Own;
        tensor.pass_placement = placement(rank, true);
      }
      tensor.in_placement = placement(rank, tensor.out == StepOut::Own);
      tensor.out_placement = placement(rank, false);
    }
    if ((present & 6) == 6 && chance(40)) {
      drawn_.v.heads = drawn_.k.heads;
      drawn_.v.is_window = drawn_.k.is_window;
      drawn_.v.width = 0;
    }
  }

  void draw_norm() {
    if (v_is_turned_ || chance(35)) return;
    drawn_.norm = one_of<rope_norm_type_t>({ROPE_NORM_RMS, ROPE_NORM_LAYER});
    saw(drawn_.norm == ROPE_NORM_RMS ? "RMS" : "LAYER");
    drawn_.norm_tensors = static_cast<int32_t>(random_.below(8));
    if (drawn_.v.heads > 0 && drawn_.norm_tensors & ROPE_NORM_TENSOR_V) saw("v normed");
    if (saw_if(chance(40), "order after")) drawn_.norm_order = ROPE_NORM_ORDER_AFTER;
    if (saw_if(chance(40), "token extent")) drawn_.norm_extent = ROPE_NORM_EXTENT_TOKEN;
    if (saw_if(chance(40), "roundings")) drawn_.norm_rounding = static_cast<int32_t>(between(1, 3));
    if (saw_if(chance(40), "weight_offset")) drawn_.norm_weight_offset = one_of({1.0, -0.5, 0.3});
    drawn_.norm_eps = one_of({1e-6, 1e-5, 0.1, 1e-30});
    for (int i = 0; i < 2; ++i) {
      StepTensor &tensor = i == 0 ? drawn_.q : drawn_.k;
      const int32_t bits = drawn_.norm_tensors ? drawn_.norm_tensors : 3;
      if (tensor.heads < 0 || (bits >> i & 1) == 0) continue;
      tensor.has_weight = saw_if(chance(70), "weight");
      tensor.has_bias = saw_if(drawn_.norm == ROPE_NORM_LAYER && chance(60), "bias");
      tensor.weight_by_head = saw_if(chance(40), "weight by head");
      if (saw_if(chance(40), "F32 weight")) tensor.weight_dtype = ROPE_DTYPE_F32;
      tensor.weight_placement = placement(tensor.weight_by_head ? 2 : 1, false);
    }
  }

  void draw_factors() {
    if (v_is_turned_ || chance(60)) return;
    for (StepTensor *tensor : {&drawn_.q, &drawn_.k, &drawn_.v}) {
      if (tensor->heads < 0 || chance(40)) continue;
      saw("row factor");
      const auto by_token = one_of({RowFactor::ByToken, RowFactor::OneBatch, RowFactor::ByBatch});
      const auto by_head = one_of({RowFactor::ByHead, RowFactor::OneBatchHeads});
      const bool is_by_head = saw_if(chance(40), "row factor by head");
      tensor->factor = is_by_head ? by_head : by_token;
      if (chance(40)) tensor->factor_dtype = ROPE_DTYPE_F32;
      const bool has_batches = !is_thd() && tensor->factor != RowFactor::ByToken;
      tensor->factor_placement = placement((has_batches ? 2 : 1) + (is_by_head ? 1 : 0), true);
    }
  }

  void draw_codes() {
    if (drawn_.dtype == ROPE_DTYPE_F64 || chance(40)) return;
    const auto code = [&] { return one_of<rope_dtype_t>({ROPE_DTYPE_F8_E4M3, ROPE_DTYPE_F8_E5M2}); };
    if (drawn_.cache && saw_if(chance(70), "8-bit cache")) {
      const bool has_one_type =
          drawn_.cache->storage == CacheStorage::Stacked || drawn_.cache->storage == CacheStorage::SideBySide;
      drawn_.cache->k_dtype = code();
      drawn_.cache->v_dtype = has_one_type ? drawn_.cache->k_dtype : chance(30) ? rope_dtype_t{0} : code();
    }
    bool has_codes = false, has_written = false;
    for (int i = 0; i < 3; ++i) {
      StepTensor &tensor = i == 0 ? drawn_.q : i == 1 ? drawn_.k : drawn_.v;
      if (tensor.heads < 0) continue;
      if (chance(40)) tensor.out = StepOut::Own;
      if (tensor.out == StepOut::Own && saw_if(chance(70), "8-bit out")) tensor.out_dtype = code();
      const bool is_cached = drawn_.cache && (i == 1 ? drawn_.cache->has_k : i == 2 && drawn_.cache->has_v);
      const rope_dtype_t cached = !is_cached ? 0 : i == 1 ? drawn_.cache->k_dtype : drawn_.cache->v_dtype;
      const bool has_out = tensor.out == StepOut::Own && oracle::is_code(tensor.out_dtype);
      if (!has_out && !oracle::is_code(cached)) continue;
      has_codes = true;
      // A scale would be a group, and with a group v is not turned.
      if (v_is_turned_ || chance(15)) continue;
      if (chance(60)) {
        const bool has_code_cache = is_cached && oracle::is_code(cached);
        draw_scales(has_out, has_code_cache, &tensor);
        has_written = true;
        continue;
      }
      saw("scale");
      tensor.scale = saw_if(chance(40), "scale by head") && tensor.heads > 0 ? Scale::ByHead : Scale::One;
      tensor.scale_placement = placement(1, true);
    }
    if (drawn_.cache && drawn_.cache->has_k_pass && saw_if(chance(90), "8-bit pass cache")) {
      StepCache &cache = *drawn_.cache;
      cache.k_pass_dtype = code();
      has_codes = true;
      if (saw_if(chance(50), "written scales of a pass")) {
        draw_cache_scales(width_of(drawn_.k) - drawn_.rotary_dim, &cache.k_pass_scales, &cache.k_pass_placement);
        has_written = true;
      } else if (saw_if(chance(60), "scale of a pass")) {
        cache.k_pass_scale = chance(50) ? Scale::One : Scale::ByHead;
      }
    }
    if (!has_codes) return;
    if (saw_if(chance(30), "rounded first")) drawn_.quant_rounding = ROPE_QUANT_ROUND_FIRST;
    if (v_is_turned_) return;
    if (saw_if(chance(40), "scale multiplies")) drawn_.quant_flags = ROPE_QUANT_FLAG_SCALE_MULTIPLIES;
    drawn_.has_odd_scales = saw_if(chance(15), "odd scales");
    drawn_.has_amax = saw_if(chance(40), "amax");
    if (!has_written) return;
    if (saw_if(chance(40), "powers of two")) drawn_.quant_flags |= ROPE_QUANT_FLAG_POWER_OF_TWO;
    if (saw_if(chance(40), "scale floor")) drawn_.scale_floor = one_of({1e-12, 0.3, 10.0, 1e-44, 3e38});
  }

  // Codes of an output, of a cache, or of both.
  void draw_scales(bool has_out, bool has_cache, StepTensor *tensor) {
    const int64_t drawn = between(1, 3);
    const int32_t width = width_of(*tensor);
    if (has_out && (!has_cache || (drawn & 1) != 0)) {
      saw("written out scales");
      tensor->out_scales = scales(width, is_thd());
      tensor->out_scales.placement = placement((is_thd() ? 3 : 4) + (tensor->out_scales.is_split ? 1 : 0), false);
    }
    if (!has_cache || (has_out && (drawn & 2) == 0)) return;
    saw("written cache scales");
    const bool is_k = tensor == &drawn_.k;
    draw_cache_scales(is_k && drawn_.cache->has_k_pass ? drawn_.rotary_dim : width, &tensor->cache_scales,
                      is_k ? &drawn_.cache->k_placement : &drawn_.cache->v_placement);
  }

  void draw_cache_scales(int32_t width, WrittenScales *drawn, Placement *of_cache) {
    *drawn = scales(width, false);
    const CacheStorage storage = drawn_.cache->storage;
    const bool is_alone = storage == CacheStorage::Separate || storage == CacheStorage::HeadsFirst;
    drawn->is_inline = is_alone && saw_if(chance(50), "inline scales");
    if (!drawn->is_inline) {
      drawn->placement = placement(4, false);
    } else if (drawn->dtype == ROPE_DTYPE_F32) {
      // They must be aligned in the rows of codes.
      *of_cache = Placement().gap(2, one_of<int64_t>({0, 4, 12})).gap(1, one_of<int64_t>({0, 8}));
    }
  }

  WrittenScales scales(int32_t width, bool may_split) {
    WrittenScales scales;
    scales.dtype = saw_if(chance(50), "E8M0 scales") ? ROPE_DTYPE_F8_E8M0 : ROPE_DTYPE_F32;
    scales.is_split = may_split && width % 4 == 0 && saw_if(chance(90), "split scales");
    std::vector<int> divisors;
    for (int groups = scales.is_split ? 4 : 1; groups <= width; groups += scales.is_split ? 4 : 1) {
      if (width % groups == 0) divisors.push_back(groups);
    }
    scales.groups = divisors[random_.below(static_cast<int64_t>(divisors.size()))];
    if (scales.groups > 1) saw("scales of groups");
    return scales;
  }

  // Backward has no caches, codes or parts.
  void draw_direction() {
    bool is_forward_alone = drawn_.cache || drawn_.has_amax;
    StepTensor *const tensors[] = {&drawn_.q, &drawn_.k, &drawn_.v};
    for (const StepTensor *tensor : tensors) {
      is_forward_alone = is_forward_alone || tensor->has_pass || oracle::is_code(tensor->out_dtype);
    }
    if (is_forward_alone || !saw_if(chance(60), "backward")) return;
    drawn_.direction = Direction::Backward;
    if (drawn_.norm != 0) draw_norm_gradients();
    if (!saw_if(chance(60), "accumulated")) return;
    drawn_.flags |= ROPE_FLAG_ACCUMULATE;
    for (StepTensor *tensor : tensors) tensor->out = StepOut::Own;
  }

  void draw_norm_gradients() {
    for (int i = 0; i < 3; ++i) {
      StepTensor &tensor = i == 0 ? drawn_.q : i == 1 ? drawn_.k : drawn_.v;
      const int32_t bits = drawn_.norm_tensors ? drawn_.norm_tensors : 3;
      if (tensor.heads < 0 || (bits >> i & 1) == 0) continue;
      saw("norm gradient");
      tensor.norm_in_placement = placement(is_thd() ? 3 : 4, true);
      if (i == 2) continue;
      tensor.has_grad_weight = saw_if(chance(70), "gradient of a weight");
      tensor.has_grad_bias = saw_if(drawn_.norm == ROPE_NORM_LAYER && chance(60), "gradient of a bias");
      tensor.grads_by_head = saw_if(tensor.weight_by_head || chance(30), "gradients by head");
      tensor.runs = length(chance(20) ? 40 : 6);
      tensor.grad_placement = placement(tensor.grads_by_head ? 3 : 2, false);
    }
  }

  int32_t width_of(const StepTensor &of) const {
    const int32_t window = drawn_.rotary_dim ? drawn_.rotary_dim : drawn_.head_dim;
    return of.is_window ? window : of.width ? of.width : drawn_.head_dim;
  }

  // Each token gets the same value every time.
  auto values(int64_t low, int64_t high) {
    const uint64_t seed = random_.bits();
    return [=](int64_t axis, int64_t batch, int64_t token) {
      return low + Random(seed + static_cast<uint64_t>(axis * 1000003 + batch * 1009 + token)).below(high - low + 1);
    };
  }

  void draw_angles() {
    const bool is_unrotated = (drawn_.flags & ROPE_FLAG_UNROTATED) != 0;
    if (chance(30)) drawn_.attention_scale = random_.uniform(0.5, 2);
    int64_t rows = 200000;
    if (!is_unrotated && chance(60)) {
      saw("table");
      rows = drawn_.table_rows = length(10);
      drawn_.table_dtype = one_of<rope_dtype_t>({ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64});
      drawn_.wide_table = saw_if(chance(25), "wide table");
      drawn_.table_by_token = saw_if(chance(30), "table by token");
      if (drawn_.table_by_token) return;
    } else {
      saw("computed");
    }
    if (chance(70)) drawn_.positions = values(-2, chance(80) ? rows + 1 : rows - 1);
    if (chance(30)) {
      for (int64_t i = 0; i < sequences(); ++i) drawn_.start_positions.push_back(between(-1, 3));
    }
    if (chance(30)) drawn_.position_offset = between(-2, 2);
  }

  std::vector<int64_t> list(int64_t count, int64_t low, int64_t high) {
    std::vector<int64_t> entries(count);
    for (int64_t &entry : entries) entry = between(low, high);
    return entries;
  }

  void draw_cache() {
    const bool may_k = drawn_.k.heads > 0, may_v = drawn_.v.heads > 0;
    if ((!may_k && !may_v) || chance(25)) return;
    StepCache &cache = drawn_.cache.emplace();
    cache.has_k = may_k && (!may_v || chance(75));
    cache.has_v = may_v && (!cache.has_k || chance(75));
    if (cache.has_k) saw("k cached");
    if (cache.has_v) saw("v cached");
    cache.pages = length(6);
    cache.entries = length(5);
    if (drawn_.dtype == ROPE_DTYPE_F32) {
      cache.k_dtype = one_of<rope_dtype_t>({0, ROPE_DTYPE_F16, ROPE_DTYPE_BF16});
      cache.v_dtype = one_of<rope_dtype_t>({0, ROPE_DTYPE_F16, ROPE_DTYPE_BF16});
      if (cache.k_dtype || cache.v_dtype) saw("16-bit cache");
    }
    if (cache.has_k && cache.has_v && drawn_.k.heads == drawn_.v.heads && width_of(drawn_.k) == width_of(drawn_.v)) {
      cache.v_dtype = cache.k_dtype;
      cache.storage = one_of({CacheStorage::Stacked, CacheStorage::SideBySide});
      saw(cache.storage == CacheStorage::Stacked ? "stacked" : "side by side");
    } else {
      if (saw_if(chance(30), "heads first")) cache.storage = CacheStorage::HeadsFirst;
      cache.k_placement = placement(4, false);
      cache.v_placement = placement(4, false);
    }
    if (saw_if(chance(20), "skip slot 0")) cache.flags = ROPE_CACHE_FLAG_SKIP_SLOT_0;
    cache.integer_dtype = one_of<rope_dtype_t>({ROPE_DTYPE_I32, ROPE_DTYPE_I64});
    draw_places(&cache);
    if (!cache.has_k) return;
    if (drawn_.k.has_pass && chance(50)) drawn_.k.out = StepOut::Absent;
    const bool is_alone = cache.storage == CacheStorage::Separate || cache.storage == CacheStorage::HeadsFirst;
    const int32_t window = drawn_.rotary_dim ? drawn_.rotary_dim : drawn_.head_dim;
    if (!is_alone || window == width_of(drawn_.k) || !saw_if(chance(80), "k cached in parts")) return;
    cache.has_k_pass = true;
    cache.k_pass_dtype = drawn_.dtype == ROPE_DTYPE_F32 && chance(40) ? ROPE_DTYPE_BF16 : 0;
    cache.k_pass_placement = placement(4, false);
  }

  void draw_places(StepCache *cache) {
    const int64_t slots = cache->pages * cache->entries;
    int64_t count = batches() * drawn_.tokens;
    const bool is_shorter = is_thd() && chance(30);
    if (is_shorter) count = random_.below(count + 1);
    if (chance(50)) {
      saw("slots");
      if (is_shorter) saw("fewer slots");
      cache->slots = list(count, -2, slots + 1);
      return;
    }
    const bool has_sequence = saw_if(chance(40), "sequence");
    const int64_t rows = has_sequence ? between(0, 4) : sequences();
    if (saw_if(chance(50), "page_indptr")) {
      cache->page_list = list(between(0, 8), -1, cache->pages);
      cache->page_indptr = list(rows + 1, 0, static_cast<int64_t>(cache->page_list->size()));
      if (chance(70)) std::sort(cache->page_indptr->begin(), cache->page_indptr->end());
    } else {
      saw("page_table");
      cache->page_table.emplace();
      cache->table_columns = has_ones_ && chance(50) ? 1 : between(0, 4);
      for (int64_t i = 0; i < rows; ++i) {
        cache->page_table->push_back(list(cache->table_columns, -1, cache->pages));
      }
    }
    // Not both a negative number and one past the end: the contract does not state which of the two counts.
    if (has_sequence) cache->sequence = list(count, chance(50) ? -1 : 0, rows);
    const bool needs_positions = drawn_.num_axes > 1 || drawn_.table_by_token;
    if (needs_positions || saw_if(chance(40), "cache positions")) {
      cache->positions = list(count, -1, 4 * cache->entries);
    }
  }

  Random random_;
  Coverage *coverage_;
  StepCase drawn_;
  bool has_ones_ = false, has_pieces_ = false, v_is_turned_ = false;
};

int64_t from_environment(const char *name, int64_t otherwise) {
  const char *text = std::getenv(name);
  return text && *text ? std::strtoll(text, nullptr, 10) : otherwise;
}

void check_part(int part) {
  const int64_t cases = from_environment("ROPE_STEP_CASES", 600);
  const int64_t seed = from_environment("ROPE_STEP_SEED", 20261123);
  Coverage coverage;
  int64_t count = 0;
  for (int64_t i = part; i < cases; i += parts, ++count) {
    INFO("ROPE_STEP_CASES=1 ROPE_STEP_SEED=" << seed + i);
    Draw(static_cast<uint64_t>(seed + i), &coverage).step().check();
  }
  if (count < 300) return;
  for (const std::string &feature : features) {
    INFO(feature << " in " << count << " draws");
    CHECK(coverage[feature] >= 2);
  }
}

}  // namespace

TEST_CASE("random steps, part 1 of 2", "[rope][step][random]") {
  check_part(0);
}

TEST_CASE("random steps, part 2 of 2", "[rope][step][random]") {
  check_part(1);
}
