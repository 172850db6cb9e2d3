// Joins two attentions, 16 bytes an access: as many lanes as a row has packs.
//   A thread finds the shares of its row by itself, which costs two exponentials beside eight values of 16 bits. Bound:
//   memory.
#include "attention/merge_attention_states/merge.cuh"
#include "host/ceil_div.h"
#include "host/conditions.h"
#include "host/launch.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads) merge_attention_states_pack_kernel(const MergeAttentionStatesArgs a) {
  const int64_t packs = a.d / kPack<T>, i = int64_t{blockIdx.x} * kThreads + threadIdx.x, row = i / packs;
  if (row >= a.batch * a.m * a.heads) return;
  const Place at = place_of(row, a);
  const int64_t column = (i - row * packs) * kPack<T>;
  const Shares share = shares_of(*sum_of(a.lse_a, at), *sum_of(a.lse_b, at));
  if (column == 0) *sum_of(a.lse, at) = share.lse;
  merge_values<T, kPack<T>>(a, share, at, column);
}

bool in_packs(const HeadRows& x, const MergeAttentionStatesArgs& a) {
  const int width = 16 / size_of(a.dtype);
  return reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.batch % width == 0 && x.token % width == 0 &&
         x.head % width == 0 && a.d % width == 0 && a.d > 0;
}

int64_t blocks_of(const MergeAttentionStatesArgs& a) {
  return ceil_div(a.batch * a.m * a.heads * (a.d * size_of(a.dtype) / 16), int64_t{kThreads});
}

const char* takes(const MergeAttentionStatesArgs& a) {
  const bool packs = in_packs(a.a, a) && in_packs(a.b, a) && in_packs(a.out, a);
  return unmet({needs_grid_rows(a.batch * a.m * a.heads),
                packs ? nullptr : "needs heads that are whole packs of 16 bytes, aligned"});
}

void launch(const MergeAttentionStatesArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    const unsigned blocks = static_cast<unsigned>(blocks_of(a));
    warpsmith::launch<&merge_attention_states_pack_kernel<T>>({blocks, kThreads}, stream, a);
  });
}

const Register<MergeAttentionStatesArgs> registered{"pack", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
