// Products of groups of fp8 values, a thread per element.
//   Neighbouring threads compute neighbouring columns. The group of a row is found by halving; of groups along k, each is a
//   product of its own. Runs of products are added in
//   f32, their sums in f64, as one thread's long sum would drift. Takes every call. Bound: load instructions.
#include "device/convert.h"
#include "gemm/groups.cuh"
#include "gemm/scaled_grouped_matmul/scaled_grouped_matmul.h"
#include "host/launch.h"
#include "host/registry.h"
#include "row/rows.h"

namespace warpsmith {
namespace {

constexpr int kCols = 64, kRows = 8, kThreads = kCols * kRows;  // a block's tile
constexpr int64_t kRun = 64;

__host__ __device__ constexpr int64_t tiles_of(const ScaledGroupedArgs& p) {
  return (p.along_k ? p.groups.count : 1) * ceil_div(p.m, kRows) * ceil_div(p.n, kCols);
}

template <class QX, class QW, class Out>
__global__ void __launch_bounds__(kThreads) scaled_grouped_matmul_naive_kernel(const ScaledGroupedArgs p) {
  const bool w_rows = p.w.order == Order::rows;
  const int64_t w_step = w_rows ? p.w.ld : 1;
  for (int64_t tile = blockIdx.x; tile < tiles_of(p); tile += gridDim.x) {
    const int64_t across = ceil_div(p.n, kCols), down = ceil_div(p.m, kRows), product = tile / across / down;
    const int64_t col = tile % across * kCols + threadIdx.x % kCols;
    const int64_t row = tile / across % down * kRows + threadIdx.x / kCols;
    if (row >= p.m || col >= p.n) continue;
    const int64_t group = p.along_k ? product : group_of(p.groups, row);
    if (group == p.groups.count) continue;
    const GroupSpan span = p.along_k ? span_of(p.groups, group) : GroupSpan{0, p.k};
    const QX* x = static_cast<const QX*>(p.x.data) + row * p.x.ld;                                       // [k]
    const QW* w = static_cast<const QW*>(p.w.data) + group * p.w.batch + (w_rows ? col : col * p.w.ld);  // [k]

    double total = 0.0;
    for (int64_t first = span.first; first < span.end; first += kRun) {
      const int64_t last = min(first + kRun, span.end);
      float sum = 0.0f;
      for (int64_t k = first; k < last; ++k) sum = fmaf(to_float(x[k]), to_float(w[k * w_step]), sum);
      total += sum;
    }
    const float scale =
        span.first < span.end  // without products zeros, whatever the scales
            ? p.scale_x[group * p.group_x + row * p.step_x] * p.scale_w[group * p.group_w + col * p.step_w]
            : 0.0f;
    static_cast<Out*>(p.d)[(product * p.m + row) * p.n + col] = from_float<Out>(static_cast<float>(total) * scale);
  }
}

const char* takes(const ScaledGroupedArgs&) { return nullptr; }

bool suits(const ScaledGroupedArgs& p) {
  constexpr int64_t kMostProducts = 1 << 24;
  const int64_t depth = p.along_k ? p.k + p.groups.count : p.k;
  return p.m * p.n <= kMostProducts / depth;
}

void launch(const ScaledGroupedArgs& p, cudaStream_t stream) {
  const LaunchConfig config{row_grid(tiles_of(p)), kThreads};
  dispatch_float(p.out, [&]<class Out>() {
    dispatch_formats(p, [&]<class QX, class QW>() {
      warpsmith::launch<&scaled_grouped_matmul_naive_kernel<QX, QW, Out>>(config, stream, p);
    });
  });
}

const Register<ScaledGroupedArgs> registered{"naive", /*min_sm=*/80, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
