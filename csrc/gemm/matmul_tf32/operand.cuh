// An operand of mma.m16n8k8 on its way: global memory, a tile in shared memory, the registers of a warp.
//
// Either operand lies in memory with k or with its own index (m or n) innermost, and its tile keeps that order, so that
// 16-byte copies serve both. The registers get what mma wants from either with four values an instruction, because mma
// does not care which row of a carries which number, as long as the result is written accordingly. Of 32 rows,
//   row 16 (g % 2) + 4 (g / 2) + s    is number g (0 to 7) of the eight rows called slot s (0 to 3):
// - own index innermost: a lane of number g loads the rows of its four slots at one k, which are 16 bytes;
// - k innermost: ldmatrix takes eight rows of four values, one such matrix for each slot, wherever they lie.
// Two slots are 16 rows of a, or 8 and another 8 columns of b. Of the result, a quad of lanes holds 16 neighbours.
#pragma once

#include <cstdint>

#include "device/ptx/copy.h"
#include "device/ptx/mma.h"
#include "device/swizzle.h"
#include "device/vec.h"
#include "gemm/gemm.h"

namespace warpsmith {

inline constexpr int kSlots = 4;
inline constexpr int kGroupRows = 32;  // of eight numbers and four slots
inline constexpr int kStepDepth = 8;   // k of one mma

enum class Side : int { a, b };  // which operand of mma it becomes

// Row of slot 0 of the number, within the 32.
__host__ __device__ constexpr int row_of(int number) { return 16 * (number % 2) + 4 * (number / 2); }

// A tile of an operand. `Tile` says which `side` it is of, its `extent` along the operand's own index and `bk` along k,
// whether it is `k_inner`, and that `threads` copy `width` values at a time.
template <class Tile>
struct OperandTile {
  static constexpr int rows = Tile::k_inner ? Tile::extent : Tile::bk;
  static constexpr int cols = Tile::k_inner ? Tile::bk : Tile::extent;
  static constexpr int size = rows * cols;

 private:
  static constexpr int kRowBits = detail::log2_exact(cols);

 public:
  // Chunks of four values change places: those of 8 rows that are 4 apart, or of 4 neighbouring rows.
  using Layout = std::conditional_t<Tile::k_inner, Swizzle<3, 2, kRowBits>, Swizzle<2, 2, kRowBits - 2>>;

  __host__ __device__ static constexpr int at(int row, int col) { return Layout{}(row * cols + col); }
};

namespace detail {

// Whether the eight lanes that shared memory serves at a time use every bank once.
template <class Tile>
constexpr bool fragments_conflict_free() {
  using Shared = OperandTile<Tile>;
  constexpr typename Shared::Layout layout{};
  for (int group = 0; group < Tile::extent; group += kGroupRows) {
    for (int k = 0; k < Tile::bk; k += 4) {
      for (int part = 0; part < kSlots; ++part) {  // a slot of ldmatrix, or a quarter of the lanes
        unsigned banks = 0;
        for (int lane = 0; lane < 8; ++lane) {
          const int at = Tile::k_inner ? (group + row_of(lane) + part) * Shared::cols + k
                                       : (k + lane % 4) * Shared::cols + group + row_of(2 * part + lane / 4);
          banks |= 1u << (layout(at) / 4 % 8);
        }
        if (banks != 0xff) return false;
      }
    }
  }
  return true;
}

template <class Tile>
constexpr bool copies_conflict_free() {
  for (int first = 0; first < OperandTile<Tile>::size; first += 32) {
    if (!one_chunk_per_bank<float>(typename OperandTile<Tile>::Layout{}, first, 4)) return false;
  }
  return true;
}

}  // namespace detail

// Brings tile after tile along k from global memory; what lies outside the operand becomes zero.
template <class Tile>
class TileCopies {
  using Shared = OperandTile<Tile>;
  static_assert(detail::copies_conflict_free<Tile>());
  static constexpr int kPerRow = Shared::cols / Tile::width;
  static_assert(Tile::threads % kPerRow == 0, "a thread's copies lie below each other");
  static constexpr int kRowStep = Tile::threads / kPerRow;
  static_assert(Shared::rows % kRowStep == 0, "threads share the copies evenly");

 public:
  static constexpr int count = Shared::rows / kRowStep;  // of a thread for a tile, to be started in order

  // From one copy of a thread to the next, and from behind its last in a tile to the first in the next tile: known at
  // launch, since a kernel has its parameters at hand without spending registers on them.
  struct Steps {
    int64_t copy, tile;
  };
  __host__ __device__ static Steps steps(const Matrix& x) {
    const int64_t copy = kRowStep * x.ld;
    return {copy, Tile::k_inner ? Tile::bk - count * copy : 0};  // with k outermost the copies lead there already
  }

  // From [first, k_first] on, where `first` counts the operand's own index, which ends at `extent`.
  __device__ TileCopies(const Matrix& x, int64_t batch, int64_t first, int64_t extent, int64_t k_first) {
    const int row = static_cast<int>(threadIdx.x) / kPerRow,
              col = static_cast<int>(threadIdx.x) % kPerRow * Tile::width;
    const int left = static_cast<int>(min(extent - first, int64_t{Tile::extent}));
    rows_left_ = Tile::k_inner ? left - row : col < left ? -row : kNone;
    col_ = col;
    shared_ = Shared::at(row, col);
    from_ = static_cast<const float*>(x.data) + batch * x.batch +
            (Tile::k_inner ? (first + row) * x.ld + k_first + col : (k_first + row) * x.ld + first + col);
  }

  // Copy `i` of this thread into the tile, of which `k_left` values of k are within the operand.
  __device__ __forceinline__ void start(float* tile, int i, int k_left, const Steps& steps) {
    const int rows_left = Tile::k_inner ? (col_ < k_left ? rows_left_ : 0) : rows_left_ + k_left;
    const bool valid = i * kRowStep < rows_left;
    // The rows of two copies differ in bits that the first has not, and exclusive-or is linear.
    constexpr typename Shared::Layout layout{};
    const int below = i * kRowStep * Shared::cols;
    float* to = tile + (layout(below) == below ? shared_ + below : shared_ ^ layout(below));
    if constexpr (Tile::width == 4) {
      ptx::cp_async_zfill(reinterpret_cast<uint4*>(to), reinterpret_cast<const uint4*>(from_), valid);
    } else {
      ptx::cp_async_zfill(reinterpret_cast<uint32_t*>(to), reinterpret_cast<const uint32_t*>(from_), valid);
    }
    from_ += steps.copy;
  }

  // On to the next tile, after the last copy.
  __device__ __forceinline__ void advance(const Steps& steps) {
    if constexpr (Tile::k_inner) from_ += steps.tile;
  }

 private:
  static constexpr int kNone = -(1 << 30);  // no row is left, whatever is added

  int rows_left_;  // from this thread's first on; of k when that is outermost, but for what is left of k
  int col_;
  int shared_;  // where the first copy goes
  const float* from_;
};

// What a lane holds of `pairs` of slots at eight values of k, in the order of mma's registers: half 0 is k = lane % 4,
// half 1 four further on.
template <int pairs_>
struct Fragment {
  static constexpr int pairs = pairs_;
  uint32_t value[pairs][4];
};

// Of a, mma takes both slots of a half, then those of the other; of b, both halves of a slot for each of two products.
constexpr int place_in(Side side, int slot, int half) { return side == Side::a ? 2 * half + slot : 2 * slot + half; }

// Where in the tile a lane's first values are; the others follow from it, as the layout is linear in exclusive-or.
template <class Tile>
__device__ __forceinline__ int first_fragment(int warp_row) {
  using Shared = OperandTile<Tile>;
  static_assert(detail::fragments_conflict_free<Tile>());
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if constexpr (!Tile::k_inner) return Shared::at(lane % 4, warp_row + row_of(lane / 4));
  const int matrix = lane / 8, slot = Tile::side == Side::a ? matrix % 2 : matrix / 2;
  const int half = Tile::side == Side::a ? matrix / 2 : matrix % 2;
  return Shared::at(warp_row + row_of(lane % 8) + slot, 4 * half);
}

// Of k-step `step` of the tile.
template <class Tile, int pairs>
__device__ __forceinline__ void load_fragment(Fragment<pairs>& to, const float* tile, int first, int step) {
  using Shared = OperandTile<Tile>;
  if constexpr (Tile::k_inner) {
    const float* from = tile + (first ^ step * kStepDepth);
#pragma unroll
    for (int pair = 0; pair < pairs; ++pair) {
      ptx::ldmatrix(to.value[pair], from + (pair / 2 * kGroupRows + pair % 2 * 2) * Shared::cols);
    }
  } else {
    const float* from = tile + first + step * kStepDepth * Shared::cols;
#pragma unroll
    for (int group = 0; group < pairs / 2; ++group) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Vec<float, kSlots> values;
        load(values, from + half * 4 * Shared::cols + group * kGroupRows);
#pragma unroll
        for (int slot = 0; slot < kSlots; ++slot) {
          to.value[2 * group + slot / 2][place_in(Tile::side, slot % 2, half)] = __float_as_uint(values[slot]);
        }
      }
    }
  }
}

}  // namespace warpsmith
