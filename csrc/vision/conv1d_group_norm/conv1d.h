// A convolution of signals, stride 1 and as many positions as before, as its kernels see it:
//   h[b, o, l] = sum over i and t of weight[o, i, t] x[b, i, l + t - before],   zero outside of the signal
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "host/ceil_div.h"
#include "host/conditions.h"
#include "host/dtype.h"

namespace warpsmith {

struct Conv1dShape {
  int64_t n, c_in, c_out, length;  // x [n, c_in, length], weight [c_out, c_in, taps], h [n, c_out, length]
  int taps;

  __host__ __device__ int64_t positions() const { return n * length; }
  // Zeros before the signal; the rest of taps - 1 follow it.
  __host__ __device__ int before() const { return (taps - 1) / 2; }
};

inline constexpr int kMostTaps = 7;
inline constexpr int64_t kMostConv1dPositions = int64_t{1} << 30, kMostConv1dChannels = int64_t{1} << 20;

inline const char* needs_countable(const Conv1dShape& s) {
  const bool fits = s.positions() <= kMostConv1dPositions && s.c_in <= kMostConv1dChannels &&
                    s.c_out <= kMostConv1dChannels && s.length <= kMostConv1dPositions;
  return fits ? nullptr : "needs at most 2^30 positions and 2^20 channels";
}

// Tensor cores read both operands along the channels. `arrange` puts them so: signals as [positions, pitch], weights as
// [taps, rows, pitch], lines of whole packs of 16 bytes, with zeros at their ends. A value of f32 becomes three of bf16,
// whose sum it is, in three planes of this.
inline int64_t line_pitch(int64_t channels) { return ceil_div(channels, 8) * 8; }
inline int planes_of(Dtype dtype) { return dtype == Dtype::f32 ? 3 : 1; }
inline int64_t signal_bytes(int64_t positions, int64_t channels, Dtype dtype) {
  return planes_of(dtype) * positions * line_pitch(channels) * 2;
}
inline int64_t weight_bytes(int64_t rows, int64_t channels, int taps, Dtype dtype) {
  return planes_of(dtype) * taps * rows * line_pitch(channels) * 2;
}

}  // namespace warpsmith
