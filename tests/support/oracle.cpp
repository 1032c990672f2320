// SPDX-License-Identifier: Apache-2.0
// oracle.cpp - number formats by sign, exponent and fraction; rotations and gates in long double
#include "oracle.hpp"

#include <cfloat>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

namespace oracle {
namespace {

static_assert(LDBL_MANT_DIG >= 64, "the oracle needs more precision than double has");

struct Format {
  int bytes;
  int fraction_bits;
  int exponent_bits;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  int lowest_exponent() const { return 1 - bias(); }
};

Format format_of(rope_dtype_t dtype) {
  switch (dtype) {
    case ROPE_DTYPE_F32:
      return {4, 23, 8};
    case ROPE_DTYPE_F16:
      return {2, 10, 5};
    case ROPE_DTYPE_BF16:
      return {2, 7, 8};
    case ROPE_DTYPE_F64:
      return {8, 52, 11};
    case ROPE_DTYPE_F8_E4M3:
      return {1, 3, 4};
    case ROPE_DTYPE_F8_E5M2:
      return {1, 2, 5};
    default:
      std::abort();
  }
}

Real value_of_bits(Format format, uint32_t bits) {
  const uint32_t fraction = bits & ((1u << format.fraction_bits) - 1);
  const int exponent = static_cast<int>(bits >> format.fraction_bits) & ((1 << format.exponent_bits) - 1);
  const bool negative = (bits >> (format.fraction_bits + format.exponent_bits)) & 1;
  Real magnitude;
  if (exponent == (1 << format.exponent_bits) - 1) {
    magnitude = fraction ? std::numeric_limits<Real>::quiet_NaN() : std::numeric_limits<Real>::infinity();
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<Real>(fraction), format.lowest_exponent() - format.fraction_bits);
  } else {
    magnitude = std::ldexp(static_cast<Real>(fraction | (1u << format.fraction_bits)),
                           exponent - format.bias() - format.fraction_bits);
  }
  return negative ? -magnitude : magnitude;
}

// Fast replacements: libm's ldexp, ilogb and nearbyint for long double took nearly all of the oracle's time.
Real power_of_two(int exponent) {
  if (exponent < -1022 || exponent > 1023) return std::ldexp(1.0L, exponent);
  const uint64_t bits = static_cast<uint64_t>(exponent + 1023) << 52;
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// For a number that is not 0: floor(log2(|value|)), or any exponent below those of normal doubles.
int binary_exponent(Real value) {
  const auto narrow = static_cast<double>(value);
  if (!std::isfinite(narrow)) return std::ilogb(value);
  uint64_t bits;
  std::memcpy(&bits, &narrow, sizeof bits);
  const int exponent = static_cast<int>(bits >> 52 & 0x7ff) - 1023;
  return exponent - (std::fabs(narrow) > std::fabs(value) && bits << 12 == 0 ? 1 : 0);
}

// Rounds to the nearest multiple of a power of two, for a value far below 2^LDBL_MANT_DIG multiples: adding and
// subtracting a number of that size rounds off the fraction.
Real nearest_multiple(Real value, Real quantum) {
  const Real large = 1.5L * power_of_two(LDBL_MANT_DIG - 1) * quantum;
  const Real sum = value + large;
  return sum - large;
}

std::vector<Real> all_values(Format format) {
  std::vector<Real> values(65536);
  for (uint32_t bits = 0; bits < 65536; ++bits) values[bits] = value_of_bits(format, bits);
  return values;
}

int exponent_of(Format format, Real value) {
  const int exponent = value == 0 ? format.lowest_exponent() : binary_exponent(value);
  return exponent < format.lowest_exponent() ? format.lowest_exponent() : exponent;
}

// 2 pi as a sum of two numbers; the second is the first one's error.
const Real two_pi_high = 6.283185307179586476925286766559005768394L;
const Real two_pi_low = LDBL_MANT_DIG == 64 ? -1.0033115225336664047e-19L : 0.0L;

}  // namespace

int64_t element_size(rope_dtype_t dtype) {
  switch (dtype) {
    case ROPE_DTYPE_F16:
    case ROPE_DTYPE_BF16:
      return 2;
    case ROPE_DTYPE_F64:
    case ROPE_DTYPE_I64:
      return 8;
    case ROPE_DTYPE_F8_E4M3:
    case ROPE_DTYPE_F8_E5M2:
    case ROPE_DTYPE_F8_E8M0:
    case ROPE_DTYPE_F4_E2M1X2:
      return 1;
    default:
      return 4;
  }
}

const char *dtype_name(rope_dtype_t dtype) {
  switch (dtype) {
    case ROPE_DTYPE_F32:
      return "F32";
    case ROPE_DTYPE_F16:
      return "F16";
    case ROPE_DTYPE_BF16:
      return "BF16";
    case ROPE_DTYPE_F64:
      return "F64";
    case ROPE_DTYPE_I32:
      return "I32";
    case ROPE_DTYPE_I64:
      return "I64";
    case ROPE_DTYPE_F8_E4M3:
      return "F8_E4M3";
    case ROPE_DTYPE_F8_E5M2:
      return "F8_E5M2";
    case ROPE_DTYPE_F8_E8M0:
      return "F8_E8M0";
    case ROPE_DTYPE_F4_E2M1X2:
      return "F4_E2M1X2";
    default:
      return "unknown";
  }
}

bool is_code(rope_dtype_t dtype) {
  return dtype == ROPE_DTYPE_F8_E4M3 || dtype == ROPE_DTYPE_F8_E5M2;
}

Real max_finite(rope_dtype_t dtype) {
  if (dtype == ROPE_DTYPE_F8_E4M3) return 448;  // the exponent of infinities is used for numbers here
  const Format format = format_of(dtype);
  return (2 - power_of_two(-format.fraction_bits)) * power_of_two(format.bias());
}

Real min_normal(rope_dtype_t dtype) {
  return power_of_two(format_of(dtype).lowest_exponent());
}

Real min_positive(rope_dtype_t dtype) {
  const Format format = format_of(dtype);
  return power_of_two(format.lowest_exponent() - format.fraction_bits);
}

Real decode(rope_dtype_t dtype, const void *element) {
  if (dtype == ROPE_DTYPE_F32) {
    float value;
    std::memcpy(&value, element, sizeof value);
    return value;
  }
  if (dtype == ROPE_DTYPE_F64) {
    double value;
    std::memcpy(&value, element, sizeof value);
    return value;
  }
  if (dtype == ROPE_DTYPE_F8_E8M0) {
    const int byte = *static_cast<const uint8_t *>(element);
    return byte == 255 ? std::numeric_limits<Real>::quiet_NaN() : power_of_two(byte - 127);
  }
  if (is_code(dtype)) {
    uint8_t code;
    std::memcpy(&code, element, sizeof code);
    if (dtype == ROPE_DTYPE_F8_E5M2) return value_of_bits(format_of(dtype), code);
    if ((code & 0x7f) == 0x7f) return std::numeric_limits<Real>::quiet_NaN();
    // With one more exponent bit, and so a bias that is larger by 8, no number has the exponent of infinities.
    const Real magnitude = value_of_bits({1, 3, 5}, code & 0x7fu) * power_of_two(8);
    return (code & 0x80) != 0 ? -magnitude : magnitude;
  }
  static const std::vector<Real> half = all_values(format_of(ROPE_DTYPE_F16));
  static const std::vector<Real> bfloat = all_values(format_of(ROPE_DTYPE_BF16));
  uint16_t bits;
  std::memcpy(&bits, element, sizeof bits);
  return dtype == ROPE_DTYPE_F16 ? half[bits] : bfloat[bits];
}

Real ulp(rope_dtype_t dtype, Real value) {
  const Format format = format_of(dtype);
  return power_of_two(exponent_of(format, value) - format.fraction_bits);
}

Real nearest(rope_dtype_t dtype, Real value) {
  if (is_code(dtype) && std::fabs(value) >= max_finite(dtype)) return std::copysign(max_finite(dtype), value);
  if (!std::isfinite(value) || value == 0) return value;
  const Real rounded = nearest_multiple(value, ulp(dtype, value));
  if (std::fabs(rounded) > max_finite(dtype)) return std::copysign(std::numeric_limits<Real>::infinity(), value);
  return std::copysign(rounded, value);
}

Real sum(rope_dtype_t dtype, Real a, Real b) {
  if (dtype == ROPE_DTYPE_F64) return static_cast<double>(a) + static_cast<double>(b);
  return static_cast<float>(a) + static_cast<float>(b);
}

void encode(rope_dtype_t dtype, Real value, void *element) {
  if (dtype == ROPE_DTYPE_F8_E8M0) {  // powers of two only
    const int byte = std::isnan(value) ? 255 : std::isinf(value) ? 254 : binary_exponent(value) + 127;
    *static_cast<uint8_t *>(element) = static_cast<uint8_t>(byte);
    return;
  }
  const Format format = format_of(dtype);
  const Real rounded = nearest(dtype, value);
  if (dtype == ROPE_DTYPE_F64) {
    const auto narrow = static_cast<double>(rounded);
    std::memcpy(element, &narrow, 8);
    return;
  }
  const uint32_t infinite = ((1u << format.exponent_bits) - 1) << format.fraction_bits;
  uint32_t bits;
  if (std::isnan(rounded)) {
    bits = is_code(dtype) ? 0x7f : infinite | (1u << (format.fraction_bits - 1));
  } else if (std::isinf(rounded)) {
    bits = infinite;
  } else {
    const int exponent = exponent_of(format, rounded);
    const auto significand = static_cast<uint32_t>(std::fabs(rounded) * power_of_two(format.fraction_bits - exponent));
    const bool normal = significand >> format.fraction_bits;
    bits = normal ? (static_cast<uint32_t>(exponent + format.bias()) << format.fraction_bits) +
                        (significand - (1u << format.fraction_bits))
                  : significand;
  }
  if (std::signbit(rounded) && !(is_code(dtype) && std::isnan(rounded)))
    bits |= 1u << (format.fraction_bits + format.exponent_bits);
  if (format.bytes == 1) {
    const auto narrow = static_cast<uint8_t>(bits);
    std::memcpy(element, &narrow, 1);
  } else if (format.bytes == 4) {
    std::memcpy(element, &bits, 4);
  } else {
    const auto narrow = static_cast<uint16_t>(bits);
    std::memcpy(element, &narrow, 2);
  }
}

Real frequency(double theta, int rotary_dim, int pair) {
  const Real exponent = -2.0L * pair / rotary_dim;
  const Real lost = -std::fma(exponent, static_cast<Real>(rotary_dim), 2.0L * pair) / rotary_dim;
  return std::pow(static_cast<Real>(theta), exponent) * (1 + lost * std::log(static_cast<Real>(theta)));
}

Rotation rotation(int64_t position, Real inv_freq) {
  const Real at = static_cast<Real>(position);
  const Real angle = at * inv_freq;
  const Real lost = std::fma(at, inv_freq, -angle);
  const Real turns = std::nearbyint(angle / two_pi_high);
  const Real reduced = std::fma(-turns, two_pi_high, angle) + (lost - turns * two_pi_low);
  return {std::cos(reduced), std::sin(reduced)};
}

Rotation rotation_by_angle(Real radians) {
  return {std::cos(radians), std::sin(radians)};
}

Pair rotate(Pair pair, Rotation by) {
  return rotate(pair, by, by);
}

Pair rotate_transposed(Pair pair, Rotation by) {
  return rotate_transposed(pair, by, by);
}

Pair rotate(Pair pair, Rotation a, Rotation b) {
  return {pair.x * a.cos - pair.y * a.sin, pair.x * b.sin + pair.y * b.cos};
}

Pair rotate_transposed(Pair pair, Rotation a, Rotation b) {
  return {pair.x * a.cos + pair.y * b.sin, pair.y * b.cos - pair.x * a.sin};
}

Real sigmoid(Real gate) {
  return 1 / (1 + std::exp(-gate));
}

Real swiglu(Real gate, Real up) {
  return gate * sigmoid(gate) * up;
}

SwigluGradients swiglu_gradients(Real gate, Real up, Real grad_out) {
  const Real s = sigmoid(gate);
  const Real complement = sigmoid(-gate);
  return {grad_out * up * (s * (1 + gate * complement)), grad_out * gate * s, grad_out * gate * s * up};
}

Slope soft_cap(Real x, Real cap) {
  if (std::isinf(cap)) return {x, 1};
  const Real cosh = std::cosh(x / cap);
  return {cap * std::tanh(x / cap), 1 / (cosh * cosh)};
}

Slope swiglu_weight(Real gate, const SwigluForm &form) {
  const Real pi = std::acos(-1.0L);
  switch (form.activation) {
    case SWIGLU_ACTIVATION_GEGLU_ERF:
      return {std::erfc(-gate / std::sqrt(2.0L)) / 2, std::exp(-gate * gate / 2) / std::sqrt(2 * pi)};
    case SWIGLU_ACTIVATION_GEGLU_TANH: {
      // (1 + tanh(z)) / 2 = sigmoid(2 z).
      const Real root = std::sqrt(2 / pi), z = root * (gate + 0.044715L * gate * gate * gate);
      return {sigmoid(2 * z), 2 * root * (1 + 3 * 0.044715L * gate * gate) * sigmoid(2 * z) * sigmoid(-2 * z)};
    }
    case SWIGLU_ACTIVATION_REGLU:
      return {gate > 0 ? 1.0L : 0.0L, 0};
    default: {
      const Real s = sigmoid(form.alpha * gate);
      return {s, form.alpha * s * sigmoid(-form.alpha * gate)};
    }
  }
}

Slope swiglu_activation(Real gate, const SwigluForm &form) {
  const Slope linear = soft_cap(gate, form.gate_softcap), weight = swiglu_weight(gate, form);
  return {linear.value * weight.value, linear.slope * weight.value + linear.value * weight.slope};
}

namespace {

struct Factors {
  Slope activation, up;
};

Factors swiglu_factors(Real gate, Real up, const SwigluForm &form) {
  const bool limits_gate = form.limit_rule == SWIGLU_LIMIT_GATE;
  Slope activation = swiglu_activation(limits_gate ? std::fmin(gate, form.limit) : gate, form);
  if (limits_gate ? gate > form.limit : activation.value > form.limit) activation.slope = 0;
  if (!limits_gate && activation.value > form.limit) activation.value = form.limit;
  Slope moved = soft_cap(std::fmax(-form.limit, std::fmin(up, form.limit)), form.up_softcap);
  moved.value += form.up_offset;
  if (std::fabs(up) > form.limit) moved.slope = 0;
  return {activation, moved};
}

}  // namespace

Real swiglu(Real gate, Real up, const SwigluForm &form, Real row_scale) {
  const Factors factors = swiglu_factors(gate, up, form);
  return form.out_scale * factors.activation.value * factors.up.value * row_scale;
}

SwigluGradients swiglu_gradients(Real gate, Real up, Real grad_out, const SwigluForm &form, Real row_scale) {
  const Factors factors = swiglu_factors(gate, up, form);
  const Real common = grad_out * form.out_scale;
  return {common * row_scale * factors.up.value * factors.activation.slope,
          common * row_scale * factors.activation.value * factors.up.slope,
          common * factors.activation.value * factors.up.value};
}

}  // namespace oracle
