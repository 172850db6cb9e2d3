// Quantisation of what stays in registers, read once: rows, groups of 128 values, tiles of 128 x 128.
#pragma once

#include "device/fast_divide.h"
#include "device/start_early.h"
#include "host/launch.h"
#include "host/tiles.h"
#include "quantize/quantize/held.cuh"
#include "row/registers.cuh"

namespace warpsmith {

// Rows up to 64 KiB.
struct QuantizeTiles {
  static constexpr RowTile tiles[] = {
      {.threads = 128, .lanes = 32, .packs = 2, .min_blocks = 10},
      {.threads = 256, .packs = 2, .min_blocks = 6},
      {.threads = 512, .packs = 2, .min_blocks = 3},
      {.threads = 512, .packs = 4, .min_blocks = 3},
      {.threads = 1024, .packs = 4, .min_blocks = 1},
  };
};
// Values in f32 take twice the registers.
struct QuantizeFloatTiles {
  static constexpr RowTile tiles[] = {
      {.threads = 128, .lanes = 32, .packs = 2, .min_blocks = 10},
      {.threads = 256, .packs = 2, .min_blocks = 6},
      {.threads = 512, .packs = 2, .min_blocks = 3},
      {.threads = 512, .packs = 4, .min_blocks = 2},
      {.threads = 1024, .packs = 4, .min_blocks = 1},
  };
};
// Weights are read when the row has come: what waits for them has many packs on their way.
struct QuantizeWeighedTiles {
  static constexpr RowTile tiles[] = {
      {.threads = 128, .lanes = 32, .packs = 2, .min_blocks = 10},
      {.threads = 128, .packs = 4, .min_blocks = 8},
      {.threads = 256, .packs = 4, .min_blocks = 4},
      {.threads = 512, .packs = 4, .min_blocks = 2},
      {.threads = 1024, .packs = 4, .min_blocks = 1},
  };
};
template <class Source>
using QuantizeRowTiles =
    TilesOf<std::conditional_t<Source::kNorm, QuantizeWeighedTiles,
                               std::conditional_t<std::is_same_v<Source, PlainValues<typename Source::Value>>,
                                                  QuantizeTiles, QuantizeFloatTiles>>>;
inline constexpr int64_t kMostQuantizedBytes = 64 * 1024;
static_assert(kMostQuantizedBytes == 16 * kMostRowPacks<TilesOf<QuantizeTiles>>);
static_assert(kMostQuantizedBytes == 16 * kMostRowPacks<TilesOf<QuantizeFloatTiles>>);
static_assert(kMostQuantizedBytes == 16 * kMostRowPacks<TilesOf<QuantizeWeighedTiles>>);

// A row per block, or per warp. Groups of 128 have scales of their own only of a norm, which has to see the whole row first.
template <class Source, class Tile>
__global__ void __launch_bounds__(Tile::shape.threads, detail::resident_blocks(Tile::shape))
    quantize_registers_kernel(const QuantizeArgs a) {
  constexpr RowTile tile = Tile::shape;
  constexpr int kWidth = kPack<typename Source::Value>, kSharers = kGroup / kWidth;
  constexpr bool kAlone = tile.lanes == kWarp;
  __shared__ float sums[kWarp];
  __shared__ uint32_t mosts[kWarp];
  start_early();
  const int lanes = kAlone ? kWarp : blockDim.x, lane = kAlone ? threadIdx.x % kWarp : threadIdx.x;
  const int64_t at = kAlone ? int64_t{blockIdx.x} * tile.rows_per_block() + threadIdx.x / kWarp : blockIdx.x;
  const int64_t row = kAlone ? min(at, a.rows - 1) : at;  // every lane takes part in the shuffles
  const HeldPacks own{.first = lane, .step = lanes, .count = static_cast<int>(a.cols) / kWidth};
  Held<Source, tile.packs> held;
  held.read(a, row, own);
  float y[kWidth];

  // gather
  float squares = 0.0f;
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < tile.packs; ++i) {
    if constexpr (Source::kNorm) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) squares = fmaf(held.y[i][j], held.y[i][j], squares);
      if (own.has(i)) Source::weigh(held.y[i], a, own.at(i) * kWidth);
    }
    held.values(y, i);
    most = most_bits(y, most);
  }
  if constexpr (Source::kNorm) squares = warp_reduce(squares);
  most = warp_reduce(most, MostBits{});
  if constexpr (!kAlone) {
    const int warps = lanes / kWarp, in_warp = threadIdx.x % kWarp;
    if (in_warp == 0) {
      sums[threadIdx.x / kWarp] = squares;
      mosts[threadIdx.x / kWarp] = most;
    }
    __syncthreads();
    if constexpr (Source::kNorm) squares = warp_reduce(in_warp < warps ? sums[in_warp] : 0.0f);
    most = warp_reduce(in_warp < warps ? mosts[in_warp] : 0u, MostBits{});
  }
  float root = 1.0f;
  if constexpr (Source::kNorm) root = Source::root(squares, a);
  const bool writes = !kAlone || at < a.rows;

  // write
  void* const codes = static_cast<char*>(a.q) + row * a.cols;
  const auto finish = [&](int i, float inverse) {
    if constexpr (Source::kNorm) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) y[j] *= root;
    }
    store_codes(codes, own.at(i) * kWidth, y, inverse, a.q_dtype);
  };
  if (Source::kNorm && a.sharers == Sharers::group) {
#pragma unroll
    for (int i = 0; i < tile.packs; ++i) {
      held.values(y, i);
      const uint32_t of_group = warp_reduce<kSharers>(most_bits(y), MostBits{});
      const float scale = scale_of(__uint_as_float(of_group) * root, a.q_dtype);
      if (!writes || !own.has(i)) continue;
      finish(i, 1.0f / scale);
      if (own.at(i) % kSharers == 0) a.scale[row * (own.count / kSharers) + own.at(i) / kSharers] = scale;
    }
    return;
  }
  const float scale = scale_of(__uint_as_float(most) * root, a.q_dtype), inverse = 1.0f / scale;
  if (!writes) return;
  if (lane == 0) a.scale[row] = scale;
#pragma unroll
  for (int i = 0; i < tile.packs; ++i) {
    if (!own.has(i)) continue;
    held.values(y, i);
    finish(i, inverse);
  }
}

inline constexpr int kGroupThreads = 256;

// A thread has one pack, 128 values are those of neighbouring lanes.
template <class Source>
__global__ void __launch_bounds__(kGroupThreads) quantize_groups_kernel(const QuantizeArgs a, const FastDivide in_row) {
  constexpr int kWidth = kPack<typename Source::Value>, kSharers = kGroup / kWidth;
  start_early();
  const uint32_t packs = static_cast<uint32_t>(a.cols) / kWidth, total = static_cast<uint32_t>(a.rows) * packs;
  const uint32_t at = blockIdx.x * kGroupThreads + threadIdx.x;
  const bool within = at < total;
  const uint32_t row = in_row.small_quotient(within ? at : 0), pack = at - row * packs;
  float y[kWidth] = {};
  if (within) Source::read(y, a, row, pack * kWidth);
  const uint32_t most = warp_reduce<kSharers>(most_bits(y), MostBits{});
  if (!within) return;
  const float scale = scale_of(most, a.q_dtype), inverse = 1.0f / scale;
  store_codes(a.q, int64_t{at} * kWidth, y, inverse, a.q_dtype);
  if (at % kSharers == 0) a.scale[at / kSharers] = scale;
}

template <class T>
inline constexpr int kBlockThreads = kGroup * kGroup / kPack<T> / 8;  // eight packs a thread

// A tile of 128 x 128 values in the registers of a block.
template <class T>
__global__ void __launch_bounds__(kBlockThreads<T>)
    quantize_block_kernel(const QuantizeArgs a, const FastDivide across) {
  constexpr int kThreads = kBlockThreads<T>, kWidth = kPack<T>, kPacks = 8, kAcross = kGroup / kWidth;
  constexpr int kWarps = kThreads / kWarp;
  __shared__ uint32_t mosts[kWarps];
  start_early();
  const uint32_t down = across.small_quotient(blockIdx.x);
  const int64_t first = int64_t{down} * kGroup;
  const int64_t col =
      int64_t{blockIdx.x - down * static_cast<uint32_t>(across.divisor)} * kGroup + threadIdx.x % kAcross * kWidth;
  const auto row = [&](int i) { return first + (i * kThreads + threadIdx.x) / kAcross; };
  Pack<T> x[kPacks];
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    reinterpret_cast<uint4&>(x[i]) = {0, 0, 0, 0};
    if (row(i) < a.rows && col < a.cols) load(x[i], static_cast<const T*>(a.x) + row(i) * a.x_stride + col);
  }
  uint32_t most = 0;
  float y[kWidth];
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    to_float(y, x[i]);
    most = most_bits(y, most);
  }
  most = warp_reduce(most, MostBits{});
  const int in_warp = threadIdx.x % kWarp;
  if (in_warp == 0) mosts[threadIdx.x / kWarp] = most;
  __syncthreads();
  most = warp_reduce(in_warp < kWarps ? mosts[in_warp] : 0u, MostBits{});
  const float scale = scale_of(most, a.q_dtype), inverse = 1.0f / scale;
  if (threadIdx.x == 0) a.scale[blockIdx.x] = scale;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    keep_packed(x[i]);
    to_float(y, x[i]);
    if (row(i) < a.rows && col < a.cols) store_codes(a.q, row(i) * a.cols + col, y, inverse, a.q_dtype);
  }
}

// The rows of a call, through the first tile that holds one.
template <class Source>
void launch_rows(const QuantizeArgs& a, cudaStream_t stream) {
  const int64_t packs = a.cols / kPack<typename Source::Value>;
  with_first_tile(QuantizeRowTiles<Source>{}, packs, [&]<class Tile>() {
    constexpr RowTile tile = Tile::shape;
    const unsigned threads = tile.lanes > 0 ? tile.threads : tile.sharers(packs);
    const auto grid = static_cast<unsigned>((a.rows + tile.rows_per_block() - 1) / tile.rows_per_block());
    launch<&quantize_registers_kernel<Source, Tile>>({.grid = grid, .block = threads, .early = true}, stream, a);
  });
}

template <class Source>
void launch_groups(const QuantizeArgs& a, cudaStream_t stream) {
  const int64_t in_row = a.cols / kPack<typename Source::Value>;
  const auto grid = static_cast<unsigned>((a.rows * in_row + kGroupThreads - 1) / kGroupThreads);
  launch<&quantize_groups_kernel<Source>>({.grid = grid, .block = kGroupThreads, .early = true}, stream, a,
                                          FastDivide(static_cast<uint64_t>(in_row)));
}

// Each defined in a file of its own.
void launch_rms_rows(const QuantizeArgs& a, cudaStream_t stream);
void launch_silu_rows(const QuantizeArgs& a, cudaStream_t stream);

}  // namespace warpsmith
