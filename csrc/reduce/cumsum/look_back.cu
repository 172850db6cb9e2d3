// Cumulative sum of few long rows in one pass: blocks draw tiles, which learn from other tiles what
// came before them.
//   Against `pack`: tiles of one row run at the same time. A tile publishes its sum as soon as it knows it, and adds up
//   those before it. A block has three tiles at work: one is written, of the next one the sum is out while a warp of its
//   own collects what came before it, the third is on its way. Bound: DRAM.
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

constexpr int kWarps = kLookBackThreads / kWarp;    // that hold a tile
constexpr int kThreads = kLookBackThreads + kWarp;  // and one that looks back
constexpr int kSlots = 3;
constexpr int kRingBytes = kSlots * kLookBackPacks * kLookBackThreads * 16;
constexpr int kBlocksPerSm = 2;
constexpr int kTurns = 8;  // of tiles that a block knows: at least from the one that is written to the third after it

// Blocks per multiprocessor that the registers must allow: as many as the rings leave room for.
constexpr int blocks_per_sm() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  return 1;
#else
  return 2;
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

// The first `count` words, one to a lane, as they are now; those of no lane count as there, with a sum of zero.
template <class S>
__device__ __forceinline__ uint64_t peek(const uint64_t* words, int count) {
  const int lane = threadIdx.x % kWarp;
  return lane < count ? ptx::load_relaxed(words + lane) : Word<S>::of(0);
}

// The sum of words, waiting for those that were not there when they were `seen`; for all lanes.
template <class S>
__device__ __forceinline__ S add_words(const uint64_t* words, uint64_t seen) {
  while (!Word<S>::is_there(seen)) seen = ptx::load_relaxed(words + threadIdx.x % kWarp);
  __syncwarp();
  return warp_reduce(Word<S>::sum(seen));
}

// The sum over the row before a tile whose own sum is published. For one whole warp.
template <class S>
__device__ __forceinline__ S look_back(uint64_t* tiles, const TilesOfRow& layout, int64_t tile, S own) {
  uint64_t* groups = tiles + layout.tiles;
  uint64_t* sets = groups + layout.groups;
  const int64_t group = tile / kFan, set = group / kFan;
  const int in_group = static_cast<int>(tile % kFan), in_set = static_cast<int>(group % kFan);
  const bool ends_group = in_group == kFan - 1, speaks = threadIdx.x % kWarp == 0;
  uint64_t *group_tiles = tiles + group * kFan, *set_groups = groups + set * kFan;
  const auto in_part = [&](int64_t first) { return static_cast<int>(min(set - first, int64_t{kFan})); };

  // Most words have been there for a while: all three kinds travel together.
  const uint64_t of_tiles = peek<S>(group_tiles, in_group), of_groups = peek<S>(set_groups, in_set);
  const uint64_t of_sets = peek<S>(sets, in_part(0));

  const S before_in_group = add_words<S>(group_tiles, of_tiles);
  const S of_group = before_in_group + own;
  if (ends_group && speaks) publish(groups + group, of_group);

  const S before_in_set = add_words<S>(set_groups, of_groups);
  if (ends_group && in_set == kFan - 1 && speaks) publish(sets + set, before_in_set + of_group);

  S before = add_words<S>(sets, of_sets);
  for (int64_t first = kFan; first < set; first += kFan) {
    before += add_words<S>(sets + first, peek<S>(sets + first, in_part(first)));
  }
  return (before + before_in_set) + before_in_group;
}

// A tile of a row; of none, where the rows were over.
struct Drawn {
  unsigned row, tile;
};

// A block takes three steps for the tiles it draws, each while it takes another step for its other tiles:
//   1. the tile is brought;
//   2. it is scanned, and its sum published;
//   3. the last warp looks back, and then the others write.
// Tiles are handed out in order, and a block publishes them in that order: so a tile waits only for what running blocks
// get done without it.
template <class T, class Reverse, class Aligned>
__global__ void __launch_bounds__(kThreads, blocks_per_sm())
    cumsum_look_back_kernel(const CumsumArgs a, const TilesOfRow layout) {
  using Sum = SumOf<T>;
  using Row = PackedRow<T, Reverse, Aligned>;
  using Tile = WarpTile<Row, kLookBackPacks>;
  extern __shared__ uint4 ring[];    // [kSlots, kLookBackPacks, kLookBackThreads]
  __shared__ Drawn drawn[kTurns];    // by turns
  __shared__ Sum totals[4][kWarps];  // of warps, by turns
  __shared__ Sum prefixes[2];        // of tiles, by turns
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const bool looks_back = warp == kWarps;
  auto* const ticket = static_cast<unsigned*>(a.workspace);
  const auto words = [&](unsigned row) { return static_cast<uint64_t*>(a.workspace) + 1 + row * layout.words(); };
  const auto tile_of = [&](int turn) { return drawn[turn & (kTurns - 1)]; };
  const auto exists = [&](int turn) { return turn >= 0 && tile_of(turn).row < a.outer; };
  const auto first_of = [&](const Drawn& at) { return (int64_t{at.tile} * kWarps + warp) * Tile::values; };
  const auto keep = [&](int turn, unsigned number) {
    const auto tiles = static_cast<unsigned>(layout.tiles);
    drawn[turn & (kTurns - 1)] = {number / tiles, number % tiles};
  };

  // Of the last warp: all of them.
  const auto of_warps_before = [&](int turn) { return warp_reduce(lane < warp ? totals[turn & 3][lane] : Sum{0}); };

  Pack<T>* fetched = reinterpret_cast<Pack<T>*>(ring) + threadIdx.x;
  Pack<T>* scanned = fetched + kLookBackPacks * kLookBackThreads;
  Pack<T>* written = scanned + kLookBackPacks * kLookBackThreads;
  Tile own, next;  // the tile that is written, and the one after it
  if (threadIdx.x == 0) keep(0, atomicAdd(ticket, 1u));
  __syncthreads();
  for (int turn = -2; turn < 0 || exists(turn); ++turn) {
    if (looks_back) {
      unsigned number = 0;
      if (lane == 0) number = atomicAdd(ticket, 1u);
      if (turn >= 0) {
        const Drawn at = tile_of(turn);
        const Sum prefix = look_back<Sum>(words(at.row), layout, at.tile, of_warps_before(turn));
        if (lane == 0) prefixes[turn & 1] = prefix;
      }
      if (lane == 0) keep(turn + 3, number);
    } else {
      if (exists(turn + 2)) {
        const Drawn at = tile_of(turn + 2);
        Tile::fetch(Row(a, at.row), first_of(at), fetched, kLookBackThreads);
      }
      ptx::cp_async_commit();
      ptx::cp_async_wait<1>();
      if (exists(turn + 1)) {
        next.scan(scanned, kLookBackThreads);
        if (lane == 0) totals[(turn + 1) & 3][warp] = next.total;
      }
    }
    __syncthreads();

    if (looks_back) {
      if (exists(turn + 1)) {
        const Drawn at = tile_of(turn + 1);
        const Sum total = of_warps_before(turn + 1);
        if (lane == 0) publish(words(at.row) + at.tile, total);
      }
    } else if (turn >= 0) {
      const Drawn at = tile_of(turn);
      own.store(Row(a, at.row), first_of(at), written, kLookBackThreads, prefixes[turn & 1], of_warps_before(turn));
    }
    own = next;
    Pack<T>* const done = written;
    written = scanned, scanned = fetched, fetched = done;
  }
}

void launch(const CumsumArgs& a, cudaStream_t stream) {
  const TilesOfRow layout(a);
  check_cuda(cudaMemsetAsync(a.workspace, 0, static_cast<size_t>(workspace_bytes(a, true)), stream), "status words");
  visit_packed(a, [&]<class T, class Reverse, class Aligned>() {
    const int64_t most = int64_t{kBlocksPerSm} * a.sm_count;
    const LaunchConfig config{.grid = dim3(static_cast<unsigned>(std::min(a.outer * layout.tiles, most))),
                              .block = kThreads,
                              .dynamic_smem = kRingBytes};
    warpsmith::launch<&cumsum_look_back_kernel<T, Reverse, Aligned>>(config, stream, a, layout);
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
