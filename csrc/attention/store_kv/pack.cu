// Appends keys and values to a cache, 16 bytes of what is new an access.
//   A token of 8 heads of 128 values of 16 bits is 128 packs of key and as many of value: one of each a thread. Bound:
//   latency, of a slot and then of a token, for the few tokens of a decoding step; memory beyond.
#include "attention/store_kv/store.cuh"
#include "host/conditions.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

template <class T, class C>
__global__ void __launch_bounds__(kStoreThreads) store_kv_pack_kernel(const StoreKvArgs a) {
  store_token<T, C, kPack<T>>(a);
}

// Whether heads split into accesses of `width` values, all aligned.
bool in_packs(const HeadRows& x, int d, int width, int size) {
  return reinterpret_cast<uintptr_t>(x.data) % (width * size) == 0 && x.batch % width == 0 && x.token % width == 0 &&
         x.head % width == 0 && d % width == 0;
}

const char* takes(const StoreKvArgs& a) {
  const int size = size_of(a.dtype), width = 16 / size, cache_size = size_of(a.cache_dtype);
  const bool packs = in_packs(a.k, a.d, width, size) && in_packs(a.v, a.dv, width, size) &&
                     in_packs(a.k_cache, a.d, width, cache_size) && in_packs(a.v_cache, a.dv, width, cache_size);
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
