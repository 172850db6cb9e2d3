// mma.sync m16n8k32 of fp8 values, a of one format and b of the other. Operands of one format: mma.h.
// PTX ISA, "mma": https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-mma
#pragma once

#include "device/ptx/mma.h"

namespace warpsmith::ptx {

// sm_89; ends the kernel below.
__device__ __forceinline__ void mma_m16n8k32_e4m3_e5m2([[maybe_unused]] float (&d)[4],
                                                       [[maybe_unused]] const uint32_t (&a)[4],
                                                       [[maybe_unused]] const uint32_t (&b)[2]) {
#if WARPSMITH_HAS_FP8_MMA
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  __trap();
#endif
}

__device__ __forceinline__ void mma_m16n8k32_e5m2_e4m3([[maybe_unused]] float (&d)[4],
                                                       [[maybe_unused]] const uint32_t (&a)[4],
                                                       [[maybe_unused]] const uint32_t (&b)[2]) {
#if WARPSMITH_HAS_FP8_MMA
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e4m3.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  __trap();
#endif
}

}  // namespace warpsmith::ptx
