// Scaled products of 8-bit matrices by wgmma: the kernel of gemm/wgmma_product.cuh with sums that leave the tensor cores every
// 128 values of k.
//   wgmma adds fp8 products to sums of which it keeps some 14 bits. So a step, a line of 128 values, is multiplied into sums
//   of its own, which threads then add in f32, by scales of blocks where there are any (gemm/wgmma_apart.cuh). Sums of int8
//   are exact, in 32 bits, and stay. Scales of rows and columns multiply what leaves in the end.
#pragma once

#include "gemm/scaled_matmul/wgmma_store.cuh"
#include "gemm/scaled_matmul/wgmma_tiles.h"
#include "gemm/wgmma_apart.cuh"
#include "gemm/wgmma_product.cuh"
#include "host/launch.h"

namespace warpsmith {

// The scales of the product as the instruction sees it.
struct ScaledWork {
  WgmmaWork tiles;
  Scales rows, cols;
  bool blocks;  // scales are of blocks
  bool scales;  // what leaves; otherwise what adds up slices does it
  bool fp8;     // is what leaves
  const float* scale_result;
};

// QA, QB: of the operands as the instruction sees them. `fast`: sums stay in the tensor cores.
template <class QA, class QB, WgmmaTile tile, bool fast_>
struct ScaledConfig : WgmmaConfig<QA, Along::k, Along::k, WgmmaMenuPlan<tile>> {
  using Base = WgmmaConfig<QA, Along::k, Along::k, WgmmaMenuPlan<tile>>;
  using Kind = WgmmaKind<QA, QB>;
  static constexpr bool fast = fast_, swapped = tile.swapped, integers = std::is_same_v<QA, int8_t>;
  static constexpr int threads = (1 + Base::warpgroups) * kWarpgroup;

  struct Result : Base {
    using T = EitherHalf;
    static constexpr int most_steps = 0;
  };
  using Ends = WgmmaFinish<Result>;

  struct Exact : Base {
    using Kind = WgmmaKind<QA, QB, int32_t>;
    using Sums = int32_t[Base::strips][Base::bn / 2];
  };
  using Products = std::conditional_t<integers, Exact, ScaledConfig>;  // as they are multiplied

  struct Shared {
    typename Base::Stage ring[Base::stages];
    typename Ends::Shared staged[Base::warpgroups];
    WgmmaRing<Base::stages> barriers;
  };
  static_assert(Base::bk == kScaleBlock, "a step has one scale of blocks");
  static_assert(sizeof(Shared) <= kSharedOfSm90, "a block of sm_90 has room for the ring");
};

#if WARPSMITH_HAS_WGMMA

// Of a step: what a thread's sums of it are multiplied by before they are added to the others.
template <class Config>
class StepScales {
  static constexpr int kEights = Config::bn / 8;
  static constexpr bool kPerColumn = Config::swapped;  // scales of a, whose rows are columns here
  static constexpr int kCols = kPerColumn ? kEights * 2 : 3;

 public:
  // `step`: along k.
  __device__ __forceinline__ void load(const ScaledWork& work, const GemmArgs& p, const WgmmaPlace& at, int step) {
    const float* rows = work.rows.data + step * work.rows.step_k;
    const float* cols = work.cols.data + step * work.cols.step_k;
#pragma unroll
    for (int i = 0; i < Config::strips; ++i) {
#pragma unroll
      for (int below = 0; below < 2; ++below) {
        const int64_t row = at.m + i * kWgmmaRows + Config::own_row(below);
        rows_[i][below] = row < p.m ? rows[(kPerColumn ? row / kScaleBlock : row) * work.rows.step] : 0.0f;
      }
    }
    if constexpr (kPerColumn) {
#pragma unroll
      for (int j = 0; j < kEights; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int64_t col = at.n + 8 * j + static_cast<int>(threadIdx.x) % 4 * 2 + e;
          cols_[2 * j + e] = col < p.n ? cols[col * work.cols.step] : 0.0f;
        }
      }
    } else {
      // of the first 64 columns, of the next, and of what comes behind
#pragma unroll
      for (int i = 0; i < kCols; ++i) {
        const int64_t col = at.n + 64 * i;
        cols_[i] = 64 * i < Config::bn && col < p.n ? cols[col / kScaleBlock * work.cols.step] : 0.0f;
      }
    }
  }

  __device__ __forceinline__ void add(typename Config::Sums& to, const typename Config::Sums& sums) const {
#pragma unroll
    for (int i = 0; i < Config::strips; ++i) {
#pragma unroll
      for (int e = 0; e < Config::bn / 2; ++e) {
        const int below = e / 2 % 2, j = e / 4;
        const float col = cols_[kPerColumn ? 2 * j + e % 2 : j / 8];
        to[i][e] = fmaf(sums[i][e], rows_[i][below] * col, to[i][e]);
      }
    }
  }

 private:
  float rows_[Config::strips][2], cols_[kCols];
};

// By scales of rows and columns.
template <class Config>
__device__ __forceinline__ void scale_sums(typename Config::Sums& sums, const ScaledWork& work, const GemmArgs& p,
                                           const WgmmaPlace& at) {
  float rows[Config::strips][2];
#pragma unroll
  for (int i = 0; i < 2 * Config::strips; ++i) {
    const int64_t row = at.m + i / 2 * kWgmmaRows + Config::own_row(i % 2);
    rows[i / 2][i % 2] = row < p.m ? work.rows.data[row * work.rows.step] : 0.0f;
  }
#pragma unroll
  for (int j = 0; j < Config::bn / 8; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int64_t col = at.n + 8 * j + static_cast<int>(threadIdx.x) % 4 * 2 + e;
      const float scale = col < p.n ? work.cols.data[col * work.cols.step] : 0.0f;
#pragma unroll
      for (int i = 0; i < 2 * Config::strips; ++i) {
        sums[i / 2][4 * j + 2 * (i % 2) + e] *= rows[i / 2][i % 2] * scale;
      }
    }
  }
}

#endif

template <class Config>
__global__ void __launch_bounds__(Config::threads, 1)
    scaled_matmul_wgmma_kernel([[maybe_unused]] const __grid_constant__ CUtensorMap a,
                               [[maybe_unused]] const __grid_constant__ CUtensorMap b,
                               [[maybe_unused]] const __grid_constant__ CUtensorMap d,
                               [[maybe_unused]] const __grid_constant__ GemmArgs p,
                               [[maybe_unused]] const __grid_constant__ ScaledWork work) {
#if WARPSMITH_HAS_WGMMA
  extern __shared__ __align__(1024) uint4 memory[];
  auto& shared = *reinterpret_cast<typename Config::Shared*>(memory);
  const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup - 1;  // of those that multiply
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&a);
    ptx::prefetch_tensor_map(&b);
    if (work.tiles.leaving == Leaving::boxes) ptx::prefetch_tensor_map(&d);
    shared.barriers.init(1, Config::warpgroups * (kWarpgroup / kWarp) * Config::cluster);
    ptx::fence_mbarrier_init();
  }
  if constexpr (Config::cluster == 1) {
    __syncthreads();
  } else {
    __syncwarp();
    cluster_sync();
  }
  start_early();
  RingSlot<Config::stages> at;
  if (warpgroup < 0) {
    ptx::lower_registers<Config::Plan::copier_registers>();
    if (threadIdx.x / kWarp == 0 && ptx::elect_lane()) {
      for_each_item<Config>(work.tiles, 1, [&](const WgmmaItem& item) {
#pragma unroll 1
        for (int step = 0; step < item.steps; ++step, at.advance()) {
          uint64_t* full = shared.barriers.acquire(at);
          auto& to = shared.ring[at.slot];
          const int k = (item.first + step) * Config::bk;
          ptx::mbarrier_arrive_expect(full, sizeof(to));
          copy_operand<typename Config::A, 1, 3>(to.a, a, item.at.m, k, full);
          copy_operand<typename Config::B, Config::cluster, 3>(to.b, b, item.at.n, k, full);
        }
      });
    }
    __syncwarp();
  } else {
    ptx::raise_registers<Config::Plan::multiplier_registers>();
    const WgmmaReader<typename Config::Products> reader(shared.ring, warpgroup);
    typename Config::Ends ends(shared.staged[warpgroup]);
    for_each_item<Config>(work.tiles, 1, [&](const WgmmaItem& item) {
      WgmmaPlace place = item.at;
      place.m += warpgroup * Config::rows;
      typename Config::Sums sums;
      if constexpr (Config::integers) {
        typename Config::Products::Sums exact;
        multiply_steps<typename Config::Products>(exact, reader, shared.barriers, at, item.steps, [] {});
#pragma unroll
        for (int i = 0; i < Config::strips; ++i) {
#pragma unroll
          for (int e = 0; e < Config::bn / 2; ++e) sums[i][e] = static_cast<float>(exact[i][e]);
        }
      } else if constexpr (Config::fast) {
        multiply_steps<Config>(sums, reader, shared.barriers, at, item.steps, [] {});
      } else {
        using Scales = StepScales<Config>;
        clear_sums<Config>(sums);
        multiply_apart<Config, Scales>(
            reader, shared.barriers, at, item.steps,
            [&](Scales& scales, int step, const auto& stage) {
              if (work.blocks) scales.load(work, p, place, item.first + step);
              shared.barriers.wait_unread(stage);
            },
            [&](const typename Config::Sums& own, const Scales& scales) {
              work.blocks ? scales.add(sums, own) : add_sums<Config>(sums, own);
            });
      }
      if (work.scales) scale_sums<Config>(sums, work, p, place);
      if (work.fp8) {
        store_fp8<Config>(sums, p, scale_of_result(work.scale_result), place);
      } else {
        ends.store(sums, p, work.tiles.finish, work.tiles.leaving, d, place);
      }
    });
    ends.finish();
  }
  if constexpr (Config::cluster > 1) cluster_sync();  // neither block ends before the other has sent it all
#endif
}

template <class Config>
void launch_scaled_kernel(const ScaledMatmulArgs& p, const WgmmaChoice& choice, cudaStream_t stream) {
  constexpr WgmmaTile kAsSeen{
      .bm = Config::bm, .bn = Config::bn, .cluster = 1, .turns = false, .swapped = Config::swapped};
  const bool whole = choice.slices == 1, boxed = whole && size_of(p.out) == 2, blocks = p.blocks;
  const bool by_map = boxed && p.n * 2 % 16 == 0 && reinterpret_cast<uintptr_t>(p.d) % 16 == 0;
  GemmArgs seen = seen_by(kAsSeen, product_of(p));
  seen.dtype = p.out;
  if (whole) seen.workspace = p.d;  // f32 results leave as sums of slices do
  ScaledWork work{.tiles = {.down = static_cast<int>(ceil_div(seen.m, Config::cluster * Config::bm)),
                            .across = static_cast<int>(ceil_div(seen.n, Config::bn)),
                            .group = choice.group / Config::cluster,
                            .steps = static_cast<int>(ceil_div(p.k, Config::bk)),
                            .depth = static_cast<int>(choice.depth),
                            .finish = boxed ? Finish::round : Finish::partial,
                            .leaving = by_map  ? Leaving::boxes
                                       : boxed ? Leaving::lines
                                               : Leaving::pairs},
                  .rows = Config::swapped ? p.scale_b : p.scale_a,
                  .cols = Config::swapped ? p.scale_a : p.scale_b,
                  .blocks = blocks,
                  .scales = whole && !blocks,
                  .fp8 = whole && is_fp8(p.out),
                  .scale_result = p.scale_result};
  work.tiles.items = work.tiles.down * work.tiles.across * choice.slices;
  const int most = std::max(1, p.sm_count / Config::cluster);
  const LaunchConfig config{.grid = static_cast<unsigned>(std::min(most, work.tiles.items) * Config::cluster),
                            .block = Config::threads,
                            .dynamic_smem = static_cast<int>(sizeof(typename Config::Shared)),
                            .cluster = Config::cluster,
                            .early = true};
  const CUtensorMapDataType type = tensor_map_type(p.dtype);  // bytes, for either format
  const CUtensorMap a = tensor_map(map_of_operand<typename Config::A, 1>(seen.a, type, 1, seen.m, p.k)),
                    b = tensor_map(map_of_operand<typename Config::B, Config::cluster>(seen.b, type, 1, seen.n, p.k)),
                    d = by_map ? Config::Ends::map(seen) : a;  // or not read
  warpsmith::launch<&scaled_matmul_wgmma_kernel<Config>>(config, stream, a, b, d, seen, work);
}

template <WgmmaTile tile>
void launch_scaled_tile(const ScaledMatmulArgs& p, const WgmmaChoice& choice, cudaStream_t stream) {
  constexpr bool kWide = tile.bn > 192;  // leaves no registers for a second set of sums
  dispatch_formats(p, [&]<class QA, class QB>() {
    using Rows = std::conditional_t<tile.swapped, QB, QA>;
    using Cols = std::conditional_t<tile.swapped, QA, QB>;
    if constexpr (!tile.swapped) {
      // Few rows wait for memory, not for additions.
      if (p.fast_accum && !p.blocks) {
        return launch_scaled_kernel<ScaledConfig<Rows, Cols, tile, true>>(p, choice, stream);
      }
    }
    if constexpr (kWide) {
      broken_promise("a tile for sums that stay in the tensor cores");
    } else {
      launch_scaled_kernel<ScaledConfig<Rows, Cols, tile, false>>(p, choice, stream);
    }
  });
}

}  // namespace warpsmith
