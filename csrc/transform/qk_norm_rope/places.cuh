// The heads of a token in places: a head is that of a few lanes that follow each other, a power of two of them, each of
// which has two packs of it, half of the turning values apart or, of what does not turn, neighbours.
#pragma once

#include "device/warp.h"
#include "transform/qk_norm_rope/values.cuh"
#include "transform/rope/packs.cuh"

namespace warpsmith {

inline int head_lanes(const RopeArgs& a, int width) {
  int lanes = 1;
  while (lanes < rope_places(a, width)) lanes *= 2;
  return lanes;
}

inline const char* needs_norm_packs(const QkNormRopeArgs& a) {
  const int width = 16 / size_of(a.rope.dtype);
  const auto aligned = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  return unmet({takes_packs(a.rope), head_lanes(a.rope, width) <= kWarp ? nullptr : "needs heads of at most 1024 bytes",
                aligned(a.q_weight) && aligned(a.k_weight) ? nullptr : "needs weights aligned to 16 bytes",
                int64_t{a.rope.batch} * a.rope.tokens * (a.rope.q.heads + a.rope.k.heads) * head_lanes(a.rope, width) <
                        int64_t{1} << 31
                    ? nullptr
                    : "needs less than 2^31 lanes of heads"});
}

// Where a place lies in a head.
struct HeadPlace {
  int at, apart;              // of the first pack, and how far behind it the second one begins
  bool turns, first, second;  // whether there are both
};

__device__ __forceinline__ HeadPlace head_place(const RopeArgs& a, int place, int width) {
  const int turning = a.angles.pairs / width;
  HeadPlace p;
  p.turns = place < turning;
  p.at = p.turns ? place * width : a.rotary() + 2 * (place - turning) * width;
  p.apart = p.turns ? a.angles.pairs : width;
  p.first = p.at < a.d;
  p.second = p.at + p.apart < a.d;
  return p;
}

// Over the lanes of a head.
__device__ __forceinline__ float sum_over_head(float value, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(kAllLanes, value, distance);
  return value;
}

template <int width>
__device__ __forceinline__ float sum_of_squares(const float (&low)[width], const float (&high)[width]) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < width; ++i) sum = fmaf(low[i], low[i], fmaf(high[i], high[i], sum));
  return sum;
}

// The angles of a place; none of what does not turn.
template <class T, int width>
__device__ __forceinline__ void place_angles(float (&cosine)[width], float (&sine)[width], const RopeArgs& a,
                                             const HeadPlace& place, int batch, int token) {
  if (!place.turns) {
#pragma unroll
    for (int i = 0; i < width; ++i) {
      cosine[i] = 1.0f;
      sine[i] = 0.0f;
    }
    return;
  }
  int first, second;
  pack_angles_at<width>(first, second, a.angles, place.at);
  rotary_angles<T, width / 2>(cosine, sine, a.angles, batch, token, first);
  rotary_angles<T, width / 2>(cosine + width / 2, sine + width / 2, a.angles, batch, token, second);
}

struct NormWork {
  FastDivide by_groups, by_tokens;
  int64_t count;
  int q_groups, lanes, lane_bits;

  NormWork(const QkNormRopeArgs& a, int width, int heads)
      : by_groups(static_cast<uint64_t>(ceil_div(a.rope.q.heads, heads) + ceil_div(a.rope.k.heads, heads))),
        by_tokens(static_cast<uint64_t>(a.rope.tokens)),
        q_groups(static_cast<int>(ceil_div(a.rope.q.heads, heads))),
        lanes(head_lanes(a.rope, width)),
        lane_bits(0) {
    while (1 << lane_bits < lanes) ++lane_bits;
    count = int64_t{a.rope.batch} * a.rope.tokens * static_cast<int64_t>(by_groups.divisor) * lanes;
  }
};

template <class T, int heads>
__device__ __forceinline__ void norm_rope_places(const QkNormRopeArgs& args, const NormWork& w,
                                                 const StreamPolicy& l2) {
  constexpr int kWidth = kPack<T>;
  const RopeArgs& a = args.rope;
  const int64_t thread = int64_t{blockIdx.x} * kRopeThreads + threadIdx.x;
  const bool there = thread < w.count;  // all lanes of a warp add up
  const uint32_t index = there ? static_cast<uint32_t>(thread) : 0;
  const uint32_t group_at = index >> w.lane_bits, token_at = w.by_groups.small_quotient(group_at);
  const int group = static_cast<int>(group_at - token_at * static_cast<uint32_t>(w.by_groups.divisor));
  const int batch = static_cast<int>(w.by_tokens.small_quotient(token_at));
  const int token = static_cast<int>(token_at) - batch * a.tokens;
  const HeadPlace place = head_place(a, static_cast<int>(index) & (w.lanes - 1), kWidth);

  const bool of_q = group < w.q_groups;
  const int head = (of_q ? group : group - w.q_groups) * heads;
  const int left = there && place.first ? (of_q ? a.q.heads : a.k.heads) - head : 0;
  const int64_t x_head = of_q ? a.q.x_head : a.k.x_head, y_head = of_q ? a.q.y_head : a.k.y_head;
  const T* x = static_cast<const T*>(of_q ? a.q.x : a.k.x) + batch * (of_q ? a.q.x_batch : a.k.x_batch) +
               token * (of_q ? a.q.x_token : a.k.x_token) + head * x_head + place.at;
  T* y = static_cast<T*>(of_q ? a.q.y : a.k.y) + batch * (of_q ? a.q.y_batch : a.k.y_batch) +
         token * (of_q ? a.q.y_token : a.k.y_token) + head * y_head + place.at;

  // load
  Pack<T> lower[heads], upper[heads];
  const uint64_t policy = l2.of_loads();
#pragma unroll
  for (int h = 0; h < heads; ++h) {
    reinterpret_cast<uint4&>(lower[h]) = uint4{};
    reinterpret_cast<uint4&>(upper[h]) = uint4{};
    if (h >= left) continue;
    reinterpret_cast<uint4&>(lower[h]) = ptx::load_once(reinterpret_cast<const uint4*>(x + h * x_head), policy);
    if (place.second) {
      reinterpret_cast<uint4&>(upper[h]) =
          ptx::load_once(reinterpret_cast<const uint4*>(x + h * x_head + place.apart), policy);
    }
  }
  // find the angles and the weights
  float cosine[kWidth], sine[kWidth], low_weight[kWidth] = {}, high_weight[kWidth] = {};
  if (left > 0) {
    const void* weight = of_q ? args.q_weight : args.k_weight;
    place_angles<T>(cosine, sine, a, place, batch, token);
    head_weights<T>(low_weight, weight, place.at, args.weight_dtype);
    if (place.second) head_weights<T>(high_weight, weight, place.at + place.apart, args.weight_dtype);
  }
  // normalise, rotate, write
#pragma unroll
  for (int h = 0; h < heads; ++h) {
    float low[kWidth], high[kWidth];
    to_float(low, lower[h]);
    to_float(high, upper[h]);
    const float rstd = head_rstd(sum_over_head(sum_of_squares(low, high), w.lanes), a.d, args.eps);
    if (h >= left) continue;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      low[i] *= rstd * low_weight[i];
      high[i] *= rstd * high_weight[i];
    }
    if (place.turns) rotate_packs<T, kWidth>(low, high, cosine, sine, a.angles.interleaved);
    from_float(lower[h], low);
    from_float(upper[h], high);
    store<Cache::streaming>(y + h * y_head, lower[h]);
    if (place.second) store<Cache::streaming>(y + h * y_head + place.apart, upper[h]);
  }
}

inline LaunchConfig norm_rope_config(const NormWork& work) {
  const dim3 grid(static_cast<unsigned>(ceil_div(work.count, kRopeThreads)));
  return {.grid = grid, .block = kRopeThreads, .early = true};
}

}  // namespace warpsmith
