// The kernel behind `shared` and `cluster`: a group waits in the shared memory of one block, or of a cluster of them,
// from when it is read until its result is written.
#pragma once

#include <utility>

#include "device/cluster_gather.h"
#include "device/ptx/cp_async.h"
#include "device/ptx/cp_async_policy.h"
#include "norm/group_norm/rows.cuh"

namespace warpsmith {

inline constexpr int kResidentThreads = 512;  // of a block, at most
inline constexpr int kResidentPacks = 4;      // that a thread holds before the block gets another warp

// How a group is spread over blocks.
struct GroupSpread {
  int cluster;  // blocks that share a group
  int slice;    // packs of a block, the last may have fewer
};

template <class T, class Activation, bool clustered>
__global__ void __launch_bounds__(kResidentThreads, 3)
    group_norm_resident_kernel([[maybe_unused]] const GroupNormRows<T> v, [[maybe_unused]] const GroupSpread spread) {
#if defined(__CUDA_ARCH__)
  constexpr int kWidth = kPack<T>;
  constexpr int kParts = 4;        // the moments of one part are taken while the next are on their way
  extern __shared__ uint4 slab[];  // [slice]; a thread reads its own copies only
  __shared__ Moments partial[kWarp];
  const int tid = threadIdx.x, threads = blockDim.x;
  int rank = 0;
#if WARPSMITH_HAS_CLUSTERS
  __shared__ ClusterGather<Moments> gathered;
  if constexpr (clustered) {
    cluster_gather_prepare(gathered, spread.cluster);
    cluster_arrive_relaxed();
    rank = cluster_rank();
  }
#endif
  const int64_t row = blockIdx.x / spread.cluster;
  const int begin = rank * spread.slice;
  const int own = max(min(static_cast<int>(v.packs) - begin, spread.slice), 0);  // none at the end of a short group
  const int part = (own + kParts * threads - 1) / (kParts * threads) * threads;

  // load
  const auto* gX = reinterpret_cast<const uint4*>(v.x_row(row)) + begin;  // [own]
  const uint64_t policy = v.load_policy();
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const int end = min((i + 1) * part, own);
    for (int pack = i * part + tid; pack < end; pack += threads) {
      ptx::cp_async_with_policy(&slab[pack], gX + pack, policy);
    }
    ptx::cp_async_commit();
  }

  // moments
  Moments moments{};
  const auto absorb = [&](int i) {
    const int end = min((i + 1) * part, own);
#pragma unroll 2
    for (int pack = i * part + tid; pack < end; pack += threads) {
      const uint4 raw = slab[pack];
      float values[kWidth];
      to_float(values, reinterpret_cast<const Pack<T>&>(raw));
      moments = merge(moments, moments_of(values));
    }
  };
  [&]<int... i>(std::integer_sequence<int, i...>) {
    ((ptx::cp_async_wait<kParts - 1 - i>(), absorb(i)), ...);
  }(std::make_integer_sequence<int, kParts>{});
  moments = block_merge(moments, partial);
#if WARPSMITH_HAS_CLUSTERS
  if constexpr (clustered) {
    cluster_wait();  // every block expects what is sent now
    cluster_gather(moments, gathered, spread.cluster);
    const int lane = tid % kWarp;
    moments = warp_merge(lane < spread.cluster ? gathered.values[lane] : Moments{});
  }
#endif
  const Normaliser n = normaliser(moments, v.eps);

  // normalise
  const int64_t first = v.first_channel(row);
  T* gY = v.y_row(row) + int64_t{begin} * kWidth;  // [own * kWidth]
#pragma unroll 2
  for (int pack = tid; pack < own; pack += threads) {
    const uint4 raw = slab[pack];
    const Pack<T> y = normalise<Activation>(reinterpret_cast<const Pack<T>&>(raw), begin + pack, first, n, v);
    store<Cache::streaming>(gY + int64_t{pack} * kWidth, y);
  }
#endif
}

template <bool clustered>
void launch_resident(const GroupNormArgs& a, const GroupSpread& spread, cudaStream_t stream) {
  visit_activations(a.dtype, a.activation, [&]<class T, class Activation>() {
    const GroupNormRows<T> rows(a);
    const LaunchConfig config{.grid = dim3(static_cast<unsigned>(rows.rows * spread.cluster)),
                              .block = dim3(row_threads(spread.slice, kResidentPacks, kResidentThreads)),
                              .dynamic_smem = spread.slice * 16,
                              .cluster = spread.cluster};
    launch<&group_norm_resident_kernel<T, Activation, clustered>>(config, stream, rows, spread);
  });
}

}  // namespace warpsmith
