// SPDX-License-Identifier: Apache-2.0
// rope_fault_tests.cpp - the two words that count tokens without a row
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <limits>
#include <vector>

#include "support/cases.hpp"

namespace {

constexpr int64_t last = std::numeric_limits<int64_t>::max();

const std::vector<rope_dtype_t> dtypes = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64};
const std::vector<rope_layout_t> layouts = {ROPE_LAYOUT_BSHD, ROPE_LAYOUT_SBHD, ROPE_LAYOUT_BHSD, ROPE_LAYOUT_THD};

RopeCase geometry(rope_layout_t layout) {
  return RopeCase().layout(layout).batch(3).tokens(10).heads(3, 1).head_dim(32).theta(0);
}

int64_t inside_and_outside(int64_t batch, int64_t token) {
  const int64_t positions[] = {0, -1, 10, 11, last, 5, -last - 1, int64_t{1} << 32, (int64_t{1} << 32) + 3, -11};
  return positions[(token + batch) % 10];
}

}  // namespace

TEST_CASE("tokens outside the table are counted, and the lowest is named", "[rope][fault]") {
  for (rope_layout_t layout : layouts) {
    for (rope_dtype_t dtype : dtypes) {
      RopeCase request = geometry(layout).dtype(dtype).tables(11);
      request.positions(PositionShape::PerToken, ROPE_DTYPE_I64, inside_and_outside);
      RopeCase(request).fault().check();
      RopeCase(request).fault(7, 0).out_of_place().check();
      RopeCase(request).fault(7, 1).check();
      RopeCase(request).fault(7, 2).check();
      RopeCase(request).fault(7, 100).check();
    }
  }
}

TEST_CASE("tokens are counted batch by batch whatever the layout", "[rope][fault]") {
  for (rope_layout_t layout : {ROPE_LAYOUT_BSHD, ROPE_LAYOUT_SBHD, ROPE_LAYOUT_BHSD}) {
    for (int64_t faulty_batch : {0, 1, 2}) {
      for (int64_t faulty_token : {0, 4, 9}) {
        geometry(layout)
            .tables(3)
            .positions(
                PositionShape::PerBatchAndToken, ROPE_DTYPE_I32,
                [=](int64_t batch, int64_t token) { return batch == faulty_batch && token >= faulty_token ? 3 : 2; })
            .fault()
            .check();
      }
    }
  }
}

TEST_CASE("a call without faults leaves the words", "[rope][fault]") {
  for (rope_layout_t layout : layouts) {
    geometry(layout).tables(10).fault().check();
    geometry(layout).tables(10).fault(5, 3).check();
    geometry(layout).theta(10000).fault(5, 3).check();
    geometry(layout).theta(10000).position_offset(last - 3).fault(5, 3).check();
    geometry(layout).tables_by_token().fault(5, 3).check();
    geometry(layout).angles(9).tables_by_token().fault().check();
  }
}

TEST_CASE("every token without a row", "[rope][fault]") {
  for (rope_layout_t layout : layouts) {
    geometry(layout).tables(0).fault().check();
    geometry(layout).tables(5).position_offset(5).fault().out_of_place().check();
    geometry(layout).tables(5).position_offset(-last - 1).fault().check();
  }
  geometry(ROPE_LAYOUT_THD).tokens(1031).heads(1).tables(2).fault().check();
  // The CPU's threads divide these calls in the middle of a token.
  geometry(ROPE_LAYOUT_BSHD).batch(7).tokens(151).heads(16, 4).head_dim(64).tables(2).fault().check();
  geometry(ROPE_LAYOUT_THD).tokens(1031).heads(13).head_dim(64).tables(900).fault().check();
}

TEST_CASE("a token is counted once, whoever has heads", "[rope][fault]") {
  geometry(ROPE_LAYOUT_BSHD).heads(1, 1, 1).tables(4).fault().check();
  geometry(ROPE_LAYOUT_BSHD).heads(0, 7).tables(4).fault().check();
  geometry(ROPE_LAYOUT_BSHD).heads(33, 0, 2).tables(4).fault().check();
  geometry(ROPE_LAYOUT_BHSD).heads(64, 8).tables(4).fault().check();
}

TEST_CASE("calls add up", "[rope][fault]") {
  for (const Device &device : devices()) {
    for (const Placement &placement : {Placement(), Placement().gap(0, 3), Placement().reversed(0)}) {
      INFO(device << placement.describe());
      Workspace workspace(31);
      rope_args_t args = rope_args();
      args.q = workspace.tensor(ROPE_DTYPE_F32, {2, 5, 3, 8});
      args.cos = workspace.tensor(ROPE_DTYPE_F32, {4, 4});
      args.sin = workspace.tensor(ROPE_DTYPE_F32, {4, 4});
      args.fault = workspace.tensor(ROPE_DTYPE_I64, {2}, placement);
      for (const rope_tensor_t &tensor : {args.q, args.cos, args.sin}) workspace.fill_normal(tensor);
      workspace.fill_integers(args.fault, [](const Index &) { return 0; });
      workspace.freeze();
      workspace.restore();
      rope_config_t config = rope_config_for(device, 8);
      config.theta = 0;
      const RopeDesc desc = create(config);
      const auto call = [&](Direction direction, int64_t offset) {
        args.position_offset = offset;
        REQUIRE(run(device, desc.get(), direction, args, workspace) == ROPE_STATUS_SUCCESS);
        return std::pair<int64_t, int64_t>{integer_at(args.fault, {0}), integer_at(args.fault, {1})};
      };
      using Words = std::pair<int64_t, int64_t>;
      CHECK(call(Direction::Forward, 0) == Words{2, 5});    // token 4 of both batches
      CHECK(call(Direction::Backward, 2) == Words{8, 3});   // tokens 2 to 4
      CHECK(call(Direction::Forward, 1) == Words{12, 3});   // tokens 3 and 4
      CHECK(call(Direction::Forward, -1) == Words{14, 1});  // token 0
      for (int64_t word : {0, 1}) workspace.accept(args.fault, {word});
      for_each_index(args.q, [&](const Index &at) { workspace.accept(args.q, at); });
      std::string where;
      const bool untouched = workspace.untouched_elsewhere(&where);
      INFO(where);
      CHECK(untouched);
    }
  }
}
