// SPDX-License-Identifier: Apache-2.0
// rotation_tests.cpp - phases of positions and angles, their cosines and sines, and the rotation of a pair
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "backend/cpu/cpu_kernels.hpp"
#include "core/math/rotation.hpp"
#include "support/random.hpp"
#include "unit/quad.hpp"

namespace {

constexpr uint64_t kQuarter = uint64_t{1} << 62;
constexpr long double kTurn = 6.283185307179586476925286766559005768L;

template <typename T>
bool same_bits(T a, T b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

// Products and sums are stored one by one in `volatile` variables, so that the compiler cannot fuse them.
template <typename Real>
Real rounded_step_by_step(Real a, Real b, Real c, Real d) {
  volatile Real first = a * b, second = c * d;
  return first + second;
}

rope::CosSin<float> cos_sin_of_upper(uint32_t upper) {
  return rope::cos_sin_of_phase<float>(uint64_t{upper} << 32);
}

// The largest errors of cosines and sines in double.
struct Worst {
  long double cos = 0, sin = 0;

  void take(uint64_t phase) {
    const rope::CosSin<double> result = rope::cos_sin_of_phase<double>(phase);
    const long double angle = static_cast<long double>(static_cast<int64_t>(phase)) * 0x1p-64L * kTurn;
    const long double cos_error = std::fabs(result.cos - std::cos(angle));
    const long double sin_error = std::fabs(result.sin - std::sin(angle));
    if (!(cos_error <= cos)) cos = cos_error;
    if (!(sin_error <= sin)) sin = sin_error;
  }
};

// A non-negative number with 576 bits behind the point, in 32-bit digits, with the integer part first.
class Fixed {
 public:
  static constexpr int kDigits = 19, kFractionBits = 32 * (kDigits - 1);

  explicit Fixed(uint32_t integer) { digits_[0] = integer; }

  Fixed operator+(const Fixed &other) const {
    Fixed sum(0);
    uint64_t carry = 0;
    for (int i = kDigits; i-- > 0; carry >>= 32) {
      carry += uint64_t{digits_[i]} + other.digits_[i];
      sum.digits_[i] = static_cast<uint32_t>(carry);
    }
    return sum;
  }

  Fixed operator-(const Fixed &other) const {
    Fixed difference(0);
    int64_t borrow = 0;
    for (int i = kDigits; i-- > 0; borrow >>= 32) {
      borrow += int64_t{digits_[i]} - int64_t{other.digits_[i]};
      difference.digits_[i] = static_cast<uint32_t>(borrow);
    }
    return difference;
  }

  Fixed operator*(uint32_t factor) const {
    Fixed product(0);
    uint64_t carry = 0;
    for (int i = kDigits; i-- > 0; carry >>= 32) {
      carry += uint64_t{digits_[i]} * factor;
      product.digits_[i] = static_cast<uint32_t>(carry);
    }
    return product;
  }

  Fixed operator/(uint32_t divisor) const {
    Fixed quotient(0);
    uint64_t rest = 0;
    for (int i = 0; i < kDigits; ++i) {
      rest = rest << 32 | digits_[i];
      quotient.digits_[i] = static_cast<uint32_t>(rest / divisor);
      rest %= divisor;
    }
    return quotient;
  }

  bool operator<(const Fixed &other) const {
    for (int i = 0; i < kDigits; ++i) {
      if (digits_[i] != other.digits_[i]) return digits_[i] < other.digits_[i];
    }
    return false;
  }

  bool is_zero() const { return !(Fixed(0) < *this); }

  // Bit `place` has the value 2^-place.
  uint64_t bit(int place) const {
    if (place > kFractionBits || place < -31) return 0;
    return digits_[(place + 31) / 32] >> ((kFractionBits - place) % 32) & 1;
  }

  void set_bit(int place) { digits_[(place + 31) / 32] |= 1u << ((kFractionBits - place) % 32); }

  // floor(2^64 times the fraction of this number times 2^exponent).
  uint64_t fraction_times_power(int exponent) const {
    uint64_t bits = 0;
    for (int place = 1; place <= 64; ++place) bits = bits << 1 | bit(place + exponent);
    return bits;
  }

 private:
  uint32_t digits_[kDigits] = {};
};

Fixed arctangent_of_inverse(uint32_t x) {
  Fixed power = Fixed(1) / x, sum = power;
  for (uint32_t odd = 3; !power.is_zero(); odd += 2) {
    power = power / (x * x);
    sum = odd % 4 == 3 ? sum - power / odd : sum + power / odd;
  }
  return sum;
}

// 1 / (2 pi), with pi from Machin's formula, 1706.
const Fixed &turns_per_radian() {
  static const Fixed turns = [] {
    const Fixed pi = arctangent_of_inverse(5) * 16 - arctangent_of_inverse(239) * 4, two_pi = pi * 2;
    Fixed quotient(0), rest(1);
    for (int place = 1; place <= Fixed::kFractionBits; ++place) {
      rest = rest * 2;
      if (rest < two_pi) continue;
      rest = rest - two_pi;
      quotient.set_bit(place);
    }
    return quotient;
  }();
  return turns;
}

// floor(2^64 * the fraction of a turn) for the magnitude of `angle`.
uint64_t exact_phase_of_magnitude(float angle) {
  int exponent;
  const float significand = std::frexp(std::fabs(angle), &exponent);  // at least 0.5
  const auto integer = static_cast<uint32_t>(std::ldexp(significand, 24));
  return (turns_per_radian() * integer).fraction_times_power(exponent - 24);
}

float float_of_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Finite floats of every exponent: both ends, and some from the middle.
std::vector<float> floats_of_every_exponent() {
  Random random(5);
  std::vector<float> values;
  for (uint32_t exponent = 0; exponent < 255; ++exponent) {
    for (uint32_t fraction : {0u, 1u, 2u, 0x400000u, 0x7ffffeu, 0x7fffffu}) {
      values.push_back(float_of_bits(exponent << 23 | fraction));
    }
    for (int i = 0; i < 500; ++i) {
      values.push_back(float_of_bits(exponent << 23 | static_cast<uint32_t>(random.below(1 << 23))));
    }
  }
  return values;
}

template <typename Real>
void check_quarter_turns() {
  const Real cos[] = {1, 0, -1, 0}, sin[] = {0, 1, 0, -1};
  for (uint32_t quarter = 0; quarter < 4; ++quarter) {
    const rope::CosSin<Real> result = rope::cos_sin_of_phase<Real>(quarter * kQuarter);
    INFO("quarter " << quarter);
    CHECK(result.cos == cos[quarter]);
    CHECK(result.sin == sin[quarter]);
  }
}

template <typename Real>
int64_t count_unswapped_quarters() {
  int64_t wrong = 0;
  for (uint64_t number = 0; number < (uint64_t{1} << 32); number += 10007) {
    const uint64_t phase = number * 0x100000001u;
    const rope::CosSin<Real> here = rope::cos_sin_of_phase<Real>(phase);
    const rope::CosSin<Real> further = rope::cos_sin_of_phase<Real>(phase + kQuarter);
    wrong += further.cos != -here.sin || further.sin != here.cos;
  }
  return wrong;
}

// For phases that are multiples of `unit`, which the type can distinguish.
template <typename Real>
int64_t count_unmirrored_phases(uint64_t unit) {
  int64_t wrong = 0;
  const auto compare = [&](uint64_t phase) {
    const rope::CosSin<Real> here = rope::cos_sin_of_phase<Real>(phase);
    const rope::CosSin<Real> opposite = rope::cos_sin_of_phase<Real>(0 - phase);
    wrong += opposite.cos != here.cos || opposite.sin != -here.sin;
  };
  for (uint64_t number = 0; number < (uint64_t{1} << 32); number += 10007) compare(number * 0x100000001u / unit * unit);
  // Halfway between two quarter turns, the two neighbours belong to different ones.
  for (uint64_t middle = kQuarter / 2, count = 0; count < 4; middle += kQuarter, ++count) {
    for (uint64_t distance = 1; distance < 1000; ++distance) {
      compare(middle - distance * unit);
      compare(middle + distance * unit);
    }
  }
  return wrong;
}

template <typename Real>
void check_angles(long double bound) {
  long double worst = 0;
  for (const float magnitude : floats_of_every_exponent()) {
    for (const float angle : {magnitude, -magnitude}) {
      const rope::CosSin<Real> result = rope::cos_sin_of_angle<Real>(angle);
      const long double cos_error = std::fabs(result.cos - std::cos(static_cast<long double>(angle)));
      const long double sin_error = std::fabs(result.sin - std::sin(static_cast<long double>(angle)));
      if (!(cos_error <= worst)) worst = cos_error;
      if (!(sin_error <= worst)) worst = sin_error;
    }
  }
  CHECK(worst <= bound);
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const float angle : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN(),
                            -std::numeric_limits<float>::quiet_NaN(), float_of_bits(0x7f800001u)}) {
    const rope::CosSin<Real> result = rope::cos_sin_of_angle<Real>(angle);
    CHECK(std::isnan(result.cos));
    CHECK(std::isnan(result.sin));
  }
}

// Runs of pairs as kernels process them, for every step of input and output; T is the element type.
template <typename T, typename Real>
void check_kernel(rope::CpuKernels::Rotate<Real> *rotate, bool has_angles_of_each_channel) {
  Random random(8);
  constexpr int64_t kMaxStep = 3;
  for (const int pairs : {1, 2, 3, 7, 8, 32, 65, 512}) {
    std::vector<Real> angles[4];  // cos and sin of x, cos and sin of y
    for (std::vector<Real> &values : angles) {
      for (int i = 0; i < pairs; ++i) values.push_back(static_cast<Real>(random.uniform(-1.5, 1.5)));
    }
    const int y = has_angles_of_each_channel ? 2 : 0;
    const rope::PairAngles<Real> by = {angles[0].data(), angles[1].data(), angles[y].data(), angles[y + 1].data()};
    for (const int64_t in_step : {1, 2, -1, 3}) {
      for (const int64_t out_step : {1, 2, -1, 3}) {
        const size_t length = static_cast<size_t>(pairs * kMaxStep);
        std::vector<T> in[2] = {std::vector<T>(length), std::vector<T>(length)};
        for (std::vector<T> &channels : in) {
          for (T &value : channels) value = rope::round_to<T>(static_cast<Real>(random.normal()));
        }
        const std::vector<T> before[2] = {in[0], in[1]};
        std::vector<T> out[2] = {std::vector<T>(length), std::vector<T>(length)};
        const auto run = [&](std::vector<T> *of, int64_t step) {
          const size_t first = step < 0 ? length - 1 : 0;
          return rope::PairRun{of[0].data() + first, of[1].data() + first, step, 0};
        };
        const bool is_in_place = in_step == out_step;
        std::vector<T> *written = is_in_place ? in : out;
        rotate(run(in, in_step), run(written, out_step), pairs, 1, by);
        int wrong = 0;
        for (int i = 0; i < pairs; ++i) {
          const auto at = [&](const std::vector<T> &channels, int64_t step) {
            return channels[step < 0 ? length - 1 - static_cast<size_t>(i) : static_cast<size_t>(i * step)];
          };
          const Real a = rope::to_real<Real>(at(before[0], in_step)), b = rope::to_real<Real>(at(before[1], in_step));
          const T x = rope::round_to<T>(rounded_step_by_step(a, by.cos_x[i], -b, by.sin_x[i]));
          const T y_out = rope::round_to<T>(rounded_step_by_step(b, by.cos_y[i], a, by.sin_y[i]));
          wrong += !same_bits(at(written[0], out_step), x) || !same_bits(at(written[1], out_step), y_out);
        }
        INFO(pairs << " pairs, steps " << in_step << " and " << out_step);
        CHECK(wrong == 0);
      }
    }
  }
}

template <typename Real>
void check_rounding() {
  Random random(3);
  constexpr int kPairs = 4096;
  int fused_would_differ[4] = {};
  for (int i = 0; i < kPairs; ++i) {
    const rope::Pair<Real> in = {static_cast<Real>(random.normal()), static_cast<Real>(random.normal())};
    const rope::CosSin<Real> a = rope::cos_sin_of_phase<Real>(random.bits());
    const rope::CosSin<Real> b = i % 2 == 0 ? a : rope::cos_sin_of_phase<Real>(random.bits());
    const Real x = rounded_step_by_step(in.x, a.cos, -in.y, a.sin);
    const Real y = rounded_step_by_step(in.y, b.cos, in.x, b.sin);
    const bool differs[] = {std::fma(in.x, a.cos, -(in.y * a.sin)) != x, std::fma(-in.y, a.sin, in.x * a.cos) != x,
                            std::fma(in.y, b.cos, in.x * b.sin) != y, std::fma(in.x, b.sin, in.y * b.cos) != y};
    for (int way = 0; way < 4; ++way) fused_would_differ[way] += differs[way];
    const rope::Pair<Real> out = rope::rotate(in, a, b);
    REQUIRE(same_bits(out.x, x));
    REQUIRE(same_bits(out.y, y));
  }
  for (const int count : fused_would_differ) CHECK(count > kPairs / 20);
}

template <typename Real>
void check_filled_angles(rope::CpuKernels::FillAngles<Real> *fill_angles) {
  Random random(4);
  for (const int pairs : {1, 2, 3, 5, 8, 31, 64, 511, 512}) {
    std::vector<uint64_t> phases(pairs);
    for (uint64_t &phase : phases) phase = random.bits();
    const Real scale = static_cast<Real>(random.uniform(-2, 2));
    std::vector<Real> cos(pairs), sin(pairs);
    fill_angles(phases.data(), pairs, scale, cos.data(), sin.data());
    int wrong = 0;
    for (int pair = 0; pair < pairs; ++pair) {
      const rope::CosSin<Real> angle = rope::cos_sin_of_phase<Real>(phases[pair]);
      volatile Real scaled_cos = angle.cos * scale, scaled_sin = angle.sin * scale;
      wrong += !same_bits<Real>(cos[pair], scaled_cos) || !same_bits<Real>(sin[pair], scaled_sin);
    }
    INFO(pairs << " pairs");
    CHECK(wrong == 0);
  }
}

}  // namespace

TEST_CASE("cosine and sine over all phases", "[rotation]") {
  constexpr double kUnit = 6.283185307179586 / 0x1p32;
  constexpr uint32_t kStride = 61;  // prime: 70 million of the 2^32 phases, with all residues
  double worst_cos = 0, worst_sin = 0;
  for (uint64_t number = 0; number < (uint64_t{1} << 32); number += kStride) {
    const auto upper = static_cast<uint32_t>(number);
    const rope::CosSin<float> result = cos_sin_of_upper(upper);
    const double angle = static_cast<int32_t>(upper) * kUnit;
    const double cos_error = std::fabs(result.cos - std::cos(angle));
    const double sin_error = std::fabs(result.sin - std::sin(angle));
    if (!(cos_error <= worst_cos)) worst_cos = cos_error;
    if (!(sin_error <= worst_sin)) worst_sin = sin_error;
  }
  CHECK(worst_cos <= 9.3e-8);
  CHECK(worst_sin <= 9.3e-8);
}

TEST_CASE("cosine and sine in double", "[rotation]") {
  Random random(6);
  Worst anywhere, at_edges;
  for (int i = 0; i < 4000000; ++i) anywhere.take(random.bits());
  for (uint64_t eighth = 0; eighth < 8; ++eighth) {
    const uint64_t edge = eighth << 61;
    for (uint64_t distance = 0; distance < 20000; ++distance) {
      at_edges.take(edge + distance);
      at_edges.take(edge - distance);
    }
    for (int shift = 0; shift < 61; ++shift) {
      for (int i = 0; i < 200; ++i) {
        const uint64_t distance = random.bits() >> (63 - shift);
        at_edges.take(edge + distance);
        at_edges.take(edge - distance);
      }
    }
  }
  CHECK(anywhere.cos <= 4e-16L);
  CHECK(anywhere.sin <= 4e-16L);
  CHECK(at_edges.cos <= 4e-16L);
  CHECK(at_edges.sin <= 4e-16L);
}

TEST_CASE("floats take the upper half of a phase, doubles all of it", "[rotation]") {
  Random random(7);
  int64_t wrong = 0, differing_doubles = 0;
  for (int i = 0; i < 100000; ++i) {
    const uint64_t phase = random.bits(), upper = phase >> 32 << 32;
    const rope::CosSin<float> a = rope::cos_sin_of_phase<float>(phase), b = rope::cos_sin_of_phase<float>(upper);
    wrong += !same_bits(a.cos, b.cos) || !same_bits(a.sin, b.sin);
    differing_doubles += rope::cos_sin_of_phase<double>(phase).sin != rope::cos_sin_of_phase<double>(upper).sin;
  }
  CHECK(wrong == 0);
  CHECK(differing_doubles > 99000);
}

TEST_CASE("quarter turns are exact", "[rotation]") {
  check_quarter_turns<float>();
  check_quarter_turns<double>();
}

TEST_CASE("cosine and sine never exceed 1", "[rotation]") {
  int64_t beyond = 0;
  for (int64_t distance = -2000000; distance <= 2000000; ++distance) {
    for (uint32_t quarter = 0; quarter < 4; ++quarter) {
      const rope::CosSin<float> result =
          rope::cos_sin_of_phase<float>(quarter * kQuarter + (static_cast<uint64_t>(distance) << 32));
      beyond += std::fabs(result.cos) > 1 || std::fabs(result.sin) > 1;
      // In double, the last place below 1 is about 2^36 phase units wide.
      for (int shift : {0, 16, 36}) {
        const rope::CosSin<double> wide =
            rope::cos_sin_of_phase<double>(quarter * kQuarter + (static_cast<uint64_t>(distance) << shift));
        beyond += std::fabs(wide.cos) > 1 || std::fabs(wide.sin) > 1;
      }
    }
  }
  CHECK(beyond == 0);
}

TEST_CASE("a quarter turn further swaps cosine and sine", "[rotation]") {
  CHECK(count_unswapped_quarters<float>() == 0);
  CHECK(count_unswapped_quarters<double>() == 0);
}

TEST_CASE("the opposite phase mirrors the sine", "[rotation]") {
  CHECK(count_unmirrored_phases<float>(uint64_t{1} << 32) == 0);
  CHECK(count_unmirrored_phases<double>(1) == 0);
}

TEST_CASE("the phase is the wrapped product", "[rotation]") {
  Random random(1);
  for (int i = 0; i < 20000; ++i) {
    const auto position = static_cast<int64_t>(random.bits()) >> random.below(64);
    const uint64_t increment = random.bits() >> random.below(64);
    // Long multiplication of the two's complement in 32-bit digits.
    const auto bits = static_cast<uint64_t>(position);
    const uint64_t low = (bits & 0xffffffff) * (increment & 0xffffffff);
    const uint64_t middle =
        (low >> 32) + (bits >> 32) * (increment & 0xffffffff) + (bits & 0xffffffff) * (increment >> 32);
    REQUIRE(rope::phase_of(static_cast<uint64_t>(position), increment) == (middle << 32 | (low & 0xffffffff)));
  }
}

TEST_CASE("phases of negative positions and of sums wrap", "[rotation]") {
  Random random(2);
  for (int i = 0; i < 20000; ++i) {
    const uint64_t increment = random.bits();
    const uint64_t a = random.bits(), b = random.bits();
    REQUIRE(rope::phase_of(a + b, increment) == rope::phase_of(a, increment) + rope::phase_of(b, increment));
    REQUIRE(rope::phase_of(0 - a, increment) == 0 - rope::phase_of(a, increment));
  }
  CHECK(rope::phase_of(static_cast<uint64_t>(INT64_C(-1)), kQuarter) == 3 * kQuarter);
  CHECK(rope::phase_of(static_cast<uint64_t>(INT64_C(-4)), kQuarter) == 0);
  CHECK(rope::phase_of(static_cast<uint64_t>(INT64_MIN), kQuarter + 2) == 0);
  CHECK(rope::phase_of(static_cast<uint64_t>(INT64_MAX), 1) == 0x7fffffffffffffff);
  CHECK(rope::phase_of(static_cast<uint64_t>(INT64_MIN), 1) == 0x8000000000000000);
  CHECK(rope::phase_of(static_cast<uint64_t>(INT64_C(-1)), 1) == 0xffffffffffffffff);
}

TEST_CASE("the phase of an angle is its turns to 63 bits", "[rotation]") {
  CHECK((turns_per_radian() * 4).fraction_times_power(0) == 0xa2f9836e4e441529);  // 2/pi in base 16
#if defined(ROPE_TEST_HAS_QUAD)
  CHECK(quad::circle_distance(turns_per_radian().fraction_times_power(0), quad::scaled(1 / quad::two_pi(), 64)) <= 1);
#endif
  for (const float angle : floats_of_every_exponent()) {
    const uint64_t exact = exact_phase_of_magnitude(angle), phase = rope::phase_of_angle(angle);
    INFO("angle " << angle << ", exact phase " << exact << ", phase " << phase);
    REQUIRE(exact - phase <= 1);
    REQUIRE(rope::phase_of_angle(-angle) == 0 - phase);
  }
  CHECK(rope::phase_of_angle(0.0f) == 0);
  CHECK(rope::phase_of_angle(-0.0f) == 0);
}

TEST_CASE("cosine and sine of angles of any size", "[rotation]") {
  check_angles<float>(9.3e-8L);
  check_angles<double>(4e-16L);
}

TEST_CASE("the CPU kernels rotate runs of any steps", "[rotation]") {
  const rope::CpuKernels &kernels = rope::kBaseCpuKernels;
  for (const bool has_angles_of_each_channel : {false, true}) {
    check_kernel<float, float>(kernels.rotate[rope::kCpuF32], has_angles_of_each_channel);
    check_kernel<rope::Float16, float>(kernels.rotate[rope::kCpuF16], has_angles_of_each_channel);
    check_kernel<rope::BFloat16, float>(kernels.rotate[rope::kCpuBF16], has_angles_of_each_channel);
    check_kernel<double, double>(kernels.rotate_f64, has_angles_of_each_channel);
  }
}

TEST_CASE("a rotation rounds every product and sum", "[rotation]") {
  check_rounding<float>();
  check_rounding<double>();
}

TEST_CASE("a rotation with the sines exchanged and negated is the transpose", "[rotation]") {
  Random random(9);
  for (int i = 0; i < 1000; ++i) {
    const auto draw = [&] { return random.uniform(-2, 2); };
    const rope::CosSin<double> a = {draw(), draw()}, b = {draw(), draw()};
    const rope::Pair<double> in = {draw(), draw()}, gradient = {draw(), draw()};
    const rope::Pair<double> out = rope::rotate(in, a, b);
    const rope::Pair<double> back = rope::rotate(gradient, {a.cos, -b.sin}, {b.cos, -a.sin});
    // x' = a.cos x - a.sin y, y' = b.sin x + b.cos y; the columns are the transpose.
    CHECK(std::fabs(back.x - (a.cos * gradient.x + b.sin * gradient.y)) <= 1e-15);
    CHECK(std::fabs(back.y - (b.cos * gradient.y - a.sin * gradient.x)) <= 1e-15);
    CHECK(std::fabs(out.x * gradient.x + out.y * gradient.y - in.x * back.x - in.y * back.y) <= 1e-14);
  }
}

TEST_CASE("the CPU kernel fills the angles of phases, scaled", "[rotation]") {
  check_filled_angles(rope::kBaseCpuKernels.fill_angles);
  check_filled_angles(rope::kBaseCpuKernels.fill_angles_f64);
}
