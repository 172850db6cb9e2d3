// Cumulative sum of few long rows in one pass: a block per tile, which learns from other tiles what came before it.
//   Against `pack`: tiles of one row run at the same time. A tile publishes its sum as soon as it knows it, and adds up
//   those before it. Bound: DRAM, and the shared memory that a tile holds while it waits.
// Merrill & Garland 2016, "Single-pass Parallel Prefix Scan with Decoupled Look-back",
// https://research.nvidia.com/publication/2016-03_single-pass-parallel-prefix-scan-decoupled-look-back
//
// There, a tile adds whatever sums and prefixes it finds, so that rounding depends on timing. Here, the sums of tiles form
// a tree of fixed shape: the last tile of a group speaks for the group, the last of a set for the set.
#include "reduce/cumsum/tile_sums.cuh"

namespace warpsmith {
namespace {

constexpr int kWarps = kTileThreads / kWarp;

// Blocks per multiprocessor that the registers must allow: 32 KiB each, on their way or waiting.
constexpr int blocks_per_sm() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  return 3;
#else
  return 4;
#endif
}

// Publishes the tile's sum and returns the sum over the row before it. For one whole warp.
template <class S>
__device__ __forceinline__ S look_back(const TileSums<S>& sums, int64_t tile, S own) {
  sums.publish_tile(tile, own);
  const S before_in_group = sums.before_in_group(tile), of_group = before_in_group + own;
  if (sums.ends_group(tile)) sums.publish_group(tile, of_group);
  const S before_in_set = sums.before_in_set(tile);
  if (sums.ends_set(tile)) sums.publish_set(tile, before_in_set + of_group);
  return (sums.before_set(tile) + before_in_set) + before_in_group;
}

template <class T, class Reverse, class Aligned>
__global__ void __launch_bounds__(kTileThreads, blocks_per_sm())
    cumsum_look_back_kernel(const CumsumArgs a, const TilesOfRow layout) {
  using Sum = SumOf<T>;
  using Row = PackedRow<T, Reverse, Aligned>;
  using Tile = WarpTile<Row, kTilePacks>;
  __shared__ Pack<T> packs[kTilePacks * kTileThreads];
  __shared__ unsigned ticket;
  __shared__ Sum totals[kWarps], prefix;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  if (threadIdx.x == 0) ticket = take_ticket(a);
  __syncthreads();
  const int64_t r = ticket / layout.tiles, tile = ticket - r * layout.tiles;

  // load
  const Row row(a, r);
  const int64_t first = (tile * kWarps + warp) * Tile::values;
  Pack<T>* slots = packs + threadIdx.x;
  Tile::fetch(row, first, slots, kTileThreads);
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();

  // scan
  Tile own;
  own.scan(slots, kTileThreads);
  if (lane == 0) totals[warp] = own.total;
  __syncthreads();
  const Sum scanned = warp_scan(lane < kWarps ? totals[lane] : Sum{0});
  if (warp == 0) {
    const Sum total = __shfl_sync(kAllLanes, scanned, kWarp - 1);
    const Sum before = look_back(TileSums<Sum>(a, layout, r), tile, total);
    if (lane == 0) prefix = before;
  }
  const Sum earlier = __shfl_sync(kAllLanes, scanned, warp > 0 ? warp - 1 : 0);
  __syncthreads();

  // write
  own.store(row, first, slots, kTileThreads, prefix, warp > 0 ? earlier : Sum{0});
}

void launch(const CumsumArgs& a, cudaStream_t stream) {
  const TilesOfRow layout(a);
  clear_words(a, stream);
  visit_packed(a, [&]<class T, class Reverse, class Aligned>() {
    const dim3 grid(static_cast<unsigned>(a.outer * layout.tiles));
    warpsmith::launch<&cumsum_look_back_kernel<T, Reverse, Aligned>>({grid, kTileThreads}, stream, a, layout);
  });
}

const Register<CumsumArgs> registered{"look_back", /*min_sm=*/80, needs_tiles, launch, has_few_long_rows};

}  // namespace
}  // namespace warpsmith
