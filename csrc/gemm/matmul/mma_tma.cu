// Matrix product by mma.sync of operands that the copy engine brings, with a row-major, for large products on sm_90.
//   Against `mma_peak`: a thread names a box of 64 along k, and the engine (TMA) copies and swizzles it, zeros where the
//   matrix ends; barriers in shared memory, where copies and warps sign off, take the place of __syncthreads, so that
//   warps drift apart; clusters of two blocks share b, each fetching half of it for both; blocks stay for tile after
//   tile, and the next one's operands come while the one before is stored; a last wave of few tiles is cut into slices of
//   k, whose partial sums a second kernel adds up.
//   Occupancy: one block of 8 warps, of up to 255 registers, in 210 KB.
//   Bound: power, hence whatever moves less: the tensor cores are as busy in a clock as in `mma_peak`, but the clock falls
//   less, as the cluster reads a third less from L2. Sums of 16 bits leave registers for tiles of 256 x 256. Where b is
//   row-major, `mma_peak` stays 1 to 6 % ahead.
#include "device/cluster.h"
#include "device/tma_ring.h"
#include "gemm/mma_tile.cuh"
#include "gemm/store_staged.cuh"
#include "gemm/tensor_core.h"
#include "gemm/waves.h"
#include "host/registry.h"
#include "host/tensor_map.h"
#include "tile/shared_limits.h"
#include "tile/stage_operands.cuh"
#include "tile/thread_again.cuh"

namespace warpsmith {
namespace {

constexpr int kCluster = 2;  // blocks, whose tiles lie below each other

struct WideTile {
  static constexpr int bm = 128, bn = 256, bk = 64, warps_m = 2, warps_n = 4, stages = 4;
};
struct SquareTile {  // for sums of 16 bits
  static constexpr int bm = 256, bn = 256, bk = 64, warps_m = 2, warps_n = 4, stages = 3;
};

// The progress of the thread that starts copies. In shared memory, because in registers every thread would pay for it.
struct Cursor {
  int item;
  int m, n, step, last_step;  // what is copied next; steps along k
  int slot, phase;
};

// An item of Waves: a tile of the cluster, and its part of k, in steps.
struct Item {
  int tile, first_step, steps;

  __device__ __forceinline__ Item(const Waves& waves, int64_t k, int item) {
    const int all = static_cast<int>(ceil_div(k, kPairStep)), piece = item - waves.whole;
    tile = piece < 0 ? item : waves.whole + piece / waves.slices;
    first_step = piece < 0 ? 0 : piece % waves.slices * waves.steps;
    steps = piece < 0 ? all : min(waves.steps, all - first_step);
  }
};

template <class T, class Acc, class Tile_, Along along_b_, Finish finish_>
struct TmaConfig {
  using Tile = Tile_;
  static constexpr Finish finish = finish_;
  using Patch = StorePatch<Tile, 8>;
  static constexpr Along along_b = along_b_;
  static constexpr int threads = Share<Tile>::threads, stages = Tile::stages, cluster = kCluster;
  static constexpr int wm = Share<Tile>::wm, wn = Share<Tile>::wn;
  static_assert(wn == 64 && wm % 8 == 0, "the warp's share of b is a box, or 64 lines");

  // What a warp reads, of the whole stage.
  using WarpA = OperandTile<Along::k, wm, Tile::bk, Swizzled>;
  using WarpB = OperandTile<along_b, wn, Tile::bk, Swizzled>;

  struct Stage {
    uint16_t a[Tile::bm * Tile::bk];  // [bm, 64]
    uint16_t b[Tile::bn * Tile::bk];  // [bn, 64] along k; boxes [bn / 64][64 k][64 n] otherwise
  };
  struct Shared {
    alignas(1024) Stage ring[stages];  // swizzles repeat every 1024 bytes
    alignas(16) char patches[Share<Tile>::warps * Patch::bytes];
    TmaRing<stages> barriers;  // full: the copies of both blocks have landed here; empty: the warps of both have read
    Cursor cursor;
  };
};

// Sums of block `rank` for slice `piece` of the cut tiles: [bm, bn].
template <class Tile>
__device__ __forceinline__ float* partial_tile(const GemmArgs& p, int piece, int rank) {
  return static_cast<float*>(p.workspace) + (int64_t{piece} * kCluster + rank) * (Tile::bm * Tile::bn);
}

#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS

// Copies of one stage after another, by one thread.
template <class Config>
class Copies {
  using Tile = typename Config::Tile;

 public:
  __device__ __forceinline__ Copies(typename Config::Shared& shared, const CUtensorMap& a, const CUtensorMap& b,
                                    const GemmArgs& p, const Waves& waves)
      : shared_(shared), a_(a), b_(b), p_(p), waves_(waves) {}

  __device__ __forceinline__ void start_first(int count) {
    volatile Cursor& cursor = shared_.cursor;
    cursor.slot = 0;
    cursor.phase = 0;
    enter(static_cast<int>(blockIdx.x) / kCluster);
    for (int i = 0; i < count; ++i) start();
  }

  // The next stage, into a slot that both blocks have read.
  __device__ __forceinline__ void start() {
    volatile Cursor& cursor = shared_.cursor;
    if (cursor.item >= waves_.items) return;
    const int slot = cursor.slot, phase = cursor.phase, step = cursor.step, m = cursor.m, n = cursor.n;
    const RingSlot<Config::stages> at{slot, phase};
    const int rank = cluster_rank(), k = step * Tile::bk;
    typename Config::Stage& to = shared_.ring[slot];
    uint64_t* full = shared_.barriers.acquire(at);
    shared_.barriers.expect(at, sizeof(to));
    ptx::tensor_load(to.a, &a_, {m, k}, full);
    constexpr uint16_t kBoth = (1 << kCluster) - 1;
    constexpr int kColumns = Tile::bn / kCluster;
    if constexpr (Config::along_b == Along::k) {
      ptx::tensor_load_multicast(to.b + rank * kColumns * Tile::bk, &b_, {n + rank * kColumns, k}, full, kBoth);
    } else {
#pragma unroll
      for (int i = 0; i < kColumns / Config::wn; ++i) {
        const int col = rank * kColumns + i * Config::wn;
        ptx::tensor_load_multicast(to.b + col * Tile::bk, &b_, {k, n + col}, full, kBoth);
      }
    }
    const bool wraps = slot + 1 == Config::stages;
    cursor.slot = wraps ? 0 : slot + 1;
    cursor.phase = wraps ? phase ^ 1 : phase;
    if (step < cursor.last_step) {
      cursor.step = step + 1;
    } else {
      enter(cursor.item + static_cast<int>(gridDim.x) / kCluster);
    }
  }

 private:
  __device__ __forceinline__ void enter(int index) {
    volatile Cursor& cursor = shared_.cursor;
    cursor.item = index;
    if (index >= waves_.items) return;
    const Item item(waves_, p_.k, index);
    const Place<Tile> block(p_.m, p_.n, item.tile, kCluster, cluster_rank());
    cursor.m = static_cast<int>(block.m());
    cursor.n = static_cast<int>(block.n());
    cursor.step = item.first_step;
    cursor.last_step = item.first_step + item.steps - 1;
  }

  typename Config::Shared& shared_;
  const CUtensorMap &a_, &b_;
  const GemmArgs& p_;
  const Waves& waves_;
};

template <class T, class Acc, class Tile>
__device__ __forceinline__ void store_partial(float* tile, const WarpSums<T, Acc, Tile>& warp,
                                              const WarpPlace<Tile>& place) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float* to = tile + (place.m + lane / 4) * Tile::bn + place.n + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < warp.wm / 8; ++i) {
#pragma unroll
    for (int j = 0; j < warp.wn / 8; ++j) {
      *reinterpret_cast<float2*>(to + 8 * i * Tile::bn + 8 * j) = warp.sums[i / 2][j].pair(i % 2);
    }
  }
}

#endif

// Adds up the slices of the cut tiles, in order: four neighbours a thread.
template <class T, class Tile>
__global__ void __launch_bounds__(kSumThreads) sum_last_wave_kernel(const GemmArgs p, const Waves waves) {
  constexpr int kWidth = 4, kPerRow = Tile::bn / kWidth, kRows = kSumThreads / kPerRow;
  constexpr int kParts = Tile::bm / kRows;  // blocks of a tile
  static_assert(kSumThreads % kPerRow == 0 && Tile::bm % kRows == 0, "whole rows");
  const int part = static_cast<int>(blockIdx.x) % kParts, tile = static_cast<int>(blockIdx.x) / kParts;
  const int cut = tile / kCluster, rank = tile % kCluster;
  const int row_in = part * kRows + static_cast<int>(threadIdx.x) / kPerRow;
  const int col_in = static_cast<int>(threadIdx.x) % kPerRow * kWidth;
  const Place<Tile> block(p.m, p.n, waves.whole + cut, kCluster, rank);
  const int64_t row = block.m() + row_in, col = block.n() + col_in;
  if (row >= p.m || col >= p.n) return;

  float sum[kWidth] = {};
#pragma unroll 4
  for (int slice = 0; slice < waves.slices; ++slice) {
    Vec<float, kWidth> values;
    load(values, partial_tile<Tile>(p, cut * waves.slices + slice, rank) + row_in * Tile::bn + col_in);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum[i] += values[i];
  }
  T* d = static_cast<T*>(p.d) + row * p.n + col;
  if (p.n % kWidth == 0 && reinterpret_cast<uintptr_t>(p.d) % (kWidth * sizeof(T)) == 0) {
    Vec<T, kWidth> out;
    finish(out, p, sum, 0, row, col);
    store(d, out);
  } else {
    for (int i = 0; i < kWidth && col + i < p.n; ++i) d[i] = finish<T>(p, sum[i], 0, row, col + i);
  }
}

template <class T, class Acc, class Config>
__global__ void __launch_bounds__(Config::threads, 1)
    matmul_mma_tma_kernel([[maybe_unused]] const __grid_constant__ CUtensorMap map_a,
                          [[maybe_unused]] const __grid_constant__ CUtensorMap map_b, [[maybe_unused]] const GemmArgs p,
                          [[maybe_unused]] const Waves waves) {
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  using Tile = typename Config::Tile;
  using Shared = typename Config::Shared;
  extern __shared__ __align__(1024) uint4 memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  Copies<Config> copies(shared, map_a, map_b, p, waves);
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&map_a);
    ptx::prefetch_tensor_map(&map_b);
    shared.barriers.init(1, Share<Tile>::warps * kCluster);
    ptx::fence_mbarrier_init();
  }
  __syncwarp();
  cluster_sync();
  if (threadIdx.x == 0) copies.start_first(Config::stages - 1);
  __syncwarp();

  const WarpPlace<Tile> warp;
  const StageReader<Config> reader(warp);
  StageConsumer<Config> ring(shared);
  std::conditional_t<std::is_same_v<Acc, float>, TwoSets<Config>, RollingRows<Config>> operands;
  ring.wait();
  operands.first(reader, ring.stage());
  const int clusters = static_cast<int>(gridDim.x) / kCluster;
  for (int index = static_cast<int>(blockIdx.x) / kCluster; index < waves.items; index += clusters) {
    WarpSums<T, Acc, Tile> sums;
#pragma unroll 1
    for (int left = Item(waves, p.k, index).steps; left > 0; --left) {
      const bool more = left > 1 || index + clusters < waves.items;
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        if (step == 1) {
          if (threadIdx.x == 0) copies.start();
          __syncwarp();
        }
        operands.multiply(sums, reader, ring, step, more);
      }
    }
    if (index < waves.whole) {
      const Place<Tile> block(p.m, p.n, index, kCluster, cluster_rank());
      store_staged_as<Config::finish, Config::Patch::rows>(static_cast<T*>(p.d), p, sums, shared.patches, block,
                                                           thread_again());
    } else {
      store_partial(partial_tile<Tile>(p, index - waves.whole, cluster_rank()), sums, warp);
    }
  }
  cluster_sync();  // neither block ends before the other has sent it all
#endif
}

const char* needs_maps(const GemmArgs& p) {
  const bool b_along_k = p.b.order == Order::columns;
  const bool maps = can_map(p.a.data, p.m, p.k, p.a.ld, size_of(p.dtype)) &&
                    can_map(p.b.data, b_along_k ? p.n : p.k, b_along_k ? p.k : p.n, p.b.ld, size_of(p.dtype));
  return maps ? nullptr : "needs sizes of at most 2^31 - 1 and lines of a and b that do not overlap";
}

const char* takes(const GemmArgs& p) {
  if (const char* reason = needs_16_bits(p)) return reason;
  if (const char* reason = needs_result_like_operands(p)) return reason;
  if (const char* reason = needs_one_product(p)) return reason;
  if (has_little_shared_memory(p.sm)) return "needs more than 99 KB of shared memory in a block";
  if (p.a.order != Order::rows) return "needs a row-major";
  if (const char* reason = needs_operand_packs_16(p)) return reason;
  return needs_maps(p);
}

// Whether b is column-major and the clusters are busy for most of the time.
bool suits(const GemmArgs& p) {
  if (p.b.order == Order::rows) return false;
  const int clusters = clusters_of(p);
  const Waves waves = may_cut_waves(p) ? waves_of(pair_tiles(p), p.k, clusters) : uncut_waves(pair_tiles(p), p.k);
  const int tiles = static_cast<int>(pair_tiles(p)), steps = uncut_waves(tiles, p.k).steps;
  const int last = last_wave_steps(tiles % clusters, waves.slices, steps, clusters);
  const int64_t depth = int64_t{tiles / clusters} * p.k + int64_t{last} * kPairStep;
  const double busy = static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
  const double paid = static_cast<double>(depth) * clusters * (kPairTile * kPairTile);
  return waves.items > clusters && p.k >= 512 && busy >= 0.875 * paid;
}

template <class T, class Acc, class Tile, Along along_b, Finish finish>
void launch_tile(const GemmArgs& p, cudaStream_t stream) {
  using Config = TmaConfig<T, Acc, Tile, along_b, finish>;
  static_assert(sizeof(typename Config::Shared) <= kSharedOfSm90, "a block of sm_90 has room for the ring");
  constexpr bool kAlongK = along_b == Along::k;
  const CUtensorMapDataType type = tensor_map_type(p.dtype);
  const CUtensorMap a = tensor_map({.data = p.a.data,
                                    .type = type,
                                    .rows = p.m,
                                    .cols = p.k,
                                    .ld = p.a.ld,
                                    .box_rows = Tile::bm,
                                    .box_cols = Tile::bk});
  const CUtensorMap b = tensor_map({.data = p.b.data,
                                    .type = type,
                                    .rows = kAlongK ? p.n : p.k,
                                    .cols = kAlongK ? p.k : p.n,
                                    .ld = p.b.ld,
                                    .box_rows = kAlongK ? Tile::bn / kCluster : Tile::bk,
                                    .box_cols = kAlongK ? Tile::bk : Config::wn});
  constexpr bool kCuts = kCluster * Tile::bm == kPairTile;  // otherwise there is no room for partial sums
  const int64_t tiles = ceil_div(p.m, kCluster * Tile::bm) * ceil_div(p.n, Tile::bn);
  const int clusters = clusters_of(p);
  const Waves waves = kCuts && may_cut_waves(p) ? waves_of(tiles, p.k, clusters) : uncut_waves(tiles, p.k);
  const LaunchConfig config{.grid = static_cast<unsigned>(std::min(waves.items, clusters) * kCluster),
                            .block = Config::threads,
                            .dynamic_smem = sizeof(typename Config::Shared),
                            .cluster = kCluster};
  warpsmith::launch<&matmul_mma_tma_kernel<T, Acc, Config>>(config, stream, a, b, p, waves);
  if constexpr (kCuts) {
    if (waves.items == waves.whole) return;
    const int cut = (waves.items - waves.whole) / waves.slices * kCluster;
    const LaunchConfig sums{static_cast<unsigned>(cut * (Tile::bm * Tile::bn / 4 / kSumThreads)), kSumThreads};
    warpsmith::launch<&sum_last_wave_kernel<T, Tile>>(sums, stream, p, waves);
  }
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  visit_16_bit_types(p, [&]<class T, class Acc>() {
    using Tile = std::conditional_t<std::is_same_v<Acc, float>, WideTile, SquareTile>;
    const auto launch_finish = [&]<Finish finish>() {
      p.b.order == Order::columns ? launch_tile<T, Acc, Tile, Along::k, finish>(p, stream)
                                  : launch_tile<T, Acc, Tile, Along::mn, finish>(p, stream);
    };
    // Compiled apart, since what finishes a tile takes registers from the main loop.
    needs_product_alone(p) == nullptr ? launch_finish.template operator()<Finish::round>()
                                      : launch_finish.template operator()<Finish::all>();
  });
}

const Register<GemmArgs> registered{"mma_tma", /*min_sm=*/90, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
