// SPDX-License-Identifier: Apache-2.0
// rope_long_tests.cpp - launches that are long on any GPU, for all problems that the kernels of long launches accept
//
// RopeCase would take seconds for each. Here each element is converted once, and only elements that are not clearly the
// nearest value are compared with the tolerance. Gaps between tokens and heads, channels outside the window and the
// heads of v, which is not rotated, are parts of NaNs and must not change.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "support/device.hpp"
#include "support/tolerance.hpp"

namespace {

// Sizes of launches from a table, for which there are several kernels.
enum class Size {
  kUsual,
  kFitsCache,  // so few tokens that on GPUs from sm_90 on a thread has several units
  kMany        // so many tokens that these GPUs have long launches, too
};

// The number of 16-byte vectors, one for each unit, that makes a launch long on a GPU of up to 160 multiprocessors.
// Without a GPU, a quarter is enough for several threads.
int64_t many_vectors(bool has_table, Size size) {
  if (!has_cuda()) return int64_t{40} * (has_table ? 2600 : 1000);
  return int64_t{160} * (!has_table ? 1000 : size == Size::kUsual ? 2600 : size == Size::kMany ? 10000 : 1900);
}

constexpr int64_t table_rows = 50;
constexpr rope_dtype_t none = 0;

enum class Operands {
  kSeparate,
  kPacked  // heads of q, k and v in one tensor
};

// The order of a tensor's axes in memory, whatever its layout.
enum class Order {
  kBshd,
  kSbhd,
  kBhsd
};

struct Request {
  rope_dtype_t dtype;
  rope_style_t style;
  int64_t q_heads, k_heads;
  int32_t head_dim, rotary_dim, rotary_offset;
  bool is_in_place;
  Operands operands;
  rope_dtype_t table, positions;  // 0: none
  int64_t batches = 1;            // with common positions
  Order order = Order::kBshd;
  bool has_other_out_style = false;
  enum {
    kByPosition,
    kByToken,
    kByBatchAndToken
  } rows = kByPosition;
  Size size = Size::kUsual;

  int pairs() const { return rotary_dim / 2; }
  int64_t heads() const { return q_heads + k_heads; }
  // Per batch; an odd number, so that the last block has idle rows.
  int64_t tokens() const {
    const int64_t vectors_per_token = batches * heads() * pairs() / 8;
    return (many_vectors(table != 0, size) / vectors_per_token + 2) | 1;
  }

  bool has_rows_of_tokens() const { return rows != kByPosition; }
  // The number of rows of the tables.
  int64_t num_rows() const {
    return !has_rows_of_tokens() ? table_rows : rows == kByToken ? tokens() : batches * tokens();
  }

  std::string describe() const {
    std::ostringstream text;
    text << oracle::dtype_name(dtype) << (style == ROPE_STYLE_HALF ? " half" : " interleaved") << ", "
         << (order == Order::kBshd   ? "BSHD, "
             : order == Order::kSbhd ? "SBHD, "
                                     : "BHSD, ")
         << batches << " batches of " << tokens() << " tokens of " << q_heads << " + " << k_heads << " heads of "
         << head_dim << " channels, " << rotary_dim << " from " << rotary_offset
         << (is_in_place ? ", in place" : ", out of place") << (operands == Operands::kPacked ? ", packed" : "")
         << (has_other_out_style ? ", converted" : "");
    if (table) text << ", table " << oracle::dtype_name(table) << " of " << num_rows() << " rows";
    if (positions) text << ", positions " << oracle::dtype_name(positions);
    return text.str();
  }
};

// With a table, every third token has no row: its position is just behind the table, far behind it, negative or, for 64
// bits, one whose lower 32 bits alone would be a row.
int64_t position_at(const Request &request, int64_t token) {
  if (!request.positions) return token;
  constexpr int64_t int32_max = std::numeric_limits<int32_t>::max(), int64_max = std::numeric_limits<int64_t>::max();
  if (!request.table) return request.positions == ROPE_DTYPE_I64 ? (token - 500) * 123456789 : 13 * token - 70000;
  const int64_t narrow[] = {table_rows, -1, int32_max, -int32_max - 1, -table_rows, table_rows + 1};
  const int64_t wide[] = {
      table_rows, -1, int64_t{1} << 32, (int64_t{1} << 32) + 3, -(int64_t{1} << 32) + 3, int64_max, -int64_max - 1};
  const int64_t lost = token / 3;
  if (token % 3 != 1) return token * 7 % table_rows;
  return request.positions == ROPE_DTYPE_I64 ? wide[lost % 7] : narrow[lost % 6];
}

// Numbers of either sign from 2^-4 to 2^4.
void fill_heads(const rope_tensor_t &tensor, Random *random) {
  const bool is_half = tensor.dtype == ROPE_DTYPE_F16;
  const int mantissa_bits = is_half ? 10 : 7, min_exponent = is_half ? 11 : 123;
  const int64_t tokens = tensor.shape[1];
  for (int64_t token = 0; token < tensor.shape[0] * tokens; ++token) {
    for (int64_t head = 0; head < tensor.shape[2]; ++head) {
      auto *elements = static_cast<uint16_t *>(element_at(tensor, {token / tokens, token % tokens, head, 0}));
      uint64_t bits = 0;
      for (int64_t channel = 0; channel < tensor.shape[3]; ++channel) {
        bits = channel % 4 == 0 ? random->bits() : bits >> 16;
        const auto exponent = static_cast<unsigned>(min_exponent) + (bits >> 12 & 7u);
        elements[channel] =
            static_cast<uint16_t>((bits & 0x8000u) | exponent << mantissa_bits | (bits & ((1u << mantissa_bits) - 1)));
      }
    }
  }
}

class LongLaunch {
 public:
  explicit LongLaunch(const Request &request) : request_(request), workspace_(91) {
    Placement placement;
    placement.gap(1, 16).gap(2, 8);
    if (request.order == Order::kSbhd) placement.order({1, 0, 2, 3});
    if (request.order == Order::kBhsd) placement.order({0, 2, 1, 3});
    const int64_t tokens = request.tokens();
    const bool is_packed = request.operands == Operands::kPacked;
    const auto make = [&](int64_t heads) {
      return workspace_.tensor(request.dtype, {request.batches, tokens, heads, request.head_dim}, placement);
    };
    const auto make_pair = [&](rope_tensor_t *q, rope_tensor_t *k) {
      if (is_packed) {
        const rope_tensor_t both = make(request.heads() + 2);  // includes two heads of v
        *q = narrow(both, 2, 0, request.q_heads);
        *k = narrow(both, 2, request.q_heads, request.k_heads);
      } else {
        *q = make(request.q_heads);
        if (request.k_heads > 0) *k = make(request.k_heads);
      }
    };
    make_pair(&args_.q, &args_.k);
    if (!request.is_in_place) make_pair(&args_.q_out, &args_.k_out);
    for (const rope_tensor_t *tensor : {&args_.q, &args_.k}) {
      if (tensor->ndim > 0) fill_heads(*tensor, &workspace_.random());
    }
    if (request.positions) {
      args_.positions = workspace_.tensor(request.positions, {tokens});
      workspace_.fill_integers(args_.positions, [&](const Index &index) { return position_at(request, index[0]); });
    }
    if (request.table) {
      // As columns of one cache.
      Placement rows;
      rows.gap(0, 8);
      const rope_tensor_t both = workspace_.tensor(request.table, {request.num_rows(), request.rotary_dim}, rows);
      args_.cos = of_batches(narrow(both, 1, 0, request.pairs()));
      args_.sin = of_batches(narrow(both, 1, request.pairs(), request.pairs()));
      if (request.has_rows_of_tokens()) args_.table_rows = ROPE_TABLE_BY_TOKEN;
      workspace_.fill(both, [&](const Index &) { return workspace_.random().uniform(-1, 1); });
    }
    workspace_.freeze();
  }

  void check() {
    INFO(request_.describe());
    for (const Direction direction : {Direction::Forward, Direction::Backward}) {
      std::vector<std::byte> first;
      for (const Device &device : devices()) {
        const bool is_cuda = device.kind == ROPE_DEVICE_CUDA;
        for (const bool has_flag : {false, true}) {
          if (has_flag && !is_cuda) continue;
          INFO(name_of(direction) << " on " << device << (has_flag ? ", programmatic" : ""));
          args_.flags = has_flag ? ROPE_FLAG_PROGRAMMATIC_LAUNCH : 0;
          const RopeDesc desc = create(config(device));
          if (is_cuda) check_kernel(desc);
          workspace_.restore();
          const rope_status_t status = run(device, desc.get(), direction, args_, workspace_);
          INFO(rope_last_error());
          REQUIRE(status == ROPE_STATUS_SUCCESS);
          if (first.empty()) {
            verify(direction);
            std::string where;
            const bool is_untouched = workspace_.untouched_elsewhere(&where);
            INFO(where);
            CHECK(is_untouched);
            first = workspace_.image();
          } else {
            CHECK(workspace_.guards_hold());
            const bool has_same_bits = workspace_.image() == first;
            CHECK(has_same_bits);
          }
        }
      }
    }
  }

 private:
  // Gives each batch its rows of a table, one batch after the other.
  rope_tensor_t of_batches(rope_tensor_t table) const {
    if (request_.rows != Request::kByBatchAndToken) return table;
    table.ndim = 3;
    for (int axis = 2; axis > 0; --axis) {
      table.shape[axis] = table.shape[axis - 1];
      table.stride[axis] = table.stride[axis - 1];
    }
    table.shape[0] = request_.batches;
    table.shape[1] = request_.tokens();
    table.stride[0] = request_.tokens() * table.stride[1];
    return table;
  }

  struct Angle {
    oracle::Rotation exact;
    double cos, sin;
    oracle::Real length, error;
  };

  rope_config_t config(const Device &device) const {
    rope_config_t config = rope_config_for(device, request_.head_dim);
    config.dtype = request_.dtype;
    config.style = request_.style;
    if (request_.has_other_out_style) config.out_style = oracle::other_style(request_.style);
    config.rotary_dim = request_.rotary_dim;
    config.rotary_offset = request_.rotary_offset;
    if (request_.table) config.theta = 0;
    return config;
  }

  void check_kernel(const RopeDesc &desc) const {
    char text[256] = "";
    REQUIRE(rope_explain(desc.get(), &args_, text, sizeof text) == ROPE_STATUS_SUCCESS);
    INFO(text);
    const char *of_angles =
        request_.has_other_out_style ? ": long converted angles kernel, " : ": long angles kernel, ";
    const bool is_long = std::strstr(text, request_.table ? ": long table kernel, " : of_angles) != nullptr;
    // The number of multiprocessors decides between the two.
    const bool may_be_shorter = request_.table != none && request_.size != Size::kMany;
    const bool is_shorter = std::strstr(text, ": flat table kernel, ") != nullptr ||
                            std::strstr(text, ": mid programmatic table kernel, ") != nullptr;
    CHECK((is_long || (may_be_shorter && is_shorter)));
  }

  // The angles for a position, or for a row of the tables.
  std::vector<Angle> angles_of(int64_t position, Direction direction) const {
    std::vector<Angle> angles;
    for (int pair = 0; pair < request_.pairs(); ++pair) {
      Angle angle = {};
      if (request_.table) {
        Index at = {position, pair};
        if (args_.cos.ndim == 3) at = {position / request_.tokens(), position % request_.tokens(), pair};
        angle.exact = {value_at(args_.cos, at), value_at(args_.sin, at)};
      } else {
        const oracle::Real frequency = oracle::frequency(10000, request_.rotary_dim, pair);
        angle.exact = oracle::rotation(position, frequency);
        angle.error = tolerance::phase(position, frequency);
      }
      angle.length = std::hypot(angle.exact.cos, angle.exact.sin);
      angle.cos = static_cast<double>(angle.exact.cos);
      angle.sin = static_cast<double>(angle.exact.sin);
      if (direction == Direction::Backward) angle.sin = -angle.sin;
      angles.push_back(angle);
    }
    return angles;
  }

  bool is_lost(int64_t position) const {
    return request_.table && !request_.has_rows_of_tokens() && (position < 0 || position >= table_rows);
  }

  void verify(Direction direction) {
    int64_t wrong = 0, lost = 0;
    const int64_t bytes = request_.rotary_dim * oracle::element_size(request_.dtype);
    const rope_tensor_t *in[] = {&args_.q, &args_.k};
    const rope_tensor_t *out[] = {&args_.q_out, &args_.k_out};
    std::vector<std::vector<Angle>> of_rows;
    for (int64_t row = 0; row < request_.num_rows() && request_.table; ++row) {
      of_rows.push_back(angles_of(row, direction));
    }
    std::vector<Angle> of_position;
    for (int64_t token = 0; token < request_.tokens(); ++token) {
      const int64_t position = position_at(request_, token);
      const bool has_no_row = is_lost(position);
      lost += has_no_row;
      if (!request_.table) of_position = angles_of(position, direction);
      for (int i = 0; i < 2; ++i) {
        if (in[i]->ndim == 0) continue;
        const rope_tensor_t from = workspace_.before(*in[i]), &to = request_.is_in_place ? *in[i] : *out[i];
        for (int64_t number = 0; number < request_.batches * from.shape[2]; ++number) {
          const int64_t batch = number / from.shape[2];
          const Index at = {batch, token, number % from.shape[2], request_.rotary_offset};
          const auto *read = static_cast<const std::byte *>(element_at(from, at));
          auto *written = static_cast<std::byte *>(element_at(to, at));
          const int64_t row = request_.rows == Request::kByPosition ? position
                              : request_.rows == Request::kByToken  ? token
                                                                    : batch * request_.tokens() + token;
          if (has_no_row) {
            wrong += std::memcmp(read, written, static_cast<size_t>(bytes)) != 0;
          } else {
            wrong +=
                count_wrong(read, written, direction, request_.table ? of_rows[static_cast<size_t>(row)] : of_position);
          }
          workspace_.block_of(written)->expect_as_now(written, bytes);
        }
      }
    }
    INFO(lost << " of " << request_.tokens() << " tokens without a row");
    const bool may_lack_rows = request_.table && !request_.has_rows_of_tokens();
    CHECK((lost > 0) == (may_lack_rows && (request_.positions || request_.tokens() > table_rows)));
    CHECK(wrong == 0);
  }

  // Counts wrong elements in a head's window.
  int64_t count_wrong(const std::byte *read, const std::byte *written, Direction direction,
                      const std::vector<Angle> &angles) const {
    const int64_t size = oracle::element_size(request_.dtype);
    // An element this close must be the nearest value.
    const double close = request_.dtype == ROPE_DTYPE_F16 ? 0x1p-12 : 0x1p-9;
    // Backward's input has the style of forward's output.
    const bool has_half = request_.style == ROPE_STYLE_HALF, converts = request_.has_other_out_style;
    const bool reads_half = has_half != (converts && direction == Direction::Backward);
    const bool writes_half = has_half != (converts && direction == Direction::Forward);
    const auto first_of = [&](int pair, bool is_half) { return (is_half ? pair : 2 * pair) * size; };
    const auto second_of = [&](int pair, bool is_half) {
      return first_of(pair, is_half) + (is_half ? request_.pairs() : 1) * size;
    };
    int64_t wrong = 0;
    for (int pair = 0; pair < request_.pairs(); ++pair) {
      const Angle &angle = angles[static_cast<size_t>(pair)];
      const auto value = [&](const std::byte *at) { return static_cast<double>(oracle::decode(request_.dtype, at)); };
      const double x = value(read + first_of(pair, reads_half)), y = value(read + second_of(pair, reads_half));
      const double exact[] = {x * angle.cos - y * angle.sin, x * angle.sin + y * angle.cos};
      const double actual[] = {value(written + first_of(pair, writes_half)),
                               value(written + second_of(pair, writes_half))};
      for (const int member : {0, 1}) {
        if (std::fabs(actual[member] - exact[member]) <= close * std::fabs(actual[member])) continue;
        const oracle::Real length = std::hypot(x, y) * angle.length;
        const oracle::Real slack = tolerance::rope_slack(request_.dtype, length, angle.error);
        wrong += !tolerance::accepts(request_.dtype, actual[member], exact[member], slack);
      }
    }
    return wrong;
  }

  Request request_;
  Workspace workspace_;
  rope_args_t args_ = rope_args();
};

constexpr rope_dtype_t bf16 = ROPE_DTYPE_BF16, f16 = ROPE_DTYPE_F16, f32 = ROPE_DTYPE_F32;
constexpr rope_dtype_t i32 = ROPE_DTYPE_I32, i64 = ROPE_DTYPE_I64;
constexpr rope_style_t half = ROPE_STYLE_HALF, interleaved = ROPE_STYLE_INTERLEAVED;
constexpr Operands separate = Operands::kSeparate, packed = Operands::kPacked;

}  // namespace

TEST_CASE("long launches with computed angles", "[rope][long][sanitize]") {
  const Request requests[] = {{bf16, half, 32, 8, 128, 128, 0, true, separate, none, i32},
                              {f16, interleaved, 32, 8, 128, 128, 0, false, separate, none, i64}};
  for (const Request &request : requests) LongLaunch(request).check();
}

TEST_CASE("long launches of 40 heads of 80 channels", "[rope][long][sanitize]") {
  const Request requests[] = {{bf16, interleaved, 40, 0, 80, 80, 0, true, separate, none, none},
                              {f16, half, 32, 8, 80, 80, 0, false, packed, none, i32}};
  for (const Request &request : requests) LongLaunch(request).check();
}

TEST_CASE("long launches of 40 heads of 80 channels, by tables", "[rope][long][tables][sanitize]") {
  const Request request = {bf16, half, 36, 4, 80, 80, 0, false, separate, f32, i64};
  LongLaunch(request).check();
}

TEST_CASE("long launches of part of each head", "[rope][long]") {
  const Request requests[] = {{bf16, half, 23, 0, 128, 64, 0, true, separate, none, i64},
                              {f16, interleaved, 13, 5, 112, 96, 16, true, packed, none, none}};
  for (const Request &request : requests) LongLaunch(request).check();
}

TEST_CASE("long launches of more heads than a block has, part of each", "[rope][long][sanitize]") {
  const Request requests[] = {{bf16, half, 33, 8, 128, 64, 0, true, separate, none, i32},
                              {f16, interleaved, 50, 7, 72, 48, 16, true, packed, bf16, i64}};
  for (const Request &request : requests) LongLaunch(request).check();
}

TEST_CASE("long launches of several batches", "[rope][long][sanitize]") {
  const Request requests[] = {{bf16, half, 8, 3, 128, 128, 0, true, separate, none, none, 3},
                              {f16, interleaved, 23, 2, 80, 80, 0, false, packed, none, i64, 2}};
  for (const Request &request : requests) LongLaunch(request).check();
}

TEST_CASE("long launches of several batches by tables", "[rope][long][tables][sanitize]") {
  const Request requests[] = {{bf16, interleaved, 16, 4, 64, 64, 0, false, separate, f32, i32, 3},
                              {f16, half, 7, 2, 144, 128, 16, true, packed, f16, none, 2}};
  for (const Request &request : requests) LongLaunch(request).check();
}

TEST_CASE("launches of tokens that fit a cache, by tables", "[rope][long][tables][sanitize]") {
  Request requests[] = {{bf16, half, 64, 8, 128, 128, 0, true, separate, f32, i64},
                        {f16, interleaved, 10, 1, 128, 128, 0, false, packed, bf16, i32},
                        {bf16, interleaved, 128, 0, 192, 64, 128, true, separate, f32, none},
                        {f16, half, 13, 5, 112, 96, 16, true, packed, f16, i64}};
  for (Request &request : requests) {
    request.size = Size::kFitsCache;
    LongLaunch(request).check();
  }
}

// The tables have more rows than there are tokens in flight, so that rows are prefetched.
TEST_CASE("long launches by tables by token", "[rope][long][tables][sanitize]") {
  Request requests[] = {
      {bf16, half, 12, 3, 128, 128, 0, true, separate, f32, none, 2, Order::kBshd, false, Request::kByBatchAndToken},
      {f16, interleaved, 19, 5, 64, 64, 0, false, packed, bf16, none, 2, Order::kBshd, false, Request::kByToken}};
  for (Request &request : requests) {
    request.size = Size::kMany;
    LongLaunch(request).check();
  }
}

TEST_CASE("long launches of batches that lie closer than tokens", "[rope][long]") {
  Request requests[] = {{bf16, half, 5, 1, 128, 128, 0, true, separate, none, i64, 3, Order::kSbhd},
                        {f16, interleaved, 8, 2, 96, 96, 0, false, separate, bf16, i32, 2, Order::kSbhd}};
  for (Request &request : requests) {
    request.size = Size::kMany;
    LongLaunch(request).check();
  }
}

TEST_CASE("long launches of tokens that lie closer than heads", "[rope][long][sanitize]") {
  Request requests[] = {{bf16, half, 9, 2, 128, 128, 0, true, separate, none, none, 1, Order::kBhsd},
                        {f16, interleaved, 18, 0, 80, 64, 16, true, separate, f32, i64, 1, Order::kBhsd}};
  for (Request &request : requests) {
    request.size = Size::kMany;
    LongLaunch(request).check();
  }
}

TEST_CASE("long launches of batches whose tokens lie closer than heads", "[rope][long]") {
  const Request request = {f16, interleaved, 7, 2, 128, 128, 0, false, separate, none, i32, 2, Order::kBhsd};
  LongLaunch(request).check();
}

TEST_CASE("long launches from one style to the other, in place", "[rope][long][sanitize]") {
  const Request requests[] = {{bf16, interleaved, 35, 1, 96, 64, 32, true, separate, none, i64, 1, Order::kBshd, true},
                              {f16, half, 8, 2, 128, 128, 0, true, packed, none, none, 2, Order::kBshd, true}};
  for (const Request &request : requests) LongLaunch(request).check();
}

TEST_CASE("long launches from one style to the other, out of place", "[rope][long]") {
  const Request requests[] = {{f16, interleaved, 27, 5, 32, 32, 0, false, separate, none, i32, 1, Order::kBhsd, true},
                              {bf16, half, 19, 0, 64, 64, 0, false, packed, none, i32, 1, Order::kBshd, true}};
  for (const Request &request : requests) LongLaunch(request).check();
}

TEST_CASE("long launches of packed heads", "[rope][long][sanitize]") {
  const Request request = {bf16, interleaved, 28, 5, 64, 64, 0, false, packed, none, i32};
  LongLaunch(request).check();
}

TEST_CASE("long launches with two tokens in a block", "[rope][long][sanitize]") {
  const Request request = {f16, half, 7, 1, 128, 128, 0, true, packed, none, i64};
  LongLaunch(request).check();
}

TEST_CASE("long launches by F32 tables, some tokens without a row", "[rope][long][tables][sanitize]") {
  Request requests[] = {{bf16, half, 32, 8, 128, 128, 0, false, separate, f32, i32},
                        {f16, interleaved, 13, 2, 128, 128, 0, true, packed, f32, i64}};
  requests[0].size = Size::kMany;
  for (const Request &request : requests) LongLaunch(request).check();
}

TEST_CASE("the same in the other styles", "[rope][long][tables][sanitize]") {
  const Request requests[] = {{bf16, interleaved, 7, 1, 128, 128, 0, true, separate, f32, i32},
                              {f16, half, 9, 0, 160, 128, 32, true, packed, f32, i64}};
  for (const Request &request : requests) LongLaunch(request).check();
}

TEST_CASE("long launches by tables of 16 bits, some tokens without a row", "[rope][long][tables][sanitize]") {
  Request requests[] = {{bf16, interleaved, 8, 1, 128, 128, 0, false, packed, bf16, i64},
                        {f16, half, 13, 2, 144, 128, 16, true, separate, f16, i32}};
  requests[0].size = Size::kMany;
  for (const Request &request : requests) LongLaunch(request).check();
}

TEST_CASE("long launches by tables of another type", "[rope][long][tables][sanitize]") {
  const Request requests[] = {{bf16, half, 16, 0, 192, 128, 64, true, separate, f16, none},
                              {f16, interleaved, 10, 1, 128, 128, 0, false, packed, bf16, i32}};
  for (const Request &request : requests) LongLaunch(request).check();
}
