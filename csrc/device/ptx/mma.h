// Products of small matrices on the tensor cores by a whole warp, d += a b with a [16, k] by rows, b [k, 8] by columns and
// d [16, 8], and the loads that lay operands over its lanes.
// PTX ISA, "mma" and "ldmatrix":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-mma
//
// In 32-bit words of e = 1, 2 or 4 values along k (k = 8 e), lane l holds, with g = l / 4 and t = l % 4:
//   a[i]  word t + 4 (i / 2) of row g + 8 (i % 2)
//   b[i]  word t + 4 i of column g
//   d[i]  column 2 t + i % 2 of row g + 8 (i / 2)
// For 16-bit values, a is what ldmatrix gives of the four 8 x 8 quarters of a, down before right.
#pragma once

#include <cstdint>
#include <type_traits>

#include "device/ptx/memory.h"
#include "host/dtype.h"

namespace warpsmith::ptx {

// 8 x 8 matrices of 16-bit values from shared memory.

// n matrices. Lane 8 j + i names row i of matrix j: 16 bytes, aligned to 16; the rows of lanes from 8 n on are ignored.
// Lane l gets, in to[j], columns 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of matrix j, the first in the low half.
template <int n>
__device__ __forceinline__ void ldmatrix(uint32_t (&to)[n], const void* row) {
  static_assert(n == 1 || n == 2 || n == 4, "1, 2 or 4 matrices");
  const uint32_t from = shared_address(row);
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
  const uint32_t from = shared_address(row);
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

// f16 or bf16.
template <class T>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  static_assert(std::is_same_v<T, f16> || std::is_same_v<T, bf16>, "products of 16-bit values");
  if constexpr (std::is_same_v<T, f16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

// f16, accumulated in f16: d[i] holds columns 2 t and 2 t + 1 of row g + 8 i.
__device__ __forceinline__ void mma_m16n8k16_f16(uint32_t (&d)[2], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
               : "+r"(d[0]), "+r"(d[1])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Words as tf32_from_float (convert.h) makes them; of any other f32 the low 13 bits are ignored.
__device__ __forceinline__ void mma_m16n8k8_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Signed bytes.
__device__ __forceinline__ void mma_m16n8k32_s8(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
#define WARPSMITH_HAS_FP8_MMA 1
#else
#define WARPSMITH_HAS_FP8_MMA 0
#endif

// sm_89; ends the kernel below.
__device__ __forceinline__ void mma_m16n8k32_e4m3([[maybe_unused]] float (&d)[4],
                                                  [[maybe_unused]] const uint32_t (&a)[4],
                                                  [[maybe_unused]] const uint32_t (&b)[2]) {
#if WARPSMITH_HAS_FP8_MMA
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  __trap();
#endif
}

__device__ __forceinline__ void mma_m16n8k32_e5m2([[maybe_unused]] float (&d)[4],
                                                  [[maybe_unused]] const uint32_t (&a)[4],
                                                  [[maybe_unused]] const uint32_t (&b)[2]) {
#if WARPSMITH_HAS_FP8_MMA
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  __trap();
#endif
}

}  // namespace warpsmith::ptx
