// Cumulative sum of rows, 128-bit accesses, four packs to a thread.
//   Against `warp`: a lane adds up a pack before the warp scans the packs, and has four of them in shared memory; while
//   a tile is scanned the next one is on its way. Short rows do without shared memory and barriers: each has as many
//   lanes of a warp as it has packs, and lanes that need fewer than four for a row work on several. Bound: DRAM, where
//   there are enough rows to fill the machine.
#include <bit>

#include "reduce/cumsum/scan.cuh"

namespace warpsmith {
namespace {

constexpr int kPacks = 4;          // of a thread at a time
constexpr int kMostThreads = 512;  // that share a row
constexpr int kMostWarps = kMostThreads / kWarp;

// --- short rows ------------------------------------------------------------------------------------------------------

constexpr int kShortThreads = 256;
constexpr int kShortPacks = kWarp * kPacks;  // of the longest of them

// `lanes` (a power of two) neighbours for a row, Each::value packs to a lane, of which the k-th of all lanes are
// neighbours. What a lane reads is on its way at once.
template <class T, class Reverse, class Aligned, class Each>
__global__ void __launch_bounds__(kShortThreads) cumsum_short_kernel(const CumsumArgs a, int lanes) {
  using Sum = SumOf<T>;
  using Row = PackedRow<T, Reverse, Aligned>;
  constexpr int kEach = Each::value, kRows = kPacks / kEach;
  const int lane = threadIdx.x % lanes, last = threadIdx.x % kWarp | (lanes - 1);
  const int64_t side_by_side = kShortThreads / lanes;
  const int64_t first_row = blockIdx.x * (side_by_side * kRows) + threadIdx.x / lanes;
  const auto place = [&](int k) { return int64_t{k * lanes + lane} * Row::width; };

  Pack<T> packs[kRows][kEach];
#pragma unroll
  for (int u = 0; u < kRows; ++u) {
    const int64_t r = first_row + u * side_by_side;
    const Row row(a, r < a.outer ? r : 0);
#pragma unroll
    for (int k = 0; k < kEach; ++k) row.load(packs[u][k], r < a.outer ? place(k) : row.n);
  }
#pragma unroll
  for (int u = 0; u < kRows; ++u) {
    const int64_t r = first_row + u * side_by_side;
    const Row row(a, r < a.outer ? r : 0);
    Sum before = 0;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      Sum sums[Row::width];
      Row::scan(sums, packs[u][k]);
      const Sum scanned = warp_scan(sums[Row::width - 1], lane);
      row.store(r < a.outer ? place(k) : row.n, sums, before + before_lane(scanned, lane));
      if (k + 1 < kEach) before += __shfl_sync(kAllLanes, scanned, last);
    }
  }
}

template <class T, class Reverse, class Aligned>
void launch_short(const CumsumArgs& a, int64_t packs, cudaStream_t stream) {
  const int lanes = static_cast<int>(std::min<int64_t>(kWarp, std::bit_ceil(static_cast<uint64_t>(packs))));
  const auto run = [&]<int each>() {
    const int64_t rows = int64_t{kShortThreads} / lanes * (kPacks / each);  // of a block
    const auto grid = static_cast<unsigned>(ceil_div(a.outer, rows));
    using Each = std::integral_constant<int, each>;
    warpsmith::launch<&cumsum_short_kernel<T, Reverse, Aligned, Each>>({grid, kShortThreads}, stream, a, lanes);
  };
  if (packs <= kWarp) {
    run.template operator()<1>();
  } else if (packs <= 2 * kWarp) {
    run.template operator()<2>();
  } else {
    run.template operator()<4>();
  }
}

// --- longer rows -----------------------------------------------------------------------------------------------------

// Blocks per multiprocessor that the registers must allow; sums of 64 bits and two tiles at a time take more of them.
template <class T, class Looped>
constexpr int blocks_per_sm() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  return 2;
#else
  return Looped::value || sizeof(SumOf<T>) == 8 ? 2 : 3;
#endif
}

// A block to a row. Looped: std::true_type where a row may have several tiles.
template <class T, class Reverse, class Aligned, class Looped>
__global__ void __launch_bounds__(kMostThreads, blocks_per_sm<T, Looped>()) cumsum_pack_kernel(const CumsumArgs a) {
  using Sum = SumOf<T>;
  using Row = PackedRow<T, Reverse, Aligned>;
  using Tile = WarpTile<Row, kPacks>;
  extern __shared__ uint4 ring[];        // [one or two tiles, kPacks, threads]
  __shared__ Sum totals[2][kMostWarps];  // of warps, in turns: a tile may start while another warp reads the one before
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  const int threads = blockDim.x;
  const int64_t step = int64_t{warps} * Tile::values;
  int turn = 0;
  for (int64_t r = blockIdx.x; r < a.outer; r += gridDim.x) {
    const Row row(a, r);
    CarryOf<T> carry = 0;
    Pack<T>* slots = reinterpret_cast<Pack<T>*>(ring) + threadIdx.x;
    Pack<T>* next = slots + (Looped::value ? kPacks * threads : 0);
    Tile::fetch(row, int64_t{warp} * Tile::values, slots, threads);
    ptx::cp_async_commit();
    for (int64_t tile = 0; tile < row.n; tile += step) {
      const int64_t first = tile + int64_t{warp} * Tile::values;

      // load
      if constexpr (Looped::value) {
        if (tile + step < row.n) Tile::fetch(row, first + step, next, threads);
        ptx::cp_async_commit();
        ptx::cp_async_wait<1>();
      } else {
        ptx::cp_async_wait<0>();
      }

      // scan
      Tile own;
      own.scan(slots, threads);
      Sum earlier = 0, total = own.total;
      if (warps > 1) {
        if (lane == 0) totals[turn][warp] = own.total;
        __syncthreads();
        const Sum scanned = warp_scan(lane < warps ? totals[turn][lane] : Sum{0});
        if (warp > 0) earlier = __shfl_sync(kAllLanes, scanned, warp - 1);
        total = __shfl_sync(kAllLanes, scanned, kWarp - 1);
        turn ^= 1;
      }

      // write
      own.store(row, first, slots, threads, static_cast<Sum>(carry), earlier);
      carry += total;
      Pack<T>* const done = slots;
      slots = next;
      next = done;
    }
  }
}

void launch(const CumsumArgs& a, cudaStream_t stream) {
  const int64_t packs = packs_of_row(a);
  visit_packed(a, [&]<class T, class Reverse, class Aligned>() {
    if (packs <= kShortPacks) return launch_short<T, Reverse, Aligned>(a, packs, stream);
    const unsigned threads = row_threads(packs, kPacks, kMostThreads);
    const bool looped = packs > int64_t{threads} * kPacks;
    const LaunchConfig config{.grid = dim3(row_grid(a.outer)),
                              .block = dim3(threads),
                              .dynamic_smem = static_cast<int>((looped ? 2 : 1) * kPacks * threads * 16)};
    if (looped) {
      warpsmith::launch<&cumsum_pack_kernel<T, Reverse, Aligned, std::true_type>>(config, stream, a);
    } else {
      warpsmith::launch<&cumsum_pack_kernel<T, Reverse, Aligned, std::false_type>>(config, stream, a);
    }
  });
}

const Register<CumsumArgs> registered{"pack", /*min_sm=*/80, needs_rows, launch};

}  // namespace
}  // namespace warpsmith
