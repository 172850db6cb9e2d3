// A ring of buffers in shared memory between copies, which fill a stage, and threads, which read it (sm_90): two mbarriers a
// stage. `full` completes when the bytes that a producer expects have landed, `empty` when every reader has given the stage
// back. The buffers lie wherever the kernel has them.
//
//   one thread, before a barrier of the block (or cluster)   ring.init(1, readers), ptx::fence_mbarrier_init()
//   the producer, for each stage                             full = ring.acquire(at), ring.expect(at, bytes), copies that
//                                                            count on `full`, at.advance()
//   every reader                                             ring.wait(at), reads, ring.release(at), at.advance()
//
// PTX ISA, "Asynchronous Data Copies" and "mbarrier":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-asynchronous-copy
#pragma once

#include <cstdint>

#include "device/pipeline.h"
#include "device/ptx/barrier.h"
#include "device/ptx/tma.h"
#include "device/warp.h"

namespace warpsmith {

// The half of it that knows what has landed: all that a ring needs whose readers meet at a barrier of the block anyway.
template <int stages_>
struct TmaStages {
  static constexpr int stages = stages_;
  using At = RingSlot<stages>;
  uint64_t full[stages];  // what the producers expect has landed

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  // By one thread. `producers`: arrivals that a stage waits for beside its bytes.
  __device__ __forceinline__ void init(int producers) {
    for (int i = 0; i < stages; ++i) ptx::mbarrier_init(full + i, producers);
  }

  // An arrival of a producer's: what it wrote to the stage itself is there.
  __device__ __forceinline__ void arrive(const At& at) { ptx::mbarrier_arrive(full + at.slot); }

  // An arrival, and so many bytes to come.
  __device__ __forceinline__ void expect(const At& at, int bytes) {
    ptx::mbarrier_arrive_expect(full + at.slot, bytes);
  }

  // Until the stage has landed; it is visible to the caller then.
  __device__ __forceinline__ void wait(const At& at) { ptx::mbarrier_wait(full + at.slot, at.phase); }
#endif
};

template <int stages_>
struct TmaRing : TmaStages<stages_> {
  using TmaStages<stages_>::stages;
  using At = RingSlot<stages>;
  uint64_t empty[stages];  // every reader has given the stage back

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  // By one thread. `readers`: how often a stage is given back.
  __device__ __forceinline__ void init(int producers, int readers) {
    for (int i = 0; i < stages; ++i) {
      ptx::mbarrier_init(this->full + i, producers);
      ptx::mbarrier_init(empty + i, readers);
    }
  }

  // Until every reader has given back what was in the stage at `at`.
  __device__ __forceinline__ void wait_empty(const At& at) { ptx::mbarrier_wait(empty + at.slot, at.phase); }

  // Until the stage may be filled, which it may at once the first time around. Copies count on what is returned.
  __device__ __forceinline__ uint64_t* acquire(const At& at) {
    wait_empty({at.slot, at.phase ^ 1});
    return this->full + at.slot;
  }

  // By each thread that has read the stage, where threads are the readers. Before the arrival a fence of its own: the copies
  // that come over what it read go another way.
  __device__ __forceinline__ void release(const At& at) {
    ptx::fence_proxy_async();
    ptx::mbarrier_arrive(empty + at.slot);
  }

  // By a warp that has read the stage, where warps are the readers: to the ring of every block of a cluster whose producers
  // fill each other's stages.
  template <int cluster>
  __device__ __forceinline__ void release_warp(const At& at) {
    static_assert(cluster <= kWarp, "a lane for each block");
    ptx::fence_proxy_async();
    __syncwarp();
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    if (lane < cluster) ptx::mbarrier_arrive_remote(empty + at.slot, lane);
  }
#endif
};

}  // namespace warpsmith
