// Products of layers with what follows them, a thread per element.
//   Takes every call. Bound: load instructions, two for each multiplication.
#include "gemm/elements.cuh"
#include "gemm/fused_linear/ends.cuh"
#include "gemm/types.h"
#include "host/launch.h"
#include "host/registry.h"
#include "row/rows.h"

namespace warpsmith {
namespace {

constexpr int kCols = 64, kRows = 4, kThreads = kCols * kRows;  // a block's tile

__host__ __device__ constexpr int64_t tiles_of(const FusedArgs& p) {
  return ceil_div(p.m, kRows) * ceil_div(p.n, kCols);
}

inline constexpr int64_t kTermsInRow = 64;  // added up one after another

template <class T>
__device__ __forceinline__ float sum_at(const Matrix& x, const Matrix& w, int64_t row, int64_t col, int64_t depth) {
  const int64_t step_x = x.order == Order::rows ? 1 : x.ld, step_w = w.order == Order::rows ? w.ld : 1;
  const T* from_x = static_cast<const T*>(x.data) + (x.order == Order::rows ? row * x.ld : row);  // [k]
  const T* from_w = static_cast<const T*>(w.data) + (w.order == Order::rows ? col : col * w.ld);  // [k]
  float total = 0.0f;
  for (int64_t first = 0; first < depth; first += kTermsInRow) {
    const int64_t last = min(first + kTermsInRow, depth);
    float sum = 0.0f;
    for (int64_t k = first; k < last; ++k) {
      sum = fmaf(to_float(from_x[k * step_x]), to_float(from_w[k * step_w]), sum);
    }
    total += sum;
  }
  return total;
}

template <class T>
__device__ __forceinline__ float row_sum_at(const Matrix& x, int64_t row, int64_t depth) {
  const int64_t step = x.order == Order::rows ? 1 : x.ld;
  const T* from = static_cast<const T*>(x.data) + (x.order == Order::rows ? row * x.ld : row);  // [k]
  double total = 0.0;
  for (int64_t k = 0; k < depth; ++k) total += to_float(from[k * step]);
  return static_cast<float>(total);
}

template <class T, Ends ends>
__global__ void __launch_bounds__(kThreads) fused_linear_naive_kernel(const __grid_constant__ FusedArgs p) {
  for (int64_t tile = blockIdx.x; tile < tiles_of(p); tile += gridDim.x) {
    const int64_t across = ceil_div(p.n, kCols);
    const int64_t col = tile % across * kCols + threadIdx.x % kCols, row = tile / across * kRows + threadIdx.x / kCols;
    if (row >= p.m || col >= p.n) continue;
    float sum[] = {sum_at<T>(p.a, p.b, row, col, p.k)}, up[] = {0.0f};
    if constexpr (ends == Ends::gate) up[0] = sum_at<T>(p.a, p.up, row, col, p.k);
    const unsigned most = leave<ends, T>(p, sum, up, row, col);
    if (ends == Ends::gradient && col == 0) leave_row_sum<T>(p, row, row_sum_at<T>(p.a, row, p.k));
    if (p.amax != nullptr) note_largest<T>(p.amax + row, most);
  }
}

const char* takes(const FusedArgs&) { return nullptr; }

void launch(const FusedArgs& p, cudaStream_t stream) {
  const LaunchConfig config{row_grid(tiles_of(p)), kThreads};
  dispatch_float(p.dtype, [&]<class T>() {
    switch (p.ends) {
      case Ends::epilogue:
        return warpsmith::launch<&fused_linear_naive_kernel<T, Ends::epilogue>>(config, stream, p);
      case Ends::gate:
        return warpsmith::launch<&fused_linear_naive_kernel<T, Ends::gate>>(config, stream, p);
      case Ends::heads:
        return warpsmith::launch<&fused_linear_naive_kernel<T, Ends::heads>>(config, stream, p);
      case Ends::add:
        return warpsmith::launch<&fused_linear_naive_kernel<T, Ends::add>>(config, stream, p);
      case Ends::gradient:
        return warpsmith::launch<&fused_linear_naive_kernel<T, Ends::gradient>>(config, stream, p);
    }
  });
}

bool suits(const FusedArgs& p) { return p.m * p.n <= (int64_t{1} << 26) / p.k; }

const Register<FusedArgs> registered{"naive", /*min_sm=*/80, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
