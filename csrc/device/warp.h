// Reductions over the 32 lanes of a warp, through register shuffles.
#pragma once

namespace warpsmith {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

struct Sum {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};

struct Max {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};

struct Min {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a < b ? a : b;
  }
};

// Over groups of `lanes` neighbours (a power of two); every lane gets the result.
template <int lanes = kWarp, class T, class Reduce = Sum>
__device__ __forceinline__ T warp_reduce(T value, Reduce reduce = {}) {
  static_assert(lanes > 0 && lanes <= kWarp && (lanes & (lanes - 1)) == 0, "a butterfly needs a power of two");
#pragma unroll
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    value = reduce(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

}  // namespace warpsmith
