// Appends keys and values to a cache, one value an access; heads of any length and alignment.
//   Bound: the number of instructions; one value costs as many as a pack of eight.
#include "attention/store_kv/store.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

template <class T, class C>
__global__ void __launch_bounds__(kStoreThreads) store_kv_naive_kernel(const StoreKvArgs a) {
  store_token<T, C, 1>(a);
}

const char* takes(const StoreKvArgs& a) { return needs_countable_tokens(a); }

void launch(const StoreKvArgs& a, cudaStream_t stream) {
  dispatch_store(a, [&]<class T, class C>() {
    const unsigned tokens = static_cast<unsigned>(a.batch) * static_cast<unsigned>(a.m);
    warpsmith::launch<&store_kv_naive_kernel<T, C>>({tokens, kStoreThreads}, stream, a);
  });
}

const Register<StoreKvArgs> registered{"naive", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
