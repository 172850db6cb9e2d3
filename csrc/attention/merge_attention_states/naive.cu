// Joins two attentions, a warp per query and head, one value an access; heads of any length and alignment.
//   Bound: the number of instructions.
#include "attention/merge_attention_states/merge.cuh"
#include "device/warp.h"
#include "host/ceil_div.h"
#include "host/conditions.h"
#include "host/launch.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

constexpr int kWarps = 8;

template <class T>
__global__ void __launch_bounds__(kWarps* kWarp) merge_attention_states_naive_kernel(const MergeAttentionStatesArgs a) {
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (row >= a.batch * a.m * a.heads) return;
  const Place at = place_of(row, a);
  const Shares share = shares_of(*sum_of(a.lse_a, at), *sum_of(a.lse_b, at));
  const int lane = threadIdx.x % kWarp;
  if (lane == 0) *sum_of(a.lse, at) = share.lse;
  for (int64_t column = lane; column < a.d; column += kWarp) merge_values<T, 1>(a, share, at, column);
}

const char* takes(const MergeAttentionStatesArgs& a) { return needs_grid_rows(a.batch * a.m * a.heads); }

void launch(const MergeAttentionStatesArgs& a, cudaStream_t stream) {
  const unsigned blocks = static_cast<unsigned>(ceil_div(a.batch * a.m * a.heads, int64_t{kWarps}));
  dispatch_float(a.dtype, [&]<class T>() {
    warpsmith::launch<&merge_attention_states_naive_kernel<T>>({blocks, kWarps * kWarp}, stream, a);
  });
}

const Register<MergeAttentionStatesArgs> registered{"naive", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
