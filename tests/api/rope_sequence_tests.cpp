// SPDX-License-Identifier: Apache-2.0
// rope_sequence_tests.cpp - sequences of several lengths, one after another, their padding, and invalid cu_seqlens
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "support/cases.hpp"

namespace {

constexpr int64_t last = std::numeric_limits<int64_t>::max();

const std::vector<rope_dtype_t> dtypes = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64};
const std::vector<rope_style_t> styles = {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED};

const std::vector<std::vector<int64_t>> divisions = {{0, 12},                                     // one sequence
                                                     {0, 5, 9, 12},                               // several
                                                     {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},  // of one token each
                                                     // empty ones at the beginning, in the middle and at the end
                                                     {0, 0, 5, 5, 5, 12, 12},
                                                     {0, 4, 7},        // padding
                                                     {0, 0, 0, 3, 3},  // empty ones and padding
                                                     {0, 0},           // padding only
                                                     {0, 0, 0, 0},
                                                     {0}};  // no sequence at all

RopeCase geometry(std::vector<int64_t> cu_seqlens, rope_dtype_t dtype = ROPE_DTYPE_I32) {
  return RopeCase().sequences(std::move(cu_seqlens), dtype).tokens(12).heads(3, 1).head_dim(32).adjoint();
}

int64_t scattered(int64_t, int64_t token) {
  return (token * 7919) % 4099 - 1000;
}

}  // namespace

TEST_CASE("positions begin anew in each sequence", "[rope][sequences]") {
  for (const std::vector<int64_t> &division : divisions) {
    for (rope_dtype_t integers : {ROPE_DTYPE_I32, ROPE_DTYPE_I64}) {
      geometry(division, integers).check();
      geometry(division, integers).out_of_place().check();
      geometry(division, integers).position_offset(70000).check();
    }
  }
}

TEST_CASE("sequences in every dtype and style", "[rope][sequences]") {
  for (rope_dtype_t dtype : dtypes) {
    for (rope_style_t style : styles) {
      for (const std::vector<int64_t> &division : divisions) {
        geometry(division).dtype(dtype).style(style).rotary_dim(18).rotary_offset(5).out_of_place().check();
        geometry(division).dtype(dtype).style(style).packed().check();
      }
    }
  }
}

TEST_CASE("start_positions of sequences and of tokens", "[rope][sequences]") {
  for (const std::vector<int64_t> &division : divisions) {
    for (rope_dtype_t dtype : {ROPE_DTYPE_I32, ROPE_DTYPE_I64}) {
      const auto start = [](int64_t sequence, int64_t token) { return sequence * 1000 - 77 - 13 * token; };
      geometry(division).start_positions(PositionShape::PerBatch, dtype, start).check();
      geometry(division)
          .positions(PositionShape::PerToken, ROPE_DTYPE_I64, scattered)
          .start_positions(PositionShape::PerBatch, dtype, start, Placement().gap(0, 2))
          .position_offset(-5)
          .check();
      geometry(division).start_positions(PositionShape::PerBatchAndToken, dtype, start).check();
      geometry(division).start_positions(PositionShape::PerBatch, dtype, start).shared_positions(true).check();
      // If there are as many sequences as tokens, rank 1 means one entry per sequence.
      if (division.size() == 13) continue;
      geometry(division).start_positions(PositionShape::PerToken, dtype, start).check();
    }
  }
  geometry({0, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 9})
      .start_positions(PositionShape::PerBatch, ROPE_DTYPE_I64,
                       [](int64_t sequence, int64_t) { return sequence * 100; })
      .check();
}

TEST_CASE("positions of tokens win over their index in a sequence", "[rope][sequences]") {
  for (const std::vector<int64_t> &division : divisions) {
    geometry(division).positions(PositionShape::PerToken, ROPE_DTYPE_I32, scattered).check();
    geometry(division).positions(PositionShape::PerBatchAndToken, ROPE_DTYPE_I64, scattered).check();
  }
}

TEST_CASE("sequences with axes", "[rope][sequences][axes]") {
  std::vector<int32_t> pair_axis;
  for (int32_t pair = 0; pair < 16; ++pair) pair_axis.push_back(pair % 3);
  const auto value = [](int64_t axis, int64_t batch, int64_t token) {
    return axis * 31 + batch * 1000 + token * token;
  };
  for (const std::vector<int64_t> &division : divisions) {
    geometry(division).axes(3, pair_axis).check();
    geometry(division)
        .axes(3, pair_axis)
        .axis_positions(PositionShape::PerToken, ROPE_DTYPE_I32, value)
        .axis_start_positions(PositionShape::PerBatch, ROPE_DTYPE_I32, value)
        .check();
    geometry(division).axes(3, pair_axis).axis_start_positions(PositionShape::PerToken, ROPE_DTYPE_I64, value).check();
  }
}

TEST_CASE("tables of sequences", "[rope][sequences][tables]") {
  for (const std::vector<int64_t> &division : divisions) {
    geometry(division).tables(12).fault().check();
    geometry(division).tables(3).fault().check();  // long sequences exceed the table
    geometry(division).tables(3).fault().out_of_place().check();
    geometry(division).tables_by_token().fault().check();
    geometry(division).tables_by_token(false, TableStorage::Alternating).table_width(TableWidth::Channels).check();
    geometry(division)
        .tables(9)
        .start_positions(PositionShape::PerBatch, ROPE_DTYPE_I32,
                         [](int64_t sequence, int64_t) { return sequence - 1; })
        .fault()
        .check();
  }
}

TEST_CASE("cu_seqlens with strides of its own", "[rope][sequences]") {
  for (const Placement &placement :
       {Placement().gap(0, 1), Placement().gap(0, 5).at(3), Placement().reversed(0), Placement().implicit()}) {
    for (rope_dtype_t dtype : {ROPE_DTYPE_I32, ROPE_DTYPE_I64}) {
      for (const std::vector<int64_t> &division : divisions) {
        geometry(division).sequences(division, dtype, placement).check();
      }
    }
  }
  geometry({0, 0, 0, 0}).sequences({0, 0, 0, 0}, ROPE_DTYPE_I32, Placement().expanded(0)).check();
}

TEST_CASE("calls of nothing with sequences", "[rope][sequences]") {
  geometry({0, 0, 0}).tokens(0).fault(3, 2).check();
  geometry({0}).tokens(0).check();
  geometry({0, 4, 12}).heads(0, 0).tables(2).fault(3, 2).check();
  geometry({0, 4, 12}).heads(0, 2).tables(2).fault(3, 2).check();
}

TEST_CASE("many sequences", "[rope][sequences]") {
  std::vector<int64_t> many = {0};
  for (int64_t i = 0; i < 400; ++i) many.push_back(many.back() + (i * 7) % 5);
  for (int64_t padding : {0, 37}) {
    RopeCase request = geometry(many, ROPE_DTYPE_I64).tokens(many.back() + padding).heads(7).head_dim(64);
    RopeCase(request).dtype(ROPE_DTYPE_BF16).check();
    RopeCase(request).tables(3).fault().out_of_place().check();
  }
}

TEST_CASE("a sequence among others is the sequence alone", "[rope][sequences][properties]") {
  for (const Device &device : devices()) {
    INFO(device);
    Workspace workspace(71);
    const rope_tensor_t together = workspace.tensor(ROPE_DTYPE_F32, {12, 3, 32});
    const rope_tensor_t alone = workspace.tensor(ROPE_DTYPE_F32, {12, 3, 32});
    for (const rope_tensor_t &tensor : {together, alone}) {
      workspace.fill(tensor, [](const Index &index) { return 1 + index[0] * 7 + index[1] - index[2] * 0.5; });
    }
    const rope_tensor_t cu_seqlens = workspace.tensor(ROPE_DTYPE_I32, {4});
    const int64_t entries[] = {0, 4, 5, 12};
    workspace.fill_integers(cu_seqlens, [&](const Index &index) { return entries[index[0]]; });
    workspace.freeze();
    workspace.restore();
    rope_config_t config = rope_config_for(device, 32);
    config.layout = ROPE_LAYOUT_THD;
    const RopeDesc desc = create(config);
    rope_args_t args = rope_args();
    args.q = together;
    args.cu_seqlens = cu_seqlens;
    REQUIRE(run(device, desc.get(), Direction::Forward, args, workspace) == ROPE_STATUS_SUCCESS);
    args.cu_seqlens = {};
    for (int sequence = 0; sequence < 3; ++sequence) {
      args.q = narrow(alone, 0, entries[sequence], entries[sequence + 1] - entries[sequence]);
      REQUIRE(run(device, desc.get(), Direction::Forward, args, workspace) == ROPE_STATUS_SUCCESS);
    }
    int64_t different = 0;
    for_each_index(together, [&](const Index &at) { different += !same_bits_at(together, at, alone, at); });
    CHECK(different == 0);
  }
}

namespace {

struct Wrong {
  const char *what;
  std::vector<int64_t> cu_seqlens;
};

// For 12 tokens.
const std::vector<Wrong> wrongs = {{"begins above 0", {3, 8, 12}},
                                   {"begins above 0 and falls", {5, 2, 12}},
                                   {"begins below 0", {-2, 8, 12}},
                                   {"falls once", {0, 8, 5, 12}},
                                   {"falls below 0", {0, -4, 6, 12}},
                                   {"ends beyond the tokens", {0, 6, 13}},
                                   {"ends far beyond the tokens", {0, 6, 1000000}},
                                   {"a middle entry beyond the tokens", {0, 1000000, 6}},
                                   {"ends below its beginning", {9, 4}},
                                   {"one entry that is not 0", {7}},
                                   {"one entry beyond", {40}},
                                   {"all below 0", {-5, -4, -3}},
                                   {"descends", {12, 8, 4, 0}},
                                   {"ends of 64 bits", {0, last, -last - 1, 12}},
                                   {"begins at the lowest", {-last - 1, 4, 12}},
                                   {"ends at the highest", {0, 4, last}},
                                   {"begins at the highest", {last, 4, 12}},
                                   {"everything at the highest", {last, last, last}},
                                   {"everything at the lowest", {-last - 1, -last - 1, -last - 1}}};

}  // namespace

TEST_CASE("wrong cu_seqlens are counted and write nowhere else", "[rope][sequences][fault]") {
  constexpr int64_t tokens = 12;
  for (const Device &device : devices()) {
    for (const Wrong &wrong : wrongs) {
      for (rope_dtype_t dtype : {ROPE_DTYPE_I32, ROPE_DTYPE_I64}) {
        const bool fits = std::all_of(wrong.cu_seqlens.begin(), wrong.cu_seqlens.end(),
                                      [](int64_t entry) { return entry == static_cast<int32_t>(entry); });
        if (dtype == ROPE_DTYPE_I32 && !fits) continue;
        for (bool in_place : {true, false}) {
          for (bool tables : {false, true}) {
            INFO(wrong.what << ", " << oracle::dtype_name(dtype) << (in_place ? ", in place" : ", out of place")
                            << (tables ? ", tables" : "") << ", on " << device);
            Workspace workspace(81);
            rope_args_t args = rope_args();
            args.q = workspace.tensor(ROPE_DTYPE_F32, {tokens, 3, 16});
            workspace.fill_normal(args.q);
            if (!in_place) args.q_out = workspace.tensor(ROPE_DTYPE_F32, {tokens, 3, 16});
            const auto entries = static_cast<int64_t>(wrong.cu_seqlens.size());
            args.cu_seqlens = workspace.tensor(dtype, {entries});
            workspace.fill_integers(args.cu_seqlens, [&](const Index &at) { return wrong.cu_seqlens[at[0]]; });
            args.start_positions = workspace.tensor(ROPE_DTYPE_I32, {entries - 1});
            workspace.fill_integers(args.start_positions, [](const Index &at) { return at[0]; });
            args.fault = workspace.tensor(ROPE_DTYPE_I64, {2});
            workspace.fill_integers(args.fault, [](const Index &) { return 0; });
            if (tables) {
              args.cos = workspace.tensor(ROPE_DTYPE_F32, {4, 8});
              args.sin = workspace.tensor(ROPE_DTYPE_F32, {4, 8});
              workspace.fill_normal(args.cos);
              workspace.fill_normal(args.sin);
            }
            workspace.freeze();
            const rope_tensor_t &out = in_place ? args.q : args.q_out;
            const int64_t first = wrong.cu_seqlens.front(), end = wrong.cu_seqlens.back();

            // Entries that break a rule, and tokens before the first sequence.
            int64_t count = 0, lowest = 0, before = 0;
            const auto add = [&](int64_t token) {
              ++count;
              lowest = lowest == 0 ? token + 1 : std::min(lowest, token + 1);
            };
            for (int64_t i = 0; i < entries; ++i) {
              const int64_t entry = wrong.cu_seqlens[i];
              const bool breaks = entry < before || entry > tokens || (i == 0 && entry != 0);
              if (breaks) add(std::clamp<int64_t>(entry, 0, tokens));
              before = entry;
            }
            for (int64_t token = 0; token < std::min(first, tokens); ++token) add(token);

            rope_config_t config = rope_config_for(device, 16);
            config.layout = ROPE_LAYOUT_THD;
            const std::vector<int32_t> thread_counts =
                device.kind == ROPE_DEVICE_CPU ? std::vector<int32_t>{1, 5} : std::vector<int32_t>{0};
            for (const int32_t threads : thread_counts) {
              config.num_threads = threads;
              const RopeDesc desc = create(config);
              for (const Direction direction : {Direction::Forward, Direction::Backward}) {
                workspace.restore();
                REQUIRE(run(device, desc.get(), direction, args, workspace) == ROPE_STATUS_SUCCESS);
                if (tables) {
                  CHECK(integer_at(args.fault, {0}) >= count);
                } else {
                  CHECK(integer_at(args.fault, {0}) == count);
                  CHECK(integer_at(args.fault, {1}) == lowest);
                }
                for (int64_t word : {0, 1}) workspace.accept(args.fault, {word});
                // Tokens before the first entry and behind the last are unchanged; all others are rotated by some
                // angle.
                int64_t broken = 0;
                for_each_index(out, [&](const Index &at) {
                  if (at[0] < first || at[0] >= end) return;
                  broken += !std::isfinite(value_at(out, at));
                  workspace.accept(out, at);
                });
                CHECK(broken == 0);
                std::string where;
                const bool untouched = workspace.untouched_elsewhere(&where);
                INFO(where);
                CHECK(untouched);
              }
            }
          }
        }
      }
    }
  }
}

TEST_CASE("a wrong entry is counted once, however many threads share the call", "[rope][sequences][fault]") {
  constexpr int64_t tokens = 4099;
  for (const Device &device : devices()) {
    Workspace workspace(82);
    rope_args_t args = rope_args();
    args.q = workspace.tensor(ROPE_DTYPE_F32, {tokens, 7, 64});
    workspace.fill_normal(args.q);
    const int64_t entries[] = {3, 200, 100, tokens + 1};
    args.cu_seqlens = workspace.tensor(ROPE_DTYPE_I32, {4});
    workspace.fill_integers(args.cu_seqlens, [&](const Index &at) { return entries[at[0]]; });
    args.fault = workspace.tensor(ROPE_DTYPE_I64, {2});
    workspace.fill_integers(args.fault, [](const Index &) { return 0; });
    workspace.freeze();
    rope_config_t config = rope_config_for(device, 64);
    config.layout = ROPE_LAYOUT_THD;
    for (const int32_t threads : {1, 2, 5, 16}) {
      INFO(device << ", num_threads " << threads);
      config.num_threads = threads;
      const RopeDesc desc = create(config);
      workspace.restore();
      REQUIRE(run(device, desc.get(), Direction::Forward, args, workspace) == ROPE_STATUS_SUCCESS);
      CHECK(integer_at(args.fault, {0}) == 6);  // three entries, three tokens
      CHECK(integer_at(args.fault, {1}) == 1);
    }
  }
}
