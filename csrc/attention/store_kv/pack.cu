// Appends keys and values to a cache, 16 bytes of what is new an access.
//   A token of 8 heads of 128 values of 16 bits is 128 packs of key and as many of value: one of each a thread. Bound:
//   latency, of a slot and then of a token, for the few tokens of a decoding step; memory beyond.
#include "attention/store_kv/places.cuh"
#include "host/conditions.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

template <class T, class C>
__global__ void __launch_bounds__(kStoreThreads) store_kv_pack_kernel(const StoreKvArgs a) {
  store_token<T, C, kPack<T>>(a);
}

const char* takes(const StoreKvArgs& a) {
  const bool packs = are_in_packs(a);
  return unmet({needs_countable_tokens(a), packs ? nullptr : "needs heads that are whole packs of 16 bytes, aligned"});
}

void launch(const StoreKvArgs& a, cudaStream_t stream) {
  dispatch_store(a, [&]<class T, class C>() {
    const unsigned tokens = static_cast<unsigned>(a.batch) * static_cast<unsigned>(a.m);
    warpsmith::launch<&store_kv_pack_kernel<T, C>>({tokens, kStoreThreads}, stream, a);
  });
}

const Register<StoreKvArgs> registered{"pack", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
