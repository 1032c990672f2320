// SPDX-License-Identifier: Apache-2.0
// golden_tests.cpp - every bit of RoPE on every device and instruction set, as hashes of outputs in golden.txt; and
// equal bits of RoPE and SwiGLU in repeated runs and with any number of threads
//
// RoPE guarantees identical bits everywhere, so a changed bit is a deliberate change. It is made by writing the file
// again with
//     ROPE_WRITE_GOLDEN=tests/api/golden.txt build/tests/rope_api_tests "[golden]"
// and says so in CHANGELOG.md. (SwiGLU promises bits on one device and instruction set only. Its hashes are those of
// codes and scales, by ReGLU of a gate of 1: out is then up, and with an up of 1 both gradients are grad_out.)
//
// Inputs are computed only with integers, so they do not depend on a machine's libm or rounding. Element n of a tensor
// is, with w the n-th output of SplitMix64 from the tensor's seed,
//     sign    bit 63 of w
//     exponent  lowest + (w >> 32) % count, as a power of two
//     significand  the lowest bits of w, as many as the type stores
#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "golden_text.hpp"
#include "support/cases.hpp"

namespace {

constexpr int64_t batches = 2, tokens = 61, q_heads = 3, k_heads = 1, head_dim = 96, rows = 4096;
constexpr int32_t rotary_dim = 80, rotary_offset = 8, pairs = rotary_dim / 2;

enum class Source {
  Computed,
  Table,
  Angles
};

const std::vector<rope_dtype_t> dtypes = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16, ROPE_DTYPE_F64};
const std::vector<rope_style_t> styles = {ROPE_STYLE_HALF, ROPE_STYLE_INTERLEAVED};

struct FloatForm {
  int significand_bits, bias, size;
};

FloatForm form_of(rope_dtype_t dtype) {
  switch (dtype) {
    case ROPE_DTYPE_F16:
      return {10, 15, 2};
    case ROPE_DTYPE_BF16:
      return {7, 127, 2};
    case ROPE_DTYPE_F64:
      return {52, 1023, 8};
    case ROPE_DTYPE_F8_E4M3:
      return {3, 7, 1};
    case ROPE_DTYPE_F8_E5M2:
      return {2, 15, 1};
    case ROPE_DTYPE_F8_E8M0:
    case ROPE_DTYPE_F4_E2M1X2:
      return {0, 127, 1};
    default:
      return {23, 127, 4};
  }
}

void fill_floats(const rope_tensor_t &tensor, uint64_t seed, int lowest_exponent, int num_exponents) {
  Random random(seed);
  const FloatForm form = form_of(tensor.dtype);
  for_each_index(tensor, [&](const Index &index) {
    const uint64_t word = random.bits();
    const int exponent = lowest_exponent + static_cast<int>((word >> 32) % static_cast<uint64_t>(num_exponents));
    const uint64_t bits = (word >> 63) << (8 * form.size - 1) |
                          static_cast<uint64_t>(exponent + form.bias) << form.significand_bits |
                          (word & ((uint64_t{1} << form.significand_bits) - 1));
    std::memcpy(element_at(tensor, index), &bits, static_cast<size_t>(form.size));  // lowest byte first
  });
}

// FNV-1a hash of the elements in index order.
class Hash {
 public:
  void add(const rope_tensor_t &tensor) {
    for_each_index(tensor, [&](const Index &index) {
      const auto *byte = static_cast<const unsigned char *>(element_at(tensor, index));
      for (int i = 0; i < form_of(tensor.dtype).size; ++i) value_ = (value_ ^ byte[i]) * 0x100000001b3u;
    });
  }
  std::string text() const {
    char digits[17];
    std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(value_));
    return digits;
  }

 private:
  uint64_t value_ = 0xcbf29ce484222325u;
};

struct Request {
  rope_dtype_t dtype;
  rope_style_t style, out_style;
  Direction direction;
  Source source;

  std::string name() const {
    const auto word = [](rope_style_t of) { return of == ROPE_STYLE_HALF ? "half" : "interleaved"; };
    const char *const sources[] = {"computed", "table", "angles"};
    return std::string("rope ") + oracle::dtype_name(dtype) + " " + word(style) +
           (out_style == style ? "" : std::string(" to ") + word(out_style)) + " " + name_of(direction) + " " +
           sources[static_cast<int>(source)];
  }
};

rope_config_t config_of(const Device &device, const Request &request) {
  rope_config_t config = rope_config_for(device, head_dim);
  config.dtype = request.dtype;
  config.style = request.style;
  config.out_style = request.out_style;
  config.rotary_dim = rotary_dim;
  config.rotary_offset = rotary_offset;
  config.attention_scale = 1.25;
  config.theta = 500000;
  return config;
}

std::string hash_of(const Device &device, const Request &request, bool is_in_place) {
  Workspace workspace(1);
  rope_args_t args = rope_args();
  args.q = workspace.tensor(request.dtype, {batches, tokens, q_heads, head_dim});
  args.k = workspace.tensor(request.dtype, {batches, tokens, k_heads, head_dim});
  fill_floats(args.q, 1, -10, 16);
  fill_floats(args.k, 2, -10, 16);
  if (!is_in_place) {
    args.q_out = workspace.tensor(request.dtype, {batches, tokens, q_heads, head_dim});
    args.k_out = workspace.tensor(request.dtype, {batches, tokens, k_heads, head_dim});
  }
  args.positions = workspace.tensor(ROPE_DTYPE_I64, {batches, tokens});
  Random random(3);
  // For computed angles, positions of every size and sign; for tables, rows and some positions outside.
  workspace.fill_integers(args.positions, [&](const Index &) {
    const uint64_t word = random.bits();
    if (request.source != Source::Computed) return static_cast<int64_t>(word % (rows + 64));
    const auto position = static_cast<int64_t>(word >> 16 >> (word % 48));
    return (word >> 8) % 2 == 0 ? position : -position;
  });
  if (request.source == Source::Table) {
    const rope_dtype_t dtype = request.dtype == ROPE_DTYPE_F64 ? ROPE_DTYPE_F64 : ROPE_DTYPE_F32;
    args.cos = workspace.tensor(dtype, {rows, pairs});
    args.sin = workspace.tensor(dtype, {rows, pairs});
    fill_floats(args.cos, 4, -12, 12);
    fill_floats(args.sin, 5, -12, 12);
  } else if (request.source == Source::Angles) {
    args.angles = workspace.tensor(ROPE_DTYPE_F32, {rows, pairs});
    fill_floats(args.angles, 6, -20, 60);
  }
  workspace.freeze();
  workspace.restore();
  const RopeDesc desc = create(config_of(device, request));
  const rope_status_t status = run(device, desc.get(), request.direction, args, workspace);
  INFO(rope_last_error());
  REQUIRE(status == ROPE_STATUS_SUCCESS);
  Hash hash;
  hash.add(is_in_place ? args.q : args.q_out);
  hash.add(is_in_place ? args.k : args.k_out);
  return hash.text();
}

std::string hash_of_tables(const Device &device, rope_dtype_t dtype, rope_dtype_t table_dtype) {
  Workspace workspace(2);
  const rope_tensor_t cos = workspace.tensor(table_dtype, {rows, pairs});
  const rope_tensor_t sin = workspace.tensor(table_dtype, {rows, pairs});
  workspace.freeze();
  workspace.restore();
  const Request request = {dtype, ROPE_STYLE_HALF, ROPE_STYLE_HALF, Direction::Forward, Source::Computed};
  const RopeDesc desc = create(config_of(device, request));
  REQUIRE(run(device, desc.get(), cos, sin, workspace) == ROPE_STATUS_SUCCESS);
  Hash hash;
  hash.add(cos);
  hash.add(sin);
  return hash.text();
}

// The operations around the rotation.
struct Step {
  const char *name;
  rope_norm_type_t norm;
  rope_norm_order_t order;
  rope_norm_extent_t extent;
  int32_t rounding;
  double weight_offset;
  bool changes_style, is_cached;
  uint32_t flags;
  rope_dtype_t out_code = 0, cache_code = 0;  // 8-bit types that replace the data's
  uint32_t quant_flags = 0;
  int32_t quant_rounding = 0;
  bool has_amax = false, has_factors = false;
  rope_dtype_t written = 0;  // type of written scales beside the codes, which replace static ones
  int64_t groups = 1;
  bool has_parts = false;  // a window of 32 channels and the other channels come from two tensors; k goes to two caches

  bool has_codes() const { return out_code != 0 || cache_code != 0; }
  bool has_gradient() const { return norm != 0 && !is_cached && !has_codes(); }
};

constexpr Step steps[] = {
    {"RMS before", ROPE_NORM_RMS, ROPE_NORM_ORDER_BEFORE, ROPE_NORM_EXTENT_HEAD, 0, 0, false, false, 0},
    {"RMS before, rounded", ROPE_NORM_RMS, ROPE_NORM_ORDER_BEFORE, ROPE_NORM_EXTENT_HEAD,
     ROPE_NORM_ROUND_BEFORE_WEIGHT | ROPE_NORM_ROUND_AFTER_WEIGHT, 1, false, false, 0},
    {"RMS of tokens after", ROPE_NORM_RMS, ROPE_NORM_ORDER_AFTER, ROPE_NORM_EXTENT_TOKEN, 0, 0, true, false, 0},
    {"LAYER after", ROPE_NORM_LAYER, ROPE_NORM_ORDER_AFTER, ROPE_NORM_EXTENT_HEAD, 0, 0, false, false, 0},
    {"LAYER of tokens before, rounded", ROPE_NORM_LAYER, ROPE_NORM_ORDER_BEFORE, ROPE_NORM_EXTENT_TOKEN,
     ROPE_NORM_ROUND_AFTER_WEIGHT, 0, true, false, 0},
    {"cached", 0, 0, 0, 0, 0, false, true, ROPE_FLAG_V_UNROTATED},
    {"RMS before, cached", ROPE_NORM_RMS, ROPE_NORM_ORDER_BEFORE, ROPE_NORM_EXTENT_HEAD, 0, 0, true, true,
     ROPE_FLAG_V_UNROTATED},
    {"unrotated, cached", 0, 0, 0, 0, 0, true, true, ROPE_FLAG_UNROTATED},
    {"row factors", 0, 0, 0, 0, 0, true, false, 0, 0, 0, 0, 0, false, true},
    {"RMS before, row factors, cached", ROPE_NORM_RMS, ROPE_NORM_ORDER_BEFORE, ROPE_NORM_EXTENT_HEAD, 0, 0, false, true,
     ROPE_FLAG_V_UNROTATED, 0, 0, 0, 0, false, true},
    {"cached as E4M3", 0, 0, 0, 0, 0, false, true, ROPE_FLAG_V_UNROTATED, 0, ROPE_DTYPE_F8_E4M3},
    {"RMS before, cached as E4M3", ROPE_NORM_RMS, ROPE_NORM_ORDER_BEFORE, ROPE_NORM_EXTENT_HEAD, 0, 0, true, true,
     ROPE_FLAG_V_UNROTATED, 0, ROPE_DTYPE_F8_E4M3},
    {"RMS before, to E4M3, cached as E4M3, scales that multiply", ROPE_NORM_RMS, ROPE_NORM_ORDER_BEFORE,
     ROPE_NORM_EXTENT_HEAD, 0, 0, false, true, ROPE_FLAG_V_UNROTATED, ROPE_DTYPE_F8_E4M3, ROPE_DTYPE_F8_E4M3,
     ROPE_QUANT_FLAG_SCALE_MULTIPLIES},
    {"unrotated, cached as E4M3", 0, 0, 0, 0, 0, false, true, ROPE_FLAG_UNROTATED, 0, ROPE_DTYPE_F8_E4M3},
    {"cached as E5M2, rounded first", 0, 0, 0, 0, 0, false, true, ROPE_FLAG_V_UNROTATED, 0, ROPE_DTYPE_F8_E5M2, 0,
     ROPE_QUANT_ROUND_FIRST},
    {"LAYER after, to E5M2, amax", ROPE_NORM_LAYER, ROPE_NORM_ORDER_AFTER, ROPE_NORM_EXTENT_HEAD, 0, 0, false, false, 0,
     ROPE_DTYPE_F8_E5M2, 0, 0, 0, true},
    {"RMS of tokens before, row factors, to E4M3, cached as E5M2, amax", ROPE_NORM_RMS, ROPE_NORM_ORDER_BEFORE,
     ROPE_NORM_EXTENT_TOKEN, 0, 0, true, true, ROPE_FLAG_V_UNROTATED, ROPE_DTYPE_F8_E4M3, ROPE_DTYPE_F8_E5M2, 0, 0,
     true, true},
    {"RMS before, to E4M3, cached as E4M3, written scales of heads", ROPE_NORM_RMS, ROPE_NORM_ORDER_BEFORE,
     ROPE_NORM_EXTENT_HEAD, 0, 0, false, true, ROPE_FLAG_V_UNROTATED, ROPE_DTYPE_F8_E4M3, ROPE_DTYPE_F8_E4M3, 0, 0,
     false, false, ROPE_DTYPE_F32},
    {"to E4M3, cached as E5M2, rounded first, written scales of E8M0 of 12 channels", 0, 0, 0, 0, 0, true, true,
     ROPE_FLAG_V_UNROTATED, ROPE_DTYPE_F8_E4M3, ROPE_DTYPE_F8_E5M2, 0, ROPE_QUANT_ROUND_FIRST, false, false,
     ROPE_DTYPE_F8_E8M0, 8},
    {"LAYER after, to E5M2, amax, written powers of two of 32 channels", ROPE_NORM_LAYER, ROPE_NORM_ORDER_AFTER,
     ROPE_NORM_EXTENT_HEAD, 0, 0, false, false, 0, ROPE_DTYPE_F8_E5M2, 0, ROPE_QUANT_FLAG_POWER_OF_TWO, 0, true, false,
     ROPE_DTYPE_F32, 3},
    {"in parts", 0, 0, 0, 0, 0, true, true, ROPE_FLAG_V_UNROTATED, 0, 0, 0, 0, false, false, 0, 1, true},
    {"RMS before, in parts, to E4M3, cached beside E4M3, written scales of E8M0 of 16 channels", ROPE_NORM_RMS,
     ROPE_NORM_ORDER_BEFORE, ROPE_NORM_EXTENT_HEAD, 0, 0, false, true, ROPE_FLAG_V_UNROTATED, ROPE_DTYPE_F8_E4M3,
     ROPE_DTYPE_F8_E4M3, 0, 0, false, false, ROPE_DTYPE_F8_E8M0, 4, true}};

// Backward is that of a step with a gradient.
std::string hash_of(const Device &device, rope_dtype_t dtype, rope_style_t style, const Step &step, bool is_in_place,
                    Direction direction = Direction::Forward) {
  Workspace workspace(3);
  rope_args_t args = rope_args();
  args.flags = step.flags;
  const auto tensor_of = [&](rope_dtype_t of, const Shape &shape, uint64_t seed) {
    const rope_tensor_t view = workspace.tensor(of ? of : dtype, shape);
    fill_floats(view, seed, oracle::is_code(of) ? -6 : -10, oracle::is_code(of) ? 12 : 16);
    return view;
  };
  const auto tensor = [&](const Shape &shape, uint64_t seed) { return tensor_of(0, shape, seed); };
  constexpr int64_t window = 32;
  const int64_t width = step.has_parts ? window : head_dim;
  args.q = tensor({batches, tokens, q_heads, width}, 1);
  args.k = tensor({batches, tokens, k_heads, width}, 2);
  if (step.is_cached) args.v = tensor({batches, tokens, k_heads, head_dim}, 3);
  const bool has_outputs = !is_in_place || step.out_code || step.has_parts;  // outputs with their own memory
  if (has_outputs) {
    args.q_out = tensor_of(step.out_code, {batches, tokens, q_heads, head_dim}, 4);
    if (!step.is_cached) args.k_out = tensor_of(step.out_code, {batches, tokens, k_heads, head_dim}, 5);
  }
  Random random(6);
  if (!(step.flags & ROPE_FLAG_UNROTATED)) {
    args.positions = workspace.tensor(ROPE_DTYPE_I64, {batches, tokens});
    workspace.fill_integers(args.positions, [&](const Index &) { return static_cast<int64_t>(random.bits() >> 44); });
  }
  rope_norm_args_t norm = ROPE_NORM_ARGS_INIT;
  if (step.norm) {
    norm.q_weight = tensor({head_dim}, 7);
    norm.k_weight = tensor({k_heads, head_dim}, 8);
    if (step.norm == ROPE_NORM_LAYER) norm.q_bias = norm.k_bias = tensor({head_dim}, 9);
    args.norm = &norm;
  }
  if (direction == Direction::Backward) {
    norm.q_in = tensor({batches, tokens, q_heads, head_dim}, 20);
    norm.k_in = tensor({batches, tokens, k_heads, head_dim}, 21);
    const rope_dtype_t sums = dtype == ROPE_DTYPE_F64 ? ROPE_DTYPE_F64 : ROPE_DTYPE_F32;
    norm.grad_q_weight = tensor_of(sums, {5, head_dim}, 22);
    norm.grad_k_weight = tensor_of(sums, {3, k_heads, head_dim}, 23);
    if (step.norm == ROPE_NORM_LAYER) {
      norm.grad_q_bias = tensor_of(sums, {5, q_heads, head_dim}, 24);
      norm.grad_k_bias = tensor_of(sums, {3, head_dim}, 25);
    }
  }
  rope_cache_args_t cache = ROPE_CACHE_ARGS_INIT;
  if (step.is_cached) {
    cache.k_cache = tensor_of(step.has_parts ? 0 : step.cache_code, {16, 8, k_heads, width}, 10);
    if (step.has_parts) cache.k_pass_cache = tensor_of(step.cache_code, {16, 8, k_heads, head_dim - window}, 17);
    cache.v_cache = tensor_of(step.cache_code, {16, 8, k_heads, head_dim}, 11);
    cache.slots = workspace.tensor(ROPE_DTYPE_I64, {batches, tokens});
    // Each place once, and some slots before the first and behind the last place.
    workspace.fill_integers(cache.slots, [](const Index &at) { return (at[0] * tokens + at[1]) * 7 % 131 - 2; });
    args.cache = &cache;
  }
  rope_quant_args_t quant = ROPE_QUANT_ARGS_INIT;
  if (step.has_codes()) {
    quant.flags = step.quant_flags;
    const auto scale = [&](int64_t count) {
      const rope_tensor_t view = workspace.tensor(ROPE_DTYPE_F32, {count});
      workspace.fill(view, [](const Index &at) { return 0.375L + 0.25L * static_cast<oracle::Real>(at[0]); });
      return view;
    };
    if (step.written) {
      if (step.out_code) quant.q_scales_out = tensor_of(step.written, {batches, tokens, q_heads, step.groups}, 14);
      if (step.cache_code) {
        (step.has_parts ? cache.k_pass_scales : cache.k_scales) =
            tensor_of(step.written, {16, 8, k_heads, step.groups}, 15);
        cache.v_scales = tensor_of(step.written, {16, 8, k_heads, step.groups}, 16);
      } else {
        quant.k_scales_out = tensor_of(step.written, {batches, tokens, k_heads, step.groups}, 15);
      }
    } else {
      if (step.out_code) quant.q_scale = scale(q_heads);
      quant.k_scale = scale(1);
      if (step.cache_code) quant.v_scale = scale(k_heads);
    }
    if (step.has_amax) {
      quant.amax_out = workspace.tensor(ROPE_DTYPE_F32, {3});
      workspace.fill(quant.amax_out, [](const Index &) { return 0.5L; });
    }
    args.quant = &quant;
  }
  rope_input_args_t input = ROPE_INPUT_ARGS_INIT;
  if (step.has_factors) {
    input.q_row_factor = tensor_of(ROPE_DTYPE_F32, {tokens}, 12);
    input.k_row_factor = tensor({batches, tokens, k_heads}, 13);
    args.input = &input;
  }
  if (step.has_parts) {
    input.q_pass = tensor({batches, tokens, q_heads, head_dim - window}, 18);
    input.k_pass = tensor({batches, tokens, k_heads, head_dim - window}, 19);
    args.input = &input;
  }
  workspace.freeze();
  workspace.restore();
  rope_config_t config = config_of(device, {dtype, style, style, Direction::Forward, Source::Computed});
  if (step.changes_style) config.out_style = oracle::other_style(style);
  if (step.has_parts) {
    config.rotary_dim = window;
    config.rotary_offset = 40;
  }
  config.norm = step.norm;
  config.norm_order = step.order;
  config.norm_extent = step.extent;
  config.norm_rounding = step.rounding;
  config.norm_weight_offset = step.weight_offset;
  config.norm_eps = step.norm ? 0x1p-20 : 0;
  config.quant_rounding = step.quant_rounding;
  const RopeDesc desc = create(config);
  const rope_status_t status = run(device, desc.get(), direction, args, workspace);
  INFO(rope_last_error());
  REQUIRE(status == ROPE_STATUS_SUCCESS);
  Hash hash;
  hash.add(has_outputs ? args.q_out : args.q);
  for (const rope_tensor_t &sums : {norm.grad_q_weight, norm.grad_k_weight, norm.grad_q_bias, norm.grad_k_bias}) {
    if (sums.ndim != 0) hash.add(sums);
  }
  if (step.is_cached) {
    hash.add(cache.k_cache);
    if (step.has_parts) hash.add(cache.k_pass_cache);
    hash.add(cache.v_cache);
  } else {
    hash.add(has_outputs ? args.k_out : args.k);
  }
  if (step.has_amax) hash.add(quant.amax_out);
  for (const rope_tensor_t &scales :
       {quant.q_scales_out, quant.k_scales_out, cache.k_scales, cache.v_scales, cache.k_pass_scales}) {
    if (scales.ndim != 0) hash.add(scales);
  }
  return hash.text();
}

// How SwiGLU's values become codes.
struct Codes {
  const char *name;
  rope_dtype_t out_code;
  rope_dtype_t written = 0;  // type of scales; 0: a static one
  int64_t groups = 1;
  uint32_t flags = 0;
  int32_t rounding = 0;
  bool has_tiles = false;
  bool has_columns = false;  // the outputs are written by column too, with scales for groups of 32 rows
  Direction direction = Direction::Forward;
};

constexpr Codes codes_of_swiglu[] = {
    {"E4M3", ROPE_DTYPE_F8_E4M3},
    {"E5M2, scales that multiply, rounded first", ROPE_DTYPE_F8_E5M2, 0, 1, ROPE_QUANT_FLAG_SCALE_MULTIPLIES,
     ROPE_QUANT_ROUND_FIRST},
    {"E4M3, written scales of rows", ROPE_DTYPE_F8_E4M3, ROPE_DTYPE_F32},
    {"E4M3, written powers of two of 32 channels", ROPE_DTYPE_F8_E4M3, ROPE_DTYPE_F32, 5, ROPE_QUANT_FLAG_POWER_OF_TWO},
    {"MXFP8", ROPE_DTYPE_F8_E4M3, ROPE_DTYPE_F8_E8M0, 5, 0, ROPE_QUANT_ROUND_FIRST},
    {"MXFP8 of E5M2 in tiles", ROPE_DTYPE_F8_E5M2, ROPE_DTYPE_F8_E8M0, 5, 0, 0, true},
    {"E2M1", ROPE_DTYPE_F4_E2M1X2},
    {"MXFP4 in tiles", ROPE_DTYPE_F4_E2M1X2, ROPE_DTYPE_F8_E8M0, 5, 0, ROPE_QUANT_ROUND_FIRST, true},
    {"NVFP4", ROPE_DTYPE_F4_E2M1X2, ROPE_DTYPE_F8_E4M3, 10},
    {"NVFP4 in tiles", ROPE_DTYPE_F4_E2M1X2, ROPE_DTYPE_F8_E4M3, 10, 0, ROPE_QUANT_ROUND_FIRST, true},
    {"MXFP8 both ways", ROPE_DTYPE_F8_E4M3, ROPE_DTYPE_F8_E8M0, 5, 0, ROPE_QUANT_ROUND_FIRST, false, true},
    {"MXFP8 of E5M2 both ways, in tiles", ROPE_DTYPE_F8_E5M2, ROPE_DTYPE_F8_E8M0, 5, 0, 0, true, true},
    {"gradients of MXFP8", ROPE_DTYPE_F8_E4M3, ROPE_DTYPE_F8_E8M0, 5, 0, 0, false, false, Direction::Backward},
    {"gradients of MXFP8 both ways", ROPE_DTYPE_F8_E4M3, ROPE_DTYPE_F8_E8M0, 5, 0, ROPE_QUANT_ROUND_FIRST, true, true,
     Direction::Backward},
    {"gradients of E5M2 both ways, powers of two", ROPE_DTYPE_F8_E5M2, ROPE_DTYPE_F32, 5, ROPE_QUANT_FLAG_POWER_OF_TWO,
     0, false, true, Direction::Backward}};

std::string hash_of(const Device &device, rope_dtype_t dtype, const Codes &codes) {
  const int64_t num_rows = codes.has_columns ? 160 : 131, channels = 160;
  const bool is_forward = codes.direction == Direction::Forward;
  Workspace workspace(8);
  std::vector<rope_tensor_t> outputs;
  const auto add = [&](rope_tensor_t *output, rope_dtype_t type, const Shape &shape) {
    *output = workspace.tensor(type, shape);
    outputs.push_back(*output);
  };
  const auto padded = [](int64_t length, int64_t tile) { return (length + tile - 1) / tile * tile; };
  const auto add_scales = [&](rope_tensor_t *output, const Shape &shape, int64_t lines) {
    add(output, codes.written, codes.has_tiles ? Shape{padded(lines, 128), padded(codes.groups, 4)} : shape);
  };
  const Shape shape = {num_rows, channels};
  swiglu_args_t args = swiglu_args();
  swiglu_quant_args_t quant = SWIGLU_QUANT_ARGS_INIT;
  swiglu_column_args_t column = SWIGLU_COLUMN_ARGS_INIT;
  args.gate = workspace.tensor(dtype, shape);
  args.up = workspace.tensor(dtype, shape);
  workspace.fill(args.gate, [](const Index &) { return 1.0L; });
  if (is_forward) {
    fill_floats(args.up, 1, -8, 12);
    const int64_t elements = codes.out_code == ROPE_DTYPE_F4_E2M1X2 ? channels / 2 : channels;
    add(&args.out, codes.out_code, {num_rows, elements});
  } else {
    workspace.fill(args.up, [](const Index &) { return 1.0L; });
    args.grad_out = workspace.tensor(dtype, shape);
    fill_floats(args.grad_out, 1, -8, 12);
    add(&args.grad_gate, codes.out_code, shape);
    add(&args.grad_up, codes.out_code, shape);
  }
  add(&quant.amax_out, ROPE_DTYPE_F32, {1});
  workspace.fill(quant.amax_out, [](const Index &) { return 0.5L; });
  quant.flags = codes.flags;
  quant.scale_layout = codes.has_tiles ? SWIGLU_SCALE_LAYOUT_128X4 : SWIGLU_SCALE_LAYOUT_STRIDED;
  if (codes.written == 0 || codes.written == ROPE_DTYPE_F8_E4M3) {
    quant.scale = workspace.tensor(ROPE_DTYPE_F32, {1});
    workspace.fill(quant.scale, [](const Index &) { return 0.6875L; });
  }
  if (codes.written != 0) {
    for (rope_tensor_t *const scales : {&quant.scales_out, &quant.grad_gate_scales_out, &quant.grad_up_scales_out}) {
      if ((scales == &quant.scales_out) == is_forward) add_scales(scales, {num_rows, codes.groups}, num_rows);
    }
  }
  if (codes.has_columns) {
    column.flags = codes.flags;
    column.scale_layout = quant.scale_layout;
    const Shape by_column = {codes.groups, channels};
    if (is_forward) {
      add(&column.out, codes.out_code, shape);
      add_scales(&column.scales_out, by_column, channels);
    } else {
      add(&column.grad_gate, codes.out_code, shape);
      add(&column.grad_up, codes.out_code, shape);
      add_scales(&column.grad_gate_scales_out, by_column, channels);
      add_scales(&column.grad_up_scales_out, by_column, channels);
    }
    args.column = &column;
  }
  args.quant = &quant;
  workspace.freeze();
  workspace.restore();
  swiglu_config_t config = swiglu_config_for(device);
  config.dtype = dtype;
  config.activation = SWIGLU_ACTIVATION_REGLU;
  config.quant_rounding = codes.rounding;
  const SwigluDesc desc = create(config);
  const rope_status_t status = run(device, desc.get(), codes.direction, args, workspace);
  INFO(rope_last_error());
  REQUIRE(status == ROPE_STATUS_SUCCESS);
  Hash hash;
  for (const rope_tensor_t &output : outputs) hash.add(output);
  return hash.text();
}

// The lines of golden.txt for a device.
std::string golden_text_of(const Device &device) {
  std::ostringstream text;
  const auto add = [&](const Request &request) {
    const std::string in_place = hash_of(device, request, true);
    INFO(request.name());
    CHECK(hash_of(device, request, true) == in_place);
    CHECK(hash_of(device, request, false) == in_place);
    text << request.name() << ": " << in_place << "\n";
  };
  for (const rope_dtype_t dtype : dtypes) {
    for (const rope_style_t style : styles) {
      for (const Direction direction : {Direction::Forward, Direction::Backward}) {
        for (const Source source : {Source::Computed, Source::Table, Source::Angles}) {
          add({dtype, style, style, direction, source});
        }
        add({dtype, style, style == styles[0] ? styles[1] : styles[0], direction, Source::Computed});
      }
    }
  }
  for (const rope_dtype_t dtype : dtypes) {
    text << "tables " << oracle::dtype_name(dtype) << ": " << hash_of_tables(device, ROPE_DTYPE_F32, dtype) << "\n";
  }
  for (const rope_dtype_t dtype : dtypes) {
    for (const rope_style_t style : styles) {
      for (const Step &step : steps) {
        if (step.has_codes() && dtype == ROPE_DTYPE_F64) continue;
        const std::string in_place = hash_of(device, dtype, style, step, true);
        const std::string name = std::string("step ") + oracle::dtype_name(dtype) +
                                 (style == ROPE_STYLE_HALF ? " half " : " interleaved ") + step.name;
        INFO(name);
        CHECK(hash_of(device, dtype, style, step, false) == in_place);
        text << name << ": " << in_place << "\n";
      }
    }
  }
  for (const rope_dtype_t dtype : dtypes) {
    for (const rope_style_t style : styles) {
      for (const Step &step : steps) {
        if (!step.has_gradient()) continue;
        const std::string in_place = hash_of(device, dtype, style, step, true, Direction::Backward);
        const std::string name = std::string("gradient ") + oracle::dtype_name(dtype) +
                                 (style == ROPE_STYLE_HALF ? " half " : " interleaved ") + step.name;
        INFO(name);
        CHECK(hash_of(device, dtype, style, step, false, Direction::Backward) == in_place);
        text << name << ": " << in_place << "\n";
      }
    }
  }
  for (const rope_dtype_t dtype : dtypes) {
    for (const Codes &codes : codes_of_swiglu) {
      if (dtype == ROPE_DTYPE_F64) continue;
      text << "swiglu " << oracle::dtype_name(dtype) << ' ' << codes.name << ": " << hash_of(device, dtype, codes)
           << "\n";
    }
  }
  return text.str();
}

}  // namespace

TEST_CASE("RoPE and the codes of SwiGLU have the bits that were written down", "[rope][swiglu][golden]") {
  for (const Device &device : devices()) {
    INFO("on " << device);
    const std::string found = golden_text_of(device);
    const char *file = std::getenv("ROPE_WRITE_GOLDEN");
    if (file != nullptr && device.kind == ROPE_DEVICE_CPU) {
      std::ofstream(file) << found;
      WARN("written to " << file);
      continue;
    }
    std::istringstream found_lines(found), golden_lines(kGoldenText);
    for (std::string line, golden; std::getline(found_lines, line);) {
      std::getline(golden_lines, golden);
      CHECK(line == golden);
    }
    std::string rest;
    CHECK_FALSE(std::getline(golden_lines, rest));
  }
}

TEST_CASE("every run and every number of threads gives the same bits, forward and backward", "[rope][determinism]") {
  for (const Device &device : devices()) {
    for (const rope_dtype_t dtype : dtypes) {
      for (const Direction direction : {Direction::Forward, Direction::Backward}) {
        for (const bool has_table : {false, true}) {
          INFO(oracle::dtype_name(dtype) << ' ' << name_of(direction) << (has_table ? ", tables" : "") << " on "
                                         << device);
          Workspace workspace(4);
          rope_args_t args = rope_args();
          // 2 to 8 MiB read and written, so that each thread has a part; heads of two tensors, and one faulty token.
          args.q = workspace.tensor(dtype, {1, 1031, 5, 64});
          args.k = workspace.tensor(dtype, {1, 1031, 3, 64});
          args.fault = workspace.tensor(ROPE_DTYPE_I64, {2});
          fill_floats(args.q, 1, -10, 16);
          fill_floats(args.k, 2, -10, 16);
          workspace.fill_integers(args.fault, [](const Index &) { return 0; });
          if (has_table) {
            args.cos = workspace.tensor(ROPE_DTYPE_F32, {1030, 32});
            args.sin = workspace.tensor(ROPE_DTYPE_F32, {1030, 32});
            fill_floats(args.cos, 3, -12, 12);
            fill_floats(args.sin, 4, -12, 12);
          }
          workspace.freeze();
          std::vector<std::byte> first;
          for (const int32_t threads : {1, 1, 2, 3, 8, 0}) {
            rope_config_t config = rope_config_for(device, 64);
            config.dtype = dtype;
            config.num_threads = threads;
            const RopeDesc desc = create(config);
            workspace.restore();
            REQUIRE(run(device, desc.get(), direction, args, workspace) == ROPE_STATUS_SUCCESS);
            if (first.empty()) first = workspace.image();
            const bool is_same = workspace.image() == first;
            CHECK(is_same);
          }
        }
      }
    }
  }
}

TEST_CASE("every run and every number of threads gives SwiGLU the same bits", "[swiglu][determinism]") {
  for (const Device &device : devices()) {
    for (const rope_dtype_t dtype : dtypes) {
      for (const Direction direction : {Direction::Forward, Direction::Backward}) {
        for (const bool has_sums : {false, true}) {
          INFO(oracle::dtype_name(dtype) << ' ' << name_of(direction) << (has_sums ? ", sums of rows" : "") << " on "
                                         << device);
          Workspace workspace(5);
          swiglu_args_t args = swiglu_args();
          const auto add = [&](rope_tensor_t *tensor, uint64_t seed, const Shape &shape) {
            *tensor = workspace.tensor(dtype, shape);
            if (seed != 0) fill_floats(*tensor, seed, -10, 13);
          };
          const Shape shape = {211, 1237};
          add(&args.gate, 1, shape);
          add(&args.up, 2, shape);
          add(&args.out, 0, shape);
          if (has_sums) add(&args.row_scale, 3, {211});
          if (direction == Direction::Backward) {
            add(&args.grad_out, 4, shape);
            add(&args.grad_gate, 0, shape);
            add(&args.grad_up, 0, shape);
            if (has_sums) add(&args.grad_row_scale, 0, {211});
          }
          workspace.freeze();
          std::vector<std::byte> first;
          for (const int32_t threads : {1, 1, 2, 3, 8, 0}) {
            swiglu_config_t config = swiglu_config_for(device);
            config.dtype = dtype;
            config.num_threads = threads;
            const SwigluDesc desc = create(config);
            workspace.restore();
            REQUIRE(run(device, desc.get(), direction, args, workspace) == ROPE_STATUS_SUCCESS);
            if (first.empty()) first = workspace.image();
            const bool is_same = workspace.image() == first;
            CHECK(is_same);
          }
        }
      }
    }
  }
}
