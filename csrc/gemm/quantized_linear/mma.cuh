// Packed weights through a ring of asynchronous copies, widened in registers on their way to mma.sync as its first operand.
//
// A block has 128 rows of weights and `bm` rows of x; a warp 32 of the former, which it alone widens where there is one
// group of warps. Products with codes less their zeros are summed in f32 for each group of k, then multiplied by the
// group's scale: weights are never rounded. Slices of k leave partial sums, which a second launch adds up in their order.
#pragma once

#include "device/block_order.h"
#include "device/pipeline.h"
#include "device/ptx/copy.h"
#include "device/start_early.h"
#include "device/vec.h"
#include "gemm/quantized_linear/quantized_linear.h"
#include "gemm/quantized_linear/weights.cuh"
#include "host/launch.h"
#include "tile/warp_mma.cuh"

namespace warpsmith {

template <class T_, int bits_, int bm_, int stages_>
struct QuantizedTile {
  using T = T_;
  static constexpr int bits = bits_, bm = bm_, stages = stages_;
  static constexpr int bn = kQuantizedTileN, bk = kUnit;
  static constexpr int warps_n = 4, warps_m = bm > 64 ? 2 : 1, threads = kWarp * warps_n * warps_m;
  static constexpr int wn = bn / warps_n, wm = bm / warps_m;
  static constexpr int min_blocks = bm == 16 ? 4 : bm == 32 ? 3 : bm == 64 ? 2 : 1;
  static constexpr int unit_words = kUnit * kUnit * bits / 32;
  static constexpr int most_groups = bk / 32;  // that a step of k touches

  // A stage of the ring, in bytes from its beginning.
  static constexpr int x_at = bn / kUnit * unit_words * 4;  // behind the weights
  static constexpr int scales_at = x_at + bm * bk * static_cast<int>(sizeof(T));
  static constexpr int zeros_at = scales_at + most_groups * bn * static_cast<int>(sizeof(T));
  static constexpr int stage_bytes = zeros_at + most_groups * bn;
  static constexpr int bytes = stages * stage_bytes;

  // The results of the block on their way out take the place of the ring. [bm, out_stride]
  static constexpr int out_stride = bn + 8;
  static_assert(bm * out_stride * static_cast<int>(sizeof(T)) <= bytes);
  static_assert(bytes <= kSharedOfSm89);
};

template <class Tile>
class QuantizedProduct {
  using T = typename Tile::T;
  static constexpr int kRowTiles = Tile::wn / 16, kColumnTiles = Tile::wm / 8;

 public:
  __device__ QuantizedProduct(const QuantizedLinearArgs& args, unsigned char* ring, TileCoord tile, int64_t first,
                              int64_t end)
      : a(args),
        ring_(ring),
        m0(tile.m * Tile::bm),
        n0(tile.n * Tile::bn),
        first_(first),
        end_(end),
        unscaled_(args.groups == 1 && end - first < args.k) {}

  __device__ __forceinline__ void run() {
    const int steps = static_cast<int>((end_ - first_ + Tile::bk - 1) / Tile::bk);
    RingSlot<Tile::stages> filled, read;
#pragma unroll
    for (int step = 0; step < Tile::stages - 1; ++step, filled.advance()) {
      if (step < steps) copy(filled.slot, step);
      ptx::cp_async_commit();
    }
    for (int step = 0; step < steps; ++step, filled.advance(), read.advance()) {
      ptx::cp_async_wait<Tile::stages - 2>();
      __syncthreads();  // all copies of the step are there, and the slot of the one before is read
      if (const int next = step + Tile::stages - 1; next < steps) copy(filled.slot, next);
      ptx::cp_async_commit();
      multiply(read.slot, first_ + int64_t{step} * Tile::bk);
    }
    if (a.groups == 1 && steps > 0) promote(0, (read.slot + Tile::stages - 1) % Tile::stages);
    ptx::cp_async_wait<0>();
  }

  // f32, [m, n].
  __device__ __forceinline__ void store_partial(float* to) const {
    each([&](int row, int col, float value) {
      if (m0 + row < a.m && n0 + col < a.n) to[(m0 + row) * a.n + n0 + col] = value;
    });
  }

  __device__ __forceinline__ void store_result() {
    __syncthreads();  // the ring is read
    T* out = reinterpret_cast<T*>(ring_);
    const T* bias = static_cast<const T*>(a.bias);
    each([&](int row, int col, float value) {
      if (bias != nullptr && n0 + col < a.n) value += to_float(bias[n0 + col]);
      out[row * Tile::out_stride + col] = from_float<T>(value);
    });
    __syncthreads();
    constexpr int kAcross = Tile::bn / 8;
    for (int i = threadIdx.x; i < Tile::bm * kAcross; i += Tile::threads) {
      const int row = i / kAcross, col = i % kAcross * 8;
      if (m0 + row >= a.m || n0 + col >= a.n) continue;
      Pack<T> pack;
      load(pack, out + row * Tile::out_stride + col);
      store(static_cast<T*>(a.d) + (m0 + row) * a.n + n0 + col, pack);
    }
  }

 private:
  __device__ __forceinline__ unsigned char* stage(int slot) const { return ring_ + slot * Tile::stage_bytes; }

  __device__ __forceinline__ void copy(int slot, int step) const {
    const int64_t k0 = first_ + int64_t{step} * Tile::bk, units = (a.k + kUnit - 1) / kUnit;
    const int tid = static_cast<int>(threadIdx.x);
    unsigned char* to = stage(slot);

    constexpr int kUnitPacks = Tile::unit_words / 4, kWeightPacks = Tile::bn / kUnit * kUnitPacks;
    uint4* words = reinterpret_cast<uint4*>(to);
    const int64_t unit_rows = (a.n + kUnit - 1) / kUnit;
#pragma unroll
    for (int i = 0; i < kWeightPacks / Tile::threads; ++i) {
      const int pack = i * Tile::threads + tid;
      const int64_t unit_row = n0 / kUnit + pack / kUnitPacks;
      const int64_t unit = unit_row * units + k0 / kUnit;
      ptx::cp_async_zfill(words + pack, reinterpret_cast<const uint4*>(a.words) + unit * kUnitPacks + pack % kUnitPacks,
                          unit_row < unit_rows);
    }

    constexpr int kAcross = Tile::bk / 8, kPacks = Tile::bm * kAcross;
    uint4* x = reinterpret_cast<uint4*>(to + Tile::x_at);
#pragma unroll
    for (int i = 0; i < (kPacks + Tile::threads - 1) / Tile::threads; ++i) {
      const int pack = i * Tile::threads + tid, row = pack / kAcross, chunk = pack % kAcross;
      const int64_t col = k0 + chunk * 8;
      const T* from = static_cast<const T*>(a.x) + (m0 + row) * a.x_stride + col;
      if (kPacks % Tile::threads == 0 || pack < kPacks) {
        ptx::cp_async_zfill(x + row * kAcross + (chunk ^ (row & 7)), reinterpret_cast<const uint4*>(from),
                            m0 + row < a.m && col < a.k);
      }
    }

    // scales and zeros of the groups of this step, a thread for 8 columns of a group
    constexpr int kColumnPacks = Tile::bn / 8;
    if (tid < Tile::most_groups * kColumnPacks) {
      const int of = tid / kColumnPacks, col = tid % kColumnPacks * 8;
      const int64_t group = a.groups == 1 ? of : (k0 >> group_shift(a.group)) + of;
      const int64_t from = group * a.n + n0 + col;
      const bool there = group < a.groups && n0 + col < a.n;
      ptx::cp_async_zfill(reinterpret_cast<uint4*>(to + Tile::scales_at) + tid,
                          reinterpret_cast<const uint4*>(static_cast<const T*>(a.scales) + from), there);
      if (a.zeros != nullptr) {
        ptx::cp_async_zfill(reinterpret_cast<uint2*>(to + Tile::zeros_at) + tid,
                            reinterpret_cast<const uint2*>(a.zeros + from), there);
      }
    }
  }

  // Of groups of 32, 64 or 128, where there are several. In a step of the loop a division would take longer than all else.
  __device__ __forceinline__ bool begins_group(int64_t k) const {
    return (static_cast<uint32_t>(k) & (static_cast<uint32_t>(a.group) - 1)) == 0;
  }

  // The zeros of group `of` of a stage, as they are subtracted.
  __device__ __forceinline__ void read_zeros(int of, int slot) {
    if constexpr (Tile::bits == 4) {
      const int lane = threadIdx.x % kWarp;
      const int8_t* zeros = reinterpret_cast<const int8_t*>(stage(slot) + Tile::zeros_at) + of * Tile::bn;
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int zero = a.zeros != nullptr ? zeros[warp_n() + 16 * i + 8 * half + lane / 4] : 8;
          zeros_[i][half] = zero_pair<T>(zero);
        }
      }
    }
  }

  // The sums of a group, by its scales, join the others.
  __device__ __forceinline__ void promote(int of, int slot) {
    const int lane = threadIdx.x % kWarp;
    const T* scales = reinterpret_cast<const T*>(stage(slot) + Tile::scales_at) + of * Tile::bn;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float scale = unscaled_ ? 1.0f : to_float(scales[warp_n() + 16 * i + 8 * half + lane / 4]);
#pragma unroll
        for (int j = 0; j < kColumnTiles; ++j) {
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            total_[i][j][e] = fmaf(part_[i][j].value[e], scale, total_[i][j][e]);
            part_[i][j].value[e] = 0.0f;
          }
        }
      }
    }
  }

  __device__ __forceinline__ void multiply(int slot, int64_t k0) {
    const int lane = threadIdx.x % kWarp;
    const int64_t k1 = k0 + Tile::bk;
    const bool small = a.group == 32 && a.groups > 1;
    const uint32_t* words = reinterpret_cast<const uint32_t*>(stage(slot)) + warp_n() / kUnit * Tile::unit_words +
                            warp_n() % kUnit / 16 * (Tile::unit_words / 4) + 4 * lane;
    if (k0 == first_ || (a.groups > 1 && begins_group(k0))) read_zeros(0, slot);
    uint4 packed[kRowTiles];
#pragma unroll
    for (int fragment = 0; fragment < Tile::bk / 16; ++fragment) {
      constexpr int kEach = 16 / Tile::bits;  // fragments of a lane's four words
      if (fragment % kEach == 0) {
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
          packed[i] = *reinterpret_cast<const uint4*>(words + i * (Tile::unit_words / 4) + fragment / kEach * 128);
        }
      }
      uint32_t weights[kRowTiles][4], x[kColumnTiles][2];
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
        const uint32_t word[4] = {packed[i].x, packed[i].y, packed[i].z, packed[i].w};
        if constexpr (Tile::bits == 4) {
          fragment_of_4_bits<T>(weights[i], word[fragment], zeros_[i]);
        } else {
          fragment_of_8_bits<T>(weights[i], word[fragment % 2 * 2], word[fragment % 2 * 2 + 1]);
        }
      }
      read_x(x, slot, fragment);
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j) {
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) part_[i][j].add(weights[i], x[j]);
      }
      if (fragment == 1 && small) {
        promote(0, slot);
        read_zeros(1, slot);
      }
    }
    if (small) {
      promote(1, slot);
    } else if (a.groups > 1 && (begins_group(k1) || k1 >= end_)) {
      promote(0, slot);
    }
  }

  // The warp's rows of x, columns 16 `fragment` and on, as the second operand.
  __device__ __forceinline__ void read_x(uint32_t (&to)[kColumnTiles][2], int slot, int fragment) const {
    const int lane = threadIdx.x % kWarp;
    const uint4* x = reinterpret_cast<const uint4*>(stage(slot) + Tile::x_at);
#pragma unroll
    for (int j = 0; j < kColumnTiles; j += 2) {
      const int row = warp_m() + 8 * j + lane / 16 * 8 + lane % 8, chunk = 2 * fragment + lane / 8 % 2;
      uint32_t both[4];
      ptx::ldmatrix(both, x + row * (Tile::bk / 8) + (chunk ^ (row & 7)));
      to[j][0] = both[0];
      to[j][1] = both[1];
      to[j + 1][0] = both[2];
      to[j + 1][1] = both[3];
    }
  }

  __device__ __forceinline__ int warp_n() const {
    return static_cast<int>(threadIdx.x) / kWarp % Tile::warps_n * Tile::wn;
  }
  __device__ __forceinline__ int warp_m() const {
    return static_cast<int>(threadIdx.x) / kWarp / Tile::warps_n * Tile::wm;
  }

  // body(row, column, value) of this thread's results in the block's tile.
  template <class Body>
  __device__ __forceinline__ void each(Body&& body) const {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          body(warp_m() + 8 * j + lane % 4 * 2 + e % 2, warp_n() + 16 * i + e / 2 * 8 + lane / 4, total_[i][j][e]);
        }
      }
    }
  }

  const QuantizedLinearArgs& a;
  unsigned char* ring_;
  int64_t m0, n0, first_, end_;
  bool unscaled_;  // a slice of a group that is all of k: the scale follows when all slices are there
  uint32_t zeros_[kRowTiles][2]{};
  MmaSum<T, float> part_[kRowTiles][kColumnTiles];
  float total_[kRowTiles][kColumnTiles][4]{};
};

// A band of rows of tiles is walked column by column.
template <class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::min_blocks)
    quantized_linear_mma_kernel(const QuantizedLinearArgs a, const Split split) {
  constexpr int kBand = 16;
  extern __shared__ uint4 quantized_ring[];
  start_early();
  const int64_t tiles_m = (a.m + Tile::bm - 1) / Tile::bm, tiles_n = (a.n + Tile::bn - 1) / Tile::bn;
  const uint32_t tiles = static_cast<uint32_t>(tiles_m * tiles_n), slice = blockIdx.x / tiles;
  const TileCoord tile = grouped_tile(blockIdx.x % tiles, tiles_m, tiles_n, kBand);
  const int64_t first = slice * split.depth, end = min(first + split.depth, a.k);
  QuantizedProduct<Tile> product(a, reinterpret_cast<unsigned char*>(quantized_ring), tile, first, end);
  product.run();
  if (split.count > 1) {
    product.store_partial(a.partial + slice * a.m * a.n);
  } else {
    product.store_result();
  }
}

template <class Tile>
void launch_quantized_tile(const QuantizedLinearArgs& a, cudaStream_t stream) {
  const Split split = quantized_split(a);
  const int64_t tiles = ceil_div(a.m, Tile::bm) * ceil_div(a.n, Tile::bn);
  const LaunchConfig config{.grid = static_cast<unsigned>(tiles * split.count),
                            .block = static_cast<unsigned>(Tile::threads),
                            .dynamic_smem = Tile::bytes,
                            .early = true};
  launch<&quantized_linear_mma_kernel<Tile>>(config, stream, a, split);
}

// By the tile for the rows of the call. Defined in a file for each dtype and number of bits.
template <class T, int bits>
void launch_quantized_mma(const QuantizedLinearArgs& a, cudaStream_t stream);

}  // namespace warpsmith
