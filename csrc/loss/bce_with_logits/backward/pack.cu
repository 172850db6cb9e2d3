// Binary cross-entropy with logits backward, one 128-bit access per thread and operand.
//   Against `naive`: a thread reads a pack of each operand, writes one and ends; the last values go one by one. Bound:
//   DRAM.
#include "device/vec.h"
#include "host/launch.h"
#include "host/registry.h"
#include "loss/bce.cuh"
#include "loss/bce_with_logits/backward/bce_with_logits_backward.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 256, kMinBlocks = 6;

template <class T>
__global__ void __launch_bounds__(kThreads, kMinBlocks)
    bce_with_logits_backward_pack_kernel(const BceWithLogitsBackwardArgs a) {
  constexpr int kWidth = kPack<T>, kGradWidth = kPack<float>;
  const T* x = static_cast<const T*>(a.x);            // [n]
  const T* target = static_cast<const T*>(a.target);  // [n]
  T* dx = static_cast<T*>(a.dx);                      // [n]
  const int64_t packs = a.n / kWidth, step = int64_t{kThreads} * gridDim.x;
  const int64_t thread = int64_t{kThreads} * blockIdx.x + threadIdx.x;
  for (int64_t pack = thread; pack < packs; pack += step) {
    const int64_t first = pack * kWidth;
    Pack<T> logits, targets;
    Pack<float> grads[kWidth / kGradWidth];
    load<Cache::streaming>(logits, x + first);
    load<Cache::streaming>(targets, target + first);
#pragma unroll
    for (int i = 0; i < kWidth / kGradWidth; ++i) {
      if (a.shared_grad) {
#pragma unroll
        for (int j = 0; j < kGradWidth; ++j) grads[i][j] = a.grad[0];
      } else {
        load<Cache::streaming>(grads[i], a.grad + first + i * kGradWidth);
      }
    }
    float values[kWidth], wanted[kWidth];
    to_float(values, logits);
    to_float(wanted, targets);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      values[i] = bce_with_logits_slope(values[i], wanted[i]) * (grads[i / kGradWidth][i % kGradWidth] * a.scale);
    }
    Pack<T> gradient;
    from_float(gradient, values);
    store<Cache::streaming>(dx + first, gradient);
  }
  const int64_t last = packs * kWidth + thread;
  if (last < a.n) {
    const float grad = a.grad[a.shared_grad ? 0 : last] * a.scale;
    dx[last] = from_float<T>(bce_with_logits_slope(to_float(x[last]), to_float(target[last])) * grad);
  }
}

void launch(const BceWithLogitsBackwardArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    constexpr int64_t kStretch = int64_t{kThreads} * kPack<T>;
    warpsmith::launch<&bce_with_logits_backward_pack_kernel<T>>({row_grid((a.n + kStretch - 1) / kStretch), kThreads},
                                                                stream, a);
  });
}

const Register<BceWithLogitsBackwardArgs> registered{"pack", /*min_sm=*/80, needs_packs, launch};

}  // namespace
}  // namespace warpsmith
