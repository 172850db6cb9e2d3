// Loads from shared memory of other blocks of a cluster (sm_90).
// PTX ISA, "Data Movement and Conversion Instructions: mapa" and "ld":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-mapa
#pragma once

#include <cstdint>

#include "device/ptx/memory.h"

namespace warpsmith::ptx {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// What lies in the same place of block `rank`. That block must have written it before a cluster barrier, and may write there
// again, or end, after another one.
__device__ __forceinline__ float4 load_remote(const float4* local, int rank) {
  float4 x;
  asm volatile(
      "{\n"
      "  .reg .b32 remote;\n"
      "  mapa.shared::cluster.u32 remote, %4, %5;\n"
      "  ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [remote];\n"
      "}"
      : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
      : "r"(shared_address(local)), "r"(rank));
  return x;
}

__device__ __forceinline__ float2 load_remote(const float2* local, int rank) {
  float2 x;
  asm volatile(
      "{\n"
      "  .reg .b32 remote;\n"
      "  mapa.shared::cluster.u32 remote, %2, %3;\n"
      "  ld.shared::cluster.v2.f32 {%0, %1}, [remote];\n"
      "}"
      : "=f"(x.x), "=f"(x.y)
      : "r"(shared_address(local)), "r"(rank));
  return x;
}

#endif

}  // namespace warpsmith::ptx
