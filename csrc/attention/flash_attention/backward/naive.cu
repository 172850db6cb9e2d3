// Gradients of attention on the CUDA cores: any option, dtype and head dimension.
//   A warp has a key, whose gradients it holds while it goes through all queries of the group's heads, or a query, which
//   goes through all keys; scores are computed once for each of them. A bias gets its gradient from blocks of their own,
//   a thread to a score. Bound: a reduction over the warp for every product of two rows.
#include "attention/flash_attention/backward/bias_gradient.cuh"
#include "attention/flash_attention/backward/prepare.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp, kMostD = 1024, kMostOfLane = kMostD / kWarp;

// A lane's values of a row: every 32nd.
template <class T>
__device__ __forceinline__ float dot_of(const float (&row)[kMostOfLane], const T* other, int d) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kMostOfLane; ++i) {
    const int col = i * kWarp + static_cast<int>(threadIdx.x) % kWarp;
    if (col < d) sum = fmaf(row[i], to_float(other[col]), sum);
  }
  return warp_reduce(sum);
}

template <class T>
__device__ __forceinline__ float dot_of(const T* row, const T* other, int d) {
  float sum = 0.0f;
  for (int col = static_cast<int>(threadIdx.x) % kWarp; col < d; col += kWarp) {
    sum = fmaf(to_float(row[col]), to_float(other[col]), sum);
  }
  return warp_reduce(sum);
}

template <class T>
__device__ __forceinline__ void load_row(float (&row)[kMostOfLane], const T* from, int d) {
#pragma unroll
  for (int i = 0; i < kMostOfLane; ++i) {
    const int col = i * kWarp + static_cast<int>(threadIdx.x) % kWarp;
    row[i] = col < d ? to_float(from[col]) : 0.0f;
  }
}

template <class T>
__device__ __forceinline__ void add_row(float (&sum)[kMostOfLane], float by, const T* row, int d) {
#pragma unroll
  for (int i = 0; i < kMostOfLane; ++i) {
    const int col = i * kWarp + static_cast<int>(threadIdx.x) % kWarp;
    if (col < d) sum[i] = fmaf(by, to_float(row[col]), sum[i]);
  }
}

template <class T>
__device__ __forceinline__ void store_row(T* to, const float (&sum)[kMostOfLane], float scale, int d) {
#pragma unroll
  for (int i = 0; i < kMostOfLane; ++i) {
    const int col = i * kWarp + static_cast<int>(threadIdx.x) % kWarp;
    if (col < d) to[col] = from_float<T>(sum[i] * scale);
  }
}

// dk, dv and each head's share of the slopes' gradients.
template <class T>
__global__ void __launch_bounds__(kThreads)
    flash_attention_backward_naive_keys_kernel(const AttentionBackwardArgs a, const BackwardWorkspace w, int blocks) {
  const int block = static_cast<int>(blockIdx.x) % blocks, part = static_cast<int>(blockIdx.x) / blocks;
  const int kv_head = part % a.of.kv_heads, key = block * kWarps + static_cast<int>(threadIdx.x) / kWarp;
  const GradientRows s(a, part / a.of.kv_heads);
  if (key >= s.n) return;
  float k[kMostOfLane], v[kMostOfLane], dk[kMostOfLane] = {}, dv[kMostOfLane] = {};
  load_row(k, s.template key<const T>(a.of.k, kv_head, key), a.of.d);
  load_row(v, s.template key<const T>(a.of.v, kv_head, key), a.of.dv);
  const QueryBlocks queries = queries_of<1, 1>(a.of, s, key);
  const int group = a.of.q_heads / a.of.kv_heads;
  for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    const OptionScore<T> score(a.of, s, head);
    const OptionMask mask(a.of, s, head);
    float slopes = 0.0f;
    for (int i = queries.first; i < queries.first + queries.count; ++i) {
      if (!mask(i, key)) continue;
      const T* q = s.template query<const T>(a.of.q, head, i);
      const T* grad = s.template query<const T>(a.grad, head, i);
      const ScoreGradient ds =
          gradient_of(a, w, s, score, {head, i, key}, dot_of(k, q, a.of.d), dot_of(v, grad, a.of.dv));
      add_row(dv, ds.kept, grad, a.of.dv);
      add_row(dk, ds.of_product, q, a.of.d);
      slopes -= static_cast<float>(abs(key - s.place - i)) * ds.of_score;
    }
    if (a.dslopes != nullptr && threadIdx.x % kWarp == 0) w.slope_sums[head * a.k_rows + s.k_row + key] = slopes;
  }
  store_row(s.template key<T>(a.dk, kv_head, key), dk, a.of.scale, a.of.d);
  store_row(s.template key<T>(a.dv, kv_head, key), dv, 1.0f, a.of.dv);
}

template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    flash_attention_backward_naive_queries_kernel(const AttentionBackwardArgs a, const BackwardWorkspace w,
                                                  int blocks) {
  const int block = static_cast<int>(blockIdx.x) % blocks, part = static_cast<int>(blockIdx.x) / blocks;
  const int head = part % a.of.q_heads, query = block * kWarps + static_cast<int>(threadIdx.x) / kWarp;
  const GradientRows s(a, part / a.of.q_heads);
  if (query >= s.m) return;
  const int kv_head = head / (a.of.q_heads / a.of.kv_heads);
  const OptionScore<T> score(a.of, s, head);
  const OptionMask mask(a.of, s, head);
  float dq[kMostOfLane] = {};
  const T* q = s.template query<const T>(a.of.q, head, query);
  const T* grad = s.template query<const T>(a.grad, head, query);
  const int end = mask.end(query);
  for (int key = mask.first(query); key < end; ++key) {
    if (!mask(query, key)) continue;
    const T* k = s.template key<const T>(a.of.k, kv_head, key);
    const T* v = s.template key<const T>(a.of.v, kv_head, key);
    const ScoreGradient ds =
        gradient_of(a, w, s, score, {head, query, key}, dot_of(q, k, a.of.d), dot_of(grad, v, a.of.dv));
    add_row(dq, ds.of_product, k, a.of.d);
  }
  store_row(s.template query<T>(a.dq, head, query), dq, a.of.scale, a.of.d);
}

const char* takes(const AttentionBackwardArgs& a) {
  if (a.of.d > kMostD || a.of.dv > kMostD) return "needs heads of at most 1024 values";
  return needs_rows_in_grid(a);
}

void launch(const AttentionBackwardArgs& args, cudaStream_t stream) {
  AttentionBackwardArgs a = args;
  const BackwardWorkspace w = workspace_of(a, {.sums = false});
  dispatch_float(a.of.dtype, [&]<class T>() {
    prepare<T>(a, w, stream);
    const auto grid = [&](int rows, int heads) {
      return static_cast<unsigned>(ceil_div(rows, kWarps) * heads * a.of.batch);
    };
    if (a.of.n > 0) {
      warpsmith::launch<&flash_attention_backward_naive_keys_kernel<T>>(
          {grid(a.of.n, a.of.kv_heads), kThreads}, stream, a, w, static_cast<int>(ceil_div(a.of.n, kWarps)));
    }
    warpsmith::launch<&flash_attention_backward_naive_queries_kernel<T>>(
        {grid(a.of.m, a.of.q_heads), kThreads}, stream, a, w, static_cast<int>(ceil_div(a.of.m, kWarps)));
    if (a.dbias.data != nullptr) bias_gradient<T>(a, w, stream);
  });
  sum_rows(a, w, 1, stream);
}

const Register<AttentionBackwardArgs> registered{"naive", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
