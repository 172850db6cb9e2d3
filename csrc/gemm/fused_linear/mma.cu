// Products of layers with what follows them, by mma.sync.
//   Against `naive`: the main loop of matmul's `mma_peak` (gemm/mma_tile.cuh), with fewer tiles. Sums pass through a patch of
//   shared memory of their warp, from which a lane takes eight neighbours, does what there is to do, and stores 16 bytes.
//   Gradients of biases are sums of fragments, which the warps of a tile's first columns add up as they multiply them.
//   Tiles of gates have eight columns of one weight beside the same eight of the other (paired_copy.cuh).
//   Occupancy: as in matmul/mma_peak.cu.
//   Bound: the tensor cores as mma.sync reaches them.
#include "gemm/fused_linear/ends.cuh"
#include "gemm/fused_linear/paired_copy.cuh"
#include "gemm/fused_linear/sum_slices.h"
#include "gemm/mma_tile.cuh"
#include "gemm/split.cuh"
#include "gemm/tensor_core.h"
#include "host/registry.h"
#include "tile/thread_again.cuh"

namespace warpsmith {
namespace {

// A tile as the product's columns count, of which a gate has half as many.
template <class Tile, Ends ends>
struct Seen : Tile {
  static constexpr int bn = ends == Ends::gate ? Tile::bn / 2 : Tile::bn;
};

// Calls body(row, col, values) for the warp's sums, `width` neighbours of a row at a time; counted in the warp's share.
template <int width, class T, class Tile, class Body>
__device__ __forceinline__ void for_each_run(const WarpSums<T, float, Tile>& warp, void* patches, Body&& body) {
  using Patch = StorePatch<Tile>;
  constexpr int kAcross = Patch::wn / width, kRowsAtOnce = kWarp / kAcross;
  const int thread = thread_again(), lane = thread % kWarp, col = lane % kAcross * width;
  auto* patch = reinterpret_cast<float*>(static_cast<char*>(patches) + thread / kWarp * Patch::bytes);
#pragma unroll
  for (int pass = 0; pass < Patch::wm / Patch::rows; ++pass) {
    __syncwarp();  // the pass before has been read
#pragma unroll
    for (int line = 0; line < Patch::rows; line += 8) {
#pragma unroll
      for (int j = 0; j < Patch::wn / 8; ++j) {
        const int from = pass * Patch::rows + line;
        const float2 pair = warp.sums[from / 16][j].pair(from / 8 % 2);
        *reinterpret_cast<float2*>(patch + (line + lane / 4) * Patch::stride + 8 * j + lane % 4 * 2) = pair;
      }
    }
    __syncwarp();
#pragma unroll 1
    for (int row = lane / kAcross; row < Patch::rows; row += kRowsAtOnce) {
      float values[width];
#pragma unroll
      for (int i = 0; i < width; i += 4) {
        Vec<float, 4> four;
        load(four, patch + row * Patch::stride + col + i);
#pragma unroll
        for (int j = 0; j < 4; ++j) values[i + j] = four[j];
      }
      body(pass * Patch::rows + row, col, values);
    }
  }
}

// Those of the product and, where the warp counts them, those of the rows of x: of two rows of each fragment, whose values
// four lanes share.
template <class T, class Tile>
struct GradientSums : WarpSums<T, float, Tile> {
  using Base = WarpSums<T, float, Tile>;
  bool counts = false;
  float rows[Base::wm / 16][2] = {};

  __device__ __forceinline__ void add(const Fragments<Base::wm, Base::wn>& x) {
    Base::add(x);
    if (!counts) return;
#pragma unroll
    for (int i = 0; i < Base::wm / 16; ++i) {
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        const auto& pair = reinterpret_cast<const Vec<T, 2>&>(x.a[i][word]);
        rows[i][word % 2] += to_float(pair[0]) + to_float(pair[1]);
      }
    }
  }

  // `first`: the warp's first row.
  __device__ __forceinline__ void leave_rows(const FusedArgs& p, int64_t first, bool partial) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int i = 0; i < Base::wm / 16; ++i) {
#pragma unroll
      for (int below = 0; below < 2; ++below) {
        const float sum = warp_reduce<4>(rows[i][below], Sum{});
        const int64_t row = first + 16 * i + 8 * below + lane / 4;
        if (lane % 4 != 0 || row >= p.m) continue;
        if (partial) {
          p.partial_rows[blockIdx.y * p.m + row] = sum;
        } else {
          leave_row_sum<T>(p, row, sum);
        }
      }
    }
  }
};

template <class T, class Config, Ends ends>
__global__ void __launch_bounds__(Config::threads, Config::Tile::blocks)
    fused_linear_mma_kernel(const __grid_constant__ FusedArgs p, const Split split) {
  if constexpr (kMayRun<typename Config::Tile>) {
    using Tile = typename Config::Tile;
    constexpr bool kGate = ends == Ends::gate;
    extern __shared__ __align__(128) uint4 ring[];
    const Place<Seen<Tile, ends>> block(p.m, p.n);
    const WarpPlace<Tile> warp;
    const int64_t first_k = blockIdx.y * split.depth, depth = min(p.k - first_k, split.depth);

    std::conditional_t<ends == Ends::gradient, GradientSums<T, Tile>, WarpSums<T, float, Tile>> sums;
    if constexpr (ends == Ends::gradient) sums.counts = block.n() == 0 && warp.n == 0;
    TileCopy<T, typename Config::TileA, Config::threads> copy_a(p.a, 0, p.m, block.m(), first_k);
    if constexpr (kGate) {
      PairedCopy<T, typename Config::TileB, Config::threads> copy_b(p.b, p.up, p.n, block.n(), first_k);
      multiply_copies<Config, T>(sums, ring, copy_a, copy_b, depth, warp);
    } else {
      TileCopy<T, typename Config::TileB, Config::threads> copy_b(p.b, 0, p.n, block.n(), first_k);
      multiply_copies<Config, T>(sums, ring, copy_a, copy_b, depth, warp);
    }

    constexpr int kWidth = kGate ? 16 : 8;
    const WarpPlace<Tile> share(thread_again());
    if constexpr (ends == Ends::gradient) {
      if (sums.counts) sums.leave_rows(p, block.m() + share.m, split.count > 1);
    }
    for_each_run<kWidth>(sums, ring, [&](int row_in, int col_in, float (&values)[kWidth]) {
      const int64_t row = block.m() + share.m + row_in;
      const int64_t col = block.n() + (share.n + col_in) / (kGate ? 2 : 1);
      const bool inside = row < p.m && col < p.n;
      auto& own = reinterpret_cast<float (&)[8]>(values);
      if (split.count > 1) {
        if (!inside) return;
        float* to = partial_sums(p, blockIdx.y, 0) + row * p.n + col;
        put_row(to, reinterpret_cast<float (&)[4]>(own[0]));
        put_row(to + 4, reinterpret_cast<float (&)[4]>(own[4]));
        return;
      }
      unsigned most = 0;
      if (inside) most = leave<ends, T>(p, own, reinterpret_cast<float (&)[8]>(values[kWidth - 8]), row, col);
      if ((ends == Ends::epilogue || ends == Ends::gate) && p.amax != nullptr) {
        most = warp_reduce<Share<Tile>::wn / kWidth>(most, Max{});  // of the lanes that share the row
        if (inside && col_in == 0) note_largest<T>(p.amax + row, most);
      }
    });
  }
}

const char* takes(const FusedArgs& p) {
  if (const char* reason = needs_16_bits(p)) return reason;
  if (const char* reason = needs_layout_of_layers(p)) return reason;
  if (const char* reason = needs_packs_of_all(p)) return reason;
  if (const char* reason = needs_heads_of(p, 8, "needs heads of a multiple of 8 values")) return reason;
  return needs_tiles_in_grid(p);
}

// As of matmul/mma_peak.cu.
template <class Tile>
TileCost cost_of(const FusedArgs& p, int blocks, float alone, float full, float fill) {
  const float rate = p.sm == 80 ? 1.44e6f : (p.sm < 90 ? 1.28e6f : 2.1e6f);
  const int bn = p.ends == Ends::gate ? Tile::bn / 2 : Tile::bn;
  return {.bm = Tile::bm,
          .bn = bn,
          .bk = Tile::bk,
          .blocks = blocks,
          .alone = alone,
          .full = full,
          .fill = fill,
          .rate = rate};
}

template <class T, class Tile, int most_shared, Along a, Along b, Ends ends>
void launch_kernel(const FusedArgs& p, const Split& split, cudaStream_t stream) {
  using Config = MmaConfig<Tile, a, b>;
  static_assert(Config::shared <= most_shared, "a block of every GPU that the tile is for has room for the ring");
  warpsmith::launch<&fused_linear_mma_kernel<T, Config, ends>>(
      split_grid<Seen<Tile, ends>>(p, split, Config::threads, Config::shared), stream, p, split);
}

template <class Tile, int most_shared>
void launch_tile(const FusedArgs& p, const Split& split, cudaStream_t stream) {
  const auto of_type = [&]<class T>() {
    const auto of_layer = [&]<Ends ends>() {
      p.b.order == Order::columns ? launch_kernel<T, Tile, most_shared, Along::k, Along::k, ends>(p, split, stream)
                                  : launch_kernel<T, Tile, most_shared, Along::k, Along::mn, ends>(p, split, stream);
    };
    switch (p.ends) {
      case Ends::epilogue:
        return of_layer.template operator()<Ends::epilogue>();
      case Ends::gate:
        return of_layer.template operator()<Ends::gate>();
      case Ends::heads:
        return of_layer.template operator()<Ends::heads>();
      case Ends::add:
        return launch_kernel<T, Tile, most_shared, Along::mn, Along::mn, Ends::add>(p, split, stream);
      case Ends::gradient:
        return launch_kernel<T, Tile, most_shared, Along::mn, Along::mn, Ends::gradient>(p, split, stream);
    }
  };
  p.dtype == Dtype::f16 ? of_type.template operator()<f16>() : of_type.template operator()<bf16>();
  if (split.count > 1) sum_slices(p, split.count, stream);
}

// The tiles that are for the GPU, what the product would cost with each, and how it is started.
struct Choice {
  TileCost costs[3];
  void (*launches[3])(const FusedArgs&, const Split&, cudaStream_t);
  int count = 0;

  template <class Tile, int most_shared>
  void add(const FusedArgs& p, const TileCost& cost) {
    if (!Tile::is_for(p.sm)) return;
    costs[count] = cost;
    launches[count++] = launch_tile<Tile, most_shared>;
  }
};

void launch(const FusedArgs& p, cudaStream_t stream) {
  const bool roomy = !has_little_shared_memory(p.sm), four_small = roomy && p.sm >= 90;
  const TileCost small = cost_of<SmallTile>(p, 4, 0.284f, 0.57f, 174.0f);
  Choice tiles;
  tiles.add<LargeTile, kSharedOfSm80>(p, cost_of<LargeTile>(p, 1, 0.93f, 0.93f, 236.0f));
  tiles.add<MediumTile, kSharedOfSm89>(p, cost_of<MediumTile>(p, 2, 0.69f, 0.85f, 185.0f));
  tiles.add<SmallTile, kSharedOfSm89>(p, four_small ? small : with_fewer(small, roomy ? 3 : 2));
  SplitProblem problem = split_problem(p);
  if (!may_split(p)) problem.most_splits = 1;
  Split split;
  const int best = best_tile(problem, tiles.costs, split, tiles.count);
  tiles.launches[best](p, split, stream);
}

const Register<FusedArgs> registered{"mma", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
