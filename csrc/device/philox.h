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

__host__ __device__ __forceinline__ uint4 philox4x32(uint4 counter, uint2 key) {
  constexpr int kRounds = 10;
  constexpr uint64_t kMultiplierX = 0xd2511f53, kMultiplierZ = 0xcd9e8d57;
  constexpr uint32_t kWeylX = 0x9e3779b9, kWeylY = 0xbb67ae85;
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t x = kMultiplierX * counter.x, z = kMultiplierZ * counter.z;
    counter = {high_word(z) ^ counter.y ^ key.x, low_word(z), high_word(x) ^ counter.w ^ key.y, low_word(x)};
    key.x += kWeylX;
    key.y += kWeylY;
  }
  return counter;
}

// Which elements of a tensor are dropped: element i, counted in row-major order, is kept where word i % 4 of
// philox4x32(counter = {i / 4, offset}, key = seed) is greater than `last_dropped`. It depends on nothing else, so every
// kernel, whatever its tiling, and the backward pass drop the same elements. kernels/warpsmith/philox.py says the same.
struct Dropout {
  uint64_t seed = 0, offset = 0;
  uint32_t last_dropped = 0;
  bool active = false;  // whether any word drops its element
  float scale = 1.0f;   // of what is kept

  Dropout() = default;

  // p: the probability of dropping an element, in [0, 1].
  __host__ Dropout(double p, int64_t seed_, int64_t offset_)
      : seed(static_cast<uint64_t>(seed_)), offset(static_cast<uint64_t>(offset_)) {
    const int64_t dropped = std::llrint(p * 0x1p32);  // words of 2^32
    active = dropped > 0;
    last_dropped = static_cast<uint32_t>(dropped - 1);
    scale = p < 1.0 ? static_cast<float>(1.0 / (1.0 - p)) : 0.0f;
  }

  // The words of elements 4 * group to 4 * group + 3.
  __host__ __device__ __forceinline__ uint4 words(uint64_t group) const {
    return philox4x32({low_word(group), high_word(group), low_word(offset), high_word(offset)},
                      {low_word(seed), high_word(seed)});
  }

  __host__ __device__ __forceinline__ bool keeps(uint64_t element) const {
    const uint4 four = words(element / 4);
    const uint32_t low = element % 2 == 0 ? four.x : four.y, high = element % 2 == 0 ? four.z : four.w;
    return (element % 4 < 2 ? low : high) > last_dropped;
  }

  // For n neighbours from `first` on, which is a multiple of 4.
  template <int n>
  __host__ __device__ __forceinline__ void keeps(bool (&kept)[n], uint64_t first) const {
    static_assert(n % 4 == 0, "one call of the generator serves four elements");
#pragma unroll
    for (int i = 0; i < n; i += 4) {
      const uint4 four = words((first + i) / 4);
      kept[i] = four.x > last_dropped;
      kept[i + 1] = four.y > last_dropped;
      kept[i + 2] = four.z > last_dropped;
      kept[i + 3] = four.w > last_dropped;
    }
  }
};

}  // namespace warpsmith
