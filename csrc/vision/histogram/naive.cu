// Histogram, a value to a thread.
//   Each adds one to its bin in global memory. Bound: L2, which makes additions to one word one after another.
#include "host/registry.h"
#include "row/rows.h"
#include "vision/histogram/bins.cuh"

namespace warpsmith {
namespace {

template <class T>
__global__ void __launch_bounds__(kHistogramThreads) histogram_naive_kernel(const HistogramArgs a) {
  const T* x = static_cast<const T*>(a.x);
  const BinOf<T> bin_of(a, a.edges);
  for (int64_t i = int64_t{blockIdx.x} * kHistogramThreads + threadIdx.x; i < a.n;
       i += int64_t{gridDim.x} * kHistogramThreads) {
    const uint32_t bin = bin_of(x[i]);
    if (bin < bin_of.bins) add_count(a.counts, bin, 1);
  }
}

void launch(const HistogramArgs& a, cudaStream_t stream) {
  dispatch_counted(a.dtype, [&]<class T>() {
    warpsmith::launch<&histogram_naive_kernel<T>>({row_grid(ceil_div(a.n, kHistogramThreads)), kHistogramThreads},
                                                  stream, a);
  });
}

const Register<HistogramArgs> registered{"naive", /*min_sm=*/80, takes_any, launch};

}  // namespace
}  // namespace warpsmith
