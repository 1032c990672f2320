// cases.hpp - what cases.txt says
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

// Which tensors have their channels outside the window in another one.
enum class Pass {
  kNone,
  kOfK,  // q has the window alone
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
  double copy_us = 0;  // scaled: what the programmatic copy takes where the bound is as it stands
};

// In the order of the line. A case is also one such list, without lists in it: the geometry that results carry along.
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
  rope_dtype_t code_dtype = 0;  // of the caches, and of q_out where has_code_q; 0: that of the data
  bool has_code_q = false, has_written_scales = false;
  bool has_weight_gradients = false, accumulates = false;  // backward

  // SwiGLU
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

// Of an item with experts: every other one has none, the others evenly many from 0 to item.rows, by a fixed seed.
std::vector<int64_t> expert_rows_of(const Case &item);

// Rows of SwiGLU that exist, and rows that there is room for.
int64_t existing_rows_of(const Case &item);
int64_t room_of_rows(const Case &item);

// The least that the operation can move: every element that it touches read once, and written once to each of its
// destinations, without positions, tables, weights and slots.
double bytes_moved(const Case &item);

// Those of them that are written where they were read.
double bytes_in_place(const Case &item);

// A norm, a cache, nothing that turns, or gradients that are added to others.
bool is_step(const Case &item);

// Backward of a norm, which reads forward's input too.
bool is_norm_gradient(const Case &item);

// Whether only a part of every head's row in memory is touched.
bool is_partial(const Case &item);

// Cases in the order of the file. With `is_tiny` every one has a few tokens or rows, and no demand. A mistake in the
// file ends the program with its line.
std::vector<Case> all_cases(bool is_tiny);

std::string text_of(const Words &words);

}  // namespace bench
