// Layer norm, long rows streamed through a thread-block cluster.
//   Against `registers`: the row is spread over several multiprocessors, which hold their slice of weight and bias in registers
//   for all rows to come instead of fetching it from L2 for each, and read rows ahead while they finish the one before.
//   Bound: DRAM.
#include "norm/layer_norm/resident.cuh"
#include "row/cluster.cuh"

namespace warpsmith {
namespace {

// Of 480 threads each has registers for weight and bias of nine packs. Those wider than x come from L2.
struct LayerNormClusters {
  static constexpr ClusterTile tiles[] = {{.threads = 512, .packs = 4, .stages = 4, .min_blocks = 1, .cluster = 4},
                                          {.threads = 512, .packs = 4, .stages = 4, .min_blocks = 1, .cluster = 8},
                                          {.threads = 512, .packs = 4, .stages = 4, .min_blocks = 1, .cluster = 16},
                                          {.threads = 480, .packs = 9, .stages = 3, .min_blocks = 1, .cluster = 16}};
};
using Tiles = TilesOf<LayerNormClusters>;
static_assert(kMostClusterBytes <= 16 * kMostRowPacks<Tiles>);
constexpr int64_t kWorthwhileBytes = 64 * 1024;

void launch(const LayerNormArgs& a, cudaStream_t stream) {
  visit_dtypes(a.dtype, a.weight_dtype,
               [&]<class T, class W>() { launch_cluster(LayerNorm<T, W>(a), stream, Tiles{}); });
}

const char* takes(const LayerNormArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  if (a.accumulator != Dtype::f32) return "accumulates in f32";
  if (a.rows > kMostRows) return "needs at most 2^31 - 1 rows";
  return a.cols * size_of(a.dtype) <= kMostClusterBytes ? nullptr : "needs rows of at most 1 MiB";
}

bool suits(const LayerNormArgs& a) { return a.cols * size_of(a.dtype) > kWorthwhileBytes; }

const Register<LayerNormArgs> registered{"cluster", /*min_sm=*/90, takes, launch, suits, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
