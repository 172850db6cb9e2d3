// Binary cross-entropy with logits, summed, four packs of logits and of targets in flight per thread.
//   Against `pack`: a thread makes eight loads before it waits for the first. Bound: DRAM.
#include "device/vec.h"
#include "loss/bce_with_logits/sum.cuh"

namespace warpsmith {
namespace {

constexpr int kPacks = 4, kMinBlocks = 4;

template <class T>
__global__ void __launch_bounds__(kBceThreads, kMinBlocks)
    bce_with_logits_forward_unroll_kernel(const BceWithLogitsForwardArgs a) {
  constexpr int kWidth = kPack<T>;
  const T* x = static_cast<const T*>(a.x);            // [n]
  const T* target = static_cast<const T*>(a.target);  // [n]
  const int64_t packs = a.n / kWidth, step = int64_t{kBceThreads} * kPacks * gridDim.x;
  double sum = 0.0;
#pragma unroll 1
  for (int64_t first = int64_t{kBceThreads} * kPacks * blockIdx.x + threadIdx.x; first < packs; first += step) {
    Pack<T> logits[kPacks], targets[kPacks];
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int64_t pack = first + i * kBceThreads;
      if (pack < packs) {
        load<Cache::streaming>(logits[i], x + pack * kWidth);
        load<Cache::streaming>(targets[i], target + pack * kWidth);
      }
    }
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if (first + i * kBceThreads < packs) {
        float values[kWidth], wanted[kWidth], own = 0.0f;
        to_float(values, logits[i]);
        to_float(wanted, targets[i]);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) own += bce_with_logits(values[j], wanted[j]);
        sum += own;
      }
    }
  }
  const int64_t last = packs * kWidth + int64_t{kBceThreads} * blockIdx.x + threadIdx.x;
  if (last < a.n) sum += bce_with_logits(to_float(x[last]), to_float(target[last]));
  leave_partial(a, sum);
}

void launch(const BceWithLogitsForwardArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    launch_bce(a, kPacks * kPack<T>, stream, [&]<class Sums>(const LaunchConfig& config) {
      if constexpr (Sums::value) {
        warpsmith::launch<&bce_with_logits_forward_unroll_kernel<T>>(config, stream, a);
      }
    });
  });
}

const char* takes(const BceWithLogitsForwardArgs& a) {
  return a.sums ? needs_packs(a) : "sums; it writes no loss per element";
}

const Register<BceWithLogitsForwardArgs> registered{"unroll", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
