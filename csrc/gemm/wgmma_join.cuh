// Slices of k, added up in the launch that multiplies them: the last warpgroup of a tile to come reads what the others have
// left in the workspace, in their order, so that the bits do not depend on which one it is. Against a second kernel this
// spares a launch, and the wait for the slowest tile.
#pragma once

#include "device/ptx/memory.h"
#include "gemm/wgmma_finish.cuh"
#include "gemm/wgmma_tiles.h"

namespace warpsmith {
namespace {

// One array per tile of the menu and device, that no file holds.
__device__ unsigned join_tickets[kJoinRanges * kJoinTickets];

#if WARPSMITH_HAS_WGMMA

// Leaves a warpgroup's sums of a slice to the others, by `ends`. Whether they are the last of the tile to come: `sums` are then
// those of all slices. `last`: a word of shared memory that the warpgroup has for itself.
template <class Config>
__device__ __forceinline__ bool join_slices(typename Config::Sums& sums, typename Config::Ends& ends, const GemmArgs& p,
                                            const WgmmaPlace& at, int slices, unsigned* ticket, unsigned& last) {
  ends.leave(sums, p, at);
  Config::Ends::meet();
  if (threadIdx.x % kWarpgroup == 0) last = ptx::inc_acq_rel(ticket, slices - 1);
  Config::Ends::meet();
  if (last + 1 != static_cast<unsigned>(slices)) return false;
  ends.collect(sums, p, at, slices);
  return true;
}

#endif

}  // namespace
}  // namespace warpsmith
