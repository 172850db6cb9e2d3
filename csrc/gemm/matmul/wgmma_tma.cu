// Matrix product by wgmma of operands that the copy engine brings.
//   Against `wgmma_smem`: a thread names boxes, which the engine (TMA) swizzles on the way and fills with zeros where the
//   matrix ends, for a ring of four stages: three are on their way while one is multiplied.
//   Occupancy: one block of 2 warpgroups in 128 KB. Bound: the two barriers of the block for each stage, at which the tensor
//   cores run dry.
#include "gemm/tile_origin.cuh"
#include "gemm/wgmma.h"
#include "gemm/wgmma_store.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

struct Plan : WgmmaPlan {
  static constexpr int bm = 128, bn = 128, stages = 4, warpgroups = 2;
};
constexpr int kThreads = Plan::warpgroups * kWarpgroup;

template <class Config>
struct Shared {
  typename Config::Stage ring[Config::stages];
  WgmmaRing<Config::stages> barriers;
};

template <class Config>
__global__ void __launch_bounds__(kThreads, 1)
    matmul_wgmma_tma_kernel([[maybe_unused]] const __grid_constant__ CUtensorMap a,
                            [[maybe_unused]] const __grid_constant__ CUtensorMap b, [[maybe_unused]] const GemmArgs p) {
#if WARPSMITH_HAS_WGMMA
  extern __shared__ __align__(1024) uint4 memory[];
  auto& shared = *reinterpret_cast<Shared<Config>*>(memory);
  const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup;
  const Origin origin = origin_by_rows<Plan>(p);
  const int m = static_cast<int>(origin.m), n = static_cast<int>(origin.n);
  const int steps = static_cast<int>(ceil_div(p.k, Config::bk));
  const auto copy = [&](int step) {
    if (threadIdx.x != 0 || step >= steps) return;
    const int slot = step % Config::stages;
    copy_stage<Config>(shared.ring[slot], a, b, m, n, step * Config::bk, shared.barriers.full + slot);
  };
  if (threadIdx.x == 0) {
    shared.barriers.init(1, 1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  for (int step = 0; step < Config::stages - 1; ++step) copy(step);

  const WgmmaReader<Config> reader(shared.ring, warpgroup);
  typename Config::Sums sums;
  RingSlot<Config::stages> at;
#pragma unroll 1
  for (int step = 0; step < steps; ++step, at.advance()) {
    copy(step + Config::stages - 1);
    __syncwarp();
    shared.barriers.wait_unread(at);
    ptx::wgmma_fence();
    reader.multiply(sums, at.slot, step > 0);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>(sums);
    __syncthreads();  // both warpgroups have read the stage, which is filled next
  }
  store_pairs<Config>(static_cast<typename Config::T*>(p.d), sums, origin.m + warpgroup * Config::rows, n, p.m,
                      static_cast<int>(p.n));
#endif
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  dispatch_wgmma(p, [&]<class T, Along a, Along b>() {
    using Config = WgmmaConfig<T, a, b, Plan>;
    warpsmith::launch<&matmul_wgmma_tma_kernel<Config>>(block_per_tile<Plan>(p, kThreads, sizeof(Shared<Config>)),
                                                        stream, map_a<Config>(p), map_b<Config>(p), p);
  });
}

const Register<GemmArgs> registered{"wgmma_tma", /*min_sm=*/90, takes_wgmma, launch};

}  // namespace
}  // namespace warpsmith
