// Softmax backward in two sweeps, 128-bit accesses.
//   Against `naive`: one load brings 16 bytes, and two of each input are in flight. The second sweep runs backwards, so
//   that it starts with what the first left in the caches. Rows of any length that packs tile. Bound: the part of the row
//   that has left L2 is read from DRAM twice.
#include "softmax/softmax/backward/gradient.cuh"

namespace warpsmith {
namespace {

constexpr int kMostThreads = 512;
constexpr int kInFlight = 2;  // packs of each input

template <class T, class Gradient>
__global__ void __launch_bounds__(kMostThreads, 2) softmax_backward_pack_kernel(const SoftmaxBackwardRows<T> v) {
  constexpr int kWidth = kPack<T>;
  __shared__ float partial[kWarp];
  const int64_t first = int64_t{kWidth} * threadIdx.x, step = int64_t{kWidth} * blockDim.x, stride = kInFlight * step;
  for (int64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const T* grad = v.grad_row(row);
    const T* y = v.y_row(row);
    T* dx = v.dx_row(row);
    Pack<T> grads[kInFlight], values[kInFlight];
    const auto fetch = [&](int64_t col) {
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int64_t at = col + i * step;
        if (at < v.cols) load(grads[i], grad + at), load(values[i], y + at);
      }
    };

    // sum
    float sum = 0.0f;
    for (int64_t col = first; col < v.cols; col += stride) {
      fetch(col);
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (col + i * step < v.cols) sum = add_terms<Gradient>(sum, grads[i], values[i]);
      }
    }
    sum = block_sum(sum, partial);

    // gradient
    for (int64_t col = first + (v.cols - 1) / stride * stride; col >= first; col -= stride) {
      fetch(col);
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int64_t at = col + i * step;
        if (at < v.cols) store<Cache::streaming>(dx + at, gradients<Gradient>(grads[i], values[i], sum));
      }
    }
    __syncthreads();  // the next row overwrites partial
  }
}

void launch(const SoftmaxBackwardArgs& a, cudaStream_t stream) {
  visit_gradients(a, [&]<class T, class Gradient>() {
    const unsigned threads = row_threads(a.cols, kInFlight * kPack<T>, kMostThreads);
    const SoftmaxBackwardRows<T> rows(a);
    warpsmith::launch<&softmax_backward_pack_kernel<T, Gradient>>({row_grid(a.rows), threads}, stream, rows);
  });
}

const Register<SoftmaxBackwardArgs> registered{"pack", /*min_sm=*/80, needs_packs, launch};

}  // namespace
}  // namespace warpsmith
