// Operands from a ring that the copy engine fills (device/tma_ring.h) to a warp's registers, read ahead of what multiplies
// them.
//
// A rung's Config says what it is:
//   Tile              bm, bn, bk (64) and the warps that share them (operand_tile.h)
//   wm, wn            the warp's share
//   stages, cluster   of the ring, blocks that fill each other's stages
//   Stage             a and b of a step, as the copies leave them
//   WarpA, WarpB      what of them a warp reads, an OperandTile each
//   Shared            has ring, a Stage for each of the stages, and barriers, a TmaRing
#pragma once

#include <cstdint>

#include "device/cluster.h"
#include "device/tma_ring.h"
#include "tile/warp_mma.cuh"

namespace warpsmith {

#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS

// The ring as the warps see it.
template <class Config>
class StageConsumer {
 public:
  __device__ __forceinline__ explicit StageConsumer(typename Config::Shared& shared) : shared_(shared) {}

  __device__ __forceinline__ void wait() { shared_.barriers.wait(at_); }

  // On to the next stage, if there are `more`: the warp has read all of this one.
  __device__ __forceinline__ void advance(bool more) {
    shared_.barriers.template release_warp<Config::cluster>(at_);
    at_.advance();
    if (more) wait();
  }

  __device__ __forceinline__ const typename Config::Stage& stage() const { return shared_.ring[at_.slot]; }

 private:
  typename Config::Shared& shared_;
  RingSlot<Config::stages> at_;
};

// Where the warp reads in a stage.
template <class Config>
class StageReader {
 public:
  __device__ __forceinline__ explicit StageReader(const WarpPlace<typename Config::Tile>& warp)
      : a_(0), b_(0), from_a_(warp.m * Config::Tile::bk), from_b_(warp.n * Config::Tile::bk) {}

  __device__ __forceinline__ void read_a(uint32_t (&to)[4], const typename Config::Stage& stage, int i, int k) const {
    a_.read(to, stage.a + from_a_, 16 * i, k);
  }
  __device__ __forceinline__ void read_b(uint32_t (&to)[4], const typename Config::Stage& stage, int j, int k) const {
    b_.read(to, stage.b + from_b_, 16 * j, k);
  }

 private:
  FragmentReader<Side::a, typename Config::WarpA> a_;
  FragmentReader<Side::b, typename Config::WarpB> b_;
  int from_a_, from_b_;
};

template <class Sums>
__device__ __forceinline__ void add_pair(Sums& sums, int i, int j, const uint32_t (&a)[4], const uint32_t (&b)[4]) {
  const uint32_t half[2] = {b[2 * (j % 2)], b[2 * (j % 2) + 1]};
  sums.sums[i][j].add(a, half);
}

// Two sets of operands: one is read while the other is multiplied.
template <class Config>
struct TwoSets {
  static constexpr int kRows = Config::wm / 16, kPairs = Config::wn / 16;
  uint32_t a[2][kRows][4], b[2][kPairs][4];

  __device__ __forceinline__ void read(const StageReader<Config>& reader, const typename Config::Stage& stage, int set,
                                       int k) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) reader.read_a(a[set][i], stage, i, k);
#pragma unroll
    for (int j = 0; j < kPairs; ++j) reader.read_b(b[set][j], stage, j, k);
  }

  __device__ __forceinline__ void first(const StageReader<Config>& reader, const typename Config::Stage& stage) {
    read(reader, stage, 0, 0);
  }

  // Step `step` of 16 along k, with what it leaves of the next one.
  template <class Sums>
  __device__ __forceinline__ void multiply(Sums& sums, const StageReader<Config>& reader, StageConsumer<Config>& ring,
                                           int step, bool more) {
    const int here = step % 2, next = (step + 1) % 4;
    if (next == 0) ring.advance(more);
    read(reader, ring.stage(), 1 - here, 16 * next);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int jj = 0; jj < 2 * kPairs; ++jj) {
        const int j = i % 2 == 0 ? jj : 2 * kPairs - 1 - jj;
        add_pair(sums, i, j, a[here][i], b[here][j / 2]);
      }
    }
  }
};

// One set of b, which the next one's takes the place of as it is multiplied for the last time, and two rows of a.
template <class Config>
struct RollingRows {
  static constexpr int kRows = Config::wm / 16, kPairs = Config::wn / 16;
  static_assert(kRows % 2 == 0, "rows alternate");
  uint32_t a[2][4], b[kPairs][4];

  __device__ __forceinline__ void first(const StageReader<Config>& reader, const typename Config::Stage& stage) {
    reader.read_a(a[0], stage, 0, 0);
#pragma unroll
    for (int j = 0; j < kPairs; ++j) reader.read_b(b[j], stage, j, 0);
  }

  template <class Sums>
  __device__ __forceinline__ void multiply(Sums& sums, const StageReader<Config>& reader, StageConsumer<Config>& ring,
                                           int step, bool more) {
    const int next = (step + 1) % 4;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const bool last = i + 1 == kRows;
      if (last && next == 0) ring.advance(more);
      reader.read_a(a[1 - i % 2], ring.stage(), last ? 0 : i + 1, 16 * (last ? next : step));
#pragma unroll
      for (int j = 0; j < 2 * kPairs; ++j) {
        add_pair(sums, i, j, a[i % 2], b[j / 2]);
        if (last && j % 2 == 1) reader.read_b(b[j / 2], ring.stage(), j / 2, 16 * next);
      }
    }
  }
};

#endif

}  // namespace warpsmith
