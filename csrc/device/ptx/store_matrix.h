// Matrices from the registers of a warp to shared memory (sm_90): ldmatrix (device/ptx/mma.h) the other way round.
// PTX ISA, "stmatrix": https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-stmatrix
#pragma once

#include <cstdint>

#include "device/ptx/memory.h"

namespace warpsmith::ptx {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// n matrices of 8 x 8 values of 16 bits. Lane 8 j + i names row i of matrix j: 16 bytes, aligned to 16; the rows of lanes
// from 8 n on are ignored. Lane l gives, in from[j], columns 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of matrix j, the first
// in the low half.
template <int n>
__device__ __forceinline__ void stmatrix(void* row, const uint32_t (&from)[n]) {
  static_assert(n == 1 || n == 2 || n == 4, "1, 2 or 4 matrices");
  const uint32_t to = shared_address(row);
  if constexpr (n == 1) {
    asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" ::"r"(to), "r"(from[0]) : "memory");
  } else if constexpr (n == 2) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(to), "r"(from[0]), "r"(from[1])
                 : "memory");
  } else {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(from[0]),
                 "r"(from[1]), "r"(from[2]), "r"(from[3])
                 : "memory");
  }
}

// The same, each matrix transposed on the way: lane l gives rows 2 (l % 4) and 2 (l % 4) + 1 of column l / 4.
template <int n>
__device__ __forceinline__ void stmatrix_trans(void* row, const uint32_t (&from)[n]) {
  static_assert(n == 1 || n == 2 || n == 4, "1, 2 or 4 matrices");
  const uint32_t to = shared_address(row);
  if constexpr (n == 1) {
    asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(to), "r"(from[0]) : "memory");
  } else if constexpr (n == 2) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(to), "r"(from[0]), "r"(from[1])
                 : "memory");
  } else {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(from[0]),
                 "r"(from[1]), "r"(from[2]), "r"(from[3])
                 : "memory");
  }
}

#endif

}  // namespace warpsmith::ptx
