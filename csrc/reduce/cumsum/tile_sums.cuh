// Sums of tiles of a row that blocks leave for each other in a tree of fixed shape.
//
// The sum of a tile, of a group of 32 tiles, of a set of 32 groups: whoever wants the sum before a tile adds all sets
// before its own, then the groups of its set, then the tiles of its group. Rounding does not depend on who was first, and
// no chain of tiles waits for each other one after the other.
#pragma once

#include <bit>

#include "device/ptx/memory.h"
#include "reduce/cumsum/scan.cuh"

namespace warpsmith {

// A sum and the sign that it is there, in one word, so that nobody sees one without the other. Zero: not yet.
template <class S>
struct Word {
  static __device__ uint64_t of(float sum) { return uint64_t{1} << 32 | std::bit_cast<uint32_t>(sum); }
  static __device__ bool is_there(uint64_t word) { return word != 0; }
  static __device__ float sum(uint64_t word) { return std::bit_cast<float>(static_cast<uint32_t>(word)); }
};

// 63 bits hold the sum of 2^31 values of 32 bits.
template <>
struct Word<int64_t> {
  static __device__ uint64_t of(int64_t sum) { return static_cast<uint64_t>(sum) << 1 | 1; }
  static __device__ bool is_there(uint64_t word) { return word != 0; }
  static __device__ int64_t sum(uint64_t word) { return static_cast<int64_t>(word) >> 1; }
};

inline void clear_words(const CumsumArgs& a, cudaStream_t stream) {
  const auto bytes = static_cast<size_t>(workspace_bytes(a, /*may_tile=*/true));
  check_cuda(cudaMemsetAsync(a.workspace, 0, bytes, stream), "status words");
}

// The next of the tiles of all rows, in order, so that those which a tile waits for run already. For one thread.
__device__ __forceinline__ unsigned take_ticket(const CumsumArgs& a) {
  return atomicAdd(static_cast<unsigned*>(a.workspace), 1u);
}

// All functions are for one whole warp.
template <class S>
class TileSums {
  uint64_t *tiles_, *groups_, *sets_;

  // Adds the first `count` words, at most one per lane, waiting for those that are not there yet.
  __device__ __forceinline__ static S add(const uint64_t* words, int64_t count) {
    const int lane = threadIdx.x % kWarp;
    S sum = 0;
    if (lane < count) {
      uint64_t word;
      do {
        word = ptx::load_relaxed(words + lane);
      } while (!Word<S>::is_there(word));
      sum = Word<S>::sum(word);
    }
    __syncwarp();
    return warp_reduce(sum);
  }

  __device__ __forceinline__ static void publish(uint64_t* word, S sum) {
    if (threadIdx.x % kWarp == 0) ptx::store_relaxed(word, Word<S>::of(sum));
  }

 public:
  __device__ TileSums(const CumsumArgs& a, const TilesOfRow& layout, int64_t row)
      : tiles_(static_cast<uint64_t*>(a.workspace) + 1 + row * layout.words()),
        groups_(tiles_ + layout.tiles),
        sets_(groups_ + layout.groups) {}

  __device__ __forceinline__ void publish_tile(int64_t tile, S own) const { publish(tiles_ + tile, own); }

  __device__ __forceinline__ S before_in_group(int64_t tile) const {
    return add(tiles_ + tile / kFan * kFan, tile % kFan);
  }

  __device__ __forceinline__ S before_in_set(int64_t tile) const {
    const int64_t group = tile / kFan;
    return add(groups_ + group / kFan * kFan, group % kFan);
  }

  __device__ __forceinline__ S before_set(int64_t tile) const {
    const int64_t set = tile / (kFan * kFan);
    S sum = 0;
    for (int64_t first = 0; first < set; first += kFan) sum += add(sets_ + first, min(set - first, int64_t{kFan}));
    return sum;
  }

  // Of the last tile of a group, and of a set: its sum with that of those before it.
  __device__ __forceinline__ static bool ends_group(int64_t tile) { return tile % kFan == kFan - 1; }
  __device__ __forceinline__ void publish_group(int64_t tile, S of_group) const {
    publish(groups_ + tile / kFan, of_group);
  }
  __device__ __forceinline__ static bool ends_set(int64_t tile) { return tile % (kFan * kFan) == kFan * kFan - 1; }
  __device__ __forceinline__ void publish_set(int64_t tile, S of_set) const {
    publish(sets_ + tile / (kFan * kFan), of_set);
  }
};

}  // namespace warpsmith
