// Group norm of contiguous tensors, the group held in registers.
//   Against `pack`: x is read once. Small groups share a warp or a block, so that every thread has work and a
//   multiprocessor overlaps the reads of some groups with the writes of others. Bound: DRAM; larger groups would leave
//   too few of them on a multiprocessor.
#include <tuple>

#include "norm/group_norm/rows.cuh"

namespace warpsmith {
namespace {

// threads of a block (at most) | threads that share a group, 0: the whole block, cut to what the group needs |
// 128-bit packs of a group that each of them holds | blocks per multiprocessor that the registers must allow
template <int threads_, int lanes_, int packs_, int min_blocks_>
struct Tile {
  static constexpr int threads = threads_, lanes = lanes_, packs = packs_, min_blocks = min_blocks_;
  static constexpr int most_packs = (lanes > 0 ? lanes : threads) * packs;
  static constexpr int rows_per_block = lanes > 0 ? threads / lanes : 1;
};

// The first that holds the group is taken.
using Tiles = std::tuple<Tile<128, 4, 1, 10>, Tile<128, 16, 1, 10>, Tile<128, 32, 2, 10>, Tile<128, 0, 2, 10>,
                         Tile<256, 0, 4, 4>>;
constexpr int64_t kMostBytes = 16 * std::tuple_element_t<std::tuple_size_v<Tiles> - 1, Tiles>::most_packs;
static_assert(kMostBytes == 16 * 1024, "what `takes` says");

template <class T, class Activation, class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::min_blocks)
    group_norm_registers_kernel(const GroupNormRows<T> v) {
  constexpr bool kShared = Tile::lanes > 0;
  constexpr int kWidth = kPack<T>;
  __shared__ Moments partial[kWarp];
  const int lanes = kShared ? Tile::lanes : blockDim.x;
  const int lane = kShared ? threadIdx.x % lanes : threadIdx.x;
  const int64_t row = int64_t{blockIdx.x} * Tile::rows_per_block + (kShared ? threadIdx.x / lanes : 0);
  const int packs = row < v.rows ? static_cast<int>(v.packs) : 0;

  // load
  const uint64_t policy = v.load_policy();
  Pack<T> x[Tile::packs];
#pragma unroll
  for (int i = 0; i < Tile::packs; ++i) {
    const int pack = i * lanes + lane;
    if (pack < packs) load_with_policy(x[i], v.x_row(row) + pack * kWidth, policy);
  }

  // moments
  Moments moments{};
#pragma unroll
  for (int i = 0; i < Tile::packs; ++i) {
    if (i * lanes + lane >= packs) continue;
    float values[kWidth];
    to_float(values, x[i]);
    moments = merge(moments, moments_of(values));
  }
  if constexpr (kShared) {
    moments = warp_merge<Tile::lanes>(moments);
  } else {
    moments = block_merge(moments, partial);
  }
  const Normaliser n = normaliser(moments, v.eps);

  // normalise
  const int64_t first = v.first_channel(row);
#pragma unroll
  for (int i = 0; i < Tile::packs; ++i) {
    const int pack = i * lanes + lane;
    if (pack < packs) {
      store<Cache::streaming>(v.y_row(row) + pack * kWidth, normalise<Activation>(x[i], pack, first, n, v));
    }
  }
}

template <class T, class Activation, class Tile>
void launch_tile(const GroupNormArgs& a, cudaStream_t stream) {
  const GroupNormRows<T> rows(a);
  const unsigned threads = Tile::lanes > 0 ? Tile::threads : row_threads(rows.packs, Tile::packs, Tile::threads);
  const auto grid = static_cast<unsigned>(ceil_of(rows.rows, Tile::rows_per_block));
  warpsmith::launch<&group_norm_registers_kernel<T, Activation, Tile>>({grid, threads}, stream, rows);
}

template <class T, class Activation, class... Tile>
void launch_smallest(const GroupNormArgs& a, cudaStream_t stream, std::tuple<Tile...>) {
  const int64_t packs = a.row_bytes() / 16;
  bool done = false;
  ((!done && packs <= Tile::most_packs && (launch_tile<T, Activation, Tile>(a, stream), done = true)), ...);
}

void launch(const GroupNormArgs& a, cudaStream_t stream) {
  visit_activations(a.dtype, a.activation,
                    [&]<class T, class Activation>() { launch_smallest<T, Activation>(a, stream, Tiles{}); });
}

const char* takes(const GroupNormArgs& a) {
  if (const char* reason = needs_packed_groups(a)) return reason;
  return a.row_bytes() <= kMostBytes ? nullptr : "needs groups of at most 16 KiB";
}

const Register<GroupNormArgs> registered{"registers", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
