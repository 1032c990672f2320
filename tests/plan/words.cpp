// SPDX-License-Identifier: Apache-2.0
// words.cpp - reads a RoPE problem from a line of words
#include "plan/words.hpp"

#include <catch2/catch_test_macros.hpp>
#include <map>
#include <sstream>
#include <utility>

namespace {

const std::map<std::string, rope_dtype_t> kDtypes = {
    {"f32", ROPE_DTYPE_F32}, {"f16", ROPE_DTYPE_F16}, {"bf16", ROPE_DTYPE_BF16}, {"f64", ROPE_DTYPE_F64}};
const std::map<std::string, rope_layout_t> kLayouts = {
    {"bshd", ROPE_LAYOUT_BSHD}, {"sbhd", ROPE_LAYOUT_SBHD}, {"bhsd", ROPE_LAYOUT_BHSD}, {"thd", ROPE_LAYOUT_THD}};
const std::map<std::string, int> kAxes = {{"batch", rope::kBatch}, {"token", rope::kToken}, {"head", rope::kHead}};

struct Words {
  rope::DeviceInfo device = kH200;
  rope_config_t config = some_config(ROPE_DTYPE_BF16, 128);
  int64_t batches = 1, tokens = 64, heads[3] = {8, 0, 0};
  bool out[3] = {};
  std::string table, positions;
  int64_t width = 0, sequences = 0;
  bool is_by_token = false, has_angles = false, has_starts = false, has_fault = false, is_programmatic = false;
  std::vector<std::pair<std::string, std::string>> changes;  // of the problem: a name, and '=' or '+' with a number
};

int64_t number_of(const std::string &text) {
  size_t used = 0;
  const int64_t value = std::stoll(text, &used);
  REQUIRE(used == text.size());
  return value;
}

void read_word(const std::string &word, Words *words) {
  const size_t at = word.find_first_of("=+");
  const std::string name = word.substr(0, at), value = at == std::string::npos ? "" : word.substr(at + 1);
  const std::map<std::string, int32_t *> sizes = {{"d", &words->config.head_dim},
                                                  {"rot", &words->config.rotary_dim},
                                                  {"off", &words->config.rotary_offset},
                                                  {"block", &words->config.pair_block},
                                                  {"axes", &words->config.num_axes}};
  const std::map<std::string, int64_t *> counts = {
      {"b", &words->batches}, {"t", &words->tokens}, {"width", &words->width}, {"seq", &words->sequences}};
  const std::map<std::string, int *> of_device = {{"sm", &words->device.multiprocessors},
                                                  {"cc", &words->device.compute_capability},
                                                  {"bus", &words->device.memory_bus_bits}};
  const std::map<std::string, bool *> flags = {{"by-token", &words->is_by_token}, {"angles", &words->has_angles},
                                               {"starts", &words->has_starts},    {"fault", &words->has_fault},
                                               {"pdl", &words->is_programmatic},  {"out-q", &words->out[0]},
                                               {"out-k", &words->out[1]}};
  const std::map<std::string, std::string *> names = {{"table", &words->table}, {"positions", &words->positions}};
  if (at == std::string::npos) {
    if (kDtypes.count(word) != 0) {
      words->config.dtype = kDtypes.at(word);
    } else if (kLayouts.count(word) != 0) {
      words->config.layout = kLayouts.at(word);
    } else if (word == "half" || word == "interleaved") {
      words->config.style = word == "half" ? ROPE_STYLE_HALF : ROPE_STYLE_INTERLEAVED;
    } else if (word == "to-half" || word == "to-interleaved") {
      words->config.out_style = word == "to-half" ? ROPE_STYLE_HALF : ROPE_STYLE_INTERLEAVED;
    } else if (word == "out") {
      words->out[0] = words->out[1] = words->out[2] = true;
    } else {
      REQUIRE(flags.count(word) == 1);
      *flags.at(word) = true;
    }
  } else if (name == "h") {
    std::istringstream parts(value);
    std::string part;
    for (int i = 0; std::getline(parts, part, '+'); ++i) {
      REQUIRE(i < 3);
      words->heads[i] = number_of(part);
    }
  } else if (sizes.count(name) != 0) {
    *sizes.at(name) = static_cast<int32_t>(number_of(value));
  } else if (counts.count(name) != 0) {
    *counts.at(name) = number_of(value);
  } else if (names.count(name) != 0) {
    *names.at(name) = value;
  } else if (of_device.count(name) != 0) {
    *of_device.at(name) = static_cast<int>(number_of(value));
  } else {
    words->changes.emplace_back(name, word.substr(at));
  }
}

void change(int64_t *number, const std::string &by) {
  const int64_t value = number_of(by.substr(1));
  *number = by[0] == '+' ? *number + value : value;
}

using Columns = rope::TableColumns;
const std::map<std::string, int64_t Columns::*> kSteps = {
    {"row", &Columns::row_stride}, {"column", &Columns::column_stride}, {"batch", &Columns::batch_stride}};
const std::map<std::string, int> kTensors = {{"q", 0}, {"k", 1}, {"v", 2}};

// The numbers with a given name.
std::vector<int64_t *> numbers_of(const std::string &name, rope::RopeProblem *problem) {
  const size_t dot = name.find('.'), side = name.find('.', dot + 1);
  const std::string owner = name.substr(0, dot), member = dot == std::string::npos ? "" : name.substr(dot + 1);
  rope::AngleTable &table = problem->table;
  if (name == "rows") return {&table.rows};
  if (name == "seq.count") return {&problem->sequences.count};
  if (name == "positions.token") return {&problem->positions.token_stride};
  if (name == "positions.batch") return {&problem->positions.batch_stride};
  if (owner == "table") return {&(table.cos.*kSteps.at(member)), &(table.sin.*kSteps.at(member))};
  if (owner == "cos") return {&(table.cos.*kSteps.at(member))};
  if (owner == "sin") return {&(table.sin.*kSteps.at(member))};
  rope::RotatedTensor &tensor = problem->tensor[kTensors.at(owner)];
  if (dot == std::string::npos || side == std::string::npos) {
    return {&tensor.in_stride[kAxes.at(member)], &tensor.out_stride[kAxes.at(member)]};
  }
  const std::string of_side = name.substr(dot + 1, side - dot - 1);
  REQUIRE((of_side == "in" || of_side == "out"));
  const int axis = kAxes.at(name.substr(side + 1));
  return {of_side == "in" ? &tensor.in_stride[axis] : &tensor.out_stride[axis]};
}

}  // namespace

rope::DeviceInfo read_words(const std::string &line, Scene *scene) {
  Words words;
  std::istringstream stream(line);
  for (std::string word; stream >> word;) read_word(word, &words);
  INFO(line);
  REQUIRE(rope::make_rope_geometry("rope_desc_create", words.config, &scene->geometry) == ROPE_STATUS_SUCCESS);
  set_operands(scene, words.config.layout, words.config.dtype, words.batches, words.tokens, words.heads,
               words.config.head_dim, true);
  rope_args_t &args = scene->args;
  rope_tensor_t *const tensors[] = {&args.q, &args.k, &args.v}, *const outputs[] = {&args.q_out, &args.k_out,
                                                                                    &args.v_out};
  for (int i = 0; i < 3; ++i) {
    if (i > 0 && words.heads[i] == 0) *tensors[i] = {};
    if (!words.out[i] || tensors[i]->ndim == 0) continue;
    *outputs[i] = *tensors[i];
    outputs[i]->data = at_address(static_cast<uintptr_t>(2 * i + 3) << 59);
  }
  const bool is_thd = words.config.layout == ROPE_LAYOUT_THD;
  const int64_t width = words.width != 0 ? words.width : scene->geometry.pairs();
  const int64_t rows = words.is_by_token ? words.tokens : 4096;
  if (words.is_by_token) args.table_rows = ROPE_TABLE_BY_TOKEN;
  if (!words.table.empty()) args.cos = compact_tensor(far_address(0), kDtypes.at(words.table), {rows, width});
  if (!words.table.empty()) args.sin = compact_tensor(far_address(1), kDtypes.at(words.table), {rows, width});
  if (words.has_angles) args.angles = compact_tensor(far_address(0), ROPE_DTYPE_F32, {rows, width});
  if (!words.positions.empty()) {
    const rope_dtype_t dtype = words.positions == "i32" ? ROPE_DTYPE_I32 : ROPE_DTYPE_I64;
    args.positions = compact_tensor(far_address(2), dtype, {words.tokens});
  }
  const int64_t starts = is_thd && words.sequences != 0 ? words.sequences : words.batches;
  if (words.has_starts) args.start_positions = compact_tensor(far_address(3), ROPE_DTYPE_I64, {starts});
  if (words.sequences != 0) args.cu_seqlens = compact_tensor(far_address(4), ROPE_DTYPE_I32, {words.sequences + 1});
  if (words.has_fault) args.fault = compact_tensor(far_address(5), ROPE_DTYPE_I64, {2});
  if (words.is_programmatic) args.flags = ROPE_FLAG_PROGRAMMATIC_LAUNCH;
  const rope_status_t status =
      rope::make_rope_problem("rope_forward", scene->geometry, args, false, &scene->problem, &scene->step);
  INFO(rope::last_error());
  REQUIRE(status == ROPE_STATUS_SUCCESS);
  for (const auto &[name, by] : words.changes) {
    if (name == "cos.data" || name == "sin.data") {
      REQUIRE(by[0] == '+');
      (name == "cos.data" ? scene->problem.table.cos : scene->problem.table.sin).data += number_of(by.substr(1));
      continue;
    }
    for (int64_t *number : numbers_of(name, &scene->problem)) change(number, by);
  }
  return words.device;
}
