// RMS norm, long rows split over a thread-block cluster.
//   Against `registers`: a block holds a slice of the row, so that several rows are under way on a multiprocessor, and
//   partial sums travel through distributed shared memory. Clusters are persistent: a slice of the weight is read once
//   for all rows, and the next rows arrive in a ring in shared memory while this one is reduced. Bound: DRAM.
// CUDA C++ Programming Guide, "Thread Block Clusters" and "Distributed Shared Memory".
#include <tuple>

#include "device/cluster.h"
#include "device/ptx/cp_async.h"
#include "norm/persistent.h"
#include "norm/rms_norm/row.cuh"

namespace warpsmith {
namespace {

// threads of a block (at most) | 128-bit packs of a row that a thread holds | rows in the ring |
// blocks per multiprocessor | blocks that share a row
template <int threads_, int packs_, int stages_, int min_blocks_, int cluster_>
struct Tile {
  static constexpr int threads = threads_, packs = packs_, stages = stages_;
  static constexpr int min_blocks = min_blocks_, cluster = cluster_;
  static constexpr int64_t most_packs = int64_t{cluster} * threads * packs;  // of a row
};

// The first that holds the row is taken.
using Tiles = std::tuple<Tile<512, 4, 3, 2, 2>, Tile<512, 4, 3, 2, 4>, Tile<512, 4, 3, 2, 8>, Tile<512, 4, 3, 2, 16>,
                         Tile<512, 8, 3, 1, 16>>;
constexpr int64_t kMostBytes = 16 * std::tuple_element_t<std::tuple_size_v<Tiles> - 1, Tiles>::most_packs;
constexpr int64_t kWorthwhileBytes = 32 * 1024;

template <class T, class W, class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::min_blocks)
    rms_norm_cluster_kernel([[maybe_unused]] const RmsNormRows<T, W> v) {
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  constexpr int kCluster = Tile::cluster, kPacks = Tile::packs, kStages = Tile::stages;
  extern __shared__ uint4 ring[];  // [stages, packs, threads]; a thread reads only what it copied itself
  __shared__ float partial[2][kCluster * (Tile::threads / kWarp)];  // [buffer, block of the cluster * warp]

  const int tid = threadIdx.x, threads = blockDim.x;
  const int lane = tid % kWarp, warp = tid / kWarp, warps = threads / kWarp;
  const int rank = cluster_rank();
  const int packs = static_cast<int>(v.cols / kPack<T>);
  const int slice = (packs + kCluster - 1) / kCluster;
  const int own = min(packs - rank * slice, slice);  // packs of this block, none at the end of a short row
  const int64_t col = int64_t{rank} * slice * kPack<T>;
  const int64_t stride = gridDim.x / kCluster;

  const auto fetch = [&](int stage, int64_t row) {
    if (row < v.rows) {
      const T* x = v.x_row(row) + col;
#pragma unroll
      for (int i = 0; i < kPacks; ++i) {
        const int pack = i * threads + tid;
        if (pack < own) {
          ptx::cp_async(&ring[(stage * kPacks + i) * threads + tid], reinterpret_cast<const uint4*>(x) + pack);
        }
      }
    }
    ptx::cp_async_commit();
  };

  int64_t row = blockIdx.x / kCluster;
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) fetch(stage, row + stage * stride);
  WeightPack<W, kPack<T>> weight[kPacks];
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int pack = i * threads + tid;
    if (pack < own) weight[i].load_from(v.weight, col + int64_t{pack} * kPack<T>);
  }
  cluster_sync();  // every block has started before its shared memory is written

  int stage = 0, buffer = 0;
  for (; row < v.rows; row += stride) {
    // square and sum
    ptx::cp_async_wait<kStages - 1>();
    Pack<T> x[kPacks];
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      uint4& raw = reinterpret_cast<uint4&>(x[i]);
      raw = i * threads + tid < own ? ring[(stage * kPacks + i) * threads + tid] : uint4{};
      sum = add_squares(sum, x[i]);
      keep_packed(x[i]);
    }

    // exchange: each warp sends its sum to every block; the freed slot is filled meanwhile
    sum = warp_reduce(sum);
    if (lane < kCluster) store_remote(&partial[buffer][rank * warps + warp], lane, sum);
    __syncwarp();
    cluster_arrive();
    fetch(stage, row + kStages * stride);
    cluster_wait();
    sum = 0.0f;
    for (int i = lane; i < kCluster * warps; i += kWarp) sum += partial[buffer][i];
    const float scale = reciprocal_rms(warp_reduce(sum), v.count, v.eps);

    // normalise
    T* y = v.y_row(row) + col;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int pack = i * threads + tid;
      weight[i].keep();
      if (pack < own) store<Cache::streaming>(y + int64_t{pack} * kPack<T>, normalise(x[i], scale, weight[i]));
    }
    stage = stage + 1 == kStages ? 0 : stage + 1;
    buffer ^= 1;  // a block may be one row ahead, never two
  }
#endif
}

template <class T, class W, class Tile>
void launch_tile(const RmsNormArgs& a, cudaStream_t stream) {
  constexpr auto kernel = &rms_norm_cluster_kernel<T, W, Tile>;
  const int64_t slice = (a.cols / kPack<T> + Tile::cluster - 1) / Tile::cluster;
  LaunchConfig config;
  config.block = dim3(row_threads(slice, Tile::packs, Tile::threads));
  config.dynamic_smem = Tile::stages * Tile::packs * static_cast<int>(config.block.x * sizeof(uint4));
  config.cluster = Tile::cluster;
  const int64_t clusters = std::min<int64_t>(a.rows, resident_clusters<kernel>(config));
  config.grid = dim3(static_cast<unsigned>(clusters * Tile::cluster));
  warpsmith::launch<kernel>(config, stream, RmsNormRows<T, W>(a));
}

template <class T, class W, class... Tile>
void launch_smallest(const RmsNormArgs& a, cudaStream_t stream, std::tuple<Tile...>) {
  bool done = false;
  ((!done && a.cols / kPack<T> <= Tile::most_packs && (launch_tile<T, W, Tile>(a, stream), done = true)), ...);
}

void launch(const RmsNormArgs& a, cudaStream_t stream) {
  visit_dtypes(a.dtype, a.weight_dtype, [&]<class T, class W>() { launch_smallest<T, W>(a, stream, Tiles{}); });
}

const char* takes(const RmsNormArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  if (a.accumulator != Dtype::f32) return "accumulates in f32";
  return a.cols * size_of(a.dtype) <= kMostBytes ? nullptr : "needs rows of at most 1 MiB";
}

bool suits(const RmsNormArgs& a) { return a.cols * size_of(a.dtype) > kWorthwhileBytes; }

const Register<RmsNormArgs> registered{"cluster", /*min_sm=*/90, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
