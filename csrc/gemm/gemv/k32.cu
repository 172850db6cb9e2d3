// GEMV, a warp per row, a value per lane.
//   Against `naive`: the lanes of a warp read neighbouring values, and shuffles add up what they hold. With f16 sums by
//   name, which overflow beyond 65504. Bound: the number of load instructions, one for 2 or 4 bytes a lane.
#include "gemm/gemv/row_dot.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256, kLanes = 32, kWidth = 1, kRows = kThreads / kLanes;

template <class T, class A>
__global__ void __launch_bounds__(kThreads) gemv_k32_kernel(const GemvArgs a) {
  dot_rows<T, A, kThreads, kLanes, kWidth>(a);
}

void launch(const GemvArgs& a, cudaStream_t stream) {
  dispatch_accumulator(a, [&]<class T, class A>() {
    const auto blocks = static_cast<unsigned>((a.m + kRows - 1) / kRows);
    warpsmith::launch<&gemv_k32_kernel<T, A>>({{blocks, static_cast<unsigned>(a.vectors)}, kThreads}, stream, a);
  });
}

// Below, half of the lanes and more are idle.
bool suits(const GemvArgs& a) { return a.k > 32; }

const Register<GemvArgs> registered{"k32", /*min_sm=*/80, needs_rows, launch, suits};

}  // namespace
}  // namespace warpsmith
