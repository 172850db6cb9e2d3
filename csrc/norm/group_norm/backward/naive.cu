// Group norm backward, two kernels: a block per group writes dx, then a block per channel sums dw and db.
//   One value an access; the first sweeps its group four times (mean, variance, both sums of the gradient, dx), the
//   second reads grad and x again and joins its sums, run by run, in f64. Either layout, any alignment. Bound: load
//   instructions, six passes over data that three would do, and few groups leave multiprocessors without work.
#include "device/block.h"
#include "norm/group_norm/backward/sums.cuh"
#include "norm/mean_share.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 512;
constexpr int64_t kRun = 64;  // values of a channel, which has them without end, that a thread adds up in f32

template <class T>
struct Operands {
  const T* grad;
  const T* x;
  T* dx;
  PerChannel<T> weight, bias;
  Normaliser* normalisers;  // [rows]
  GroupElements elements;
  int64_t rows;
  float eps;

  __device__ ChannelGrad channel(const Normaliser& n, int64_t channel) const {
    return {n, weight[channel], bias[channel]};
  }
};

template <class T, class Activation>
__global__ void __launch_bounds__(kThreads, 2) group_norm_backward_naive_kernel(const Operands<T> v) {
  __shared__ BlockReduceStorage<float, kThreads> sums, squares;
  __shared__ GradSums partial[kWarp];
  const int64_t size = v.elements.size;
  for (int64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const int64_t start = v.elements.start(row), first = v.elements.first_channel(row);
    const T* grad = v.grad + start;
    const T* x = v.x + start;

    // mean
    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < size; i += kThreads) {
      sum = fmaf(to_float(x[v.elements.place(i).offset]), kMeanShare, sum);
    }
    const float mean = block_reduce<kThreads>(sum, sums) / (static_cast<float>(size) * kMeanShare);

    // variance
    float square = 0.0f;
    for (int64_t i = threadIdx.x; i < size; i += kThreads) {
      const float deviation = to_float(x[v.elements.place(i).offset]) - mean;
      square = fmaf(deviation, deviation, square);
    }
    const Moments moments{static_cast<float>(size), mean, block_reduce<kThreads>(square, squares)};
    const Normaliser n = normaliser(moments, v.eps);
    if (threadIdx.x == 0) v.normalisers[row] = n;

    // sums of the gradient
    GradSums weighted{};
    for (int64_t i = threadIdx.x; i < size; i += kThreads) {
      const auto [offset, channel] = v.elements.place(i);
      const float value = to_float(x[offset]);
      const float g = v.channel(n, first + channel).template scaled<Activation, T>(to_float(grad[offset]), value);
      weighted = weighted + GradSums{g * (value - n.mean), g};
    }
    weighted = block_sum(weighted, partial);

    // dx; the slope takes the variance itself, since in small groups the rounding of rstd would not cancel
    const float slope = weighted.dw / fmaf(moments.count, v.eps, moments.m2), level = weighted.db / moments.count;
    for (int64_t i = threadIdx.x; i < size; i += kThreads) {
      const auto [offset, channel] = v.elements.place(i);
      const float value = to_float(x[offset]);
      const float g = v.channel(n, first + channel).template scaled<Activation, T>(to_float(grad[offset]), value);
      v.dx[start + offset] = from_float<T>(n.rstd * ((g - level) - (value - n.mean) * slope));
    }
    __syncthreads();  // the next group overwrites the storage of the sums
  }
}

struct Strides {
  int64_t sample, channel, position;
  FastDivide spatial;
  int64_t count;  // n * spatial
};

template <class T, class Activation>
__global__ void __launch_bounds__(kThreads, 2)
    group_norm_backward_naive_channels_kernel(const Operands<T> v, const ChannelOutput<T> dw, const ChannelOutput<T> db,
                                              const Strides strides, int64_t channels) {
  __shared__ GradSums partial[kWarp];
  for (int64_t channel = blockIdx.x; channel < channels; channel += gridDim.x) {
    const int64_t group = channel / v.elements.group_channels;
    double total_dw = 0.0, total_db = 0.0;
    for (int64_t first = threadIdx.x; first < strides.count; first += kRun * kThreads) {
      GradSums run{};
      const int64_t end = min(first + kRun * kThreads, strides.count);
      for (int64_t i = first; i < end; i += kThreads) {
        const int64_t sample = strides.spatial.quotient(i);
        const int64_t position = i - sample * static_cast<int64_t>(strides.spatial.divisor);
        const int64_t at = sample * strides.sample + channel * strides.channel + position * strides.position;
        const ChannelGrad c = v.channel(v.normalisers[sample * v.elements.groups + group], channel);
        c.template add_to<Activation, T>(run, to_float(v.grad[at]), to_float(v.x[at]));
      }
      total_dw += run.dw;
      total_db += run.db;
    }
    const GradSums sums = block_sum(GradSums{static_cast<float>(total_dw), static_cast<float>(total_db)}, partial);
    if (threadIdx.x == 0) {
      dw.write(channel, sums.dw);
      db.write(channel, sums.db);
    }
    __syncthreads();  // the next channel overwrites partial
  }
}

const char* takes(const GroupNormBackwardArgs&) { return nullptr; }

void launch(const GroupNormBackwardArgs& a, cudaStream_t stream) {
  visit_activations(a.dtype, a.activation, [&]<class T, class Activation>() {
    const GroupShape& s = a.shape;
    const Operands<T> operands{.grad = static_cast<const T*>(a.grad),
                               .x = static_cast<const T*>(a.x),
                               .dx = static_cast<T*>(a.dx),
                               .weight = PerChannel<T>(a.weight, 1.0f),
                               .bias = PerChannel<T>(a.bias, 0.0f),
                               .normalisers = reinterpret_cast<Normaliser*>(a.workspace),
                               .elements = GroupElements(s),
                               .rows = s.rows(),
                               .eps = a.eps};
    warpsmith::launch<&group_norm_backward_naive_kernel<T, Activation>>({row_grid(operands.rows), kThreads}, stream,
                                                                        operands);
    if (a.dw == nullptr && a.db == nullptr) return;
    const Strides strides{.sample = s.c * s.spatial,
                          .channel = s.channels_last ? 1 : s.spatial,
                          .position = s.channels_last ? s.c : 1,
                          .spatial = FastDivide(s.spatial),
                          .count = s.n * s.spatial};
    warpsmith::launch<&group_norm_backward_naive_channels_kernel<T, Activation>>(
        {row_grid(s.c), kThreads}, stream, operands, ChannelOutput<T>(a.dw, a.weight.dtype),
        ChannelOutput<T>(a.db, a.bias.dtype), strides, s.c);
  });
}

const Register<GroupNormBackwardArgs> registered{"naive", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
