// The product of a warp computed as d^T = b^T a^T: b is the first operand of mma, a the second.
//
// The first operand takes two rows at k and the same two at k + 4. Of b with n innermost those are the halves of 8-byte
// loads, in the order of mma's registers; as second operand it needs a move for every value. And a lane ends up with
// neighbours along n, which leave in lines of 128 bytes.
#pragma once

#include <cstdint>
#include <type_traits>

#include "device/ptx/convert.h"
#include "device/ptx/mma.h"
#include "device/vec.h"
#include "gemm/matmul_tf32/tile.cuh"

namespace warpsmith {

template <class Block>
struct Transposed : Block {
  static constexpr int wm = Block::wn, wn = Block::wm;
};

template <class Block, class Operands>
struct TransposedConfig : Config<Block, Operands> {
  struct A : Config<Block, Operands>::A {
    static constexpr Side side = Side::b;
  };
  struct B : Config<Block, Operands>::B {
    static constexpr Side side = Side::a;
  };
};

// How values get to TF32. Tensor cores ignore the low 13 bits.
struct RoundedBefore {};  // by whoever brought them to shared memory
struct RoundedInUse {};

// To nearest: ties to even on sm_90. Before, half of an ulp of TF32 is added, which is the power of two that mask and
// factor leave: two instructions without a predicate, by two pipes, and NaN and infinity take care of themselves. Ties
// then go away from zero; below 2^-126 the mask leaves nothing, and bits worth less than 2^-136 are cut off.
template <class Rounding>
__device__ __forceinline__ uint32_t to_tf32(uint32_t x) {
  if constexpr (std::is_same_v<Rounding, RoundedBefore>) return x;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  return ptx::tf32_from_float_even(__uint_as_float(x));
#else
  return __float_as_uint(fmaf(__uint_as_float(x & 0xff800000u), 0x1p-11f, __uint_as_float(x)));
#endif
}

// One k-step of fragments in the order of mma's registers.
template <class Rounding, class Block>
__device__ __forceinline__ void multiply_transposed(Sums<Transposed<Block>>& sums, const Fragments<Block>& x) {
  constexpr int kRows = Sums<Transposed<Block>>::tiles_m, kCols = Sums<Transposed<Block>>::tiles_n;
  uint32_t a[kCols][2];
#pragma unroll
  for (int j = 0; j < kCols; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) a[j][half] = to_tf32<Rounding>(x.a.value[j / 2][j % 2 * 2 + half]);
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    uint32_t b[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) b[e] = to_tf32<Rounding>(x.b.value[i][e]);
#pragma unroll
    for (int step = 0; step < kCols; ++step) {
      const int j = i % 2 == 0 ? step : kCols - 1 - step;  // back and forth, so that a pair of a serves twice in a row
      ptx::mma_m16n8k8_tf32(sums.value[i][j], b, a[j]);
    }
  }
}

// --- b with n innermost -------------------------------------------------------------------------------------------
// Numbers and slots as in operand.cuh: a lane of number g wants slots 0 and 1 of its four neighbours for one product,
// 2 and 3 for the next. Lanes of odd g / 2 take them the other way round, which keeps the banks of a load apart.

__device__ __forceinline__ bool takes_high_pair_first() { return threadIdx.x / 8 % 2 != 0; }

// Whether that holds of a tile whose value [k, n] lies at `at(k, n)`.
template <class At>
constexpr bool pairs_conflict_free(At at, int depth, int extent) {
  for (int k = 0; k < depth; k += 4) {
    for (int n = 0; n < extent; n += kGroupRows) {
      for (int part = 0; part < 4; ++part) {  // a half warp's load of either pair
        uint32_t banks = 0;
        for (int lane = 0; lane < 16; ++lane) {
          const int number = part / 2 * 4 + lane / 4;
          banks |= 3u << ((at(k + lane % 4, n + row_of(number)) + 2 * (number / 2 % 2 ^ part % 2)) % 32);
        }
        if (banks != ~0u) return false;
      }
    }
  }
  return true;
}

// What mma's first operand takes of a pair of slots.
__device__ __forceinline__ void load_pairs(uint32_t (&to)[4], const float* at_k, const float* at_k4) {
  const uint2 first = *reinterpret_cast<const uint2*>(at_k), second = *reinterpret_cast<const uint2*>(at_k4);
  to[0] = first.x;
  to[1] = first.y;
  to[2] = second.x;
  to[3] = second.y;
}

// --- results ------------------------------------------------------------------------------------------------------

// How rows of b^T, columns of the result, are numbered in fragments.
enum class Columns {
  slots,          // as in operand.cuh
  swapped_slots,  // the same, lanes taking pairs in their own order
  natural,        // 16 i + g + 8 h for half h of product i
};

// Writes the sums, or adds them to what is there. `out` is where the warp's part begins, in a matrix of rows of `pitch`,
// of which so many rows and columns are left. `natural_rows`: numbers of m are rows as they are, otherwise slots.
template <bool natural_rows, Columns columns, class Block>
__device__ __forceinline__ void write_transposed(float* out, int64_t pitch, int rows_left, int cols_left,
                                                 const Sums<Transposed<Block>>& sums, bool add) {
  int lane = static_cast<int>(threadIdx.x) % 32;
  asm volatile("" : "+r"(lane));  // or else addresses are computed, and kept, before the multiplications
  const bool swapped = columns == Columns::swapped_slots && takes_high_pair_first();
  const bool packed = pitch % 4 == 0;
#pragma unroll
  for (int j = 0; j < Block::wm / 8; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int number = lane % 4 * 2 + e;
      const int row = natural_rows ? 8 * j + number : j / kSlots * kGroupRows + row_of(number) + j % kSlots;
      if (row >= rows_left) continue;
      float* line = out + row * pitch;
      if constexpr (columns == Columns::natural) {
#pragma unroll
        for (int i = 0; i < Block::wn / 8; ++i) {
          const int col = 8 * i + lane / 4;
          if (col >= cols_left) continue;
          const float value = sums.value[i / 2][j][i % 2 * 2 + e];
          line[col] = add ? line[col] + value : value;
        }
      } else {
#pragma unroll
        for (int group = 0; group < Block::wn / kGroupRows; ++group) {
          const int col = group * kGroupRows + row_of(lane / 4);
          if (col >= cols_left) continue;
          const auto& first = sums.value[2 * group][j];
          const auto& second = sums.value[2 * group + 1][j];
          Vec<float, 4> values;
          values[0] = swapped ? second[e] : first[e];
          values[1] = swapped ? second[2 + e] : first[2 + e];
          values[2] = swapped ? first[e] : second[e];
          values[3] = swapped ? first[2 + e] : second[2 + e];
          if (packed) {
            if (add) {
              Vec<float, 4> before;
              load(before, line + col);
#pragma unroll
              for (int s = 0; s < 4; ++s) values[s] += before[s];
            }
            ptx::store_at_once(reinterpret_cast<uint4*>(line + col), *reinterpret_cast<const uint4*>(&values));
          } else {
#pragma unroll
            for (int s = 0; s < 4; ++s) {
              if (col + s < cols_left) line[col + s] = add ? line[col + s] + values[s] : values[s];
            }
          }
        }
      }
    }
  }
}

}  // namespace warpsmith
