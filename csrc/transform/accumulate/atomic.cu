// Rows added up by their indices with atomics, on request: in whichever order, each term rounded to the dtype.
//   Against `sorted`: no index is looked at twice. Bound: the atomic units of L2, where many terms meet in one row.
#include "transform/accumulate/runs.cuh"

namespace warpsmith {
namespace {

template <class T>
__global__ void __launch_bounds__(kRunThreads) accumulate_atomic_kernel(const AccumulateArgs a) {
  const int64_t j = blockIdx.x, row = row_of(a, read_index(a.index, j, a.wide));
  if (row < 0) return;
  for (int64_t outer = blockIdx.z; outer < a.outer; outer += gridDim.z) {
    const T* source = static_cast<const T*>(a.source) + outer * a.source_outer + j * a.source_row;
    T* y = static_cast<T*>(a.y) + outer * a.y_outer + row * a.y_row;
    for (int64_t column = int64_t{blockIdx.y} * kRunThreads + threadIdx.x; column < a.inner;
         column += int64_t{gridDim.y} * kRunThreads) {
      atomicAdd(y + column, from_float<T>(to_float(source[column]) * a.alpha));
    }
  }
}

const char* takes(const AccumulateArgs& a) {
  return unmet({needs_grid_rows(a.count), a.deterministic ? "needs deterministic=False" : nullptr});
}

void launch(const AccumulateArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype,
                 [&]<class T>() { warpsmith::launch<&accumulate_atomic_kernel<T>>(run_config<1>(a), stream, a); });
}

const Register<AccumulateArgs> registered{"atomic", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
