// Rotary positions and the cache at memory speed: a thread turns its place in four queries, or in two keys, whose values it
// has as well.
//   Against `pack`: eight loads start before the first is waited for, and the angles, whether read or computed, serve
//   several heads. Bound: DRAM.
#include "attention/rope_store_kv/packs.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

constexpr int kHeads = 4, kKvHeads = 2, kMinBlocks = 4;

template <class T, class C>
__global__ void __launch_bounds__(kPlaceThreads, kMinBlocks)
    rope_store_kv_stream_kernel(const RopeStoreKvArgs a, const RopeStoreWork w, const StreamPolicy l2) {
  start_early();
  rope_store_packs<T, C, kHeads, kKvHeads>(a, w, l2);
}

// Below, the threads of one head each do not fill a large GPU twice.
constexpr int64_t kLeastWork = 1 << 19;

bool suits(const RopeStoreKvArgs& a) { return rope_store_work(a, 16 / size_of(a.store.dtype), 1, 1) >= kLeastWork; }

void launch(const RopeStoreKvArgs& a, cudaStream_t stream) {
  dispatch_store(a.store, [&]<class T, class C>() {
    const RopeStoreWork work(a, kPack<T>, kHeads, kKvHeads);
    warpsmith::launch<&rope_store_kv_stream_kernel<T, C>>(rope_store_config(work), stream, a, work,
                                                          rope_store_policy(a));
  });
}

const Register<RopeStoreKvArgs> registered{"stream", /*min_sm=*/80, takes_packs, launch, suits};

}  // namespace
}  // namespace warpsmith
