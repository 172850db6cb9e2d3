// Histogram, a copy for each warp in shared memory.
//   Against `x4`: values meet in shared memory, those of a warp only, and blocks that stay on the GPU add their counts up
//   once. Bound: lanes that meet in one bin or bank.
#include "device/warp.h"
#include "host/occupancy.h"
#include "host/registry.h"
#include "vision/histogram/bins.cuh"

namespace warpsmith {
namespace {

constexpr int kWarps = kHistogramThreads / kWarp;
constexpr int64_t kMostWarpBins = kCountedBytes / kWarps / 4;

template <class T>
__global__ void __launch_bounds__(kHistogramThreads) histogram_warp_kernel(const HistogramArgs a) {
  extern __shared__ uint32_t copies[];  // [kWarps, bins]
  const int bins = static_cast<int>(a.bins);
  for (int i = threadIdx.x; i < kWarps * bins; i += kHistogramThreads) copies[i] = 0;
  __syncthreads();

  // count
  uint32_t* own = copies + static_cast<int>(threadIdx.x) / kWarp * bins;
  const BinOf<T> bin_of(a, a.edges);
  walk_values<2>(static_cast<const T*>(a.x), a.n, [&](T value) {
    const uint32_t bin = bin_of(value);
    if (bin < bin_of.bins) atomicAdd(own + bin, 1u);
  });
  __syncthreads();

  // add up
  for (int bin = threadIdx.x; bin < bins; bin += kHistogramThreads) {
    uint32_t sum = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) sum += copies[warp * bins + bin];
    if (sum > 0) add_count(a.counts, bin, sum);
  }
}

const char* takes(const HistogramArgs& a) { return a.bins <= kMostWarpBins ? nullptr : "needs at most 2048 bins"; }

void launch(const HistogramArgs& a, cudaStream_t stream) {
  dispatch_counted(a.dtype, [&]<class T>() {
    LaunchConfig config{.grid = 1, .block = kHistogramThreads, .dynamic_smem = static_cast<int>(kWarps * a.bins * 4)};
    // for the largest number of bins, so that it is asked once
    LaunchConfig most = config;
    most.dynamic_smem = kCountedBytes;
    config.grid = histogram_grid(ceil_div(a.n, kPack<T>) + 1, resident_clusters<&histogram_warp_kernel<T>>(most));
    warpsmith::launch<&histogram_warp_kernel<T>>(config, stream, a);
  });
}

const Register<HistogramArgs> registered{"warp", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
