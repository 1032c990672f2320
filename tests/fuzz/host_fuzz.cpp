// SPDX-License-Identifier: Apache-2.0
// host_fuzz.cpp - fuzzes the functions that run only on the host: frequency recipes, section lists, views of views
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "core/problem/import.hpp"
#include "memory.hpp"

namespace {

// An array of exactly `count` numbers, most of them factors.
std::unique_ptr<double[]> factors(Input *input, int64_t count) {
  if (count < 0 || count > 512 || input->chance(15)) return nullptr;
  auto array = std::make_unique<double[]>(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    array[i] = input->chance(2) ? input->number() : static_cast<double>(input->between(1, 200)) / 16;
  }
  return array;
}

int32_t rotary_dim(Input *input) {
  return static_cast<int32_t>(input->chance(5) ? input->integer() : 2 * input->between(1, input->chance(5) ? 512 : 40));
}

double theta(Input *input) {
  return input->chance(10) ? input->number() : input->one_of({10000.0, 5e5, 1e6, 0.5, 1.0, 2.0});
}

// The value of outputs that a refused call must not change.
constexpr double untouched = -7.25;
constexpr int32_t untouched_axis = -77;

// The length of output arrays that the header requires for a valid rotary_dim.
size_t pairs_of(int32_t rotary_dim) {
  return rotary_dim >= 2 && rotary_dim <= 1024 ? static_cast<size_t>(rotary_dim / 2) : 0;
}

std::vector<double> frequencies(size_t pairs) {
  return std::vector<double>(pairs, untouched);
}

void fuzz_scaling(Input *input) {
  const int32_t width = rotary_dim(input);
  const double base = theta(input);
  rope_scaling_t scaling = {};
  scaling.struct_size = sizeof scaling;
  scaling.type = static_cast<rope_scaling_type_t>(input->between(1, 13));
  struct Use {
    double *number;
    double first, last;
  };
  const Use uses[] = {{&scaling.factor, 1, 64},
                      {&scaling.alpha, 1, 1000},
                      {&scaling.mixed_b, 0.1, 2},
                      {&scaling.beta_fast, 4, 64},
                      {&scaling.beta_slow, 0.5, 4},
                      {&scaling.attention_factor, 0.1, 4},
                      {&scaling.mscale, 0.1, 2},
                      {&scaling.mscale_all_dim, 0.1, 2},
                      {&scaling.low_freq_factor, 0.5, 2},
                      {&scaling.high_freq_factor, 2, 8},
                      {&scaling.partial_rotary_factor, 0.1, 1}};
  // The fields that a recipe may use, one bit each.
  static constexpr unsigned used[14] = {
      0, 0, 1, 1, 1, 2, 1, 1 | 4, 1 | 8 | 16 | 32 | 64 | 128, 1 | 8 | 16, 1 | 256 | 512, 1 | 32, 1 | 1024, 0};
  static constexpr bool has_positions[14] = {false, false, false, true, false, false, false,
                                             false, true,  true,  true, true,  false, false};
  for (int i = 0; i < 11; ++i) {
    const bool is_used = (used[scaling.type] >> i & 1) != 0;
    const bool is_required = i < 3;
    if (is_used ? is_required || input->chance(40) : input->chance(1)) {
      *uses[i].number = uses[i].first + (uses[i].last - uses[i].first) * static_cast<double>(input->raw(1)) / 255;
    }
    if (is_used && input->chance(5)) *uses[i].number = input->number();
  }
  if (has_positions[scaling.type]) {
    scaling.original_max_position = input->chance(10) ? input->integer() : input->one_of({4096, 1, 8192, 32768});
    if (input->chance(50)) scaling.sequence_length = input->chance(10) ? input->integer() : 16384;
  }
  if (input->chance(10)) scaling.flags = ROPE_SCALING_FLAG_NO_TRUNCATE;
  const bool has_arrays = scaling.type == ROPE_SCALING_LONGROPE || scaling.type == ROPE_SCALING_FACTORS;
  if (has_arrays || input->chance(2)) scaling.num_factors = width / 2;
  input->lie(&scaling);
  // As long as the call states.
  const auto short_factor = factors(input, scaling.num_factors), long_factor = factors(input, scaling.num_factors),
             pair_factors = factors(input, scaling.num_factors);
  const bool is_longrope = scaling.type == ROPE_SCALING_LONGROPE, is_factors = scaling.type == ROPE_SCALING_FACTORS;
  scaling.short_factor = is_longrope != input->chance(1) ? short_factor.get() : nullptr;
  scaling.long_factor = is_longrope != input->chance(1) ? long_factor.get() : nullptr;
  scaling.pair_factors = is_factors != input->chance(1) ? pair_factors.get() : nullptr;

  const StructBytes bytes(input, &scaling, rope::kRopeScalingFirstSize, sizeof scaling);
  std::vector<double> inv_freq = frequencies(pairs_of(width));
  double attention_scale = untouched;
  double *const out = input->chance(1) ? nullptr : inv_freq.data();
  double *const scale_out = input->chance(1) ? nullptr : &attention_scale;
  const Call call("rope_scaled_frequencies");
  const bool is_served =
      call.returned(rope_scaled_frequencies(width, base, bytes.as<rope_scaling_t>(), out, scale_out));
  if (!is_served) {
    for (const double frequency : inv_freq) expect(frequency == untouched, "a refusal wrote a frequency");
    expect(attention_scale == untouched, "a refusal wrote the attention scale");
    return;
  }
  for (const double frequency : inv_freq) {
    expect(std::isfinite(frequency) && frequency >= 0, "a frequency is finite and not negative");
  }
  expect(std::isfinite(attention_scale), "the attention scale is finite");
  // The output must be accepted as input.
  rope_config_t config = {};
  config.struct_size = sizeof config;
  config.device = ROPE_DEVICE_CPU;
  config.dtype = ROPE_DTYPE_F32;
  config.layout = ROPE_LAYOUT_THD;
  config.style = ROPE_STYLE_HALF;
  config.head_dim = width;
  config.inv_freq = inv_freq.data();
  rope_desc_t *desc = nullptr;
  expect(rope_desc_create(&config, &desc) == ROPE_STATUS_SUCCESS, "a descriptor takes the frequencies");
  rope_desc_destroy(desc);
}

void fuzz_sections(Input *input) {
  const int32_t width = rotary_dim(input);
  const int64_t pairs = static_cast<int64_t>(pairs_of(width));
  rope_sections_t sections = {};
  sections.struct_size = sizeof sections;
  sections.type = static_cast<rope_sections_type_t>(input->between(1, 6));
  const bool has_three = sections.type == ROPE_SECTIONS_INTERLEAVED || sections.type == ROPE_SECTIONS_ERNIE;
  sections.num_sections = has_three                               ? 3
                          : sections.type == ROPE_SECTIONS_IMROPE ? 4
                          : sections.type == ROPE_SECTIONS_VISION ? 2
                                                                  : static_cast<int32_t>(input->between(1, 8));
  int64_t left = pairs;
  for (int i = 0; i < sections.num_sections; ++i) {
    const bool is_last = i == sections.num_sections - 1;
    const int64_t section = is_last                                          ? left
                            : sections.type == ROPE_SECTIONS_ERNIE && i == 1 ? sections.section[0]
                                                                             : input->below(left / 2 + 1);
    sections.section[i] = static_cast<int32_t>(section);
    left -= section;
  }
  input->lie(&sections);
  const StructBytes bytes(input, &sections, rope::kRopeSectionsFirstSize, sizeof sections);
  std::vector<double> inv_freq = frequencies(pairs_of(width));
  const auto axes = std::vector<int32_t>(pairs_of(width), untouched_axis);
  std::vector<int32_t> pair_axis = axes;
  const bool has_frequencies = input->chance(70);
  const Call call("rope_section_axes");
  const bool is_served = call.returned(rope_section_axes(width, theta(input), bytes.as<rope_sections_t>(),
                                                         input->chance(1) ? nullptr : pair_axis.data(),
                                                         has_frequencies ? inv_freq.data() : nullptr));
  if (!is_served || !has_frequencies) {
    for (const double frequency : inv_freq) expect(frequency == untouched, "a frequency that nobody asked for");
  }
  if (!is_served) {
    expect(pair_axis == axes, "a refusal wrote an axis");
    return;
  }
  for (const int32_t axis : pair_axis) expect(axis >= 0 && axis < 8, "an axis is none");
  for (const double frequency : inv_freq) expect(std::isfinite(frequency), "a frequency is not finite");
}

rope_tensor_t any_tensor(Input *input) {
  rope_tensor_t tensor = {};
  tensor.data = reinterpret_cast<void *>(input->chance(4) ? input->raw(8) : uint64_t{1} << 40);
  tensor.dtype = static_cast<rope_dtype_t>(input->between(1, 6));
  tensor.ndim = static_cast<uint16_t>(input->between(1, 4));
  for (int axis = 0; axis < tensor.ndim; ++axis)
    tensor.shape[axis] = input->chance(10) ? input->integer() : input->below(9);
  if (input->chance(60)) {
    tensor.flags = ROPE_TENSOR_STRIDED;
    for (int axis = 0; axis < tensor.ndim; ++axis) {
      tensor.stride[axis] = input->chance(10) ? input->integer() : input->between(-40, 80);
    }
  }
  input->lie(&tensor);
  return tensor;
}

// The address of an element as a number: there is no memory behind it.
uintptr_t address_of(const rope_tensor_t &tensor, const Index &index) {
  return reinterpret_cast<uintptr_t>(element_at(tensor, index));
}

// Chained views: each part of a part has its elements at the places of the whole.
void fuzz_views(Input *input) {
  rope_tensor_t source = any_tensor(input);
  for (int step = 0; step < 4; ++step) {
    const auto dim = static_cast<int32_t>(input->chance(5) ? input->integer() : input->below(4));
    const int64_t length_of_axis = dim >= 0 && dim < 4 ? source.shape[dim] : 0;
    const int64_t start = input->chance(10) ? input->integer() : input->between(0, 9);
    const int64_t length = input->chance(10)   ? input->integer()
                           : input->chance(60) ? length_of_axis - start
                                               : input->between(0, 9);
    const bool is_narrow = input->chance(50), is_over_source = input->chance(50);
    const rope_tensor_t before = source;
    rope_tensor_t other;
    std::memset(&other, 0x5A, sizeof other);
    const rope_tensor_t other_before = other;
    rope_tensor_t *const view = is_over_source ? &source : &other;
    const Call call(is_narrow ? "rope_tensor_narrow" : "rope_tensor_select");
    const bool is_served = call.returned(is_narrow ? rope_tensor_narrow(&source, dim, start, length, view)
                                                   : rope_tensor_select(&source, dim, start, view));
    if (!is_over_source) {
      expect(std::memcmp(&source, &before, sizeof source) == 0, "the source of a view was changed");
    }
    if (!is_served) {
      expect(
          std::memcmp(is_over_source ? &source : &other, is_over_source ? &before : &other_before, sizeof source) == 0,
          "a refusal wrote a view");
      return;
    }
    const rope_tensor_t part = *view;
    expect(part.dtype == before.dtype && part.flags == ROPE_TENSOR_STRIDED, "the type and flags of a view");
    expect(part.ndim == before.ndim - (is_narrow ? 0 : 1), "the rank of a view");
    for (int axis = part.ndim; axis < 4; ++axis) {
      expect(part.shape[axis] == 0 && part.stride[axis] == 0, "axes past the rank of a view");
    }
    for (int corner = 0; corner < 16 && !is_empty(part); ++corner) {
      Index at = {}, from = {};
      for (int axis = 0; axis < part.ndim; ++axis) {
        at[axis] = (corner >> axis & 1) != 0 ? part.shape[axis] - 1 : 0;
        from[is_narrow || axis < dim ? axis : axis + 1] = at[axis];
      }
      from[dim] = is_narrow ? at[dim] + start : start;
      expect(address_of(part, at) == address_of(before, from), "an element of a view lies elsewhere");
    }
    source = part;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  draw_float_environment(data, size);
  Input input(data, size);
  switch (input.below(3)) {
    case 0:
      fuzz_scaling(&input);
      break;
    case 1:
      fuzz_sections(&input);
      break;
    default:
      fuzz_views(&input);
      break;
  }
  return 0;
}
