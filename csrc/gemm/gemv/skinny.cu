// GEMV with several vectors: weights streamed once for all of them.
//   Against `block`: weights and vectors pass through rings in shared memory, and every value of either that a thread
//   reads from there is used several times: by tensor cores in 16 bits, in tiles of registers in f32. See
//   gemm/skinny_ring.cuh, and gemm/skinny_ring_deal.h for who takes which rows.
//   Occupancy: one block, of 8 warps of up to 255 registers in 149 to 218 KB or of 4 warps of up to 192 registers in
//   217 or 221 KB; where a block cannot have that much, of 4 warps of up to 204 registers in 57 to 81 KB, of which
//   sm_80 holds two.
//   Bound: DRAM; in f32 with more than 8 vectors the multiply-adds come close, and their power lowers the clock.
#include "gemm/gemv/gemv.h"
#include "gemm/skinny_ring.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

void launch(const GemvArgs& a, cudaStream_t stream) {
  const SkinnyArgs args = as_skinny(a, skinny_slices(a));
  dispatch_float(a.dtype, [&]<class T>() { launch_skinny_ring<T, T>(args, a.sm_count, stream); });
}

// Shorter rows leave warps without a share.
bool suits(const GemvArgs& a) {
  return a.vectors > most_block_vectors(size_of(a.dtype)) && a.k * size_of(a.dtype) >= 8 * kRingRowBytes;
}

const Register<GemvArgs> registered{"skinny", /*min_sm=*/80, needs_packs_in_f32, launch, suits};

}  // namespace
}  // namespace warpsmith
