// SPDX-License-Identifier: Apache-2.0
// rope_random_tests.cpp - seeded random requests that cover everything in rope_args and rope_config
//
// ROPE_RANDOM_CASES is the number of cases (2000), ROPE_RANDOM_SEED the first seed. A failing case prints its seed, and
//   ROPE_RANDOM_CASES=1 ROPE_RANDOM_SEED=<that> rope_api_tests "[random]"
// runs it alone.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "support/cases.hpp"

namespace {

constexpr int parts = 4;

// The features that a draw may have. Each 500 draws must contain every feature more than once.
const std::vector<std::string> features = {"F32",
                                           "F16",
                                           "BF16",
                                           "F64",
                                           "BSHD",
                                           "SBHD",
                                           "BHSD",
                                           "THD",
                                           "HALF",
                                           "INTERLEAVED",
                                           "HALF to INTERLEAVED",
                                           "INTERLEAVED to HALF",
                                           "rounding each",
                                           "pair_block",
                                           "partial window",
                                           "odd rotary_offset",
                                           "wide head",
                                           "lengths of 1",
                                           "many tokens",
                                           "theta",
                                           "theta below 1",
                                           "inv_freq",
                                           "attention_scale",
                                           "negative attention_scale",
                                           "q alone",
                                           "q and k",
                                           "q, k and v",
                                           "no heads",
                                           "no tokens",
                                           "no batches",
                                           "in place",
                                           "out of place",
                                           "mixed places",
                                           "packed",
                                           "axis order",
                                           "gap",
                                           "reversed",
                                           "misaligned",
                                           "expanded input",
                                           "implicit strides",
                                           "no positions",
                                           "positions I32",
                                           "positions I64",
                                           "positions per token",
                                           "positions per batch and token",
                                           "positions that batches share",
                                           "positions that axes share",
                                           "positions small",
                                           "positions of 32 bits",
                                           "positions of 64 bits",
                                           "start_positions per batch",
                                           "start_positions per token",
                                           "start_positions per batch and token",
                                           "position_offset",
                                           "one axis",
                                           "two axes",
                                           "three axes",
                                           "four axes",
                                           "eight axes",
                                           "several axes without pair_axis",
                                           "cu_seqlens I32",
                                           "cu_seqlens I64",
                                           "empty sequence",
                                           "padding",
                                           "start_positions of sequences",
                                           "tables by position",
                                           "tables by token",
                                           "tables by batch",
                                           "tables by axis",
                                           "tables of one axis",
                                           "empty table",
                                           "W = R/2",
                                           "W = R",
                                           "W = R/(2A)",
                                           "separate tables",
                                           "side by side tables",
                                           "alternating tables",
                                           "tables F32",
                                           "tables F16",
                                           "tables BF16",
                                           "tables F64",
                                           "angles F32",
                                           "angles F16",
                                           "angles BF16",
                                           "angles by position",
                                           "angles by token",
                                           "huge angles",
                                           "fault",
                                           "fault that begins above 0"};

using Coverage = std::map<std::string, int64_t>;

class Draw {
 public:
  Draw(uint64_t seed, Coverage *coverage) : random_(seed * 0x9E3779B97F4A7C15u + 1), coverage_(coverage) {}

  RopeCase request() {
    draw_types();
    draw_sizes();
    draw_window();
    draw_operands();
    draw_sequences();
    draw_angles();
    if (chance(8)) {
      saw("rounding each");
      drawn_.rounding_each();
    } else if (!is_large_) {
      drawn_.adjoint();
    }
    return drawn_;
  }

 private:
  void saw(const std::string &feature) {
    const bool is_listed = std::find(features.begin(), features.end(), feature) != features.end();
    INFO(feature);
    CHECK(is_listed);
    ++(*coverage_)[feature];
  }

  bool chance(int percent) { return random_.below(100) < percent; }
  int64_t between(int64_t low, int64_t high) { return low + random_.below(high - low + 1); }
  template <class Value>
  Value one_of(std::initializer_list<Value> values) {
    return values.begin()[random_.below(static_cast<int64_t>(values.size()))];
  }

  // The length of an axis. In half of the requests it is 1 with odds of a half.
  int64_t length(int64_t most) { return has_ones_ && chance(50) ? 1 : between(1, most); }

  bool is_thd() const { return layout_ == ROPE_LAYOUT_THD; }

  void draw_types() {
    dtype_ = one_of<rope_dtype_t>({ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64});
    saw(oracle::dtype_name(dtype_));
    layout_ = one_of<rope_layout_t>({ROPE_LAYOUT_BSHD, ROPE_LAYOUT_SBHD, ROPE_LAYOUT_BHSD, ROPE_LAYOUT_THD});
    static const char *const layouts[] = {"", "BSHD", "SBHD", "BHSD", "THD"};
    saw(layouts[layout_]);
    const auto style = one_of<rope_style_t>({ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED});
    const auto out_style = chance(50) ? 0 : one_of<rope_style_t>({ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED});
    saw(style == ROPE_STYLE_HALF ? "HALF" : "INTERLEAVED");
    if (out_style && out_style != style) {
      saw(style == ROPE_STYLE_HALF ? "HALF to INTERLEAVED" : "INTERLEAVED to HALF");
    }
    has_half_ = style == ROPE_STYLE_HALF || out_style == ROPE_STYLE_HALF;
    drawn_.dtype(dtype_).layout(layout_).style(style).out_style(out_style);
    if (chance(10)) drawn_.normal_data();
  }

  void draw_sizes() {
    has_ones_ = chance(50);
    if (has_ones_) saw("lengths of 1");
    batch_ = chance(3) ? 0 : length(3);
    tokens_ = chance(3) ? 0 : length(is_thd() ? 12 : 7);
    is_large_ = chance(2);
    if (is_large_) {
      // Enough bytes for several CPU threads.
      batch_ = 1;
      tokens_ = between(300, 400);
      saw("many tokens");
    }
    if (batch_ == 0 && !is_thd()) saw("no batches");
    if (tokens_ == 0) saw("no tokens");
    drawn_.batch(batch_).tokens(tokens_);
    num_axes_ = chance(55) ? 1 : chance(10) ? 8 : static_cast<int32_t>(between(2, 4));
    static const std::map<int32_t, const char *> axes = {
        {1, "one axis"}, {2, "two axes"}, {3, "three axes"}, {4, "four axes"}, {8, "eight axes"}};
    saw(axes.at(num_axes_));
  }

  void draw_window() {
    if (is_large_) {
      head_dim_ = one_of<int32_t>({64, 66});
    } else if (chance(40)) {
      head_dim_ = one_of<int32_t>({8, 16, 32, 64, 128});
    } else {
      head_dim_ = static_cast<int32_t>(2 * between(1, chance(15) ? 128 : 48));
    }
    if (head_dim_ > 96) saw("wide head");
    width_ = head_dim_;
    int32_t rotary_dim = 0, rotary_offset = 0;
    if (chance(60)) {
      const int32_t step = chance(50) && head_dim_ >= 2 * num_axes_ ? 2 * num_axes_ : 2;
      rotary_dim = width_ = static_cast<int32_t>(step * between(1, head_dim_ / step));
      rotary_offset = static_cast<int32_t>(between(0, head_dim_ - rotary_dim));
      if (rotary_dim < head_dim_) saw("partial window");
      if (rotary_offset % 2) saw("odd rotary_offset");
    }
    drawn_.head_dim(head_dim_).rotary_dim(rotary_dim).rotary_offset(rotary_offset);
    if (has_half_ && chance(40)) {
      std::vector<int32_t> blocks;
      for (int32_t block = 2; block <= width_; block += 2) {
        if (width_ % block == 0) blocks.push_back(block);
      }
      drawn_.pair_block(blocks[random_.below(static_cast<int64_t>(blocks.size()))]);
      saw("pair_block");
    }
    std::vector<int32_t> pair_axis;
    if (num_axes_ > 1 ? chance(85) : chance(10)) {
      for (int32_t pair = 0; pair < width_ / 2; ++pair) {
        pair_axis.push_back(static_cast<int32_t>(random_.below(num_axes_)));
      }
    } else if (num_axes_ > 1) {
      saw("several axes without pair_axis");
    }
    drawn_.axes(num_axes_ == 1 && chance(50) ? 0 : num_axes_, pair_axis);
  }

  Placement placement(int rank, bool is_input) {
    Placement placement;
    if (chance(40)) {
      if (!chance(20)) return placement;
      saw("implicit strides");
      return placement.implicit();
    }
    if (chance(40)) {
      std::vector<int> order(rank);
      std::iota(order.begin(), order.end(), 0);
      for (int i = rank - 1; i > 0; --i) std::swap(order[i], order[random_.below(i + 1)]);
      placement.order(order);
      saw("axis order");
    }
    for (int axis = 0; axis < rank; ++axis) {
      if (chance(20)) {
        placement.gap(axis, one_of<int64_t>({1, 2, 3, 8}));
        saw("gap");
      }
      if (chance(10)) {
        placement.reversed(axis);
        saw("reversed");
      }
    }
    if (chance(30)) {
      placement.at(between(1, 7));
      saw("misaligned");
    }
    if (is_input && chance(15)) {
      placement.expanded(static_cast<int>(random_.below(rank)));
      saw("expanded input");
    }
    return placement;
  }

  void draw_operands() {
    const int count = is_large_ || chance(35) ? 1 : chance(60) ? 2 : 3;
    int64_t heads[3] = {};
    for (int i = 0; i < count; ++i) {
      heads[i] = is_large_   ? one_of<int64_t>({13, 16})
                 : chance(5) ? 0
                 : has_ones_ && chance(50)
                     ? 1
                     : one_of<int64_t>(head_dim_ > 96 ? std::initializer_list<int64_t>{1, 2, 3}
                                                      : std::initializer_list<int64_t>{1, 2, 3, 5, 7});
      if (heads[i] == 0) saw("no heads");
    }
    if (count == 1) drawn_.heads(heads[0]);
    if (count == 2) drawn_.heads(heads[0], heads[1]);
    if (count == 3) drawn_.heads(heads[0], heads[1], heads[2]);
    static const char *const counts[] = {"", "q alone", "q and k", "q, k and v"};
    saw(counts[count]);
    bool in_place[3] = {chance(50), chance(50), chance(50)};
    if (chance(20)) {
      in_place[1] = in_place[2] = in_place[0];
      drawn_.packed();
      saw("packed");
    }
    drawn_.in_place(in_place[0], in_place[1], in_place[2]);
    saw(in_place[0] ? "in place" : "out of place");
    if (count > 1 && in_place[0] != in_place[1]) saw("mixed places");
    const int rank = is_thd() ? 3 : 4;
    const auto in = [&](int operand) { return placement(rank, !in_place[operand]); };
    const auto out = [&] { return placement(rank, false); };
    drawn_.q_placed(in(0), out()).k_placed(in(1), out()).v_placed(in(2), out());
  }

  void draw_sequences() {
    if (!is_thd() || chance(35)) return;
    sequences_ = chance(3) ? 0 : length(5);
    const int64_t used = chance(50) ? tokens_ : random_.below(tokens_ + 1);
    std::vector<int64_t> ends;
    for (int64_t i = 1; i < sequences_; ++i) ends.push_back(random_.below(used + 1));
    std::sort(ends.begin(), ends.end());
    ends.insert(ends.begin(), 0);
    if (sequences_ > 0) ends.push_back(used);
    for (int64_t i = 0; i < sequences_; ++i) {
      if (ends[i] != ends[i + 1]) continue;
      saw("empty sequence");
      break;
    }
    if (ends.back() < tokens_) saw("padding");
    const auto dtype = one_of<rope_dtype_t>({ROPE_DTYPE_I32, ROPE_DTYPE_I64});
    saw(std::string("cu_seqlens ") + oracle::dtype_name(dtype));
    drawn_.sequences(ends, dtype, integer_placement(1, false));
  }

  // Strides may be implicit for one axis; axes may be expanded if the values are arbitrary.
  Placement integer_placement(int rank, bool any_values) {
    return chance(50) ? Placement() : placement(rank, any_values);
  }

  // The value depends only on the place, so that it is the same in every tensor of the call.
  AxisPositionValue values(int64_t low, int64_t high) {
    const uint64_t seed = random_.bits();
    return [=](int64_t axis, int64_t batch, int64_t token) {
      Random random(seed + static_cast<uint64_t>(axis * 1000003 + batch * 1009 + token));
      const uint64_t span = static_cast<uint64_t>(high) - static_cast<uint64_t>(low) + 1;
      const uint64_t step = span == 0 ? random.bits() : random.bits() % span;
      return static_cast<int64_t>(static_cast<uint64_t>(low) + step);
    };
  }

  PositionShape each_token() { return chance(50) ? PositionShape::PerToken : PositionShape::PerBatchAndToken; }

  int position_rank(PositionShape shape) const {
    if (shape == PositionShape::PerBatch) return 1;
    return (shape == PositionShape::PerToken ? 1 : 2) + (num_axes_ > 1 ? 1 : 0);
  }

  void draw_positions(int64_t low, int64_t high) {
    if (chance(30)) {
      saw("no positions");
      return;
    }
    const bool fits = low >= std::numeric_limits<int32_t>::min() && high <= std::numeric_limits<int32_t>::max();
    const rope_dtype_t dtype = fits && chance(60) ? ROPE_DTYPE_I32 : ROPE_DTYPE_I64;
    const PositionShape shape = each_token();
    saw(std::string("positions ") + oracle::dtype_name(dtype));
    saw(shape == PositionShape::PerToken ? "positions per token" : "positions per batch and token");
    drawn_.axis_positions(shape, dtype, values(low, high), integer_placement(position_rank(shape), true));
    if (!chance(25)) return;
    const bool by_axes = num_axes_ > 1 && chance(50);
    drawn_.shared_positions(!by_axes || chance(50), by_axes);
    saw(by_axes ? "positions that axes share" : "positions that batches share");
  }

  void draw_start_positions(int64_t low, int64_t high) {
    if (chance(60)) return;
    const bool fits = low >= std::numeric_limits<int32_t>::min() && high <= std::numeric_limits<int32_t>::max();
    const rope_dtype_t dtype = fits && chance(60) ? ROPE_DTYPE_I32 : ROPE_DTYPE_I64;
    std::vector<PositionShape> shapes = {PositionShape::PerBatch, PositionShape::PerBatchAndToken};
    if (is_thd()) {
      // If there are as many tokens as sequences, rank 1 means one entry per sequence.
      if (num_axes_ > 1 || sequences_ != tokens_) shapes.push_back(PositionShape::PerToken);
    } else if (num_axes_ > 1) {
      shapes.push_back(PositionShape::PerToken);
    }
    const PositionShape shape = shapes[random_.below(static_cast<int64_t>(shapes.size()))];
    static const char *const names[] = {"start_positions per token", "start_positions per batch and token",
                                        "start_positions per batch"};
    saw(names[static_cast<int>(shape)]);
    if (shape == PositionShape::PerBatch && sequences_ > 1) saw("start_positions of sequences");
    drawn_.axis_start_positions(shape, dtype, values(low, high), integer_placement(position_rank(shape), true));
  }

  void draw_offset(int64_t low, int64_t high) {
    if (chance(60)) return;
    drawn_.position_offset(values(low, high)(0, 0, 0));
    saw("position_offset");
  }

  void draw_frequencies() {
    if (chance(30)) {
      std::vector<double> inv_freq;
      for (int32_t pair = 0; pair < width_ / 2; ++pair) {
        const double size = std::pow(10, random_.uniform(-10, fast_ ? 2 : 0));
        inv_freq.push_back(chance(5) ? 0 : chance(20) ? -size : size);
      }
      drawn_.inv_freq(inv_freq);
      saw("inv_freq");
    } else if (fast_ && chance(30)) {
      drawn_.theta(random_.uniform(0.01, 1));
      saw("theta below 1");
    } else {
      drawn_.theta(chance(50) ? 10000 : std::pow(10, random_.uniform(0, 9)));
      saw("theta");
    }
  }

  void draw_scale() {
    if (chance(60)) return;
    const double scale = random_.uniform(0.25, 3);
    saw("attention_scale");
    if (chance(25)) {
      drawn_.attention_scale(-scale);
      saw("negative attention_scale");
    } else {
      drawn_.attention_scale(scale);
    }
  }

  void draw_angles() {
    draw_scale();
    if (chance(50)) {
      draw_fault();
    }
    const int64_t kind = random_.below(100);
    if (kind < 40) {
      draw_computed();
    } else {
      draw_rows(kind >= 75);
    }
  }

  void draw_fault() {
    if (chance(50)) {
      drawn_.fault();
      saw("fault");
    } else {
      drawn_.fault(between(1, 1000), between(1, 20));
      saw("fault that begins above 0");
    }
  }

  // The oracle is accurate while frequency * position is below 2^62.
  void draw_computed() {
    struct Range {
      const char *name;
      int64_t low, high;
    };
    constexpr int64_t first32 = std::numeric_limits<int32_t>::min(), last32 = std::numeric_limits<int32_t>::max();
    constexpr int64_t first64 = std::numeric_limits<int64_t>::min(), last64 = std::numeric_limits<int64_t>::max();
    fast_ = chance(25);
    const Range range = fast_ || chance(60) ? Range{"positions small", -1000, 200000}
                        : chance(60)        ? Range{"positions of 32 bits", first32, last32}
                        : chance(50)        ? Range{"positions of 64 bits", -(int64_t{1} << 50), int64_t{1} << 50}
                                            : Range{"positions of 64 bits", first64, last64};
    saw(range.name);
    draw_frequencies();
    draw_positions(range.low, range.high);
    draw_start_positions(range.low, range.high);
    draw_offset(range.low, range.high);
  }

  void draw_rows(bool are_angles) {
    const bool by_token = chance(40);
    const bool by_batch = by_token && !is_thd() && chance(50);
    drawn_.theta(chance(50) ? 0 : 10000);
    std::vector<TableWidth> widths = {TableWidth::Pairs, TableWidth::Channels};
    if (width_ % (2 * num_axes_) == 0) widths.insert(widths.end(), 2, TableWidth::Repeated);
    const TableWidth width = widths[random_.below(static_cast<int64_t>(widths.size()))];
    static const char *const names[] = {"W = R/2", "W = R", "W = R/(2A)"};
    saw(names[static_cast<int>(width)]);
    drawn_.table_width(width);

    int rank = 2 + (by_batch ? 1 : 0);
    if (num_axes_ > 1 && chance(60)) {
      const bool shared = chance(20);
      drawn_.tables_by_axis(shared);
      saw(shared ? "tables of one axis" : "tables by axis");
      ++rank;
    } else if (num_axes_ > 1 && by_token) {
      ++rank;
    }

    TableStorage storage = TableStorage::Separate;
    if (are_angles) {
      const auto dtype = one_of<rope_dtype_t>({ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16});
      saw(std::string("angles ") + oracle::dtype_name(dtype));
      saw(by_token ? "angles by token" : "angles by position");
      const double max_angle = one_of<double>({3.0, 100.0, 6e4, 1e9, 1e38});
      if (max_angle > 1e6 && dtype != ROPE_DTYPE_F16) saw("huge angles");
      drawn_.table_dtype(dtype).angles(dtype == ROPE_DTYPE_F16 ? std::fmin(max_angle, 6e4) : max_angle);
    } else {
      const auto dtype = one_of<rope_dtype_t>({ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64});
      saw(std::string("tables ") + oracle::dtype_name(dtype));
      saw(by_batch ? "tables by batch" : by_token ? "tables by token" : "tables by position");
      storage = one_of<TableStorage>({TableStorage::Separate, TableStorage::SideBySide, TableStorage::Alternating});
      static const char *const storages[] = {"separate tables", "side by side tables", "alternating tables"};
      saw(storages[static_cast<int>(storage)]);
      drawn_.table_dtype(dtype);
      if (storage == TableStorage::Alternating && rank < 4) ++rank;
    }

    const Placement cos = placement(rank, true), sin = placement(rank, true);
    if (by_token) {
      drawn_.tables_by_token(by_batch, storage, cos, sin);
      return;
    }
    const int64_t rows = chance(10) ? 0 : length(12);
    if (rows == 0) saw("empty table");
    drawn_.tables(rows, storage, cos, sin);
    constexpr int64_t far = int64_t{1} << 62;
    if (chance(10)) {
      draw_positions(-far, far);
    } else {
      const int64_t outside = chance(50) ? 0 : 2;
      draw_positions(-outside, rows - 1 + outside);
    }
    draw_start_positions(-1, 1);
    draw_offset(-2, 2);
  }

  Random random_;
  Coverage *coverage_;
  RopeCase drawn_;
  rope_dtype_t dtype_ = 0;
  rope_layout_t layout_ = 0;
  bool has_ones_ = false, is_large_ = false, has_half_ = false, fast_ = false;
  int64_t batch_ = 0, tokens_ = 0, sequences_ = -1;
  int32_t head_dim_ = 0, width_ = 0, num_axes_ = 0;
};

int64_t from_environment(const char *name, int64_t otherwise) {
  const char *text = std::getenv(name);
  return text && *text ? std::strtoll(text, nullptr, 10) : otherwise;
}

void check_part(int part) {
  const int64_t cases = from_environment("ROPE_RANDOM_CASES", 2000);
  const int64_t seed = from_environment("ROPE_RANDOM_SEED", 20250101);
  Coverage coverage;
  int64_t count = 0;
  for (int64_t i = part; i < cases; i += parts, ++count) {
    INFO("ROPE_RANDOM_CASES=1 ROPE_RANDOM_SEED=" << seed + i);
    const RopeCase request = Draw(static_cast<uint64_t>(seed + i), &coverage).request();
    request.check();
  }
  if (count < 400) return;
  for (const std::string &feature : features) {
    INFO(feature << " in " << count << " draws");
    CHECK(coverage[feature] >= 2);
  }
}

}  // namespace

TEST_CASE("random requests, part 1 of 4", "[rope][random]") {
  check_part(0);
}

TEST_CASE("random requests, part 2 of 4", "[rope][random]") {
  check_part(1);
}

TEST_CASE("random requests, part 3 of 4", "[rope][random]") {
  check_part(2);
}

TEST_CASE("random requests, part 4 of 4", "[rope][random]") {
  check_part(3);
}
