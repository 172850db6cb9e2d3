// Backward of bias, scale, mask, softmax and dropout, a block per row in two sweeps: sums, write.
//   One value an access, any length and any alignment; the generator runs for every element alone. Bound: the number of
//   instructions.
#include "softmax/scaled_masked_softmax/dropout_backward/row.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads)
    bias_scale_mask_softmax_dropout_backward_naive_kernel(const BiasScaleMaskSoftmaxDropoutBackwardRows<T> v) {
  __shared__ GradientSums partial[kWarp];
  const LogitRows<T>& logits = v.logits;
  for (int64_t row = blockIdx.x; row < logits.rows; row += gridDim.x) {
    const LogitRow<T> r = logits.row(row);
    const T* gGrad = v.grad + row * v.grad_stride;  // [cols]
    const int64_t start = row * logits.cols;
    const float lse = v.lse[row];
    const auto kept_grad = [&](int64_t i) {
      const bool kept = !v.dropout.active || v.dropout.keeps(start + i);
      return kept ? to_float(gGrad[i]) : 0.0f;
    };

    // sums
    GradientSums sums;
    for (int64_t i = threadIdx.x; i < r.live; i += kThreads) {
      sums.add(exp_below(logits.logit(r, i), lse), kept_grad(i));
    }
    const GradientFactors factors(v, row, block_sums(sums, partial));

    // write
    for (int64_t i = threadIdx.x; i < logits.cols; i += kThreads) {
      float dx = 0.0f;
      if (i < r.live && !factors.none) {
        const float e = exp_below(logits.logit(r, i), lse), grad = kept_grad(i);
        dx = factors.rare ? factors.rare_dx(e, grad) : factors.template dx<T>(e, grad);
      }
      v.dx[start + i] = from_float<T>(dx);
    }
    __syncthreads();  // the next row overwrites partial
  }
}

const char* takes(const BiasScaleMaskSoftmaxDropoutBackwardArgs&) { return nullptr; }

void launch(const BiasScaleMaskSoftmaxDropoutBackwardArgs& a, cudaStream_t stream) {
  dispatch_float(a.logits.dtype, [&]<class T>() {
    warpsmith::launch<&bias_scale_mask_softmax_dropout_backward_naive_kernel<T>>(
        {row_grid(a.logits.rows), kThreads}, stream, BiasScaleMaskSoftmaxDropoutBackwardRows<T>(a));
  });
}

const Register<BiasScaleMaskSoftmaxDropoutBackwardArgs> registered{"naive", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
