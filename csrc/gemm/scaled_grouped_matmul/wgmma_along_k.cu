// Products of groups along k of fp8 values, the gradient of the weights, by wgmma, formats mixed.
//   Against `wgmma_groups`: every group has a product of its own, of all rows of x. wgmma reads lines of fp8 along k alone,
//   which is where groups end: loads begin and end at multiples of 16 bytes, and what they bring of other groups is cleared
//   in shared memory before it is multiplied, twice a tile at most. Sums leave the tensor cores every 128 values of k.
//   Occupancy: one block of 3 warpgroups in up to 227 KB. Bound: the power; many short groups the results' way to memory.
#include "gemm/scaled_grouped_matmul/wgmma.cuh"
#include "gemm/scaled_grouped_matmul/wgmma.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

const char* takes(const ScaledGroupedArgs& p) {
  if (const char* reason = needs_along_k(p)) return reason;
  return needs_wgmma_groups(p);
}

void launch(const ScaledGroupedArgs& p, cudaStream_t stream) {
  launch_scaled_along_k_tile<kScaledGroupedMenu[0]>(p, stream);
}

const Register<ScaledGroupedArgs> registered{"wgmma_along_k", /*min_sm=*/90, takes, launch};

}  // namespace
}  // namespace warpsmith
