// A block's tile of a product by mma.sync, its operands passed through a ring: the loops of `mma_stages` and the rungs
// after it. What each changes stands in its Config (see operand_ring.cuh) and in its kernel: the block's shared memory and
// the order of blocks.
#pragma once

#include <cstdint>

#include "device/pipeline.h"
#include "gemm/store_pairs.cuh"
#include "gemm/tensor_core.h"
#include "gemm/tile_origin.cuh"
#include "host/registry.h"
#include "tile/operand_ring.cuh"
#include "tile/thread_again.cuh"
#include "tile/warp_mma.cuh"

namespace warpsmith {

// Fragments stay in registers while copies are queued behind their reads. A ring of two stages has little time for that:
// half of its copies go first. Sums in f32 of swizzled operands were measured faster with all copies first.
template <class Acc, class Config>
constexpr Copies copies_of() {
  if (Config::stages == 2) return Copies::around_reads;
  constexpr bool kSwizzled = Config::A::stride == Config::A::length;
  return sizeof(Acc) == 2 || !kSwizzled ? Copies::behind_reads : Copies::first;
}

// `mma_stages` and its like: fragments of 16 along k are read, then multiplied.
template <class T, class Acc, class Config>
__device__ __forceinline__ void multiply_ring(const GemmArgs& p, void* memory, Origin block) {
  const WarpPlace<Config> warp;
  OperandRing<T, Config> ring(p.a, p.m, p.b, p.n, memory, block);
  const FragmentReader<Side::a, typename Config::A> read_a(warp.m);
  const FragmentReader<Side::b, typename Config::B> read_b(warp.n);
  WarpSums<T, Acc, Config> sums;

  ring.start_first(p.k);
  constexpr Copies kCopies = copies_of<Acc, Config>();
  RingSlot<Config::stages> at, ahead{Config::stages - 1};
  for (int64_t k_left = p.k; k_left > 0; k_left -= Config::bk) {
    ring.wait();
    __syncthreads();  // this step's operands are here, and the slot of the step before has been read
    const int64_t k_ahead = k_left - (Config::stages - 1) * Config::bk;
    if constexpr (kCopies == Copies::first) ring.start(ahead.slot, k_ahead);
    if constexpr (kCopies == Copies::around_reads) ring.start(ahead.slot, k_ahead, 0, 2);

    // multiply
    constexpr int kParts = Config::bk / 16;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      Fragments<sums.wm, sums.wn> fragments;
      fragments.read(read_a, ring.stages[at.slot].a, read_b, ring.stages[at.slot].b, 16 * part);
      if constexpr (kCopies == Copies::behind_reads) ring.start(ahead.slot, k_ahead, part, kParts);
      if (kCopies == Copies::around_reads && part == 0) ring.start(ahead.slot, k_ahead, 1, 2);
      sums.add(fragments);
    }
    at.advance();
    ahead.advance();
  }
  const WarpPlace<Config> share(thread_again());
  store_pairs(p, sums, block.m + share.m, block.n + share.n);
}

// `mma_register_dbuf` and its like: of two sets of fragments, one is read while the other is multiplied, across the
// barrier too.
template <class T, class Acc, class Config>
__device__ __forceinline__ void multiply_ring_ahead(const GemmArgs& p, void* memory, Origin block) {
  static_assert(Config::bk % 32 == 0, "fragments alternate");
  const WarpPlace<Config> warp;
  OperandRing<T, Config> ring(p.a, p.m, p.b, p.n, memory, block);
  const FragmentReader<Side::a, typename Config::A> read_a(warp.m);
  const FragmentReader<Side::b, typename Config::B> read_b(warp.n);
  WarpSums<T, Acc, Config> sums;
  ring.start_first(p.k);
  ring.wait();
  __syncthreads();

  Fragments<sums.wm, sums.wn> fragments[2];
  fragments[0].read(read_a, ring.stages[0].a, read_b, ring.stages[0].b, 0);
  RingSlot<Config::stages> at, ahead{Config::stages - 1};
  for (int64_t k_left = p.k; k_left > 0; k_left -= Config::bk) {
    ring.start(ahead.slot, k_left - (Config::stages - 1) * Config::bk);
#pragma unroll
    for (int k = 0; k < Config::bk; k += 16) {
      const int next = (k + 16) % Config::bk;
      if (next == 0) {
        at.advance();
        ahead.advance();
        ring.wait();
        __syncthreads();  // the next step's operands are here, and those of this one are in registers
      }
      fragments[next / 16 % 2].read(read_a, ring.stages[at.slot].a, read_b, ring.stages[at.slot].b, next);
      sums.add(fragments[k / 16 % 2]);
    }
  }
  store_pairs(p, sums, block.m + warp.m, block.n + warp.n);
}

}  // namespace warpsmith
