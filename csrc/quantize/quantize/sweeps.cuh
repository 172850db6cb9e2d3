// Quantisation in two sweeps over what shares a scale: the largest magnitude, then the codes. `n` values an access.
#pragma once

#include "device/block.h"
#include "host/launch.h"
#include "quantize/quantize/values.cuh"

namespace warpsmith {

inline constexpr int kSweepThreads = 256;

// n values of a row, weighed and multiplied by `root`, as codes.
template <class Source, int n>
__device__ __forceinline__ void finish_values(const QuantizeArgs& a, int64_t row, int64_t col, float root,
                                              float inverse) {
  float y[n];
  Source::read(y, a, row, col);
  Source::weigh(y, a, col);
  if constexpr (Source::kNorm) {
#pragma unroll
    for (int i = 0; i < n; ++i) y[i] *= root;
  }
  store_codes(a.q, row * a.cols + col, y, inverse, a.q_dtype);
}

// A block per row. Where groups share scales, each is a warp's.
template <class Source, int n, bool groups>
__global__ void __launch_bounds__(kSweepThreads) quantize_rows_kernel(const QuantizeArgs a) {
  constexpr int kStep = kSweepThreads * n, kWarps = kSweepThreads / kWarp;
  __shared__ BlockReduceStorage<float, kSweepThreads> sums;
  __shared__ BlockReduceStorage<uint32_t, kSweepThreads> mosts;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    // gather
    float squares = 0.0f;
    uint32_t most = 0;
    if (Source::kNorm || !groups) {
      for (int64_t col = int64_t{threadIdx.x} * n; col < a.cols; col += kStep) {
        float y[n];
        Source::read(y, a, row, col);
        if constexpr (Source::kNorm) {
#pragma unroll
          for (int i = 0; i < n; ++i) squares = fmaf(y[i], y[i], squares);
        }
        Source::weigh(y, a, col);
        most = most_bits(y, most);
      }
    }
    float root = 1.0f;
    if constexpr (!groups) most = block_reduce<kSweepThreads>(most, mosts, MostBits{});
    if constexpr (Source::kNorm) root = Source::root(block_reduce<kSweepThreads>(squares, sums), a);

    // write
    if constexpr (!groups) {
      const float amax = __uint_as_float(most) * root;
      const float scale = scale_of(amax, a.q_dtype), inverse = 1.0f / scale;
      if (threadIdx.x == 0) a.scale[row] = scale;
      for (int64_t col = int64_t{threadIdx.x} * n; col < a.cols; col += kStep) {
        finish_values<Source, n>(a, row, col, root, inverse);
      }
    } else {
      const int in_row = static_cast<int>((a.cols + kGroup - 1) / kGroup);
      for (int group = warp; group < in_row; group += kWarps) {
        const int64_t first = int64_t{group} * kGroup;
        const int count = static_cast<int>(min(a.cols - first, int64_t{kGroup}));
        most = 0;
        for (int i = lane * n; i < count; i += kWarp * n) {
          float y[n];
          Source::read(y, a, row, first + i);
          Source::weigh(y, a, first + i);
          most = most_bits(y, most);
        }
        const float amax = __uint_as_float(warp_reduce(most, MostBits{})) * root;
        const float scale = scale_of(amax, a.q_dtype), inverse = 1.0f / scale;
        if (lane == 0) a.scale[row * in_row + group] = scale;
        for (int i = lane * n; i < count; i += kWarp * n) finish_values<Source, n>(a, row, first + i, root, inverse);
      }
    }
    __syncthreads();  // the next row overwrites the storage
  }
}

// A block per 128 x 128 values.
template <class Source, int n>
__global__ void __launch_bounds__(kSweepThreads) quantize_blocks_kernel(const QuantizeArgs a) {
  constexpr int kAcross = kGroup / n;  // accesses in a row of the tile
  __shared__ BlockReduceStorage<uint32_t, kSweepThreads> mosts;
  const int64_t across = (a.cols + kGroup - 1) / kGroup, blocks = across * ((a.rows + kGroup - 1) / kGroup);
  float y[n];
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const int64_t row = block / across * kGroup, col = block % across * kGroup;
    const auto each = [&](auto&& body) {
      for (int i = threadIdx.x; i < kGroup * kAcross; i += kSweepThreads) {
        const int64_t r = row + i / kAcross, c = col + i % kAcross * n;
        if (r < a.rows && c < a.cols) body(r, c);
      }
    };
    uint32_t most = 0;
    each([&](int64_t r, int64_t c) {
      Source::read(y, a, r, c);
      most = most_bits(y, most);
    });
    const float scale = scale_of(block_reduce<kSweepThreads>(most, mosts, MostBits{}), a.q_dtype);
    const float inverse = 1.0f / scale;
    if (threadIdx.x == 0) a.scale[block] = scale;
    each([&](int64_t r, int64_t c) {
      Source::read(y, a, r, c);
      store_codes(a.q, r * a.cols + c, y, inverse, a.q_dtype);
    });
    __syncthreads();  // the next tile overwrites the storage
  }
}

// Of a whole tensor, rows lie one behind the other.
template <class Source, int n>
__global__ void __launch_bounds__(kSweepThreads) quantize_amax_kernel(const QuantizeArgs a) {
  __shared__ BlockReduceStorage<uint32_t, kSweepThreads> mosts;
  const int64_t step = int64_t{gridDim.x} * kSweepThreads * n, count = a.rows * a.cols;
  float y[n];
  uint32_t most = 0;
  for (int64_t at = (int64_t{blockIdx.x} * kSweepThreads + threadIdx.x) * n; at < count; at += step) {
    Source::read(y, a, 0, at);
    most = most_bits(y, most);
  }
  most = block_reduce<kSweepThreads>(most, mosts, MostBits{});
  if (threadIdx.x == 0) a.partials[blockIdx.x] = most;
}

// Every block has the largest of all partial maxima.
template <class Source, int n>
__global__ void __launch_bounds__(kSweepThreads) quantize_tensor_kernel(const QuantizeArgs a, const int partials) {
  __shared__ BlockReduceStorage<uint32_t, kSweepThreads> mosts;
  uint32_t most = 0;
  for (int i = threadIdx.x; i < partials; i += kSweepThreads) most = MostBits{}(most, a.partials[i]);
  const float scale = scale_of(block_reduce<kSweepThreads>(most, mosts, MostBits{}), a.q_dtype);
  const float inverse = 1.0f / scale;
  if (blockIdx.x == 0 && threadIdx.x == 0) *a.scale = scale;
  // the last values that were looked at are the ones that L2 still has
  const int64_t step = int64_t{gridDim.x} * kSweepThreads * n, count = a.rows * a.cols;
  const int64_t first = (int64_t{blockIdx.x} * kSweepThreads + threadIdx.x) * n;
  float y[n];
  for (int64_t at = first < count ? first + (count - 1 - first) / step * step : -1; at >= 0; at -= step) {
    Source::read(y, a, 0, at);
    store_codes(a.q, at, y, inverse, a.q_dtype);
  }
}

template <class Source, int n>
void launch_sweeps(const QuantizeArgs& a, cudaStream_t stream) {
  const auto grid = [](int64_t blocks) { return row_grid(blocks); };
  switch (a.sharers) {
    case Sharers::row:
      return launch<&quantize_rows_kernel<Source, n, false>>({grid(a.rows), kSweepThreads}, stream, a);
    case Sharers::group:
      return launch<&quantize_rows_kernel<Source, n, true>>({grid(a.rows), kSweepThreads}, stream, a);
    default:
      break;
  }
  if constexpr (std::is_same_v<Source, PlainValues<typename Source::Value>>) {  // the others have rows
    if (a.sharers == Sharers::block) {
      const int64_t blocks = ((a.rows + kGroup - 1) / kGroup) * ((a.cols + kGroup - 1) / kGroup);
      return launch<&quantize_blocks_kernel<Source, n>>({grid(blocks), kSweepThreads}, stream, a);
    }
    constexpr int kEach = 4;  // accesses of a thread, at least
    const int64_t tiles = (a.rows * a.cols + kSweepThreads * kEach * n - 1) / (kSweepThreads * kEach * n);
    const int blocks = static_cast<int>(std::min<int64_t>(tiles, std::min(kMostPartials, 8 * a.sm_count)));
    launch<&quantize_amax_kernel<Source, n>>({static_cast<unsigned>(blocks), kSweepThreads}, stream, a);
    launch<&quantize_tensor_kernel<Source, n>>({static_cast<unsigned>(blocks), kSweepThreads}, stream, a, blocks);
  }
}

}  // namespace warpsmith
