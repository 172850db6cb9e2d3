// Scaled masked softmax, a block per row in two sweeps of 128-bit accesses.
//   Against `naive`: the maximum and the sum come out of one sweep; where the maximum grows, the sum so far shrinks
//   with it. Any length. Bound: x, bias and mask are read twice, the second time from L2 at best.
// Milakov & Gimelshein 2018, "Online normalizer calculation for softmax", https://arxiv.org/abs/1805.02867
#include "softmax/scaled_masked_softmax/row.cuh"

namespace warpsmith {
namespace {

constexpr int kMostThreads = 512;

template <class T, class Biased>
__global__ void __launch_bounds__(kMostThreads, 2)
    scaled_masked_softmax_online_kernel(const ScaledMaskedSoftmaxRows<T> v) {
  constexpr int kWidth = kPack<T>;
  __shared__ RowTotals partial[kWarp];
  const LogitRows<T>& logits = v.logits;
  const int64_t start = int64_t{threadIdx.x} * kWidth, step = int64_t{blockDim.x} * kWidth;
  for (int64_t row = blockIdx.x; row < logits.rows; row += gridDim.x) {
    const LogitRow<T> r = logits.row(row);
    float z[kWidth];

    // maximum and sum
    RowTotals own;
#pragma unroll 2
    for (int64_t col = start; col < r.live; col += step) {
      read_pack<T, Biased>(z, logits, r, col);
      float most = own.most;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) most = ptx::max_nan(most, z[j]);
      own = {most, own.sum * own.weight(most)};
#pragma unroll
      for (int j = 0; j < kWidth; ++j) own.sum += exp_below(z[j], most);
    }
    const float most = warp_reduce(own.most, MaxNan{});
    const RowTotals all = join_warps({most, warp_reduce(own.sum * own.weight(most))}, partial);
    if (threadIdx.x == 0) write_lse(v.lse, row, all);

    // write
    const float factor = reciprocal_sum(all.sum) * v.dropout.scale;
    const int64_t first = row * logits.cols;
#pragma unroll 2
    for (int64_t col = start; col < r.live; col += step) {
      read_pack<T, Biased>(z, logits, r, col);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) z[j] = exp_below(z[j], all.most);
      write_pack(v, first + col, r.live - col, z, factor);
    }
    const int64_t dead = (r.live + kWidth - 1) / kWidth * kWidth;
    for (int64_t col = dead + start; col < logits.cols; col += step) write_zeros(v.y + first + col);
    __syncthreads();  // the next row overwrites partial
  }
}

void launch(const ScaledMaskedSoftmaxArgs& a, cudaStream_t stream) {
  visit_logits(a.logits, [&]<class T, class Biased>() {
    const unsigned threads = row_threads(a.logits.cols / kPack<T>, 2, kMostThreads);
    warpsmith::launch<&scaled_masked_softmax_online_kernel<T, Biased>>({row_grid(a.logits.rows), threads}, stream,
                                                                       ScaledMaskedSoftmaxRows<T>(a));
  });
}

const char* takes(const ScaledMaskedSoftmaxArgs& a) { return needs_packs(a.logits); }

const Register<ScaledMaskedSoftmaxArgs> registered{"online", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
