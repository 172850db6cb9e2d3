// A block takes a token: all heads of its key, then of its value.
#pragma once

#include "attention/pages.cuh"
#include "attention/store_kv/store_kv.h"
#include "device/convert.h"
#include "device/saturate.h"
#include "host/launch.h"

namespace warpsmith {

inline constexpr int kStoreThreads = 128;

// What says where a token goes: its slot, or the length of its sequence. Apart from find_slot(), so that other loads can
// start while this one is on its way.
__device__ __forceinline__ int64_t load_slot(const StoreKvArgs& a, int sequence, int64_t token) {
  return a.slots != nullptr ? __ldg(reinterpret_cast<const long long*>(a.slots) + token) : __ldg(a.lengths + sequence);
}

// Where token i of a sequence goes, of which load_slot() says `said`; false where it is left out.
__device__ __forceinline__ bool find_slot(InPage& to, const StoreKvArgs& a, int sequence, int i, int64_t said) {
  if (a.slots != nullptr) {
    if (said < 0) return false;
    const auto page = static_cast<int64_t>(a.pages.by_tokens.quotient(static_cast<uint64_t>(said)));
    if (page >= a.pages.count) {
      ptx::trap_with("a slot lies behind the end of the cache");
    }
    to = {static_cast<int>(page), static_cast<int>(said - page * a.pages.tokens)};
    return true;
  }
  const int64_t position = said + i;
  if (position < 0 || position >= int64_t{a.pages.width} * a.pages.tokens) {
    ptx::trap_with("the cache has no room for the new tokens of a sequence");
  }
  to = find_token(a.pages, sequence, static_cast<int>(position));
  return true;
}

// Values as the cache has them.
template <class C, class T, int width>
__device__ __forceinline__ Vec<C, width> as_stored(const Vec<T, width>& values, float inverse) {
  if constexpr (std::is_same_v<T, C>) {
    return values;
  } else {
    float wide[width];
    to_float(wide, values);
#pragma unroll
    for (float& value : wide) value *= inverse;
    Vec<C, width> narrow;
    from_float_saturating(narrow, wide);
    return narrow;
  }
}

// What values of a head are multiplied with before they are narrowed.
__device__ __forceinline__ float inverse_scale(const float* scale, int step, int head) {
  return scale == nullptr ? 1.0f : 1.0f / __ldg(scale + head * step);
}

// The rows of one of the two, `width` values an access.
template <class T, class C, int width>
__device__ __forceinline__ void store_heads(const HeadRows& from, const HeadRows& cache, const float* scale,
                                            int scale_step, int heads, const InPage& to, int64_t sequence, int64_t i,
                                            int d) {
  const T* x = static_cast<const T*>(from.data) + sequence * from.batch + i * from.token;
  C* y = static_cast<C*>(cache.data) + int64_t{to.page} * cache.batch + int64_t{to.token} * cache.token;
  const int per_head = d / width, count = heads * per_head;
  for (int at = static_cast<int>(threadIdx.x); at < count; at += kStoreThreads) {
    const int head = at / per_head, column = (at - head * per_head) * width;
    Vec<T, width> values;
    load(values, x + head * from.head + column);
    store(y + head * cache.head + column, as_stored<C>(values, inverse_scale(scale, scale_step, head)));
  }
}

// Both rows of a token.
template <class T, class C, int width>
__device__ __forceinline__ void store_token(const StoreKvArgs& a) {
  const int64_t token = blockIdx.x, sequence = token / a.m, i = token - sequence * a.m;
  const int of = static_cast<int>(sequence);
  InPage to;
  if (!find_slot(to, a, of, static_cast<int>(i), load_slot(a, of, token))) return;
  store_heads<T, C, width>(a.k, a.k_cache, a.k_scale, a.scale_step_k, a.heads, to, sequence, i, a.d);
  store_heads<T, C, width>(a.v, a.v_cache, a.v_scale, a.scale_step_v, a.heads, to, sequence, i, a.dv);
}

// Launches `body` for the types of the call.
template <class Body>
void dispatch_store(const StoreKvArgs& a, Body&& body) {
  dispatch_float(a.dtype, [&]<class T>() {
    if (a.cache_dtype == Dtype::e4m3) {
      body.template operator()<T, e4m3>();
    } else {
      body.template operator()<T, T>();
    }
  });
}

inline const char* needs_countable_tokens(const StoreKvArgs& a) {
  return int64_t{a.batch} * a.m < int64_t{1} << 31 ? nullptr : "needs less than 2^31 tokens";
}

}  // namespace warpsmith
