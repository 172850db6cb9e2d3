// Attention as its formula reads, three kernels, the scores in memory.
//   A thread for each score; a block for each row of them; a thread for each value of the answer.
//   Bound: memory, by the scores: 4 bytes each, written twice and read three times; and a thread reads both operands of each
//   of its products.
#include <cmath>

#include "attention/climb.h"
#include "attention/sequence.cuh"
#include "device/block.h"
#include "device/convert.h"
#include "host/ceil_div.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBytes = int64_t{2} << 30;

// Which keys a query sees: those from `first` to before `end`.
struct Seen {
  int first, end;
  __device__ Seen(const AttentionArgs& a, const Sequence& sequence, int query) {
    const int place = query + sequence.n - sequence.m;
    first = max(0, place - a.left);
    end = max(first, min(sequence.n, place + a.right + 1));
  }
};

// A value of [batch, q_heads, m, last], `last` its stride.
struct Index {
  int batch, head, query, last;
  __device__ Index(const AttentionArgs& a, int64_t i, int of_last) {
    last = static_cast<int>(i % of_last);
    i /= of_last;
    query = static_cast<int>(i % a.m);
    i /= a.m;
    head = static_cast<int>(i % a.q_heads);
    batch = static_cast<int>(i / a.q_heads);
  }
  __device__ int kv_head(const AttentionArgs& a) const { return head / (a.q_heads / a.kv_heads); }
};

template <class T>
__global__ void __launch_bounds__(kThreads) flash_attention_naive_scores_kernel(const AttentionArgs a) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= int64_t{a.batch} * a.q_heads * a.m * a.n) return;
  const Index at(a, i, a.n);
  const Sequence sequence(a, at.batch);
  if (at.query >= sequence.m || at.last >= sequence.n) return;
  const T* q = sequence.queries<const T>(a.q, at.head) + at.query * a.q.token;
  const T* k = sequence.keys<T>(a.k, at.kv_head(a)) + at.last * a.k.token;
  float sum = 0.0f;
  for (int c = 0; c < a.d; ++c) sum = fmaf(to_float(q[c]), to_float(k[c]), sum);
  static_cast<float*>(a.workspace)[i] = sum * a.scale;
}

__global__ void __launch_bounds__(kThreads) flash_attention_naive_softmax_kernel(const AttentionArgs a) {
  __shared__ BlockReduceStorage<float, kThreads> partial;
  const Index at(a, blockIdx.x, 1);
  const Sequence sequence(a, at.batch);
  if (at.query >= sequence.m) return;
  const Seen seen(a, sequence, at.query);
  float* row = static_cast<float*>(a.workspace) + int64_t{blockIdx.x} * a.n;  // [n]
  const int tid = static_cast<int>(threadIdx.x);

  // maximum
  float most = -INFINITY;
  for (int j = seen.first + tid; j < seen.end; j += kThreads) most = fmaxf(most, row[j]);
  most = block_reduce<kThreads>(most, partial, Max{});
  __syncthreads();

  // exponentials and their sum
  const float base = most == -INFINITY ? 0.0f : most;  // infinity less infinity is no number
  float sum = 0.0f;
  for (int j = seen.first + tid; j < seen.end; j += kThreads) sum += row[j] = expf(row[j] - base);
  sum = block_reduce<kThreads>(sum, partial);

  // probabilities, none of a row that sees nothing, or only scores of -inf
  const bool empty = sum == 0.0f;
  for (int j = seen.first + tid; j < seen.end; j += kThreads) row[j] = empty ? 0.0f : row[j] / sum;
  if (a.lse != nullptr && tid == 0) sequence.lse(a, at.head)[at.query] = empty ? -INFINITY : most + logf(sum);
}

template <class T>
__global__ void __launch_bounds__(kThreads) flash_attention_naive_values_kernel(const AttentionArgs a) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= int64_t{a.batch} * a.q_heads * a.m * a.dv) return;
  const Index at(a, i, a.dv);
  const Sequence sequence(a, at.batch);
  if (at.query >= sequence.m) return;
  const Seen seen(a, sequence, at.query);
  const float* p = static_cast<const float*>(a.workspace) + i / a.dv * a.n;  // [n]
  const T* v = sequence.keys<T>(a.v, at.kv_head(a)) + at.last;               // [n], a.v.token apart
  float sum = 0.0f;
  for (int j = seen.first; j < seen.end; ++j) sum = fmaf(p[j], to_float(v[j * a.v.token]), sum);
  sequence.queries<T>(a.out, at.head)[at.query * a.out.token + at.last] = from_float<T>(sum);
}

const char* takes(const AttentionArgs& a) {
  const int64_t bytes = int64_t{4} * a.batch * a.q_heads * a.m * a.n;
  return unmet({needs_plain_attention(a), bytes <= kMostBytes ? nullptr : "needs at most 2 GB of scores"});
}

void launch(const AttentionArgs& a, cudaStream_t stream) {
  const int64_t rows = int64_t{a.batch} * a.q_heads * a.m;
  const auto grid = [](int64_t values) -> LaunchConfig {
    return {static_cast<unsigned>(ceil_div(values, kThreads)), kThreads};
  };
  dispatch_float(a.dtype, [&]<class T>() {
    if (a.n > 0) warpsmith::launch<&flash_attention_naive_scores_kernel<T>>(grid(rows * a.n), stream, a);
    warpsmith::launch<&flash_attention_naive_softmax_kernel>({static_cast<unsigned>(rows), kThreads}, stream, a);
    if (a.dv > 0) warpsmith::launch<&flash_attention_naive_values_kernel<T>>(grid(rows * a.dv), stream, a);
  });
}

const Register<AttentionArgs> registered{"naive", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
