// Scaled masked softmax backward, two sweeps of 128-bit accesses.
//   Against `naive`: one load brings 16 bytes. Any length. Bound: grad and y are read twice, the second time from L2 at
//   best.
#include "softmax/scaled_masked_softmax/backward/row.cuh"

namespace warpsmith {
namespace {

constexpr int kMostThreads = 512;

template <class T>
__global__ void __launch_bounds__(kMostThreads)
    scaled_masked_softmax_backward_pack_kernel(const ScaledMaskedSoftmaxBackwardRows<T> v) {
  constexpr int kWidth = kPack<T>;
  __shared__ float partial[kWarp];
  const int64_t start = int64_t{threadIdx.x} * kWidth, step = int64_t{blockDim.x} * kWidth;
  for (int64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const int64_t live = v.live_columns(row);
    const T* gGrad = v.grad + row * v.grad_stride;  // [cols]
    const T* gY = v.y + row * v.y_stride;           // [cols]
    T* gDx = v.dx + row * v.cols;                   // [cols]
    Pack<T> grad, y;

    // sum of products
    float sum = 0.0f;
#pragma unroll 4
    for (int64_t col = start; col < live; col += step) {
      load(grad, gGrad + col);
      load(y, gY + col);
      if (live - col < kWidth) {
        cut_off(grad, live - col);
        cut_off(y, live - col);
      }
      sum += dot<T>(grad, y);
    }
    sum = block_sum(sum, partial);

    // write
#pragma unroll 4
    for (int64_t col = start; col < live; col += step) {
      load(grad, gGrad + col);
      load(y, gY + col);
      write_gradient(gDx + col, grad, y, v.scale, sum, live - col);
    }
    const int64_t dead = (live + kWidth - 1) / kWidth * kWidth;
    for (int64_t col = dead + start; col < v.cols; col += step) write_zeros(gDx + col);
    __syncthreads();  // the next row overwrites partial
  }
}

const char* takes(const ScaledMaskedSoftmaxBackwardArgs& a) { return needs_packs(a); }

void launch(const ScaledMaskedSoftmaxBackwardArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    const unsigned threads = row_threads(a.cols / kPack<T>, 2, kMostThreads);
    warpsmith::launch<&scaled_masked_softmax_backward_pack_kernel<T>>({row_grid(a.rows), threads}, stream,
                                                                      ScaledMaskedSoftmaxBackwardRows<T>(a));
  });
}

const Register<ScaledMaskedSoftmaxBackwardArgs> registered{"pack", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
