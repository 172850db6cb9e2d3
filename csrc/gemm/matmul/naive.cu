// Matrix product, a thread per element.
//   Neighbouring threads compute neighbouring columns: a row of b is read in order, a value of a by all at once.
//   Every value of a is read n times and every value of b m times, mostly from the caches, where the eight rows of a
//   block find a value of b again. Takes every call.
//   Bound: load instructions, two for each multiplication.
#include <type_traits>

#include "gemm/elements.cuh"
#include "gemm/epilogue.cuh"
#include "gemm/gemm.h"
#include "gemm/types.h"
#include "host/launch.h"
#include "host/registry.h"
#include "row/rows.h"

namespace warpsmith {
namespace {

constexpr int kCols = 64, kRows = 8, kThreads = kCols * kRows;  // a block's tile

__host__ __device__ constexpr int64_t tiles_of(const GemmArgs& p) {
  return p.batch * ceil_div(p.m, kRows) * ceil_div(p.n, kCols);
}

// Out: of the result.
template <class T, class Acc, class Out>
__global__ void __launch_bounds__(kThreads) matmul_naive_kernel(const GemmArgs p) {
  const bool a_rows = p.a.order == Order::rows, b_rows = p.b.order == Order::rows;
  const int64_t a_step = a_rows ? 1 : p.a.ld, b_step = b_rows ? p.b.ld : 1;
  // Of tiny products there may be more than a grid has blocks.
  for (int64_t tile = blockIdx.x; tile < tiles_of(p); tile += gridDim.x) {
    const int64_t across = ceil_div(p.n, kCols), down = ceil_div(p.m, kRows), batch = tile / across / down;
    const int64_t col = tile % across * kCols + threadIdx.x % kCols;
    const int64_t row = tile / across % down * kRows + threadIdx.x / kCols;
    if (row >= p.m || col >= p.n) continue;
    const T* a = static_cast<const T*>(p.a.data) + batch * p.a.batch + (a_rows ? row * p.a.ld : row);  // [k]
    const T* b = static_cast<const T*>(p.b.data) + batch * p.b.batch + (b_rows ? col : col * p.b.ld);  // [k]

    Acc total = from_float<Acc>(0.0f);
    for (int64_t first = 0; first < p.k; first += kMostTerms) {
      const int64_t last = min(first + kMostTerms, p.k);
      Acc sum = from_float<Acc>(0.0f);
      for (int64_t k = first; k < last; ++k) {
        if constexpr (sizeof(Acc) == 4) {
          sum = fmaf(to_float(a[k * a_step]), to_float(b[k * b_step]), sum);
        } else {
          sum = __hfma(a[k * a_step], b[k * b_step], sum);
        }
      }
      total = plus(total, sum);
    }
    const int64_t at = (batch * p.m + row) * p.n + col;
    if constexpr (std::is_same_v<T, Out>) {
      static_cast<T*>(p.d)[at] = finish<T>(p, to_float(total), batch, row, col);
    } else {
      static_cast<Out*>(p.d)[at] = to_float(total);
    }
  }
}

const char* takes(const GemmArgs&) { return nullptr; }

void launch(const GemmArgs& p, cudaStream_t stream) {
  const LaunchConfig config{row_grid(tiles_of(p)), kThreads};
  visit_types(p, [&]<class T, class Acc>() {
    p.wide ? warpsmith::launch<&matmul_naive_kernel<T, Acc, float>>(config, stream, p)
           : warpsmith::launch<&matmul_naive_kernel<T, Acc, T>>(config, stream, p);
  });
}

const Register<GemmArgs> registered{"naive", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
