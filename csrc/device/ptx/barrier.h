// Barriers: of some of a block's warps, between grids, and in shared memory for copies and clusters (sm_90).
// PTX ISA, "Parallel Synchronization and Communication Instructions: bar", "griddepcontrol", "mbarrier" and "st.async":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions
#pragma once

#include <cstdint>

#include "device/ptx/memory.h"

namespace warpsmith::ptx {

// As __syncthreads(), which is barrier 0, for `threads` of the block's threads: whole warps. `barrier` is 1 to 15.
__device__ __forceinline__ void sync_warps(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// A grid may start while the one before it in the stream ends (LaunchConfig::early in host/launch.h). Before sm_90, where
// grids never overlap, neither of these does anything.

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

// mbarriers lie in shared memory and count arrivals and bytes.

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

__device__ __forceinline__ void mbarrier_init(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}

// Makes this thread's mbarrier_init visible to the cluster, once a cluster barrier follows.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// One arrival; the phase completes when `bytes` have landed too.
__device__ __forceinline__ void mbarrier_arrive_expect(uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

// One arrival; what this thread has read or written comes before it.
__device__ __forceinline__ void mbarrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// The same on the barrier of that name in block `rank` of the cluster. What this thread has read comes before it; its
// writes to other blocks would need release.cluster, which costs a fence of all memory.
__device__ __forceinline__ void mbarrier_arrive_remote(uint64_t* barrier, int rank) {
  asm volatile(
      "{\n"
      "  .reg .b32 remote;\n"
      "  mapa.shared::cluster.u32 remote, %0, %1;\n"
      "  mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
}

// Returns once the phase of that parity has completed; what copies and threads of this block brought is then visible.
__device__ __forceinline__ void mbarrier_wait(uint64_t* barrier, int parity) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n"
        "  .reg .pred complete;\n"
        "  mbarrier.try_wait.parity.shared::cta.b64 complete, [%1], %2;\n"
        "  selp.u32 %0, 1, 0, complete;\n"
        "}"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  }
}

// The same where other blocks of the cluster stored here.
__device__ __forceinline__ void mbarrier_wait_cluster(uint64_t* barrier, int parity) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n"
        "  .reg .pred complete;\n"
        "  mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 complete, [%1], %2;\n"
        "  selp.u32 %0, 1, 0, complete;\n"
        "}"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  }
}

// Writes 4 bytes to the same variable in block `rank` of the cluster and counts them on that block's barrier.
__device__ __forceinline__ void store_async(float* local, uint64_t* barrier, int rank, float value) {
  asm volatile(
      "{\n"
      "  .reg .b32 remote, signal;\n"
      "  mapa.shared::cluster.u32 remote, %0, %2;\n"
      "  mapa.shared::cluster.u32 signal, %1, %2;\n"
      "  st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [remote], %3, [signal];\n"
      "}" ::"r"(shared_address(local)),
      "r"(shared_address(barrier)), "r"(rank), "r"(__float_as_uint(value))
      : "memory");
}

#endif

}  // namespace warpsmith::ptx
