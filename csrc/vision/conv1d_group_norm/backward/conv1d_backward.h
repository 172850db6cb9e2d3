// Gradients of a convolution of signals (conv1d.h), with h's gradient g:
//   dx[b, i, m] = sum over o and t of weight[o, i, t] g[b, o, m - t + before]
//   dweight[o, i, t] = sum over b and l of g[b, o, l] x[b, i, l + t - before]
//   dbias[o] = sum over b and l of g[b, o, l]
#pragma once

#include <cuda_runtime.h>

#include <string_view>

#include "host/min_max.h"
#include "vision/conv1d_group_norm/conv1d.h"

namespace warpsmith {

struct Conv1dBackwardArgs {
  Conv1dShape shape;
  const void* grad;    // [n, c_out, length]
  const void* x;       // [n, c_in, length]
  const void* weight;  // [c_out, c_in, taps]
  void *dx, *dweight;  // as x and weight
  void* dbias;         // [c_out]
  void* workspace;     // workspace_bytes()
  Dtype dtype;         // of all tensors
  int sm_count;
};

// Blocks that share a tile of dweight: each takes a run of positions and leaves its sums.
struct WeightSlices {
  static constexpr int64_t kStep = 32, kLeastSteps = 8, kMost = 16, kSumsOfStep = int64_t{1} << 20;
  int tile;       // values of dweight along either side
  int64_t tiles;  // of all taps
  int64_t count;  // of slices
  int64_t depth;  // positions of a slice, whole steps
  int64_t pitch;  // of a row of sums
  int64_t one;    // sums of a slice: [taps, c_out, pitch]

  // That a multiprocessor has at once.
  static constexpr int blocks_of(int tile, bool in_pieces) {
    return tile == 128 ? (in_pieces ? 1 : 2) : in_pieces ? 3 : 4;
  }

  // Large tiles, unless they leave multiprocessors idle and small ones save a fifth.
  explicit WeightSlices(const Conv1dBackwardArgs& a) : WeightSlices(a, 64) {
    if (a.shape.c_in <= 64 || a.shape.c_out <= 64) return;
    const WeightSlices large(a, 128);
    const bool idle = large.tiles * large.count < a.sm_count;
    if (!idle || 5 * clocks() > 4 * large.clocks()) *this = large;
  }

 private:
  WeightSlices(const Conv1dBackwardArgs& a, int tile_)
      : tile(tile_),
        in_pieces_(planes_of(a.dtype) > 1),
        at_once_(int64_t{a.sm_count} * blocks_of(tile, in_pieces_)),
        steps_(ceil_div(a.shape.positions(), kStep)) {
    const Conv1dShape& s = a.shape;
    tiles = ceil_div(s.c_out, tile) * ceil_div(s.c_in, tile) * s.taps;
    pitch = line_pitch(s.c_in);
    one = s.taps * s.c_out * pitch;
    const int64_t most = min_of(steps_ / kLeastSteps, kMost);
    int64_t wanted = std::max<int64_t>(min_of(at_once_ / tiles, most), 1);
    if (tile == 128 && in_pieces_) wanted = evened(wanted, most);
    const int64_t each = ceil_div(steps_, wanted);
    depth = each * kStep;
    count = ceil_div(steps_, each);
  }

  // That follow one another on a multiprocessor.
  int64_t steps_of(int64_t slices) const { return ceil_div(tiles * slices, at_once_) * ceil_div(steps_, slices); }

  // Of a product of planes on a multiprocessor, from those of a step where it has all blocks that it holds: of an H200,
  // estimated from the instructions of the loop until they are timed.
  int64_t clocks() const {
    return steps_of(count) * (tile == 128 ? (in_pieces_ ? 2030 : 1800) : in_pieces_ ? 1470 : 1150);
  }

  // More slices than `wanted` where that saves a tenth, with the steps that it takes to add them up: with a block to a
  // multiprocessor, several short rounds leave less of the GPU idle than one.
  int64_t evened(int64_t wanted, int64_t most) const {
    const auto time = [&](int64_t slices) { return steps_of(slices) + ceil_div(slices * one, kSumsOfStep); };
    for (int64_t slices = wanted + 1; slices <= most; ++slices) {
      if (10 * time(slices) < 9 * time(wanted)) wanted = slices;
    }
    return wanted;
  }

  bool in_pieces_;
  int64_t at_once_, steps_;  // blocks of the GPU; of all positions
};

inline int64_t workspace_bytes(std::string_view rung, const Conv1dBackwardArgs& a) {
  if (rung == "naive") return 0;
  const Conv1dShape& s = a.shape;
  const WeightSlices slices(a);
  return signal_bytes(s.positions(), s.c_in, a.dtype) + signal_bytes(s.positions(), s.c_out, a.dtype) +
         weight_bytes(s.c_in, s.c_out, s.taps, a.dtype) + slices.count * slices.one * 4;
}

// dbias, a block per channel.
void sum_channels(const Conv1dBackwardArgs& a, cudaStream_t stream);

// dweight, of signals as `arrange` puts them; `sums`: room for those of all slices.
void multiply_weight_gradient(const Conv1dBackwardArgs& a, const void* grad_lines, const void* x_lines, float* sums,
                              cudaStream_t stream);

}  // namespace warpsmith
