// Attention on the CUDA cores, in any dtype and with every option: what takes all calls.
//   A block has 32 queries and walks the keys 32 at a time; a warp has four of the queries, a lane one of the keys. A
//   larger score rescales what was summed before, so that no second sweep over the keys is needed.
//   Milakov and Gimelshein 2018, "Online normalizer calculation for softmax", https://arxiv.org/abs/1805.02867
//   Bound: instructions; of a pair of loads from shared memory come four multiplications.
#include <cmath>

#include "attention/attention.h"
#include "attention/mask.cuh"
#include "attention/score.cuh"
#include "attention/sequence.cuh"
#include "device/convert.h"
#include "device/warp.h"
#include "host/ceil_div.h"
#include "host/conditions.h"
#include "host/launch.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kOwn = 4, kRows = kWarps * kOwn;  // queries of a warp, of a block
constexpr int kKeys = kWarp;
constexpr int kChunk = 64,
              kPitch = kChunk + 4;  // of d at a time; padded, so that lanes read their rows 16 bytes at once
constexpr int kMostDim = 1024;

// A chunk of up to 32 rows of queries or keys; zeros where there are none.
template <class T>
__device__ __forceinline__ void load_chunk(float (&to)[kRows][kPitch], const T* from, int64_t stride, int rows,
                                           int cols) {
#pragma unroll 1
  for (int i = threadIdx.x; i < kRows * kChunk; i += kThreads) {
    const int row = i / kChunk, col = i % kChunk;
    to[row][col] = row < rows && col < cols ? to_float(from[row * stride + col]) : 0.0f;
  }
}

struct MaxNan {
  __device__ float operator()(float x, float y) const { return ptx::max_nan(x, y); }
};

template <class T>
__device__ __forceinline__ float exp_of(float x) {
  return exponential<sizeof(T) == 4>(x);
}

// `columns`: values of an answer's row that a lane holds.
template <class T, int columns>
__global__ void __launch_bounds__(kThreads, 1) flash_attention_online_kernel(const AttentionArgs a) {
  __shared__ alignas(16) float queries[kRows][kPitch], keys[kKeys][kPitch], weights[kWarps][kOwn][kKeys];
  static_assert(kKeys == kRows);
  constexpr int kSums = columns > 8 ? 2 : 4;  // of a product: as many as there are registers for
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int tiles = ceil_div(a.m, kRows);
  const int tile = static_cast<int>(blockIdx.x % tiles), pair = static_cast<int>(blockIdx.x / tiles);
  const int head = pair % a.q_heads, kv_head = head / (a.q_heads / a.kv_heads);
  const Sequence s(a, pair / a.q_heads);
  const int first_row = tile * kRows, rows = s.m - first_row < kRows ? s.m - first_row : kRows;
  if (rows <= 0) return;
  const OptionScore<T> score(a, s, head);
  const OptionMask mask(a, s, head);
  const T* q = s.queries<const T>(a.q, head) + first_row * a.q.token;
  const T* k = s.keys<T>(a.k, kv_head);
  const T* v = s.keys<T>(a.v, kv_head);
  const int own = first_row + warp * kOwn;  // the warp's first query

  const float sink = a.sinks == nullptr ? -INFINITY : a.sinks[head];
  float largest[kOwn], top[kOwn], total[kOwn], out[kOwn][columns] = {};
#pragma unroll
  for (int r = 0; r < kOwn; ++r) {
    largest[r] = sink;
    top[r] = -INFINITY;
    // each lane its own share; a sink that is no number leaves none, nor does an infinite one
    total[r] = lane == 0 && sink != -INFINITY ? sink - sink + 1.0f : 0.0f;
  }

  const int end = mask.end(first_row + rows - 1);
  for (int first = mask.first(first_row) / kKeys * kKeys; first < end; first += kKeys) {
    const int count = s.n - first < kKeys ? s.n - first : kKeys, key = first + lane;

    // products, in several sums: the error of one grows with how many are added one to another
    float products[kOwn][kSums] = {};
    for (int c = 0; c < a.d; c += kChunk) {
      __syncthreads();
      load_chunk(queries, q + c, a.q.token, rows, a.d - c);
      load_chunk(keys, k + first * a.k.token + c, a.k.token, count, a.d - c);
      __syncthreads();
#pragma unroll 2
      for (int i = 0; i < kChunk; i += 4) {
        const float4 x = *reinterpret_cast<const float4*>(&keys[lane][i]);
#pragma unroll
        for (int r = 0; r < kOwn; ++r) {
          const float4 y = *reinterpret_cast<const float4*>(&queries[warp * kOwn + r][i]);
          float* sums = products[r];
          sums[0] = fmaf(x.x, y.x, sums[0]);
          sums[1] = fmaf(x.y, y.y, sums[1]);
          sums[2 % kSums] = fmaf(x.z, y.z, sums[2 % kSums]);
          sums[3 % kSums] = fmaf(x.w, y.w, sums[3 % kSums]);
        }
      }
    }

    // softmax
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
      const int query = own + r;
      const bool seen = query < s.m && lane < count && mask(query, key);
      float product = products[r][0] + products[r][1];
      if constexpr (kSums == 4) product += products[r][2] + products[r][3];
      const float x = seen ? score(product, query, key) : -INFINITY;
      top[r] = ptx::max_nan(top[r], x);
      const float next = ptx::max_nan(largest[r], warp_reduce(x, MaxNan{}));
      const float rescale = next == -INFINITY ? 1.0f : exp_of<T>(largest[r] - next);
      float weight = next == -INFINITY ? 0.0f : exp_of<T>(x - next);
      total[r] = fmaf(total[r], rescale, weight);
      largest[r] = next;
      if (a.dropout.active && seen) {
        const uint64_t line = (static_cast<uint64_t>(s.batch) * a.q_heads + head) * a.m + query;
        weight = a.dropout.keeps(line * a.n + key) ? weight * a.dropout.scale : 0.0f;
      }
      weights[warp][r][lane] = weight;
#pragma unroll
      for (int c = 0; c < columns; ++c) out[r][c] *= rescale;
    }
    __syncwarp();

    // values
    for (int j = 0; j < count; ++j) {
      const T* row = v + (first + j) * a.v.token;
#pragma unroll
      for (int c = 0; c < columns; ++c) {
        const int col = c * kWarp + lane;
        const float value = col < a.dv ? to_float(row[col]) : 0.0f;
#pragma unroll
        for (int r = 0; r < kOwn; ++r) out[r][c] = fmaf(weights[warp][r][j], value, out[r][c]);
      }
    }
    __syncwarp();
  }

  // write
  float most = -INFINITY;
#pragma unroll
  for (int r = 0; r < kOwn; ++r) {
    const int query = own + r;
    const float sum = warp_reduce(total[r]), scale = sum == 0.0f ? 0.0f : 1.0f / sum;
    top[r] = warp_reduce(top[r], MaxNan{});
    most = ptx::max_nan(most, top[r]);
    if (query >= s.m) continue;
    if (a.lse != nullptr && lane == 0) {
      s.lse(a, head)[query] = sum == 0.0f ? -INFINITY : largest[r] + logf(sum);
    }
    T* to = s.queries<T>(a.out, head) + query * a.out.token;
    const T* gate = a.gate.data == nullptr ? nullptr : s.queries<const T>(a.gate, head) + query * a.gate.token;
#pragma unroll
    for (int c = 0; c < columns; ++c) {
      const int col = c * kWarp + lane;
      if (col >= a.dv) continue;
      float value = out[r][c] * scale;
      if (gate != nullptr) value *= logistic<sizeof(T) == 4>(to_float(gate[col]));
      to[col] = from_float<T>(value);
    }
  }
  if (a.max_logits != nullptr && lane == 0) atomic_max(a.max_logits + head, most);
}

const char* takes(const AttentionArgs& a) {
  return a.d <= kMostDim && a.dv <= kMostDim ? nullptr : "needs head dimensions of at most 1024";
}

template <class T, int columns>
void launch_columns(const AttentionArgs& a, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(int64_t{a.batch} * a.q_heads * ceil_div(a.m, kRows));
  warpsmith::launch<&flash_attention_online_kernel<T, columns>>({blocks, kThreads}, stream, a);
}

void launch(const AttentionArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    if (a.dv <= 64) return launch_columns<T, 2>(a, stream);
    if (a.dv <= 128) return launch_columns<T, 4>(a, stream);
    if (a.dv <= 256) return launch_columns<T, 8>(a, stream);
    launch_columns<T, kMostDim / kWarp>(a, stream);
  });
}

const Register<AttentionArgs> registered{"online", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
