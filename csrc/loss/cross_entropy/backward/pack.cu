// Cross-entropy backward, two 128-bit accesses per thread.
//   Against `naive`: a thread reads two packs, writes two and ends, so that DRAM sees one narrow front of addresses; short
//   rows share a block. The elements before and after the aligned packs of a row go one by one, beside the row's first
//   packs. Bound: DRAM.
#include <bit>

#include "device/fast_divide.h"
#include "device/ptx/memory.h"
#include "host/launch.h"
#include "host/min_max.h"
#include "host/registry.h"
#include "loss/cross_entropy/backward/row.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256, kMinBlocks = 5;
constexpr int kPacks = 2;  // per thread

// How the packs of rows spread over threads: 2^log_lanes threads to a row, or all of a block and several blocks.
struct Spread {
  int log_lanes;
  int stretches;  // groups of lanes that share a row
  FastDivide by_stretches;
  bool beyond_l2;  // the logits alone would fill L2

  // The row of a group. Rows long enough to be shared leave no room for 2^31 groups in any memory.
  __device__ int64_t row_of(int64_t group) const {
    if (stretches == 1) return group;
    const unsigned n = static_cast<unsigned>(group);
    return (__umulhi(n, by_stretches.multiplier) + n) >> by_stretches.shift;
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads, kMinBlocks)
    cross_entropy_backward_pack_kernel(const CrossEntropyBackwardArgs a, const Spread spread) {
  const int lanes = 1 << spread.log_lanes, lane = threadIdx.x & (lanes - 1);
  const int64_t group = int64_t{blockIdx.x} * (kThreads >> spread.log_lanes) + (threadIdx.x >> spread.log_lanes);
  const int64_t row = spread.row_of(group);
  if (row >= a.in.rows) return;
  const int stretch = static_cast<int>(group - row * spread.stretches);
  const T* x = logits_row<T>(a.in, row);  // [cols]
  T* dx = dlogits_row<T>(a, row);         // [cols], aligned like x
  const PeeledRow<T> peeled = peel(a.in, x);
  const int first = stretch * lanes * kPacks + lane, col = peeled.col(first), step = lanes * kPack<T>;

  // load
  const uint64_t policy = spread.beyond_l2 ? ptx::policy_evict_last() : ptx::policy_evict_normal();
  Pack<T> values[kPacks];
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (first + i * lanes < peeled.packs) {
      reinterpret_cast<uint4&>(values[i]) = ptx::load_once(reinterpret_cast<const uint4*>(x + col + i * step), policy);
    }
  }

  // write
  const RowGradient gradient = row_gradient(a, row);
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (first + i * lanes < peeled.packs) {
      store<Cache::streaming>(dx + col + i * step, gradient_at(values[i], gradient, col + i * step));
    }
  }
  if (stretch > 0) return;
  for (int i = lane; i < PeeledRow<T>::kEdges; i += lanes) {
    const int edge = peeled.edge(i);
    if (edge >= 0) dx[edge] = from_float<T>(gradient_at(to_float(x[edge]), gradient, edge));
  }
}

void launch(const CrossEntropyBackwardArgs& a, cudaStream_t stream) {
  constexpr int64_t kLeastLanes = 4;
  const int64_t packs = std::max<int64_t>(a.in.cols * size_of(a.in.dtype) / 16, 1);
  const int64_t wanted = clamp<int64_t>((packs + kPacks - 1) / kPacks, kLeastLanes, kThreads);
  const int64_t lanes = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(wanted)));
  const int64_t stretches = (packs + lanes * kPacks - 1) / (lanes * kPacks), groups_per_block = kThreads / lanes;
  const bool elsewhere = a.dlogits != a.in.logits;
  const Spread spread{
      .log_lanes = std::countr_zero(static_cast<uint64_t>(lanes)),
      .stretches = static_cast<int>(stretches),
      .by_stretches = FastDivide(static_cast<uint64_t>(stretches)),
      .beyond_l2 = elsewhere && a.in.rows * a.in.cols * size_of(a.in.dtype) >= kL2Bytes,
  };
  const int64_t grid = (a.in.rows * stretches + groups_per_block - 1) / groups_per_block;
  dispatch_float(a.in.dtype, [&]<class T>() {
    warpsmith::launch<&cross_entropy_backward_pack_kernel<T>>({static_cast<unsigned>(grid), kThreads}, stream, a,
                                                              spread);
  });
}

const char* takes(const CrossEntropyBackwardArgs& a) {
  if (const char* reason = needs_grid_rows(a.in.rows)) return reason;
  if (const char* reason = needs_peelable(a.in)) return reason;
  const bool alike = peel_alike(a.in.logits, a.in.logits_stride, a.dlogits, a.dlogits_stride, a.in.rows, a.in.dtype);
  return alike ? nullptr : "needs logits and gradient at the same offset from 16 bytes";
}

const Register<CrossEntropyBackwardArgs> registered{"pack", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
