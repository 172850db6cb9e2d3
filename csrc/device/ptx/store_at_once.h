// A 16-byte store that the compiler does not take apart, as it does with plain ones between branches.
// PTX ISA, "Data Movement and Conversion Instructions: st":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-st
#pragma once

#include <cstdint>

namespace warpsmith::ptx {

__device__ __forceinline__ void store_at_once(uint4* to, const uint4& v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

}  // namespace warpsmith::ptx
