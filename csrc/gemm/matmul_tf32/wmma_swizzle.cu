// TF32 product through the WMMA interface, blocks in an order that L2 likes.
//   Against `wmma_stages`: blocks that run at the same time cover a near-square of tiles instead of a row, and so read
//   few rows of a and few columns of b.
//   Bound: shared memory, from which wmma reads one value at a time, and the wait for it before each multiplication.
#include "gemm/matmul_tf32/wmma.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

struct Grouped {
  static constexpr int kRowsOfTiles = 8;
  __device__ static TileCoord tile(int64_t index, int64_t tiles_m, int64_t tiles_n) {
    return grouped_tile(index, tiles_m, tiles_n, kRowsOfTiles);
  }
};

const Register<Tf32Args> registered{"wmma_swizzle", /*min_sm=*/80, wmma_ring_takes, launch_wmma_ring<Grouped>};

}  // namespace
}  // namespace warpsmith
