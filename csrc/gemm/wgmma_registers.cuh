// Products of TF32 whose first operand lies along m: wgmma takes it from registers, into which threads load it from boxes of
// lines of 32 values of one k.
#pragma once

#include "gemm/wgmma_tile.cuh"

namespace warpsmith {

#if WARPSMITH_HAS_WGMMA

// What a thread holds of a stage of a.
template <class Config>
using WgmmaFragments = uint32_t[Config::bk / Config::Kind::k][Config::strips][4];

template <class Config>
__device__ __forceinline__ void load_fragments(WgmmaFragments<Config>& to, const char* stage, int share) {
  using A = typename Config::A;
  static_assert(A::line == 128 && A::values_of_line == 32, "boxes of 32 values a line");
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int step = 0; step < Config::bk / Config::Kind::k; ++step) {
#pragma unroll
    for (int i = 0; i < Config::strips; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = share * Config::rows + i * kWgmmaRows + Config::own_row(e % 2);
        const int k = step * Config::Kind::k + e / 2 * 4 + t;
        const char* line = stage + row / 32 * A::panel_bytes + k * A::line;
        to[step][i][e] = *reinterpret_cast<const uint32_t*>(line + (row % 32 / 4 ^ k % 8) * 16 + row % 4 * 4);
      }
    }
  }
}

// As multiply_steps (gemm/wgmma_tile.cuh), but for what runs meanwhile: the products of another warpgroup.
template <class Config, class Issued>
__device__ __forceinline__ void multiply_steps_by_registers(typename Config::Sums& sums,
                                                            const typename Config::Stage* stages,
                                                            const WgmmaReader<Config>& reader,
                                                            WgmmaRing<Config::stages>& ring, int share,
                                                            RingSlot<Config::stages>& at, int steps, Issued&& issued) {
#pragma unroll 1
  for (int step = 0; step < steps; ++step, at.advance()) {
    WgmmaFragments<Config> a;
    ring.wait(at);
    load_fragments<Config>(a, stages[at.slot].a, share);
    ptx::wgmma_fence();
    reader.multiply_registers(sums, a, at.slot, step > 0);
    ptx::wgmma_commit();
    if (step + 1 == steps) issued();
    ptx::wgmma_wait<0>(sums);
    ring.template release_warp<Config::cluster>(at);
  }
}

#endif

}  // namespace warpsmith
