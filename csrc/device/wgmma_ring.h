// A ring of stages (device/tma_ring.h) that the copy engine fills and wgmma reads: threads wait and give back, but read
// nothing themselves, so that no fence of theirs stands between what wgmma has read and what is copied over it.
#pragma once

#include "device/ptx/wgmma.h"
#include "device/tma_ring.h"

namespace warpsmith {

template <int stages_>
struct WgmmaRing : TmaRing<stages_> {
  using At = typename TmaRing<stages_>::At;

#if WARPSMITH_HAS_WGMMA
  // Until the stage has landed.
  __device__ __forceinline__ void wait_unread(const At& at) {
    ptx::mbarrier_wait_unread(this->full + at.slot, at.phase);
  }

  // By a warp whose products of the stage are done: to the ring of every block of a cluster whose producers fill each
  // other's stages.
  template <int cluster>
  __device__ __forceinline__ void release_unread(const At& at) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    if constexpr (cluster == 1) {
      if (lane == 0) ptx::mbarrier_arrive(this->empty + at.slot);
    } else {
      if (lane < cluster) ptx::mbarrier_arrive_remote(this->empty + at.slot, lane);
    }
  }
#endif
};

}  // namespace warpsmith
