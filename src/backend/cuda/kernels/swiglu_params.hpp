// SPDX-License-Identifier: Apache-2.0
// swiglu_params.hpp - which SwiGLU kernels there are, and what a launch passes to its kernel, by value
#pragma once

#include "backend/cuda/kernels/fast_divmod.hpp"
#include "backend/cuda/kernels/kernel.hpp"
#include "core/problem/swiglu_problem.hpp"
#include "plan/swiglu_kernels.hpp"

namespace rope {

enum SwigluWork {
  kSwigluForward,
  kSwigluGradients,
  kSwigluGradientsAndOut,  // separate, as testing for the recomputed output would cost the plain gradients 2 %
  kSwigluRowSums,          // grad_row_scale, and any other outputs
  kSwigluMatrix,           // forward: SwigluPlan::is_matrix
  kSwigluProgrammaticMatrix,
  kSwigluMatrixRows,                   // forward, several rows for each thread, programmatic or not
  kSwigluMatrixGradients,              // kPlain; formulas after kForm, also with the recomputed output
  kSwigluProgrammaticMatrixGradients,  // kPlain; kernels of the other formulas are programmatic or not
  kSwigluLateMatrixGradients,          // kPlain, programmatic; the next launch begins behind the loads
  kSwigluFlatMatrixGradients,          // kPlain: SwigluPlan::is_flat
  kSwigluExperts,                      // forward: SwigluPlan::is_expert_matrix
  kSwigluExpertGradients,              // backward, also with the recomputed output
  kSwigluLookup,                       // forward: SwigluPlan::is_expert_matrix with SwigluProblem::rows
  kSwigluLookupGradients,
  kSwigluCodeMatrix,        // forward to codes: SwigluPlan::is_matrix, without written scales
  kSwigluScaledCodeMatrix,  // forward to codes: SwigluPlan::is_matrix, with a scale for each group of a row
  kSwigluScaledCodeSpans,   // likewise, two vectors of a group and any number of rows for each thread
  kSwigluCodeRows,          // forward to codes: SwigluPlan::is_matrix, with a scale for each row
  kSwigluCodeGroups,        // forward to codes: SwigluPlan::has_plain_groups, without written scales
  kSwigluScaledCodeGroups,  // likewise, with a scale for each group
  kSwigluWideCodeGroups,    // likewise, two vectors for each thread
  kSwigluExpertCodes,       // forward to codes: SwigluPlan::is_expert_matrix
  kSwigluRowCodes,          // forward to codes: SwigluPlan::is_expert_matrix without SwigluProblem::expert_rows
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

// Returns the kernel of the plain form, or that of the others.
template <typename Function>
Kernel pick_by_form(SwigluVariant variant, Function plain, Function other) {
  return kernel_of(variant.formula == SwigluFormula::kPlain ? plain : other);
}

// The members that every thread reads come first and close together: a launch of decode size waits for each of their
// cache lines.
struct SwigluKernelParams {
  int64_t num_vectors;
  int64_t columns;
  FastDivmod narrow_vectors_per_row;  // if is_narrow
  bool is_single_row;
  bool is_narrow;       // num_vectors fits 32 bits
  bool has_outer_axes;  // rows run over more than one axis
  // Only the kernels of alternating tensors read these two. If gate and up alternate, in[kGate] is the address of both;
  // if their gradients alternate, out[kGradGate] is.
  GateUpLayout inputs;
  GateUpLayout gradients;
  const char *in[kMaxSwigluInputs];
  char *out[kMaxSwigluOutputs];
  int64_t in_row_stride[kMaxSwigluInputs];  // this and the next one: in bytes, along the last axis but one
  int64_t out_row_stride[kMaxSwigluOutputs];

  // Only the kernels of general forms read the next members.
  Form<float> form;
  bool is_row_scale_f32;  // otherwise it has the type of the data
  bool is_num_rows_64_bit;
  const char *row_scale;               // NULL: 1
  const char *num_rows;                // NULL: all
  int64_t row_scale_stride[kMaxAxes];  // in bytes
  int64_t row_index_stride[kMaxAxes];  // SwigluProblem's
  Form<double> wide_form;              // for F64 data

  // Launches with outer axes, single elements or more vectors than 32 bits can count read the next members.
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

// Params of the kernels with options.
struct SwigluOptionsParams : SwigluKernelParams {
  SwigluOptions options;
  SwigluRowLookup lookup;             // by gate's first index
  FastDivmod narrow_shape[kMaxAxes];  // if is_narrow
  const char *bias[2];                // of gate and up; NULL: none
  int64_t bias_stride[2][kMaxAxes];   // in bytes
  bool is_bias_f32[2];                // otherwise it has the type of the data
  bool is_expert_rows_64_bit;
  const char *expert_rows;  // NULL: all rows exist
  int64_t expert_rows_stride;
  int64_t expert_index_stride[kMaxAxes];      // SwigluProblem's
  int64_t expert_row_index_stride[kMaxAxes];  // SwigluProblem's
};

// An output becomes codes. A block processes a unit: a group with a written scale, or kSwigluCodeElements elements.
struct SwigluCodesParams : SwigluOptionsParams {
  SwigluCodes codes;      // scales_stride and scale_row_stride of this struct replace its own
  SwigluFormula formula;  // kPlain, kForm or kOptions
  int output;             // SwigluOutput
  int64_t num_elements;
  int64_t unit_elements;
  int64_t scales_stride[kMaxAxes];     // in elements, right-aligned as other strides
  int64_t scale_row_stride[kMaxAxes];  // also
};

// An output of matrices that becomes codes by row or by column. Its scales have a stride for rows and one for columns.
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
  SwigluCodeBlockOutput to[2][2];  // out, or the gradients of gate and up; each by row, and by column
};

struct SwigluExpertStrides {
  int64_t expert;
  int64_t row;
};

// Forward to codes of a matrix in a short launch. A launch of decode size waits for each cache line of its params, so
// there are few: with a WrittenScales, 8 rows by 128 took 1.40 us instead of 1.11 (NVIDIA H100). Strides are in bytes.
struct SwigluCodeGroupParams {
  const char *in[2];
  char *out;
  char *scales;  // or the static scale; NULL: 1
  int64_t in_row[2];
  int64_t out_row;
  int64_t scales_row;
  int64_t scales_group;
  int64_t scales_four;  // of every fourth group
  bool scale_multiplies;
  FastDivmod groups_per_row;
  uint32_t num_threads;
  uint32_t floor;  // the bits of scale_floor
  ScaleForm form;
  bool rounds_first;  // values are rounded to the data's type before scales and codes
};

// Forward to codes: a matrix, or one for each index of a first axis. Strides are in bytes, those of scales in elements.
struct SwigluCodeMatrixParams {
  const char *in[2];
  char *out;
  SwigluExpertStrides in_stride[2];
  SwigluExpertStrides out_stride;
  SwigluExpertStrides scales_stride;  // for scales in tiles, its row is 0
  uint32_t num_threads;
  uint32_t vectors_per_row;
  FastDivmod units_per_row;  // vectors, or groups of a written scale
  uint32_t rows;             // of each matrix
  uint32_t rows_per_thread;
  FastDivmod spans_per_matrix;  // of rows_per_thread rows, which a thread takes one after the other
  bool has_experts;
  bool is_rows_there_64_bit;
  bool has_padding;        // of scales in tiles
  uint32_t lanes_log2;     // lanes of a group with a written scale
  const char *rows_there;  // of the matrix, or of each expert's; NULL: all
  int64_t rows_there_stride;
  Form<float> form;
  SwigluCodes codes;
};

// Tensors of experts, rows and columns, or, without expert_rows, of rows and columns. Strides are in bytes, that of
// expert_rows in elements. In backward an output that is NULL is not written.
struct SwigluExpertParams {
  const char *in[kMaxSwigluInputs];
  char *out[kMaxSwigluOutputs];
  SwigluExpertStrides in_stride[kMaxSwigluInputs];
  SwigluExpertStrides out_stride[kMaxSwigluOutputs];
  const char *expert_rows;
  int64_t expert_rows_stride;
  uint32_t experts;          // with expert_offsets, its experts
  uint32_t rows_per_expert;  // that there is room for; without expert_rows, all rows
  uint32_t vectors_per_row;
  FastDivmod parts_per_row;  // of kSwigluPartVectors
  bool is_expert_rows_64_bit;
  bool is_row_scale_f32;  // otherwise it has the type of the data
  bool is_bias_f32[2];    // likewise
  const char *row_scale;  // NULL: 1
  SwigluExpertStrides row_scale_stride;
  const char *bias[2];  // of gate and up; NULL: none
  int64_t bias_expert_stride[2];
  FormWithOptions<float> options;
  SwigluRows rows;        // without expert_rows; strides by expert are then 0, except those of biases
  int64_t factor_stride;  // replaces row_scale_stride with row_index
  const char *num_rows;   // without expert_rows; NULL: all
  bool is_num_rows_64_bit;
};

// Those tensors, forward to codes. The strides of scales are in elements; for scales in tiles, that of rows is 0.
struct SwigluExpertCodeParams : SwigluExpertParams {
  SwigluExpertStrides scales_stride;
  int64_t matrices;       // of scales in tiles
  uint32_t lanes_log2;    // lanes of a group with a written scale
  bool has_padding;       // of scales in tiles
  SwigluFormula formula;  // kPlain, kForm or kOptions
  SwigluCodes codes;
};

// Matrices, forward. A matrix with rows that follow each other in memory has a single row here.
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
  uint32_t rows_per_thread;  // kBiases and kSoftcaps; num_vectors counts so many rows as one
  FormWithOptions<float> options;
  const char *bias[2];  // of gate and up; NULL: none
  bool is_bias_f32[2];  // otherwise it has the type of the data
};

// Matrices, backward. An output that is NULL is not written.
struct SwigluMatrixGradientParams {
  const char *in[kMaxSwigluInputs];
  char *out[kMaxSwigluOutputs];
  uint32_t in_row[kMaxSwigluInputs];  // strides, in bytes
  uint32_t out_row[kMaxSwigluOutputs];
  uint32_t num_vectors;
  FastDivmod vectors_per_row;
};

// Tensors of one row each, backward, with both gradients.
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

// Strides in bytes, slowest axis first; unused leading axes have length 1.
struct SwigluRowStrides {
  int64_t row[kMaxRowAxes];
  int64_t column[kMaxRowAxes];
};

// Rows that are summed: the row of a block is an index over the axes of row_scale, a column is one over the others.
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
  FastDivmod narrow_column_shape[kMaxRowAxes];  // if has_narrow_columns
  int64_t rows;
  int64_t columns;
  bool has_vectors;     // a group of a row is one memory access
  bool has_outer_rows;  // rows run over more than one axis; the next member for columns
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
  const char *expert_rows;  // NULL: all rows exist
  int64_t expert_rows_stride;
  int64_t expert_index_stride[kMaxRowAxes];      // SwigluProblem's
  int64_t expert_row_index_stride[kMaxRowAxes];  // SwigluProblem's
};

}  // namespace rope
