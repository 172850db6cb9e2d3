// A block's tile of a product by wmma, whose warps load a step along k and multiply it in turns: the loop of `wmma_mma4x2`
// and `wmma_warp2x4`.
#pragma once

#include <cstdint>

#include "gemm/tensor_core.h"
#include "gemm/tile_origin.cuh"
#include "gemm/wmma_tile.cuh"
#include "host/registry.h"
#include "tile/copy.cuh"

namespace warpsmith {

template <class T, class Acc, class Config>
union TurnsMemory {
  Stage<T, typename Config::A, typename Config::B> stage;
  WmmaPatch<Acc> patches[Share<Config>::warps];  // after the last step
};

template <class T, class Acc, class Config>
__device__ __forceinline__ void multiply_in_turns(const GemmArgs& p, TurnsMemory<T, Acc, Config>& shared,
                                                  Origin block) {
  using A = typename Config::A;
  using B = typename Config::B;
  constexpr int kThreads = Share<Config>::threads;
  TileCopy<T, A, kThreads> copy_a(p.a, 0, p.m, block.m, 0);
  TileCopy<T, B, kThreads> copy_b(p.b, 0, p.n, block.n, 0);
  WmmaSums<T, Acc, Config, A, B> sums;

  for (int64_t k_left = p.k; k_left > 0; k_left -= Config::bk) {
    // load
    const auto a_held = copy_a.fetch(k_left);
    const auto b_held = copy_b.fetch(k_left);
    copy_a.advance();
    copy_b.advance();
    __syncthreads();  // the operands of the step before have been read
    copy_a.put(shared.stage.a, a_held);
    copy_b.put(shared.stage.b, b_held);
    __syncthreads();

    sums.add(shared.stage);
  }
  __syncthreads();  // results overwrite the operands
  sums.store(p, shared.patches, block.m, block.n);
}

}  // namespace warpsmith
