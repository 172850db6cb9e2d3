// Backward of bias, scale, mask, softmax and dropout, two sweeps of 128-bit accesses.
//   Against `naive`: one load brings 16 bytes, and one call of the generator serves four elements. Any length. Bound:
//   grad and x are read twice, the second time from L2 at best, and the generator runs twice.
#include "softmax/scaled_masked_softmax/dropout_backward/row.cuh"

namespace warpsmith {
namespace {

constexpr int kMostThreads = 512;

template <class T, class Biased>
__global__ void __launch_bounds__(kMostThreads, 2)
    bias_scale_mask_softmax_dropout_backward_pack_kernel(const BiasScaleMaskSoftmaxDropoutBackwardRows<T> v) {
  constexpr int kWidth = kPack<T>;
  __shared__ GradientSums partial[kWarp];
  const LogitRows<T>& logits = v.logits;
  const int64_t first = int64_t{threadIdx.x} * kWidth, step = int64_t{blockDim.x} * kWidth;
  for (int64_t row = blockIdx.x; row < logits.rows; row += gridDim.x) {
    const LogitRow<T> r = logits.row(row);
    const T* gGrad = v.grad + row * v.grad_stride;  // [cols]
    const int64_t start = row * logits.cols;
    const float base = finite_base(v.lse[row]);
    float z[kWidth];
    Pack<T> grad;
    // z becomes e, and grad 0 where it was dropped
    const auto read = [&](int64_t col, GradientSums& sums) {
      load(grad, gGrad + col);
      read_pack<T, Biased>(z, logits, r, col);
      if (v.dropout.active) drop<T>(grad, v.dropout, (start + col) / 4);
      add_pack<T>(sums, z, grad, base, r.live - col);
    };

    // sums
    GradientSums sums;
    for (int64_t col = first; col < r.live; col += step) read(col, sums);
    const GradientFactors factors(v, row, block_sums(sums, partial));

    // write
    const int64_t live = factors.none ? 0 : r.live;
    for (int64_t col = first; col < live; col += step) {
      GradientSums known;
      read(col, known);
      if (factors.rare) {
        write_gradient<T, true>(v.dx + start + col, z, grad, factors, r.live - col);
      } else {
        write_gradient<T, false>(v.dx + start + col, z, grad, factors, r.live - col);
      }
    }
    const int64_t dead = (live + kWidth - 1) / kWidth * kWidth;
    for (int64_t col = dead + first; col < logits.cols; col += step) write_zeros(v.dx + start + col);
    __syncthreads();  // the next row overwrites partial
  }
}

const char* takes(const BiasScaleMaskSoftmaxDropoutBackwardArgs& a) { return needs_packs(a); }

void launch(const BiasScaleMaskSoftmaxDropoutBackwardArgs& a, cudaStream_t stream) {
  visit_logits(a.logits, [&]<class T, class Biased>() {
    const unsigned threads = row_threads(a.logits.cols / kPack<T>, 2, kMostThreads);
    warpsmith::launch<&bias_scale_mask_softmax_dropout_backward_pack_kernel<T, Biased>>(
        {row_grid(a.logits.rows), threads}, stream, BiasScaleMaskSoftmaxDropoutBackwardRows<T>(a));
  });
}

const Register<BiasScaleMaskSoftmaxDropoutBackwardArgs> registered{"pack", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
