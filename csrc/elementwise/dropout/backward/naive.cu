// Gradient of dropout, one element a thread.
//   A warp reads one word of the mask, each lane a bit of it. Bound: latency, with one small load under way a thread.
#include "device/convert.h"
#include "elementwise/dropout/backward/dropout_backward.h"
#include "host/launch.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void dropout_backward_naive_kernel(const DropoutBackwardArgs a) {
  const int64_t i = int64_t{kThreads} * blockIdx.x + threadIdx.x;
  if (i >= a.n) return;
  const bool kept = a.mask[i / kMaskBits] >> (i % kMaskBits) & 1;
  const float grad = to_float(static_cast<const T*>(a.grad)[i]);
  static_cast<T*>(a.dx)[i] = from_float<T>(kept ? grad * a.scale : 0.0f);
}

const char* takes(const DropoutBackwardArgs&) { return nullptr; }

void launch(const DropoutBackwardArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    const dim3 grid(static_cast<unsigned>(ceil_div(a.n, kThreads)));
    warpsmith::launch<&dropout_backward_naive_kernel<T>>({grid, kThreads}, stream, a);
  });
}

const Register<DropoutBackwardArgs> registered{"naive", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
