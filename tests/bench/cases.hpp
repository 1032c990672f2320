// SPDX-License-Identifier: Apache-2.0
// cases.hpp - the cases of cases.txt
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "rope/rope.h"

namespace bench {

enum class Measure {
  kStream,
  kResident,
  kCpu,
  kLatency,
  kCreateCold,
  kFirstCall,
  kCreate,
  kCreateNext,
  kCall,
  kBetweenGemms
};

enum class Angles {
  kComputed,
  kTableF32,
  kTable16
};

enum class Axes {
  kOne,
  kTwoHalves,
  kMrope
};

enum class CacheLayout {
  kNone,
  kNhd,
  kHnd,
  kPacked
};

// The tensors whose channels outside the window are in a separate tensor.
enum class Pass {
  kNone,
  kOfK,  // q has only the window
  kAll
};

enum class Gate {
  kSeparate,
  kPacked,
  kInterleaved
};

enum class Metric {
  kNone,
  kShare,
  kScaleShare,
  kMicroseconds,
  kMicrosecondsAbove,
  kMicrosecondsScaled,
  kSeparateShare
};

struct Demand {
  Metric metric = Metric::kNone;
  double bound = 0;
  double copy_us = 0;  // the programmatic copy's time for which the bound is given
};

// In the order of the line. A case is such a list too, with one value per word: the geometry that results include.
using Words = std::vector<std::pair<std::string, std::string>>;

struct Case {
  std::string name, group;
  Words words;
  Measure measure = Measure::kStream;
  bool is_swiglu = false;
  rope_dtype_t dtype = ROPE_DTYPE_BF16;
  bool is_programmatic = false, is_backward = false;
  int num_threads = 0;
  Demand demand;

  // RoPE
  rope_layout_t layout = ROPE_LAYOUT_THD;
  int64_t batches = 1, tokens = 0;
  int64_t q_heads = 0, k_heads = 0, v_heads = 0;
  int head_dim = 0, rotary_dim = 0, rotary_offset = 0;
  rope_style_t style = ROPE_STYLE_HALF, out_style = 0;
  bool rounds_each = false;  // ROPE_ROTATION_ROUND_EACH
  double theta = 0;
  Angles angles = Angles::kComputed;
  bool is_out_of_place = false, has_yarn = false, is_packed = false, has_row_per_token = false;
  rope_dtype_t position_dtype = 0;
  int64_t num_sequences = 0;
  Axes axes = Axes::kOne;
  int64_t q_pitch = 0, q_from = 0;
  bool is_odd_view = false;

  // The step around the rotation
  rope_norm_type_t norm = 0;
  rope_norm_order_t norm_order = ROPE_NORM_ORDER_BEFORE;
  rope_norm_extent_t norm_extent = ROPE_NORM_EXTENT_HEAD;
  rope_dtype_t weight_dtype = 0;  // 0: no weights
  CacheLayout cache = CacheLayout::kNone;
  int64_t cache_pages = 0;
  bool has_page_per_token = false, has_page_table = false;
  rope_dtype_t slot_dtype = 0;
  Pass pass = Pass::kNone;
  bool is_unrotated = false, has_k_out = true, is_beside_separate = false;
  // The type of the caches, of q_out if has_code_q is set, and of SwiGLU's out; 0: the data's type.
  rope_dtype_t code_dtype = 0;
  bool has_code_q = false, has_written_scales = false;
  bool has_weight_gradients = false, accumulates = false;  // backward

  // SwiGLU
  int64_t scale_group = 0;   // channels for which a scale is written; 0: none
  bool has_columns = false;  // codes by column too, with scales of as many rows
  int64_t rows = 0, columns = 0;
  Gate gate = Gate::kSeparate;
  int32_t activation = SWIGLU_ACTIVATION_SWIGLU, limit_rule = SWIGLU_LIMIT_GATE;
  double alpha = 0, limit = 0, up_offset = 0, gate_softcap = 0, up_softcap = 0;
  rope_dtype_t bias_dtype = 0;   // 0: no biases
  int64_t num_experts = 0;       // 0: none; otherwise `rows` are the rows that there is room for in each
  bool is_back_to_back = false;  // the experts' rows follow each other, at the beginning of the same memory
};

constexpr int64_t kPageEntries = 16;

int64_t size_of(rope_dtype_t dtype);

// For an item with experts: every second expert has no rows, the others have 0 to item.rows, evenly distributed, by a
// fixed seed.
std::vector<int64_t> expert_rows_of(const Case &item);

// The type of the scales that SwiGLU writes.
rope_dtype_t scale_dtype_of(const Case &item);

// The number of rows of SwiGLU that exist, and the number for which there is room.
int64_t existing_rows_of(const Case &item);
int64_t room_of_rows(const Case &item);

// The least that the operation can move: every element that it accesses is read once, and written once to each of its
// destinations, not counting positions, tables, weights and slots.
double bytes_moved(const Case &item);

// The part of bytes_moved that is written to the place where it was read.
double bytes_in_place(const Case &item);

// Whether the item has a norm, a cache, nothing rotated, or gradients that are added to others.
bool is_step(const Case &item);

// Whether the item is backward of a norm, which also reads forward's input.
bool is_norm_gradient(const Case &item);

// Whether only a part of each head's row in memory is accessed.
bool is_partial(const Case &item);

// The cases in the order of the file. With `is_tiny` each has a few tokens or rows and no demand. An error in the file
// ends the program and prints the line.
std::vector<Case> all_cases(bool is_tiny);

std::string text_of(const Words &words);

}  // namespace bench
