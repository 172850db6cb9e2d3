// The work of a token in packs: a thread takes one place of a head, two packs of it half of the turning values apart, in
// `heads` heads that follow each other. Its angles are those of the token and the place, whatever the head.
#pragma once

#include "device/fast_divide.h"
#include "device/start_early.h"
#include "device/stream_policy.h"
#include "host/ceil_div.h"
#include "host/conditions.h"
#include "host/launch.h"
#include "rotary/angles.cuh"
#include "rotary/packs.h"
#include "transform/rope/rope.h"

namespace warpsmith {

inline constexpr int kRopeThreads = 256;

// Places of a head: those that turn, then those that are copied, two neighbouring packs each.
inline int rope_places(const RopeArgs& a, int width) {
  const int rest = a.in_place ? 0 : a.d - a.rotary();
  return a.angles.pairs / width + ceil_div(rest, 2 * width);
}

inline int64_t rope_work(const RopeArgs& a, int width, int heads) {
  const int64_t groups = ceil_div(a.q.heads, heads) + ceil_div(a.k.heads, heads);
  return int64_t{a.batch} * a.tokens * groups * rope_places(a, width);
}

struct RopeWork {
  FastDivide by_places, by_groups, by_tokens;
  uint32_t count;
  int q_groups, turning;  // places that turn

  RopeWork(const RopeArgs& a, int width, int heads)
      : by_places(static_cast<uint64_t>(rope_places(a, width))),
        by_groups(static_cast<uint64_t>(ceil_div(a.q.heads, heads) + ceil_div(a.k.heads, heads))),
        by_tokens(static_cast<uint64_t>(a.tokens)),
        count(static_cast<uint32_t>(rope_work(a, width, heads))),
        q_groups(ceil_div(a.q.heads, heads)),
        turning(a.angles.pairs / width) {}
};

inline const char* needs_head_packs(const RopeArgs& a) {
  const int size = size_of(a.dtype), width = 16 / size;
  bool packs = a.d % width == 0 && a.angles.pairs % width == 0;
  for (const RotaryHeads* heads : {&a.q, &a.k}) {
    if (heads->heads == 0) continue;
    packs = packs && in_packs(heads->x, heads->x_batch, heads->x_token, heads->x_head, width, size) &&
            in_packs(heads->y, heads->y_batch, heads->y_token, heads->y_head, width, size);
  }
  return packs ? nullptr : "needs heads of which both halves are whole packs of 16 bytes, aligned";
}

inline const char* takes_packs(const RopeArgs& a) {
  const int width = 16 / size_of(a.dtype);
  return unmet({needs_grid_rows(int64_t{a.batch} * a.tokens), needs_head_packs(a), needs_table_packs(a.angles, a.dtype),
                rope_work(a, width, 1) < int64_t{1} << 31 ? nullptr : "needs less than 2^31 places of heads"});
}

template <class T, int heads>
__device__ __forceinline__ void rope_packs(const RopeArgs& a, const RopeWork& w, const StreamPolicy& l2) {
  constexpr int kWidth = kPack<T>;
  const uint32_t index = blockIdx.x * kRopeThreads + threadIdx.x;
  if (index >= w.count) return;
  const uint32_t group_at = w.by_places.small_quotient(index);
  const int place = static_cast<int>(index - group_at * static_cast<uint32_t>(w.by_places.divisor));
  const uint32_t token_at = w.by_groups.small_quotient(group_at);
  const int group = static_cast<int>(group_at - token_at * static_cast<uint32_t>(w.by_groups.divisor));
  const int batch = static_cast<int>(w.by_tokens.small_quotient(token_at));
  const int token = static_cast<int>(token_at) - batch * a.tokens;

  const bool of_q = group < w.q_groups, turns = place < w.turning;
  const int head = (of_q ? group : group - w.q_groups) * heads, left = (of_q ? a.q.heads : a.k.heads) - head;
  const int64_t x_head = of_q ? a.q.x_head : a.k.x_head, y_head = of_q ? a.q.y_head : a.k.y_head;
  const int lower_at = turns ? place * kWidth : a.rotary() + 2 * (place - w.turning) * kWidth;
  const int apart = turns ? a.angles.pairs : kWidth;
  const bool both = lower_at + apart < a.d;
  const T* x = static_cast<const T*>(of_q ? a.q.x : a.k.x) + batch * (of_q ? a.q.x_batch : a.k.x_batch) +
               token * (of_q ? a.q.x_token : a.k.x_token) + head * x_head + lower_at;
  T* y = static_cast<T*>(of_q ? a.q.y : a.k.y) + batch * (of_q ? a.q.y_batch : a.k.y_batch) +
         token * (of_q ? a.q.y_token : a.k.y_token) + head * y_head + lower_at;

  // load
  Pack<T> lower[heads], upper[heads];
  const uint64_t policy = l2.of_loads();
#pragma unroll
  for (int h = 0; h < heads; ++h) {
    if (h >= left) continue;
    reinterpret_cast<uint4&>(lower[h]) = ptx::load_once(reinterpret_cast<const uint4*>(x + h * x_head), policy);
    if (both) {
      reinterpret_cast<uint4&>(upper[h]) =
          ptx::load_once(reinterpret_cast<const uint4*>(x + h * x_head + apart), policy);
    }
  }
  if (!turns) {
#pragma unroll
    for (int h = 0; h < heads; ++h) {
      if (h >= left) continue;
      store<Cache::streaming>(y + h * y_head, lower[h]);
      if (both) store<Cache::streaming>(y + h * y_head + apart, upper[h]);
    }
    return;
  }
  // find the angles
  float cosine[kWidth], sine[kWidth];
  int first, second;
  pack_angles_at<kWidth>(first, second, a.angles, lower_at);
  rotary_angles<T, kWidth / 2>(cosine, sine, a.angles, batch, token, first);
  rotary_angles<T, kWidth / 2>(cosine + kWidth / 2, sine + kWidth / 2, a.angles, batch, token, second);
  // rotate, write
#pragma unroll
  for (int h = 0; h < heads; ++h) {
    if (h >= left) continue;
    float low[kWidth], high[kWidth];
    to_float(low, lower[h]);
    to_float(high, upper[h]);
    rotate_packs<T, kWidth>(low, high, cosine, sine, a.angles.interleaved);
    from_float(lower[h], low);
    from_float(upper[h], high);
    store<Cache::streaming>(y + h * y_head, lower[h]);
    store<Cache::streaming>(y + h * y_head + apart, upper[h]);
  }
}

inline LaunchConfig rope_config(const RopeWork& work) {
  return {.grid = dim3(ceil_div(work.count, static_cast<uint32_t>(kRopeThreads))), .block = kRopeThreads};
}

inline StreamPolicy rope_policy(const RopeArgs& a) {
  return StreamPolicy(int64_t{a.batch} * a.tokens * (a.q.heads + a.k.heads) * a.d * size_of(a.dtype));
}

}  // namespace warpsmith
