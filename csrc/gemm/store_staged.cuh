// A warp's sums from the registers of mma.sync to the product, 16 bytes a store.
//   Lanes hold pairs of neighbours. Each warp puts its sums in order in a patch of shared memory of its own, and then
//   writes whole lines of memory. On the way from there, where a lane has eight neighbours at hand, sums are finished.
#pragma once

#include "device/convert.h"
#include "device/vec.h"
#include "gemm/epilogue.cuh"
#include "gemm/split.cuh"
#include "gemm/tile_origin.cuh"
#include "gemm/warp_mma.cuh"

namespace warpsmith {

// As many rows as are staged at once; eight more columns keep the rows that lanes write at once in different banks.
template <class Tile, int rows_ = 32>
struct StorePatch {
  static constexpr int wn = Share<Tile>::wn, rows = rows_, stride = wn + 8;
  static_assert(rows % 8 == 0 && Share<Tile>::wm % rows == 0, "whole passes");
  static constexpr int bytes = rows * stride * static_cast<int>(sizeof(float));
};

// Dynamic shared memory of a block that loads through a ring of Tile::stages, which the patches reuse.
template <class Tile, class Stage>
constexpr int ring_bytes() {
  constexpr int kRing = Tile::stages * static_cast<int>(sizeof(Stage));
  constexpr int kPatches = Share<Tile>::warps * StorePatch<Tile>::bytes;
  return kRing > kPatches ? kRing : kPatches;
}

// Where the sums go, and what becomes of them first.
enum class Finish {
  round,   // d = a b
  all,     // alpha, c and the activation
  partial  // f32 to the workspace, for split.cuh to add up
};

// Eight sums of one row, finished. c comes in one access where it can.
template <class T>
__device__ __forceinline__ void finish_pack(Vec<T, 8>& to, const GemmArgs& p, const float (&sums)[8], int64_t batch,
                                            int64_t row, int64_t col) {
  float values[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) values[i] = p.alpha * sums[i];
  if (p.c.data != nullptr) {
    const T* c = static_cast<const T*>(p.c.data) + batch * p.c.batch + row * p.c.row + col * p.c.col;
    Vec<T, 8> pack;
    if (p.c.col == 1 && reinterpret_cast<uintptr_t>(c) % sizeof(pack) == 0) {
      load(pack, c);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) pack[i] = c[i * p.c.col];
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = fmaf(p.beta, to_float(pack[i]), values[i]);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) values[i] = activate<false>(p.activation, values[i]);
  from_float(to, values);
}

// How the call finishes its sums.
__device__ __forceinline__ Finish finish_of(const GemmArgs& p, const Split& split) {
  if (split.count > 1) return Finish::partial;
  const bool alone = p.c.data == nullptr && p.alpha == 1.0f && p.activation == Activation::none;
  return alone ? Finish::round : Finish::all;
}

// Stores the warp's sums of the block's tile and its slice of k, blockIdx.y. They pass through `patches`, a StorePatch for
// each warp in shared memory that nobody else uses any longer.
template <int rows = 32, class T, class Acc, class Tile>
__device__ __forceinline__ void store_staged(const GemmArgs& p, const Split& split, const WarpSums<T, Acc, Tile>& warp,
                                             void* patches, const Place<Tile>& block, const WarpPlace<Tile>& place) {
  using Patch = StorePatch<Tile, rows>;
  constexpr int kPacks = Patch::wn / 8, kRowsAtOnce = kWarp / kPacks;
  static_assert(kWarp % kPacks == 0, "whole rows");
  const Finish how = finish_of(p, split);
  const int64_t batch = block.batch(), first_row = block.m() + place.m;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t col = block.n() + place.n + lane % kPacks * 8;
  void* patch = static_cast<char*>(patches) + threadIdx.x / kWarp * Patch::bytes;  // the warp's own: [rows, stride]
  auto* wide = static_cast<float*>(patch);
  auto* narrow = static_cast<T*>(patch);  // where sums are rounded at once
  float* partial = how == Finish::partial ? partial_sums(p, blockIdx.y, batch) : nullptr;
  T* d = static_cast<T*>(p.d) + batch * p.m * p.n;
  const bool packs = p.n % 8 == 0 && reinterpret_cast<uintptr_t>(p.d) % 16 == 0;

#pragma unroll
  for (int pass = 0; pass < warp.wm / Patch::rows; ++pass) {
    __syncwarp();  // the pass before has been read
#pragma unroll
    for (int line = 0; line < Patch::rows; line += 8) {
      const int row = pass * Patch::rows + line;
#pragma unroll
      for (int j = 0; j < warp.wn / 8; ++j) {
        const float2 sums = warp.sums[row / 16][j].pair(row / 8 % 2);
        const int at = (line + lane / 4) * Patch::stride + 8 * j + lane % 4 * 2;
        if (how == Finish::round) {
          Vec<T, 2> pair;
          from_float(pair, {sums.x, sums.y});
          store(narrow + at, pair);
        } else {
          *reinterpret_cast<float2*>(wide + at) = sums;
        }
      }
    }
    __syncwarp();

#pragma unroll 1
    for (int line = lane / kPacks; line < Patch::rows; line += kRowsAtOnce) {
      const int64_t row = first_row + pass * Patch::rows + line, index = row * p.n + col;
      if (row >= p.m || col >= p.n) continue;
      const float* sums = wide + line * Patch::stride + lane % kPacks * 8;
      const T* rounded = narrow + line * Patch::stride + lane % kPacks * 8;
      if (!packs) {
        const int count = static_cast<int>(p.n - col < 8 ? p.n - col : 8);
        for (int i = 0; i < count; ++i) {
          if (how == Finish::partial) {
            partial[index + i] = sums[i];
          } else {
            d[index + i] = how == Finish::round ? rounded[i] : finish<T>(p, sums[i], batch, row, col + i);
          }
        }
      } else if (how == Finish::round) {
        store(d + index, *reinterpret_cast<const Vec<T, 8>*>(rounded));
      } else {
        const auto low = *reinterpret_cast<const Vec<float, 4>*>(sums);
        const auto high = *reinterpret_cast<const Vec<float, 4>*>(sums + 4);
        if (how == Finish::partial) {
          store(partial + index, low);
          store(partial + index + 4, high);
        } else {
          const float values[8] = {low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]};
          Vec<T, 8> pack;
          finish_pack(pack, p, values, batch, row, col);
          store(d + index, pack);
        }
      }
    }
  }
}

}  // namespace warpsmith
