// Rotary positions and the cache, 16 bytes an access: a thread takes two packs of a query, or of a key and of its value.
//   Against `naive`: eight or sixteen values a thread, all asked for before angles and slot are known, and as many angles at
//   once. Bound: the angles, which every thread finds for one head alone, where memory does not limit it; a few tokens want
//   all threads they can get.
#include "attention/rope_store_kv/packs.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

template <class T, class C>
__global__ void __launch_bounds__(kPlaceThreads, 1)
    rope_store_kv_pack_kernel(const RopeStoreKvArgs a, const RopeStoreWork w, const StreamPolicy l2) {
  start_early();
  rope_store_packs<T, C, 1, 1>(a, w, l2);
}

void launch(const RopeStoreKvArgs& a, cudaStream_t stream) {
  dispatch_store(a.store, [&]<class T, class C>() {
    const RopeStoreWork work(a, kPack<T>, 1, 1);
    warpsmith::launch<&rope_store_kv_pack_kernel<T, C>>(rope_store_config(work), stream, a, work, rope_store_policy(a));
  });
}

const Register<RopeStoreKvArgs> registered{"pack", /*min_sm=*/80, takes_packs, launch};

}  // namespace
}  // namespace warpsmith
