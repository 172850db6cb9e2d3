// The dot products of several rows and several vectors by a group of threads, each with packs of its own: the inner loop
// of the kernels that hold everything in registers.
#pragma once

#include <type_traits>

#include "gemm/packs.cuh"

namespace warpsmith {

// rows | vectors of a group | packs of each row that a thread has under way
template <int rows_, int vectors_, int packs_>
struct SliceTile {
  static constexpr int rows = rows_, vectors = vectors_, packs = packs_;
};

// Adds to sum[row][vector] what packs first, first + threads, … below `end` contribute. Rows and vectors may repeat each
// other: what stands in for one that does not exist is dropped afterwards.
//   In f32, what is under way together is added up by itself, as rounding errors grow with the length of a sum; results of
//   16 bits hide what longer sums lose.
template <class W, class X, class Tile, int threads>
__device__ __forceinline__ void slice_dot(float (&sum)[Tile::rows][Tile::vectors],
                                          const uint4* const (&weights)[Tile::rows],
                                          const uint4* const (&x)[Tile::vectors], int first, int end) {
  constexpr int kWidth = kPack<W>;
  constexpr bool kCutsSums = std::is_same_v<X, float>;
  const auto step = [&](int64_t at, auto is_there) {
    // load
    uint4 packs[Tile::packs][Tile::rows];
    PackValues<W, X> values[Tile::packs][Tile::vectors];
#pragma unroll
    for (int p = 0; p < Tile::packs; ++p) {
#pragma unroll
      for (int row = 0; row < Tile::rows; ++row) {
        packs[p][row] = {};
        if (is_there(p)) packs[p][row] = ptx::load_streaming(weights[row] + at + p * threads);
      }
    }
#pragma unroll
    for (int p = 0; p < Tile::packs; ++p) {
#pragma unroll
      for (int v = 0; v < Tile::vectors; ++v) {
        values[p][v].clear();
        if (is_there(p)) values[p][v].load(x[v], at + p * threads);
      }
    }

    // multiply and add
    float part[Tile::rows][Tile::vectors] = {};
    auto& to = kCutsSums ? part : sum;
#pragma unroll
    for (int p = 0; p < Tile::packs; ++p) {
      float b[Tile::vectors][kWidth];
#pragma unroll
      for (int v = 0; v < Tile::vectors; ++v) values[p][v].unpack_to(b[v]);
#pragma unroll
      for (int row = 0; row < Tile::rows; ++row) {
        float a[kWidth];
        unpack_weights<W>(a, packs[p][row]);
#pragma unroll
        for (int v = 0; v < Tile::vectors; ++v) {
#pragma unroll
          for (int i = 0; i < kWidth; ++i) to[row][v] = fmaf(a[i], b[v][i], to[row][v]);
        }
      }
    }
    if constexpr (kCutsSums) {
#pragma unroll
      for (int row = 0; row < Tile::rows; ++row) {
#pragma unroll
        for (int v = 0; v < Tile::vectors; ++v) sum[row][v] += part[row][v];
      }
    }
  };
  constexpr int kStep = Tile::packs * threads;
  int64_t at = first;
#pragma unroll 1
  for (; at + kStep - threads < end; at += kStep) step(at, [](int) { return true; });
  if (at < end) step(at, [&](int p) { return at + p * threads < end; });
}

}  // namespace warpsmith
