// Products of groups, a thread per element.
//   Neighbouring threads compute neighbouring columns. The group of a row is found by halving; of groups along k, each is a
//   product of its own. Takes every call. Bound: load instructions, two for each multiplication.
#include "device/convert.h"
#include "gemm/gemm.h"
#include "gemm/grouped_matmul/grouped_matmul.h"
#include "gemm/groups.cuh"
#include "host/launch.h"
#include "host/registry.h"
#include "row/rows.h"

namespace warpsmith {
namespace {

constexpr int kCols = 64, kRows = 8, kThreads = kCols * kRows;  // a block's tile

__host__ __device__ constexpr int64_t tiles_of(const GroupedArgs& p) {
  return (p.along_k ? p.groups.count : 1) * ceil_div(p.m, kRows) * ceil_div(p.n, kCols);
}

template <class T>
__global__ void __launch_bounds__(kThreads) grouped_matmul_naive_kernel(const GroupedArgs p) {
  const bool x_rows = p.x.order == Order::rows, w_rows = p.w.order == Order::rows;
  const int64_t x_step = x_rows ? 1 : p.x.ld, w_step = w_rows ? p.w.ld : 1;
  for (int64_t tile = blockIdx.x; tile < tiles_of(p); tile += gridDim.x) {
    const int64_t across = ceil_div(p.n, kCols), down = ceil_div(p.m, kRows), product = tile / across / down;
    const int64_t col = tile % across * kCols + threadIdx.x % kCols;
    const int64_t row = tile / across % down * kRows + threadIdx.x / kCols;
    if (row >= p.m || col >= p.n) continue;
    const int64_t group = p.along_k ? product : group_of(p.groups, row);
    if (group == p.groups.count) continue;
    const GroupSpan span = p.along_k ? span_of(p.groups, group) : GroupSpan{0, p.k};
    const T* x = static_cast<const T*>(p.x.data) + (x_rows ? row * p.x.ld : row);                      // [k]
    const T* w = static_cast<const T*>(p.w.data) + group * p.w.batch + (w_rows ? col : col * p.w.ld);  // [k]

    float total = 0.0f;
    for (int64_t first = span.first; first < span.end; first += kMostTerms) {
      const int64_t last = min(first + kMostTerms, span.end);
      float sum = 0.0f;
      for (int64_t k = first; k < last; ++k) sum = fmaf(to_float(x[k * x_step]), to_float(w[k * w_step]), sum);
      total += sum;
    }
    static_cast<T*>(p.d)[(product * p.m + row) * p.n + col] = from_float<T>(total);
  }
}

const char* takes(const GroupedArgs&) { return nullptr; }

bool suits(const GroupedArgs& p) {
  constexpr int64_t kMostProducts = 1 << 24;
  const int64_t depth = p.along_k ? p.k + p.groups.count : p.k;
  return p.m * p.n <= kMostProducts / depth;
}

void launch(const GroupedArgs& p, cudaStream_t stream) {
  const LaunchConfig config{row_grid(tiles_of(p)), kThreads};
  dispatch_float(p.dtype, [&]<class T>() { warpsmith::launch<&grouped_matmul_naive_kernel<T>>(config, stream, p); });
}

const Register<GroupedArgs> registered{"naive", /*min_sm=*/80, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
