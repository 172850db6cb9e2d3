// Group norm of channels-last tensors, a tile of channels spread over the shared memory of a thread-block cluster.
//   Against `nhwc_split`: x is read once. A cluster takes a few neighbouring packs of channels, whole groups, at every
//   position of a sample; its blocks divide the positions. Runs of 64 bytes and more keep DRAM efficient, since the
//   clusters beside it fetch the rest of each line at the same time. Bound: DRAM, until such runs exceed a cluster.
// CUDA C++ Programming Guide, "Thread Block Clusters" and "Distributed Shared Memory".
#include "device/cluster.h"
#include "device/ptx/copy.h"
#include "norm/columns.cuh"
#include "norm/group_norm/group_norm.h"

namespace warpsmith {
namespace {

constexpr int kMostBlocks = 16;  // of a cluster
constexpr int64_t kMostSlab = 192 * 1024, kMostBytes = kMostBlocks * kMostSlab;
constexpr int64_t kGoodSlab = 84 * 1024;    // two blocks fit a multiprocessor
constexpr int64_t kLeastSlab = 8 * 1024;    // less is not worth another block
constexpr int64_t kEnoughBlocks = 256;      // two for each multiprocessor of an H100, or nearly
constexpr int64_t kLongRun = 10, kRun = 4;  // packs of a position that lie together
// A unit of packs and groups holds at most 8 groups, and so does a pack; longer tiles have longer groups.
[[maybe_unused]] constexpr int kMostGroupsOfTile = 8 * kLongRun;

// How tiles are spread over clusters.
struct Spread {
  ColumnTiling tiling;
  int cluster;  // blocks that share a tile
  int length;   // positions of a block, the last may have fewer

  int64_t tile_bytes() const { return 16 * tiling.columns * tiling.spatial; }

  // The slab; two floats per block and group of the tile; two for each of the moments that threads share.
  int smem(int width) const {
    const int gathered = cluster * (tiling.columns * width / tiling.group_channels);
    return 16 * length * tiling.columns + 8 * (gathered + static_cast<int>(tiling.threads()) * (width / tiling.run));
  }
};

Spread spread(const GroupNormArgs& a) {
  Spread s{.tiling = ColumnTiling(a.shape, a.dtype, kLongRun), .cluster = 2, .length = 0};
  if (s.tile_bytes() > kPortableCluster * kGoodSlab) s.tiling = ColumnTiling(a.shape, a.dtype, kRun);
  if (s.tile_bytes() > kMostBytes) s.tiling = ColumnTiling(a.shape, a.dtype, 1);
  const int64_t tiles = a.shape.n * s.tiling.tiles;
  while (s.cluster < kMostBlocks && s.tile_bytes() > s.cluster * kGoodSlab) s.cluster *= 2;
  while (s.cluster < kPortableCluster && tiles * s.cluster < kEnoughBlocks &&
         s.tile_bytes() > 2 * s.cluster * kLeastSlab) {
    s.cluster *= 2;
  }
  s.length = static_cast<int>(ceil_of(a.shape.spatial, s.cluster));
  return s;
}

template <class T>
struct Operands {
  const T* x;  // [n, spatial, c]
  T* y;        // [n, spatial, c]
  PerChannel<T> weight, bias;
  Spread spread;
  float eps;
  bool beyond_l2;  // x alone would fill L2
};

template <class T, class Activation>
__global__ void __launch_bounds__(kTileThreads, 4)
    group_norm_nhwc_cluster_kernel([[maybe_unused]] const Operands<T> v) {
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  constexpr int kWidth = kPack<T>;
  extern __shared__ uint4 slab[];  // [length, columns]; a thread reads its own copies only
  __shared__ Normaliser normalisers[kMostGroupsOfTile];
  cluster_arrive_relaxed();

  const ColumnTiling& tiling = v.spread.tiling;
  const int cluster = v.spread.cluster, length = v.spread.length, rank = cluster_rank();
  const int64_t sample = blockIdx.x / cluster / tiling.tiles;
  const int tile = blockIdx.x / cluster - sample * tiling.tiles;
  const Column column(tiling, tile);
  const auto positions_of = [&](int block) {
    return static_cast<int>(max(min(tiling.spatial - int64_t{block} * length, int64_t{length}), int64_t{0}));
  };
  const int positions = positions_of(rank);
  const int walked = column.active ? positions : 0;
  const int first = (tile * tiling.columns + column.at) * kWidth;  // channel
  const int64_t start = (sample * tiling.spatial + int64_t{rank} * length) * tiling.c + first;
  const int groups = small_quotient(column.columns * kWidth, tiling.group_channels);
  auto* gathered = reinterpret_cast<float2*>(slab + length * tiling.columns);  // [cluster, groups], {mean, m2}
  float2* shared = gathered + cluster * groups;                                // for merge_groups()
  uint4* column_slab = slab + column.at;

  // load
  const uint64_t policy = v.beyond_l2 ? ptx::policy_evict_last() : ptx::policy_evict_normal();
#pragma unroll 4
  for (int position = column.lane; position < walked; position += column.lanes) {
    ptx::cp_async_with_policy(column_slab + position * column.columns,
                              reinterpret_cast<const uint4*>(v.x + start + position * tiling.c), policy);
  }
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();

  // moments of the block
  PackMoments<kWidth> moments;
  if (column.lane < walked) moments.start(reinterpret_cast<const Pack<T>&>(column_slab[column.lane * column.columns]));
#pragma unroll 4
  for (int position = column.lane; position < walked; position += column.lanes) {
    const uint4 raw = column_slab[position * column.columns];
    moments.add(reinterpret_cast<const Pack<T>&>(raw));
  }
  __syncwarp();
  cluster_wait();  // every block runs, so its shared memory may be written
  merge_groups(moments, shared, column, positions, tiling,
               [&](int group, int thread, int threads, const Moments& merged) {
                 for (int receiver = thread; receiver < cluster; receiver += threads) {
                   store_remote(&gathered[rank * groups + group].x, receiver, merged.mean);
                   store_remote(&gathered[rank * groups + group].y, receiver, merged.m2);
                 }
               });
  __syncwarp();
  cluster_sync();

  // moments of the cluster: as many threads for each group as there are blocks
  const float count = static_cast<float>(tiling.spatial) * static_cast<float>(tiling.group_channels);
  for (int at = threadIdx.x; at - static_cast<int>(threadIdx.x) % kWarp < cluster * groups; at += blockDim.x) {
    const int group = at / cluster, block = at - group * cluster;
    const Moments merged = join_parts(count, cluster, [&](auto&& take) {
      if (group >= groups) return;
      take(gathered[block * groups + group], static_cast<float>(int64_t{positions_of(block)} * tiling.group_channels));
    });
    if (group < groups && block == 0) normalisers[group] = normaliser(merged, v.eps);
  }
  __syncthreads();
  if (!column.active) return;

  // normalise
  PackFactors<kWidth, Activation> factors(first, v.weight, v.bias);
  over_groups<kWidth>(column.at * kWidth, tiling.group_channels,
                      [&](int i, int group) { factors.normalise(i, normalisers[group]); });
#pragma unroll 2
  for (int position = column.lane; position < positions; position += column.lanes) {
    const uint4 raw = column_slab[position * column.columns];
    store<Cache::streaming>(v.y + start + position * tiling.c, factors.apply(reinterpret_cast<const Pack<T>&>(raw)));
  }
#endif
}

const char* takes(const GroupNormArgs& a) {
  if (const char* reason = needs_packed_channels(a)) return reason;
  const int64_t run_bytes = 16 * unit_packs(a.shape, a.dtype) * a.shape.spatial;
  return run_bytes <= kMostBytes ? nullptr : "needs runs of whole groups of at most 3 MiB";
}

bool suits(const GroupNormArgs& a) {
  const Spread s = spread(a);
  return s.tiling.columns >= kRun || s.tiling.columns == s.tiling.packs;
}

void launch(const GroupNormArgs& a, cudaStream_t stream) {
  visit_activations(a.dtype, a.activation, [&]<class T, class Activation>() {
    const Operands<T> operands{.x = static_cast<const T*>(a.x),
                               .y = static_cast<T*>(a.y),
                               .weight = PerChannel<T>(a.weight, 1.0f),
                               .bias = PerChannel<T>(a.bias, 0.0f),
                               .spread = spread(a),
                               .eps = a.eps,
                               .beyond_l2 = a.shape.rows() * a.row_bytes() >= kL2Bytes};
    const Spread& s = operands.spread;
    const LaunchConfig config{.grid = dim3(static_cast<unsigned>(a.shape.n * s.tiling.tiles * s.cluster)),
                              .block = dim3(s.tiling.threads()),
                              .dynamic_smem = s.smem(kPack<T>),
                              .cluster = s.cluster};
    warpsmith::launch<&group_norm_nhwc_cluster_kernel<T, Activation>>(config, stream, operands);
  });
}

const Register<GroupNormArgs> registered{"nhwc_cluster", /*min_sm=*/90, takes, launch, suits, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
