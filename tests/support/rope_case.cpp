// rope_case.cpp - builds the tensors of a RopeCase, runs them everywhere and verifies what came out
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <map>
#include <sstream>

#include "cases.hpp"
#include "tolerance.hpp"

using oracle::Pair;
using oracle::Real;
using oracle::Rotation;

struct RopeCase::Scene {
  explicit Scene(uint64_t seed) : workspace(seed) {}
  Workspace workspace;
  rope_args_t args = rope_args();
  rope_tensor_t in[3] = {}, out[3] = {};  // out is in where in place
};

// What turns the pairs of a token.
struct RopeCase::Row {
  bool passes_through = false;
  std::vector<Rotation> rotations;  // scaled
  std::vector<Real> lengths, phase_errors;
};

int batch_axis(rope_layout_t layout) {
  return layout == ROPE_LAYOUT_SBHD ? 1 : 0;
}

int token_axis(rope_layout_t layout) {
  switch (layout) {
    case ROPE_LAYOUT_BSHD:
      return 1;
    case ROPE_LAYOUT_BHSD:
      return 2;
    default:
      return 0;
  }
}

int head_axis(rope_layout_t layout) {
  return layout == ROPE_LAYOUT_BHSD || layout == ROPE_LAYOUT_THD ? 1 : 2;
}

int channel_axis(rope_layout_t layout) {
  return layout == ROPE_LAYOUT_THD ? 2 : 3;
}

RopeCase &RopeCase::dtype(rope_dtype_t dtype) {
  return dtype_ = dtype, *this;
}
RopeCase &RopeCase::layout(rope_layout_t layout) {
  return layout_ = layout, *this;
}
RopeCase &RopeCase::style(rope_style_t style) {
  return style_ = style, *this;
}
RopeCase &RopeCase::batch(int64_t batch) {
  return batch_ = batch, *this;
}
RopeCase &RopeCase::tokens(int64_t tokens) {
  return tokens_ = tokens, *this;
}
RopeCase &RopeCase::head_dim(int32_t head_dim) {
  return head_dim_ = head_dim, *this;
}
RopeCase &RopeCase::rotary_dim(int32_t rotary_dim) {
  return rotary_dim_ = rotary_dim, *this;
}
RopeCase &RopeCase::rotary_offset(int32_t rotary_offset) {
  return rotary_offset_ = rotary_offset, *this;
}
RopeCase &RopeCase::theta(double theta) {
  return theta_ = theta, *this;
}
RopeCase &RopeCase::inv_freq(std::vector<double> inv_freq) {
  return inv_freq_ = std::move(inv_freq), *this;
}
RopeCase &RopeCase::attention_scale(double scale) {
  return attention_scale_ = scale, *this;
}
RopeCase &RopeCase::packed() {
  return packed_ = true, *this;
}
RopeCase &RopeCase::position_offset(int64_t offset) {
  return position_offset_ = offset, *this;
}
RopeCase &RopeCase::normal_data() {
  return normal_data_ = true, *this;
}

RopeCase &RopeCase::heads(int64_t q) {
  operands_[0].heads = q;
  return *this;
}

RopeCase &RopeCase::heads(int64_t q, int64_t k) {
  operands_[1].present = true;
  operands_[1].heads = k;
  return heads(q);
}

RopeCase &RopeCase::heads(int64_t q, int64_t k, int64_t v) {
  operands_[2].present = true;
  operands_[2].heads = v;
  return heads(q, k);
}

RopeCase &RopeCase::in_place(bool q, bool k, bool v) {
  operands_[0].in_place = q;
  operands_[1].in_place = k;
  operands_[2].in_place = v;
  return *this;
}

RopeCase &RopeCase::placed(const Placement &everywhere) {
  for (Operand &operand : operands_) operand.in = operand.out = everywhere;
  return *this;
}

RopeCase &RopeCase::q_placed(const Placement &in, const Placement &out) {
  operands_[0].in = in;
  operands_[0].out = out;
  return *this;
}

RopeCase &RopeCase::k_placed(const Placement &in, const Placement &out) {
  operands_[1].in = in;
  operands_[1].out = out;
  return *this;
}

RopeCase &RopeCase::v_placed(const Placement &in, const Placement &out) {
  operands_[2].in = in;
  operands_[2].out = out;
  return *this;
}

RopeCase &RopeCase::positions(PositionShape shape, rope_dtype_t dtype, PositionValue value,
                              const Placement &placement) {
  positions_ = {true, shape, dtype, std::move(value), placement};
  return *this;
}

RopeCase &RopeCase::start_positions(PositionShape shape, rope_dtype_t dtype, PositionValue value,
                                    const Placement &placement) {
  start_positions_ = {true, shape, dtype, std::move(value), placement};
  return *this;
}

RopeCase &RopeCase::tables(int64_t rows, TableStorage storage, const Placement &cos, const Placement &sin) {
  rows_ = rows;
  table_storage_ = storage;
  cos_placement_ = cos;
  sin_placement_ = sin;
  return *this;
}

RopeCase &RopeCase::table_dtype(rope_dtype_t dtype) {
  return table_dtype_ = dtype, *this;
}

RopeCase &RopeCase::tables_by_token(bool by_batch, TableStorage storage, const Placement &cos, const Placement &sin) {
  tables_by_token_ = true;
  tables_by_batch_ = by_batch;
  return tables(tokens_, storage, cos, sin);
}

std::string RopeCase::describe() const {
  static const char *const layouts[] = {"?", "BSHD", "SBHD", "BHSD", "THD"};
  std::ostringstream text;
  text << oracle::dtype_name(dtype_) << ' ' << layouts[layout_] << ' '
       << (style_ == ROPE_STYLE_HALF ? "HALF" : "INTERLEAVED") << " B=" << batches() << " S=" << tokens_
       << " D=" << head_dim_ << " R=" << rotated_width() << " offset=" << rotary_offset_;
  for (const Operand &operand : operands_) {
    if (!operand.present) continue;
    text << "; " << operand.name << ": H=" << operand.heads << operand.in.describe();
    if (operand.in_place) {
      text << " in place";
    } else {
      text << " ->" << operand.out.describe();
    }
  }
  if (packed_) text << "; packed";
  if (rows_ >= 0) {
    text << "; " << oracle::dtype_name(table_dtype_) << " tables"
         << (tables_by_batch_   ? " by batch and token"
             : tables_by_token_ ? " by token"
                                : "")
         << " M=" << rows_ << " storage " << static_cast<int>(table_storage_) << cos_placement_.describe()
         << sin_placement_.describe();
  } else if (inv_freq_.empty()) {
    text << "; theta=" << theta_;
  } else {
    text << "; inv_freq given";
  }
  if (attention_scale_ != 0) text << "; scale=" << attention_scale_;
  if (positions_.present) {
    text << "; positions " << oracle::dtype_name(positions_.dtype) << " shape " << static_cast<int>(positions_.shape)
         << positions_.placement.describe();
  }
  if (start_positions_.present) {
    text << "; start_positions " << oracle::dtype_name(start_positions_.dtype) << " shape "
         << static_cast<int>(start_positions_.shape) << start_positions_.placement.describe();
  }
  if (position_offset_) text << "; position_offset=" << position_offset_;
  return text.str();
}

Shape RopeCase::shape(int64_t heads) const {
  switch (layout_) {
    case ROPE_LAYOUT_SBHD:
      return {tokens_, batch_, heads, head_dim_};
    case ROPE_LAYOUT_BHSD:
      return {batch_, heads, tokens_, head_dim_};
    case ROPE_LAYOUT_THD:
      return {tokens_, heads, head_dim_};
    default:
      return {batch_, tokens_, heads, head_dim_};
  }
}

Index RopeCase::index(int64_t batch, int64_t token, int64_t head, int64_t channel) const {
  Index index = {};
  if (layout_ != ROPE_LAYOUT_THD) index[batch_axis(layout_)] = batch;
  index[token_axis(layout_)] = token;
  index[head_axis(layout_)] = head;
  index[channel_axis(layout_)] = channel;
  return index;
}

int64_t RopeCase::value_of(const PositionTensor &tensor, int64_t batch, int64_t token) const {
  switch (tensor.shape) {
    case PositionShape::PerToken:
      return tensor.value(0, token);
    case PositionShape::PerBatch:
      return tensor.value(batch, 0);
    default:
      return tensor.value(batch, token);
  }
}

int64_t RopeCase::position_of(int64_t batch, int64_t token) const {
  uint64_t sum = static_cast<uint64_t>(positions_.present ? value_of(positions_, batch, token) : token);
  if (start_positions_.present) sum += static_cast<uint64_t>(value_of(start_positions_, batch, token));
  return static_cast<int64_t>(sum + static_cast<uint64_t>(position_offset_));
}

rope_tensor_t RopeCase::position_tensor(const PositionTensor &tensor, Workspace &workspace) const {
  if (!tensor.present) return {};
  const bool both = tensor.shape == PositionShape::PerBatchAndToken;
  const bool by_batch = tensor.shape == PositionShape::PerBatch;
  const Shape shape = both ? Shape{batches(), tokens_} : Shape{by_batch ? batches() : tokens_};
  const rope_tensor_t view = workspace.tensor(tensor.dtype, shape, tensor.placement);
  workspace.fill_integers(view, [&](const Index &index) {
    return both ? tensor.value(index[0], index[1]) : by_batch ? tensor.value(index[0], 0) : tensor.value(0, index[0]);
  });
  return view;
}

Real RopeCase::table_value(const rope_tensor_t &table, int64_t batch, int64_t row, int64_t pair) const {
  return tables_by_batch_ ? value_at(table, {batch, row, pair}) : value_at(table, {row, pair});
}

void RopeCase::build_tables(Scene *scene) const {
  if (rows_ < 0) return;
  Workspace &workspace = scene->workspace;
  rope_args_t &args = scene->args;
  if (tables_by_token_) args.table_rows = ROPE_TABLE_BY_TOKEN;
  const int64_t pairs = rotated_width() / 2;
  const auto shape = [&](std::initializer_list<int64_t> columns) {
    Shape result = {rows_};
    if (tables_by_batch_) result.insert(result.begin(), batches());
    result.insert(result.end(), columns);
    return result;
  };
  const int column_axis = tables_by_batch_ ? 2 : 1;
  if (table_storage_ == TableStorage::SideBySide) {
    const rope_tensor_t both = workspace.tensor(table_dtype_, shape({2 * pairs}), cos_placement_);
    args.cos = narrow(both, column_axis, 0, pairs);
    args.sin = narrow(both, column_axis, pairs, pairs);
  } else if (table_storage_ == TableStorage::Alternating) {
    const rope_tensor_t both = workspace.tensor(table_dtype_, shape({pairs, 2}), cos_placement_);
    args.cos = select(both, column_axis + 1, 0);
    args.sin = select(both, column_axis + 1, 1);
  } else {
    args.cos = workspace.tensor(table_dtype_, shape({pairs}), cos_placement_);
    args.sin = workspace.tensor(table_dtype_, shape({pairs}), sin_placement_);
  }
  // Not a rotation: each cell has its own length, so that a wrong row, column or table shows.
  for (const rope_tensor_t &table : {args.cos, args.sin}) {
    workspace.fill(table, [&](const Index &) { return workspace.random().uniform(-1.5, 1.5); });
  }
}

void RopeCase::fill_operand(const Operand &operand, const rope_tensor_t &tensor, Workspace &workspace) const {
  bool shared = false;
  for (bool expanded : operand.in.expanded_axis) shared = shared || expanded;
  workspace.fill_bits(tensor);
  if (element_count(tensor) == 0) return;
  for (int64_t batch = 0; batch < batches(); ++batch) {
    for (int64_t token = 0; token < tokens_; ++token) {
      if (!shared && passes_through(position_of(batch, token))) continue;
      for (int64_t head = 0; head < operand.heads; ++head) {
        for (int64_t channel = rotary_offset_; channel < rotary_offset_ + rotated_width(); ++channel) {
          const double value = normal_data_ ? workspace.random().normal() : workspace.random().mixed();
          oracle::encode(dtype_, value, element_at(tensor, index(batch, token, head, channel)));
        }
      }
    }
  }
}

void RopeCase::build(Scene *scene) const {
  Workspace &workspace = scene->workspace;
  rope_args_t &args = scene->args;
  rope_tensor_t packed_in = {}, packed_out = {};
  int64_t all_heads = 0, first_head = 0;
  for (const Operand &operand : operands_) all_heads += operand.present ? operand.heads : 0;
  if (packed_) {
    packed_in = workspace.tensor(dtype_, shape(all_heads), operands_[0].in);
    if (!operands_[0].in_place) packed_out = workspace.tensor(dtype_, shape(all_heads), operands_[0].out);
  }
  for (int i = 0; i < 3; ++i) {
    const Operand &operand = operands_[i];
    if (!operand.present) continue;
    if (packed_) {
      scene->in[i] = narrow(packed_in, head_axis(layout_), first_head, operand.heads);
      if (!operand.in_place) scene->out[i] = narrow(packed_out, head_axis(layout_), first_head, operand.heads);
      first_head += operand.heads;
    } else {
      scene->in[i] = workspace.tensor(dtype_, shape(operand.heads), operand.in);
      if (!operand.in_place) scene->out[i] = workspace.tensor(dtype_, shape(operand.heads), operand.out);
    }
    fill_operand(operand, scene->in[i], workspace);
  }
  args.q = scene->in[0];
  args.q_out = scene->out[0];
  args.k = scene->in[1];
  args.k_out = scene->out[1];
  args.v = scene->in[2];
  args.v_out = scene->out[2];
  for (int i = 0; i < 3; ++i) {
    if (operands_[i].in_place) scene->out[i] = scene->in[i];
  }
  args.positions = position_tensor(positions_, workspace);
  args.start_positions = position_tensor(start_positions_, workspace);
  args.position_offset = position_offset_;
  build_tables(scene);
  workspace.freeze();
}

RopeCase::Row RopeCase::row_of(const Scene &scene, int64_t batch, int64_t position) const {
  Row row;
  row.passes_through = passes_through(position);
  if (row.passes_through) return row;
  const Real scale = attention_scale_ == 0 ? 1 : attention_scale_;
  for (int pair = 0; pair < rotated_width() / 2; ++pair) {
    Rotation by;
    Real phase_error = 0;
    if (rows_ >= 0) {
      by = {table_value(scene.args.cos, batch, position, pair), table_value(scene.args.sin, batch, position, pair)};
    } else {
      const Real frequency =
          inv_freq_.empty() ? oracle::frequency(theta_, rotated_width(), pair) : static_cast<Real>(inv_freq_[pair]);
      by = oracle::rotation(position, frequency);
      by = {by.cos * scale, by.sin * scale};
      phase_error = tolerance::phase(position, frequency);
    }
    row.rotations.push_back(by);
    row.lengths.push_back(rows_ >= 0 ? std::hypot(by.cos, by.sin) : std::fabs(scale));
    row.phase_errors.push_back(phase_error);
  }
  return row;
}

rope_config_t RopeCase::config(const Device &device, int32_t threads) const {
  rope_config_t config = rope_config_for(device, head_dim_);
  config.dtype = dtype_;
  config.layout = layout_;
  config.style = style_;
  config.rotary_dim = rotary_dim_;
  config.rotary_offset = rotary_offset_;
  config.theta = theta_;
  config.attention_scale = attention_scale_;
  config.inv_freq = inv_freq_.empty() ? nullptr : inv_freq_.data();
  config.num_threads = threads;
  return config;
}

void RopeCase::verify(Scene *scene, Direction direction, RopeStatistics *statistics) const {
  Workspace &workspace = scene->workspace;
  const int pairs = rotated_width() / 2;
  const bool half = style_ == ROPE_STYLE_HALF;
  std::map<std::pair<int64_t, int64_t>, Row> rows;
  int64_t wrong = 0;
  const auto report = [&](const Operand &operand, const char *what, const Index &at, Real expected, Real slack,
                          Real actual) {
    if (++wrong > 3) return;
    UNSCOPED_INFO(operand.name << '[' << at[0] << ',' << at[1] << ',' << at[2] << ',' << at[3] << "] " << what
                               << ": expected " << static_cast<double>(expected) << " +- " << static_cast<double>(slack)
                               << ", got " << static_cast<double>(actual) << ", difference "
                               << static_cast<double>(actual - expected));
  };
  for (int64_t batch = 0; batch < batches(); ++batch) {
    for (int64_t token = 0; token < tokens_; ++token) {
      const int64_t position = position_of(batch, token);
      const std::pair<int64_t, int64_t> key = {tables_by_batch_ ? batch : 0, position};
      auto found = rows.find(key);
      if (found == rows.end()) found = rows.emplace(key, row_of(*scene, batch, position)).first;
      const Row &row = found->second;
      for (int i = 0; i < 3; ++i) {
        const Operand &operand = operands_[i];
        if (!operand.present) continue;
        const rope_tensor_t before = workspace.before(scene->in[i]);
        const rope_tensor_t &out = scene->out[i];
        for (int64_t head = 0; head < operand.heads; ++head) {
          for (int pair = 0; pair < pairs && !row.passes_through; ++pair) {
            const Index at_x = index(batch, token, head, rotary_offset_ + (half ? pair : 2 * pair));
            const Index at_y = index(batch, token, head, rotary_offset_ + (half ? pair + pairs : 2 * pair + 1));
            const Pair in = {value_at(before, at_x), value_at(before, at_y)};
            const Pair exact = direction == Direction::Forward ? oracle::rotate(in, row.rotations[pair])
                                                               : oracle::rotate_transposed(in, row.rotations[pair]);
            const Real magnitude = std::sqrt(in.x * in.x + in.y * in.y) * row.lengths[pair];
            const Real slack = tolerance::rope_slack(dtype_, magnitude, row.phase_errors[pair]);
            const Real x = value_at(out, at_x), y = value_at(out, at_y);
            if (!tolerance::accepts(dtype_, x, exact.x, slack)) report(operand, "x", at_x, exact.x, slack, x);
            if (!tolerance::accepts(dtype_, y, exact.y, slack)) report(operand, "y", at_y, exact.y, slack, y);
            if (direction == Direction::Forward) {
              statistics->rotated += 2;
              statistics->correctly_rounded +=
                  (x == oracle::nearest(dtype_, exact.x)) + (y == oracle::nearest(dtype_, exact.y));
            }
            workspace.accept(out, at_x);
            workspace.accept(out, at_y);
          }
          if (operand.in_place) continue;
          for (int64_t channel = 0; channel < head_dim_; ++channel) {
            const bool rotated = channel >= rotary_offset_ && channel < rotary_offset_ + rotated_width();
            if (rotated && !row.passes_through) continue;
            const Index at = index(batch, token, head, channel);
            if (!same_bits_at(before, at, out, at)) {
              report(operand, "copied", at, value_at(before, at), 0, value_at(out, at));
            }
            workspace.accept(out, at);
          }
        }
      }
    }
  }
  CHECK(wrong == 0);
}

RopeStatistics RopeCase::check() const {
  RopeStatistics statistics;
  const std::string description = describe();
  uint64_t seed = 1;
  for (char letter : description) seed = seed * 31 + static_cast<unsigned char>(letter);
  Scene scene(seed);
  build(&scene);
  for (const Direction direction : {Direction::Forward, Direction::Backward}) {
    std::vector<std::byte> first;
    for (const Device &device : devices()) {
      for (const int32_t threads :
           device.kind == ROPE_DEVICE_CPU ? std::vector<int32_t>{1, 5, 0} : std::vector<int32_t>{0}) {
        INFO(description << "; " << name_of(direction) << " on " << device << ", num_threads " << threads);
        const RopeDesc desc = create(config(device, threads));
        scene.workspace.restore();
        const rope_status_t status = run(device, desc.get(), direction, scene.args, scene.workspace);
        if (status != ROPE_STATUS_SUCCESS) {
          FAIL_CHECK(rope_status_name(status) << ": " << rope_last_error());
          return statistics;
        }
        if (first.empty()) {
          verify(&scene, direction, &statistics);
          std::string where;
          const bool untouched = scene.workspace.untouched_elsewhere(&where);
          INFO(where);
          CHECK(untouched);
          first = scene.workspace.image();
        } else {
          CHECK(scene.workspace.guards_hold());
          const bool same_bits = scene.workspace.image() == first;
          CHECK(same_bits);
        }
      }
    }
  }
  return statistics;
}
