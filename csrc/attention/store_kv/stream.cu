// Appends keys and values to a cache at memory speed: a thread takes two packs of a key and the same two of its value.
//   Against `pack`: four loads start before the slot is known, instead of one behind the other and all behind it. Bound: DRAM;
//   for a few tokens the longer of two ways to the first store, that of the values and that of the slot.

#include "attention/store_kv/places.cuh"
#include "host/min_max.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

struct StoreWork {
  FastDivide by_places, by_heads, by_tokens;
  uint32_t count;
  int k_places, v_places;  // of a head
};

int64_t work_of(const StoreKvArgs& a, int width) {
  const int places = std::max(half_places(a.d, width), half_places(a.dv, width));
  return int64_t{a.batch} * a.m * a.heads * places;
}

template <class T, class C>
__global__ void __launch_bounds__(kPlaceThreads)
    store_kv_stream_kernel(const StoreKvArgs a, const StoreWork w, const StreamPolicy l2) {
  start_early();
  const uint32_t index = blockIdx.x * kPlaceThreads + threadIdx.x;
  if (index >= w.count) return;
  const uint32_t head_at = w.by_places.small_quotient(index), token = w.by_heads.small_quotient(head_at);
  const int place = static_cast<int>(index - head_at * static_cast<uint32_t>(w.by_places.divisor));
  const int head = static_cast<int>(head_at - token * static_cast<uint32_t>(a.heads));
  const int sequence = static_cast<int>(w.by_tokens.small_quotient(token));
  const HeadPlace of_k = half_place(place, w.k_places, 0, a.d, kPack<T>);
  const HeadPlace of_v = half_place(place, w.v_places, 0, a.dv, kPack<T>);
  store_place<T, C, 1>(a, of_k, of_v, sequence, static_cast<int>(token) - sequence * a.m, head, l2.of_loads(),
                       [](const auto&) {});
}

const char* takes(const StoreKvArgs& a) {
  return unmet(
      {needs_countable_tokens(a), are_in_packs(a) ? nullptr : "needs heads that are whole packs of 16 bytes, aligned",
       work_of(a, 16 / size_of(a.dtype)) < int64_t{1} << 31 ? nullptr : "needs less than 2^31 places of heads"});
}

void launch(const StoreKvArgs& a, cudaStream_t stream) {
  dispatch_store(a, [&]<class T, class C>() {
    const int k_places = half_places(a.d, kPack<T>), v_places = half_places(a.dv, kPack<T>);
    const StoreWork work{.by_places = FastDivide(static_cast<uint64_t>(std::max(k_places, v_places))),
                         .by_heads = FastDivide(static_cast<uint64_t>(a.heads)),
                         .by_tokens = FastDivide(static_cast<uint64_t>(a.m)),
                         .count = static_cast<uint32_t>(work_of(a, kPack<T>)),
                         .k_places = k_places,
                         .v_places = v_places};
    LaunchConfig config{.grid = dim3(static_cast<unsigned>(ceil_div(work.count, kPlaceThreads))),
                        .block = kPlaceThreads};
    config.early = true;
    const int64_t bytes = int64_t{a.batch} * a.m * a.heads * (a.d + a.dv) * static_cast<int64_t>(sizeof(T));
    warpsmith::launch<&store_kv_stream_kernel<T, C>>(config, stream, a, work, StreamPolicy(bytes));
  });
}

const Register<StoreKvArgs> registered{"stream", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
