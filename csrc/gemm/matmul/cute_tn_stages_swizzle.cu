// Matrix product written with CuTe, b column-major.
//   Against `mma_tn_stages_swizzle`: the same tile, ring and instructions, but no index is written down: layouts are
//   values of an algebra, and who copies and multiplies what comes of composing them. Results leave in whole lines,
//   through shared memory.
//   Occupancy: 4 warps of up to 255 registers in 96 KB: two blocks on sm_90, one on sm_80 and sm_89.
//   Bound: tensor cores, and the two warps a scheduler to keep them busy.
//   Compiled where the build finds the headers of CUTLASS; without them the rung refuses every call.
//   https://docs.nvidia.com/cutlass/latest/media/docs/cpp/cute/0x_gemm_tutorial.html
#include <type_traits>

#include "gemm/tensor_core.h"
#include "host/registry.h"

#ifdef WARPSMITH_CUTLASS
#include <cute/tensor.hpp>

#include "device/convert.h"
#include "device/pipeline.h"
#include "device/swizzle.h"
#include "gemm/tile_origin.cuh"
#include "host/launch.h"
#endif

namespace warpsmith {
namespace {

#ifdef WARPSMITH_CUTLASS

using cute::_;
using cute::Int;

struct Tile {
  static constexpr int bm = 128, bn = 128, bk = 64, warps_m = 2, warps_n = 2, stages = 3;
};
constexpr int kThreads = Share<Tile>::threads;

template <class T, class Acc>
struct Instruction;
template <>
struct Instruction<f16, float> {
  using type = cute::SM80_16x8x16_F32F16F16F32_TN;
};
template <>
struct Instruction<bf16, float> {
  using type = cute::SM80_16x8x16_F32BF16BF16F32_TN;
};
template <>
struct Instruction<f16, f16> {
  using type = cute::SM80_16x8x16_F16F16F16F16_TN;
};

// --- layouts ----------------------------------------------------------------------------------------------------

// In shared memory, eight lines of 128 bytes at a time: in the index of a value, the three bits that count chunks of 16
// bytes in a line are flipped by the three that count lines.
using Lines = decltype(cute::composition(cute::Swizzle<3, 3, 3>{},
                                         cute::Layout<cute::Shape<Int<8>, Int<64>>, cute::Stride<Int<64>, Int<1>>>{}));
template <int... extents>
using Swizzles = decltype(cute::tile_to_shape(Lines{}, cute::Shape<Int<extents>...>{}));

using LayoutA = Swizzles<Tile::bm, Tile::bk, Tile::stages>;
using LayoutB = Swizzles<Tile::bn, Tile::bk, Tile::stages>;
using LayoutD = Swizzles<Tile::bm, Tile::bn>;
constexpr int kSizeA = cute::cosize_v<LayoutA>, kSizeB = cute::cosize_v<LayoutB>;
constexpr int kShared = (kSizeA + kSizeB) * static_cast<int>(sizeof(f16));
static_assert(cute::cosize_v<LayoutD> <= kSizeA + kSizeB, "results take the place of operands");
static_assert(kShared <= 99 * 1024, "fits sm_89");

template <class Layout, int rows, int columns>
constexpr bool kConflictFree = conflict_free<f16, rows, columns>(
    [](int index) { return static_cast<int>(Layout{}(index / columns, index % columns)); });
static_assert(kConflictFree<Swizzles<Tile::bm, Tile::bk>, Tile::bm, Tile::bk>, "cp.async and ldmatrix at full speed");
static_assert(kConflictFree<Swizzles<Tile::bn, Tile::bk>, Tile::bn, Tile::bk>, "cp.async and ldmatrix at full speed");
static_assert(kConflictFree<LayoutD, Tile::bm, Tile::bn>, "whole lines of results at full speed");

// Neighbouring threads copy neighbouring chunks of 16 bytes, `across` of them to a line.
template <class Operation, class Element, int across>
using Copies = decltype(cute::make_tiled_copy(
    cute::Copy_Atom<Operation, Element>{},
    cute::Layout<cute::Shape<Int<kThreads / across>, Int<across>>, cute::Stride<Int<across>, Int<1>>>{},
    cute::Layout<cute::Shape<Int<1>, Int<8>>>{}));

// Two neighbouring instructions of a warp along n, whose operands one ldmatrix brings.
template <class T, class Acc>
using Product = decltype(cute::make_tiled_mma(cute::MMA_Atom<typename Instruction<T, Acc>::type>{},
                                              cute::Layout<cute::Shape<Int<Tile::warps_m>, Int<Tile::warps_n>>>{},
                                              cute::Tile<Int<16 * Tile::warps_m>, Int<16 * Tile::warps_n>, Int<16>>{}));

// --- kernel -----------------------------------------------------------------------------------------------------

// What is left of an extent from where a tile starts, as far as a tile reaches.
__device__ __forceinline__ int left_of(int64_t extent, int64_t start, int most) {
  return static_cast<int>(extent - start < most ? extent - start : most);
}

// Copies a thread's part of a tile, as far as there are lines and values in them. `places`: of each chunk, its line and
// its first value. cp.async writes zeros in place of the rest.
template <class Copy, class From, class To, class Places>
__device__ __forceinline__ void copy_inside(const Copy& copy, const From& from, To&& to, const Places& places,
                                            int lines, int length) {
  const auto inside = [&](auto place) { return cute::get<0>(place) < lines && cute::get<1>(place) < length; };
  cute::copy_if(copy, cute::lazy::transform(places, inside), from, to);
}

template <class T, class Acc>
__global__ void __launch_bounds__(kThreads, 2) matmul_cute_tn_stages_swizzle_kernel(const GemmArgs p) {
  using Mma = Product<T, Acc>;
  using Element = typename Mma::ValTypeA;
  using Load = Copies<cute::SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<cute::uint128_t>, Element, Tile::bk / 8>;
  using Store = Copies<cute::UniversalCopy<cute::uint128_t>, Element, Tile::bn / 8>;
  using Ldmatrix = cute::Copy_Atom<cute::SM75_U32x4_LDSM_N, Element>;
  using Pair = cute::Copy_Atom<cute::UniversalCopy<uint32_t>, Element>;
  extern __shared__ __align__(128) uint4 shared[];
  auto* memory = reinterpret_cast<Element*>(shared);
  const int tid = static_cast<int>(threadIdx.x);
  const Origin block = origin_by_groups<Tile>(p);
  const int m_left = left_of(p.m, block.m, Tile::bm), n_left = left_of(p.n, block.n, Tile::bn);
  const int64_t tiles = ceil_div(p.k, Tile::bk);

  // partition the copies
  const auto lines_of = [&](const Matrix& x, int64_t mn, auto lines) {  // [lines, bk, tiles]
    return cute::make_tensor(cute::make_gmem_ptr(static_cast<const Element*>(x.data) + mn * x.ld),
                             cute::make_shape(lines, Int<Tile::bk>{}, tiles),
                             cute::make_stride(x.ld, Int<1>{}, Int<Tile::bk>{}));
  };
  const auto gA = lines_of(p.a, block.m, Int<Tile::bm>{});                             // [bm, bk, tiles]
  const auto gB = lines_of(p.b, block.n, Int<Tile::bn>{});                             // [bn, bk, tiles]
  const auto sA = cute::make_tensor(cute::make_smem_ptr(memory), LayoutA{});           // [bm, bk, stages]
  const auto sB = cute::make_tensor(cute::make_smem_ptr(memory + kSizeA), LayoutB{});  // [bn, bk, stages]
  const Load load_tile;
  const auto loader = load_tile.get_slice(tid);
  const auto from_a = loader.partition_S(gA), from_b = loader.partition_S(gB);  // [chunk, lines, 1, tiles]
  const auto to_a = loader.partition_D(sA), to_b = loader.partition_D(sB);      // [chunk, lines, 1, stages]
  const auto places_a = loader.partition_S(cute::make_identity_tensor(cute::Shape<Int<Tile::bm>, Int<Tile::bk>>{}));
  const auto places_b = loader.partition_S(cute::make_identity_tensor(cute::Shape<Int<Tile::bn>, Int<Tile::bk>>{}));
  const auto load = [&](int64_t tile, int slot) {
    if (tile < tiles) {
      const int k_left = left_of(p.k, tile * Tile::bk, Tile::bk);
      copy_inside(load_tile, from_a(_, _, _, tile), to_a(_, _, _, slot), places_a, m_left, k_left);
      copy_inside(load_tile, from_b(_, _, _, tile), to_b(_, _, _, slot), places_b, n_left, k_left);
    }
    cute::cp_async_fence();
  };

  // partition the product
  Mma mma;
  const auto multiplier = mma.get_slice(tid);
  auto rA = multiplier.partition_fragment_A(sA(_, _, 0));                                    // [values, m, k]
  auto rB = multiplier.partition_fragment_B(sB(_, _, 0));                                    // [values, n, k]
  auto sums = cute::partition_fragment_C(mma, cute::Shape<Int<Tile::bm>, Int<Tile::bn>>{});  // [values, m, n]
  cute::clear(sums);
  const auto read_a = cute::make_tiled_copy_A(Ldmatrix{}, mma);
  const auto read_b = cute::make_tiled_copy_B(Ldmatrix{}, mma);
  const auto reader_a = read_a.get_slice(tid);
  const auto reader_b = read_b.get_slice(tid);
  const auto parts_a = reader_a.partition_S(sA), parts_b = reader_b.partition_S(sB);  // [values, m or n, k, stages]
  auto views_a = reader_a.retile_D(rA);
  auto views_b = reader_b.retile_D(rB);
  const auto read = [&](auto k, int slot) {
    cute::copy(read_a, parts_a(_, _, k, slot), views_a(_, _, k));
    cute::copy(read_b, parts_b(_, _, k, slot), views_b(_, _, k));
  };

  // fill all stages but one
#pragma unroll
  for (int slot = 0; slot < Tile::stages - 1; ++slot) load(slot, slot);
  cute::cp_async_wait<Tile::stages - 2>();
  __syncthreads();

  // multiply
  constexpr int kSteps = Tile::bk / 16;
  read(Int<0>{}, 0);
  RingSlot<Tile::stages> at, ahead{Tile::stages - 1};
  for (int64_t tile = 0; tile < tiles; ++tile) {
    load(tile + Tile::stages - 1, ahead.slot);
    cute::for_each(cute::make_int_sequence<kSteps>{}, [&](auto step) {
      constexpr int kNext = (step + 1) % kSteps;
      if constexpr (kNext == 0) {
        at.advance();
        ahead.advance();
        cute::cp_async_wait<Tile::stages - 2>();
        __syncthreads();  // the next tile is here, and what is left of this one is in registers
      }
      read(Int<kNext>{}, at.slot);
      cute::gemm(mma, rA(_, _, step), rB(_, _, step), sums);
    });
  }
  __syncthreads();  // the operands have been read

  // round
  auto rounded = cute::make_fragment_like<T>(sums);  // [values, m, n]
  if constexpr (std::is_same_v<Acc, float>) {
#pragma unroll
    for (int i = 0; i < cute::size(sums); i += 2) {
      from_float(reinterpret_cast<Vec<T, 2>&>(rounded(i)), {sums(i), sums(i + 1)});
    }
  } else {
    cute::copy(cute::recast<T>(sums), rounded);
  }

  // store
  const auto rD = cute::recast<Element>(rounded);                             // [values, m, n]
  const auto sD = cute::make_tensor(cute::make_smem_ptr(memory), LayoutD{});  // [bm, bn]
  const auto gD = cute::make_tensor(                                          // [bm, bn]
      cute::make_gmem_ptr(static_cast<Element*>(p.d) + block.m * p.n + block.n),
      cute::Shape<Int<Tile::bm>, Int<Tile::bn>>{}, cute::make_stride(p.n, Int<1>{}));
  const auto gather = cute::make_tiled_copy_C(Pair{}, mma);
  const auto gatherer = gather.get_slice(tid);
  cute::copy(gather, gatherer.retile_S(rD), gatherer.partition_D(sD));
  __syncthreads();
  const Store store_tile;
  const auto storer = store_tile.get_slice(tid);
  const auto places = storer.partition_S(cute::make_identity_tensor(cute::Shape<Int<Tile::bm>, Int<Tile::bn>>{}));
  copy_inside(store_tile, storer.partition_S(sD), storer.partition_D(gD), places, m_left, n_left);
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  visit_16_bit_types(p, [&]<class T, class Acc>() {
    warpsmith::launch<&matmul_cute_tn_stages_swizzle_kernel<T, Acc>>(block_per_tile<Tile>(p, kThreads, kShared), stream,
                                                                     p);
  });
}

#else

void launch(const GemmArgs&, cudaStream_t) { broken_promise("no call gets past takes()"); }

#endif

const char* takes(const GemmArgs& p) {
  if (const char* reason = needs_cutlass(p)) return reason;
  return takes_tn(p);
}

const Register<GemmArgs> registered{"cute_tn_stages_swizzle", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
