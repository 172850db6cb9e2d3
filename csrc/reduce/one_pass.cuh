// The end of a single launch: every block leaves its sum, and whichever comes last adds them up, always in the order of
// the blocks. Harris et al., "threadFenceReduction" of the CUDA samples:
// https://github.com/NVIDIA/cuda-samples/tree/master/Samples/2_Concepts_and_Techniques/threadFenceReduction
#pragma once

#include "reduce/one_pass.h"
#include "reduce/ticket.cuh"
#include "reduce/total.cuh"

namespace warpsmith {

// Where the blocks of a launch meet.
template <class Sum>
struct Joint {
  Sum* partial;       // [blocks]
  int ticket;         // index into `tickets`, or kNoTicket
  unsigned* cleared;  // stands in for kNoTicket
};

// For a launch of `blocks` blocks; `workspace` holds OnePassTile::workspace_bytes.
template <class Sum>
Joint<Sum> make_joint(void* workspace, int64_t blocks, cudaStream_t stream) {
  static_assert(sizeof(Sum) == 8, "workspace_bytes counts on it");
  Sum* partial = static_cast<Sum*>(workspace);
  Joint<Sum> joint{partial, kNoTicket, reinterpret_cast<unsigned*>(partial + blocks)};
  if (blocks == 1) return joint;
  joint.ticket = ticket_for(stream);
  if (joint.ticket == kNoTicket) {
    check_cuda(cudaMemsetAsync(joint.cleared, 0, sizeof(unsigned), stream), "cudaMemsetAsync");
  }
  return joint;
}

namespace {

// Replaces the sum of each thread by that of the whole grid, in one thread, for which it returns true.
template <int threads, class Sum>
__device__ __forceinline__ bool join_blocks(Sum& total, const Joint<Sum>& joint) {
  __shared__ BlockReduceStorage<Sum, threads> within, across;
  __shared__ bool last;
  total = block_reduce<threads>(total, within);
  if (gridDim.x == 1) return threadIdx.x == 0;

  // leave this block's sum; the fences see to it that whoever draws the last number sees all sums
  if (threadIdx.x == 0) {
    joint.partial[blockIdx.x] = total;
    __threadfence();
    unsigned* ticket = joint.ticket == kNoTicket ? joint.cleared : &tickets[joint.ticket];
    last = draw(ticket, gridDim.x) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return false;
  __threadfence();

  // add them up
  total = block_reduce<threads>(add_partials<threads>(joint.partial, gridDim.x), across);
  return threadIdx.x == 0;
}

}  // namespace
}  // namespace warpsmith
