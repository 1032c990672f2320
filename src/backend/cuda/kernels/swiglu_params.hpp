// swiglu_params.hpp - which SwiGLU kernels there are, and what a launch passes to its kernel, by value
#pragma once

#include "backend/cuda/kernels/fast_divmod.hpp"
#include "core/problem/swiglu_problem.hpp"
#include "plan/swiglu_kernels.hpp"

namespace rope {

enum SwigluWork {
  kSwigluForward,
  kSwigluGradients,
  kSwigluGradientsAndOut,  // a work of its own: the recomputed output alone costs the plain gradients 2 %
  kSwigluRowSums,          // grad_row_scale, and what else is wanted
  kSwigluMatrix,           // forward: SwigluPlan::is_matrix
  kSwigluProgrammaticMatrix,
  kSwigluMatrixRows,                   // forward, several rows for each thread, programmatic or not
  kSwigluMatrixGradients,              // of kPlain; of formulas after kForm, and the recomputed output
  kSwigluProgrammaticMatrixGradients,  // of kPlain; the other formulas' kernels are programmatic or not
  kSwigluLateMatrixGradients,          // the same, the next launch begun behind the loads
  kSwigluFlatMatrixGradients,          // of kPlain: SwigluPlan::is_flat
  kSwigluExperts,                      // forward: SwigluPlan::is_expert_matrix
  kSwigluExpertGradients,              // and the recomputed output
  kSwigluLookup,                       // forward: the same with SwigluProblem::rows
  kSwigluLookupGradients,
  kSwigluCodeMatrix,        // of matrices: SwigluPlan::is_matrix, without written scales
  kSwigluScaledCodeMatrix,  // the same with scales of groups of a row
  kSwigluCodeRows,          // the same with a scale of each row
  kSwigluCodes,             // forward to codes of 8 or 4 bits: SwigluProblem::has_codes
  kSwigluGradientCodes,     // backward, a gradient to codes of 8 bits
  kSwigluCodeBlocks,        // forward to codes by row and by column: SwigluCallPlan::has_blocks
  kSwigluGradientCodeBlocks,
  kNumSwigluWorks
};

constexpr bool is_of_matrix_gradients(SwigluWork work) {
  return work >= kSwigluMatrixGradients && work <= kSwigluFlatMatrixGradients;
}

constexpr bool is_of_parts(SwigluWork work) {
  return work >= kSwigluExperts && work <= kSwigluLookupGradients;
}

struct SwigluVariant {
  SwigluWork work;
  SwigluFormula formula;
  bool is_alternating;  // SwigluPlan::is_alternating()
};

// What every thread reads comes first and close together: at decode size a launch waits for each line of it.
struct SwigluKernelParams {
  int64_t num_vectors;
  int64_t columns;
  FastDivmod narrow_vectors_per_row;  // where is_narrow
  bool is_single_row;
  bool is_narrow;       // num_vectors fits 32 bits
  bool has_outer_axes;  // rows run over more than one axis
  // What only the kernels of alternating tensors read. Where gate and up alternate both are in in[kGate], where their
  // gradients do both are in out[kGradGate].
  GateUpLayout inputs;
  GateUpLayout gradients;
  const char *in[kMaxSwigluInputs];
  char *out[kMaxSwigluOutputs];
  int64_t in_row_stride[kMaxSwigluInputs];  // in bytes, along the last axis but one; so that of out
  int64_t out_row_stride[kMaxSwigluOutputs];

  // What only the kernels of general forms read.
  Form<float> form;
  bool is_row_scale_f32;  // otherwise it has the type of the data
  bool is_num_rows_64_bit;
  const char *row_scale;               // NULL: 1
  const char *num_rows;                // NULL: all
  int64_t row_scale_stride[kMaxAxes];  // in bytes
  int64_t row_index_stride[kMaxAxes];  // SwigluProblem's
  Form<double> wide_form;              // for F64 data

  // What launches with outer axes, single elements or more vectors than 32 bits read.
  int64_t vectors_per_row;
  int64_t in_stride[kMaxSwigluInputs][kMaxAxes];  // in bytes; slowest axis first, unused leading axes have length 1
  int64_t out_stride[kMaxSwigluOutputs][kMaxAxes];
  int64_t shape[kMaxAxes];
};

// A form with options, for data of either arithmetic.
struct SwigluOptions {
  FormWithOptions<float> form;
  FormWithOptions<double> wide_form;
};

// Rows of gate that are looked up; strides are in bytes.
struct SwigluRowLookup {
  SwigluRows rows;
  int64_t factor_stride;
  int64_t bias_expert_stride[2];
};

// What the kernels of options read besides.
struct SwigluOptionsParams : SwigluKernelParams {
  SwigluOptions options;
  SwigluRowLookup lookup;             // by gate's first index
  FastDivmod narrow_shape[kMaxAxes];  // where is_narrow
  const char *bias[2];                // of gate and up; NULL: none
  int64_t bias_stride[2][kMaxAxes];   // in bytes
  bool is_bias_f32[2];                // otherwise it has the type of the data
  bool is_expert_rows_64_bit;
  const char *expert_rows;  // NULL: all rows are there
  int64_t expert_rows_stride;
  int64_t expert_index_stride[kMaxAxes];      // SwigluProblem's
  int64_t expert_row_index_stride[kMaxAxes];  // so
};

// An output becomes codes. A block takes a unit: a group of a written scale, or as many elements as kSwigluCodeElements.
struct SwigluCodesParams : SwigluOptionsParams {
  SwigluCodes codes;  // its strides as below
  int output;         // SwigluOutput
  int64_t num_elements;
  int64_t unit_elements;
  int64_t scales_stride[kMaxAxes];     // in elements, right-aligned as other strides
  int64_t scale_row_stride[kMaxAxes];  // so
};

// An output of matrices that become codes by row or by column. Strides of scales are by rows and by columns.
struct SwigluCodeBlockOutput {
  char *out;  // NULL: absent
  int64_t row_stride;
  SwigluCodes codes;
};

struct SwigluCodeBlockParams {
  const char *in[kMaxSwigluInputs];
  int64_t in_row_stride[kMaxSwigluInputs];  // in bytes
  uint32_t rows, columns;
  uint32_t num_warps;
  bool rounds_first;
  FastDivmod warps_per_row;
  Form<float> form;
  SwigluCodeBlockOutput to[2][2];  // of out, or the gradients of gate and up: by row, and by column
};

struct SwigluExpertStrides {
  int64_t expert;
  int64_t row;
};

// Forward to codes, of matrices, or of those of each index of a first axis. Strides are in bytes, those of scales in
// elements.
struct SwigluCodeMatrixParams {
  const char *in[2];
  char *out;
  SwigluExpertStrides in_stride[2];
  SwigluExpertStrides out_stride;
  SwigluExpertStrides scales_stride;  // of scales in tiles, but between experts, 0
  uint32_t num_threads;
  uint32_t vectors_per_row;
  FastDivmod units_per_row;  // vectors, or groups of a written scale
  FastDivmod rows_per_expert;
  bool has_experts;
  bool is_rows_there_64_bit;
  bool has_padding;        // of scales in tiles
  uint32_t lanes_log2;     // of a group of a written scale
  const char *rows_there;  // of the matrix, or of each expert's; NULL: all
  int64_t rows_there_stride;
  Form<float> form;
  SwigluCodes codes;
};

// Experts, rows and columns, or rows that are looked up and columns. Strides are in bytes, but that of expert_rows.
// Backward an output that is NULL is not wanted.
struct SwigluExpertParams {
  const char *in[kMaxSwigluInputs];
  char *out[kMaxSwigluOutputs];
  SwigluExpertStrides in_stride[kMaxSwigluInputs];
  SwigluExpertStrides out_stride[kMaxSwigluOutputs];
  const char *expert_rows;
  int64_t expert_rows_stride;
  uint32_t experts;          // with expert_offsets those that it has
  uint32_t rows_per_expert;  // that there is room for; of rows that are looked up all
  uint32_t vectors_per_row;
  FastDivmod parts_per_row;  // of kSwigluPartVectors
  bool is_expert_rows_64_bit;
  bool is_row_scale_f32;  // otherwise it has the type of the data
  bool is_bias_f32[2];    // so
  const char *row_scale;  // NULL: 1
  SwigluExpertStrides row_scale_stride;
  const char *bias[2];  // of gate and up; NULL: none
  int64_t bias_expert_stride[2];
  FormWithOptions<float> options;
  SwigluRows rows;        // whose tensors have no strides by expert
  int64_t factor_stride;  // with row_index, in the place of row_scale_stride
  const char *num_rows;   // of rows that are looked up; NULL: all
  bool is_num_rows_64_bit;
};

// Matrices, forward. A matrix of one row, or whose rows follow each other, has a single row.
struct SwigluMatrixParams {
  const char *gate;
  const char *up;
  char *out;
  uint32_t gate_row;  // strides, in bytes
  uint32_t up_row;
  uint32_t out_row;
  uint32_t num_vectors;
  FastDivmod vectors_per_row;
  bool begins_last;
  Form<float> form;
};

struct SwigluOptionsMatrixParams : SwigluMatrixParams {
  uint32_t rows;
  uint32_t rows_per_thread;  // of kBiases and kSoftcaps; their num_vectors are those of so many rows
  FormWithOptions<float> options;
  const char *bias[2];  // of gate and up; NULL: none
  bool is_bias_f32[2];  // otherwise it has the type of the data
};

// Matrices, backward. An output that is NULL is not wanted.
struct SwigluMatrixGradientParams {
  const char *in[kMaxSwigluInputs];
  char *out[kMaxSwigluOutputs];
  uint32_t in_row[kMaxSwigluInputs];  // strides, in bytes
  uint32_t out_row[kMaxSwigluOutputs];
  uint32_t num_vectors;
  FastDivmod vectors_per_row;
};

// Of tensors that are one row each; both gradients are wanted.
struct SwigluFlatGradientParams {
  const char *in[kMaxSwigluInputs];
  char *out[2];
  uint32_t num_vectors;
};

struct SwigluOptionsMatrixGradientParams : SwigluMatrixGradientParams {
  FormWithOptions<float> options;
  const char *bias[2];
  bool is_bias_f32[2];
};

constexpr int kMaxRowAxes = kMaxAxes - 1;  // neither rows nor columns have all axes

// In bytes, slowest axis first; unused leading axes have length 1.
struct SwigluRowStrides {
  int64_t row[kMaxRowAxes];
  int64_t column[kMaxRowAxes];
};

// Where rows are summed: a block's row is an index over the axes of row_scale, its columns are those over the others.
struct SwigluRowKernelParams {
  const char *in[kMaxSwigluInputs];
  char *out[kMaxSwigluOutputs];
  SwigluRowStrides in_stride[kMaxSwigluInputs];
  SwigluRowStrides out_stride[kMaxSwigluOutputs];
  const char *row_scale;
  char *grad_row_scale;
  const char *num_rows;  // NULL: all
  int64_t row_scale_stride[kMaxRowAxes];
  int64_t grad_row_scale_stride[kMaxRowAxes];
  int64_t row_index_stride[kMaxRowAxes];
  int64_t row_shape[kMaxRowAxes];
  int64_t column_shape[kMaxRowAxes];
  FastDivmod narrow_column_shape[kMaxRowAxes];  // where has_narrow_columns
  int64_t rows;
  int64_t columns;
  bool has_vectors;     // a group of a row is one memory access
  bool has_outer_rows;  // over more than one axis
  bool has_outer_columns;
  bool has_narrow_columns;  // columns fits 32 bits
  bool is_row_scale_f32;    // and grad_row_scale; otherwise they have the type of the data
  bool is_num_rows_64_bit;
  Form<double> form;
};

struct SwigluOptionsRowParams : SwigluRowKernelParams {
  SwigluOptions options;
  SwigluRowLookup lookup;  // as in SwigluOptionsParams
  const char *bias[2];     // as in SwigluOptionsParams
  SwigluRowStrides bias_stride[2];
  bool is_bias_f32[2];
  bool is_expert_rows_64_bit;
  const char *expert_rows;  // NULL: all rows are there
  int64_t expert_rows_stride;
  int64_t expert_index_stride[kMaxRowAxes];      // SwigluProblem's
  int64_t expert_row_index_stride[kMaxRowAxes];  // so
};

}  // namespace rope
