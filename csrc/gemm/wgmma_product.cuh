// Products by wgmma as a user needs them: any layout, epilogue and batch, slices of k, a tile of the menu (wgmma_plan.h).
//   The kernel is that of wgmma_roles.cuh: blocks that stay, a warpgroup that copies, one or two that multiply. An item is
//   a tile of one product of the batch and one slice of k. Maps have three dimensions, of which the first counts products;
//   an operand that the batch shares has one.
#pragma once

#include <utility>

#include "device/start_early.h"
#include "gemm/wgmma.h"
#include "gemm/wgmma_finish.cuh"
#include "gemm/wgmma_registers.cuh"
#include "gemm/wgmma_roles.cuh"
#include "gemm/wgmma_tiles.h"
#include "host/launch.h"
#include "host/min_max.h"

namespace warpsmith {

// What a block does, beside the product itself.
struct WgmmaWork {
  int down, across, group;  // tiles of a cluster, and their order (device/block_order.h)
  int items;                // for clusters
  int steps, depth;         // along k: all, and of a slice
  int next_a, next_b;       // in the maps, from one product to the next: 0 where the batch shares the operand
  Finish finish;
  Leaving leaving;
};

template <WgmmaTile tile>
struct WgmmaMenuPlan : std::conditional_t<tile.bm == kWgmmaRows, OneMultiplies, TwoMultiply> {
  static constexpr int bm = tile.bm, bn = tile.bn, cluster = tile.cluster;
  static constexpr bool turns = tile.turns, swapped = tile.swapped, stays = true;
  // As many as there is room for beside boxes and barriers.
  static constexpr int kRoom = kSharedOfSm90 - 2048 - (swapped && bn < 64 ? 4 * bn : 256) * 128;
  static constexpr int stages = std::min(12, kRoom / ((bm + bn) * 128));
};

template <class T, Along a, Along b, WgmmaTile tile>
struct WgmmaProductConfig : WgmmaConfig<T, a, b, WgmmaMenuPlan<tile>> {
  using Base = WgmmaConfig<T, a, b, WgmmaMenuPlan<tile>>;
  static constexpr int threads = (1 + Base::warpgroups) * kWarpgroup;
  // That are added up on tensor cores before the sums are joined to others, which of TF32 they would truncate too often:
  // gemm/matmul_tf32/matmul_tf32.h. 0: all.
  static constexpr int most_steps = sizeof(T) == 4 ? 4096 / Base::bk : 0;
  using Ends = WgmmaFinish<WgmmaProductConfig>;

  struct Shared {
    typename Base::Stage ring[Base::stages];
    typename Ends::Shared staged[Base::warpgroups];
    WgmmaRing<Base::stages> barriers;
  };
  static_assert(sizeof(Shared) <= kSharedOfSm90, "a block of sm_90 has room for the ring");
};

#if WARPSMITH_HAS_WGMMA

struct WgmmaItem {
  WgmmaPlace at;
  int first, steps;  // of k
};

// Calls body(item) for the items of this block.
template <class Config, class Body>
__device__ __forceinline__ void for_each_item(const WgmmaWork& work, int batch, Body&& body) {
  const int rank = Config::cluster == 1 ? 0 : cluster_rank(), tiles = work.down * work.across;
  const int clusters = static_cast<int>(gridDim.x) / Config::cluster;
#pragma unroll 1
  for (int index = static_cast<int>(blockIdx.x) / Config::cluster; index < work.items; index += clusters) {
    const int product = index / tiles, slice = product / batch;
    const TileCoord tile = grouped_tile(index % tiles, work.down, work.across, work.group);
    WgmmaItem item;
    item.at = {(static_cast<int>(tile.m) * Config::cluster + rank) * Config::bm, static_cast<int>(tile.n) * Config::bn,
               product % batch, slice};
    item.first = slice * work.depth;
    item.steps = min(work.depth, work.steps - item.first);
    body(item);
  }
}

#endif

template <class Config>
__global__ void __launch_bounds__(Config::threads, 1)
    matmul_wgmma_kernel([[maybe_unused]] const __grid_constant__ CUtensorMap a,
                        [[maybe_unused]] const __grid_constant__ CUtensorMap b,
                        [[maybe_unused]] const __grid_constant__ CUtensorMap d,
                        [[maybe_unused]] const __grid_constant__ GemmArgs p, [[maybe_unused]] const WgmmaWork work) {
#if WARPSMITH_HAS_WGMMA
  extern __shared__ __align__(1024) uint4 memory[];
  auto& shared = *reinterpret_cast<typename Config::Shared*>(memory);
  const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup - 1;  // of those that multiply
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&a);
    ptx::prefetch_tensor_map(&b);
    if (work.leaving == Leaving::boxes) ptx::prefetch_tensor_map(&d);
    constexpr int kReaders = (Config::turns ? 1 : Config::warpgroups) * (kWarpgroup / kWarp);
    shared.barriers.init(1, kReaders * Config::cluster);
    ptx::fence_mbarrier_init();
  }
  if constexpr (Config::cluster == 1) {
    __syncthreads();
  } else {
    __syncwarp();
    cluster_sync();
  }
  start_early();
  const int batch = static_cast<int>(p.batch);
  RingSlot<Config::stages> at;
  if (warpgroup < 0) {
    ptx::lower_registers<Config::Plan::copier_registers>();
    if (threadIdx.x / kWarp == 0 && ptx::elect_lane()) {
      for_each_item<Config>(work, batch, [&](const WgmmaItem& item) {
        const int of_a = item.at.product * work.next_a, of_b = item.at.product * work.next_b;
#pragma unroll 1
        for (int step = 0; step < item.steps; ++step, at.advance()) {
          uint64_t* full = shared.barriers.acquire(at);
          auto& to = shared.ring[at.slot];
          const int k = (item.first + step) * Config::bk;
          ptx::mbarrier_arrive_expect(full, sizeof(to));
          copy_operand<typename Config::A, 1, 3>(to.a, a, item.at.m, k, full, of_a);
          copy_operand<typename Config::B, Config::cluster, 3>(to.b, b, item.at.n, k, full, of_b);
        }
      });
    }
    __syncwarp();
  } else {
    ptx::raise_registers<Config::Plan::multiplier_registers>();
    const int share = Config::turns ? 0 : warpgroup;  // of the rows
    const WgmmaReader<Config> reader(shared.ring, share);
    typename Config::Ends ends(shared.staged[warpgroup]);
    int turn = 0;
    if constexpr (Config::turns) Turns::begin(warpgroup);
    for_each_item<Config>(work, batch, [&](const WgmmaItem& item) {
      if constexpr (Config::turns) {
        const bool mine = turn == warpgroup;
        turn ^= 1;
        if (!mine) return skip(at, item.steps);
        Turns::wait(warpgroup);
      }
      WgmmaPlace place = item.at;
      place.m += share * Config::rows;
      int left = item.steps;
      do {
        const int steps = Config::most_steps > 0 ? min(left, Config::most_steps) : left;
        const bool adds = left < item.steps;
        left -= steps;
        const auto issued = [&] {
          if constexpr (Config::turns) {
            if (left == 0) Turns::pass(warpgroup);
          }
          ends.begin(p, work.finish, place);
        };
        typename Config::Sums sums;
        if constexpr (Config::a_in_registers) {
          multiply_steps_by_registers<Config>(sums, shared.ring, reader, shared.barriers, share, at, steps, issued);
        } else {
          multiply_steps<Config>(sums, reader, shared.barriers, at, steps, issued);
        }
        ends.store(sums, p, work.finish, work.leaving, d, place, adds);
      } while (Config::most_steps > 0 && left > 0);
    });
    ends.finish();
  }
  if constexpr (Config::cluster > 1) cluster_sync();  // neither block ends before the other has sent it all
#endif
}

// The product as the instruction sees it: d^T = b^T a^T where the tile is a swapped one.
inline GemmArgs seen_by(const WgmmaTile& tile, const GemmArgs& p) {
  if (!tile.swapped) return p;
  const auto turned = [](Matrix x) {
    x.order = x.order == Order::rows ? Order::columns : Order::rows;
    return x;
  };
  GemmArgs seen = p;
  seen.a = turned(p.b);
  seen.b = turned(p.a);
  std::swap(seen.m, seen.n);
  std::swap(seen.c.row, seen.c.col);
  return seen;
}

// Of [products, lines, values], in boxes of lines of 128 bytes; one product where the batch shares it.
template <class Operand, int cluster>
MappedTensor map_of_operand(const Matrix& x, CUtensorMapDataType type, int64_t batch, int64_t mn, int64_t k) {
  const int64_t lines = Operand::along_k ? mn : k, values = Operand::along_k ? k : mn;
  return {.data = x.data,
          .type = type,
          .rank = 3,
          .sizes = {x.batch == 0 ? 1 : batch, lines, values},
          .strides = {x.batch, x.ld},
          .box = {1, OperandShare<Operand, cluster>::lines, Operand::values_of_line}};
}

// `p`: as the instruction sees it.
template <class Config>
void launch_wgmma_kernel(const GemmArgs& p, const WgmmaChoice& choice, cudaStream_t stream) {
  const int64_t row = Config::Plan::swapped ? p.m : p.n;  // of d
  const bool boxed = sizeof(typename Config::T) == 2 && choice.slices == 1 && !p.wide;
  const bool by_map = boxed && row * size_of(p.dtype) % 16 == 0 && reinterpret_cast<uintptr_t>(p.d) % 16 == 0;
  WgmmaWork work{.down = static_cast<int>(ceil_div(p.m, Config::cluster * Config::bm)),
                 .across = static_cast<int>(ceil_div(p.n, Config::bn)),
                 .group = choice.group / Config::cluster,
                 .steps = static_cast<int>(ceil_div(p.k, Config::bk)),
                 .depth = static_cast<int>(choice.depth),
                 .next_a = p.a.batch != 0,
                 .next_b = p.b.batch != 0,
                 .finish = choice.slices > 1 || p.wide         ? Finish::partial
                           : needs_product_alone(p) == nullptr ? Finish::round
                                                               : Finish::all,
                 .leaving = by_map  ? Leaving::boxes
                            : boxed ? Leaving::lines
                                    : Leaving::pairs};
  work.items = work.down * work.across * static_cast<int>(p.batch) * choice.slices;
  const int most = std::max(1, p.sm_count / Config::cluster);
  const LaunchConfig config{.grid = static_cast<unsigned>(std::min(most, work.items) * Config::cluster),
                            .block = Config::threads,
                            .dynamic_smem = static_cast<int>(sizeof(typename Config::Shared)),
                            .cluster = Config::cluster,
                            .early = true};
  // f32 arrives rounded to TF32.
  const CUtensorMapDataType type =
      sizeof(typename Config::T) == 4 ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 : tensor_map_type(p.dtype);
  const CUtensorMap a = tensor_map(map_of_operand<typename Config::A, 1>(p.a, type, p.batch, p.m, p.k)),
                    b = tensor_map(map_of_operand<typename Config::B, Config::cluster>(p.b, type, p.batch, p.n, p.k)),
                    d = by_map ? Config::Ends::map(p) : a;  // or not read
  warpsmith::launch<&matmul_wgmma_kernel<Config>>(config, stream, a, b, d, p, work);
}

template <WgmmaTile tile>
void launch_wgmma_tile(const GemmArgs& p, const WgmmaChoice& choice, cudaStream_t stream) {
  constexpr bool kSwapped = tile.swapped;
  const GemmArgs seen = seen_by(tile, with_wide_sums(p, choice.slices));
  const auto of_type = [&]<class T>() {
    dispatch_layout(seen, [&]<Along a, Along b>() {
      // Lines of few columns along k alone: shorter ones would need another swizzle.
      if constexpr (!kSwapped || b == Along::k) {
        launch_wgmma_kernel<WgmmaProductConfig<T, a, b, tile>>(seen, choice, stream);
      } else {
        broken_promise("a tile of swapped operands needs a row-major");
      }
    });
  };
  p.dtype == Dtype::f16 ? of_type.template operator()<f16>() : of_type.template operator()<bf16>();
}

}  // namespace warpsmith
