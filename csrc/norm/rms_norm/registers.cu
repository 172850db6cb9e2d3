// RMS norm, the row held in registers.
//   Against `pack`: x is read once. All loads of a row are issued before the first is needed, those of the weight behind
//   them. Short rows share a warp, and a block takes several; longer rows get a block of just the threads they need.
//   Bound: DRAM, until a row fills so much of a multiprocessor that loads and stores of different rows no longer overlap.
// Mapping after quack's "Getting Memory-bound Kernels to Speed-of-Light",
// https://github.com/Dao-AILab/quack/blob/main/media/2025-07-10-membound-sol.md
#include <tuple>

#include "norm/rms_norm/row.cuh"

namespace warpsmith {
namespace {

// threads of a block (at most) | threads that share a row, 0: the whole block, cut to what the row needs |
// 128-bit packs of a row that each of them holds
template <int threads_, int lanes_, int packs_>
struct Tile {
  static constexpr int threads = threads_, lanes = lanes_, packs = packs_;
  static constexpr int most_packs = (lanes > 0 ? lanes : threads) * packs;
  static constexpr bool weight_first = threads * packs <= 1024;  // loaded behind the row instead of behind the sum
  static constexpr int min_blocks = packs <= 4 && !weight_first ? 1024 / threads : 1;
  static constexpr int rows_per_block = lanes > 0 ? threads / lanes : 1;
};

// The first that holds the row is taken.
using Tiles = std::tuple<Tile<128, 4, 1>, Tile<128, 8, 1>, Tile<128, 8, 2>, Tile<128, 8, 4>, Tile<128, 16, 4>,
                         Tile<128, 32, 4>, Tile<256, 0, 4>, Tile<512, 0, 4>, Tile<512, 0, 8>>;
constexpr int64_t kMostPacks = std::tuple_element_t<std::tuple_size_v<Tiles> - 1, Tiles>::most_packs;

template <class T, class W, class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::min_blocks) rms_norm_registers_kernel(const RmsNormRows<T, W> v) {
  constexpr bool kShared = Tile::lanes > 0;
  __shared__ float partial[2][kWarp];
  const int lanes = kShared ? Tile::lanes : blockDim.x;
  const int lane = kShared ? threadIdx.x % lanes : threadIdx.x;
  const int group = kShared ? threadIdx.x / lanes : 0;
  const int cols = static_cast<int>(v.cols);
  const int64_t step = int64_t{gridDim.x} * Tile::rows_per_block;

  int buffer = 0;
  for (int64_t first = int64_t{blockIdx.x} * Tile::rows_per_block; first < v.rows; first += step) {
    const int64_t row = first + group;
    const int limit = row < v.rows ? cols : 0;

    // load
    Pack<T> x[Tile::packs];
    WeightPack<W, kPack<T>> weight[Tile::packs];
#pragma unroll
    for (int i = 0; i < Tile::packs; ++i) {
      const int col = (i * lanes + lane) * kPack<T>;
      reinterpret_cast<uint4&>(x[i]) = uint4{};
      if (col < limit) load<Cache::streaming>(x[i], v.x_row(row) + col);
    }
    if constexpr (Tile::weight_first) {
#pragma unroll
      for (int i = 0; i < Tile::packs; ++i) {
        const int col = (i * lanes + lane) * kPack<T>;
        if (col < limit) weight[i].load_from(v.weight, col);
      }
    }

    // square and sum
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < Tile::packs; ++i) sum = add_squares(sum, x[i]);
    if constexpr (kShared) {
      sum = warp_reduce<Tile::lanes>(sum);
    } else {
      sum = block_sum(sum, partial[buffer]);
      buffer ^= 1;
    }
    const float scale = reciprocal_rms(sum, v.count, v.eps);

    // normalise
#pragma unroll
    for (int i = 0; i < Tile::packs; ++i) {
      const int col = (i * lanes + lane) * kPack<T>;
      if (col < limit) {
        keep_packed(x[i]);
        if constexpr (Tile::weight_first) {
          weight[i].keep();
        } else {
          weight[i].load_from(v.weight, col);
        }
        store<Cache::streaming>(v.y_row(row) + col, normalise(x[i], scale, weight[i]));
      }
    }
  }
}

template <class T, class W, class Tile>
void launch_tile(const RmsNormArgs& a, cudaStream_t stream) {
  const unsigned threads =
      Tile::lanes > 0 ? Tile::threads : row_threads(a.cols / kPack<T>, Tile::packs, Tile::threads);
  const unsigned grid = row_grid((a.rows + Tile::rows_per_block - 1) / Tile::rows_per_block);
  warpsmith::launch<&rms_norm_registers_kernel<T, W, Tile>>({grid, threads}, stream, RmsNormRows<T, W>(a));
}

template <class T, class W, class... Tile>
void launch_smallest(const RmsNormArgs& a, cudaStream_t stream, std::tuple<Tile...>) {
  bool done = false;
  ((!done && a.cols / kPack<T> <= Tile::most_packs && (launch_tile<T, W, Tile>(a, stream), done = true)), ...);
}

void launch(const RmsNormArgs& a, cudaStream_t stream) {
  visit_dtypes(a.dtype, a.weight_dtype, [&]<class T, class W>() { launch_smallest<T, W>(a, stream, Tiles{}); });
}

const char* takes(const RmsNormArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  if (a.accumulator != Dtype::f32) return "accumulates in f32";
  const bool fits = a.cols * size_of(a.dtype) <= kMostPacks * 16;
  return fits ? nullptr : "needs rows of at most 64 KiB";
}

const Register<RmsNormArgs> registered{"registers", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
