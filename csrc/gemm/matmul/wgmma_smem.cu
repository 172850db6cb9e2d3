// Matrix product by wgmma of operands that threads put into shared memory.
//   The tensor cores of sm_90 read operands from shared memory themselves, a warpgroup of 4 warps issuing products of 64 x 128
//   x 16: no fragments, no ldmatrix. Operands keep the order they have in memory, in any layout, in lines of 128 bytes that
//   are swizzled. Threads load a stage, meet, multiply it, meet.
//   Occupancy: two blocks of 2 warpgroups in 32 KB. Bound: latency, as nothing is loaded while it is multiplied.
#include "gemm/tile_origin.cuh"
#include "gemm/wgmma.h"
#include "gemm/wgmma_store.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

struct Plan : WgmmaPlan {
  static constexpr int bm = 128, bn = 128, warpgroups = 2;
};
constexpr int kThreads = Plan::warpgroups * kWarpgroup;

#if WARPSMITH_HAS_WGMMA

// A tile of an operand of [lines of them, k], from `mn` and `k` on, 16 bytes an access; zeros outside it.
template <class Operand>
__device__ __forceinline__ void fill(char* to, const Matrix& x, int64_t mns, int64_t ks, int64_t mn, int64_t k) {
  constexpr int kChunk = 16 / Operand::size, kChunks = Operand::line / 16;
  const int64_t lines = Operand::along_k ? mns : ks, length = Operand::along_k ? ks : mns;
  for (int i = static_cast<int>(threadIdx.x); i < Operand::bytes / 16; i += kThreads) {
    const int chunk = i % kChunks, panel = i / kChunks / Operand::panel_lines, row = i / kChunks % Operand::panel_lines;
    const int64_t line = (Operand::along_k ? mn : k) + row;
    const int64_t value = (Operand::along_k ? k : mn) + panel * Operand::values_of_line + chunk * kChunk;
    uint4 v{};
    if (line < lines && value < length) {
      v = *reinterpret_cast<const uint4*>(static_cast<const char*>(x.data) + (line * x.ld + value) * Operand::size);
    }
    *reinterpret_cast<uint4*>(to + (i / kChunks * kChunks + (chunk ^ row % 8)) * 16) = v;
  }
}

#endif

template <class Config>
__global__ void __launch_bounds__(kThreads, 2) matmul_wgmma_smem_kernel([[maybe_unused]] const GemmArgs p) {
#if WARPSMITH_HAS_WGMMA
  extern __shared__ __align__(1024) uint4 memory[];
  auto& stage = *reinterpret_cast<typename Config::Stage*>(memory);
  const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup;
  const Origin origin = origin_by_rows<Plan>(p);
  const WgmmaReader<Config> reader(&stage, warpgroup);
  typename Config::Sums sums;
  for (int64_t k = 0; k < p.k; k += Config::bk) {
    fill<typename Config::A>(stage.a, p.a, p.m, p.k, origin.m, k);
    fill<typename Config::B>(stage.b, p.b, p.n, p.k, origin.n, k);
    ptx::fence_proxy_async();
    __syncthreads();
    ptx::wgmma_fence();
    reader.multiply(sums, 0, k > 0);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>(sums);
    __syncthreads();
  }
  store_pairs<Config>(static_cast<typename Config::T*>(p.d), sums, origin.m + warpgroup * Config::rows,
                      static_cast<int>(origin.n), p.m, static_cast<int>(p.n));
#endif
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  dispatch_wgmma(p, [&]<class T, Along a, Along b>() {
    using Config = WgmmaConfig<T, a, b, Plan>;
    warpsmith::launch<&matmul_wgmma_smem_kernel<Config>>(
        block_per_tile<Plan>(p, kThreads, sizeof(typename Config::Stage)), stream, p);
  });
}

const Register<GemmArgs> registered{"wgmma_smem", /*min_sm=*/90, takes_wgmma, launch};

}  // namespace
}  // namespace warpsmith
