// Device side of group normalisation: activations, values per channel, the places of a group's values.
#pragma once

#include <type_traits>

#include "device/activations.h"
#include "device/convert.h"
#include "device/fast_divide.h"
#include "device/moments.h"
#include "host/launch.h"
#include "host/registry.h"
#include "norm/group.h"

namespace warpsmith {

struct NoActivation {
  template <bool exact>
  __device__ static float forward(float x, float) {
    return x;
  }
  template <bool exact>
  __device__ static float backward(float g, float, float) {
    return g;
  }
};

// SiLU without branches, in fewer instructions than Silu takes: beside the statistics of a group they set the pace.
// The quick forms take their argument times kQuickUnit: so their denominator 1 + exp(-x) comes, and the reciprocal of it
// is not flushed to zero before x takes it below 16 bits. Of 16-bit subnormals such an argument loses nothing.
struct GroupSilu {
  static constexpr int kQuickShift = 15;
  static constexpr float kQuickUnit = 1.0f / (1 << kQuickShift);

  template <bool exact>
  __device__ __forceinline__ static float forward(float x, float) {
    if constexpr (exact) {
      const Logistic of = logistic_parts(x);
      return (x < 0.0f ? x * of.e : x) * of.r;
    }
    return x * quick_logistic(x);
  }
  template <bool exact>
  __device__ __forceinline__ static float backward(float g, float x, float) {
    if constexpr (exact) {
      const Logistic of = logistic_parts(x);
      return g * fmaf(x, of.e * of.r * of.r, x < 0.0f ? of.e * of.r : of.r);
    }
    const float s = quick_logistic(x);
    return g * (s * fmaf(x, fmaf(-s, kQuickUnit, 1.0f), kQuickUnit));
  }

 private:
  struct Logistic {
    float e, r;  // exp(-|x|), 1 / (1 + e)
  };
  // A Newton step in place of a division: the denominator is between 1 and 2.
  __device__ __forceinline__ static Logistic logistic_parts(float x) {
    const float e = expf(-fabsf(x)), d = 1.0f + e;
    const float r = ptx::reciprocal_approx_ftz(d);
    return {e, fmaf(r, fmaf(-d, r, 1.0f), r)};
  }
  // 1 / (1 + exp(-x)) in units of 1 / kQuickUnit.
  __device__ __forceinline__ static float quick_logistic(float x_in_units) {
    constexpr float kFactor = -kLog2e / kQuickUnit;
    const float e = ptx::exp2_approx_ftz(fmaf(x_in_units, kFactor, -static_cast<float>(kQuickShift)));
    return ptx::reciprocal_approx_ftz(e + kQuickUnit);
  }
};

// What an activation of values of type T has its argument multiplied by: in a scale and a shift it costs nothing.
template <class Activation, class T>
inline constexpr float kArgumentUnit = 1.0f;
template <class T>
inline constexpr float kArgumentUnit<GroupSilu, T> = std::is_same_v<T, float> ? 1.0f : GroupSilu::kQuickUnit;

// activation(z), of z * kArgumentUnit. f32 data take formulas of f32 accuracy, 16-bit data shorter ones.
template <class Activation, class T>
__device__ __forceinline__ float activate(float z_in_units) {
  return Activation::template forward<std::is_same_v<T, float>>(z_in_units, 0.0f);
}

// grad * activation'(z), of z * kArgumentUnit
template <class Activation, class T>
__device__ __forceinline__ float activate_backward(float grad, float z_in_units) {
  return Activation::template backward<std::is_same_v<T, float>>(grad, z_in_units, 0.0f);
}

// Calls body.template operator()<T, Activation>().
template <class Body>
void visit_activations(Dtype dtype, GroupActivation activation, Body&& body) {
  dispatch_float(dtype, [&]<class T>() {
    switch (activation) {
      case GroupActivation::none:
        return body.template operator()<T, NoActivation>();
      case GroupActivation::silu:
        return body.template operator()<T, GroupSilu>();
      case GroupActivation::mish:
        return body.template operator()<T, Mish>();
    }
  });
}

// A value per channel as float, whatever it is stored in; `neutral` where there is no vector.
template <class T>
struct PerChannel {
  const T* narrow;    // [c] or null
  const float* wide;  // [c] or null
  float neutral;

  PerChannel(const ChannelVector& vector, float neutral)
      : narrow(vector.dtype == Dtype::f32 ? nullptr : static_cast<const T*>(vector.data)),
        wide(vector.dtype == Dtype::f32 ? static_cast<const float*>(vector.data) : nullptr),
        neutral(neutral) {}

  __device__ __forceinline__ float operator[](int64_t channel) const {
    if (wide != nullptr) return wide[channel];
    return narrow != nullptr ? to_float(narrow[channel]) : neutral;
  }

  // Of n channels from `first` on.
  template <int n>
  __device__ __forceinline__ void read(float (&to)[n], int64_t first) const {
    if (wide != nullptr) {
#pragma unroll
      for (int i = 0; i < n; ++i) to[i] = wide[first + i];
    } else if (narrow != nullptr) {
#pragma unroll
      for (int i = 0; i < n; ++i) to[i] = to_float(narrow[first + i]);
    } else {
#pragma unroll
      for (int i = 0; i < n; ++i) to[i] = neutral;
    }
  }
};

// Of `count` values, by the sums of their deviations from what is nearly their mean and of the squares of these.
__device__ __forceinline__ Moments moments_around(float count, float around, float deviations, float squares) {
  const float off = count > 0.0f ? __fdividef(deviations, count) : 0.0f;
  const float m2 = fmaf(-off, deviations, squares);
  return {count, around + off, m2 < 0.0f ? 0.0f : m2};
}

// What a group's statistics make of its values: xhat = (x - mean) * rstd.
struct Normaliser {
  float mean, rstd;
};

// 1 / sqrt(variance + eps) within 2 ulp, as PyTorch computes it.
__device__ __forceinline__ Normaliser normaliser(const Moments& moments, float eps) {
  return {moments.mean, rsqrtf(moments.m2 / moments.count + eps)};
}

// Where the values of a group lie, in either layout, and whose channel they belong to.
struct GroupElements {
  int64_t groups, group_channels, size, sample, group_stride, outer_stride;
  FastDivide inner;  // values in a run: positions of a channel, or channels of a position
  bool channels_last;

  explicit GroupElements(const GroupShape& s)
      : groups(s.groups),
        group_channels(s.group_channels()),
        size(s.row_size()),
        sample(s.c * s.spatial),
        group_stride(s.channels_last ? s.group_channels() : s.row_size()),
        outer_stride(s.channels_last ? s.c : s.spatial),
        inner(s.channels_last ? s.group_channels() : s.spatial),
        channels_last(s.channels_last) {}

  __device__ int64_t start(int64_t row) const { return row / groups * sample + row % groups * group_stride; }
  __device__ int64_t first_channel(int64_t row) const { return row % groups * group_channels; }

  struct Place {
    int64_t offset;   // from the group's start
    int64_t channel;  // from the group's first
  };

  __device__ __forceinline__ Place place(int64_t i) const {
    const int64_t run = inner.quotient(i), within = i - run * static_cast<int64_t>(inner.divisor);
    return {run * outer_stride + within, channels_last ? within : run};
  }
};

}  // namespace warpsmith
