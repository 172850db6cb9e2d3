// A block's tile of a product by wmma, its operands passed through a ring: the loop of `wmma_dbuf_async` and the rungs
// after it. What each changes stands in its Config (see operand_ring.cuh) and in its kernel: the block's shared memory and
// the order of blocks.
#pragma once

#include <cstdint>

#include "device/pipeline.h"
#include "gemm/tensor_core.h"
#include "gemm/tile_origin.cuh"
#include "gemm/wmma_tile.cuh"
#include "host/registry.h"
#include "tile/operand_ring.cuh"

namespace warpsmith {

// Warps of 64 x 64 sums are few, and a block of 512 threads is the only one: nobody would multiply while they queue copies.
template <class Config>
inline constexpr Copies kWmmaCopies =
    Share<Config>::wm * Share<Config>::wn >= 64 * 64 || Share<Config>::threads >= 512 ? Copies::behind_reads
                                                                                      : Copies::first;

template <class T, class Acc, class Config, class Shape = Wmma16x16>
__device__ __forceinline__ void multiply_ring_wmma(const GemmArgs& p, void* memory, Origin block) {
  static_assert(kRingBytes<Config> >= Share<Config>::warps * sizeof(WmmaPatch<Acc>), "results leave through the ring");
  OperandRing<T, Config> ring(p.a, p.m, p.b, p.n, memory, block);
  WmmaSums<T, Acc, Config, typename Config::A, typename Config::B, Shape> sums;

  ring.start_first(p.k);
  RingSlot<Config::stages> at, ahead{Config::stages - 1};
  for (int64_t k_left = p.k; k_left > 0; k_left -= Config::bk) {
    ring.wait();
    __syncthreads();  // this step's operands are here, and the slot of the step before has been read
    const int64_t k_ahead = k_left - (Config::stages - 1) * Config::bk;
    if constexpr (kWmmaCopies<Config> == Copies::first) ring.start(ahead.slot, k_ahead);
    sums.add(ring.stages[at.slot], [&](int part, int parts) {
      if constexpr (kWmmaCopies<Config> == Copies::behind_reads) ring.start(ahead.slot, k_ahead, part, parts);
    });
    at.advance();
    ahead.advance();
  }

  // write
  ptx::cp_async_wait<0>();
  __syncthreads();  // the ring is free
  sums.store(p, static_cast<WmmaPatch<Acc>*>(memory), block.m, block.n);
}

}  // namespace warpsmith
