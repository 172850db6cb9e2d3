// GEMV for short rows, two rows per warp, a value per lane.
//   Against `k32`: sixteen lanes share a row, so that rows of 16 values keep a whole warp busy. With f16 sums by name.
//   Bound: the number of load instructions.
#include "gemm/gemv/row_dot.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256, kLanes = 16, kWidth = 1, kRows = kThreads / kLanes;
constexpr int kMostValues = 128;

template <class T, class A>
__global__ void __launch_bounds__(kThreads) gemv_k16_kernel(const GemvArgs a) {
  dot_rows<T, A, kThreads, kLanes, kWidth>(a);
}

const char* takes(const GemvArgs& a) {
  if (const char* reason = needs_rows(a)) return reason;
  return a.k <= kMostValues ? nullptr : "needs k of at most 128";
}

void launch(const GemvArgs& a, cudaStream_t stream) {
  dispatch_accumulator(a, [&]<class T, class A>() {
    const auto blocks = static_cast<unsigned>((a.m + kRows - 1) / kRows);
    warpsmith::launch<&gemv_k16_kernel<T, A>>({{blocks, static_cast<unsigned>(a.vectors)}, kThreads}, stream, a);
  });
}

bool suits(const GemvArgs& a) { return a.k <= 32; }

const Register<GemvArgs> registered{"k16", /*min_sm=*/80, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
