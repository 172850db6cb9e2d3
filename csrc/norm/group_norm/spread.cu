// Group norm of contiguous tensors, a group spread over the shared memory of as many multiprocessors as it takes.
//   Against `cluster`: all shared memory of a cluster holds its group, up to 3 MiB of it, and short groups that are few
//   are spread over more blocks. One exchange of moments joins the slices. Bound: DRAM; a slice that fills its
//   multiprocessor leaves nothing to overlap reads with writes, and short groups wait for each other's latency.
// CUDA C++ Programming Guide, "Thread Block Clusters" and "Distributed Shared Memory".
#include <utility>

#include "device/cluster_gather.h"
#include "device/ptx/copy.h"
#include "norm/group_norm/rows.cuh"

namespace warpsmith {
namespace {

constexpr int kMostThreads = 512;
constexpr int kPacksPerThread = 4;  // before a block gets another warp
constexpr int64_t kMostSlice = 192 * 1024;
constexpr int64_t kMostBytes = kMostClusterBlocks * kMostSlice;
constexpr int64_t kGoodSlice = 72 * 1024;       // three of them fit a multiprocessor
constexpr int64_t kLeastSlice = 8 * 1024;       // less is not worth another block
constexpr int64_t kEnoughBlocks = 256;          // two for each multiprocessor of an H100, or nearly
constexpr int64_t kFewBytes = 16 * 1024;        // a group of no more is not worth spreading
constexpr int64_t kManyBytes = 64 * 1024;       // nor is one of more, which `cluster` has in registers
constexpr int64_t kClusterBytes = 1024 * 1024;  // up to here these hold a group
constexpr int64_t kAtOnceBlocks = 128;  // more of those that fill a multiprocessor take turns, and `split` is faster

// How a group is spread over blocks.
struct Slices {
  int cluster;  // blocks that share a group
  int packs;    // of a block; the last may have fewer
};

Slices slices_of(const GroupNormArgs& a) {
  const int64_t bytes = a.row_bytes(), rows = a.shape.rows();
  int cluster = 2;
  while (cluster < kMostClusterBlocks && bytes > cluster * kGoodSlice) cluster *= 2;
  while (cluster < kPortableCluster && rows * cluster < kEnoughBlocks && bytes > 2 * cluster * kLeastSlice) {
    cluster *= 2;
  }
  return {.cluster = cluster, .packs = static_cast<int>(ceil_of(bytes / 16, cluster))};
}

template <class T, class Activation>
__global__ void __launch_bounds__(kMostThreads, 3)
    group_norm_spread_kernel([[maybe_unused]] const GroupNormRows<T> v, [[maybe_unused]] const Slices slices) {
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  constexpr int kParts = 4;         // the moments of one part are taken while the next are on their way
  extern __shared__ uint4 slice[];  // [slices.packs]; a thread reads its own copies only
  __shared__ Moments partial[kWarp];
  __shared__ ClusterGather<Moments> gathered;
  cluster_gather_prepare(gathered, slices.cluster);
  cluster_arrive_relaxed();

  const int tid = threadIdx.x, threads = blockDim.x;
  const int64_t row = blockIdx.x / slices.cluster;
  const int begin = cluster_rank() * slices.packs;
  const int own = max(min(static_cast<int>(v.packs()) - begin, slices.packs), 0);  // none at the end of a short group
  const int part = (own + kParts * threads - 1) / (kParts * threads) * threads;

  // load
  const uint4* gX = v.x_packs(row) + begin;  // [own]
  const uint64_t policy = v.load_policy();
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const int end = min((i + 1) * part, own);
    for (int at = i * part + tid; at < end; at += threads) ptx::cp_async_with_policy(&slice[at], gX + at, policy);
    ptx::cp_async_commit();
  }

  // moments
  Moments moments{};
  const auto absorb = [&](int i) {
    const int end = min((i + 1) * part, own);
#pragma unroll 2
    for (int at = i * part + tid; at < end; at += threads) moments = merge(moments, pack_moments<T>(slice[at]));
  };
  [&]<int... i>(std::integer_sequence<int, i...>) {
    ((ptx::cp_async_wait<kParts - 1 - i>(), absorb(i)), ...);
  }(std::make_integer_sequence<int, kParts>{});
  moments = block_merge(moments, partial);
  cluster_wait();  // every block expects what is sent now
  cluster_gather(moments, gathered, slices.cluster);
  const int lane = tid % kWarp;
  moments = warp_merge(lane < slices.cluster ? gathered.values[lane] : Moments{});
  const Normaliser n = normaliser(moments, v.eps);

  // normalise
  uint4* gY = v.y_packs(row) + begin;  // [own]
  const int64_t first_channel = v.first_channel(row);
#pragma unroll 2
  for (int at = tid; at < own; at += threads) {
    const float2 affine = v.template affine<Activation>(first_channel + v.small_quotient(begin + at));
    ptx::store_streaming(gY + at, normalise<Activation, T>(slice[at], n, affine));
  }
#endif
}

const char* takes(const GroupNormArgs& a) {
  if (const char* reason = needs_whole_channels(a)) return reason;
  return a.row_bytes() <= kMostBytes ? nullptr : "needs groups of at most 3 MiB";
}

bool suits(const GroupNormArgs& a) {
  if (a.row_bytes() > kClusterBytes) return a.shape.rows() * kMostClusterBlocks <= kAtOnceBlocks;
  return a.shape.is_few() && a.row_bytes() > kFewBytes && a.row_bytes() <= kManyBytes;
}

void launch(const GroupNormArgs& a, cudaStream_t stream) {
  const Slices slices = slices_of(a);
  visit_activations(a.dtype, a.activation, [&]<class T, class Activation>() {
    const GroupNormRows<T> rows(a);
    const LaunchConfig config{.grid = dim3(static_cast<unsigned>(rows.rows * slices.cluster)),
                              .block = dim3(row_threads(slices.packs, kPacksPerThread, kMostThreads)),
                              .dynamic_smem = slices.packs * 16,
                              .cluster = slices.cluster};
    warpsmith::launch<&group_norm_spread_kernel<T, Activation>>(config, stream, rows, slices);
  });
}

const Register<GroupNormArgs> registered{"spread", /*min_sm=*/90, takes, launch, suits, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
