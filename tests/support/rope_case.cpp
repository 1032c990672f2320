// SPDX-License-Identifier: Apache-2.0
// rope_case.cpp - builds the tensors of a RopeCase, runs it on all devices and verifies the results
#include <algorithm>
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
  rope_tensor_t in[3] = {}, out[3] = {};  // in place, out equals in
};

// The rotation of a pair: x of the output by one angle and y by another. The two differ only for tables by channel.
struct Turn {
  Rotation of_x, of_y;      // including the scale
  Real length_x, length_y;  // the factor by which the direction can increase x and y
  Real angle_error;

  // As frameworks compute it: each operation in fp32 with its result rounded to the data's type.
  Pair rotate_rounding_each(rope_dtype_t dtype, const Pair &in, bool forward) const {
    const auto rounded = [&](Real value) { return oracle::nearest(dtype, oracle::nearest(ROPE_DTYPE_F32, value)); };
    const auto product = [&](Real value, Real angle) { return rounded(value * rounded(angle)); };
    if (forward) {
      return {rounded(product(in.x, of_x.cos) - product(in.y, of_x.sin)),
              rounded(product(in.y, of_y.cos) + product(in.x, of_y.sin))};
    }
    return {rounded(product(in.x, of_x.cos) + product(in.y, of_y.sin)),
            rounded(product(in.y, of_y.cos) - product(in.x, of_x.sin))};
  }
};

struct RopeCase::Row {
  bool passes_through = false;
  std::vector<Turn> turns;
};

// The rotated windows of all heads of all rotated tokens, one after another.
struct RopeCase::Windows {
  std::vector<std::vector<Real>> values;
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

Shape shape_in_layout(rope_layout_t layout, int64_t batches, int64_t tokens, int64_t heads, int64_t channels) {
  switch (layout) {
    case ROPE_LAYOUT_SBHD:
      return {tokens, batches, heads, channels};
    case ROPE_LAYOUT_BHSD:
      return {batches, heads, tokens, channels};
    case ROPE_LAYOUT_THD:
      return {tokens, heads, channels};
    default:
      return {batches, tokens, heads, channels};
  }
}

Index index_in_layout(rope_layout_t layout, int64_t batch, int64_t token, int64_t head, int64_t channel) {
  Index index = {};
  if (layout != ROPE_LAYOUT_THD) index[batch_axis(layout)] = batch;
  index[token_axis(layout)] = token;
  index[head_axis(layout)] = head;
  index[channel_axis(layout)] = channel;
  return index;
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
RopeCase &RopeCase::out_style(rope_style_t style) {
  return out_style_ = style, *this;
}
RopeCase &RopeCase::pair_block(int32_t block) {
  return pair_block_ = block, *this;
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
RopeCase &RopeCase::shared_positions(bool by_batches, bool by_axes) {
  batches_share_positions_ = by_batches;
  axes_share_positions_ = by_axes;
  return *this;
}

RopeCase &RopeCase::position_offset(int64_t offset) {
  return position_offset_ = offset, *this;
}
RopeCase &RopeCase::table_width(TableWidth width) {
  return table_width_ = width, *this;
}
RopeCase &RopeCase::angles(double max_angle) {
  return max_angle_ = max_angle, *this;
}
RopeCase &RopeCase::rounding_each() {
  return rounds_each_ = true, *this;
}

RopeCase &RopeCase::adjoint() {
  return adjoint_ = true, *this;
}
RopeCase &RopeCase::normal_data() {
  return normal_data_ = true, *this;
}

RopeCase &RopeCase::explained(std::vector<std::string> *explanations) {
  return explanations_ = explanations, *this;
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

RopeCase &RopeCase::axes(int32_t num_axes, std::vector<int32_t> pair_axis) {
  num_axes_ = num_axes;
  pair_axis_ = std::move(pair_axis);
  return *this;
}

RopeCase &RopeCase::positions(PositionShape shape, rope_dtype_t dtype, PositionValue value,
                              const Placement &placement) {
  const auto on_every_axis = [value = std::move(value)](int64_t, int64_t batch, int64_t token) {
    return value(batch, token);
  };
  return axis_positions(shape, dtype, on_every_axis, placement);
}

RopeCase &RopeCase::start_positions(PositionShape shape, rope_dtype_t dtype, PositionValue value,
                                    const Placement &placement) {
  const auto on_every_axis = [value = std::move(value)](int64_t, int64_t batch, int64_t token) {
    return value(batch, token);
  };
  return axis_start_positions(shape, dtype, on_every_axis, placement);
}

RopeCase &RopeCase::axis_positions(PositionShape shape, rope_dtype_t dtype, AxisPositionValue value,
                                   const Placement &placement) {
  positions_ = {true, shape, dtype, std::move(value), placement};
  return *this;
}

RopeCase &RopeCase::axis_start_positions(PositionShape shape, rope_dtype_t dtype, AxisPositionValue value,
                                         const Placement &placement) {
  start_positions_ = {true, shape, dtype, std::move(value), placement};
  return *this;
}

RopeCase &RopeCase::sequences(std::vector<int64_t> cu_seqlens, rope_dtype_t dtype, const Placement &placement) {
  cu_seqlens_ = std::move(cu_seqlens);
  cu_seqlens_dtype_ = dtype;
  cu_seqlens_placement_ = placement;
  return layout(ROPE_LAYOUT_THD);
}

RopeCase &RopeCase::tables_by_axis(bool shared) {
  tables_by_axis_ = true;
  axes_share_table_ = shared;
  return *this;
}

RopeCase &RopeCase::fault(int64_t count, int64_t lowest) {
  has_fault_ = true;
  fault_count_ = count;
  fault_lowest_ = lowest;
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
  if (out_style_) text << "; out_style " << (out_style_ == ROPE_STYLE_HALF ? "HALF" : "INTERLEAVED");
  if (pair_block_) text << "; pair_block=" << pair_block_;
  if (rounds_each_) text << "; rounding each";
  if (num_axes_) text << "; num_axes=" << num_axes_;
  const auto list = [&](const char *name, const auto &values) {
    if (values.empty()) return;
    text << "; " << name;
    for (const auto &value : values) text << ' ' << value;
  };
  list("pair_axis", pair_axis_);
  list("cu_seqlens", cu_seqlens_);
  if (!cu_seqlens_.empty()) text << ' ' << oracle::dtype_name(cu_seqlens_dtype_) << cu_seqlens_placement_.describe();
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
    static const char *const widths[] = {"", " W=R", " W=R/(2A)"};
    text << "; " << oracle::dtype_name(table_dtype_) << (max_angle_ != 0 ? " angles" : " tables")
         << (tables_by_batch_   ? " by batch and token"
             : tables_by_token_ ? " by token"
                                : "")
         << (!tables_by_axis_    ? ""
             : axes_share_table_ ? " of one axis"
                                 : " by axis")
         << " M=" << rows_ << widths[static_cast<int>(table_width_)] << " storage " << static_cast<int>(table_storage_)
         << cos_placement_.describe() << sin_placement_.describe();
    if (max_angle_ != 0) text << " within " << max_angle_;
  } else if (inv_freq_.empty()) {
    text << "; theta=" << theta_;
  } else {
    list("inv_freq", inv_freq_);
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
  if (batches_share_positions_) text << "; batches share positions";
  if (axes_share_positions_) text << "; axes share positions";
  if (position_offset_) text << "; position_offset=" << position_offset_;
  if (has_fault_) text << "; fault from " << fault_count_ << ' ' << fault_lowest_;
  return text.str();
}

Shape RopeCase::shape(int64_t heads) const {
  return shape_in_layout(layout_, batch_, tokens_, heads, head_dim_);
}

Index RopeCase::index(int64_t batch, int64_t token, int64_t head, int64_t channel) const {
  return index_in_layout(layout_, batch, token, head, channel);
}

int32_t RopeCase::channel_of(rope_style_t style, int pair, int member) const {
  const int32_t block = pair_block_ ? pair_block_ : rotated_width();
  return rotary_offset_ + oracle::channel_in_window(style, block, pair, member);
}

int64_t RopeCase::columns() const {
  switch (table_width_) {
    case TableWidth::Channels:
      return rotated_width();
    case TableWidth::Repeated:
      return rotated_width() / (2 * num_axes());
    default:
      return rotated_width() / 2;
  }
}

// Nothing is launched for such a problem.
bool RopeCase::is_empty() const {
  int64_t heads = 0;
  for (const Operand &operand : operands_) heads += operand.present ? operand.heads : 0;
  return batches() * tokens_ * heads == 0;
}

int64_t RopeCase::sequence_of(int64_t batch, int64_t token) const {
  if (cu_seqlens_.empty()) return batch;
  int64_t sequence = 0;
  while (token >= cu_seqlens_[sequence + 1]) ++sequence;
  return sequence;
}

int64_t RopeCase::value_of(const PositionTensor &tensor, const rope_tensor_t &view, int64_t axis, int64_t batch,
                           int64_t token) const {
  if (axes_share_positions_) axis = 0;
  if (tensor.shape == PositionShape::PerBatch) {
    return integer_at(view, {batches_share_positions_ ? 0 : sequence_of(batch, token)});
  }
  if (batches_share_positions_) batch = 0;
  const bool both = tensor.shape == PositionShape::PerBatchAndToken;
  if (num_axes() > 1) return integer_at(view, both ? Index{axis, batch, token} : Index{axis, token});
  return integer_at(view, both ? Index{batch, token} : Index{token});
}

int64_t RopeCase::position_of(const Scene &scene, int64_t axis, int64_t batch, int64_t token) const {
  const int64_t first = cu_seqlens_.empty() ? 0 : cu_seqlens_[sequence_of(batch, token)];
  auto sum = static_cast<uint64_t>(token - first);
  if (positions_.present) {
    sum = static_cast<uint64_t>(value_of(positions_, scene.args.positions, axis, batch, token));
  }
  if (start_positions_.present) {
    sum += static_cast<uint64_t>(value_of(start_positions_, scene.args.start_positions, axis, batch, token));
  }
  return static_cast<int64_t>(sum + static_cast<uint64_t>(position_offset_));
}

rope_tensor_t RopeCase::position_tensor(const PositionTensor &tensor, Workspace &workspace) const {
  if (!tensor.present) return {};
  const bool both = tensor.shape == PositionShape::PerBatchAndToken;
  const bool by_batch = tensor.shape == PositionShape::PerBatch;
  const int64_t starts = cu_seqlens_.empty() ? batches() : static_cast<int64_t>(cu_seqlens_.size()) - 1;
  const auto batches_of = [&](int64_t count) { return batches_share_positions_ ? 1 : count; };
  Shape shape = both ? Shape{batches_of(batches()), tokens_} : Shape{by_batch ? batches_of(starts) : tokens_};
  const bool by_axis = num_axes() > 1 && !by_batch;
  if (by_axis) shape.insert(shape.begin(), axes_share_positions_ ? 1 : num_axes());
  const rope_tensor_t view = workspace.tensor(tensor.dtype, shape, tensor.placement);
  workspace.fill_integers(view, [&](const Index &index) {
    const int first = by_axis ? 1 : 0;
    const int64_t axis = by_axis ? index[0] : 0;
    if (by_batch) return tensor.value(axis, index[first], 0);
    return both ? tensor.value(axis, index[first], index[first + 1]) : tensor.value(axis, 0, index[first]);
  });
  return view;
}

Real RopeCase::table_value(const rope_tensor_t &table, int64_t axis, int64_t batch, int64_t row, int64_t column) const {
  Index at = {};
  int next = 0;
  // Tables by token with several axes always have the leading axis.
  if (tables_by_axis_ || (tables_by_token_ && num_axes() > 1)) {
    at[next] = table.shape[next] == 1 ? 0 : axis;
    ++next;
  }
  if (tables_by_batch_) at[next++] = batch;
  at[next++] = row;
  at[next] = column;
  return value_at(table, at);
}

void RopeCase::build_tables(Scene *scene) const {
  if (rows_ < 0) return;
  Workspace &workspace = scene->workspace;
  rope_args_t &args = scene->args;
  if (tables_by_token_) args.table_rows = ROPE_TABLE_BY_TOKEN;
  Shape shape = {rows_};
  if (tables_by_batch_) shape.insert(shape.begin(), batches());
  if (tables_by_axis_ || (tables_by_token_ && num_axes() > 1)) {
    shape.insert(shape.begin(), tables_by_axis_ && !axes_share_table_ ? num_axes() : 1);
  }
  const auto with_columns = [&](std::initializer_list<int64_t> columns) {
    Shape result = shape;
    result.insert(result.end(), columns);
    return result;
  };
  const int column_axis = static_cast<int>(shape.size());
  if (max_angle_ != 0) {
    args.angles = workspace.tensor(table_dtype_, with_columns({columns()}), cos_placement_);
    workspace.fill(args.angles, [&](const Index &) {
      const double part = workspace.random().uniform(-1, 1) * max_angle_;
      return workspace.random().below(2) ? part : std::ldexp(part, -static_cast<int>(workspace.random().below(40)));
    });
    return;
  }
  if (table_storage_ == TableStorage::SideBySide) {
    const rope_tensor_t both = workspace.tensor(table_dtype_, with_columns({2 * columns()}), cos_placement_);
    args.cos = narrow(both, column_axis, 0, columns());
    args.sin = narrow(both, column_axis, columns(), columns());
  } else if (table_storage_ == TableStorage::Alternating && column_axis == 3) {
    // A view has at most four axes, so this one takes every second column of a tensor with twice as many.
    const rope_tensor_t both = workspace.tensor(table_dtype_, with_columns({2 * columns()}), cos_placement_);
    const int64_t has_second = columns() > 0 ? 1 : 0;
    args.cos = narrow(both, column_axis, 0, columns());
    args.sin = narrow(both, column_axis, has_second, columns());
    args.cos.stride[column_axis] *= 2;
    args.sin.stride[column_axis] *= 2;
  } else if (table_storage_ == TableStorage::Alternating) {
    const rope_tensor_t both = workspace.tensor(table_dtype_, with_columns({columns(), 2}), cos_placement_);
    args.cos = select(both, column_axis + 1, 0);
    args.sin = select(both, column_axis + 1, 1);
  } else {
    args.cos = workspace.tensor(table_dtype_, with_columns({columns()}), cos_placement_);
    args.sin = workspace.tensor(table_dtype_, with_columns({columns()}), sin_placement_);
  }
  // The entries are no rotation: each has its own length, so that a wrong row, column or table is detected.
  for (const rope_tensor_t &table : {args.cos, args.sin}) {
    workspace.fill(table, [&](const Index &) { return workspace.random().uniform(-1.5, 1.5); });
  }
}

// Elements that no call reads as numbers keep their random bits.
void RopeCase::fill_operand(const Operand &operand, const rope_tensor_t &tensor, Scene *scene) const {
  Workspace &workspace = scene->workspace;
  bool shared = false;
  for (bool expanded : operand.in.expanded_axis) shared = shared || expanded;
  workspace.fill_bits(tensor);
  if (element_count(tensor) == 0) return;
  for (int64_t batch = 0; batch < batches(); ++batch) {
    for (int64_t token = 0; token < tokens_; ++token) {
      if (!shared && (is_padding(token) || passes_through(*scene, batch, token))) continue;
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
  args.positions = position_tensor(positions_, workspace);
  args.start_positions = position_tensor(start_positions_, workspace);
  args.position_offset = position_offset_;
  if (!cu_seqlens_.empty()) {
    args.cu_seqlens =
        workspace.tensor(cu_seqlens_dtype_, {static_cast<int64_t>(cu_seqlens_.size())}, cu_seqlens_placement_);
    workspace.fill_integers(args.cu_seqlens, [&](const Index &index) { return cu_seqlens_[index[0]]; });
  }
  build_tables(scene);
  if (has_fault_) {
    args.fault = workspace.tensor(ROPE_DTYPE_I64, {2});
    workspace.fill_integers(args.fault, [&](const Index &index) { return index[0] ? fault_lowest_ : fault_count_; });
  }
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
    fill_operand(operand, scene->in[i], scene);
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
  workspace.freeze();
}

bool RopeCase::passes_through(const Scene &scene, int64_t batch, int64_t token) const {
  if (rows_ < 0 || tables_by_token_) return false;
  for (int pair = 0; pair < rotated_width() / 2; ++pair) {
    const int64_t position = position_of(scene, axis_of(pair), batch, token);
    if (position < 0 || position >= rows_) return true;
  }
  return false;
}

RopeCase::Row RopeCase::row_of(const Scene &scene, Direction direction, int64_t batch, int64_t token) const {
  Row row;
  row.passes_through = passes_through(scene, batch, token);
  if (row.passes_through) return row;
  const Real scale = attention_scale_ == 0 ? 1 : attention_scale_;
  const bool is_scaled = scale != 1;
  int64_t positions[ROPE_MAX_POSITION_AXES];
  for (int axis = 0; axis < num_axes(); ++axis) positions[axis] = position_of(scene, axis, batch, token);
  for (int pair = 0; pair < rotated_width() / 2; ++pair) {
    const int axis = axis_of(pair);
    Turn turn = {};
    if (rows_ >= 0) {
      Rotation members[2];
      for (int member = 0; member < 2; ++member) {
        const int64_t column = table_width_ == TableWidth::Channels
                                   ? channel_of(written_style(), pair, member) - rotary_offset_
                                   : pair % columns();
        const auto cell = [&](const rope_tensor_t &table) {
          return table_value(table, axis, batch, tables_by_token_ ? token : positions[axis], column);
        };
        if (max_angle_ != 0) {
          members[member] = oracle::rotation_by_angle(cell(scene.args.angles));
          members[member].cos *= scale;
          members[member].sin *= scale;
        } else {
          members[member] = {cell(scene.args.cos), cell(scene.args.sin)};
        }
      }
      turn.of_x = members[0];
      turn.of_y = members[1];
      turn.angle_error =
          max_angle_ != 0 ? tolerance::angle(dtype_, 1e-18L, is_scaled) : tolerance::table(dtype_, table_dtype_);
    } else {
      const int64_t position = positions[axis];
      const Real frequency =
          inv_freq_.empty() ? oracle::frequency(theta_, rotated_width(), pair) : static_cast<Real>(inv_freq_[pair]);
      const Rotation by = oracle::rotation(position, frequency);
      turn.of_x = turn.of_y = {by.cos * scale, by.sin * scale};
      turn.angle_error = tolerance::angle(dtype_, tolerance::phase(position, frequency), is_scaled);
    }
    const bool forward = direction == Direction::Forward;
    turn.length_x = std::hypot(turn.of_x.cos, forward ? turn.of_x.sin : turn.of_y.sin);
    turn.length_y = std::hypot(turn.of_y.cos, forward ? turn.of_y.sin : turn.of_x.sin);
    if (max_angle_ != 0) {
      // A cosine and the sine of another angle may both be small, but the error of computed ones is not.
      turn.length_x = std::max(turn.length_x, std::fabs(scale));
      turn.length_y = std::max(turn.length_y, std::fabs(scale));
    }
    row.turns.push_back(turn);
  }
  return row;
}

rope_config_t RopeCase::config(const Device &device, int32_t threads) const {
  rope_config_t config = rope_config_for(device, head_dim_);
  config.dtype = dtype_;
  config.layout = layout_;
  config.style = style_;
  config.out_style = out_style_;
  config.pair_block = pair_block_;
  config.num_axes = num_axes_;
  config.pair_axis = pair_axis_.empty() ? nullptr : pair_axis_.data();
  config.rotary_dim = rotary_dim_;
  config.rotary_offset = rotary_offset_;
  config.theta = theta_;
  config.attention_scale = attention_scale_;
  config.inv_freq = inv_freq_.empty() ? nullptr : inv_freq_.data();
  config.num_threads = threads;
  config.rotation_rounding = rounds_each_ ? ROPE_ROTATION_ROUND_EACH : 0;
  return config;
}

void RopeCase::verify(Scene *scene, Direction direction, RopeStatistics *statistics) const {
  Workspace &workspace = scene->workspace;
  const int pairs = rotated_width() / 2;
  const bool forward = direction == Direction::Forward;
  const rope_style_t read_style = forward ? style_ : written_style();
  const rope_style_t written = forward ? written_style() : style_;
  std::map<std::vector<int64_t>, Row> rows;
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
      if (is_padding(token)) continue;
      std::vector<int64_t> key = {tables_by_batch_ ? batch : 0};
      if (tables_by_token_) {
        key.push_back(token);
      } else {
        for (int axis = 0; axis < num_axes(); ++axis) key.push_back(position_of(*scene, axis, batch, token));
      }
      auto found = rows.find(key);
      if (found == rows.end()) found = rows.emplace(key, row_of(*scene, direction, batch, token)).first;
      const Row &row = found->second;
      for (int i = 0; i < 3; ++i) {
        const Operand &operand = operands_[i];
        if (!operand.present) continue;
        const rope_tensor_t before = workspace.before(scene->in[i]);
        const rope_tensor_t &out = scene->out[i];
        for (int64_t head = 0; head < operand.heads; ++head) {
          for (int pair = 0; pair < pairs && !row.passes_through; ++pair) {
            const Turn &turn = row.turns[pair];
            const Pair in = {value_at(before, index(batch, token, head, channel_of(read_style, pair, 0))),
                             value_at(before, index(batch, token, head, channel_of(read_style, pair, 1)))};
            const Index at_x = index(batch, token, head, channel_of(written, pair, 0));
            const Index at_y = index(batch, token, head, channel_of(written, pair, 1));
            Pair exact = forward ? oracle::rotate(in, turn.of_x, turn.of_y)
                                 : oracle::rotate_transposed(in, turn.of_x, turn.of_y);
            const Real length = std::sqrt(in.x * in.x + in.y * in.y);
            Real slack_x = tolerance::rope_slack(dtype_, length * turn.length_x, turn.angle_error);
            Real slack_y = tolerance::rope_slack(dtype_, length * turn.length_y, turn.angle_error);
            if (rounds_each_ && oracle::element_size(dtype_) == 2) {
              const bool is_exact = rows_ >= 0 && max_angle_ == 0;
              exact = turn.rotate_rounding_each(dtype_, in, forward);
              slack_x = is_exact ? 0 : slack_x + 4 * oracle::ulp(dtype_, length * turn.length_x);
              slack_y = is_exact ? 0 : slack_y + 4 * oracle::ulp(dtype_, length * turn.length_y);
            }
            const Real x = value_at(out, at_x), y = value_at(out, at_y);
            if (!tolerance::accepts(dtype_, x, exact.x, slack_x)) report(operand, "x", at_x, exact.x, slack_x, x);
            if (!tolerance::accepts(dtype_, y, exact.y, slack_y)) report(operand, "y", at_y, exact.y, slack_y, y);
            if (forward) {
              statistics->rotated += 2;
              statistics->correctly_rounded +=
                  (x == oracle::nearest(dtype_, exact.x)) + (y == oracle::nearest(dtype_, exact.y));
            }
            workspace.accept(out, at_x);
            workspace.accept(out, at_y);
          }
          const auto expect_moved = [&](const Index &from, const Index &to) {
            if (!same_bits_at(before, from, out, to)) {
              report(operand, "moved", to, value_at(before, from), 0, value_at(out, to));
            }
            workspace.accept(out, to);
          };
          // A token that is not rotated still changes its pairing style.
          for (int member = 0; member < 2 * pairs && row.passes_through; ++member) {
            expect_moved(index(batch, token, head, channel_of(read_style, member / 2, member % 2)),
                         index(batch, token, head, channel_of(written, member / 2, member % 2)));
          }
          for (int64_t channel = 0; channel < head_dim_ && !operand.in_place; ++channel) {
            if (channel >= rotary_offset_ && channel < rotary_offset_ + rotated_width()) continue;
            expect_moved(index(batch, token, head, channel), index(batch, token, head, channel));
          }
        }
      }
    }
  }
  CHECK(wrong == 0);
  verify_fault(scene);
}

void RopeCase::verify_fault(Scene *scene) const {
  if (!has_fault_) return;
  int64_t count = fault_count_, lowest = fault_lowest_;
  for (int64_t batch = 0; batch < batches() && !is_empty(); ++batch) {
    for (int64_t token = 0; token < tokens_; ++token) {
      if (is_padding(token) || !passes_through(*scene, batch, token)) continue;
      const int64_t number = batch * tokens_ + token + 1;
      ++count;
      lowest = lowest == 0 ? number : std::min(lowest, number);
    }
  }
  const rope_tensor_t &fault = scene->args.fault;
  CHECK(integer_at(fault, {0}) == count);
  CHECK(integer_at(fault, {1}) == lowest);
  for (int64_t word : {0, 1}) scene->workspace.accept(fault, {word});
}

RopeCase::Windows RopeCase::windows_of(const Scene &scene, const rope_tensor_t (&tensors)[3]) const {
  Windows windows;
  for (int64_t batch = 0; batch < batches(); ++batch) {
    for (int64_t token = 0; token < tokens_; ++token) {
      if (is_padding(token) || passes_through(scene, batch, token)) continue;
      for (int i = 0; i < 3; ++i) {
        if (!operands_[i].present) continue;
        for (int64_t head = 0; head < operands_[i].heads; ++head) {
          std::vector<Real> window;
          for (int64_t channel = rotary_offset_; channel < rotary_offset_ + rotated_width(); ++channel) {
            window.push_back(value_at(tensors[i], index(batch, token, head, channel)));
          }
          windows.values.push_back(std::move(window));
        }
      }
    }
  }
  return windows;
}

// <R x, y> = <x, transpose of R y>, for each head. Both directions use the same cos and sin, so only roundings differ.
void RopeCase::verify_adjoint(Scene *scene) const {
  Workspace &workspace = scene->workspace;
  const Device &device = devices()[0];
  const RopeDesc desc = create(config(device, 1));
  workspace.restore();
  const Windows x = windows_of(*scene, scene->in);
  CHECK(run(device, desc.get(), Direction::Forward, scene->args, workspace) == ROPE_STATUS_SUCCESS);
  const Windows rotated_x = windows_of(*scene, scene->out);
  workspace.restore();
  for (int i = 0; i < 3; ++i) {
    if (operands_[i].present) fill_operand(operands_[i], scene->in[i], scene);
  }
  workspace.freeze();
  const Windows y = windows_of(*scene, scene->in);
  CHECK(run(device, desc.get(), Direction::Backward, scene->args, workspace) == ROPE_STATUS_SUCCESS);
  const Windows turned_y = windows_of(*scene, scene->out);

  const rope_dtype_t arithmetic = dtype_ == ROPE_DTYPE_F64 ? ROPE_DTYPE_F64 : ROPE_DTYPE_F32;
  const Real rounding = (arithmetic == dtype_ ? 0 : oracle::ulp(dtype_, 1) / 2) + 3 * oracle::ulp(arithmetic, 1);
  const bool has_cells = rows_ >= 0 && max_angle_ == 0;
  const Real growth = has_cells ? 1.5L : attention_scale_ == 0 ? 1 : std::fabs(static_cast<Real>(attention_scale_));
  int64_t wrong = 0;
  for (size_t i = 0; i < x.values.size(); ++i) {
    Real forward = 0, backward = 0, square_x = 0, square_y = 0, sum = 0;
    for (size_t channel = 0; channel < x.values[i].size(); ++channel) {
      const Real from_x = x.values[i][channel], from_y = y.values[i][channel];
      forward += rotated_x.values[i][channel] * from_y;
      backward += from_x * turned_y.values[i][channel];
      square_x += from_x * from_x;
      square_y += from_y * from_y;
      sum += std::fabs(from_x) + std::fabs(from_y);
    }
    const Real slack = 4 * rounding * growth * std::sqrt(square_x * square_y) + oracle::min_positive(dtype_) * sum;
    wrong += !(std::fabs(forward - backward) <= slack);
  }
  INFO("heads whose forward and backward are no transposes: " << wrong << " of " << x.values.size());
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
      struct Variant {
        int32_t threads;
        uint32_t flags;
      };
      // With the flag, the CUDA backend chooses other kernels.
      const std::vector<Variant> variants = device.kind == ROPE_DEVICE_CPU
                                                ? std::vector<Variant>{{1, 0}, {5, 0}, {0, 0}}
                                                : std::vector<Variant>{{0, 0}, {0, ROPE_FLAG_PROGRAMMATIC_LAUNCH}};
      for (const auto &[threads, flags] : variants) {
        INFO(description << "; " << name_of(direction) << " on " << device << ", num_threads " << threads << ", flags "
                         << flags);
        const RopeDesc desc = create(config(device, threads));
        scene.args.flags = flags;
        scene.workspace.restore();
        if (explanations_ && device.kind == ROPE_DEVICE_CUDA && direction == Direction::Forward) {
          // Host addresses have the alignment of their copies on the device.
          char text[256] = "";
          CHECK(rope_explain(desc.get(), &scene.args, text, sizeof text) == ROPE_STATUS_SUCCESS);
          explanations_->push_back(text);
        }
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
  if (adjoint_) {
    INFO(description << "; adjoint");
    verify_adjoint(&scene);
  }
  return statistics;
}
