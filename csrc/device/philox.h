// Philox4x32-10, a random number generator without state: four words from a counter and a key, the same wherever and in
// whatever order they are asked for; and dropout by it.
// Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3", https://doi.org/10.1145/2063384.2063405
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

namespace warpsmith {

__host__ __device__ __forceinline__ uint32_t low_word(uint64_t x) { return static_cast<uint32_t>(x); }
__host__ __device__ __forceinline__ uint32_t high_word(uint64_t x) { return static_cast<uint32_t>(x >> 32); }

inline constexpr int kPhiloxRounds = 10;
inline constexpr uint64_t kPhiloxMultiplierX = 0xd2511f53, kPhiloxMultiplierZ = 0xcd9e8d57;
inline constexpr uint32_t kPhiloxWeylX = 0x9e3779b9, kPhiloxWeylY = 0xbb67ae85;

__host__ __device__ __forceinline__ uint4 philox_round(uint4 counter, uint2 key) {
  const uint64_t x = kPhiloxMultiplierX * counter.x, z = kPhiloxMultiplierZ * counter.z;
  return {high_word(z) ^ counter.y ^ key.x, low_word(z), high_word(x) ^ counter.w ^ key.y, low_word(x)};
}

// Which elements of a tensor are dropped: element i, counted in row-major order, is kept where word i % 4 of
// philox4x32(counter = {i / 4, offset}, key = seed) is greater than `last_dropped`. It depends on nothing else, so every
// kernel, whatever its tiling, and the backward pass drop the same elements. kernels/warpsmith/spec/philox.py says the same.
struct Dropout {
  uint32_t last_dropped = 0;
  bool active = false;             // whether any word drops its element
  float scale = 1.0f;              // of what is kept
  uint2 keys[kPhiloxRounds] = {};  // of the generator's rounds; the offset is in the first two
  uint32_t first_x = 0;            // word x of the first round's result, but for the upper word of i / 4

  Dropout() = default;

  // p: the probability of dropping an element, in [0, 1].
  __host__ Dropout(double p, int64_t seed, int64_t offset) {
    const int64_t dropped = std::llrint(p * 0x1p32);  // words of 2^32
    active = dropped > 0;
    last_dropped = static_cast<uint32_t>(dropped - 1);
    scale = p < 1.0 ? static_cast<float>(1.0 / (1.0 - p)) : 0.0f;
    uint2 key = {low_word(seed), high_word(seed)};
    for (uint2& round_key : keys) {
      round_key = key;
      key.x += kPhiloxWeylX;
      key.y += kPhiloxWeylY;
    }
    const uint64_t z = kPhiloxMultiplierZ * low_word(offset);
    first_x = high_word(z) ^ keys[0].x;
    keys[1].x ^= low_word(z);  // word y of the first round's result
    keys[0].y ^= high_word(offset);
  }

  // The words of elements 4 * group to 4 * group + 3: philox4x32 without what is the same for all of them, and, where
  // groups share the upper word of their number, without what is the same for these.
  __host__ __device__ __forceinline__ uint4 words(uint64_t group) const {
    const uint64_t x = kPhiloxMultiplierX * low_word(group), z = kPhiloxMultiplierZ * (high_word(x) ^ keys[0].y);
    const uint64_t second_x = kPhiloxMultiplierX * (first_x ^ high_word(group));
    uint4 counter = {high_word(z) ^ keys[1].x, low_word(z), high_word(second_x) ^ keys[1].y ^ low_word(x),
                     low_word(second_x)};
#pragma unroll
    for (int round = 2; round < kPhiloxRounds; ++round) counter = philox_round(counter, keys[round]);
    return counter;
  }

  __host__ __device__ __forceinline__ bool keeps(uint64_t element) const {
    const uint4 four = words(element / 4);
    const uint32_t low = element % 2 == 0 ? four.x : four.y, high = element % 2 == 0 ? four.z : four.w;
    return (element % 4 < 2 ? low : high) > last_dropped;
  }

  // For n neighbours, a power of two, from element 4 * group on, which is a multiple of n.
  template <int n>
  __host__ __device__ __forceinline__ void keeps_group(bool (&kept)[n], uint64_t group) const {
    static_assert(n % 4 == 0 && (n & (n - 1)) == 0, "one call of the generator serves four elements");
#pragma unroll
    for (int i = 0; i < n; i += 4) {
      const uint4 four = words(group | i / 4);
      kept[i] = four.x > last_dropped;
      kept[i + 1] = four.y > last_dropped;
      kept[i + 2] = four.z > last_dropped;
      kept[i + 3] = four.w > last_dropped;
    }
  }

  // For n neighbours from `first` on, which is a multiple of n.
  template <int n>
  __host__ __device__ __forceinline__ void keeps(bool (&kept)[n], uint64_t first) const {
    keeps_group(kept, first / 4);
  }
};

}  // namespace warpsmith
