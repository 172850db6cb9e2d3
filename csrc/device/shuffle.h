// Shuffles of plain structs, word by word, and reductions over part of a warp by a merge of such structs.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "device/warp.h"

namespace warpsmith {

template <class T>
__device__ __forceinline__ T shuffle_xor(const T& value, int distance) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % 4 == 0, "a lane sends whole words");
  struct Words {
    uint32_t word[sizeof(T) / 4];
  };
  Words words = std::bit_cast<Words>(value);
#pragma unroll
  for (uint32_t& word : words.word) word = __shfl_xor_sync(kAllLanes, word, distance);
  return std::bit_cast<T>(words);
}

// Over groups of `lanes` neighbours, a power of two known at run time. `merge(a, b)` gets the lower lane's value first;
// every lane of a group ends with the same bits.
template <class T, class Merge>
__device__ __forceinline__ T merge_lanes(T value, int lanes, Merge merge) {
  for (int distance = 1; distance < lanes; distance *= 2) {
    const T other = shuffle_xor(value, distance);
    const bool lower = (threadIdx.x & distance) == 0;
    value = merge(lower ? T(value) : T(other), lower ? T(other) : T(value));
  }
  return value;
}

}  // namespace warpsmith
