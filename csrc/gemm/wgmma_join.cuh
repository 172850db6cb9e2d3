// Slices of k, added up in the launch that multiplies them: the last block of a tile to come reads what the others have left
// in the workspace, in their order, so that the bits do not depend on which one it is.
#pragma once

#include "device/ptx/memory.h"
#include "gemm/wgmma_finish.cuh"
#include "gemm/wgmma_tiles.h"

namespace warpsmith {
namespace {

// One array per kernel and device, that no file holds; of kernels that join slices alone.
template <class Config>
__device__ unsigned join_tickets[kJoinRanges * kJoinTickets];

#if WARPSMITH_HAS_WGMMA

// Leaves a warpgroup's sums of a slice to the others, by `ends`. Whether they are the last of the tile to come: `sums` are then
// those of all slices. `drawn`: a word of shared memory.
template <class Config>
__device__ __forceinline__ bool join_slices(typename Config::Sums& sums, typename Config::Ends& ends, const GemmArgs& p,
                                            const WgmmaPlace& at, int slices, unsigned* ticket, unsigned& drawn) {
  ends.leave(sums, p, at);
  Config::Ends::meet();
  if (threadIdx.x % kWarpgroup == 0) drawn = ptx::inc_acq_rel(ticket, slices - 1);
  Config::Ends::meet();
  if (drawn + 1 != static_cast<unsigned>(slices)) return false;
  ends.collect(sums, p, at, slices);
  return true;
}

#endif

}  // namespace
}  // namespace warpsmith
