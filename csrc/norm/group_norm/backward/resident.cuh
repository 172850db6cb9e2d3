// The kernel behind `shared` and `cluster`: x and grad of a group wait in the shared memory of one block, or of a
// cluster of them, from when they are read until dx is written.
#pragma once

#include <bit>

#include "device/cluster_gather.h"
#include "device/ptx/copy.h"
#include "host/min_max.h"
#include "norm/group_norm/backward/rows.cuh"

namespace warpsmith {

inline constexpr int kGradResidentThreads = 256;  // of a block, at most
inline constexpr int kGradResidentPacks = 4;      // of x that a thread holds before the block gets more threads

// How a group is spread over blocks, and how a block sums its channels.
struct GradSpread {
  int cluster;   // blocks that share a group
  int slice;     // packs of a block, the last may have fewer
  int channels;  // that a slice touches, at most
  int threads;   // of a block, a power of two
  int team;      // threads that sum a channel together, a power of two

  GradSpread(const GroupNormBackwardArgs& a, int cluster) : cluster(cluster) {
    const int64_t packs = a.row_bytes() / 16, channel_packs = packs / a.shape.group_channels();
    slice = static_cast<int>(ceil_of(packs, cluster));
    channels = static_cast<int>(std::min(a.shape.group_channels(), slice / channel_packs + 2));
    const auto wanted = std::bit_ceil(static_cast<unsigned>(ceil_of(slice, kGradResidentPacks)));
    threads = static_cast<int>(clamp<unsigned>(wanted, kWarp, kGradResidentThreads));
    team = static_cast<int>(std::bit_floor(static_cast<unsigned>(std::min<int64_t>(channel_packs, threads))));
  }

  __host__ __device__ int team_warps() const { return team > kWarp ? team / kWarp : 1; }

  // x and grad, then the sums of the warps of each channel's team.
  int smem() const { return 2 * 16 * slice + static_cast<int>(sizeof(GradSums)) * channels * team_warps(); }
};

template <class T, class Activation, bool clustered>
__global__ void __launch_bounds__(kGradResidentThreads, 3)
    group_norm_backward_resident_kernel([[maybe_unused]] const GroupNormBackwardRows<T> v,
                                        [[maybe_unused]] const PartialSums to,
                                        [[maybe_unused]] const GradSpread spread) {
#if defined(__CUDA_ARCH__)
  constexpr int kWidth = kPack<T>;
  extern __shared__ uint4 slabs[];
  __shared__ Moments partial_moments[kWarp];
  __shared__ GradSums partial_sums[kWarp];
  uint4* sX = slabs;                                                // [slice]
  uint4* sGrad = sX + spread.slice;                                 // [slice]
  auto* sSums = reinterpret_cast<GradSums*>(sGrad + spread.slice);  // [channels, team_warps]
  const int tid = threadIdx.x, threads = blockDim.x;
  int rank = 0;
#if WARPSMITH_HAS_CLUSTERS
  __shared__ ClusterGather<Moments> gathered_moments;
  __shared__ ClusterGather<GradSums> gathered_sums;
  if constexpr (clustered) {
    cluster_gather_prepare(gathered_moments, spread.cluster);
    cluster_gather_prepare(gathered_sums, spread.cluster);
    cluster_arrive_relaxed();
    rank = cluster_rank();
  }
#endif
  const int64_t row = blockIdx.x / spread.cluster, first = v.first_channel(row);
  const int begin = rank * spread.slice;
  const int own = max(min(static_cast<int>(v.packs) - begin, spread.slice), 0);  // none at the end of a short group

  // load
  const auto* gX = reinterpret_cast<const uint4*>(v.x + row * v.size) + begin;        // [own]
  const auto* gGrad = reinterpret_cast<const uint4*>(v.grad + row * v.size) + begin;  // [own]
  const uint64_t policy = v.load_policy();
  for (int pack = tid; pack < own; pack += threads) ptx::cp_async_with_policy(&sX[pack], gX + pack, policy);
  ptx::cp_async_commit();
  for (int pack = tid; pack < own; pack += threads) ptx::cp_async_with_policy(&sGrad[pack], gGrad + pack, policy);
  ptx::cp_async_commit();

  // mean and variance
  ptx::cp_async_wait<1>();
  Moments moments{};
#pragma unroll 2
  for (int pack = tid; pack < own; pack += threads) {
    const uint4 raw = sX[pack];
    float values[kWidth];
    to_float(values, reinterpret_cast<const Pack<T>&>(raw));
    moments = merge(moments, moments_of(values));
  }
  moments = block_merge(moments, partial_moments);
  [[maybe_unused]] const int lane = tid % kWarp;
#if WARPSMITH_HAS_CLUSTERS
  if constexpr (clustered) {
    cluster_wait();  // every block expects what is sent now
    cluster_gather(moments, gathered_moments, spread.cluster);
    moments = warp_merge(lane < spread.cluster ? gathered_moments.values[lane] : Moments{});
  }
#endif
  const Normaliser n = normaliser(moments, v.eps);

  // sums over the positions of each channel
  ptx::cp_async_wait<0>();
  __syncthreads();  // teams read what other threads have copied
  const int channel_packs = static_cast<int>(v.channel_packs.divisor), team_warps = spread.team_warps();
  const int first_own = begin / channel_packs;
  const int channels = own > 0 ? (begin + own - 1) / channel_packs + 1 - first_own : 0;
  const int teams = threads / spread.team, team = tid / spread.team, member = tid % spread.team;
  for (int base = 0; base < channels; base += teams) {
    const int channel = base + team;
    GradSums sums{};
    if (channel < channels) {
      const ChannelGrad c = v.channel(n, first + first_own + channel);
      const int start = (first_own + channel) * channel_packs - begin, end = min(start + channel_packs, own);
      for (int pack = max(start, 0) + member; pack < end; pack += spread.team) {
        const uint4 raw_grad = sGrad[pack], raw_x = sX[pack];
        add_pack<Activation>(sums, c, reinterpret_cast<const Pack<T>&>(raw_grad),
                             reinterpret_cast<const Pack<T>&>(raw_x));
      }
    }
    for (int distance = min(spread.team, kWarp) / 2; distance > 0; distance /= 2) {
      sums =
          sums + GradSums{__shfl_xor_sync(kAllLanes, sums.dw, distance), __shfl_xor_sync(kAllLanes, sums.db, distance)};
    }
    sums.dw *= n.rstd;
    if (channel < channels && member % kWarp == 0) sSums[channel * team_warps + member / kWarp] = sums;
  }
  __syncthreads();

  // sums over the group
  GradSums weighted{};
  for (int channel = tid; channel < v.group_channels; channel += threads) {
    const int own_channel = channel - first_own;
    GradSums sums{};
    if (own_channel >= 0 && own_channel < channels) {
      for (int i = 0; i < team_warps; ++i) sums = sums + sSums[own_channel * team_warps + i];
      weighted = weighted + v.weight[first + channel] * sums;
    }
    if (to.data != nullptr) to.write(v.sample(row) * spread.cluster + rank, first + channel, sums);
  }
  weighted = block_sum(weighted, partial_sums);
#if WARPSMITH_HAS_CLUSTERS
  if constexpr (clustered) {
    cluster_gather(weighted, gathered_sums, spread.cluster);
    weighted = warp_sum(lane < spread.cluster ? gathered_sums.values[lane] : GradSums{});
  }
#endif
  const GradSums mean = 1.0f / static_cast<float>(v.size) * weighted;

  // dx
  T* gDx = v.dx + row * v.size + int64_t{begin} * kWidth;  // [own * kWidth]
  for (int pack = tid; pack < own; pack += threads) {
    const ChannelGrad c = v.channel(n, first + static_cast<int>(v.channel_packs.quotient(begin + pack)));
    const uint4 raw_grad = sGrad[pack], raw_x = sX[pack];
    store<Cache::streaming>(gDx + int64_t{pack} * kWidth,
                            pack_dx<Activation>(c, reinterpret_cast<const Pack<T>&>(raw_grad),
                                                reinterpret_cast<const Pack<T>&>(raw_x), mean));
  }
#endif
}

template <bool clustered>
void launch_resident(const GroupNormBackwardArgs& a, const GradSpread& spread, std::string_view rung,
                     cudaStream_t stream) {
  visit_activations(a.dtype, a.activation, [&]<class T, class Activation>() {
    const GroupNormBackwardRows<T> rows(a);
    const bool parameters = a.dw != nullptr || a.db != nullptr;
    PartialSums sums = partial_sums(a, rung, spread.cluster);
    if (!parameters) sums.data = nullptr;
    const LaunchConfig config{.grid = dim3(static_cast<unsigned>(rows.rows * spread.cluster)),
                              .block = dim3(static_cast<unsigned>(spread.threads)),
                              .dynamic_smem = spread.smem(),
                              .cluster = spread.cluster};
    launch<&group_norm_backward_resident_kernel<T, Activation, clustered>>(config, stream, rows, sums, spread);
    if (parameters) sum_parameters(a, sums, stream);
  });
}

}  // namespace warpsmith
