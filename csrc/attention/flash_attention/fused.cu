// Attention by mma.sync in one kernel, without a running softmax.
//   Against `naive`: scores never leave registers. Keys are swept twice, because a row's maximum has to be known before its
//   exponentials are added up: once for the maxima, once for all else. Half of the first product is done twice, and k is
//   read twice.
//   Bound: waiting, for k in both sweeps; the tensor cores, for a third of the products in vain.
#include "attention/climb.h"
#include "attention/query_warps.cuh"

namespace warpsmith {
namespace {

template <int d>
struct Config : QueryWarps<d, 64, 64> {
  static constexpr bool in_place = true;
};

template <class T, class Acc, class C>
__global__ void __launch_bounds__(C::threads) flash_attention_fused_kernel(const AttentionArgs a) {
  extern __shared__ __align__(128) uint4 memory[];
  using At = QueryWarpsMemory<C>;
  const QueryTile tile(a, C::bm);
  if (tile.first >= tile.queries) return;
  T *const q = reinterpret_cast<T*>(memory), *const k = q + At::k, *const v = q + At::v;
  const int row0 = static_cast<int>(threadIdx.x) / kWarp * 16, first = tile.key_begin / C::bn * C::bn;
  const float scale = a.scale * kLog2E;
  const TokenCopy<T, typename C::Q, C::threads> copy_q(tile.queries_of<const T>(a.q), a.q.token, a.d);
  const TokenCopy<T, typename C::K, C::threads> copy_k(tile.keys_of<T>(a.k), a.k.token, a.d);
  const TokenCopy<T, typename C::V, C::threads> copy_v(tile.keys_of<T>(a.v), a.v.token, a.dv);
  QueryWarp<T, Acc, Acc, C> warp;
  copy_q.start(q, tile.first, tile.queries - tile.first);
  ptx::cp_async_commit();  // there may be no keys whose group would take it along
  const auto scores_at = [&](int key) {
    ScoreRows<C::bn> scores = warp.scores(q, k);
    if (tile.hides(a, C::bm, key, C::bn)) scores.hide(a, tile, tile.first + row0, key);
    return scores;
  };

  // the largest score of each row
  float most[2] = {-INFINITY, -INFINITY};
  for (int key = first; key < tile.key_end; key += C::bn) {
    copy_k.start(k, key, tile.keys - key);
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    __syncthreads();
    const ScoreRows<C::bn> scores = scores_at(key);
#pragma unroll
    for (int half = 0; half < 2; ++half) most[half] = fmaxf(most[half], scores.most(half));
    __syncthreads();  // everybody has read k
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) warp.softmax.most[half] = quad_max(most[half]) * scale;

  // exponentials, their sum, and p v
  for (int key = first; key < tile.key_end; key += C::bn) {
    copy_k.start(k, key, tile.keys - key);
    ptx::cp_async_commit();
    copy_v.start(v, key, tile.keys - key);
    ptx::cp_async_commit();
    ptx::cp_async_wait<1>();
    __syncthreads();
    ScoreRows<C::bn> scores = scores_at(key);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      warp.softmax.sum[half] += scores.raise(half, scale, subtrahend(warp.softmax.most[half]));
    }
    ptx::cp_async_wait<0>();
    __syncthreads();
    warp.add_values(Probabilities<T, C::bn>(scores), {1.0f, 1.0f}, v);
    __syncthreads();  // everybody has read k and v
  }

  ptx::cp_async_wait<0>();
  __syncthreads();
  float inverse[2];
  warp.softmax.finish(inverse);
  store_lse(a, tile, row0, warp.softmax);
  store_rows<typename At::Out>(a, tile, q, row0, warp.out, inverse);
}

void launch(const AttentionArgs& a, cudaStream_t stream) {
  visit_attention_types(a, [&]<class T, class Acc>() {
    visit_head_tiles<64, 128>(a, [&]<int d>() {
      using C = Config<d>;
      warpsmith::launch<&flash_attention_fused_kernel<T, Acc, C>>(
          {query_grid(a, C::bm), C::threads, QueryWarpsMemory<C>::bytes}, stream, a);
    });
  });
}

const Register<AttentionArgs> registered{"fused", /*min_sm=*/80, takes_heads<128>, launch};

}  // namespace
}  // namespace warpsmith
