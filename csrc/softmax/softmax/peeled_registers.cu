// Softmax, rows that begin anywhere held in the registers of a cluster of small blocks.
//   Against `peeled`: no shared memory between the load and the store, no persistent blocks: four small blocks on every
//   multiprocessor, each at another point of its row, hide each other's waits, and warps begin at lines of 128 bytes. A
//   pack goes through a thread as it lies in memory, so that which values a thread adds up depends on where the row lies:
//   the sum is one that does not depend on their order (softmax/exact_sum.cuh). Bound: DRAM, and the lines that
//   neighbouring rows share; of 16-bit data the instructions: exponentials, and the four additions of the sum.
#include <tuple>

#include "device/cluster.h"
#include "device/start_early.h"
#include "row/peeled_registers.cuh"
#include "softmax/exact_sum.cuh"
#include "softmax/softmax/resident.cuh"

namespace warpsmith {
namespace {

// What the warps of a cluster tell each other about their row. Each instance serves once.
template <class Tile>
struct Exchange {
  static constexpr int kParts = Tile::cluster * Tile::warps;
  float max[kParts];                  // [block, warp]
  ExactPart sum[kParts];              // [block, warp]
  uint64_t max_arrived, sum_arrived;  // mbarriers: every warp's part is here
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

// Adds exp(x - max). keep: whether the exponentials take the place of the values.
template <class T, bool keep, int packs, int groups>
__device__ __forceinline__ void add_exponentials(ExactSum<groups>& sum, uint4 (&x)[packs], float max) {
  static_assert(groups * kExactGroup == packs * kPack<T>);
#pragma unroll
  for (int i = 0; i < packs; ++i) {
    float values[kPack<T>];
    unpack<T>(values, x[i]);
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) values[j] = exponential<T>(values[j] - max);
#pragma unroll
    for (int j = 0; j < kPack<T>; j += kExactGroup) {
      sum.add({values[j], values[j + 1], values[j + 2], values[j + 3]});
    }
    if constexpr (keep) x[i] = pack<T>(values);
  }
}

#endif

// Row: Softmax<T, Answer>.
template <class Row, class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::min_blocks)
    softmax_peeled_registers_kernel([[maybe_unused]] const Row row) {
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  start_early();
  using T = typename Row::Value;
  using Answer = typename Row::Total;
  constexpr int kPacks = Tile::packs, kGroups = kPacks * kPack<T> / kExactGroup;
  constexpr bool kKeep = Answer::kFromExponential;
  __shared__ Exchange<Tile> shared;
  const int lane = threadIdx.x % kWarp, warps = blockDim.x / kWarp, parts = Tile::cluster * warps;
  const int part = cluster_rank() * warps + threadIdx.x / kWarp;
  const int64_t r = blockIdx.x / Tile::cluster;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&shared.max_arrived, 1);
    ptx::mbarrier_init(&shared.sum_arrived, 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect(&shared.max_arrived, parts * static_cast<int>(sizeof(float)));
    ptx::mbarrier_arrive_expect(&shared.sum_arrived, parts * static_cast<int>(sizeof(ExactPart)));
  }
  cluster_arrive_relaxed();
  const auto keep = [&](uint4(&x)[kPacks]) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) keep_packed(x[i], detail::unknown_zero(row));
  };

  // load
  const T* x_row = row.input(0, r);  // [cols]
  const PeeledShare<T, Tile> share(x_row, static_cast<int>(row.cols), part);
  uint4 x[kPacks];
  share.load(x, x_row, Row::padding(), row.load_policy());

  // maximum
  float max = warp_max(max_of<T>(x));
  keep(x);
  cluster_wait();  // every block expects
  if (lane < Tile::cluster) ptx::store_async(&shared.max[part], &shared.max_arrived, lane, max);
  ptx::mbarrier_wait_cluster(&shared.max_arrived, 0);
  max = kLowest;
#pragma unroll
  for (int i = 0; i < Exchange<Tile>::kParts; i += kWarp) {
    if (i + lane < parts) max = fmaxf(max, shared.max[i + lane]);
  }
  max = warp_max(max);

  // sum
  ExactPart own{};
  if (share.any()) {
    ExactSum<kGroups> sum;
    add_exponentials<T, kKeep>(sum, x, max);
    own = sum.of_warp();
  }
  if constexpr (!kKeep) keep(x);
  if (lane < Tile::cluster) {
    auto* to = reinterpret_cast<float*>(&shared.sum[part]);
    ptx::store_async(to, &shared.sum_arrived, lane, __uint_as_float(own.high));
    ptx::store_async(to + 1, &shared.sum_arrived, lane, __uint_as_float(own.low));
  }
  ptx::mbarrier_wait_cluster(&shared.sum_arrived, 0);  // nothing more is sent to this block, which may end
  if (!share.any()) return;
  const Answer answer(max, exact_total<kGroups, Exchange<Tile>::kParts>(shared.sum, parts));

  // answers
  share.store(row.output(r), x, [&](float value) {
    if constexpr (kKeep) {
      return answer.from_exponential(value);
    } else {
      return answer(value);
    }
  });
#endif
}

template <int cluster>
using Tile = PeeledTile<320, 5, 4, cluster>;
using Tiles = std::tuple<Tile<2>, Tile<4>, Tile<8>>;
constexpr int64_t kMostBytes = kMostPeeledBytes<Tile<8>>, kMostClusters = kMostRows / 8;
static_assert(kMostBytes == 204672);

template <class Row, class One>
void launch_tile(const Row& row, bool same, cudaStream_t stream) {
  const int64_t packs = peeled_packs(row.cols * static_cast<int64_t>(sizeof(typename Row::Value)));
  const LaunchConfig config{.grid = static_cast<unsigned>(row.rows * One::cluster),
                            .block = row_threads((packs + One::cluster - 1) / One::cluster, One::packs, One::threads),
                            .cluster = One::cluster,
                            .early = true};
  if (same) {
    warpsmith::launch<&softmax_peeled_registers_kernel<Row, One>>(config, stream, row);
  } else {
    warpsmith::launch<&softmax_peeled_registers_kernel<Row, typename One::AnyPhase>>(config, stream, row);
  }
}

// Through the first tile that holds the row.
template <class Row, class... One>
void launch_first(const Row& row, bool same, cudaStream_t stream, std::tuple<One...>) {
  const int64_t bytes = row.cols * static_cast<int64_t>(sizeof(typename Row::Value));
  bool done = false;
  ((!done && bytes <= kMostPeeledBytes<One> && (launch_tile<Row, One>(row, same, stream), done = true)), ...);
}

void launch(const SoftmaxArgs& a, cudaStream_t stream) {
  const bool same = same_phase(a.x, a.y, a.rows, a.x_stride, a.cols, size_of(a.dtype));
  visit_answers(a, [&]<class T, class Answer>() { launch_first(Softmax<T, Answer>(a), same, stream, Tiles{}); });
}

const char* takes(const SoftmaxArgs& a) {
  if (const char* reason = needs_rows(a)) return reason;
  if (a.rows > kMostClusters) return "needs at most 2^28 - 1 rows";
  return a.cols * size_of(a.dtype) <= kMostBytes ? nullptr : "needs rows of at most 204672 bytes";
}

// Of shorter rows `shared` and `peeled` have whole ones on a multiprocessor, with no cluster to wait for. 16-bit rows have
// twice the values in as many bytes, and four additions for each: `shared` is faster.
bool suits(const SoftmaxArgs& a) { return size_of(a.dtype) == 4 && a.cols * 4 > 64 * 1024; }

const Register<SoftmaxArgs> registered{"peeled_registers", /*min_sm=*/90, takes, launch, suits, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
