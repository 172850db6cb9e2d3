// Products of layers by wgmma: the kernel of gemm/wgmma_product.cuh with ends of its own.
//   A gate's tile has half its columns of one weight and half the same columns of the other: what lies in shared memory is one
//   operand, of which two maps bring a half each, and a thread gets the sums of both.
#pragma once

#include "gemm/fused_linear/sum_slices.h"
#include "gemm/fused_linear/wgmma.h"
#include "gemm/fused_linear/wgmma_ends.cuh"
#include "gemm/fused_linear/wgmma_row_sums.cuh"
#include "gemm/wgmma_product.cuh"
#include "host/launch.h"
#include "host/min_max.h"

namespace warpsmith {

template <class T, Along a, Along b, WgmmaTile tile, Ends ends>
struct FusedConfig : WgmmaConfig<T, a, b, WgmmaMenuPlan<tile>> {
  using Base = WgmmaConfig<T, a, b, WgmmaMenuPlan<tile>>;
  static constexpr int threads = (1 + Base::warpgroups) * kWarpgroup;
  static constexpr int weights = ends == Ends::gate ? 2 : 1, cols = Base::bn / weights;  // columns of the product
  using Weight = WgmmaOperand<Base::b_major, cols, Base::bk, sizeof(T)>;                 // a weight's part of b
  using Result = FusedEnds<FusedConfig, ends>;
  static_assert(weights * Weight::bytes == Base::B::bytes, "halves of b");

  struct Shared {
    typename Base::Stage ring[Base::stages];
    typename Result::Shared staged[Base::warpgroups];
    WgmmaRing<Base::stages> barriers;
  };
  static_assert(sizeof(Shared) <= kSharedOfSm90, "a block of sm_90 has room for the ring");
};

template <class Config>
__global__ void __launch_bounds__(Config::threads, 1)
    fused_linear_wgmma_kernel([[maybe_unused]] const __grid_constant__ FusedMaps maps,
                              [[maybe_unused]] const __grid_constant__ FusedArgs p,
                              [[maybe_unused]] const WgmmaWork work) {
#if WARPSMITH_HAS_WGMMA
  extern __shared__ __align__(1024) uint4 memory[];
  auto& shared = *reinterpret_cast<typename Config::Shared*>(memory);
  const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup - 1;  // of those that multiply
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&maps.x);
    ptx::prefetch_tensor_map(&maps.w);
    if constexpr (Config::weights == 2) ptx::prefetch_tensor_map(&maps.up);
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
  RingSlot<Config::stages> at;
  if (warpgroup < 0) {
    ptx::lower_registers<Config::Plan::copier_registers>();
    if (threadIdx.x / kWarp == 0 && ptx::elect_lane()) {
      for_each_item<Config>(work, 1, [&](const WgmmaItem& item) {
        const int col = item.at.n / Config::weights;
#pragma unroll 1
        for (int step = 0; step < item.steps; ++step, at.advance()) {
          uint64_t* full = shared.barriers.acquire(at);
          auto& to = shared.ring[at.slot];
          const int k = (item.first + step) * Config::bk;
          ptx::mbarrier_arrive_expect(full, sizeof(to));
          copy_operand<typename Config::A, 1>(to.a, maps.x, item.at.m, k, full);
          copy_operand<typename Config::Weight, Config::cluster>(to.b, maps.w, col, k, full);
          if constexpr (Config::weights == 2) {
            copy_operand<typename Config::Weight, Config::cluster>(to.b + Config::Weight::bytes, maps.up, col, k, full);
          }
        }
      });
    }
    __syncwarp();
  } else {
    ptx::raise_registers<Config::Plan::multiplier_registers>();
    const int share = Config::turns ? 0 : warpgroup;  // of the rows
    const WgmmaReader<Config> reader(shared.ring, share);
    typename Config::Result result(shared.staged[warpgroup]);
    int turn = 0;
    if constexpr (Config::turns) Turns::begin(warpgroup);
    for_each_item<Config>(work, 1, [&](const WgmmaItem& item) {
      if constexpr (Config::turns) {
        const bool mine = turn == warpgroup;
        turn ^= 1;
        if (!mine) return skip(at, item.steps);
      }
      WgmmaPlace place = item.at;
      place.m += share * Config::rows;
      place.n /= Config::weights;
      const auto biases = result.read_biases(p, place);
      if constexpr (Config::turns) Turns::wait(warpgroup);
      typename Config::Sums sums;
      const auto issued = [&] {
        if constexpr (Config::turns) Turns::pass(warpgroup);
      };
      if (Config::Result::kRowSums && item.at.n == 0) {
        if constexpr (Config::Result::kRowSums) {
          using With = WithRowSums<Config>;
          typename With::Sums all;
          const WgmmaReader<With> with_rows(shared.ring, share, shared.staged[warpgroup].more);
          multiply_steps<With>(all, with_rows, shared.barriers, at, item.steps, issued);
#pragma unroll
          for (int i = 0; i < Config::strips; ++i) {
#pragma unroll
            for (int j = 0; j < With::product; ++j) sums[i][j] = all[i][j];
            result.leave_rows(&all[i][With::product], p, place, i, work.finish == Finish::partial);
          }
        }
      } else {
        multiply_steps<Config>(sums, reader, shared.barriers, at, item.steps, issued);
      }
      result.store(sums, p, maps, place, work.finish == Finish::partial, biases);
    });
    result.finish();
  }
  if constexpr (Config::cluster > 1) cluster_sync();  // neither block ends before the other has sent it all
#endif
}

// --- the host ---------------------------------------------------------------------------------------------------

// Of a result of 16 bits, [rows, cols].
inline CUtensorMap map_of_result(void* data, Dtype dtype, int64_t rows, int64_t cols) {
  return tensor_map(MappedMatrix{.data = data,
                                 .type = tensor_map_type(dtype),
                                 .rows = rows,
                                 .cols = cols,
                                 .ld = cols,
                                 .box_rows = kWgmmaRows,
                                 .box_cols = 64});
}

// Of q, k or v: of all rows, or of the rows of each head.
inline CUtensorMap map_of_heads(const FusedArgs& p, int part) {
  const HeadResults& to = p.heads;
  const int64_t count = to.heads[part], sequences = p.m / to.rows;
  MappedTensor map{.data = to.data[part], .type = tensor_map_type(p.dtype), .rank = 3, .box = {1, kWgmmaRows, 64}};
  if (to.heads_first) {
    map.sizes = {sequences * count, to.rows, to.size};
    map.strides = {to.rows * to.size, to.size};
  } else {
    map.sizes = {1, p.m, count * to.size};
    map.strides = {0, count * to.size};
  }
  return tensor_map(map);
}

template <class Config, Ends ends>
void launch_fused_kernel(const FusedArgs& p, const WgmmaChoice& choice, cudaStream_t stream) {
  WgmmaWork work{};
  work.down = static_cast<int>(ceil_div(p.m, Config::cluster * Config::bm));
  work.across = static_cast<int>(ceil_div(p.n, Config::cols));
  work.group = choice.group / Config::cluster;
  work.steps = static_cast<int>(ceil_div(p.k, Config::bk));
  work.depth = static_cast<int>(choice.depth);
  work.items = work.down * work.across * choice.slices;
  work.finish = choice.slices > 1 ? Finish::partial : Finish::all;
  const int most = std::max(1, p.sm_count / Config::cluster);
  const LaunchConfig config{.grid = static_cast<unsigned>(std::min(most, work.items) * Config::cluster),
                            .block = Config::threads,
                            .dynamic_smem = static_cast<int>(sizeof(typename Config::Shared)),
                            .cluster = Config::cluster,
                            .early = true};
  const auto map_of_weight = [&](const Matrix& w) {
    return tensor_map(map_operand<typename Config::Weight, Config::cluster>(w, p.dtype, p.n, p.k));
  };
  FusedMaps maps;
  maps.x = tensor_map(map_operand<typename Config::A, 1>(p.a, p.dtype, p.m, p.k));
  maps.w = map_of_weight(p.b);
  maps.up = ends == Ends::gate ? map_of_weight(p.up) : maps.w;
  for (CUtensorMap& map : maps.results) map = maps.x;  // those that are not used
  if constexpr (ends == Ends::heads) {
    for (int part = 0; part < 3; ++part) maps.results[part] = map_of_heads(p, part);
  } else if constexpr (ends != Ends::add) {
    void* const to[] = {p.d, p.before, p.before_up};
    for (int i = 0; i < 3; ++i) {
      if (to[i] != nullptr) maps.results[i] = map_of_result(to[i], p.dtype, p.m, p.n);
    }
  }
  warpsmith::launch<&fused_linear_wgmma_kernel<Config>>(config, stream, maps, p, work);
}

template <WgmmaTile tile>
void launch_fused_wgmma(const FusedArgs& p, const WgmmaChoice& choice, cudaStream_t stream) {
  const auto of_type = [&]<class T>() {
    const auto of_layer = [&]<Ends ends>() {
      if constexpr (fits_ends(tile, ends)) {
        p.b.order == Order::columns
            ? launch_fused_kernel<FusedConfig<T, Along::k, Along::k, tile, ends>, ends>(p, choice, stream)
            : launch_fused_kernel<FusedConfig<T, Along::k, Along::mn, tile, ends>, ends>(p, choice, stream);
      } else {
        broken_promise("a tile that these ends have");
      }
    };
    const auto of_gradients = [&]<Ends ends>() {
      launch_fused_kernel<FusedConfig<T, Along::mn, Along::mn, tile, ends>, ends>(p, choice, stream);
    };
    switch (p.ends) {
      case Ends::epilogue:
        return of_layer.template operator()<Ends::epilogue>();
      case Ends::gate:
        return of_layer.template operator()<Ends::gate>();
      case Ends::heads:
        return of_layer.template operator()<Ends::heads>();
      case Ends::add:
        return of_gradients.template operator()<Ends::add>();
      case Ends::gradient:
        return of_gradients.template operator()<Ends::gradient>();
    }
  };
  p.dtype == Dtype::f16 ? of_type.template operator()<f16>() : of_type.template operator()<bf16>();
}

}  // namespace warpsmith
