// Softmax in two sweeps, 128-bit accesses.
//   Against `online`: one load brings 16 bytes, which share one correction of the sum. The second sweep runs backwards,
//   so that it starts with what the first left in the caches. Rows of any length that packs tile. Bound: the part of the
//   row that has left L2 is read from DRAM twice.
// Milakov & Gimelshein 2018, "Online normalizer calculation for softmax", https://arxiv.org/abs/1805.02867
#include "softmax/softmax/result.cuh"

namespace warpsmith {
namespace {

constexpr int kMostThreads = 512;
constexpr int kInFlight = 4;  // packs of a thread

template <class T, class Result>
__global__ void __launch_bounds__(kMostThreads, 2) softmax_online_pack_kernel(const SoftmaxRows<T> v) {
  constexpr int kWidth = kPack<T>;
  __shared__ MaxSum partial[kWarp];
  const int64_t first = int64_t{kWidth} * threadIdx.x, step = int64_t{kWidth} * blockDim.x, stride = kInFlight * step;
  for (int64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const T* x = v.x_row(row);
    T* y = v.y_row(row);
    Pack<T> packs[kInFlight];

    // maximum and sum
    MaxSum seen = MaxSum::empty();
    for (int64_t col = first; col < v.cols; col += stride) {
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (col + i * step < v.cols) load(packs[i], x + col + i * step);
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (col + i * step >= v.cols) break;
        float values[kWidth];
        to_float(values, packs[i]);
        seen = include<T>(seen, values);
      }
    }
    const MaxSum whole = block_merge<T>(seen, partial);

    // results
    const Result result(whole.max, whole.sum);
    for (int64_t col = first + (v.cols - 1) / stride * stride; col >= first; col -= stride) {
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (col + i * step < v.cols) load(packs[i], x + col + i * step);
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (col + i * step < v.cols) store<Cache::streaming>(y + col + i * step, results(packs[i], result));
      }
    }
    __syncthreads();  // the next row overwrites partial
  }
}

void launch(const SoftmaxArgs& a, cudaStream_t stream) {
  visit_results(a, [&]<class T, class Result>() {
    const unsigned threads = row_threads(a.cols, 2 * kPack<T>, kMostThreads);
    warpsmith::launch<&softmax_online_pack_kernel<T, Result>>({row_grid(a.rows), threads}, stream, SoftmaxRows<T>(a));
  });
}

const Register<SoftmaxArgs> registered{"online_pack", /*min_sm=*/80, needs_packs, launch};

}  // namespace
}  // namespace warpsmith
