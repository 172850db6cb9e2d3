// Scaled masked softmax, a block per row in three sweeps: maximum, sum of exponentials, write.
//   One value an access, any length and any alignment; every logit is read and put together three times. Bound: the
//   number of instructions. One sum by shuffles and one value per warp.
#include "device/block.h"
#include "softmax/scaled_masked_softmax/row.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads) scaled_masked_softmax_naive_kernel(const ScaledMaskedSoftmaxRows<T> v) {
  __shared__ BlockReduceStorage<float, kThreads> maxima, sums;
  const LogitRows<T>& logits = v.logits;
  for (int64_t row = blockIdx.x; row < logits.rows; row += gridDim.x) {
    const LogitRow<T> r = logits.row(row);
    RowTotals all;

    // maximum
    for (int64_t i = threadIdx.x; i < r.live; i += kThreads) all.most = ptx::max_nan(all.most, logits.logit(r, i));
    all.most = block_reduce<kThreads>(all.most, maxima, MaxNan{});

    // sum of exponentials
    for (int64_t i = threadIdx.x; i < r.live; i += kThreads) all.sum += exp_below(logits.logit(r, i), all.most);
    all.sum = block_reduce<kThreads>(all.sum, sums);
    if (threadIdx.x == 0) write_lse(v.lse, row, all);

    // write
    const float factor = reciprocal_sum(all.sum) * v.dropout.scale;
    const int64_t first = row * logits.cols;
    for (int64_t i = threadIdx.x; i < logits.cols; i += kThreads) {
      float y = i < r.live ? exp_below(logits.logit(r, i), all.most) * factor : 0.0f;
      if (v.dropout.active && !v.dropout.keeps(first + i)) y = 0.0f;
      v.y[first + i] = from_float<T>(y);
    }
    __syncthreads();  // the next row overwrites maxima and sums
  }
}

const char* takes(const ScaledMaskedSoftmaxArgs&) { return nullptr; }

void launch(const ScaledMaskedSoftmaxArgs& a, cudaStream_t stream) {
  dispatch_float(a.logits.dtype, [&]<class T>() {
    warpsmith::launch<&scaled_masked_softmax_naive_kernel<T>>({row_grid(a.logits.rows), kThreads}, stream,
                                                              ScaledMaskedSoftmaxRows<T>(a));
  });
}

const Register<ScaledMaskedSoftmaxArgs> registered{"naive", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
