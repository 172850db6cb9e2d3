// RMS norm, the row held in registers.
//   Against `pack`: x is read once. A thread holds two packs where it can, so that blocks stay small and a multiprocessor
//   is full of them: rows that read overlap rows that write, and DRAM sees a narrow front of addresses. Short rows share
//   a warp. Bound: DRAM, until one row fills a multiprocessor.
// Mapping after quack's "Getting Memory-bound Kernels to Speed-of-Light",
// https://github.com/Dao-AILab/quack/blob/main/media/2025-07-10-membound-sol.md
#include <tuple>

#include "norm/rms_norm/row.cuh"

namespace warpsmith {
namespace {

// threads of a block (at most) | threads that share a row, 0: the whole block, cut to what the row needs |
// 128-bit packs of a row that each of them holds | blocks per multiprocessor that the registers must allow
template <int threads_, int lanes_, int packs_, int min_blocks_>
struct Tile {
  static constexpr int threads = threads_, lanes = lanes_, packs = packs_, min_blocks = min_blocks_;
  static constexpr int most_packs = (lanes > 0 ? lanes : threads) * packs;
  static constexpr int rows_per_block = lanes > 0 ? threads / lanes : 1;
};

// The first that holds the row is taken. 16-bit values take more registers to normalise.
using HalfTiles = std::tuple<Tile<128, 4, 1, 12>, Tile<128, 8, 1, 12>, Tile<128, 8, 2, 12>, Tile<128, 16, 2, 12>,
                             Tile<128, 32, 2, 12>, Tile<64, 0, 2, 24>, Tile<128, 0, 2, 12>, Tile<256, 0, 2, 6>,
                             Tile<512, 0, 2, 3>, Tile<512, 0, 4, 2>, Tile<1024, 0, 4, 1>>;
using FloatTiles = std::tuple<Tile<128, 4, 1, 16>, Tile<128, 8, 1, 16>, Tile<128, 8, 2, 16>, Tile<128, 16, 2, 16>,
                              Tile<128, 32, 2, 16>, Tile<64, 0, 2, 24>, Tile<128, 0, 2, 16>, Tile<256, 0, 2, 8>,
                              Tile<512, 0, 2, 4>, Tile<512, 0, 4, 2>, Tile<1024, 0, 4, 2>, Tile<1024, 0, 8, 1>>;
template <class T>
using TilesFor = std::conditional_t<std::is_same_v<T, float>, FloatTiles, HalfTiles>;

constexpr int64_t most_bytes(Dtype dtype) { return (dtype == Dtype::f32 ? 128 : 64) * 1024; }

// Two blocks of 1024 threads leave 32 registers each, which only sm_90 code makes do with.
template <class Tile>
constexpr int min_blocks() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  return Tile::threads == 1024 ? 1 : Tile::min_blocks;
#else
  return Tile::min_blocks;
#endif
}

template <class T, class W, class Tile>
__global__ void __launch_bounds__(Tile::threads, min_blocks<Tile>())
    rms_norm_registers_kernel(const RmsNormRows<T, W> v) {
  constexpr bool kShared = Tile::lanes > 0;
  __shared__ float partial[kWarp];
  const int lanes = kShared ? Tile::lanes : blockDim.x;
  const int lane = kShared ? threadIdx.x % lanes : threadIdx.x;
  const int group = kShared ? threadIdx.x / lanes : 0;
  const int64_t row = int64_t{blockIdx.x} * Tile::rows_per_block + group;
  const int cols = row < v.rows ? static_cast<int>(v.cols) : 0;

  // load
  const uint64_t policy = v.load_policy();
  Pack<T> x[Tile::packs];
#pragma unroll
  for (int i = 0; i < Tile::packs; ++i) {
    const int col = (i * lanes + lane) * kPack<T>;
    reinterpret_cast<uint4&>(x[i]) = uint4{};
    if (col < cols) load_with_policy(x[i], v.x_row(row) + col, policy);
  }

  // square and sum
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < Tile::packs; ++i) {
    sum = add_squares(sum, x[i]);
    keep_packed(x[i]);
  }
  if constexpr (kShared) {
    sum = warp_reduce<Tile::lanes>(sum);
  } else {
    sum = block_sum(sum, partial);
  }
  const float scale = reciprocal_rms(sum, v.inverse_count, v.eps);

  // normalise
#pragma unroll
  for (int i = 0; i < Tile::packs; ++i) {
    const int col = (i * lanes + lane) * kPack<T>;
    if (col < cols) {
      WeightPack<W, kPack<T>> weight;
      weight.load_from(v.weight, col);
      store<Cache::streaming>(v.y_row(row) + col, normalise(x[i], scale, weight));
    }
  }
}

template <class T, class W, class Tile>
void launch_tile(const RmsNormArgs& a, cudaStream_t stream) {
  const unsigned threads = Tile::lanes > 0 ? Tile::threads : row_threads(a.cols / kPack<T>, Tile::packs, Tile::threads);
  const unsigned grid = static_cast<unsigned>((a.rows + Tile::rows_per_block - 1) / Tile::rows_per_block);
  warpsmith::launch<&rms_norm_registers_kernel<T, W, Tile>>({grid, threads}, stream, RmsNormRows<T, W>(a));
}

template <class T, class W, class... Tile>
void launch_smallest(const RmsNormArgs& a, cudaStream_t stream, std::tuple<Tile...>) {
  bool done = false;
  ((!done && a.cols / kPack<T> <= Tile::most_packs && (launch_tile<T, W, Tile>(a, stream), done = true)), ...);
}

void launch(const RmsNormArgs& a, cudaStream_t stream) {
  visit_dtypes(a.dtype, a.weight_dtype, [&]<class T, class W>() { launch_smallest<T, W>(a, stream, TilesFor<T>{}); });
}

const char* takes(const RmsNormArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  if (a.accumulator != Dtype::f32) return "accumulates in f32";
  if (a.rows > kMostRows) return "needs at most 2^31 - 1 rows";
  if (a.cols * size_of(a.dtype) <= most_bytes(a.dtype)) return nullptr;
  return a.dtype == Dtype::f32 ? "needs rows of at most 128 KiB" : "needs rows of at most 64 KiB";
}

const Register<RmsNormArgs> registered{"registers", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
