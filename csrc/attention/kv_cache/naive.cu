// Attention to a cache on the CUDA cores: any dtype, head dimensions up to 1024, pages of any size. The rung that takes all.
//   A block has one query of one head; its warps take keys in turn, of which every lane has some of d. Bound: latency of
//   one key after the other, and instructions.
#include <cmath>

#include "attention/kv_cache/join_pieces.cuh"
#include "host/conditions.h"
#include "host/launch.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarp, kMostDim = 1024;

// Exact where results are.
template <class T>
__device__ __forceinline__ float power_of_two(float x) {
  if constexpr (sizeof(T) == 4) return exp2f(x);
  return ptx::exp2_approx_ftz(x);
}

// Each lane has every 32nd value of a row, `columns` in all.
template <class T, int columns>
__device__ __forceinline__ void load_row(float (&to)[columns], const T* from, int d) {
#pragma unroll
  for (int c = 0; c < columns; ++c) {
    const int column = c * kWarp + static_cast<int>(threadIdx.x) % kWarp;
    to[c] = column < d ? to_float(from[column]) : 0.0f;
  }
}

template <class T>
__device__ __forceinline__ float score_of(const KvCacheArgs& a, float product, float slope, int away) {
  float score = product * a.scale;
  if (a.softcap > 0.0f) score = a.softcap * soft_tanh<sizeof(T) == 4>(score / a.softcap);
  return fmaf(-slope, static_cast<float>(away < 0 ? -away : away), score);
}

template <class T, class C, int columns>
__global__ void __launch_bounds__(kThreads) kv_cache_naive_kernel(const KvCacheArgs a) {
  __shared__ float all[kWarps][columns * kWarp];
  __shared__ Piece pieces[kWarps];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int token = static_cast<int>(blockIdx.x % a.m), pair = static_cast<int>(blockIdx.x / a.m);
  const int head = pair % a.q_heads, batch = pair / a.q_heads, kv_head = head / a.group();
  const int64_t held = int64_t{__ldg(a.lengths + batch)} + a.appended;
  if (held < 0 || held > int64_t{a.pages.width} * a.pages.tokens) {
    ptx::trap_with("attention_with_kv_cache: a sequence is longer than its cache");
  }
  const int n = static_cast<int>(held), place = n - a.m + token;
  const int first = max(place - a.left, 0), end = min(place + a.right + 1, n);
  const float k_scale = a.key_scale(kv_head);
  const float v_scale = a.v_scale == nullptr ? 1.0f : a.v_scale[kv_head * a.v_scale_step];
  const float slope = a.slopes == nullptr ? 0.0f : a.slopes[batch * a.slopes_batch + head];
  const uint64_t tree = a.tree == nullptr ? 0 : static_cast<uint64_t>(a.tree[int64_t{batch} * a.m + token]);

  float q[columns], o[columns] = {}, x[columns];
  load_row(q, static_cast<const T*>(a.q.data) + batch * a.q.batch + token * a.q.token + head * a.q.head, a.d);
  Piece piece{-INFINITY, 0.0f};
  for (int key = first + warp; key < end; key += kWarps) {
    const int drafted = key - (n - a.m);
    if (a.tree != nullptr && drafted >= 0 && (tree >> (drafted & 63) & 1) == 0) continue;
    const InPage at = find_token(a.pages, batch, key);

    // score
    load_row(x, static_cast<const C*>(a.k.data) + at.page * a.k.batch + at.token * a.k.token + kv_head * a.k.head, a.d);
    float product = 0.0f;
#pragma unroll
    for (int c = 0; c < columns; ++c) product = fmaf(q[c], x[c], product);
    product = warp_reduce(product) * k_scale;
    const float score = score_of<T>(a, product, slope, key - place) * kLog2e;

    // weigh
    const float top = ptx::max_nan(piece.most, score);
    const float base = top == -INFINITY ? 0.0f : top;
    const float rescale = power_of_two<T>(piece.most - base), weight = power_of_two<T>(score - base);
    piece = {top, fmaf(piece.total, rescale, weight)};
    load_row(x, static_cast<const C*>(a.v.data) + at.page * a.v.batch + at.token * a.v.token + kv_head * a.v.head,
             a.dv);
#pragma unroll
    for (int c = 0; c < columns; ++c) o[c] = fmaf(o[c], rescale, weight * x[c]);
  }

  // join the warps, and what is in no warp: the sink
#pragma unroll
  for (int c = 0; c < columns; ++c) all[warp][c * kWarp + lane] = o[c];
  if (lane == 0) pieces[warp] = piece;
  __syncthreads();
  const float sink = a.sinks == nullptr ? -INFINITY : a.sinks[head] * kLog2e;
  float top = sink, total = 0.0f, weight[kWarps];
#pragma unroll
  for (int i = 0; i < kWarps; ++i) top = ptx::max_nan(top, pieces[i].most);
  const float base = top == -INFINITY ? 0.0f : top;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    weight[i] = power_of_two<T>(pieces[i].most - base);
    total = fmaf(pieces[i].total, weight[i], total);
  }
  total += power_of_two<T>(sink - base);
  const float scale = total == 0.0f ? 0.0f : v_scale / total;
  T* out = static_cast<T*>(a.out.data) + batch * a.out.batch + token * a.out.token + head * a.out.head;
  for (int column = threadIdx.x; column < a.dv; column += kThreads) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) sum = fmaf(all[i][column], weight[i], sum);
    out[column] = from_float<T>(sum * scale);
  }
  if (threadIdx.x == 0 && a.lse != nullptr) {
    constexpr float kLn2 = 0.6931471805599453f;
    a.lse[(int64_t{batch} * a.q_heads + head) * a.m + token] = total == 0.0f ? -INFINITY : (base + log2f(total)) * kLn2;
  }
}

const char* takes(const KvCacheArgs& a) {
  return unmet({a.d <= kMostDim && a.dv <= kMostDim ? nullptr : "needs head dimensions of at most 1024",
                needs_grid_rows(int64_t{a.batch} * a.q_heads * a.m)});
}

template <int columns>
void launch_columns(const KvCacheArgs& a, cudaStream_t stream) {
  const LaunchConfig config{.grid = static_cast<unsigned>(a.batch) * static_cast<unsigned>(a.q_heads) * a.m,
                            .block = kThreads};
  dispatch_float(a.dtype, [&]<class T>() {
    if (a.cache_dtype == Dtype::e4m3) {
      warpsmith::launch<&kv_cache_naive_kernel<T, e4m3, columns>>(config, stream, a);
    } else {
      warpsmith::launch<&kv_cache_naive_kernel<T, T, columns>>(config, stream, a);
    }
  });
}

void launch(const KvCacheArgs& a, cudaStream_t stream) {
  const int most = std::max(a.d, a.dv);
  if (most <= 128) return launch_columns<4>(a, stream);
  if (most <= 256) return launch_columns<8>(a, stream);
  launch_columns<32>(a, stream);
}

const Register<KvCacheArgs> registered{"naive", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
