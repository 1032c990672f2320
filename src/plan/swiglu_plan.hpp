// swiglu_plan.hpp - chooses how a SwiGLU problem runs on a device
#pragma once

#include <stdint.h>

#include "core/problem/swiglu_problem.hpp"
#include "plan/device_info.hpp"
#include "plan/swiglu_kernels.hpp"

namespace rope {

// On a GPU a thread takes one vector of each tensor. Rows (all axes but the last) are cut into vectors one by one; the
// last vector of a row may be short. Where rows are summed a block takes a row, which there runs over all axes that
// row_scale lacks. Matrices, whose rows have whole vectors and which have neither a row_scale nor num_rows nor experts,
// have kernels of their own: forward, and backward plain ones of 16 bits without a recomputed output, and those of
// formulas after kForm but kOptions. So have tensors of the axes experts, rows and columns, and with
// SwigluProblem::rows those of rows and columns, whose grid is what the device runs at a time. Other vectors of
// formulas after kForm have one element and the formula kOptions.
struct SwigluPlan {
  int num_tasks;  // CPU: parts that may run at the same time

  SwigluFormula formula;  // CUDA
  int vector_elements;
  GateUpLayout inputs;  // where they alternate a vector of each is read at once; separate where no vectors are
  GateUpLayout gradients;
  int64_t vectors_per_row;
  int64_t num_vectors;
  int64_t parts_per_row;    // is_expert_matrix: of kSwigluPartVectors
  int64_t unit_elements;    // of a block that makes codes: a group, or so many elements
  uint32_t threads;         // of a block
  uint32_t grid_x, grid_y;  // blocks are numbered y * grid_x + x
  bool is_programmatic;     // launched with programmatic dependent launch
  bool is_matrix;
  bool is_flat;  // of matrices backward: the tensors are one row, short enough for kernels that know nothing else
  bool is_expert_matrix;
  uint32_t group_lanes_log2;     // of matrices to codes: lanes of a group of a written scale
  bool has_code_rows;            // of matrices to codes: a block takes a row, which has one scale
  bool begins_last;              // SwigluMatrixShape's
  uint32_t rows_per_thread = 1;  // of matrices with biases or soft caps

  bool is_alternating() const { return inputs != GateUpLayout::kSeparate || gradients != GateUpLayout::kSeparate; }
};

// How the problems of a call run, one launch after another; on a GPU one launch writes all codes where they are of
// matrices (has_blocks).
struct SwigluCallPlan {
  bool has_blocks;
  SwigluPlan blocks;
  SwigluPlan plans[kMaxSwigluProblems];  // where has_blocks, of the words

  // The number of launches.
  int num_launches(const SwigluCall &call) const {
    return has_blocks ? (call.problems[0].has_codes() ? 1 : 2) : call.count;
  }
};

// Bytes of gate, up, out and their gradients that are read and written, at most INT64_MAX. A call with several problems
// reads its inputs for each of them unless has_blocks; what must move counts them once.
int64_t moved_bytes(const SwigluCall &call);

// NOT_SUPPORTED where a launch cannot hold the problem. The problem is not empty.
rope_status_t plan_swiglu(const char *function, const SwigluProblem &problem, const DeviceInfo &device,
                          SwigluPlan *plan);
rope_status_t plan_swiglu_call(const char *function, const SwigluCall &call, const DeviceInfo &device,
                               SwigluCallPlan *plan);

}  // namespace rope
