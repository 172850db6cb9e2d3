// Copies from global to shared memory that a flag switches off; committed and awaited as those of cp_async.h.
// Predicated, not branched around: the loop they stand in stays one basic block, in which the compiler is free to place
// them among other instructions.
// PTX ISA, "cp.async":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async
#pragma once

#include <cstdint>

namespace warpsmith::ptx {

// 16 bytes, both sides aligned to 16; not kept in L1. Where not `go`, nothing is read or written.
__device__ __forceinline__ void cp_async_if(bool go, uint4* shared, const uint4* global) {
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("{.reg .pred go; setp.ne.b32 go, %2, 0; @go cp.async.cg.shared.global [%0], [%1], 16;}" ::"r"(to),
               "l"(global), "r"(static_cast<int>(go))
               : "memory");
}

// 4 bytes, both sides aligned to 4; passes through L1.
__device__ __forceinline__ void cp_async_if(bool go, uint32_t* shared, const uint32_t* global) {
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("{.reg .pred go; setp.ne.b32 go, %2, 0; @go cp.async.ca.shared.global [%0], [%1], 4;}" ::"r"(to),
               "l"(global), "r"(static_cast<int>(go))
               : "memory");
}

}  // namespace warpsmith::ptx
