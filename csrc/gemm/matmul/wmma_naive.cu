// Matrix product on the tensor cores, a tile of 16 x 16 a warp.
//   Against `naive`: one instruction of the warp multiplies 16 x 16 by 16 x 16 values; nvcuda::wmma hides which lane
//   holds what. The 32 lanes copy 16 values along k of the warp's operands to shared memory, 16 bytes each. The eight
//   warps of a block compute neighbouring tiles and share nothing but L1. Bound: the wait for each step's loads.
#include "gemm/tensor_core.h"
#include "gemm/tile_origin.cuh"
#include "gemm/wmma_tile.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kSide = 16;

struct BlockTile {
  static constexpr int bm = kSide, bn = kWarps * kSide;
};

// Of a warp.
template <class T, class Acc>
struct Shared {
  alignas(32) T a[kSide][kSide], b[kSide][kSide];
  WmmaPatch<Acc> patch;
};

template <class T, class Acc>
__global__ void __launch_bounds__(kThreads) matmul_wmma_naive_kernel(const GemmArgs p) {
  namespace wmma = nvcuda::wmma;
  __shared__ Shared<T, Acc> shared[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const Origin block = origin_by_rows<BlockTile>(p);
  const int64_t m = block.m, n = block.n + warp * kSide;
  Shared<T, Acc>& own = shared[warp];

  // A lane's 16 bytes: half a row of a, and of b.
  const int line = lane / 2, i = lane % 2 * 8;
  const T* a = static_cast<const T*>(p.a.data) + (m + line) * p.a.ld + i;  // [k]
  const T* b = static_cast<const T*>(p.b.data) + line * p.b.ld + n + i;    // [8]
  const bool a_inside = m + line < p.m, b_inside = n + i < p.n;

  wmma::fragment<wmma::accumulator, kSide, kSide, kSide, Acc> sums;
  wmma::fill_fragment(sums, from_float<Acc>(0.0f));
  for (int64_t k = 0; k < p.k; k += kSide) {
    // load
    const uint4 a_pack = a_inside && k + i < p.k ? *reinterpret_cast<const uint4*>(a) : uint4{};
    const uint4 b_pack = b_inside && k + line < p.k ? *reinterpret_cast<const uint4*>(b) : uint4{};
    a += kSide;
    b += kSide * p.b.ld;
    __syncwarp();  // the step before has been read
    *reinterpret_cast<uint4*>(&own.a[line][i]) = a_pack;
    *reinterpret_cast<uint4*>(&own.b[line][i]) = b_pack;
    __syncwarp();

    // multiply
    wmma::fragment<wmma::matrix_a, kSide, kSide, kSide, T, wmma::row_major> a_fragment;
    wmma::fragment<wmma::matrix_b, kSide, kSide, kSide, T, wmma::row_major> b_fragment;
    load_fragment(a_fragment, &own.a[0][0], kSide);
    load_fragment(b_fragment, &own.b[0][0], kSide);
    wmma::mma_sync(sums, a_fragment, b_fragment, sums);
  }
  store_fragment<T, Acc, Wmma16x16>(p, sums, own.patch, m, n);
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  visit_16_bit_types(p, [&]<class T, class Acc>() {
    warpsmith::launch<&matmul_wmma_naive_kernel<T, Acc>>(block_per_tile<BlockTile>(p, kThreads), stream, p);
  });
}

const Register<GemmArgs> registered{"wmma_naive", /*min_sm=*/80, takes_nn, launch};

}  // namespace
}  // namespace warpsmith
