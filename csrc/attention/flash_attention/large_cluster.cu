// Attention for head dimensions past 512, a head shared by two blocks of a cluster.
//   Against `large_registers`: each block has half of the columns of q, k, v and the answer, and so registers for 64 queries
//   instead of 32: L2 delivers k and v half as often. Each sums half of every score; the halves pass from block to block
//   through distributed shared memory, once for every 128 keys.
//   Occupancy: one block of 8 warps, up to 255 registers a thread.
//   Bound: L2 and barriers, as `large_registers` at half of the head dimension; the exchange, about a twentieth.
#include "attention/large_tiles.cuh"

namespace warpsmith {
namespace {

template <class T, class C>
__global__ void __launch_bounds__(C::threads, 1) flash_attention_large_cluster_kernel(const AttentionArgs a) {
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  if constexpr (kCompiledRoom == Room::large) {
    extern __shared__ __align__(128) uint4 memory[];
    attend_together<T, float, float, C>(a, memory);
  }
#endif
}

const char* needs_room(const AttentionArgs&) {
  return room_of(device_info(current_device()).sm) == Room::little ? "needs more than 99 KB of shared memory in a block"
                                                                   : nullptr;
}

const char* takes(const AttentionArgs& a) { return unmet({takes_heads<1024>(a), needs_room(a)}); }

bool suits(const AttentionArgs& a) { return a.d > 512 || a.dv > 512; }

void launch(const AttentionArgs& a, cudaStream_t stream) {
  visit_head_tiles<640, 768, 1024>(a, [&]<int d>() {
    using C = PairConfig<d>;
    const LaunchConfig config{query_grid(a, C::bm, C::parts), C::threads, C::bytes, /*cluster=*/2};
    a.dtype == Dtype::f16 ? warpsmith::launch<&flash_attention_large_cluster_kernel<f16, C>>(config, stream, a)
                          : warpsmith::launch<&flash_attention_large_cluster_kernel<bf16, C>>(config, stream, a);
  });
}

const Register<AttentionArgs> registered{"large_cluster", /*min_sm=*/90, takes, launch, suits, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
