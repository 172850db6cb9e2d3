// Activations, for the elementwise family and for what is fused into others.
//
// Every function computes in float. `exact` is set for f32 data: there the formulas are as accurate as PyTorch's;
// 16-bit and 8-bit data get formulas with the same accuracy after rounding and far fewer instructions, without which a
// kernel at full memory speed would be bound by arithmetic.
#pragma once

#include <cuda_runtime.h>

#include <bit>
#include <cmath>

#include "device/ptx/math.h"

namespace warpsmith {

inline constexpr float kLog2e = 1.4426950408889634f;
inline constexpr float kSqrtHalf = 0.70710678118654752f;
inline constexpr float kInvSqrt2Pi = 0.39894228040143268f;

template <bool exact>
__device__ __forceinline__ float exponential(float x) {
  if constexpr (exact) return expf(x);
  return ptx::exp2_approx(x * kLog2e);
}

// exp(x) within 0.7 ulp for x <= 20: a polynomial where expf leans on the special-function unit's 1.4 ulp.
__device__ __forceinline__ float exponential_fine(float x) {
  constexpr float kLn2High = 0.693145752f, kLn2Low = 1.42860677e-6f;
  constexpr float kSmallest = -104.0f;  // below, the result rounds to 0
  constexpr float kSeries[] = {1.0f, 1.0f, 1.0f / 2, 1.0f / 6, 1.0f / 24, 1.0f / 120, 1.0f / 720, 1.0f / 5040};
  x = x < kSmallest ? kSmallest : x;  // NaN passes
  const float k = rintf(x * kLog2e);
  const float r = fmaf(-k, kLn2Low, fmaf(-k, kLn2High, x));  // |r| <= ln(2)/2
  float p = kSeries[7];
#pragma unroll
  for (int i = 6; i >= 0; --i) p = fmaf(p, r, kSeries[i]);
  // 2^k in two factors, since k may lie below the smallest normal exponent
  const int low = static_cast<int>(k) / 2, high = static_cast<int>(k) - low;
  return p * std::bit_cast<float>((low + 127) << 23) * std::bit_cast<float>((high + 127) << 23);
}

// 1/x for x from 1 to 2, where nothing is subnormal.
template <bool exact>
__device__ __forceinline__ float reciprocal(float x) {
  if constexpr (exact) return 1.0f / x;
  return ptx::reciprocal_approx_ftz(x);
}

// Exact or not, no division: its slow path is a branch, which keeps a thread's elements from overlapping.
template <bool exact>
__device__ __forceinline__ float logistic(float x) {
  if constexpr (exact) return ptx::reciprocal_approx(1.0f + expf(-x));
  return ptx::reciprocal_approx(1.0f + ptx::exp2_approx_ftz(x * -kLog2e));
}

// d/dx of x logistic(k x) = k s (1/k + x (1 - s)), from e = exp(-|kx|). Of s and 1 - s the smaller one comes from e and
// does not cancel, the larger one from the smaller, which leaves it exact but for its rounding. As a product, with k
// outside, the slope keeps its digits where x (1 - s) and 1/k cancel, and the largest x gives no 0 * inf.
template <bool exact>
__device__ __forceinline__ float logistic_product_slope(float x, float k) {
  const float e = exponential<exact>(-fabsf(k * x));
  const float smaller = e * reciprocal<exact>(1.0f + e), larger = 1.0f - smaller;
  const float s = x < 0.0f ? smaller : larger, rest = x < 0.0f ? larger : smaller;
  return k * s * fmaf(x, rest, 1.0f / k);
}

// The normal distribution's cumulative function, and its density on the way.
struct Normal {
  float cdf, density;
};

// Phi(-a) = exp(-a^2/2) t P(t), t = 1/(1 + c a): P fitted for the smallest largest relative error over all a >= 0, so
// that the negative tail keeps its relative accuracy where 1 + erf cancels.
template <int degree>
struct NormalFit {
  float c, p[degree];
};

template <int degree>
__device__ __forceinline__ Normal normal(float x, float bell, const NormalFit<degree>& fit) {
  const float t = ptx::reciprocal_approx_ftz(fmaf(fit.c, fabsf(x), 1.0f));
  float p = fit.p[degree - 1];
#pragma unroll
  for (int i = degree - 2; i >= 0; --i) p = fmaf(p, t, fit.p[i]);
  const float tail = bell * (t * p);
  return {x < 0.0f ? tail : 1.0f - tail, kInvSqrt2Pi * bell};
}

// Relative error 4e-5: an eighth of half an ulp of f16.
__device__ __forceinline__ Normal normal(float x) {
  constexpr NormalFit<5> fit{0.38f, {0.151225133f, 0.157829504f, 0.0919796863f, 0.188876484f, -0.0899283316f}};
  return normal(x, ptx::exp2_approx_ftz(x * x * (-0.5f * kLog2e)), fit);
}

// Relative error 4e-7, subnormals kept.
__device__ __forceinline__ Normal normal_fine(float x) {
  constexpr NormalFit<8> fit{0.30f,
                             {0.119629299f, 0.120753949f, 0.0999135323f, 0.12856151f, -0.0536834536f, 0.206353329f,
                              -0.157202996f, 0.0356747565f}};
  return normal(x, ptx::exp2_approx(x * x * (-0.5f * kLog2e)), fit);
}

// forward(x, p) and backward(g, x, p) = g f'(x), with PyTorch's conventions at kinks and for NaN; where `masks_gradient`,
// 0 where f is flat, whatever g is.

struct Relu {
  static constexpr const char* name = "relu";
  static constexpr bool masks_gradient = true;
  template <bool exact>
  __device__ static float forward(float x, float) {
    return x <= 0.0f ? 0.0f : x;
  }
  template <bool exact>
  __device__ static float backward(float g, float x, float) {
    return x <= 0.0f ? 0.0f : g;
  }
};

struct Sigmoid {
  static constexpr const char* name = "sigmoid";
  template <bool exact>
  __device__ static float forward(float x, float) {
    return logistic<exact>(x);
  }
  template <bool exact>
  __device__ static float backward(float g, float x, float) {
    // s (1 - s) from e = exp(-|x|), which is symmetric and does not cancel for large x.
    const float e = exponential<exact>(-fabsf(x)), r = reciprocal<exact>(1.0f + e);
    return g * (e * r * r);
  }
};

// x > 0: x; otherwise p (exp(x) - 1).
struct Elu {
  static constexpr const char* name = "elu";
  static constexpr const char* parameter = "alpha";
  template <bool exact>
  __device__ static float forward(float x, float alpha) {
    float below;
    if constexpr (exact) {
      below = expm1f(x);
    } else {
      // exp(x) - 1 cancels near zero; the series is accurate there.
      constexpr float kSeries = -0.125f;
      const float series = x * fmaf(x, fmaf(x, fmaf(x, 1.0f / 24, 1.0f / 6), 0.5f), 1.0f);
      below = x > kSeries ? series : exponential<exact>(x) - 1.0f;
    }
    return x > 0.0f ? x : alpha * below;
  }
  template <bool exact>
  __device__ static float backward(float g, float x, float alpha) {
    return x <= 0.0f ? g * (alpha * exponential<exact>(x)) : g;
  }
};

struct Gelu {
  static constexpr const char* name = "gelu";
  template <bool exact>
  __device__ static float forward(float x, float) {
    if constexpr (exact) return 0.5f * x * (1.0f + erff(x * kSqrtHalf));
    return x * normal(x).cdf;
  }
  template <bool exact>
  __device__ static float backward(float g, float x, float) {
    if constexpr (exact) {
      const float cdf = 0.5f * (1.0f + erff(x * kSqrtHalf));
      return g * fmaf(x, kInvSqrt2Pi * expf(-0.5f * x * x), cdf);
    }
    // Near -0.75 the two terms cancel, which asks for more digits than the function itself does.
    const Normal n = normal_fine(x);
    return g * fmaf(x, n.density, n.cdf);
  }
};

// The tanh approximation: 0.5 x (1 + tanh(u)) = x logistic(2u), u = sqrt(2/pi) (x + 0.044715 x^3).
struct GeluTanh {
  static constexpr const char* name = "gelu_tanh";
  static constexpr float kBeta = 0.79788456080286536f, kKappa = 0.044715f;
  static constexpr float kFlat = 1e4f;  // beyond this x^2 the slope is 0 or 1, and the terms must not overflow
  template <bool exact>
  __device__ static float forward(float x, float) {
    if constexpr (exact) {
      const float cube = x * x * x;
      return 0.5f * x * (1.0f + tanhf(kBeta * (x + kKappa * cube)));
    }
    const float twice = x * fmaf(2.0f * kBeta * kKappa, x * x, 2.0f * kBeta);
    return x * logistic<exact>(twice);
  }
  template <bool exact>
  __device__ static float backward(float g, float x, float) {
    const float square = fminf(x * x, kFlat);
    constexpr float kUnit = exact ? 1.0f : kLog2e;  // the fast formula takes powers of 2
    const float twice = x * fmaf(2.0f * kBeta * kKappa * kUnit, square, 2.0f * kBeta * kUnit);  // 2u
    const float slope = fmaf(6.0f * kBeta * kKappa, square, 2.0f * kBeta);                      // of 2u
    const float e = exact ? expf(-fabsf(twice)) : ptx::exp2_approx(-fabsf(twice));
    const float r = reciprocal<exact>(1.0f + e), falling = e * r;
    const float s = twice < 0.0f ? falling : r;  // logistic(2u)
    return g * fmaf(x * (falling * r), slope, s);
  }
};

struct Silu {
  static constexpr const char* name = "silu";
  template <bool exact>
  __device__ static float forward(float x, float) {
    return x * logistic<exact>(x);
  }
  template <bool exact>
  __device__ static float backward(float g, float x, float) {
    return g * logistic_product_slope<exact>(x, 1.0f);
  }
};

// x min(max(x + 3, 0), 6) / 6
struct Hardswish {
  static constexpr const char* name = "hardswish";
  static constexpr bool masks_gradient = true;
  template <bool exact>
  __device__ static float forward(float x, float) {
    const float t = x + 3.0f;
    const float clamped = t < 0.0f ? 0.0f : (t > 6.0f ? 6.0f : t);  // NaN passes
    return x * (clamped * (1.0f / 6));
  }
  template <bool exact>
  __device__ static float backward(float g, float x, float) {
    if (x <= -3.0f) return 0.0f;
    const float slope = exact ? x / 3.0f + 0.5f : (x + 1.5f) * (1.0f / 3);
    return x < 3.0f ? g * slope : g;
  }
};

// |x| <= p: 0; otherwise x.
struct Hardshrink {
  static constexpr const char* name = "hardshrink";
  static constexpr bool masks_gradient = true;
  static constexpr const char* parameter = "lambd";
  template <bool exact>
  __device__ static float forward(float x, float lambd) {
    return x >= -lambd && x <= lambd ? 0.0f : x;
  }
  template <bool exact>
  __device__ static float backward(float g, float x, float lambd) {
    return x >= -lambd && x <= lambd ? 0.0f : g;
  }
};

// x logistic(1.702 x)
struct QuickGelu {
  static constexpr const char* name = "quick_gelu";
  static constexpr float kSlope = 1.702f;
  template <bool exact>
  __device__ static float forward(float x, float) {
    return x * logistic<exact>(kSlope * x);
  }
  template <bool exact>
  __device__ static float backward(float g, float x, float) {
    return g * logistic_product_slope<exact>(x, kSlope);
  }
};

// x tanh(softplus(x)) = x n / (n + 2), n = e^2 + 2e, e = exp(x)
struct Mish {
  static constexpr const char* name = "mish";
  static constexpr float kLinear = 20.0f;  // beyond this tanh(softplus(x)) rounds to 1
  template <bool exact>
  __device__ static float forward(float x, float) {
    const float capped = fminf(x, kLinear);
    const float e = exact ? exponential_fine(capped) : exponential<exact>(capped);
    const float n = fmaf(e, e, 2.0f * e);
    const float y = exact ? x * n / (n + 2.0f) : x * (n * ptx::reciprocal_approx_ftz(n + 2.0f));
    return x > kLinear ? x : y;
  }
  template <bool exact>
  __device__ static float backward(float g, float x, float) {
    if (x > kLinear) return g * (1.0f + (x - x));  // NaN at infinity, as in PyTorch
    const float e = exact ? exponential_fine(x) : exponential<exact>(x);
    const float n = fmaf(e, e, 2.0f * e);
    const float d = n + 2.0f;
    // tanh(softplus(x)) is n / d, its slope 4 e (e + 1) / d^2: nothing cancels
    if constexpr (exact) return g * fmaf(x, 4.0f * e * (e + 1.0f) / (d * d), n / d);
    const float r = ptx::reciprocal_approx_ftz(d);
    return g * fmaf(x, 4.0f * e * (e + 1.0f) * r * r, n * r);
  }
};

template <class F>
concept MasksGradient = requires { F::masks_gradient; };

}  // namespace warpsmith
