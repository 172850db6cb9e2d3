// A single launch: blocks walk over tiles, every block leaves its sum, and whichever comes last adds them up, always in
// the order of the blocks. Harris et al., "threadFenceReduction" of the CUDA samples:
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
  int ticket;         // index into `tickets`, or kNoRange
  unsigned* cleared;  // stands in for kNoRange
};

// For a launch of `blocks` blocks; `workspace` holds OnePass::workspace_bytes.
template <class Sum>
Joint<Sum> make_joint(void* workspace, int64_t blocks, cudaStream_t stream) {
  static_assert(sizeof(Sum) == 8, "workspace_bytes counts on it");
  Sum* partial = static_cast<Sum*>(workspace);
  Joint<Sum> joint{partial, kNoRange, reinterpret_cast<unsigned*>(partial + blocks)};
  if (blocks == 1) return joint;
  joint.ticket = ticket_for(stream);
  if (joint.ticket == kNoRange) {
    check_cuda(cudaMemsetAsync(joint.cleared, 0, sizeof(unsigned), stream), "cudaMemsetAsync");
  }
  return joint;
}

namespace {

// The sum over the block, in the threads of its first warp; `shared` is left to be read until the next barrier.
template <int threads, class Sum, class Running>
__device__ __forceinline__ Sum sum_in_first_warp(Running value, Sum (&shared)[threads / kWarp]) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const Sum sum = warp_reduce(value);
  if (lane == 0) shared[warp] = sum;
  __syncthreads();
  return warp == 0 ? warp_reduce<threads / kWarp>(shared[lane % (threads / kWarp)]) : Sum{};
}

// Adds up the sums of all threads of the grid. True for one thread, whose `total` they are.
template <class Tile, class Sum, class Running>
__device__ __forceinline__ bool join_blocks(Sum& total, const Running& value, const Joint<Sum>& joint) {
  constexpr int kThreads = Tile::threads;
  __shared__ Sum within[kThreads / kWarp];
  total = sum_in_first_warp<kThreads>(value, within);
  if (gridDim.x == 1) return threadIdx.x == 0;

  // leave this block's sum
  const auto is_last = [&] {
    joint.partial[blockIdx.x] = total;
    unsigned* ticket = joint.ticket == kNoRange ? joint.cleared : &tickets[joint.ticket];
    return draw(ticket, gridDim.x) == gridDim.x - 1;
  };

  // add them up: few by a warp, while the others are gone
  if constexpr (Tile::single) {
    if (threadIdx.x >= kWarp) return false;
    bool last = threadIdx.x == 0 && is_last();
    last = __shfl_sync(kAllLanes, last, 0);
    if (!last) return false;
    __syncwarp();  // the sums are there for every lane
    total = warp_reduce(add_partials<kWarp>(joint.partial, gridDim.x));
  } else {
    __shared__ Sum across[kThreads / kWarp];
    __shared__ bool last;
    if (threadIdx.x == 0) last = is_last();
    __syncthreads();
    if (!last) return false;
    total = sum_in_first_warp<kThreads>(add_partials<kThreads>(joint.partial, gridDim.x), across);
  }
  return threadIdx.x == 0;
}

}  // namespace
}  // namespace warpsmith
