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

// The same of n values at once, a power of two, to the same bits in fewer instructions: while several are left, half of
// the lanes go on with one half of them and half with the other.
template <int lanes = kWarp, int n, class T, class Reduce = Sum>
__device__ __forceinline__ void warp_reduce_all(T (&values)[n], Reduce reduce = {}) {
  static_assert(n > 0 && n <= lanes && lanes % n == 0 && (n & (n - 1)) == 0, "lanes are shared out among the values");
  static_assert(n <= 16, "the compiler would put more of them into local memory");
  const int lane = threadIdx.x % lanes;
  int distance = lanes / 2;
#pragma unroll
  for (int left = n / 2; left > 0; left /= 2, distance /= 2) {
    const bool upper = (lane & distance) != 0;
#pragma unroll
    for (int i = 0; i < left; ++i) {
      const T sent = upper ? values[i] : values[i + left], kept = upper ? values[i + left] : values[i];
      values[i] = reduce(kept, __shfl_xor_sync(kAllLanes, sent, distance));
    }
  }
  const T mine = warp_reduce<lanes / n>(values[0], reduce);
#pragma unroll
  for (int i = 0; i < n; ++i) values[i] = n == 1 ? mine : __shfl_sync(kAllLanes, mine, i * (lanes / n), lanes);
}

}  // namespace warpsmith
