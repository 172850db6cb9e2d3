// Groups in registers, one in those of a block, or a slice of it in each block of a cluster: the kernel behind
// `registers`, for all but small groups, and behind `cluster`.
//
// A multiprocessor holds two or more such blocks (the longest groups of one block aside), and groups that load overlap
// groups that are finished. Weights and biases of a slice are asked for before x and wait in shared memory, so that
// nothing is read between two stores.
#pragma once

#include <tuple>

#include "device/cluster_gather.h"
#include "device/ptx/copy.h"
#include "host/min_max.h"
#include "norm/group_norm/resident.cuh"

namespace warpsmith {

// threads of a block | 128-bit packs that one of them takes | of these, packs within any slice that is too long for the
// tile before: they need no test | of the rest, packs that wait in shared memory instead of registers | blocks per
// multiprocessor | blocks that share a group
template <int threads_, int packs_, int full_, int spare_, int min_blocks_, int cluster_>
struct SliceTile {
  static constexpr int threads = threads_, packs = packs_, full = full_, spare = spare_, min_blocks = min_blocks_;
  static constexpr int cluster = cluster_, held = packs - spare;
  static constexpr int64_t most_packs = int64_t{cluster} * threads * packs;
};

namespace detail {

// `before`: packs of the longest group that never gets here.
template <class... Tile>
constexpr bool full_packs_are_full(int64_t before, std::tuple<Tile...>) {
  bool holds = true;
  ((holds = holds && Tile::full * Tile::threads <= (before + 1) / Tile::cluster, before = Tile::most_packs), ...);
  return holds;
}

}  // namespace detail

template <class T, class Activation, class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::min_blocks)
    group_norm_slices_kernel([[maybe_unused]] const GroupNorm<T, Activation> v) {
#if defined(__CUDA_ARCH__)
  constexpr int kPacks = Tile::packs, kHeld = Tile::held, kThreads = Tile::threads, kCluster = Tile::cluster;
  constexpr int kWarps = kThreads / kWarp;
  extern __shared__ uint4 spare[];  // [Tile::spare, threads], each thread its own
  auto* affine = reinterpret_cast<float2*>(spare + Tile::spare * kThreads);  // [channels], {weight, bias}
  __shared__ Moments partial[kWarps];
  [[maybe_unused]] __shared__ ClusterGather<Moments> gathered;

  const int tid = threadIdx.x;
  const int64_t row = blockIdx.x / kCluster;
  int begin = 0, own = static_cast<int>(v.packs());
  if constexpr (kCluster > 1) {
#if WARPSMITH_HAS_CLUSTERS
    cluster_gather_prepare(gathered, kCluster);
    cluster_arrive_relaxed();
    const int rank = cluster_rank(), longer = own % kCluster;
    own /= kCluster;
    begin = rank * own + min(rank, longer);
    if (rank < longer) ++own;
#endif
  }
  const auto within = [&](int i) { return i < Tile::full || i * kThreads + tid < own; };

  // load
  const int first = v.small_quotient(begin);  // channel of the group
  const int channels = v.small_quotient(begin + own - 1) - first + 1;
  const int64_t first_channel = v.first_channel(row) + first;
  const auto channel = [&](int i) { return v.template affine<Activation>(first_channel + i); };
#pragma unroll 1
  for (int i = kThreads + tid; i < channels; i += kThreads) affine[i] = channel(i);  // of small channels
  float2 mine{};
  if (tid < channels) mine = channel(tid);

  const uint64_t policy = v.load_policy();
  const uint4* from = v.x_packs(row) + begin + tid;
  if constexpr (Tile::spare > 0) {
#pragma unroll
    for (int i = kHeld; i < kPacks; ++i) {
      if (within(i)) ptx::cp_async_with_policy(&spare[(i - kHeld) * kThreads + tid], from + i * kThreads, policy);
    }
    ptx::cp_async_commit();
  }
  uint4 x[kHeld];
  int valid = Tile::full;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (i >= Tile::full && within(i)) ++valid;
    if (i >= kHeld) continue;
    if (i >= Tile::full) x[i] = {};
    if (within(i)) x[i] = ptx::load_streaming(from + i * kThreads, policy);
  }
  if (tid < channels) affine[tid] = mine;
  const auto pack = [&](int i) { return i < kHeld ? x[i < kHeld ? i : 0] : spare[(i - kHeld) * kThreads + tid]; };

  // gather
  const auto landed = [&](int i) {
    if (Tile::spare > 0 && i == kHeld) ptx::cp_async_wait<0>();
    return pack(i);
  };
  Moments stats = warp_merge_around(thread_moments<T, kPacks>(landed, valid));
#pragma unroll
  for (int i = 0; i < kHeld; ++i) keep_packed(x[i], detail::unknown_zero(v));
  if (tid % kWarp == 0) partial[tid / kWarp] = stats;
  __syncthreads();  // affine, too
  stats = v.combine(partial, kWarps);
  if constexpr (kCluster > 1) {
#if WARPSMITH_HAS_CLUSTERS
    cluster_wait();
    cluster_gather(stats, gathered, kCluster);
    stats = v.combine(gathered.values, kCluster);
#endif
  }
  const Normaliser n = v.total(stats);

  // finish
  uint4* to = v.y_packs(row) + begin + tid;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (within(i)) {
      const float2 a = affine[v.small_quotient(begin + i * kThreads + tid) - first];
      ptx::store_streaming(to + i * kThreads, normalise<Activation, T>(pack(i), n, a));
    }
  }
#endif
}

template <class T, class Activation, class Tile>
void launch_slices_tile(const GroupNorm<T, Activation>& v, cudaStream_t stream) {
  const int64_t slice = ceil_of(v.cols / kPack<T>, Tile::cluster);
  // Of a slice that begins within a channel.
  const int64_t touched = (slice - 1) / static_cast<int64_t>(v.channel_packs.divisor) + 2;
  const int64_t channels = std::min(v.group_channels, touched);
  LaunchConfig config;
  config.grid = dim3(static_cast<unsigned>(v.rows * Tile::cluster));
  config.block = dim3(Tile::threads);
  config.dynamic_smem = static_cast<int>(Tile::spare * Tile::threads * sizeof(uint4) + channels * sizeof(float2));
  config.cluster = Tile::cluster;
  launch<&group_norm_slices_kernel<T, Activation, Tile>>(config, stream, v);
}

// Through the first tile that holds the group.
template <class T, class Activation, class Tiles>
void launch_slices(const GroupNorm<T, Activation>& v, cudaStream_t stream, Tiles tiles) {
  with_first_tile(tiles, v.cols / kPack<T>, [&]<class Tile>() { launch_slices_tile<T, Activation, Tile>(v, stream); });
}

}  // namespace warpsmith
