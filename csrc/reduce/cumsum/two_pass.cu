// Cumulative sum of few long rows, each tile read twice, but from DRAM once.
//   Against `look_back`: tiles hardly ever wait for those before them. A block sums up a tile that will be scanned a little
//   later, and scans one that was summed up a little earlier: by then the sums of all tiles before it are there, and its
//   values are still in L2. Bound: DRAM.
#include "host/occupancy.h"
#include "reduce/cumsum/tile_sums.cuh"

namespace warpsmith {
namespace {

constexpr int kWarps = kTileThreads / kWarp;

// Packs of a tile to be summed up that a thread reads at once.
constexpr int kReadAtOnce = 4;

// Blocks per multiprocessor that the registers must allow: fewer where sums or addresses take more of them.
template <class Sum, class Aligned>
constexpr int blocks_per_sm() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  return 3;
#else
  return sizeof(Sum) == 4 && Aligned::value ? 4 : 3;
#endif
}

// Of a lane's packs of a tile.
template <class Row>
__device__ __forceinline__ typename Row::Sum sum_of_packs(const Row& row, int64_t first) {
  using Tile = WarpTile<Row, kTilePacks>;
  typename Row::Sum sum = 0;
#pragma unroll 1
  for (int begin = 0; begin < kTilePacks; begin += kReadAtOnce) {
    Pack<typename Row::Value> packs[kReadAtOnce];
#pragma unroll
    for (int k = 0; k < kReadAtOnce; ++k) row.template load<Cache::normal>(packs[k], Tile::place(first, begin + k));
#pragma unroll
    for (int k = 0; k < kReadAtOnce; ++k) {
      typename Row::Sum sums[Row::width];
      Row::scan(sums, packs[k]);
      sum += sums[Row::width - 1];
    }
  }
  return sum;
}

// `distance`: tiles between the one that a block sums up and the one that it scans.
template <class T, class Reverse, class Aligned>
__global__ void __launch_bounds__(kTileThreads, blocks_per_sm<SumOf<T>, Aligned>())
    cumsum_two_pass_kernel(const CumsumArgs a, const TilesOfRow layout, const int64_t distance) {
  using Sum = SumOf<T>;
  using Row = PackedRow<T, Reverse, Aligned>;
  using Tile = WarpTile<Row, kTilePacks>;
  __shared__ Pack<T> packs[kTilePacks * kTileThreads];
  __shared__ unsigned ticket;
  __shared__ Sum sums[kWarps], totals[kWarps], prefix;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  Pack<T>* slots = packs + threadIdx.x;
  const int64_t tiles = a.outer * layout.tiles;

  while (true) {
    if (threadIdx.x == 0) ticket = take_ticket(a);
    __syncthreads();
    const int64_t summed = ticket, scanned = summed - distance;
    if (scanned >= tiles) return;
    const bool sums_up = summed < tiles, scans = scanned >= 0;
    const int64_t scanned_row = scans ? scanned / layout.tiles : 0, scanned_tile = scanned - scanned_row * layout.tiles;
    const int64_t summed_row = summed / layout.tiles, summed_tile = summed - summed_row * layout.tiles;
    const Row row(a, scanned_row);
    const int64_t first = (scanned_tile * kWarps + warp) * Tile::values;

    // load
    if (scans) Tile::fetch(row, first, slots, kTileThreads);
    ptx::cp_async_commit();
    if (sums_up) {
      const Sum sum = warp_reduce(sum_of_packs(Row(a, summed_row), (summed_tile * kWarps + warp) * Tile::values));
      if (lane == 0) sums[warp] = sum;
    }

    // scan
    Tile own;
    ptx::cp_async_wait<0>();
    if (scans) {
      own.scan(slots, kTileThreads);
      if (lane == 0) totals[warp] = own.total;
    }
    __syncthreads();
    Sum sum = 0;
    if (sums_up && warp == kWarps - 1) {
      sum = warp_reduce(lane < kWarps ? sums[lane] : Sum{0});
      TileSums<Sum>(a, layout, summed_row).publish_tile(summed_tile, sum);
    }
    if (scans && warp == 0) {
      const TileSums<Sum> others(a, layout, scanned_row);
      const Sum in_group = others.before_in_group(scanned_tile), in_set = others.before_in_set(scanned_tile);
      const Sum before = (others.before_set(scanned_tile) + in_set) + in_group;
      if (lane == 0) prefix = before;
    }
    const Sum before_warps = warp_scan(scans && lane < kWarps ? totals[lane] : Sum{0});
    const Sum earlier = __shfl_sync(kAllLanes, before_warps, warp > 0 ? warp - 1 : 0);
    __syncthreads();

    // The last tile of a group speaks for all of them. Tiles to be scanned wait for that, so it comes before the warp's
    // stores, which take far longer than the other tiles of the group.
    if (sums_up && warp == kWarps - 1 && TileSums<Sum>::ends_group(summed_tile)) {
      const TileSums<Sum> of_summed(a, layout, summed_row);
      sum += of_summed.before_in_group(summed_tile);
      of_summed.publish_group(summed_tile, sum);
      if (TileSums<Sum>::ends_set(summed_tile)) {
        of_summed.publish_set(summed_tile, sum + of_summed.before_in_set(summed_tile));
      }
    }

    // write
    if (scans) own.store(row, first, slots, kTileThreads, prefix, warp > 0 ? earlier : Sum{0});
  }
}

void launch(const CumsumArgs& a, cudaStream_t stream) {
  const TilesOfRow layout(a);
  clear_words(a, stream);
  visit_packed(a, [&]<class T, class Reverse, class Aligned>() {
    LaunchConfig config{{1}, kTileThreads};
    const int resident = resident_clusters<&cumsum_two_pass_kernel<T, Reverse, Aligned>>(config);
    // Half of what runs at once: nearly all of the sums that a tile asks for are there, and its values still in L2. Sums
    // of 64 bits take longer to write, and longer to wait for.
    const int64_t distance = resident * (sizeof(SumOf<T>) == 8 ? 3 : 2) / 4,
                  tickets = a.outer * layout.tiles + distance;
    config.grid = dim3(static_cast<unsigned>(std::min<int64_t>(resident, tickets)));
    warpsmith::launch<&cumsum_two_pass_kernel<T, Reverse, Aligned>>(config, stream, a, layout, distance);
  });
}

const char* takes(const CumsumArgs& a) {
  // Tickets are counted past the last tile.
  constexpr int64_t kMostTiles = int64_t{1} << 30;
  if (const char* reason = needs_tiles(a)) return reason;
  return a.outer * TilesOfRow(a).tiles <= kMostTiles ? nullptr : "needs at most 2^30 tiles";
}

// Of 16 bits, arithmetic done twice would be the bound, unless rows are so long that tiles would wait for each other still
// longer. Few waves of tiles are bound by what it takes to begin. How many waves there are depends on the number of rows.
bool suits(const CumsumArgs& a) {
  constexpr int64_t kLeastValues = 16 << 20;
  if (a.batch_invariant || !has_few_long_rows(a)) return false;
  return (size_of(a.dtype) == 4 ? a.outer * a.n : a.n) >= kLeastValues;
}

const Register<CumsumArgs> registered{"two_pass", /*min_sm=*/80, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
