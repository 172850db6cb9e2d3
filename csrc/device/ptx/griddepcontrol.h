// A grid that starts while the one before it in the stream ends (LaunchConfig::early in host/launch.h). Before sm_90,
// where grids never overlap, neither does anything.
// PTX ISA, "griddepcontrol":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-griddepcontrol
#pragma once

namespace warpsmith::ptx {

// Returns once the grid before is complete and what it wrote can be read. Before this a kernel may touch nothing that an
// earlier one reads or writes.
__device__ __forceinline__ void wait_for_previous_grid() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next grid may start as soon as every block has said this or left, and there is room.
__device__ __forceinline__ void allow_next_grid() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace warpsmith::ptx
