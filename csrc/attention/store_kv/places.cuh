// Heads in places: a place is two packs of 16 bytes of a head, half of it apart, so that neighbouring threads read
// neighbouring packs. A thread has the same place of a key and of its value, all of which it asks for before it asks where
// they go.
#pragma once

#include "attention/store_kv/store.cuh"
#include "device/fast_divide.h"
#include "device/start_early.h"
#include "device/stream_policy.h"
#include "host/ceil_div.h"
#include "host/conditions.h"

namespace warpsmith {

inline constexpr int kPlaceThreads = 128;

// Of so many values that follow each other.
inline int half_places(int values, int width) { return static_cast<int>(ceil_div(values, 2 * width)); }

// Whether heads split into accesses of `width` values, all aligned.
inline bool in_packs(const HeadRows& x, int d, int width, int size) {
  return reinterpret_cast<uintptr_t>(x.data) % (width * size) == 0 && x.batch % width == 0 && x.token % width == 0 &&
         x.head % width == 0 && d % width == 0;
}

inline bool are_in_packs(const StoreKvArgs& a) {
  const int size = size_of(a.dtype), width = 16 / size, cache_size = size_of(a.cache_dtype);
  return in_packs(a.k, a.d, width, size) && in_packs(a.v, a.dv, width, size) &&
         in_packs(a.k_cache, a.d, width, cache_size) && in_packs(a.v_cache, a.dv, width, cache_size);
}

struct HeadPlace {
  int at, apart;       // of the first pack, and how far behind it the second one begins
  bool first, second;  // whether they are there
};

// Place `place` of `places` that share out values [begin, end) of a head.
__device__ __forceinline__ HeadPlace half_place(int place, int places, int begin, int end, int width) {
  HeadPlace p;
  p.at = begin + place * width;
  p.apart = places * width;
  p.first = place < places;
  p.second = p.first && p.at + p.apart < end;
  return p;
}

// A place of several heads that follow each other, of which there are `left`.
template <class T, int heads>
struct PlacePacks {
  Pack<T> lower[heads], upper[heads];

  __device__ __forceinline__ void load(const T* x, int64_t head, const HeadPlace& p, int left, uint64_t policy) {
#pragma unroll
    for (int h = 0; h < heads; ++h) {
      if (h >= left) continue;
      const T* from = x + h * head + p.at;
      if (p.first) reinterpret_cast<uint4&>(lower[h]) = ptx::load_once(reinterpret_cast<const uint4*>(from), policy);
      if (p.second) {
        reinterpret_cast<uint4&>(upper[h]) = ptx::load_once(reinterpret_cast<const uint4*>(from + p.apart), policy);
      }
    }
  }

  // Into a cache of C, whose scales are those of `first_head` on.
  template <class C>
  __device__ __forceinline__ void store_as(C* y, int64_t head, const HeadPlace& p, int left, const float* scale,
                                           int scale_step, int first_head) const {
#pragma unroll
    for (int h = 0; h < heads; ++h) {
      if (h >= left) continue;
      C* to = y + h * head + p.at;
      const float inverse = std::is_same_v<T, C> ? 1.0f : inverse_scale(scale, scale_step, first_head + h);
      if (p.first) store<Cache::streaming>(to, as_stored<C>(lower[h], inverse));
      if (p.second) store<Cache::streaming>(to + p.apart, as_stored<C>(upper[h], inverse));
    }
  }
};

// Stores one place of some heads of token i, from `head` on. `change` may do what it likes to the key's packs first.
template <class T, class C, int heads, class Change>
__device__ __forceinline__ void store_place(const StoreKvArgs& a, const HeadPlace& of_k, const HeadPlace& of_v,
                                            int sequence, int i, int head, uint64_t policy, Change&& change) {
  const int left = a.heads - head;
  // load
  PlacePacks<T, heads> k, v;
  k.load(static_cast<const T*>(a.k.data) + sequence * a.k.batch + i * a.k.token + head * a.k.head, a.k.head, of_k, left,
         policy);
  v.load(static_cast<const T*>(a.v.data) + sequence * a.v.batch + i * a.v.token + head * a.v.head, a.v.head, of_v, left,
         policy);
  const int64_t said = load_slot(a, sequence, int64_t{sequence} * a.m + i);
  change(k);
  // write
  InPage to;
  if (!find_slot(to, a, sequence, i, said)) return;
  const HeadRows &kc = a.k_cache, &vc = a.v_cache;
  k.template store_as<C>(static_cast<C*>(kc.data) + to.page * kc.batch + to.token * kc.token + head * kc.head, kc.head,
                         of_k, left, a.k_scale, a.scale_step_k, head);
  v.template store_as<C>(static_cast<C*>(vc.data) + to.page * vc.batch + to.token * vc.token + head * vc.head, vc.head,
                         of_v, left, a.v_scale, a.scale_step_v, head);
}

}  // namespace warpsmith
