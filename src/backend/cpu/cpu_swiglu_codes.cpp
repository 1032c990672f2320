// SPDX-License-Identifier: Apache-2.0
// cpu_swiglu_codes.cpp - an output of SwiGLU of 8 or 4 bits: computes floats chunk by chunk and turns them into codes
#include "backend/cpu/cpu_swiglu.hpp"
#include "backend/cpu/cpu_swiglu_walk.hpp"
#include "backend/cpu/raise_amax.hpp"
#include "backend/cpu/task_memory.hpp"
#include "backend/cpu/task_range.hpp"
#include "backend/cpu/thread_pool.hpp"
#include "core/math/float8.hpp"

namespace rope {

namespace {

constexpr int kMaxChunk = 2048;       // values
constexpr int kMaxBlock = 8192;       // values of a group of rows and several columns
constexpr int kMinBlockColumns = 64;  // columns of such a group
constexpr int kMaxBlockColumns = 512;

struct CodesJob {
  const SwigluProblem *problem;
  int num_tasks;
  int64_t num_elements;  // with experts, the elements of rows that exist
};

// Elements side by side along the last axis.
struct Piece {
  int64_t place;  // place of the first one among all elements
  int64_t row;
  int64_t column;
  int count;
  SwigluRow gate_row;
};

// Cuts gate's rows into groups and its columns into parts. The columns of a part are neighbours along the last axis.
struct BlockGrid {
  struct Block {
    int64_t expert;
    int64_t group;
    int64_t column;  // the first one
    int count;
    int64_t rows_there;  // of the expert
  };

  explicit BlockGrid(const SwigluProblem &of) : problem(of), groups(of.codes.scales.groups) {
    const int row_axis = problem.row_axis();
    rows = row_axis < 0 ? 1 : problem.shape[row_axis];
    experts = problem.expert_rows != nullptr ? problem.experts : 1;
    columns = problem.num_elements() / (experts * rows);
    // If a row has one element, the last axis is that of rows or of experts.
    run = columns == 1 ? 1 : problem.shape[problem.ndim - 1];
    const int64_t most = kMaxBlock / problem.codes.group_elements;
    width = most < kMinBlockColumns ? kMinBlockColumns : most > kMaxBlockColumns ? kMaxBlockColumns : most;
    if (width > run) width = run;
    blocks_of_run = (run - 1) / width + 1;
  }

  int64_t num_blocks() const { return experts * groups * (columns / run) * blocks_of_run; }

  // Blocks are numbered with the columns fastest, then the groups, then the experts.
  Block block(int64_t number) const {
    const int64_t part = number % blocks_of_run, rest = number / blocks_of_run, runs = columns / run;
    const int64_t begin = part * width, end = begin + width < run ? begin + width : run;
    const int64_t expert = rest / runs / groups;
    return {expert, rest / runs % groups, rest % runs * run + begin, static_cast<int>(end - begin), rows_there(expert)};
  }

  int64_t rows_there(int64_t expert) const {
    if (problem.num_rows != nullptr) return read_integer(problem.num_rows, problem.num_rows_dtype == ROPE_DTYPE_I64, 0);
    if (problem.expert_rows == nullptr) return rows;
    return elements_of_expert(problem, expert) / problem.num_expert_row_elements();
  }

  const SwigluProblem &problem;
  int64_t groups, experts, rows, columns;
  int64_t run;  // columns that follow each other in memory at one step
  int64_t width, blocks_of_run;
};

union CodesBuffers {
  alignas(64) float values[kMaxChunk];
  alignas(64) float block[kMaxBlock];
};

// Computes a part of the elements and writes their codes and scales.
class CodesWalk {
 public:
  CodesWalk(const CodesJob &job, CodesBuffers *buffers)
      : problem_(*job.problem),
        codes_(problem_.codes),
        kernels_(cpu_kernels()),
        type_(cpu_type(problem_.dtype)),
        columns_(problem_.shape[problem_.ndim - 1]),
        output_(problem_.coded_output()),
        takes_single_elements_(has_row_per_element(problem_)),
        experts_(problem_),
        rows_(problem_),
        values_(buffers->values),
        block_(buffers->block) {}

  void run(Range elements) {
    if (has_groups_in_runs()) {
      for (int64_t element = elements.begin; element < elements.end;) {
        const Piece piece = piece_at(element, elements.end, kMaxChunk / codes_.group_elements * codes_.group_elements);
        element += piece.count;
        if (piece.gate_row.is_there) scale_groups_of(piece);
      }
    } else if (codes_.scales.is_present()) {
      for (int64_t group = elements.begin; group < elements.end; group += codes_.group_elements) scale_group(group);
    } else {
      for (int64_t element = elements.begin; element < elements.end;) {
        const Piece piece = piece_at(element, elements.end);
        element += piece.count;
        if (!piece.gate_row.is_there) continue;
        compute(piece, values_);
        if (codes_.amax != nullptr) find_magnitude(piece, &amax_);
        encode(piece, code_factor(given_scale(piece), codes_.scale_multiplies));
      }
    }
    if (codes_.amax != nullptr) raise_amax(codes_.amax, amax_);
  }

  // Processes blocks. Each is a group of rows and some columns.
  void run_blocks(const BlockGrid &grid, Range blocks) {
    for (int64_t block = blocks.begin; block < blocks.end; ++block) scale_block(grid, block);
    if (codes_.amax != nullptr) raise_amax(codes_.amax, amax_);
  }

 private:
  // Whether groups fit the buffer and lie within the last axis, with all its elements in one row. Then several of them
  // are computed together.
  bool has_groups_in_runs() const {
    const int last = problem_.ndim - 1;
    return codes_.scales.is_present() && !takes_single_elements_ && codes_.group_elements <= kMaxChunk &&
           columns_ % codes_.group_elements == 0 && codes_.scales_stride[last] == 0 &&
           codes_.scale_row_stride[last] == 0;
  }

  Piece piece_at(int64_t element, int64_t end, int64_t most = kMaxChunk) {
    int64_t left = end - element, left_in_expert = left;
    Piece piece;
    piece.place = problem_.expert_rows == nullptr ? element : experts_.place_of(element, &left_in_expert);
    if (left > left_in_expert) left = left_in_expert;
    piece.row = piece.place / columns_;
    piece.column = piece.place % columns_;
    if (left > columns_ - piece.column) left = columns_ - piece.column;
    if (takes_single_elements_) left = 1;
    piece.count = static_cast<int>(left < most ? left : most);
    piece.gate_row = rows_.row_of(piece.place);
    return piece;
  }

  void compute(const Piece &piece, float *values) {
    GatingRun run = {};
    run.count = piece.count;
    set_inputs(problem_, piece.row, piece.column, piece.gate_row, &run);
    run.out[output_] = values;
    run.out_stride[output_] = 1;
    (problem_.is_backward ? kernels_.swiglu_gradient_values : kernels_.swiglu_values)[type_](run, problem_.form);
    if (codes_.rounds_first) kernels_.round_values[type_](values, piece.count);
  }

  void find_magnitude(const Piece &piece, uint32_t *magnitude) const {
    kernels_.raise_magnitude(values_, piece.count, magnitude);
  }

  float given_scale(const Piece &piece) const {
    if (codes_.scale == nullptr) return 1;
    int64_t expert = piece.gate_row.expert;
    if (codes_.expert_stride != 0 && problem_.expert_rows != nullptr) {
      expert = piece.place / (problem_.num_elements() / problem_.experts);
    }
    return codes_.given_scale(expert);
  }

  int64_t offset_of(const int64_t *stride, const Piece &piece) const {
    return offset_of_row(problem_, stride, piece.row) + piece.column * stride[problem_.ndim - 1];
  }

  void encode(const Piece &piece, float factor) const { encode(piece, values_, factor); }

  void encode(const Piece &piece, const float *values, float factor) const {
    encode(offset_of(problem_.out_stride[output_], piece), values, piece.count, factor);
  }

  // Writes codes from an offset of the output on.
  void encode(int64_t offset, const float *values, int count, float factor) const {
    char *const out = problem_.out[output_] + (codes_.has_pairs() ? offset / 2 : offset);
    const int type = codes_.has_pairs() ? 2 : codes_.dtype == ROPE_DTYPE_F8_E5M2;
    kernels_.encode[type](values, count, factor, out, problem_.out_stride[output_][problem_.ndim - 1]);
  }

  // Writes the scales and codes of a piece. It has whole groups of one row.
  void scale_groups_of(const Piece &piece) {
    compute(piece, values_);
    const auto length = static_cast<int>(codes_.group_elements);
    const int64_t step = length * problem_.out_stride[output_][problem_.ndim - 1];
    const int64_t scale_offset = offset_of(codes_.scales_stride, piece);
    const int64_t scale_row = offset_of(codes_.scale_row_stride, piece);
    const float global = given_scale(piece);
    int64_t offset = offset_of(problem_.out_stride[output_], piece), group = group_of(piece);
    for (int begin = 0; begin < piece.count; begin += length, ++group, offset += step) {
      uint32_t magnitude = 0;
      kernels_.raise_magnitude(values_ + begin, length, &magnitude);
      if (magnitude > amax_) amax_ = magnitude;
      const GroupScale scale = codes_.scale_of(magnitude, global);
      codes_.store_scale(scale_offset, scale_row, group, scale.bits);
      encode(offset, values_ + begin, length, scale.factor);
    }
  }

  // Writes the scale and the codes of a group within one row. A group of more than one piece is computed twice: first
  // for its largest magnitude, then for its codes.
  void scale_group(int64_t begin) {
    const int64_t end = begin + codes_.group_elements;
    const Piece first = piece_at(begin, end);
    if (!first.gate_row.is_there) return;
    uint32_t magnitude = 0;
    for (int64_t element = begin; element < end;) {
      const Piece piece = piece_at(element, end);
      compute(piece, values_);
      find_magnitude(piece, &magnitude);
      element += piece.count;
    }
    if (magnitude > amax_) amax_ = magnitude;
    const GroupScale scale = write_scale(first, magnitude);
    for (int64_t element = begin; element < end;) {
      const Piece piece = piece_at(element, end);
      if (piece.count < codes_.group_elements) compute(piece, values_);
      encode(piece, scale.factor);
      element += piece.count;
    }
  }

  GroupScale write_scale(const Piece &first, uint32_t magnitude) const {
    const GroupScale scale = codes_.scale_of(magnitude, given_scale(first));
    codes_.store_scale(offset_of(codes_.scales_stride, first), offset_of(codes_.scale_row_stride, first),
                       group_of(first), scale.bits);
    return scale;
  }

  // Returns the number of an element's group among those of its row.
  int64_t group_of(const Piece &piece) const {
    return piece.place % (codes_.scales.groups * codes_.group_elements) / codes_.group_elements;
  }

  // Returns the part of one of gate's rows that is in a block. Its place counts the rows of all experts.
  Piece piece_of(const BlockGrid &grid, const BlockGrid::Block &block, int64_t row) {
    Piece piece;
    piece.place = (block.expert * grid.rows + row) * grid.columns + block.column;
    piece.row = piece.place / columns_;
    piece.column = piece.place % columns_;
    piece.count = block.count;
    piece.gate_row = rows_.row_of(piece.place);
    piece.gate_row.is_there = piece.gate_row.is_there && row < block.rows_there;
    return piece;
  }

  // Writes the scales and codes of a block. A block that is larger than the buffer is computed twice: first for the
  // largest magnitudes of its columns, then for its codes.
  void scale_block(const BlockGrid &grid, int64_t number) {
    const BlockGrid::Block block = grid.block(number);
    const int64_t begin = block.group * codes_.group_elements;
    const bool is_held = codes_.group_elements * block.count <= kMaxBlock;
    const auto values_of = [&](int64_t row) { return block_ + (is_held ? row * block.count : 0); };
    int32_t magnitude[kMaxBlockColumns] = {};
    bool has_rows = false;
    for (int64_t row = 0; row < codes_.group_elements; ++row) {
      const Piece piece = piece_of(grid, block, begin + row);
      if (!piece.gate_row.is_there) continue;
      has_rows = true;
      float *const values = values_of(row);
      compute(piece, values);
      for (int i = 0; i < block.count; ++i) {
        const auto of_value = static_cast<int32_t>(bits_of(values[i]) & 0x7fffffffu);
        if (of_value > magnitude[i]) magnitude[i] = of_value;
      }
    }
    if (!has_rows) return;
    const Piece first = piece_of(grid, block, begin);
    const int last = problem_.ndim - 1;
    int64_t scale_offset = offset_of(codes_.scales_stride, first);
    int64_t scale_row = offset_of(codes_.scale_row_stride, first);
    float factor[kMaxBlockColumns];
    for (int i = 0; i < block.count; ++i) {
      const auto of_column = static_cast<uint32_t>(magnitude[i]);
      if (of_column > amax_) amax_ = of_column;
      const GroupScale scale = codes_.scale_of(of_column, 1);
      codes_.store_scale(scale_offset, scale_row, block.group, scale.bits);
      factor[i] = scale.factor;
      scale_offset += codes_.scales_stride[last];
      scale_row += codes_.scale_row_stride[last];
    }
    for (int64_t row = 0; row < codes_.group_elements; ++row) {
      const Piece piece = piece_of(grid, block, begin + row);
      if (!piece.gate_row.is_there) continue;
      float *const values = values_of(row);
      if (!is_held) compute(piece, values);
      for (int i = 0; i < block.count; ++i) values[i] *= factor[i];
      encode(piece, values, 1);
    }
  }

  const SwigluProblem &problem_;
  const SwigluCodes &codes_;
  const CpuKernels &kernels_;
  const CpuType type_;
  const int64_t columns_;
  const int output_;
  const bool takes_single_elements_;
  ExpertWalk experts_;
  RowFinder rows_;
  float *const values_;
  float *const block_;  // the same memory
  uint32_t amax_ = 0;
};

// A group or a pair belongs to one task.
void run_codes_task(void *context, int index) {
  const CodesJob &job = *static_cast<const CodesJob *>(context);
  const SwigluCodes &codes = job.problem->codes;
  const int64_t unit = codes.scales.is_present() ? codes.group_elements : codes.has_pairs() ? 2 : 1;
  const Range units = part_of(job.num_elements / unit, job.num_tasks, index);
  const TaskMemory memory;
  CodesWalk(job, memory.as<CodesBuffers>()).run({units.begin * unit, units.end * unit});
}

void run_blocks_task(void *context, int index) {
  const CodesJob &job = *static_cast<const CodesJob *>(context);
  const BlockGrid grid(*job.problem);
  const TaskMemory memory;
  CodesWalk(job, memory.as<CodesBuffers>()).run_blocks(grid, part_of(grid.num_blocks(), job.num_tasks, index));
}

}  // namespace

void clear_scale_padding(const SwigluProblem &problem) {
  const SwigluCodes &codes = problem.codes;
  int64_t matrices = 1, length[kMaxAxes] = {};
  for (int axis = 0; axis < problem.ndim; ++axis) {
    length[axis] = codes.scales_stride[axis] != 0 ? problem.shape[axis] : 1;
    matrices *= length[axis];
  }
  for (int64_t matrix = 0; matrix < matrices; ++matrix) {
    int64_t offset = 0, number = matrix;
    for (int axis = problem.ndim - 1; axis >= 0; --axis) {
      offset += number % length[axis] * codes.scales_stride[axis];
      number /= length[axis];
    }
    for (int64_t row = 0; row < codes.padded_rows(); ++row) {
      const int64_t first = row < codes.rows ? codes.scales.groups : 0;
      for (int64_t group = first; group < codes.padded_groups(); ++group) codes.store_scale(offset, row, group, 0);
    }
  }
}

void run_cpu_swiglu_codes(const SwigluProblem &problem, int num_tasks) {
  CodesJob job = {&problem, num_tasks, count_elements(problem)};
  run_tasks(num_tasks, problem.codes.has_row_groups ? run_blocks_task : run_codes_task, &job);
}

}  // namespace rope
