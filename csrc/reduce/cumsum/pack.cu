// Cumulative sum of rows, 128-bit accesses, four packs to a thread.
//   Against `warp`: a lane adds up a pack before the warp scans the packs, and has four of them in shared memory; while
//   a tile is scanned the next one is on its way. Short rows have a warp each and do without barriers. Bound: DRAM,
//   where there are enough rows to fill the machine.
#include "reduce/cumsum/scan.cuh"

namespace warpsmith {
namespace {

constexpr int kPacks = 4;          // of a thread in a tile
constexpr int kMostThreads = 512;  // that share a row
constexpr int kRowsPerBlock = 4;   // of rows that have a warp each
constexpr int kMostWarps = kMostThreads / kWarp;

// Blocks per multiprocessor that the registers must allow; sums of 64 bits and two tiles at a time take more of them.
template <class T, class Looped>
constexpr int blocks_per_sm() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  return 2;
#else
  return Looped::value || sizeof(SumOf<T>) == 8 ? 2 : 3;
#endif
}

// threadIdx.x runs along a row, threadIdx.y over rows. Several warps share a row only where blockDim.y is 1.
// Looped: std::true_type where a row may have several tiles.
template <class T, class Reverse, class Aligned, class Looped>
__global__ void __launch_bounds__(kMostThreads, blocks_per_sm<T, Looped>()) cumsum_pack_kernel(const CumsumArgs a) {
  using Sum = SumOf<T>;
  using Row = PackedRow<T, Reverse, Aligned>;
  using Tile = WarpTile<Row, kPacks>;
  extern __shared__ uint4 ring[];        // [one or two tiles, kPacks, threads]
  __shared__ Sum totals[2][kMostWarps];  // of warps, in turns: a tile may start while another warp reads the one before
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  const int threads = blockDim.x * blockDim.y;
  const int64_t step = int64_t{warps} * Tile::values;
  int turn = 0;
  for (int64_t r = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; r < a.outer; r += int64_t{gridDim.x} * blockDim.y) {
    const Row row(a, r);
    CarryOf<T> carry = 0;
    Pack<T>* slots = reinterpret_cast<Pack<T>*>(ring) + threadIdx.y * blockDim.x + threadIdx.x;
    Pack<T>* next = slots + (Looped::value ? kPacks * threads : 0);
    Tile::fetch(row, int64_t{warp} * Tile::values, slots, threads);
    ptx::cp_async_commit();
    for (int64_t tile = 0; tile < a.n; tile += step) {
      const int64_t first = tile + int64_t{warp} * Tile::values;

      // load
      if constexpr (Looped::value) {
        if (tile + step < a.n) Tile::fetch(row, first + step, next, threads);
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
  visit_packed(a, [&]<class T, class Reverse, class Aligned>() {
    const unsigned threads = row_threads(ceil_div(a.n, kPack<T>), kPacks, kMostThreads);
    const unsigned rows = threads == kWarp ? kRowsPerBlock : 1;
    const bool looped = a.n > int64_t{threads} * kPacks * kPack<T>;
    const LaunchConfig config{.grid = dim3(row_grid(ceil_div(a.outer, rows))),
                              .block = dim3(threads, rows),
                              .dynamic_smem = static_cast<int>((looped ? 2 : 1) * kPacks * threads * rows * 16)};
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
