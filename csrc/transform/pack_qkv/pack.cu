// Queries, keys and values put together, 128-bit accesses.
//   Against `naive`: a thread moves 16 bytes. Bound: DRAM.
#include "host/launch.h"
#include "host/registry.h"
#include "transform/pack_qkv/pack_qkv.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;

template <class Group>
__global__ void __launch_bounds__(kThreads)
    pack_qkv_pack_kernel(const __grid_constant__ PackQkvArgs a, const __grid_constant__ QkvGrid grid) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= grid.threads) return;
  const QkvPlace at = qkv_place(a, grid, i);
  static_cast<Group*>(a.packed)[i] = static_cast<const Group*>(at.of)[at.group];
}

const char* takes(const PackQkvArgs& a) { return needs_head_packs(a); }

template <class Group>
void launch_of(const PackQkvArgs& a, cudaStream_t stream) {
  const QkvGrid grid(a, static_cast<int>(sizeof(Group)) / size_of(a.dtype));
  const auto blocks = static_cast<unsigned>(ceil_div(grid.threads, kThreads));
  warpsmith::launch<&pack_qkv_pack_kernel<Group>>({blocks, kThreads}, stream, a, grid);
}

void launch(const PackQkvArgs& a, cudaStream_t stream) { launch_of<uint4>(a, stream); }

const Register<PackQkvArgs> registered{"pack", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
