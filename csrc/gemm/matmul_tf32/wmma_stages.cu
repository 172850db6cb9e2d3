// TF32 product through the WMMA interface, tiles of 128 x 128 through a ring of four stages.
//   Against `wmma_naive`: eight warps share what they read from memory, each value of a tile serving 128 products, and a
//   warp multiplies 2 x 4 fragments of 16 x 16, so that each is read from shared memory for two or four of them.
//   Asynchronous copies bring tiles three steps ahead of their use.
//   Bound: blocks that run at the same time cover a row of tiles, and so read all of b again and again.
#include "gemm/matmul_tf32/wmma.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

struct RowByRow {
  __device__ static TileCoord tile(int64_t index, int64_t, int64_t tiles_n) {
    return {index / tiles_n, index % tiles_n};
  }
};

const Register<Tf32Args> registered{"wmma_stages", /*min_sm=*/80, wmma_ring_takes, launch_wmma_ring<RowByRow>};

}  // namespace
}  // namespace warpsmith
