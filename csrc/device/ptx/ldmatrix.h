// 8 x 8 matrices of 16-bit values from shared memory, laid over the lanes of a warp as mma reads its operands.
// PTX ISA, "ldmatrix":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-ldmatrix
#pragma once

#include <cstdint>

namespace warpsmith::ptx {

// n matrices. Lane 8 j + i names row i of matrix j: 16 bytes, aligned to 16; the rows of lanes from 8 n on are ignored.
// Lane l gets, in to[j], columns 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of matrix j, the first in the low half.
template <int n>
__device__ __forceinline__ void ldmatrix(uint32_t (&to)[n], const void* row) {
  static_assert(n == 1 || n == 2 || n == 4, "1, 2 or 4 matrices");
  const uint32_t from = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (n == 1) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(to[0]) : "r"(from) : "memory");
  } else if constexpr (n == 2) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1])
                 : "r"(from)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
  }
}

// The same, each matrix transposed on the way: lane l gets rows 2 (l % 4) and 2 (l % 4) + 1 of column l / 4.
template <int n>
__device__ __forceinline__ void ldmatrix_trans(uint32_t (&to)[n], const void* row) {
  static_assert(n == 1 || n == 2 || n == 4, "1, 2 or 4 matrices");
  const uint32_t from = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (n == 1) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(to[0]) : "r"(from) : "memory");
  } else if constexpr (n == 2) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1])
                 : "r"(from)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
  }
}

}  // namespace warpsmith::ptx
