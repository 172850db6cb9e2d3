// What the binding launches before it sorts indices that may count from the end.
#include "host/ceil_div.h"
#include "host/launch.h"
#include "host/min_max.h"
#include "transform/accumulate/accumulate.h"
#include "transform/indices.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) accumulate_from_the_start_kernel(const AccumulateArgs a, int64_t* to) {
  for (int64_t j = int64_t{blockIdx.x} * kThreads + threadIdx.x; j < a.count; j += int64_t{gridDim.x} * kThreads) {
    const int64_t index = read_index(a.index, j, a.wide);
    to[j] = index < 0 ? index + a.rows : index;
  }
}

}  // namespace

void count_from_the_start(const AccumulateArgs& a, int64_t* to, cudaStream_t stream) {
  constexpr int64_t kMost = 1 << 20;
  const LaunchConfig config{.grid = static_cast<unsigned>(min_of(ceil_div(a.count, int64_t{kThreads}), kMost)),
                            .block = kThreads};
  warpsmith::launch<&accumulate_from_the_start_kernel>(config, stream, a, to);
}

}  // namespace warpsmith
