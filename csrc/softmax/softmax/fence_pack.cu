// Softmax without its maximum, several blocks to a row, joined by a fence, 128-bit accesses.
//   Against `fence`: one load brings 16 bytes, and a row takes a quarter or an eighth of the blocks, so fewer atomics meet
//   at its total. UNSAFE in the same way. Bound: one block writes the row alone.
#include "softmax/softmax/fence.cuh"
#include "softmax/softmax/unshifted.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;
constexpr int kPacksPerThread = 4;

// Values of a row that one block adds up.
template <class T>
inline constexpr int64_t kSlice = int64_t{kThreads} * kPacksPerThread * kPack<T>;

template <class T, class Result>
__global__ void __launch_bounds__(kThreads) softmax_fence_pack_kernel(const SoftmaxRows<T> v, RowTotal* totals) {
  constexpr int64_t kStep = int64_t{kThreads} * kPack<T>;
  __shared__ float partial[kWarp];
  const int64_t own = int64_t{kPack<T>} * threadIdx.x;
  const int64_t slices = (v.cols + kSlice<T> - 1) / kSlice<T>;
  for (int64_t item = blockIdx.x; item < v.rows * slices; item += gridDim.x) {
    const int64_t row = item / slices, first = (item - row * slices) * kSlice<T>;
    const int64_t end = min(first + kSlice<T>, v.cols);
    const T* x = v.x_row(row);
    T* y = v.y_row(row);

    // sum
    float sum = 0.0f;
    for (int64_t col = first + own; col < end; col += kStep) {
      Pack<T> values;
      load(values, x + col);
      sum = add_exponentials(sum, values, 0.0f);
    }
    sum = block_sum(sum, partial);

    // results
    if (add_to_total(sum, totals[row], slices)) {
      const Result result(sum);
      for (int64_t col = own; col < v.cols; col += kStep) {
        Pack<T> values;
        load(values, x + col);
        store<Cache::streaming>(y + col, results(values, result));
      }
    }
    __syncthreads();  // the next slice overwrites what is shared
  }
}

void launch(const SoftmaxArgs& a, cudaStream_t stream) {
  RowTotal* totals = clear_totals(a, stream);
  visit_unshifted_results(a, [&]<class T, class Result>() {
    const unsigned grid = row_grid(a.rows * ((a.cols + kSlice<T> - 1) / kSlice<T>));
    warpsmith::launch<&softmax_fence_pack_kernel<T, Result>>({grid, kThreads}, stream, SoftmaxRows<T>(a), totals);
  });
}

bool suits(const SoftmaxArgs&) { return false; }

const Register<SoftmaxArgs> registered{"fence_pack", /*min_sm=*/80, needs_packs, launch, suits};

}  // namespace
}  // namespace warpsmith
