// Operands of a convolution as tensor cores want them; see conv1d.h.
#pragma once

#include <cuda_runtime.h>

#include "device/fast_divide.h"
#include "vision/conv1d_group_norm/conv1d.h"

namespace warpsmith {

// [n, channels, length] as planes of [positions, pitch].
struct SignalLines {
  static constexpr int kAcross = 64, kPositions = 64;  // channels and positions of a block's tile

  const void* from;
  void* to;
  int64_t channels, pitch, positions, length;
  FastDivide by_length;
  int64_t tiles_across, tiles;

  SignalLines() = default;
  SignalLines(const void* from_, void* to_, const Conv1dShape& s, int64_t channels_)
      : from(from_),
        to(to_),
        channels(channels_),
        pitch(line_pitch(channels_)),
        positions(s.positions()),
        length(s.length),
        by_length(s.length),
        tiles_across(ceil_div(pitch, kAcross)),
        tiles(tiles_across * ceil_div(positions, kPositions)) {}
};

// The values of weight[row * row_stride + channel * channel_stride + tap] as planes of [taps, rows, pitch], the taps in
// their order or from the last to the first.
struct WeightLines {
  static constexpr int kAcross = 64, kRows = 16;  // channels and rows of a block's tile

  const void* from;
  void* to;
  int64_t rows, channels, pitch, row_stride, channel_stride;
  int taps;
  bool reversed;
  FastDivide by_taps, by_run;  // what of a tile is a run of memory: of its channels, or of its rows
  int64_t tiles_across, tiles;

  WeightLines() = default;
  WeightLines(const void* from_, void* to_, const Conv1dShape& s, bool for_gradient)
      : from(from_),
        to(to_),
        rows(for_gradient ? s.c_in : s.c_out),
        channels(for_gradient ? s.c_out : s.c_in),
        pitch(line_pitch(channels)),
        row_stride(for_gradient ? s.taps : s.c_in * s.taps),
        channel_stride(for_gradient ? s.c_in * s.taps : s.taps),
        taps(s.taps),
        reversed(for_gradient),
        by_taps(s.taps),
        by_run((for_gradient ? kRows : kAcross) * s.taps),
        tiles_across(ceil_div(pitch, kAcross)),
        tiles(tiles_across * ceil_div(rows, kRows)) {}
};

// One launch for all of them; `second` may have no tiles.
void arrange(const SignalLines& first, const SignalLines& second, const WeightLines& weight, Dtype dtype,
             cudaStream_t stream);

}  // namespace warpsmith
