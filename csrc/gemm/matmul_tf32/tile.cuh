// A block's tile of the product: its two operands (operand.cuh), the sums that its warps hold, and how they are written.
//
// `Block` is a struct of bm, bn, bk, of the warp tile wm, wn, of `stages` in the ring of tiles and of the `blocks` that
// share a multiprocessor.
#pragma once

#include <cstdint>

#include "device/ptx/mma.h"
#include "device/vec.h"
#include "gemm/matmul_tf32/matmul_tf32.h"
#include "gemm/matmul_tf32/operand.cuh"

namespace warpsmith {

// How the operands lie: `width` values a copy.
template <Order a_, Order b_, int width_>
struct Operands {
  static constexpr Order a = a_, b = b_;
  static constexpr int width = width_;
};

template <class Block, class Operands>
struct Config {
  static constexpr int warps_m = Block::bm / Block::wm, warps_n = Block::bn / Block::wn;
  static constexpr int threads_ = warps_m * warps_n * 32;

  struct A {
    static constexpr Side side = Side::a;
    static constexpr int extent = Block::bm, bk = Block::bk, width = Operands::width, threads = threads_;
    static constexpr bool k_inner = Operands::a == Order::rows;
  };
  struct B {
    static constexpr Side side = Side::b;
    static constexpr int extent = Block::bn, bk = Block::bk, width = Operands::width, threads = threads_;
    static constexpr bool k_inner = Operands::b == Order::columns;
  };

  static constexpr int threads = threads_;
  static constexpr int stage = OperandTile<A>::size + OperandTile<B>::size;  // values
  static constexpr int shared = Block::stages * stage * static_cast<int>(sizeof(float));
  static constexpr int steps = Block::bk / kStepDepth;
};

// What a warp computes, as mma leaves it.
template <class Block>
struct Sums {
  static constexpr int tiles_m = Block::wm / 16, tiles_n = Block::wn / 8;
  float value[tiles_m][tiles_n][4];

  __device__ void clear() {
#pragma unroll
    for (auto& row : value) {
#pragma unroll
      for (auto& tile : row) {
#pragma unroll
        for (float& x : tile) x = 0.0f;
      }
    }
  }

  __device__ void add(const Sums& other) {
#pragma unroll
    for (int i = 0; i < tiles_m; ++i) {
#pragma unroll
      for (int j = 0; j < tiles_n; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) value[i][j][e] += other.value[i][j][e];
      }
    }
  }
};

template <class Block>
struct Fragments {
  Fragment<Block::wm / 16> a;
  Fragment<Block::wn / 16> b;
  static constexpr int pairs = decltype(a)::pairs + decltype(b)::pairs;

  __device__ __forceinline__ uint32_t (&pair(int i))[4] {
    return i < decltype(a)::pairs ? a.value[i] : b.value[i - decltype(a)::pairs];
  }
};

// One k-step.
template <class Block>
__device__ __forceinline__ void multiply(Sums<Block>& sums, const Fragments<Block>& x) {
#pragma unroll
  for (int i = 0; i < Sums<Block>::tiles_m; ++i) {
#pragma unroll
    for (int j = 0; j < Sums<Block>::tiles_n; ++j) {
      const uint32_t b[2] = {x.b.value[j / 2][j % 2 * 2], x.b.value[j / 2][j % 2 * 2 + 1]};
      ptx::mma_m16n8k8_tf32(sums.value[i][j], x.a.value[i], b);
    }
  }
}

// Writes the sums, or adds them to what is there: 64 neighbouring bytes of a row by four lanes. `out` is where the warp's
// part begins, in a matrix of rows of `pitch`, of which so many rows and columns are left.
template <class Block>
__device__ __forceinline__ void write(float* out, int64_t pitch, int rows_left, int cols_left, const Sums<Block>& sums,
                                      bool add) {
  int lane = static_cast<int>(threadIdx.x) % 32;
  asm volatile("" : "+r"(lane));  // or else addresses are computed, and kept, before the multiplications
  const bool packed = pitch % 4 == 0;
#pragma unroll
  for (int i = 0; i < 2 * Sums<Block>::tiles_m; ++i) {  // rows of this lane: a group's four slots, group by group
    const int row = i / kSlots * kGroupRows + row_of(lane / 4) + i % kSlots;
    if (row >= rows_left) continue;
#pragma unroll
    for (int j = 0; j < Sums<Block>::tiles_n / kSlots * 2; ++j) {
      const int col = j / 2 * kGroupRows + row_of(lane % 4 * 2 + j % 2);
      float* to = out + row * pitch + col;
      Vec<float, 4> values;
#pragma unroll
      for (int s = 0; s < kSlots; ++s) values[s] = sums.value[i / 2][j / 2 * kSlots + s][i % 2 * 2 + j % 2];
      if (packed) {
        if (col >= cols_left) continue;
        if (add) {
          Vec<float, 4> before;
          load(before, to);
#pragma unroll
          for (int s = 0; s < kSlots; ++s) values[s] += before[s];
        }
        ptx::store_at_once(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&values));
      } else {
#pragma unroll
        for (int s = 0; s < kSlots; ++s) {
          if (col + s < cols_left) to[s] = add ? to[s] + values[s] : values[s];
        }
      }
    }
  }
}

// Calls body.template operator()<a, b>() for the orders in which the operands lie.
template <class Body>
void dispatch_orders(const GemmArgs& p, Body&& body) {
  const auto with_b = [&]<Order a>() {
    p.b.order == Order::rows ? body.template operator()<a, Order::rows>()
                             : body.template operator()<a, Order::columns>();
  };
  p.a.order == Order::rows ? with_b.template operator()<Order::rows>() : with_b.template operator()<Order::columns>();
}

}  // namespace warpsmith
