// Binary cross-entropy with logits, 128-bit accesses.
//   Against `naive`: one load brings 16 bytes of logits, another those of their targets; the last values go one by one.
//   Bound: DRAM where every loss is written; a sum waits for each pair of loads before it makes the next.
#include "device/vec.h"
#include "loss/bce_with_logits/sum.cuh"

namespace warpsmith {
namespace {

// Losses of one pack, as 128-bit stores.
template <int n>
__device__ __forceinline__ void store_losses(float* to, const float (&losses)[n]) {
#pragma unroll
  for (int i = 0; i < n; i += 4) {
    store<Cache::streaming>(to + i, Vec<float, 4>{losses[i], losses[i + 1], losses[i + 2], losses[i + 3]});
  }
}

template <class T, class Sums>
__global__ void __launch_bounds__(kBceThreads) bce_with_logits_forward_pack_kernel(const BceWithLogitsForwardArgs a) {
  constexpr int kWidth = kPack<T>;
  const T* x = static_cast<const T*>(a.x);            // [n]
  const T* target = static_cast<const T*>(a.target);  // [n]
  const int64_t thread = int64_t{kBceThreads} * blockIdx.x + threadIdx.x, threads = int64_t{kBceThreads} * gridDim.x;
  const int64_t packs = a.n / kWidth;
  double sum = 0.0;
#pragma unroll 1
  for (int64_t pack = thread; pack < packs; pack += threads) {
    Pack<T> logits, targets;
    load<Cache::streaming>(logits, x + pack * kWidth);
    load<Cache::streaming>(targets, target + pack * kWidth);
    float values[kWidth], wanted[kWidth];
    to_float(values, logits);
    to_float(wanted, targets);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] = bce_with_logits(values[i], wanted[i]);
    if constexpr (Sums::value) {
      float own = 0.0f;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) own += values[i];
      sum += own;
    } else {
      store_losses(a.loss + pack * kWidth, values);
    }
  }
  const int64_t last = packs * kWidth + thread;
  if (last < a.n) {
    const float loss = bce_with_logits(to_float(x[last]), to_float(target[last]));
    if constexpr (Sums::value) {
      sum += loss;
    } else {
      a.loss[last] = loss;
    }
  }
  if constexpr (Sums::value) leave_partial(a, sum);
}

void launch(const BceWithLogitsForwardArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    launch_bce(a, kPack<T>, stream, [&]<class Sums>(const LaunchConfig& config) {
      warpsmith::launch<&bce_with_logits_forward_pack_kernel<T, Sums>>(config, stream, a);
    });
  });
}

const Register<BceWithLogitsForwardArgs> registered{"pack", /*min_sm=*/80, needs_packs, launch};

}  // namespace
}  // namespace warpsmith
