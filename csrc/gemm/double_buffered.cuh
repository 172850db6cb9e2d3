// The kernel of `double_buffered`, `k16_…` and `k32_…`: while one slice of k is multiplied, the next one is on its way
// into registers and then into a second buffer. Slices of several packs a thread pass in parts, one pack of an operand
// or two at a time, so that few registers hold them: what sums in f16 leave free.
#pragma once

#include "gemm/packed_tile.cuh"
#include "host/launch.h"

namespace warpsmith {

template <class T, class Acc, class Tile>
__global__ void __launch_bounds__(Tile::threads, (kBlocks<Tile, Acc>)) matmul_double_buffered_kernel(const GemmArgs p) {
  extern __shared__ uint4 dynamic[];
  auto* const shared = reinterpret_cast<SharedTile<Tile, Acc>*>(dynamic);  // two
  const int64_t tiles_n = ceil_div(p.n, Tile::bn);
  const int64_t first_row = blockIdx.x / tiles_n * Tile::bm, first_col = blockIdx.x % tiles_n * Tile::bn;
  const ThreadPlace<Tile, Acc> place;
  PackSource<Tile, T> source(p, first_row, first_col);
  HeldPacks<Tile, T> packs;
  Sums<Acc, Tile::tm, Tile::tn> sums;

  constexpr int kParts = ThreadPacks<Tile, T>::parts;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    packs.load_from(source, part);
    packs.store_to(shared[0], part);
  }
  __syncthreads();
  // A loop over all multiplications of a slice has to fit the instruction cache.
  constexpr int kInstructions = Tile::tm * Tile::tn * Tile::bk * static_cast<int>(sizeof(Acc)) / 4;
  constexpr int kMostInstructions = 2048;  // 32 KB: twice as many were 3 % slower
  constexpr int kPartsTogether = kInstructions <= kMostInstructions ? kParts : 1;
  int buffer = 0;
  for (; source.left > Tile::bk; buffer ^= 1) {
    source.advance();
#pragma unroll kPartsTogether
    for (int part = 0; part < kParts; ++part) {
      packs.load_from(source, part);
      multiply<kParts>(sums, shared[buffer], place, part);
      packs.store_to(shared[buffer ^ 1], part);
    }
    cut_sums<T>(p, sums, place, first_row, first_col, source.left);
    __syncthreads();  // the next slice is complete, and nobody reads this one any longer
  }
  multiply(sums, shared[buffer], place);
  store_tile<T>(p, sums, place, first_row, first_col, p.k);
}

template <class T, class Acc, class Tile>
void launch_double_buffered(const GemmArgs& p, cudaStream_t stream) {
  constexpr int kBytes = 2 * static_cast<int>(sizeof(SharedTile<Tile, Acc>));
  static_assert(kBytes <= kMostSharedBytes);
  const LaunchConfig config{static_cast<unsigned>(tiles_of<Tile>(p)), Tile::threads, kBytes};
  launch<&matmul_double_buffered_kernel<T, Acc, Tile>>(config, stream, p);
}

}  // namespace warpsmith
