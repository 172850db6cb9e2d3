// Softmax without its maximum, several blocks to a row, joined by a fence.
//   Every block adds the exponentials of its slice to the row's total in global memory, makes that visible to the whole
//   GPU with __threadfence() and takes a ticket; the block that draws the last ticket finds the total complete and writes
//   the row. Nobody waits for another block, so it does not matter how many are resident. UNSAFE like `unsafe`, and the
//   order of the additions, hence the last bit, changes from run to run. Bound: one block writes the row alone.
// CUDA C++ Programming Guide, "Memory Fence Functions".
#include "softmax/softmax/fence.cuh"
#include "softmax/softmax/unshifted.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kSlice = 4 * kThreads;  // values of a row that one block adds up

template <class T, class Result>
__global__ void __launch_bounds__(kThreads) softmax_fence_kernel(const SoftmaxRows<T> v, RowTotal* totals) {
  __shared__ float partial[kWarp];
  const int64_t slices = (v.cols + kSlice - 1) / kSlice;
  for (int64_t item = blockIdx.x; item < v.rows * slices; item += gridDim.x) {
    const int64_t row = item / slices, first = (item - row * slices) * kSlice;
    const int64_t end = min(first + kSlice, v.cols);
    const T* x = v.x_row(row);
    T* y = v.y_row(row);

    // sum
    float sum = 0.0f;
    for (int64_t i = first + threadIdx.x; i < end; i += kThreads) sum += exponential<T>(to_float(x[i]));
    sum = block_sum(sum, partial);

    // results
    if (add_to_total(sum, totals[row], slices)) {
      const Result result(sum);
      for (int64_t i = threadIdx.x; i < v.cols; i += kThreads) y[i] = from_float<T>(result(to_float(x[i])));
    }
    __syncthreads();  // the next slice overwrites what is shared
  }
}

void launch(const SoftmaxArgs& a, cudaStream_t stream) {
  RowTotal* totals = clear_totals(a, stream);
  visit_unshifted_results(a, [&]<class T, class Result>() {
    const unsigned grid = row_grid(a.rows * ((a.cols + kSlice - 1) / kSlice));
    warpsmith::launch<&softmax_fence_kernel<T, Result>>({grid, kThreads}, stream, SoftmaxRows<T>(a), totals);
  });
}

bool suits(const SoftmaxArgs&) { return false; }

const Register<SoftmaxArgs> registered{"fence", /*min_sm=*/80, needs_rows, launch, suits};

}  // namespace
}  // namespace warpsmith
