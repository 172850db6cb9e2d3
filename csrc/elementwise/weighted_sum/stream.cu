// Weighted sum at memory speed: a kernel for each number of terms.
//   Against `pack`: all terms are on their way, past L1, before the first is waited for; sums of one or two terms take more
//   packs a thread. It takes its place while the kernel before ends. Bound: DRAM.
#include "device/start_early.h"
#include "device/stream_policy.h"
#include "elementwise/weighted_sum/terms.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256, kLoads = 4, kMinBlocks = 4;

// Packs of a thread: kLoads loads under way, or one of each term.
constexpr int packs_of(int terms) { return terms >= kLoads ? 1 : kLoads / terms; }

template <class T, int terms>
__global__ void __launch_bounds__(kThreads, kMinBlocks)
    weighted_sum_stream_kernel(const __grid_constant__ WeightedSumArgs a, const StreamPolicy l2) {
  start_early();
  constexpr int kWidth = kPack<T>, kPacks = packs_of(terms);
  const int64_t packs = a.n / kWidth, first = int64_t{kThreads} * kPacks * blockIdx.x + threadIdx.x;
  Pack<T> x[kPacks][terms];

  // load
  const uint64_t policy = l2.of_loads();
#pragma unroll
  for (int j = 0; j < kPacks; ++j) {
    const int64_t pack = first + j * kThreads;
    if (pack >= packs) continue;
#pragma unroll
    for (int k = 0; k < terms; ++k) load_with_policy(x[j][k], static_cast<const T*>(a.x[k]) + pack * kWidth, policy);
  }
  // sum, write
#pragma unroll
  for (int j = 0; j < kPacks; ++j) {
    const int64_t pack = first + j * kThreads;
    if (pack >= packs) continue;
    float sums[kWidth] = {}, values[kWidth];
#pragma unroll
    for (int k = 0; k < terms; ++k) {
      to_float(values, x[j][k]);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sums[i] = add_term(sums[i], k, a.weights[k], values[i]);
    }
    Pack<T> y;
    from_float(y, sums);
    store<Cache::streaming>(static_cast<T*>(a.y) + pack * kWidth, y);
  }
  sum_rest<T>(a);
}

template <class T, int terms = 1>
void launch_terms(const WeightedSumArgs& a, cudaStream_t stream) {
  if constexpr (terms < kMostTerms) {
    if (a.terms > terms) return launch_terms<T, terms + 1>(a, stream);
  }
  const int64_t per_block = int64_t{kThreads} * packs_of(terms) * kPack<T>;
  const dim3 grid(static_cast<unsigned>(ceil_div(a.n, per_block)));
  const LaunchConfig config{.grid = grid, .block = kThreads, .early = true};
  warpsmith::launch<&weighted_sum_stream_kernel<T, terms>>(config, stream, a,
                                                           StreamPolicy(terms * a.n * size_of(a.dtype)));
}

void launch(const WeightedSumArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() { launch_terms<T>(a, stream); });
}

const Register<WeightedSumArgs> registered{"stream", /*min_sm=*/80, needs_packs, launch};

}  // namespace
}  // namespace warpsmith
