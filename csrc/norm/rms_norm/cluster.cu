// RMS norm, long rows split over a thread-block cluster.
//   Against `registers`: the row spreads over several multiprocessors, so that each holds parts of several rows and reads
//   of one overlap writes of another; partial sums travel through distributed shared memory. Bound: DRAM; the longer the
//   row, the more of the machine waits at the same cluster barrier.
// CUDA C++ Programming Guide, "Thread Block Clusters" and "Distributed Shared Memory".
#include <tuple>
#include <type_traits>

#include "device/cluster.h"
#include "norm/rms_norm/row.cuh"

namespace warpsmith {
namespace {

// threads of a block (at most) | 128-bit packs of a row that a thread holds | blocks per multiprocessor |
// blocks that share a row
template <int threads_, int packs_, int min_blocks_, int cluster_>
struct Tile {
  static constexpr int threads = threads_, packs = packs_, min_blocks = min_blocks_, cluster = cluster_;
  static constexpr int64_t most_packs = int64_t{cluster} * threads * packs;  // of a row
};

// The first that holds the row is taken. 16-bit values take more registers to normalise, so a thread holds fewer packs.
using HalfTiles =
    std::tuple<Tile<512, 4, 2, 2>, Tile<512, 4, 2, 4>, Tile<512, 4, 2, 8>, Tile<1024, 4, 1, 8>, Tile<1024, 4, 1, 16>>;
using FloatTiles =
    std::tuple<Tile<512, 4, 2, 2>, Tile<512, 4, 2, 4>, Tile<512, 4, 2, 8>, Tile<512, 8, 2, 8>, Tile<1024, 8, 1, 8>>;
template <class T>
using TilesFor = std::conditional_t<std::is_same_v<T, float>, FloatTiles, HalfTiles>;

constexpr int64_t kMostBytes = 16 * std::tuple_element_t<std::tuple_size_v<HalfTiles> - 1, HalfTiles>::most_packs;

// Up to this length one block holds a row as well.
constexpr int64_t worthwhile_bytes(Dtype dtype) { return (dtype == Dtype::f32 ? 128 : 64) * 1024; }

template <class T, class W, class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::min_blocks)
    rms_norm_cluster_kernel([[maybe_unused]] const RmsNormRows<T, W> v) {
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  constexpr int kCluster = Tile::cluster, kPacks = Tile::packs;
  __shared__ ClusterReduceStorage<Tile::threads, kCluster> shared;
  cluster_sum_prepare(shared);
  cluster_arrive_relaxed();

  const int tid = threadIdx.x, threads = blockDim.x;
  const int rank = cluster_rank();
  const int packs = static_cast<int>(v.cols / kPack<T>);
  const int slice = (packs + kCluster - 1) / kCluster;
  const int own = min(packs - rank * slice, slice);  // packs of this block, none at the end of a short row
  const int64_t row = blockIdx.x / kCluster, first = int64_t{rank} * slice * kPack<T>;

  // load
  const T* gX = v.x_row(row) + first;  // [own * kPack]
  const uint64_t policy = v.load_policy();
  Pack<T> x[kPacks];
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int pack = i * threads + tid;
    reinterpret_cast<uint4&>(x[i]) = uint4{};
    if (pack < own) load_with_policy(x[i], gX + int64_t{pack} * kPack<T>, policy);
  }

  // square and sum
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    sum = add_squares(sum, x[i]);
    keep_packed(x[i]);
  }

  cluster_wait();  // every block expects what is sent now
  const float scale = reciprocal_rms(cluster_sum(sum, shared), v.inverse_count, v.eps);

  // normalise
  T* gY = v.y_row(row) + first;  // [own * kPack]
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int pack = i * threads + tid;
    if (pack < own) {
      WeightPack<W, kPack<T>> weight;
      weight.load_from(v.weight, first + int64_t{pack} * kPack<T>);
      store<Cache::streaming>(gY + int64_t{pack} * kPack<T>, normalise(x[i], scale, weight));
    }
  }
#endif
}

template <class T, class W, class Tile>
void launch_tile(const RmsNormArgs& a, cudaStream_t stream) {
  const int64_t slice = (a.cols / kPack<T> + Tile::cluster - 1) / Tile::cluster;
  const LaunchConfig config{.grid = dim3(static_cast<unsigned>(a.rows * Tile::cluster)),
                            .block = dim3(row_threads(slice, Tile::packs, Tile::threads)),
                            .cluster = Tile::cluster};
  warpsmith::launch<&rms_norm_cluster_kernel<T, W, Tile>>(config, stream, RmsNormRows<T, W>(a));
}

template <class T, class W, class... Tile>
void launch_smallest(const RmsNormArgs& a, cudaStream_t stream, std::tuple<Tile...>) {
  bool done = false;
  ((!done && a.cols / kPack<T> <= Tile::most_packs && (launch_tile<T, W, Tile>(a, stream), done = true)), ...);
}

void launch(const RmsNormArgs& a, cudaStream_t stream) {
  visit_dtypes(a.dtype, a.weight_dtype, [&]<class T, class W>() { launch_smallest<T, W>(a, stream, TilesFor<T>{}); });
}

const char* takes(const RmsNormArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  if (a.accumulator != Dtype::f32) return "accumulates in f32";
  if (a.rows > kMostRows / kPortableCluster / 2) return "needs at most 2^27 rows";
  return a.cols * size_of(a.dtype) <= kMostBytes ? nullptr : "needs rows of at most 1 MiB";
}

bool suits(const RmsNormArgs& a) { return a.cols * size_of(a.dtype) > worthwhile_bytes(a.dtype); }

const Register<RmsNormArgs> registered{"cluster", /*min_sm=*/90, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
