// SPDX-License-Identifier: Apache-2.0
// norm.hpp - RMS and layer norm of a head: the order of sums and roundings, once for host and device
//
// As in rotation.hpp no operation is fused, so that the CPU and every GPU give equal bits.
#pragma once

#include <math.h>
#include <stdint.h>

#include "core/math/rotation.hpp"

namespace rope {

// The sum of a tree: terms 0 to n - 1, then +0 up to a power of two; neighbours 2i and 2i + 1 are added until one is
// left. Neighbours come first so that every aligned run of 2^k terms is a subtree, which a thread or a vector computes
// by itself. tree_sum adds 2^k terms in registers; TreeSum takes the sums of such runs as its terms.
template <int N, typename Real>
ROPE_HOST_DEVICE Real tree_sum(const Real *term) {
  if constexpr (N == 1) {
    return term[0];
  } else {
    return add_rounded(tree_sum<N / 2>(term), tree_sum<N / 2>(term + N / 2));
  }
}

// Adds up to 2^kMaxLevels terms, one after another, like a binary counter: partial_[k] is the sum of the last 2^k terms
// that bit k counts.
template <typename Real>
class TreeSum {
 public:
  ROPE_HOST_DEVICE void add(Real term) {
    int level = 0;
    for (uint32_t bits = count_; (bits & 1u) != 0; bits >>= 1) term = add_rounded(partial_[level++], term);
    partial_[level] = term;
    ++count_;
  }

  // Requires at least one term.
  ROPE_HOST_DEVICE Real total() const {
    Real right = 0;  // the sum behind the subtrees so far, +0 at the end
    int level = 0;
    for (uint32_t bits = count_; bits > 1; bits >>= 1, ++level) {
      if ((bits & 1u) == 0) {
        right = add_rounded(right, Real{0});
      } else {
        right = add_rounded(partial_[level], right);
      }
    }
    const bool is_full = (count_ & (count_ - 1)) == 0;
    return is_full ? partial_[level] : add_rounded(partial_[level], right);
  }

 private:
  static constexpr int kMaxLevels = 31;
  Real partial_[kMaxLevels + 1];
  uint32_t count_ = 0;
};

// The number nearest to 1 / sqrt(v). On the host the root and the quotient are rounded to double, and the result to
// fp32, which gives that number for every fp32 number.
ROPE_HOST_DEVICE float inverse_root(float v) {
#if defined(__CUDA_ARCH__)
  return __frsqrt_rn(v);
#else
  return static_cast<float>(1.0 / sqrt(static_cast<double>(v)));
#endif
}

// 1 divided by the root. Both operations round.
ROPE_HOST_DEVICE double inverse_root(double v) {
#if defined(__CUDA_ARCH__)
  return __ddiv_rn(1.0, __dsqrt_rn(v));
#else
  return 1.0 / sqrt(v);
#endif
}

// Numbers of a norm. Each is rounded to Real once.
template <typename Real>
struct NormForm {
  Real eps;
  Real inverse_count;  // 1 / n, rounded
  Real weight_offset;
  bool is_layer;
  bool rounds_before_weight;  // rounds to the data's type
  bool rounds_after_weight;
};

// The mean from the sum of n terms, or the mean square from the sum of their squares.
template <typename Real>
ROPE_HOST_DEVICE Real mean_of(const NormForm<Real> &form, Real sum) {
  return multiply_rounded(sum, form.inverse_count);
}

// r from the sum of squares.
template <typename Real>
ROPE_HOST_DEVICE Real inverse_norm(const NormForm<Real> &form, Real sum_of_squares) {
  return inverse_root(add_rounded(mean_of(form, sum_of_squares), form.eps));
}

// A channel times r; LAYER has subtracted the mean. `T` is the data's type.
template <typename T, typename Real>
ROPE_HOST_DEVICE Real scale_channel(const NormForm<Real> &form, Real x, Real inverse) {
  const Real y = multiply_rounded(x, inverse);
  return form.rounds_before_weight ? to_real<Real>(round_to<T>(y)) : y;
}

// A scaled channel times the weight plus the offset.
template <typename T, typename Real>
ROPE_HOST_DEVICE Real weigh_channel(const NormForm<Real> &form, Real y, Real weight) {
  const Real product = multiply_rounded(y, add_rounded(weight, form.weight_offset));
  return form.rounds_after_weight ? to_real<Real>(round_to<T>(product)) : product;
}

// A weighed channel plus the bias of LAYER.
template <typename T, typename Real>
ROPE_HOST_DEVICE Real add_bias(const NormForm<Real> &form, Real y, Real bias) {
  const Real sum = add_rounded(y, bias);
  return form.rounds_after_weight ? to_real<Real>(round_to<T>(sum)) : sum;
}

// ---- Backward ----
//
// Let g be the gradient of y, n = x * r (LAYER: (x - m) * r) and h = g * w. The gradients of x, of the weight and of
// the bias are
//
//   (h - sum(h) / n - n * (sum(h * n) / n)) * r        g * n        g
//
// RMS has no sum(h). Sums are trees like those of forward, and forward's roundings are ignored. (Ba et al.,
// arXiv:1607.06450, and the derivative of its formula without the mean.)

// The trees' sums over all channels of one norm.
template <typename Real>
struct NormGradientSums {
  Real products;   // sum of h * n
  Real gradients;  // sum of h; 0 with RMS
};

template <typename Real>
struct NormGradientMeans {
  Real products;
  Real gradients;
};

template <typename Real>
ROPE_HOST_DEVICE NormGradientMeans<Real> means_of(const NormForm<Real> &form, const NormGradientSums<Real> &sums) {
  return {mean_of(form, sums.products), mean_of(form, sums.gradients)};
}

// Sums over tokens for the gradients of weights or biases, for some channels of each head. Strides are in elements.
template <typename Real>
struct HeadSums {
  Real *data;  // sum of the first head's channel `begin`; NULL: no sums
  int64_t head_stride;
  int64_t channel_stride;
  int begin;
  int end;
};

// The gradient of a channel x from h and n. Without a mean of h the first difference equals h, bit for bit, so RMS may
// omit it.
template <bool HasMean = true, typename Real>
ROPE_HOST_DEVICE Real norm_gradient(Real weighed, Real normed, Real inverse, const NormGradientMeans<Real> &means) {
  const Real centred = HasMean ? add_rounded(weighed, -means.gradients) : weighed;
  return multiply_rounded(add_rounded(centred, -multiply_rounded(normed, means.products)), inverse);
}

}  // namespace rope
