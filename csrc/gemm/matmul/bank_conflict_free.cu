// Matrix product, a thread per 8 x 8 values, a transposed in shared memory, without bank conflicts.
//   Against `thread_tile`: with a transposed when it is stored, the rows of one k are contiguous for a thread, which holds no
//   others; packs of 16 bytes are loaded. Padding keeps the transposed stores apart, and lanes, 8 x 4 of a warp, read
//   neighbouring chunks of 16 bytes of either operand. Bound: barriers, two a slice.
#include "gemm/packed_tile.cuh"
#include "host/launch.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

template <class T, class Acc, class Tile>
__global__ void __launch_bounds__(Tile::threads, (kBlocks<Tile, Acc>))
    matmul_bank_conflict_free_kernel(const GemmArgs p) {
  __shared__ SharedTile<Tile, Acc> shared;
  const int64_t tiles_n = ceil_div(p.n, Tile::bn);
  const int64_t first_row = blockIdx.x / tiles_n * Tile::bm, first_col = blockIdx.x % tiles_n * Tile::bn;
  const ThreadPlace<Tile, Acc> place;
  PackSource<Tile, T> source(p, first_row, first_col);
  HeldPacks<Tile, T> packs;
  static_assert(ThreadPacks<Tile, T>::parts == 1);
  Sums<Acc, Tile::tm, Tile::tn> sums;
  packs.load_from(source, 0);
  while (source.left > 0) {
    packs.store_to(shared, 0);
    __syncthreads();
    source.advance();
    packs.load_from(source, 0);
    multiply(sums, shared, place);
    cut_sums<T>(p, sums, place, first_row, first_col, source.left);
    __syncthreads();  // the next slice overwrites this one
  }
  store_tile<T>(p, sums, place, first_row, first_col, p.k);
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  visit_types(p, [&]<class T, class Acc>() {
    using Tile = FromHalves<PackedTile<8, 8, 2 * kPack<T>>>;
    const LaunchConfig config{static_cast<unsigned>(tiles_of<Tile>(p)), Tile::threads};
    warpsmith::launch<&matmul_bank_conflict_free_kernel<T, Acc, Tile>>(config, stream, p);
  });
}

const Register<GemmArgs> registered{"bank_conflict_free", /*min_sm=*/80, needs_packed_rows, launch};

}  // namespace
}  // namespace warpsmith
