// Softmax, rows that begin anywhere held in the registers of a cluster of small blocks.
//   Against `peeled`: no shared memory between the load and the store, no persistent blocks: three small blocks on every
//   multiprocessor, each at another point of its row, hide each other's waits. A pack goes through a thread as it lies in
//   memory, and what a lane has of a group of columns is handed to the next one, which ends its sum: one shuffle a pack
//   takes the place of putting packs together. Bound: DRAM, and the lines that neighbouring rows and warps share.
#include "device/cluster.h"
#include "device/start_early.h"
#include "row/peeled_registers.cuh"
#include "softmax/softmax/row.cuh"

namespace warpsmith {
namespace {

// What the warps of a cluster tell each other about their row. Each instance serves once.
template <class Tile>
struct Exchange {
  static constexpr int kParts = Tile::shape.cluster * Tile::shape.warps();
  float max[kParts];     // [block, warp]
  uint64_t max_arrived;  // mbarrier: every warp's part is here
  ClusterReduceStorage<Tile::shape.threads, Tile::shape.cluster> sum;
};

#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS

// Of floats that are not NaN, as integers of the same order.
__device__ __forceinline__ float warp_max(float value) {
  const auto swap = [](int bits) { return bits ^ (bits >> 31 & 0x7fffffff); };
  return __int_as_float(swap(__reduce_max_sync(kAllLanes, swap(__float_as_int(value)))));
}

template <class T, int packs>
__device__ __forceinline__ float max_of(const uint4 (&x)[packs]) {
  uint4 largest = x[0];
#pragma unroll
  for (int i = 1; i < packs; ++i) largest = max_packed<T>(largest, x[i]);
  float candidates[kPack<T>];
  unpack<T>(candidates, largest);
  float max = kLowest;
#pragma unroll
  for (int j = 0; j < kPack<T>; ++j) max = fmaxf(max, candidates[j]);
  return max;
}

#endif

// Row: Softmax<T, Result>.
template <class Row, class Tile>
__global__ void __launch_bounds__(Tile::shape.threads, Tile::shape.min_blocks)
    softmax_peeled_registers_kernel([[maybe_unused]] const Row row) {
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  start_early();
  using T = typename Row::Value;
  using Result = typename Row::Total;
  constexpr int kPacks = Tile::shape.packs;
  constexpr bool kKeep = Result::kFromExponential;
  __shared__ Exchange<Tile> shared;
  const int lane = threadIdx.x % kWarp, warps = blockDim.x / kWarp, parts = Tile::shape.cluster * warps;
  const int part = cluster_rank() * warps + threadIdx.x / kWarp;
  const int64_t r = blockIdx.x / Tile::shape.cluster;
  if (threadIdx.x == 0) expect_stores(&shared.max_arrived, parts * static_cast<int>(sizeof(float)));
  cluster_sum_prepare(shared.sum);
  cluster_arrive_relaxed();
  const auto keep = [&](uint4(&x)[kPacks]) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) keep_packed(x[i], detail::unknown_zero(row));
  };

  // load
  const T* x_row = row.input(0, r);  // [cols]
  PeeledShare<T, Tile> share(x_row, static_cast<int>(row.cols), part);
  uint4 x[kPacks];
  share.load(x, x_row, Row::padding(), row.load_policy());
  const T before = share.load_before(x_row, from_float<T>(-INFINITY));
  share.forget(detail::unknown_zero(row));

  // maximum
  float max = warp_max(max_of<T>(x));
  keep(x);
  cluster_wait();  // every block expects
  if (lane < Tile::shape.cluster) ptx::store_async(&shared.max[part], &shared.max_arrived, lane, max);
  ptx::mbarrier_wait_cluster(&shared.max_arrived, 0);
  max = kLowest;
#pragma unroll
  for (int i = 0; i < Exchange<Tile>::kParts; i += kWarp) {
    if (i + lane < parts) max = fmaxf(max, shared.max[i + lane]);
  }
  max = warp_max(max);

  // sum
  float sum = 0.0f;
  if (share.any()) {
    sum = share.template add_up<kKeep>(x, before, [&](float value) { return exponential<T>(value - max); });
  }
  if constexpr (!kKeep) keep(x);
  sum = cluster_sum<Tile::shape.threads, Tile::shape.cluster>(sum, shared.sum);  // after which this block may end
  if (!share.any()) return;
  const Result result(max, sum);

  // results
  share.store(row.output(r), x, [&](float value) {
    if constexpr (kKeep) {
      return result.from_exponential(value);
    } else {
      return result(value);
    }
  });
#endif
}

constexpr PeeledTile small_blocks(int cluster) {
  return {.threads = 320, .packs = 10, .min_blocks = 3, .cluster = cluster};
}
struct PeeledTiles {
  static constexpr PeeledTile tiles[] = {small_blocks(2), small_blocks(4), small_blocks(8)};
};
using Tiles = TilesOf<PeeledTiles>;
constexpr int64_t kMostBytes = kMostPeeledBytes<TileAt<PeeledTiles, 2>>, kMostClusters = kMostRows / 8;
constexpr int64_t kMostServedBytes = kMostPeeledBytes<TileAt<PeeledTiles, 1>>;
static_assert(kMostBytes == 409584);

template <class Row, class One>
void launch_tile(const Row& row, bool same, cudaStream_t stream) {
  const int64_t packs = peeled_packs(row.cols * static_cast<int64_t>(sizeof(typename Row::Value)));
  const LaunchConfig config{
      .grid = static_cast<unsigned>(row.rows * One::shape.cluster),
      .block = row_threads((packs + One::shape.cluster - 1) / One::shape.cluster, One::shape.packs, One::shape.threads),
      .cluster = One::shape.cluster,
      .early = true};
  if (same) {
    warpsmith::launch<&softmax_peeled_registers_kernel<Row, One>>(config, stream, row);
  } else {
    warpsmith::launch<&softmax_peeled_registers_kernel<Row, AnyPhase<One>>>(config, stream, row);
  }
}

void launch(const SoftmaxArgs& a, cudaStream_t stream) {
  const bool same = same_phase(a.x, a.y, a.rows, a.x_stride, a.cols, size_of(a.dtype));
  visit_results(a, [&]<class T, class Result>() {
    const Softmax<T, Result> row(a);
    with_first_tile(Tiles{}, peeled_packs(a.cols * size_of(a.dtype)),
                    [&]<class One>() { launch_tile<Softmax<T, Result>, One>(row, same, stream); });
  });
}

const char* takes(const SoftmaxArgs& a) {
  if (const char* reason = needs_rows(a)) return reason;
  if (a.rows > kMostClusters) return "needs at most 2^28 - 1 rows";
  return needs_row_bytes<kMostBytes>(a.cols, a.dtype);
}

// Of shorter rows `shared` and `peeled` have whole ones on a multiprocessor, with no cluster to wait for. Longer ones stay
// with `peeled`, against which clusters of 8 have not been measured.
bool suits(const SoftmaxArgs& a) {
  const int64_t bytes = a.cols * size_of(a.dtype);
  return bytes > 64 * 1024 && bytes <= kMostServedBytes;
}

const Register<SoftmaxArgs> registered{"peeled_registers", /*min_sm=*/90, takes, launch, suits, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
