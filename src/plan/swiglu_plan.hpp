// SPDX-License-Identifier: Apache-2.0
// swiglu_plan.hpp - chooses how a SwiGLU problem runs on a device
#pragma once

#include <stdint.h>

#include "core/problem/swiglu_problem.hpp"
#include "plan/device_info.hpp"
#include "plan/swiglu_kernels.hpp"

namespace rope {

// On a GPU a thread processes one vector of each tensor. A row is an index of all axes but the last; each row is cut
// into vectors, and the last of them may be short. If rows are summed, a block processes a row, which then runs over
// all axes that row_scale lacks.
//
// Matrices have their own kernels. Here these are tensors with whole vectors in each row and without row_scale,
// num_rows and experts: all of forward; of backward plain ones of 16 bits without a recomputed output, and those of
// formulas after kForm except kOptions. Tensors of the axes experts, rows and columns, and with SwigluProblem::rows
// those of rows and columns, have kernels too; their grid is as large as the device runs at a time. Other calls with a
// formula after kForm use vectors of one element and the formula kOptions.
//
// A problem with codes has is_matrix, is_expert_matrix or vectors of one element. is_expert_matrix then includes
// matrices with biases or row_scale.
struct SwigluPlan {
  int num_tasks;  // CPU: parts that may run at the same time

  SwigluFormula formula;  // CUDA
  int vector_elements;
  GateUpLayout inputs;  // if they alternate, a vector of both is read at once; kSeparate if there are no vectors
  GateUpLayout gradients;
  int64_t vectors_per_row;
  int64_t num_vectors;
  int64_t parts_per_row;    // is_expert_matrix: parts of kSwigluPartVectors
  int64_t unit_elements;    // of a block that makes codes: those of a group, or kSwigluCodeElements
  uint32_t threads;         // of a block
  uint32_t grid_x, grid_y;  // blocks are numbered y * grid_x + x
  bool is_programmatic;     // launched with programmatic dependent launch
  bool is_matrix;
  bool is_flat;  // matrices backward: tensors of one short row, which the flat kernel processes
  bool is_expert_matrix;
  uint32_t group_lanes_log2;     // codes: lanes of a group with a written scale
  uint32_t group_vectors = 1;    // matrices to codes: vectors of each of these lanes, or of each thread
  bool has_code_rows;            // matrices to codes: a block processes a row, which has one scale
  bool has_plain_groups;         // matrices to codes of E4M3, with nothing but scales: groups of 128 channels
  bool begins_last;              // SwigluMatrixShape's
  uint32_t rows_per_thread = 1;  // more for matrices with biases or soft caps, and matrices to codes

  bool is_alternating() const { return inputs != GateUpLayout::kSeparate || gradients != GateUpLayout::kSeparate; }
};

// How the problems of a call run: one launch after another. With has_blocks, on a GPU, one launch writes all codes of
// matrices.
struct SwigluCallPlan {
  bool has_blocks;
  SwigluPlan blocks;
  SwigluPlan plans[kMaxSwigluProblems];  // with has_blocks, only that of the words

  // The number of launches.
  int num_launches(const SwigluCall &call) const {
    return has_blocks ? (call.problems[0].has_codes() ? 1 : 2) : call.count;
  }
};

// Returns the bytes of gate, up, out and their gradients that a call must read and write, at most INT64_MAX. Without
// has_blocks each problem of a call reads the inputs again; they count once here.
int64_t moved_bytes(const SwigluCall &call);

// Returns the formula of values that become codes. It does not depend on the kernel, and so neither do their bits.
SwigluFormula code_formula_of(const SwigluProblem &problem);

// The spans of rows_per_thread rows of each matrix that becomes codes, and the threads of all matrices.
int64_t num_code_spans(const SwigluProblem &problem, const SwigluPlan &plan);
int64_t num_code_matrix_threads(const SwigluProblem &problem, const SwigluPlan &plan);

// Plans a problem that is not empty. NOT_SUPPORTED: a launch cannot hold the problem.
rope_status_t plan_swiglu(const char *function, const SwigluProblem &problem, const DeviceInfo &device,
                          SwigluPlan *plan);
rope_status_t plan_swiglu_call(const char *function, const SwigluCall &call, const DeviceInfo &device,
                               SwigluCallPlan *plan);

}  // namespace rope
