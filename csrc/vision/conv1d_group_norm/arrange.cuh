// The launch that arranges the operands of a convolution. Included by one source of each library.
#pragma once

#include "device/start_early.h"
#include "device/vec.h"
#include "host/launch.h"
#include "row/rows.h"
#include "vision/conv1d_group_norm/arrange.h"
#include "vision/conv1d_group_norm/planes.cuh"

namespace warpsmith {
namespace {

constexpr int kArrangeThreads = 256;
constexpr int kAcross = SignalLines::kAcross, kPositions = SignalLines::kPositions, kRows = WeightLines::kRows;
static_assert(kAcross == WeightLines::kAcross);

// Two values of a line in each of its planes.
template <class T>
__device__ __forceinline__ void store_planes(void* to, int64_t at, int64_t plane, T first, T second) {
  using Unit = typename Planes<T>::Unit;
  Unit a[Planes<T>::count], b[Planes<T>::count];
  Planes<T>::split(a, first);
  Planes<T>::split(b, second);
#pragma unroll
  for (int p = 0; p < Planes<T>::count; ++p) {
    Vec<Unit, 2> pair;
    pair[0] = a[p];
    pair[1] = b[p];
    store(static_cast<Unit*>(to) + p * plane + at, pair);
  }
}

template <class T>
__device__ __forceinline__ void arrange_signal(const SignalLines& s, int64_t tile, T* shared) {
  constexpr int kPitch = kPositions + 4 / static_cast<int>(sizeof(T));  // an odd number of words
  const int64_t c0 = tile % s.tiles_across * kAcross, r0 = tile / s.tiles_across * kPositions;

  // load, neighbours along the signal; a thread has one position
  const int r = static_cast<int>(threadIdx.x) % kPositions;
  const int64_t position = r0 + r, sample = s.by_length.quotient_as(position);
  const T* from = static_cast<const T*>(s.from) + sample * s.channels * s.length + (position - sample * s.length);
#pragma unroll 4
  for (int c = static_cast<int>(threadIdx.x) / kPositions; c < kAcross; c += kArrangeThreads / kPositions) {
    const bool inside = position < s.positions && c0 + c < s.channels;
    shared[c * kPitch + r] = inside ? from[(c0 + c) * s.length] : from_float<T>(0.0f);
  }
  __syncthreads();

  // store, neighbours along the channels
  const int c = 2 * (static_cast<int>(threadIdx.x) % (kAcross / 2));
  if (c0 + c >= s.pitch) return;
#pragma unroll 4
  for (int line = static_cast<int>(threadIdx.x) / (kAcross / 2); line < kPositions;
       line += kArrangeThreads / (kAcross / 2)) {
    if (r0 + line >= s.positions) return;
    store_planes<T>(s.to, (r0 + line) * s.pitch + c0 + c, s.positions * s.pitch, shared[c * kPitch + line],
                    shared[(c + 1) * kPitch + line]);
  }
}

template <class T>
__device__ __forceinline__ void arrange_weight(const WeightLines& w, int64_t tile, T* shared) {
  const int64_t c0 = tile % w.tiles_across * kAcross, r0 = tile / w.tiles_across * kRows;
  const bool along_channels = !w.reversed;
  const int64_t rows_left = w.rows - r0, channels_left = w.channels - c0;

  // load, run by run: of a row's channels, or of a channel's rows
  const int64_t stride = along_channels ? w.row_stride : w.channel_stride;
  const int64_t outer_left = along_channels ? rows_left : channels_left;
  const int64_t inner_left = (along_channels ? channels_left : rows_left) * w.taps;
  const int run = static_cast<int>(w.by_run.divisor);
  const T* runs = static_cast<const T*>(w.from) + r0 * w.row_stride + c0 * w.channel_stride;
#pragma unroll 4
  for (int i = threadIdx.x; i < kRows * kAcross * w.taps; i += kArrangeThreads) {
    const int outer = w.by_run.quotient_as(static_cast<uint32_t>(i)), inner = i - outer * run;
    const bool inside = outer < outer_left && inner < inner_left;
    int to = i;
    if (!along_channels) {
      const int r = w.by_taps.quotient_as(static_cast<uint32_t>(inner));
      to = (r * kAcross + outer) * w.taps + inner - r * w.taps;
    }
    shared[to] = inside ? runs[outer * stride + inner] : from_float<T>(0.0f);
  }
  __syncthreads();

  // store
  const int c = 2 * (static_cast<int>(threadIdx.x) % (kAcross / 2));
  if (c0 + c >= w.pitch) return;
  for (int line = static_cast<int>(threadIdx.x) / (kAcross / 2); line < kRows * w.taps;
       line += kArrangeThreads / (kAcross / 2)) {
    const int r = line % kRows, tap = line / kRows, from = w.reversed ? w.taps - 1 - tap : tap;
    if (r0 + r >= w.rows) continue;
    const T* values = shared + (r * kAcross + c) * w.taps + from;
    store_planes<T>(w.to, (tap * w.rows + r0 + r) * w.pitch + c0 + c, w.taps * w.rows * w.pitch, values[0],
                    values[w.taps]);
  }
}

template <class T>
__global__ void __launch_bounds__(kArrangeThreads)
    conv1d_arrange_kernel(const SignalLines first, const SignalLines second, const WeightLines weight) {
  start_early();
  constexpr int kSignal = kAcross * (kPositions + 2), kWeight = kRows * kAcross * kMostTaps;
  __shared__ T shared[kSignal > kWeight ? kSignal : kWeight];
  int64_t tile = blockIdx.x;
  if (tile < first.tiles) return arrange_signal<T>(first, tile, shared);
  tile -= first.tiles;
  if (tile < second.tiles) return arrange_signal<T>(second, tile, shared);
  arrange_weight<T>(weight, tile - second.tiles, shared);
}

}  // namespace

void arrange(const SignalLines& first, const SignalLines& second, const WeightLines& weight, Dtype dtype,
             cudaStream_t stream) {
  const int64_t tiles = first.tiles + second.tiles + weight.tiles;
  const LaunchConfig config{.grid = static_cast<unsigned>(tiles), .block = kArrangeThreads, .early = true};
  const auto start = [&]<class T>() {
    warpsmith::launch<&conv1d_arrange_kernel<T>>(config, stream, first, second, weight);
  };
  // what has 16 bits is only moved
  dtype == Dtype::f32 ? start.template operator()<float>() : start.template operator()<f16>();
}

}  // namespace warpsmith
