// Binary cross-entropy with logits, one value an access.
//   A grid of threads strides over the values. Bound: the number of load instructions.
#include "loss/bce_with_logits/sum.cuh"

namespace warpsmith {
namespace {

template <class T, class Sums>
__global__ void __launch_bounds__(kBceThreads) bce_with_logits_forward_naive_kernel(const BceWithLogitsForwardArgs a) {
  const T* x = static_cast<const T*>(a.x);            // [n]
  const T* target = static_cast<const T*>(a.target);  // [n]
  const int64_t step = int64_t{kBceThreads} * gridDim.x;
  double sum = 0.0;
#pragma unroll 4
  for (int64_t i = int64_t{kBceThreads} * blockIdx.x + threadIdx.x; i < a.n; i += step) {
    const float loss = bce_with_logits(to_float(x[i]), to_float(target[i]));
    if constexpr (Sums::value) {
      sum += loss;
    } else {
      a.loss[i] = loss;
    }
  }
  if constexpr (Sums::value) leave_partial(a, sum);
}

const char* takes(const BceWithLogitsForwardArgs&) { return nullptr; }

void launch(const BceWithLogitsForwardArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    launch_bce(a, 1, stream, [&]<class Sums>(const LaunchConfig& config) {
      warpsmith::launch<&bce_with_logits_forward_naive_kernel<T, Sums>>(config, stream, a);
    });
  });
}

const Register<BceWithLogitsForwardArgs> registered{"naive", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
