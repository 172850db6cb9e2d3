// Group norm backward of channels-last tensors in passes over memory, as `split`.
//   Against `naive`: slabs of neighbouring positions, all their channels in 128-bit accesses. A thread stays with one
//   pack of channels, keeps the sums of each in registers, and meets the other lanes of its block in shared memory.
//   Bound: DRAM, with x read three times and grad twice where they do not fit in L2.
#include "norm/group_norm/backward/passes.cuh"

namespace warpsmith {
namespace {

template <class T>
struct Operands {
  const T* grad;  // [n, spatial, c], as x and dx
  const T* x;
  T* dx;
  PerChannel<T> weight, bias;
  const Normaliser* normalisers;  // [n, groups]
  const GradSums* means;          // [n, groups]
  ColumnTiling tiling;
  Pieces slabs;
};

// Where a block stands: slab `slab` of sample `sample`, and its thread's first channel.
template <class T>
struct Slab {
  int64_t sample, start;  // start: of the thread's pack at the slab's first position
  int positions, channel;

  __device__ Slab(const Operands<T>& v, int64_t block, int tile, const Column& column)
      : sample(block / v.slabs.count), channel((tile * v.tiling.columns + column.at) * kPack<T>) {
    const int64_t position = (block - sample * v.slabs.count) * v.slabs.length;
    positions = static_cast<int>(min(v.slabs.length, v.tiling.spatial - position));
    start = (sample * v.tiling.spatial + position) * v.tiling.c + channel;
  }
};

// x and grad at one position.
template <class T>
struct Pair {
  Pack<T> x, grad;
};

template <class T>
__device__ __forceinline__ void load_pair(Pair<T>& pair, const T* x, const T* grad) {
  load<Cache::streaming>(pair.x, x);
  load<Cache::streaming>(pair.grad, grad);
}

// The gradient before the activation, and how far x lies from its mean.
template <int n, class T, class Activation>
__device__ __forceinline__ void before_activation(float (&gz)[n], float (&deviation)[n], const Pair<T>& pair,
                                                  const PackFactors<n, Activation>& factors) {
  float grad[n], x[n];
  to_float(grad, pair.grad);
  to_float(x, pair.x);
#pragma unroll
  for (int i = 0; i < n; ++i) {
    deviation[i] = x[i] - factors.mean[i];
    const float z = fmaf(deviation[i], factors.scale[i], factors.shift[i]);
    gz[i] = activate_backward<Activation, T>(grad[i], z);
  }
}

// Each pass begins with the slab where the one before it has ended: L2 still holds that. The first and the third go up,
// this one down.
template <class T, class Activation>
__global__ void __launch_bounds__(kTileThreads, 2)
    group_norm_backward_nhwc_split_sums_kernel(const Operands<T> v, const PartialSums to) {
  constexpr int kWidth = kPack<T>;
  __shared__ GradSums
      lanes[kTileThreads * kWidth];  // [lanes, kWidth, columns]: neighbouring threads write neighbouring values
  const Column column(v.tiling, blockIdx.y);
  const int64_t block = gridDim.x - 1 - blockIdx.x;
  const Slab<T> slab(v, block, blockIdx.y, column);
  const int channels = column.columns * kWidth;

  // sums of the thread's positions
  if (column.active) {
    PackFactors<kWidth, Activation> factors(slab.channel, v.weight, v.bias);
    const Normaliser* normalisers = v.normalisers + slab.sample * v.tiling.groups;
    over_groups<kWidth>(slab.channel, v.tiling.group_channels,
                        [&](int i, int group) { factors.normalise(i, normalisers[group]); });
    GradSums sums[kWidth] = {};
    const T *gX = v.x + slab.start, *gGrad = v.grad + slab.start;
    walk_column<Pair<T>, 3>(
        column, slab.positions, static_cast<int>(v.tiling.c),
        [&](Pair<T>& pair, int offset) { load_pair(pair, gX + offset, gGrad + offset); },
        [&](const Pair<T>& pair, int) {
          float gz[kWidth], deviation[kWidth];
          before_activation(gz, deviation, pair, factors);
#pragma unroll
          for (int i = 0; i < kWidth; ++i) {
            sums[i].dw = fmaf(gz[i], deviation[i], sums[i].dw);
            sums[i].db += gz[i];
          }
        });
    over_groups<kWidth>(slab.channel, v.tiling.group_channels,
                        [&](int i, int group) { sums[i].dw *= normalisers[group].rstd; });
#pragma unroll
    for (int i = 0; i < kWidth; ++i) lanes[(column.lane * kWidth + i) * column.columns + column.at] = sums[i];
  }
  __syncthreads();

  // over the lanes
  const int64_t first = int64_t{blockIdx.y} * v.tiling.columns * kWidth;
  for (int i = threadIdx.x; i < channels; i += blockDim.x) {
    const GradSums* of = &lanes[i % kWidth * column.columns + i / kWidth];
    constexpr int kChains = 4;  // of additions: short ones round less and wait less
    GradSums sums[kChains] = {};
    for (int lane = 0; lane < column.lanes; lane += kChains) {
#pragma unroll
      for (int k = 0; k < kChains; ++k) {
        if (lane + k < column.lanes) sums[k] = sums[k] + of[(lane + k) * channels];
      }
    }
    to.write(block, first + i, (sums[0] + sums[1]) + (sums[2] + sums[3]));
  }
}

template <class T, class Activation>
__global__ void __launch_bounds__(kTileThreads, 2) group_norm_backward_nhwc_split_kernel(const Operands<T> v) {
  constexpr int kWidth = kPack<T>;
  const Column column(v.tiling, blockIdx.y);
  if (!column.active) return;
  const Slab<T> slab(v, blockIdx.x, blockIdx.y, column);

  // dx = gz * scale + deviation * along + shift
  PackFactors<kWidth, Activation> factors(slab.channel, v.weight, v.bias);
  float along[kWidth], shift[kWidth];
  const int64_t of_sample = slab.sample * v.tiling.groups;
  over_groups<kWidth>(slab.channel, v.tiling.group_channels, [&](int i, int group) {
    const Normaliser n = v.normalisers[of_sample + group];
    const GradSums mean = v.means[of_sample + group];
    factors.normalise(i, n);
    along[i] = -n.rstd * (n.rstd * mean.dw);
    shift[i] = -n.rstd * mean.db;
  });
  const T *gX = v.x + slab.start, *gGrad = v.grad + slab.start;
  T* gDx = v.dx + slab.start;
  walk_column<Pair<T>, 2>(
      column, slab.positions, static_cast<int>(v.tiling.c),
      [&](Pair<T>& pair, int offset) { load_pair(pair, gX + offset, gGrad + offset); },
      [&](const Pair<T>& pair, int offset) {
        float gz[kWidth], deviation[kWidth], dx[kWidth];
        before_activation(gz, deviation, pair, factors);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          const float scale = factors.scale[i] * (1.0f / kArgumentUnit<Activation, T>);
          dx[i] = fmaf(gz[i], scale, fmaf(deviation[i], along[i], shift[i]));
        }
        Pack<T> out;
        from_float(out, dx);
        store<Cache::streaming>(gDx + offset, out);
      });
}

const char* takes(const GroupNormBackwardArgs& a) { return needs_packed_channels(a); }

void launch(const GroupNormBackwardArgs& a, cudaStream_t stream) {
  visit_activations(a.dtype, a.activation, [&]<class T, class Activation>() {
    const ColumnTiling tiling(a.shape, a.dtype, kMostColumns);
    const Pieces slabs = pieces_of(a.shape, a.dtype);
    const auto* x = static_cast<const T*>(a.x);
    const GroupStatistics statistics = launch_statistics(x, a.shape, tiling, slabs, a.eps, a.workspace, stream);
    const Operands<T> operands{.grad = static_cast<const T*>(a.grad),
                               .x = x,
                               .dx = static_cast<T*>(a.dx),
                               .weight = PerChannel<T>(a.weight, 1.0f),
                               .bias = PerChannel<T>(a.bias, 0.0f),
                               .normalisers = statistics.groups,
                               .means = means_of(a),
                               .tiling = tiling,
                               .slabs = slabs};
    const PartialSums sums = partial_sums(a, "nhwc_split", slabs.count);
    const LaunchConfig config{
        .grid = dim3(static_cast<unsigned>(a.shape.n * slabs.count), static_cast<unsigned>(tiling.tiles)),
        .block = dim3(tiling.threads())};
    warpsmith::launch<&group_norm_backward_nhwc_split_sums_kernel<T, Activation>>(config, stream, operands, sums);
    launch_means(a, sums, slabs.count, stream);
    warpsmith::launch<&group_norm_backward_nhwc_split_kernel<T, Activation>>(config, stream, operands);
    sum_parameters(a, sums, stream);
  });
}

const Register<GroupNormBackwardArgs> registered{"nhwc_split", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
