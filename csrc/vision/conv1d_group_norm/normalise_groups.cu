// Group norm and activation of what a convolution left in memory, a block per group.
//   A group is a run of memory, swept three times: mean, variance, result; L2 has it but for the first. Bound: latency.
#include "device/block.h"
#include "device/fast_divide.h"
#include "host/launch.h"
#include "row/rows.h"
#include "vision/conv1d_group_norm/activate.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads)
    conv1d_group_norm_normalise_kernel(const Conv1dGroupNormArgs a, const FastDivide length, int64_t rows) {
  __shared__ BlockReduceStorage<float, kThreads> sums, squares;
  const int64_t size = a.group_size();
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* h = static_cast<const T*>(a.h) + row * size;  // [group_channels, length]
    T* y = static_cast<T*>(a.y) + row * size;
    const int64_t first = row % a.groups * a.group_channels();

    // mean
    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < size; i += kThreads) sum += to_float(h[i]);
    const float mean = block_reduce<kThreads>(sum, sums) / static_cast<float>(size);

    // variance
    float square = 0.0f;
    for (int64_t i = threadIdx.x; i < size; i += kThreads) {
      const float deviation = to_float(h[i]) - mean;
      square = fmaf(deviation, deviation, square);
    }
    const float variance = block_reduce<kThreads>(square, squares) / static_cast<float>(size);
    const float rstd = 1.0f / sqrtf(variance + a.eps);

    // normalise
    for (int64_t i = threadIdx.x; i < size; i += kThreads) {
      const int64_t channel = first + length.quotient_as(i);
      const float weight = to_float(static_cast<const T*>(a.norm_weight)[channel]);
      const float bias = to_float(static_cast<const T*>(a.norm_bias)[channel]);
      y[i] = from_float<T>(activate<T>(a.activation, fmaf((to_float(h[i]) - mean) * rstd, weight, bias)));
    }
    __syncthreads();  // the next group overwrites the storage of the sums
  }
}

}  // namespace

void normalise_groups(const Conv1dGroupNormArgs& a, cudaStream_t stream) {
  const int64_t rows = a.shape.n * a.groups;
  dispatch_float(a.dtype, [&]<class T>() {
    warpsmith::launch<&conv1d_group_norm_normalise_kernel<T>>({row_grid(rows), kThreads}, stream, a,
                                                              FastDivide(a.shape.length), rows);
  });
}

}  // namespace warpsmith
