// Group norm of channels-last tensors, three kernels as in `split`.
//   Against `naive`: a block reads slabs of neighbouring positions, all their channels in 128-bit accesses. A thread
//   stays with one pack of channels, so that weight, bias and statistics are looked up once for many positions, and a
//   pack that several groups share costs nothing more. Bound: DRAM, with x read twice where it does not fit in L2.
#include "device/start_early.h"
#include "norm/group_norm/group_norm.h"
#include "norm/group_statistics.cuh"

namespace warpsmith {
namespace {

template <class T>
struct Operands {
  const T* x;  // [n, spatial, c]
  T* y;        // [n, spatial, c]
  PerChannel<T> weight, bias;
  const Normaliser* normalisers;  // [n, groups]
  ColumnTiling tiling;
  Pieces slabs;
};

template <class T, class Activation>
__global__ void __launch_bounds__(kTileThreads, 4) group_norm_nhwc_split_kernel(const Operands<T> v) {
  start_early();
  constexpr int kWidth = kPack<T>;
  const ColumnTiling& tiling = v.tiling;
  const Column column(tiling, blockIdx.y);
  if (!column.active) return;
  const int64_t block = gridDim.x - 1 - blockIdx.x;
  const int64_t sample = block / v.slabs.count, slab = block - sample * v.slabs.count;
  const int positions = static_cast<int>(min(v.slabs.length, tiling.spatial - slab * v.slabs.length));
  const int first = (blockIdx.y * tiling.columns + column.at) * kWidth;  // channel

  // what the thread's channels are multiplied by
  PackFactors<kWidth, Activation> factors(first, v.weight, v.bias);
  const Normaliser* normalisers = v.normalisers + sample * tiling.groups;
  over_groups<kWidth>(first, tiling.group_channels,
                      [&](int i, int group) { factors.normalise(i, normalisers[group]); });

  // normalise
  const int c = static_cast<int>(tiling.c);
  const int64_t start = (sample * tiling.spatial + slab * v.slabs.length) * tiling.c + first;
  const T* gX = v.x + start;
  T* gY = v.y + start;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  constexpr int kBatch = 3;  // as many as there are registers for
#else
  constexpr int kBatch = std::is_same_v<Activation, Mish> ? 3 : 4;
#endif
  walk_column<Pack<T>, kBatch>(
      column, positions, c, [&](Pack<T>& x, int offset) { load<Cache::streaming>(x, gX + offset); },
      [&](const Pack<T>& x, int offset) { store<Cache::streaming>(gY + offset, factors.apply(x)); });
}

const char* takes(const GroupNormArgs& a) { return needs_packed_channels(a); }

void launch(const GroupNormArgs& a, cudaStream_t stream) {
  visit_activations(a.dtype, a.activation, [&]<class T, class Activation>() {
    const ColumnTiling tiling(a.shape, a.dtype, kMostColumns);
    const Pieces slabs = pieces_of(a.shape, a.dtype);
    const auto* x = static_cast<const T*>(a.x);
    const GroupStatistics statistics = launch_statistics(x, a.shape, tiling, slabs, a.eps, a.workspace, stream);
    const Operands<T> operands{.x = x,
                               .y = static_cast<T*>(a.y),
                               .weight = PerChannel<T>(a.weight, 1.0f),
                               .bias = PerChannel<T>(a.bias, 0.0f),
                               .normalisers = statistics.groups,
                               .tiling = tiling,
                               .slabs = slabs};
    const dim3 grid(static_cast<unsigned>(a.shape.n * slabs.count), static_cast<unsigned>(tiling.tiles));
    const LaunchConfig config{.grid = grid, .block = tiling.threads(), .early = true};
    warpsmith::launch<&group_norm_nhwc_split_kernel<T, Activation>>(config, stream, operands);
  });
}

const Register<GroupNormArgs> registered{"nhwc_split", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
