// GEMV, a warp per row, four values per lane.
//   Against `k32`: one load brings four values (8 or 16 bytes), a warp 128 of them. With f16 sums by name. Bound: the few
//   loads that a warp has under way.
#include "gemm/gemv/row_dot.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256, kLanes = 32, kWidth = 4, kRows = kThreads / kLanes;

template <class T, class A>
__global__ void __launch_bounds__(kThreads, 8) gemv_k128_kernel(const GemvArgs a) {
  dot_rows<T, A, kThreads, kLanes, kWidth>(a);
}

const char* takes(const GemvArgs& a) {
  if (const char* reason = needs_rows(a)) return reason;
  return tiles_weights(a, kWidth) ? nullptr : "needs rows aligned to 4 values";
}

void launch(const GemvArgs& a, cudaStream_t stream) {
  dispatch_accumulator(a, [&]<class T, class A>() {
    const auto blocks = static_cast<unsigned>((a.m + kRows - 1) / kRows);
    warpsmith::launch<&gemv_k128_kernel<T, A>>({{blocks, static_cast<unsigned>(a.vectors)}, kThreads}, stream, a);
  });
}

bool suits(const GemvArgs& a) { return a.k > 64; }

const Register<GemvArgs> registered{"k128", /*min_sm=*/80, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
