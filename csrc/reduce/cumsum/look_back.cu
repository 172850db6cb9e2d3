// Cumulative sum of few long rows in one pass: a block per tile, which learns from other tiles what came before it.
//   Against `pack`: tiles of one row run at the same time. A tile publishes its sum as soon as it knows it, and adds up
//   those before it. Bound: DRAM, and the shared memory that a tile holds while it waits.
// Merrill & Garland 2016, "Single-pass Parallel Prefix Scan with Decoupled Look-back",
// https://research.nvidia.com/publication/2016-03_single-pass-parallel-prefix-scan-decoupled-look-back
//
// There, a tile adds whatever sums and prefixes it finds, so that rounding depends on timing. Here, sums form a tree of
// fixed shape: the last of 32 tiles publishes the sum of its group, the last of 32 groups that of its set. A tile adds
// all sets before its own, then the groups of its set, then the tiles of its group: the same bits in every run, and no
// chain of tiles that wait for each other one after the other.
#include <bit>

#include "device/ptx/relaxed.h"
#include "reduce/cumsum/scan.cuh"

namespace warpsmith {
namespace {

constexpr int kWarps = kLookBackThreads / kWarp;

// Blocks per multiprocessor that the registers must allow: 32 KiB each, on their way or waiting.
constexpr int blocks_per_sm() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  return 3;
#else
  return 4;
#endif
}

// A sum and the sign that it is there, in one word, so that nobody sees one without the other. Zero: not yet.
template <class S>
struct Word {
  static __device__ uint64_t of(float sum) { return uint64_t{1} << 32 | std::bit_cast<uint32_t>(sum); }
  static __device__ bool is_there(uint64_t word) { return word != 0; }
  static __device__ float sum(uint64_t word) { return std::bit_cast<float>(static_cast<uint32_t>(word)); }
};

// 63 bits hold the sum of 2^31 values of 32 bits.
template <>
struct Word<int64_t> {
  static __device__ uint64_t of(int64_t sum) { return static_cast<uint64_t>(sum) << 1 | 1; }
  static __device__ bool is_there(uint64_t word) { return word != 0; }
  static __device__ int64_t sum(uint64_t word) { return static_cast<int64_t>(word) >> 1; }
};

template <class S>
__device__ __forceinline__ void publish(uint64_t* word, S sum) {
  ptx::store_relaxed(word, Word<S>::of(sum));
}

// Adds the first `count` words, at most one per lane, waiting for those that are not there yet; for all lanes.
template <class S>
__device__ __forceinline__ S add_words(const uint64_t* words, int count) {
  const int lane = threadIdx.x % kWarp;
  S sum = 0;
  if (lane < count) {
    uint64_t word;
    do {
      word = ptx::load_relaxed(words + lane);
    } while (!Word<S>::is_there(word));
    sum = Word<S>::sum(word);
  }
  __syncwarp();
  return warp_reduce(sum);
}

// Publishes the tile's sum and returns the sum over the row before it. For one whole warp.
template <class S>
__device__ __forceinline__ S look_back(uint64_t* tiles, const TilesOfRow& layout, int64_t tile, S own) {
  uint64_t* groups = tiles + layout.tiles;
  uint64_t* sets = groups + layout.groups;
  const int64_t group = tile / kFan, set = group / kFan;
  const int in_group = static_cast<int>(tile % kFan), in_set = static_cast<int>(group % kFan);
  const bool speaks = threadIdx.x % kWarp == 0;
  if (speaks) publish(tiles + tile, own);

  const S before_in_group = add_words<S>(tiles + group * kFan, in_group);
  const S of_group = before_in_group + own;
  const bool ends_group = in_group == kFan - 1;
  if (ends_group && speaks) publish(groups + group, of_group);

  const S before_in_set = add_words<S>(groups + set * kFan, in_set);
  if (ends_group && in_set == kFan - 1 && speaks) publish(sets + set, before_in_set + of_group);

  S before = 0;
  for (int64_t first = 0; first < set; first += kFan) {
    before += add_words<S>(sets + first, static_cast<int>(min(set - first, int64_t{kFan})));
  }
  return (before + before_in_set) + before_in_group;
}

template <class T, class Reverse, class Aligned>
__global__ void __launch_bounds__(kLookBackThreads, blocks_per_sm())
    cumsum_look_back_kernel(const CumsumArgs a, const TilesOfRow layout) {
  using Sum = SumOf<T>;
  using Row = PackedRow<T, Reverse, Aligned>;
  using Tile = WarpTile<Row, kLookBackPacks>;
  __shared__ Pack<T> packs[kLookBackPacks * kLookBackThreads];
  __shared__ unsigned ticket;
  __shared__ Sum totals[kWarps], prefix;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  auto* words = static_cast<uint64_t*>(a.workspace);

  // Tiles are handed out in order, so that those which a tile waits for run already.
  if (threadIdx.x == 0) ticket = atomicAdd(reinterpret_cast<unsigned*>(words), 1u);
  __syncthreads();
  const int64_t r = ticket / layout.tiles, tile = ticket - r * layout.tiles;

  // load
  const Row row(a, r);
  const int64_t first = (tile * kWarps + warp) * Tile::values;
  Pack<T>* slots = packs + threadIdx.x;
  Tile::fetch(row, first, slots, kLookBackThreads);
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();

  // scan
  Tile own;
  own.scan(slots, kLookBackThreads);
  if (lane == 0) totals[warp] = own.total;
  __syncthreads();
  const Sum scanned = warp_scan(lane < kWarps ? totals[lane] : Sum{0});
  if (warp == 0) {
    const Sum total = __shfl_sync(kAllLanes, scanned, kWarp - 1);
    const Sum before = look_back<Sum>(words + 1 + r * layout.words(), layout, tile, total);
    if (lane == 0) prefix = before;
  }
  const Sum earlier = __shfl_sync(kAllLanes, scanned, warp > 0 ? warp - 1 : 0);
  __syncthreads();

  // write
  own.store(row, first, slots, kLookBackThreads, prefix, warp > 0 ? earlier : Sum{0});
}

void launch(const CumsumArgs& a, cudaStream_t stream) {
  const TilesOfRow layout(a);
  check_cuda(cudaMemsetAsync(a.workspace, 0, static_cast<size_t>(workspace_bytes(a, true)), stream), "status words");
  visit_packed(a, [&]<class T, class Reverse, class Aligned>() {
    const dim3 grid(static_cast<unsigned>(a.outer * layout.tiles));
    warpsmith::launch<&cumsum_look_back_kernel<T, Reverse, Aligned>>({grid, kLookBackThreads}, stream, a, layout);
  });
}

const char* takes(const CumsumArgs& a) {
  if (const char* reason = needs_rows(a)) return reason;
  if (a.dtype == Dtype::i32 && a.n > int64_t{1} << 31) return "needs rows of at most 2^31 values";
  return a.outer * TilesOfRow(a).tiles <= kMostRows ? nullptr : "needs at most 2^31 - 1 tiles";
}

const Register<CumsumArgs> registered{"look_back", /*min_sm=*/80, takes, launch, suits_look_back};

}  // namespace
}  // namespace warpsmith
