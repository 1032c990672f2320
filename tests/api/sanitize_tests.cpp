// sanitize_tests.cpp - every kernel of the library in few and small calls, for tools that make each of them slow
//
// ROPE_TEST_EXACT_MEMORY=1 compute-sanitizer --tool memcheck rope_api_tests "[sanitize]", and so racecheck, initcheck
// and synccheck: results are compared with the oracle as ever, and each tensor has device memory of its own. The kernels
// of long launches are reached in rope_long_tests.cpp, under the same tag.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <string>
#include <vector>

#include "support/cases.hpp"

namespace {

const std::vector<rope_dtype_t> narrow_dtypes = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16};
const std::vector<rope_dtype_t> dtypes = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64};

// On a GPU of up to 160 multiprocessors these are enough tokens for vectors of 16 bytes, at 16 and 4 heads of 128
// channels and at one. Where there is no GPU a tenth does: calls of several threads have tests of their own.
int64_t many_tokens() {
  return has_cuda() ? 320 : 32;
}

int64_t alone_tokens() {
  return has_cuda() ? 6100 : 610;
}

const char *name_of(rope_style_t style) {
  return style == ROPE_STYLE_HALF ? "half" : "interleaved";
}

PositionValue scattered() {
  return [](int64_t batch, int64_t token) { return 7 * token + 1000 * batch; };
}

// Kernels that a call with these bytes past the alignment reaches, by what rope_explain calls them.
struct Reach {
  std::vector<std::string> explanations;

  bool has(const std::string &dtype, const std::string &pairing, const std::string &kernel) const {
    const std::string beginning = "rope " + dtype + ' ' + pairing + " on CUDA: " + kernel + " kernel, ";
    return std::any_of(explanations.begin(), explanations.end(),
                       [&](const std::string &text) { return text.compare(0, beginning.size(), beginning) == 0; });
  }

  void check(rope_dtype_t dtype, const char *pairing, std::initializer_list<const char *> kernels) const {
    if (!has_cuda()) return;
    for (const char *kernel : kernels) {
      INFO(oracle::dtype_name(dtype) << ' ' << pairing << ": " << kernel);
      CHECK(has(oracle::dtype_name(dtype), pairing, kernel));
    }
  }
};

// A request of the kind, in and out of place, aligned to 16 bytes and to 8.
class Requests {
 public:
  Requests(rope_dtype_t dtype, rope_style_t style, Reach *reach) : dtype_(dtype), style_(style), reach_(reach) {}

  RopeCase small(int32_t head_dim = 64) const {
    return RopeCase().dtype(dtype_).style(style_).batch(2).tokens(3).heads(3, 2).head_dim(head_dim).explained(
        &reach_->explanations);
  }

  RopeCase large() const { return small(128).batch(1).tokens(many_tokens()).heads(16, 4); }

  RopeCase alone() const { return small(128).tokens(alone_tokens() / 2).heads(1, 0); }

  void check(RopeCase request) const {
    request.check();
    request.out_of_place().placed(Placement().at(8 / oracle::element_size(dtype_))).check();
  }

 private:
  rope_dtype_t dtype_;
  rope_style_t style_;
  Reach *reach_;
};

}  // namespace

TEST_CASE("RoPE kernels of computed angles", "[rope][sanitize]") {
  Reach reach;
  for (const rope_dtype_t dtype : narrow_dtypes) {
    for (const rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
      const Requests requests(dtype, style, &reach);
      requests.check(requests.small().positions(PositionShape::PerBatchAndToken, ROPE_DTYPE_I32, scattered()));
      requests.check(requests.small().heads(2, 1));
      requests.check(requests.small().batch(1));
      // Threads behind the last head have a pair to compute, and k has no head that they could point to.
      for (const int64_t tokens : {1, 410}) requests.small(128).batch(1).tokens(tokens).heads(3, 0).check();
      requests.check(requests.large());
      // Several batches are no short launch.
      requests.check(requests.large().batch(2).tokens(many_tokens() / 2));
      requests.alone()
          .positions(PositionShape::PerBatchAndToken, ROPE_DTYPE_I32, scattered(), Placement().gap(0, 3))
          .check();
      requests.check(requests.small(128).rotary_dim(64).rotary_offset(64));
      // Element by element.
      requests.small()
          .placed(Placement().at(1))
          .positions(PositionShape::PerToken, ROPE_DTYPE_I64, scattered())
          .check();
      std::vector<int32_t> axes;
      for (int32_t pair = 0; pair < 64; ++pair) axes.push_back(pair % 3);
      for (const bool is_large : {false, true}) {
        const RopeCase request = is_large ? requests.large() : requests.small(128);
        RopeCase(request)
            .axes(3, axes)
            .axis_positions(PositionShape::PerBatchAndToken, ROPE_DTYPE_I32,
                            [](int64_t axis, int64_t batch, int64_t token) { return 100 * axis + 10 * batch + token; })
            .check();
        const int64_t tokens = is_large ? many_tokens() : 11;
        RopeCase(request)
            .batch(1)
            .tokens(tokens)
            .sequences({0, 4, 4, tokens - 1})
            .start_positions(PositionShape::PerBatch, ROPE_DTYPE_I64, scattered())
            .out_of_place()
            .check();
      }
      reach.check(dtype, name_of(style),
                  {"thread angles", "short warp angles", "short angles", "token angles", "scalar angles"});
    }
  }
}

TEST_CASE("RoPE kernels of tables", "[rope][sanitize]") {
  Reach reach;
  for (const rope_dtype_t dtype : narrow_dtypes) {
    for (const rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
      const Requests requests(dtype, style, &reach);
      // Some positions are outside the table.
      const auto small = [&](rope_dtype_t table) {
        return requests.small().table_dtype(table).tables(3).positions(
            PositionShape::PerToken, ROPE_DTYPE_I32, [](int64_t, int64_t token) { return 2 * token; });
      };
      for (const rope_dtype_t table : narrow_dtypes) {
        requests.check(small(table));
        requests.check(small(table).batch(1));
        requests.large().batch(2).tokens(many_tokens() / 2).table_dtype(table).tables(many_tokens() / 2 - 5).check();
        requests.alone().table_dtype(table).tables(alone_tokens() / 2 - 5).check();
      }
      requests.check(requests.small().tables(3).fault());
      requests.check(requests.small().tables_by_token(true));
      requests.check(requests.small().batch(1).tokens(11).sequences({0, 4, 4, 10}).tables(4).fault());
      requests.small().placed(Placement().gap(3, 1)).tables(3).check();
      reach.check(dtype, name_of(style), {"thread table", "short table", "token table", "scalar table"});
    }
  }
}

TEST_CASE("the general RoPE kernel", "[rope][sanitize]") {
  Reach reach;
  for (const rope_dtype_t dtype : dtypes) {
    for (const rope_style_t style : {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED}) {
      const Requests requests(dtype, style, &reach);
      const rope_style_t other = oracle::other_style(style);
      requests.check(requests.small().tables(3).table_width(TableWidth::Channels).fault());
      requests.check(requests.small().table_dtype(ROPE_DTYPE_F64).tables(3).fault());
      requests.check(requests.small().tables(3).angles(100));
      requests.check(
          requests.small().batch(1).tokens(11).sequences({0, 4, 4, 10}).table_dtype(ROPE_DTYPE_F64).tables(4).fault());
      requests.check(requests.small().out_style(other));
      if (dtype != ROPE_DTYPE_F64)
        requests.large().tables(many_tokens()).table_width(TableWidth::Channels).fault().check();
      requests.small().out_style(other).placed(Placement().at(1)).check();
      requests.check(requests.small().rotary_dim(16).rotary_offset(4));
      if (style == ROPE_STYLE_HALF) requests.check(requests.small().pair_block(32));
      reach.check(dtype, name_of(style), {"general"});
      reach.check(dtype, "converted", {"general"});
    }
  }
}

// Which kernel runs follows from the request alone: its direction, form, rows and what alternates.
TEST_CASE("SwiGLU kernels", "[swiglu][sanitize]") {
  for (const rope_dtype_t dtype : dtypes) {
    for (const bool is_plain : {true, false}) {
      const auto request = [&](const Shape &shape) {
        SwigluCase result = SwigluCase().dtype(dtype).shape(shape);
        return is_plain ? result : result.form(1.702, 7, 1, 0.5).row_scale(1).num_rows(shape[0] - 1, ROPE_DTYPE_I32);
      };
      for (const bool is_recomputed : {false, true}) {
        const auto check = [&](SwigluCase each) { (is_recomputed ? each.recomputed() : each).check(); };
        // Vectors of 16 bytes in large launches only, of 8, and elements, with a row's end in the middle of a vector.
        check(request({5, 64}));
        check(request({3, 37}));
        check(request({3, 40}).placed(Placement().at(1)));
        check(request({3, 42}).placed(Placement().at(2)));
        check(request({3, 40}).packing(GatePacking::GateFirst, GatePacking::UpFirst));
        // Both orders of what alternates, of the inputs, of the gradients, and of both.
        check(request({3, 64}).packing(GatePacking::Alternating, GatePacking::Alternating));
        check(request({3, 64}).packing(GatePacking::AlternatingUpFirst, GatePacking::AlternatingUpFirst));
        check(request({3, 64}).packing(GatePacking::Alternating));
        check(request({3, 64}).packing(GatePacking::Separate, GatePacking::AlternatingUpFirst));
      }
      // Sums of rows: whole groups, and one by one.
      SwigluCase sums = request({4, 600}).row_scale(1, ROPE_DTYPE_F32).grad_row_scale();
      sums.check();
      sums.recomputed().check();
      request({4, 3, 75}).row_scale(2).grad_row_scale().placed(Placement().at(1)).check();
    }
  }
  // Vectors of full width, on up to 160 multiprocessors.
  const int64_t rows = has_cuda() ? 801 : 41;
  for (const rope_dtype_t dtype : narrow_dtypes) {
    const SwigluCase large = SwigluCase().dtype(dtype).shape({rows, dtype == ROPE_DTYPE_F32 ? 512 : 1024});
    large.check();
    SwigluCase(large).packing(GatePacking::GateFirst).form(1.702, 7, 1, 0.5).check();
    SwigluCase().dtype(dtype).shape({5, 64}).form(1.702, 7, 1, 0.5).check();
    SwigluCase(large).form(1.702, 7, 1, 0.5).row_scale(1).recomputed().check();
    SwigluCase(large).packing(GatePacking::Alternating, GatePacking::AlternatingUpFirst).check();
  }
}

TEST_CASE("SwiGLU kernels of options and experts", "[swiglu][sanitize][options]") {
  for (const rope_dtype_t dtype : dtypes) {
    SwigluCase plain;
    plain.dtype(dtype).recomputed();
    // Each formula that has matrices of its own, and all else element by element.
    for (const int32_t activation : {SWIGLU_ACTIVATION_SWIGLU, SWIGLU_ACTIVATION_GEGLU_ERF,
                                     SWIGLU_ACTIVATION_GEGLU_TANH, SWIGLU_ACTIVATION_REGLU}) {
      const SwigluCase one = SwigluCase(plain).activation(activation);
      SwigluCase(one).shape({5, 64}).check();
      SwigluCase(one).shape({3, 37}).packing(GatePacking::Alternating).check();
      SwigluCase(one).shape({3, 40}).form(0, 2, 0, 0).rounds_activation().check();
      SwigluCase(one).shape({4, 3, 75}).row_scale(2).grad_row_scale().num_rows(3, ROPE_DTYPE_I32).check();
    }
    SwigluCase(plain).shape({5, 64}).soft_caps(4, 25).check();
    for (const rope_dtype_t bias : {rope_dtype_t{0}, rope_dtype_t{ROPE_DTYPE_F32}}) {
      SwigluCase(plain).shape({5, 64}).biases(bias).check();
      SwigluCase(plain).shape({3, 37}).biases(bias).activation(SWIGLU_ACTIVATION_REGLU).check();
      SwigluCase(plain).shape({4, 3, 64}).experts({2, 0, 7, -1}, ROPE_DTYPE_I32).biases(bias, true).check();
      SwigluCase(plain).shape({4, 3, 64}).experts({2, 0, 3, 1}, ROPE_DTYPE_I64).row_scale(2, ROPE_DTYPE_F32).check();
      SwigluCase(plain).shape({4, 3, 37}).experts({2, 0, 3, 1}, ROPE_DTYPE_I64).biases(bias, true).check();
      SwigluCase(plain).shape({4, 3, 64}).experts({2, 0, 3, 1}, ROPE_DTYPE_I64).row_scale(2).grad_row_scale().check();
    }
    SwigluCase(plain).shape({300, 1, 16}).experts(std::vector<int64_t>(300, 1), ROPE_DTYPE_I32).check();
  }
}
