// What comes before and after the gradients' products: sums over rows of queries, and what is left of blocks' sums.
#pragma once

#include <cmath>
#include <cstdint>

#include "attention/flash_attention/backward/rows.cuh"
#include "device/activations.h"
#include "device/block.h"
#include "device/vec.h"
#include "device/warp.h"
#include "host/launch.h"

namespace warpsmith {

inline constexpr int kPrepareThreads = 256, kLanesOfRow = 16, kSumThreads = 256;

// A lane's share of sum(dout out) of a row; with a gate, the gradient before it and the gate's as well.
template <class T, int width>
__device__ __forceinline__ float gated_dot(const AttentionBackwardArgs& a, const T* grad, const T* out, const T* gate,
                                           T* dgate, T* to, int lane) {
  float sum = 0.0f;
  for (int col = lane * width; col < a.of.dv; col += kLanesOfRow * width) {
    Vec<T, width> g, o;
    load(g, grad + col);
    load(o, out + col);
    float gs[width], os[width];
    to_float(gs, g);
    to_float(os, o);
#pragma unroll
    for (int i = 0; i < width; ++i) sum = fmaf(gs[i], os[i], sum);
    if (gate != nullptr) {
      Vec<T, width> opening, rounded;
      load(opening, gate + col);
      float open[width];
      to_float(open, opening);
#pragma unroll
      for (int i = 0; i < width; ++i) {
        const float share = logistic<sizeof(T) == 4>(open[i]);
        os[i] *= gs[i] * (1.0f - share);
        gs[i] *= share;
      }
      from_float(rounded, os);
      store(dgate + col, rounded);
      from_float(rounded, gs);
      store(to + col, rounded);
    }
  }
  return sum;
}

// A block has kQueriesOfSum rows of a head; rows past the end of a sequence, up to kRowsApart, are as if they saw nothing.
template <class T>
__global__ void __launch_bounds__(kPrepareThreads)
    flash_attention_backward_prepare_kernel(const AttentionBackwardArgs a, const BackwardWorkspace w, int blocks,
                                            bool packs) {
  __shared__ BlockReduceStorage<float, kPrepareThreads> partial;
  constexpr int kRowsAtOnce = kPrepareThreads / kLanesOfRow, kWidth = kPack<T>;
  const int block = static_cast<int>(blockIdx.x) % blocks, part = static_cast<int>(blockIdx.x) / blocks;
  const int head = part % a.of.q_heads, thread = static_cast<int>(threadIdx.x), lane = thread % kLanesOfRow;
  const GradientRows s(a, part / a.of.q_heads);
  if (w.turns != nullptr && blockIdx.x == 0 && thread == 0) w.turns[w.turn_count - 1] = 0;
  const int first = block * kQueriesOfSum;
  if (first >= (s.m + kRowsApart - 1) / kRowsApart * kRowsApart) return;
  const int64_t rows = head * a.q_rows + s.q_row + first;

  // dots and log-sum-exps
  const HeadRows to{w.grad, a.of.cu_q == nullptr ? int64_t{a.of.m} * a.of.q_heads * a.of.dv : 0,
                    int64_t{a.of.q_heads} * a.of.dv, a.of.dv};
  float sinks = 0.0f;
  for (int row = thread / kLanesOfRow; row < kQueriesOfSum; row += kRowsAtOnce) {
    const int i = first + row;
    float dot = 0.0f, lse = -INFINITY;
    const int64_t at = s.batch * a.of.lse_batch + head * a.of.lse_head + s.first_q + i;
    if (i < s.m) {
      const T* grad = s.template query<const T>(a.grad, head, i);
      const T* out = s.template query<const T>(a.of.out, head, i);
      const bool gated = a.dgate.data != nullptr;
      const T* gate = gated ? s.template query<const T>(a.of.gate, head, i) : nullptr;
      T* dgate = gated ? s.template query<T>(a.dgate, head, i) : nullptr;
      T* before = gated ? s.template query<T>(to, head, i) : nullptr;
      dot = packs ? gated_dot<T, kWidth>(a, grad, out, gate, dgate, before, lane)
                  : gated_dot<T, 1>(a, grad, out, gate, dgate, before, lane);
      lse = a.of.lse[at];
    }
    dot = warp_reduce<kLanesOfRow>(dot);
    const bool seen = lse != -INFINITY;
    if (seen && a.grad_lse != nullptr) dot -= a.grad_lse[at];
    if (!seen) dot = 0.0f;
    if (lane == 0) {
      w.lse2[rows + row] = seen ? lse * kLog2e : INFINITY;
      w.dots[rows + row] = dot;
      if (a.dsinks != nullptr && seen) sinks -= expf(a.of.sinks[head] - lse) * dot;
    }
  }
  if (a.dsinks != nullptr) {
    const float sum = block_reduce<kPrepareThreads>(sinks, partial);
    if (thread == 0) w.sink_sums[rows / kQueriesOfSum] = sum;
  }

  // sums that begin at 0
  if (w.turns != nullptr) {
    const int width = w.dq_width;
    for (int i = thread; i < kQueriesOfSum * width / 4; i += kPrepareThreads) {
      reinterpret_cast<float4*>(w.dq + rows * width)[i] = {0.0f, 0.0f, 0.0f, 0.0f};
    }
    if (thread < kQueriesOfSum / 32) w.turns[rows / 32 + thread] = 0;
  }
}

// Sums of a head's rows in the workspace, of one sequence or of all: `step` queries or keys to a value.
enum class SumOver { queries, keys };

template <SumOver over>
__global__ void __launch_bounds__(kSumThreads)
    flash_attention_backward_sum_kernel(const AttentionBackwardArgs a, const float* sums, float* to, int step,
                                        int sequences) {
  __shared__ BlockReduceStorage<float, kSumThreads> partial;
  const int head = static_cast<int>(blockIdx.x) % a.of.q_heads, first = static_cast<int>(blockIdx.x) / a.of.q_heads;
  float sum = 0.0f;
  for (int batch = first; batch < first + sequences; ++batch) {
    const GradientRows s(a, batch);
    constexpr bool kQueries = over == SumOver::queries;
    const int count = static_cast<int>(ceil_div(kQueries ? s.m : s.n, step));
    const float* from = sums + (kQueries ? (head * a.q_rows + s.q_row) / step : head * a.k_rows + s.k_row);
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kSumThreads) sum += from[i];
  }
  const float total = block_reduce<kSumThreads>(sum, partial);
  if (threadIdx.x == 0) to[blockIdx.x] = total;
}

// Rows of a head are whole packs of 16 bytes.
inline bool rows_in_packs(const HeadRows& x, int d, Dtype dtype) {
  const int64_t size = size_of(dtype);
  return x.data == nullptr || (reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.batch * size % 16 == 0 &&
                               x.token * size % 16 == 0 && x.head * size % 16 == 0 && d * size % 16 == 0);
}

// Fills the workspace; from then on `a.grad` is the gradient before the gate.
template <class T>
void prepare(AttentionBackwardArgs& a, const BackwardWorkspace& w, cudaStream_t stream) {
  bool packs = true;
  for (const HeadRows& x : {a.grad, a.of.out, a.of.gate, a.dgate})
    packs = packs && rows_in_packs(x, a.of.dv, a.of.dtype);
  const int blocks = static_cast<int>(ceil_div(a.of.m, kRowsApart) * (kRowsApart / kQueriesOfSum));
  const auto grid = static_cast<unsigned>(int64_t{blocks} * a.of.q_heads * a.of.batch);
  warpsmith::launch<&flash_attention_backward_prepare_kernel<T>>({grid, kPrepareThreads}, stream, a, w, blocks, packs);
  if (a.dgate.data != nullptr) {
    const int64_t token = int64_t{a.of.q_heads} * a.of.dv;
    a.grad = {w.grad, a.of.cu_q == nullptr ? a.of.m * token : 0, token, a.of.dv};
  }
}

// Gradients of sinks and slopes, `step` keys to a sum of the slopes'.
inline void sum_rows(const AttentionBackwardArgs& a, const BackwardWorkspace& w, int step, cudaStream_t stream) {
  const auto heads = static_cast<unsigned>(a.of.q_heads), batch = static_cast<unsigned>(a.of.batch);
  if (a.dsinks != nullptr) {
    warpsmith::launch<&flash_attention_backward_sum_kernel<SumOver::queries>>(
        {heads, kSumThreads}, stream, a, w.sink_sums, a.dsinks, kQueriesOfSum, a.of.batch);
  }
  if (a.dslopes != nullptr) {
    const bool shared = a.of.score.slopes_batch == 0;
    warpsmith::launch<&flash_attention_backward_sum_kernel<SumOver::keys>>(
        {shared ? heads : heads * batch, kSumThreads}, stream, a, w.slope_sums, a.dslopes, step,
        shared ? a.of.batch : 1);
  }
}

}  // namespace warpsmith
