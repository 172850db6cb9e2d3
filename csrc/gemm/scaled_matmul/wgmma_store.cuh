// Results of fp8 of a warpgroup, from registers to memory. A thread has pairs of neighbours; four threads of a row trade
// them, so that each writes eight bytes and a row gets a sector at a time.
#pragma once

#include "gemm/scaled_matmul/result.cuh"
#include "gemm/wgmma_finish.cuh"

namespace warpsmith {

#if WARPSMITH_HAS_WGMMA

// Of a thread t of four that have pairs[i] of columns 8 i + 2 t each: columns 8 t to 8 t + 7.
__device__ __forceinline__ uint2 trade_pairs(const uint32_t (&pairs)[4]) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  const auto pair_of = [&](int i) { return i == 0 ? pairs[0] : i == 1 ? pairs[1] : i == 2 ? pairs[2] : pairs[3]; };
  uint32_t got[4];  // of thread t ^ i
#pragma unroll
  for (int i = 0; i < 4; ++i) got[i] = __shfl_xor_sync(~0u, pair_of(t ^ i), i);
  const auto of_thread = [&](int from) {
    const int i = from ^ t;
    return i == 0 ? got[0] : i == 1 ? got[1] : i == 2 ? got[2] : got[3];
  };
  return {of_thread(0) | of_thread(1) << 16, of_thread(2) | of_thread(3) << 16};
}

// `p`: the product as the instruction sees it, of which d has the dtype `p.dtype`. `scale`: of the result.
template <class Config>
__device__ __forceinline__ void store_fp8(const typename Config::Sums& sums, const GemmArgs& p, float scale,
                                          const WgmmaPlace& at) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  const int64_t across = Config::swapped ? p.m : p.n;  // of d
  auto* d = static_cast<uint8_t*>(p.d);
#pragma unroll
  for (int i = 0; i < Config::strips; ++i) {
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      const int64_t row = at.m + i * kWgmmaRows + Config::own_row(below);
      const auto pair_at = [&](int j) {
        const float* pair = sums[i] + 4 * j + 2 * below;
        return saturated_pair(p.dtype, pair[0] * scale, pair[1] * scale);
      };
      if constexpr (Config::swapped) {
#pragma unroll
        for (int j = 0; j < Config::bn / 8; ++j) {
          const uint32_t pair = pair_at(j);
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int64_t col = at.n + 8 * j + 2 * t + e;
            if (row < p.m && col < p.n) d[col * across + row] = static_cast<uint8_t>(pair >> 8 * e);
          }
        }
      } else {
        const bool packs = across % 8 == 0;  // d begins at a multiple of 8 bytes, being a tensor of its own
#pragma unroll
        for (int j = 0; j < Config::bn / 8; j += 4) {
          uint32_t pairs[4];
#pragma unroll
          for (int k = 0; k < 4; ++k) pairs[k] = pair_at(j + k);
          const uint2 eight = trade_pairs(pairs);
          const int64_t col = at.n + 8 * (j + t);
          uint8_t* to = d + row * across + col;
          if (row >= p.m) continue;
          if (packs) {
            if (col < p.n) *reinterpret_cast<uint2*>(to) = eight;
          } else {
#pragma unroll
            for (int e = 0; e < 8; ++e) {
              if (col + e < p.n) to[e] = static_cast<uint8_t>((e < 4 ? eight.x : eight.y) >> 8 * (e % 4));
            }
          }
        }
      }
    }
  }
}

#endif

}  // namespace warpsmith
