// The work of a token in packs of 16 bytes: a thread takes one place of a head in some heads that follow each other, of
// queries, or of keys and of values alike. A place is two packs, those that turn together, or half of the rest apart.
#pragma once

#include "attention/rope_store_kv/token.cuh"
#include "attention/store_kv/places.cuh"
#include "host/min_max.h"
#include "rotary/packs.h"

namespace warpsmith {

// Places of a head.
struct RopePlaces {
  int turning, rest, values;  // that turn, that are copied, of a value

  RopePlaces(const RopeStoreKvArgs& a, int width)
      : turning(a.angles.pairs / width),
        rest(half_places(a.store.d - a.rotary(), width)),
        values(half_places(a.store.dv, width)) {}

  int most() const { return std::max(turning + rest, values); }
};

inline int64_t rope_store_work(const RopeStoreKvArgs& a, int width, int heads, int kv_heads) {
  const int64_t groups = ceil_div(a.q.heads, heads) + ceil_div(a.store.heads, kv_heads);
  return int64_t{a.store.batch} * a.store.m * groups * RopePlaces(a, width).most();
}

struct RopeStoreWork {
  FastDivide by_places, by_groups, by_tokens;
  uint32_t count;
  int q_groups;  // of heads
  RopePlaces places;

  RopeStoreWork(const RopeStoreKvArgs& a, int width, int heads, int kv_heads)
      : by_groups(static_cast<uint64_t>(ceil_div(a.q.heads, heads) + ceil_div(a.store.heads, kv_heads))),
        by_tokens(static_cast<uint64_t>(a.store.m)),
        count(static_cast<uint32_t>(rope_store_work(a, width, heads, kv_heads))),
        q_groups(static_cast<int>(ceil_div(a.q.heads, heads))),
        places(a, width) {
    by_places = FastDivide(static_cast<uint64_t>(places.most()));
  }
};

inline const char* takes_packs(const RopeStoreKvArgs& a) {
  const int size = size_of(a.store.dtype), width = 16 / size;
  const RotaryHeads& q = a.q;
  const bool queries = q.heads == 0 || (in_packs(q.x, q.x_batch, q.x_token, q.x_head, width, size) &&
                                        in_packs(q.y, q.y_batch, q.y_token, q.y_head, width, size));
  const bool packs = queries && are_in_packs(a.store) && a.angles.pairs % width == 0;
  return unmet({needs_countable_tokens(a),
                packs ? nullptr : "needs heads of which both halves are whole packs of 16 bytes, aligned",
                needs_table_packs(a.angles, a.store.dtype),
                rope_store_work(a, width, 1, 1) < int64_t{1} << 31 ? nullptr : "needs less than 2^31 places of heads"});
}

// Turns some heads of one place.
template <class T, int heads>
__device__ __forceinline__ void turn_place(PlacePacks<T, heads>& x, const RopeStoreKvArgs& a, int at, int sequence,
                                           int token) {
  constexpr int kWidth = kPack<T>;
  float cosine[kWidth], sine[kWidth];
  int first, second;
  pack_angles_at<kWidth>(first, second, a.angles, at);
  rotary_angles<T, kWidth / 2>(cosine, sine, a.angles, sequence, token, first);
  rotary_angles<T, kWidth / 2>(cosine + kWidth / 2, sine + kWidth / 2, a.angles, sequence, token, second);
#pragma unroll
  for (int h = 0; h < heads; ++h) {
    float low[kWidth], high[kWidth];
    to_float(low, x.lower[h]);
    to_float(high, x.upper[h]);
    rotate_packs<T, kWidth>(low, high, cosine, sine, a.angles.interleaved);
    from_float(x.lower[h], low);
    from_float(x.upper[h], high);
  }
}

template <class T, class C, int heads, int kv_heads>
__device__ __forceinline__ void rope_store_packs(const RopeStoreKvArgs& a, const RopeStoreWork& w,
                                                 const StreamPolicy& l2) {
  constexpr int kWidth = kPack<T>;
  const uint32_t index = blockIdx.x * kPlaceThreads + threadIdx.x;
  if (index >= w.count) return;
  const uint32_t group_at = w.by_places.small_quotient(index), token_at = w.by_groups.small_quotient(group_at);
  const int place = static_cast<int>(index - group_at * static_cast<uint32_t>(w.by_places.divisor));
  const int group = static_cast<int>(group_at - token_at * static_cast<uint32_t>(w.by_groups.divisor));
  const int sequence = static_cast<int>(w.by_tokens.small_quotient(token_at));
  const int i = static_cast<int>(token_at) - sequence * a.store.m;
  const bool turns = place < w.places.turning;
  const HeadPlace p = turns ? half_place(place, w.places.turning, 0, a.rotary(), kWidth)
                            : half_place(place - w.places.turning, w.places.rest, a.rotary(), a.store.d, kWidth);
  const int token = rotary_token(a, sequence, i);

  if (group >= w.q_groups) {
    const HeadPlace of_v = half_place(place, w.places.values, 0, a.store.dv, kWidth);
    store_place<T, C, kv_heads>(a.store, p, of_v, sequence, i, (group - w.q_groups) * kv_heads, l2.of_loads(),
                                [&](PlacePacks<T, kv_heads>& k) {
                                  if (turns) turn_place(k, a, p.at, sequence, token);
                                });
    return;
  }
  if (!turns && a.in_place) return;
  const int head = group * heads, left = a.q.heads - head;
  PlacePacks<T, heads> q;
  q.load(static_cast<const T*>(a.q.x) + sequence * a.q.x_batch + i * a.q.x_token + head * a.q.x_head, a.q.x_head, p,
         left, l2.of_loads());
  if (turns) turn_place(q, a, p.at, sequence, token);
  q.template store_as<T>(static_cast<T*>(a.q.y) + sequence * a.q.y_batch + i * a.q.y_token + head * a.q.y_head,
                         a.q.y_head, p, left, nullptr, 0, head);
}

inline LaunchConfig rope_store_config(const RopeStoreWork& work) {
  LaunchConfig config{.grid = dim3(static_cast<unsigned>(ceil_div(work.count, kPlaceThreads))), .block = kPlaceThreads};
  config.early = true;
  return config;
}

inline StreamPolicy rope_store_policy(const RopeStoreKvArgs& a) {
  const StoreKvArgs& s = a.store;
  const int64_t values = int64_t{a.q.heads + s.heads} * s.d + int64_t{s.heads} * s.dv;
  return StreamPolicy(int64_t{s.batch} * s.m * values * size_of(s.dtype));
}

}  // namespace warpsmith
