// Roles of warps in a block: one lane that acts for its warp, barriers at which some only arrive, and registers that change
// hands between warpgroups (sm_90a).
// PTX ISA, "elect.sync", "bar" and "setmaxnreg":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions
#pragma once

#include <cstdint>

namespace warpsmith::ptx {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// True in one lane of a warp that is here as a whole; the same one each time.
__device__ __forceinline__ bool elect_lane() {
  uint32_t elected;
  asm volatile(
      "{\n"
      "  .reg .pred is_it;\n"
      "  elect.sync _|is_it, 0xffffffff;\n"
      "  selp.u32 %0, 1, 0, is_it;\n"
      "}"
      : "=r"(elected));
  return elected != 0;
}

#endif

// As sync_warps (device/ptx/barrier.h), without waiting for the others: what this thread read and wrote comes before what
// follows in those that wait. `threads` counts both kinds.
__device__ __forceinline__ void arrive_warps(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// What setmaxnreg takes, of each thread; 0: what the launch gave.
constexpr bool can_be_set(int registers) {
  return registers == 0 || (registers % 8 == 0 && registers >= 24 && registers <= 256);
}

// The registers of each thread, from now on. By all warps of a warpgroup, in a kernel whose launch bounds say how many
// registers there are.
template <int registers>
__device__ __forceinline__ void lower_registers() {
  static_assert(can_be_set(registers), "what setmaxnreg takes");
  if constexpr (registers != 0) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

// Waits until other warpgroups have left enough.
template <int registers>
__device__ __forceinline__ void raise_registers() {
  static_assert(can_be_set(registers), "what setmaxnreg takes");
  if constexpr (registers != 0) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

#endif

}  // namespace warpsmith::ptx
