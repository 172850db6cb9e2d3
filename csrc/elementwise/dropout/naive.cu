// Dropout, one element a thread.
//   Every thread calls the generator for itself and uses one of its four words; a warp votes on its word of the mask.
//   Bound: the generator, called four times as often as it need be.
#include "elementwise/dropout/elements.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void dropout_naive_kernel(const DropoutView<T> v) {
  const int64_t i = int64_t{kThreads} * blockIdx.x + threadIdx.x;
  drop_word(v, i, v.bias == nullptr ? 0 : v.in_row(i));
}

const char* takes(const DropoutArgs&) { return nullptr; }

void launch(const DropoutArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    const dim3 grid(static_cast<unsigned>(ceil_div(a.n, kThreads)));
    warpsmith::launch<&dropout_naive_kernel<T>>({grid, kThreads}, stream, DropoutView<T>(a, 1));
  });
}

const Register<DropoutArgs> registered{"naive", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
