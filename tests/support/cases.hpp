// SPDX-License-Identifier: Apache-2.0
// cases.hpp - describes a RoPE or SwiGLU problem in one line; check() solves it on every device and compares with the
// oracle
//
//   RopeCase().dtype(ROPE_DTYPE_BF16).layout(ROPE_LAYOUT_BHSD).heads(8, 2).head_dim(128).rotary_dim(64).check();
//
// check() runs forward and backward, on the CPU with one thread, five threads and all threads, and on CUDA if there is
// a device. It compares every output element with the oracle. Every other byte must be unchanged: inputs, gaps between
// strides, guard bands, channels that are not rotated in place, padding tokens. For RoPE it also compares the fault
// words with its own count, and the bits of all runs with each other.
#ifndef ROPE_TESTS_SUPPORT_CASES_HPP
#define ROPE_TESTS_SUPPORT_CASES_HPP

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "device.hpp"
#include "tensors.hpp"

enum class PositionShape {
  PerToken,          // [S], or [T] for THD
  PerBatchAndToken,  // [B, S], or [1, T] for THD
  PerBatch           // [B]
};

using PositionValue = std::function<int64_t(int64_t batch, int64_t token)>;

// Values with several position axes. The shape is [A, T] or [A, S], [A, B, S] or [A, 1, T], or [B].
using AxisPositionValue = std::function<int64_t(int64_t axis, int64_t batch, int64_t token)>;

enum class TableStorage {
  Separate,     // two tensors [M, W]
  SideBySide,   // cos | sin in the columns of one tensor [M, 2W]
  Alternating,  // (cos, sin) in the last axis of one tensor [M, W, 2]
};

enum class TableWidth {
  Pairs,     // W = R/2
  Channels,  // W = R, in the order of the output's channels
  Repeated   // W = R/(2A)
};

// The index of the batch axis in a tensor of the layout; THD has none.
int batch_axis(rope_layout_t layout);
int token_axis(rope_layout_t layout);
int head_axis(rope_layout_t layout);
int channel_axis(rope_layout_t layout);

// In the order of the layout's axes; THD has no batch axis.
Shape shape_in_layout(rope_layout_t layout, int64_t batches, int64_t tokens, int64_t heads, int64_t channels);
Index index_in_layout(rope_layout_t layout, int64_t batch, int64_t token, int64_t head, int64_t channel);

struct RopeStatistics {
  int64_t rotated = 0;            // elements of the forward call
  int64_t correctly_rounded = 0;  // number of these that equal the exact value rounded to nearest
};

class RopeCase {
 public:
  RopeCase &dtype(rope_dtype_t dtype);
  RopeCase &layout(rope_layout_t layout);
  RopeCase &style(rope_style_t style);
  RopeCase &out_style(rope_style_t style);
  RopeCase &pair_block(int32_t block);
  RopeCase &batch(int64_t batch);
  RopeCase &tokens(int64_t tokens);
  RopeCase &heads(int64_t q);
  RopeCase &heads(int64_t q, int64_t k);
  RopeCase &heads(int64_t q, int64_t k, int64_t v);
  RopeCase &head_dim(int32_t head_dim);
  RopeCase &rotary_dim(int32_t rotary_dim);
  RopeCase &rotary_offset(int32_t rotary_offset);
  RopeCase &theta(double theta);
  RopeCase &inv_freq(std::vector<double> inv_freq);
  RopeCase &attention_scale(double scale);

  // num_axes and pair_axis of the config; an empty pair_axis becomes NULL.
  RopeCase &axes(int32_t num_axes, std::vector<int32_t> pair_axis);

  // The default is in place.
  RopeCase &in_place(bool q, bool k = true, bool v = true);
  RopeCase &out_of_place() { return in_place(false, false, false); }
  // q, k and v are parts of one tensor along the head axis, placed as q is; their outputs likewise.
  RopeCase &packed();
  RopeCase &placed(const Placement &everywhere);
  RopeCase &q_placed(const Placement &in, const Placement &out = {});
  RopeCase &k_placed(const Placement &in, const Placement &out = {});
  RopeCase &v_placed(const Placement &in, const Placement &out = {});

  RopeCase &positions(PositionShape shape, rope_dtype_t dtype, PositionValue value, const Placement &placement = {});
  RopeCase &start_positions(PositionShape shape, rope_dtype_t dtype, PositionValue value,
                            const Placement &placement = {});
  RopeCase &axis_positions(PositionShape shape, rope_dtype_t dtype, AxisPositionValue value,
                           const Placement &placement = {});
  RopeCase &axis_start_positions(PositionShape shape, rope_dtype_t dtype, AxisPositionValue value,
                                 const Placement &placement = {});
  // The B axis, and with by_axes the axis of position axes, of positions and start_positions has length 1 and is
  // broadcast.
  RopeCase &shared_positions(bool by_batches, bool by_axes = false);
  RopeCase &position_offset(int64_t offset);
  // THD. [B] of start_positions then counts sequences. Entries must be in order; tokens past the last entry are
  // padding.
  RopeCase &sequences(std::vector<int64_t> cu_seqlens, rope_dtype_t dtype = ROPE_DTYPE_I32,
                      const Placement &placement = {});
  RopeCase &tables(int64_t rows, TableStorage storage = TableStorage::Separate, const Placement &cos = {},
                   const Placement &sin = {});
  RopeCase &table_dtype(rope_dtype_t dtype);
  // One row per token; with by_batch, each batch has its own rows. Call it after tokens().
  RopeCase &tables_by_token(bool by_batch = false, TableStorage storage = TableStorage::Separate,
                            const Placement &cos = {}, const Placement &sin = {});

  RopeCase &table_width(TableWidth width);
  // Adds a leading axis of length A, or of length 1, which is broadcast.
  RopeCase &tables_by_axis(bool shared = false);
  // Replaces cos and sin by one tensor `angles` of the tables' dtype, with values within +-max_angle.
  RopeCase &angles(double max_angle);
  // Calls count into a fault tensor with these initial values.
  RopeCase &fault(int64_t count = 0, int64_t lowest = 0);

  // ROPE_ROTATION_ROUND_EACH. With a table of cos and sin, the exact bits of 16-bit data are then compared.
  RopeCase &rounding_each();

  // check() also compares <R x, y> with <x, R^T y>, for other data y.
  RopeCase &adjoint();
  // Standard normal data instead of a mix of magnitudes.
  RopeCase &normal_data();

  // check() appends the text of rope_explain for its forward calls on CUDA.
  RopeCase &explained(std::vector<std::string> *explanations);

  RopeStatistics check() const;
  std::string describe() const;

 private:
  struct Operand {
    const char *name;
    bool present = false;
    int64_t heads = 0;
    bool in_place = true;
    Placement in, out;
  };
  struct PositionTensor {
    bool present = false;
    PositionShape shape = PositionShape::PerToken;
    rope_dtype_t dtype = ROPE_DTYPE_I32;
    AxisPositionValue value;
    Placement placement;
  };
  struct Scene;
  struct Row;
  struct Windows;

  int64_t batches() const { return layout_ == ROPE_LAYOUT_THD ? 1 : batch_; }
  int32_t rotated_width() const { return rotary_dim_ ? rotary_dim_ : head_dim_; }
  int32_t num_axes() const { return num_axes_ ? num_axes_ : 1; }
  rope_style_t written_style() const { return out_style_ ? out_style_ : style_; }
  int64_t columns() const;
  bool is_empty() const;
  Shape shape(int64_t heads) const;
  Index index(int64_t batch, int64_t token, int64_t head, int64_t channel) const;
  int32_t channel_of(rope_style_t style, int pair, int member) const;
  int32_t axis_of(int pair) const { return pair_axis_.empty() ? 0 : pair_axis_[pair]; }
  bool is_padding(int64_t token) const { return !cu_seqlens_.empty() && token >= cu_seqlens_.back(); }
  int64_t sequence_of(int64_t batch, int64_t token) const;
  int64_t value_of(const PositionTensor &tensor, const rope_tensor_t &view, int64_t axis, int64_t batch,
                   int64_t token) const;
  int64_t position_of(const Scene &scene, int64_t axis, int64_t batch, int64_t token) const;
  rope_tensor_t position_tensor(const PositionTensor &tensor, Workspace &workspace) const;
  oracle::Real table_value(const rope_tensor_t &table, int64_t axis, int64_t batch, int64_t row, int64_t column) const;
  void build_tables(Scene *scene) const;
  void fill_operand(const Operand &operand, const rope_tensor_t &tensor, Scene *scene) const;
  void build(Scene *scene) const;
  bool passes_through(const Scene &scene, int64_t batch, int64_t token) const;
  Row row_of(const Scene &scene, Direction direction, int64_t batch, int64_t token) const;
  rope_config_t config(const Device &device, int32_t threads) const;
  void verify(Scene *scene, Direction direction, RopeStatistics *statistics) const;
  void verify_fault(Scene *scene) const;
  Windows windows_of(const Scene &scene, const rope_tensor_t (&tensors)[3]) const;
  void verify_adjoint(Scene *scene) const;

  rope_dtype_t dtype_ = ROPE_DTYPE_F32;
  rope_layout_t layout_ = ROPE_LAYOUT_BSHD;
  rope_style_t style_ = ROPE_STYLE_HALF, out_style_ = 0;
  int32_t pair_block_ = 0, num_axes_ = 0;
  std::vector<int32_t> pair_axis_;
  int64_t batch_ = 2, tokens_ = 5;
  int32_t head_dim_ = 64, rotary_dim_ = 0, rotary_offset_ = 0;
  double theta_ = 10000, attention_scale_ = 0;
  std::vector<double> inv_freq_;
  std::vector<Operand> operands_ = {
      {"q", true, 3, true, {}, {}}, {"k", false, 0, true, {}, {}}, {"v", false, 0, true, {}, {}}};
  bool packed_ = false;
  PositionTensor positions_, start_positions_;
  bool batches_share_positions_ = false, axes_share_positions_ = false;
  int64_t position_offset_ = 0;
  std::vector<int64_t> cu_seqlens_;
  rope_dtype_t cu_seqlens_dtype_ = ROPE_DTYPE_I32;
  Placement cu_seqlens_placement_;
  int64_t rows_ = -1;
  TableWidth table_width_ = TableWidth::Pairs;
  TableStorage table_storage_ = TableStorage::Separate;
  rope_dtype_t table_dtype_ = ROPE_DTYPE_F32;
  bool tables_by_token_ = false, tables_by_batch_ = false;
  bool tables_by_axis_ = false, axes_share_table_ = false;
  double max_angle_ = 0;  // 0: cos and sin
  Placement cos_placement_, sin_placement_;
  bool has_fault_ = false;
  int64_t fault_count_ = 0, fault_lowest_ = 0;
  bool adjoint_ = false;
  bool rounds_each_ = false;
  bool normal_data_ = false;
  std::vector<std::string> *explanations_ = nullptr;
};

enum class SwigluTensor {
  Gate,
  Up,
  Out,
  GradOut,
  GradGate,
  GradUp,
  RowScale,
  GradRowScale,
  GateBias,
  UpBias
};

enum class GatePacking {
  Separate,
  GateFirst,           // gate | up in the last axis
  UpFirst,             // up | gate
  Alternating,         // gate, up, gate, up, ...
  AlternatingUpFirst,  // up, gate, up, gate, ...
  Blocks               // alternating blocks as long as the last axis; rank 1 to 3
};

class SwigluCase {
 public:
  SwigluCase &dtype(rope_dtype_t dtype);
  SwigluCase &shape(Shape shape);
  SwigluCase &packing(GatePacking inputs, GatePacking gradients = GatePacking::Separate);
  // For separate tensors, and for alternating ones, which are placed as gate is.
  SwigluCase &placed(SwigluTensor tensor, const Placement &placement);
  SwigluCase &placed(const Placement &everywhere);
  // The output's view is identical to the input's.
  SwigluCase &in_place(SwigluTensor output, SwigluTensor input);
  SwigluCase &without(SwigluTensor gradient);
  // Members of swiglu_config_t; 0 has the same meaning as there.
  SwigluCase &form(double alpha, double limit, double up_offset, double out_scale);
  SwigluCase &activation(int32_t activation, int32_t limit_rule = SWIGLU_LIMIT_GATE);
  SwigluCase &soft_caps(double gate_softcap, double up_softcap);
  // One factor for each index of the first `axes` axes. Without a dtype it has the data's.
  SwigluCase &row_scale(int axes, rope_dtype_t dtype = 0, const Placement &placement = {});
  // Backward also writes the factor's gradient, or, in place, replaces the factor by it.
  SwigluCase &grad_row_scale(const Placement &placement = {});
  SwigluCase &grad_row_scale_in_place();
  // Rows past this number are poisoned in every tensor and must not change.
  SwigluCase &num_rows(int64_t rows, rope_dtype_t dtype);
  // Rounds the activation to the data's type.
  SwigluCase &rounds_activation();
  // A bias of gate and of up, one for each expert if there are experts. Without a dtype it has the data's.
  SwigluCase &biases(rope_dtype_t dtype = 0, bool by_expert = false, const Placement &placement = {});
  // The number of rows for each index of the first axis; further rows of the second axis are treated like those past
  // num_rows.
  SwigluCase &experts(std::vector<int64_t> rows, rope_dtype_t dtype, const Placement &placement = {});
  // The offsets may have any values. Rows of the first axis without an expert are treated as those past num_rows.
  SwigluCase &expert_offsets(std::vector<int64_t> offsets, rope_dtype_t dtype, const Placement &placement = {});
  // Row i takes entry index[i] of a row_scale with `factors` entries, which the caller adds. Rows whose index is outside
  // are treated as those past num_rows.
  SwigluCase &row_index(std::vector<int64_t> index, int64_t factors, rope_dtype_t dtype,
                        const Placement &placement = {});
  // Backward writes Out too.
  SwigluCase &recomputed();
  // Sets each element of Gate, Up, GradOut and RowScale, instead of random values.
  SwigluCase &values(std::function<oracle::Real(SwigluTensor, const Index &)> value);

  void check() const;
  std::string describe() const;

 private:
  struct Scene;
  static constexpr int tensor_count = 10;
  bool is_row(SwigluTensor tensor, const Index &index) const;
  bool is_gate_row(int64_t row) const;
  std::set<int64_t> used_entries(SwigluTensor tensor) const;
  void build(Scene *scene) const;
  void verify(Scene *scene, Direction direction) const;

  rope_dtype_t dtype_ = ROPE_DTYPE_F32;
  Shape shape_ = {3, 5};
  GatePacking inputs_ = GatePacking::Separate, gradients_ = GatePacking::Separate;
  Placement placements_[tensor_count];
  int over_[tensor_count] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
  bool wanted_[tensor_count] = {true, true, true, true, true, true, false, false, false, false};
  std::function<oracle::Real(SwigluTensor, const Index &)> values_;
  swiglu_config_t form_ = {};  // only the members for the form are used
  bool recomputed_ = false;
  int row_axes_ = 0;
  rope_dtype_t row_scale_dtype_ = 0;
  int64_t num_rows_ = 0;
  rope_dtype_t num_rows_dtype_ = 0;
  rope_dtype_t bias_dtype_ = 0;
  bool is_bias_by_expert_ = false;
  std::vector<int64_t> expert_rows_;
  rope_dtype_t expert_rows_dtype_ = 0;
  Placement expert_rows_placement_;
  std::vector<int64_t> offsets_, index_;
  rope_dtype_t offsets_dtype_ = 0, index_dtype_ = 0;
  Placement offsets_placement_, index_placement_;
  int64_t factors_ = 0;
};

#endif
