// Histogram, 128-bit loads.
//   Against `naive`: a load brings four values of 32 bits, or 16 of 8. Bound: as before, L2's additions.
#include "host/registry.h"
#include "row/rows.h"
#include "vision/histogram/bins.cuh"

namespace warpsmith {
namespace {

template <class T>
__global__ void __launch_bounds__(kHistogramThreads) histogram_x4_kernel(const HistogramArgs a) {
  const BinOf<T> bin_of(a, a.edges);
  walk_values<1>(static_cast<const T*>(a.x), a.n, [&](T value) {
    const uint32_t bin = bin_of(value);
    if (bin < bin_of.bins) add_count(a.counts, bin, 1);
  });
}

void launch(const HistogramArgs& a, cudaStream_t stream) {
  dispatch_counted(a.dtype, [&]<class T>() {
    const int64_t blocks = ceil_div(ceil_div(a.n, kPack<T>) + 1, kHistogramThreads);
    warpsmith::launch<&histogram_x4_kernel<T>>({row_grid(blocks), kHistogramThreads}, stream, a);
  });
}

const Register<HistogramArgs> registered{"x4", /*min_sm=*/80, takes_any, launch};

}  // namespace
}  // namespace warpsmith
