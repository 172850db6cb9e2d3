// A warp's share of a tile, multiplied by mma.sync from operands in shared memory.
#pragma once

#include <cstdint>
#include <type_traits>

#include "device/ptx/mma.h"
#include "device/warp.h"
#include "tile/operand_tile.h"

namespace warpsmith {

/* The 16 x 8 sums of one mma over the lanes of a warp: lane l = 4 g + t holds, as pair(0) and pair(1),

               columns 2 t, 2 t + 1
     row g     pair(0)
     row g + 8 pair(1)
*/
template <class T, class Acc>
struct MmaSum {
  static_assert(std::is_same_v<Acc, float> && sizeof(T) == 2, "f32 of 16-bit operands, or one of those below");
  float value[4] = {};

  __device__ __forceinline__ void add(const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    ptx::mma_m16n8k16<T>(value, a, b);
  }
  __device__ __forceinline__ float2 pair(int half) const { return {value[2 * half], value[2 * half + 1]}; }
};

template <>
struct MmaSum<f16, f16> {
  uint32_t value[2] = {};

  __device__ __forceinline__ void add(const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    ptx::mma_m16n8k16_f16(value, a, b);
  }
  __device__ __forceinline__ float2 pair(int half) const {
    return __half22float2(reinterpret_cast<const __half2&>(value[half]));
  }
};

// 8-bit operands: m16n8k32, whose fragments are those of m16n8k16 for pairs of values.
template <>
struct MmaSum<e4m3, float> {
  float value[4] = {};

  __device__ __forceinline__ void add(const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    ptx::mma_m16n8k32_e4m3(value, a, b);
  }
  __device__ __forceinline__ float2 pair(int half) const { return {value[2 * half], value[2 * half + 1]}; }
};

template <>
struct MmaSum<e5m2, float> {
  float value[4] = {};

  __device__ __forceinline__ void add(const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    ptx::mma_m16n8k32_e5m2(value, a, b);
  }
  __device__ __forceinline__ float2 pair(int half) const { return {value[2 * half], value[2 * half + 1]}; }
};

template <>
struct MmaSum<int8_t, int32_t> {
  int32_t value[4] = {};

  __device__ __forceinline__ void add(const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    ptx::mma_m16n8k32_s8(value, a, b);
  }
  __device__ __forceinline__ float2 pair(int half) const {
    return {static_cast<float>(value[2 * half]), static_cast<float>(value[2 * half + 1])};
  }
};

// Reads 16 x 16 values of an operand as mma wants them: of a, m before k; of b, k before n, two columns of mma tiles.
enum class Side { a, b };

template <Side side, class Tile>
class FragmentReader {
 public:
  // `mn`: where the warp's share starts in the tile. `thread`: thread_again() where what follows from it would take
  // registers through a main loop.
  __device__ __forceinline__ explicit FragmentReader(int mn, int thread = static_cast<int>(threadIdx.x)) {
    const int lane = thread % kWarp, low = lane % 8, middle = lane & 8, high = lane / 16 * 8;
    if constexpr (Tile::along == Along::k) {
      first_ = side == Side::a ? Tile::at(mn + low + middle, high) : Tile::at(mn + low + high, middle);
    } else {
      first_ = side == Side::a ? Tile::at(low + high, mn + middle) : Tile::at(low + middle, mn + high);
    }
  }

  // The values at mn, k of the warp's share, both multiples of 16.
  template <class T>
  __device__ __forceinline__ void read(uint32_t (&to)[4], const T* tile, int mn, int k) const {
    if constexpr (Tile::along == Along::k) {
      ptx::ldmatrix(to, tile + Tile::moved(first_, mn, k));
    } else {
      ptx::ldmatrix_trans(to, tile + Tile::moved(first_, k, mn));
    }
  }

 private:
  int first_;  // index in the tile of the chunk that this lane names for the values at 0, 0
};

// The operands of one step of 16 along k, in registers.
template <int wm, int wn>
struct Fragments {
  static_assert(wm % 16 == 0 && wn % 16 == 0, "whole reads");
  uint32_t a[wm / 16][4], b[wn / 8][2];

  template <class T, class ReadA, class ReadB>
  __device__ __forceinline__ void read(const ReadA& read_a, const T* tile_a, const ReadB& read_b, const T* tile_b,
                                       int k) {
#pragma unroll
    for (int i = 0; i < wm / 16; ++i) read_a.read(a[i], tile_a, 16 * i, k);
#pragma unroll
    for (int j = 0; j < wn / 16; ++j) {
      uint32_t both[4];
      read_b.read(both, tile_b, 16 * j, k);
      b[2 * j][0] = both[0];
      b[2 * j][1] = both[1];
      b[2 * j + 1][0] = both[2];
      b[2 * j + 1][1] = both[3];
    }
  }
};

template <class T, class Acc, class Tile>
struct WarpSums {
  static constexpr int wm = Share<Tile>::wm, wn = Share<Tile>::wn;
  MmaSum<T, Acc> sums[wm / 16][wn / 8];

  // Back and forth along n, so that each mma shares an operand with the one before.
  __device__ __forceinline__ void add(const Fragments<wm, wn>& x) {
#pragma unroll
    for (int i = 0; i < wm / 16; ++i) {
#pragma unroll
      for (int step = 0; step < wn / 8; ++step) {
        const int j = i % 2 == 0 ? step : wn / 8 - 1 - step;
        sums[i][j].add(x.a[i], x.b[j]);
      }
    }
  }
};

// The warp's share of the block's tile: where it starts.
template <class Tile>
struct WarpPlace {
  int m, n;
  __device__ __forceinline__ explicit WarpPlace(int thread = static_cast<int>(threadIdx.x)) {
    const int warp = thread / kWarp;
    m = warp % Tile::warps_m * Share<Tile>::wm;
    n = warp / Tile::warps_m * Share<Tile>::wn;
  }
};

}  // namespace warpsmith
