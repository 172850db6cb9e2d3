// Group norm, a block per group.
//   One value an access, three sweeps over the group: mean, variance, result. Either layout, any alignment. Bound: the
//   number of load instructions, and few groups leave multiprocessors without work.
#include "device/block.h"
#include "norm/group.cuh"
#include "norm/group_norm/group_norm.h"
#include "norm/mean_share.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 512;

template <class T>
struct Operands {
  const T* x;
  T* y;
  PerChannel<T> weight, bias;
  GroupElements elements;
  int64_t rows;
  float eps;
};

template <class T, class Activation>
__global__ void __launch_bounds__(kThreads, 2) group_norm_naive_kernel(const Operands<T> v) {
  __shared__ BlockReduceStorage<float, kThreads> sums, squares, rests;
  const int64_t size = v.elements.size;
  for (int64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const T* x = v.x + v.elements.start(row);
    T* y = v.y + v.elements.start(row);
    const int64_t first = v.elements.first_channel(row);

    // mean
    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < size; i += kThreads) {
      sum = fmaf(to_float(x[v.elements.place(i).offset]), kMeanShare, sum);
    }
    const float mean = block_reduce<kThreads>(sum, sums) / (static_cast<float>(size) * kMeanShare);

    // variance, and what rounding has cost the mean: two values close to each other lie symmetrically around it
    float square = 0.0f, rest = 0.0f;
    for (int64_t i = threadIdx.x; i < size; i += kThreads) {
      const float deviation = to_float(x[v.elements.place(i).offset]) - mean;
      square = fmaf(deviation, deviation, square);
      rest += deviation;
    }
    const Moments moments{static_cast<float>(size), mean, block_reduce<kThreads>(square, squares)};
    const float distance = block_reduce<kThreads>(rest, rests) / static_cast<float>(size);
    const Normaliser n = normaliser(moments, v.eps);

    // normalise
    constexpr float kUnit = kArgumentUnit<Activation, T>;
    for (int64_t i = threadIdx.x; i < size; i += kThreads) {
      const auto [offset, channel] = v.elements.place(i);
      const float scale = n.rstd * (v.weight[first + channel] * kUnit), shift = v.bias[first + channel] * kUnit;
      const float deviation = (to_float(x[offset]) - n.mean) - distance;
      y[offset] = from_float<T>(activate<Activation, T>(fmaf(deviation, scale, shift)));
    }
    __syncthreads();  // the next group overwrites the storage of the sums
  }
}

const char* takes(const GroupNormArgs&) { return nullptr; }

void launch(const GroupNormArgs& a, cudaStream_t stream) {
  visit_activations(a.dtype, a.activation, [&]<class T, class Activation>() {
    const Operands<T> operands{.x = static_cast<const T*>(a.x),
                               .y = static_cast<T*>(a.y),
                               .weight = PerChannel<T>(a.weight, 1.0f),
                               .bias = PerChannel<T>(a.bias, 0.0f),
                               .elements = GroupElements(a.shape),
                               .rows = a.shape.rows(),
                               .eps = a.eps};
    warpsmith::launch<&group_norm_naive_kernel<T, Activation>>({row_grid(operands.rows), kThreads}, stream, operands);
  });
}

const Register<GroupNormArgs> registered{"naive", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
