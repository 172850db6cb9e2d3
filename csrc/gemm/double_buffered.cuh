// The kernel of `double_buffered`, `k16_…` and `k32_…`: while one slice of k is multiplied, the next one is on its way
// into registers and then into a second buffer.
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

  packs.load_from(source);
  packs.store_to(shared[0]);
  __syncthreads();
  int buffer = 0;
  while (true) {
    source.advance();
    const bool more = source.left > 0;
    if (more) packs.load_from(source);
    multiply(sums, shared[buffer], place);
    if (!more) break;
    buffer ^= 1;
    packs.store_to(shared[buffer]);
    __syncthreads();  // this slice is complete, and nobody reads the one before any longer
  }
  store_tile<T>(p, sums, place, first_row, first_col);
}

template <class T, class Acc, class Tile>
void launch_double_buffered(const GemmArgs& p, cudaStream_t stream) {
  const LaunchConfig config{static_cast<unsigned>(tiles_of<Tile>(p)), Tile::threads,
                            2 * static_cast<int>(sizeof(SharedTile<Tile, Acc>))};
  launch<&matmul_double_buffered_kernel<T, Acc, Tile>>(config, stream, p);
}

}  // namespace warpsmith
