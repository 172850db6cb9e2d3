// A convolution as a product of matrices on the tensor cores: for each tap, weights [rows, channels] times signals
// [channels, positions], these moved by the tap.
//   Operands lie as `arrange` puts them. A block has a tile of rows and positions. Its ring brings weights of one tap at a
//   time; positions of 64 channels come once for all taps, in lines of a position each: a tap reads other lines of them,
//   and one of zeros where the signal has ended. Nothing is laid out per tap in any memory.
#pragma once

#include <cstdint>

#include "device/fast_divide.h"
#include "device/pipeline.h"
#include "device/ptx/copy.h"
#include "device/start_early.h"
#include "tile/shared_limits.h"
#include "tile/thread_again.cuh"
#include "tile/warp_mma.cuh"
#include "vision/conv1d_group_norm/add_piece.cuh"
#include "vision/conv1d_group_norm/conv1d.h"
#include "vision/conv1d_group_norm/planes.cuh"

namespace warpsmith {

template <int bm_, int bn_, int warps_m_, int warps_n_, int blocks_>
struct Conv1dTile {
  static constexpr int bm = bm_, bn = bn_, bk = 64, warps_m = warps_m_, warps_n = warps_n_, stages = 3,
                       blocks = blocks_;
  static constexpr bool lone = false;
};
using LargeConv1dTile = Conv1dTile<128, 128, 2, 4, 1>;
using TallConv1dTile = Conv1dTile<128, 64, 2, 2, 2>;
using SmallConv1dTile = Conv1dTile<64, 64, 2, 2, 3>;

// For grids of so few blocks that each has a multiprocessor for itself: more warps and a longer ring, so that less of a
// step is waited for, and fewer positions, so that there are more blocks.
template <int bm_, int bn_>
struct LoneConv1dTile : Conv1dTile<bm_, bn_, 4, 2, 2> {
  static constexpr int stages = 4;
  static constexpr bool lone = true;
};
using LoneSmallConv1dTile = LoneConv1dTile<64, 64>;
using LoneNarrowConv1dTile = LoneConv1dTile<64, 32>;
using LoneTallConv1dTile = LoneConv1dTile<128, 32>;  // for groups of more than 64 channels

struct Conv1dProduct {
  const void* weights;  // planes of [taps, rows, pitch]
  const void* signals;  // planes of [positions, pitch]
  int64_t rows, positions, pitch;
  int length, taps, before;
  FastDivide by_length;
  int block_rows, block_positions;  // that a block finishes, at most those of its tile
  int64_t tiles_m;

  int64_t tiles() const { return tiles_m * ceil_div(positions, block_positions); }
};

// Lines of a block's positions: those that taps reach beyond them, and a last one of zeros, which makes 8 more.
template <class Tile>
struct Conv1dMemory {
  using A = OperandTile<Along::k, Tile::bm, Tile::bk, Swizzled>;
  using B = Swizzled<Tile::bn + kMostTaps + 1, Tile::bk>;
  static constexpr int zeros = Tile::bn + kMostTaps;
  static constexpr int sums_pitch = Tile::bn + 8;  // f32; rows of pairs that follow one another meet in no bank

  // So many tiles of positions are under way or in use at once.
  __host__ __device__ static constexpr int signal_slots(int taps) { return (Tile::stages - 2) / taps + 2; }
  static constexpr int bytes(int taps) {
    const int ring = 2 * (Tile::stages * A::size + signal_slots(taps) * B::size);
    const int sums = 4 * Tile::bm * sums_pitch;
    return ring > sums ? ring : sums;
  }
  static_assert(bytes(1) <= kSharedOfSm89, "a block of every GPU has room for the rings");
};

// Where a block's tile starts.
struct Conv1dPlace {
  int64_t row, position;
  __device__ __forceinline__ explicit Conv1dPlace(const Conv1dProduct& p)
      : row(blockIdx.x % p.tiles_m * p.block_rows), position(blockIdx.x / p.tiles_m * p.block_positions) {}
};

// A thread's part in the copies of both operands, step by step: taps within 64 channels within products of planes.
template <class Unit, class Tile, int planes>
class Conv1dCopies {
  using Memory = Conv1dMemory<Tile>;
  static constexpr int kThreads = Share<Tile>::threads, kLines = kThreads / 8;

 public:
  __device__ __forceinline__ Conv1dCopies(const Conv1dProduct& p, const Conv1dPlace& block, Unit* weights,
                                          Unit* signals)
      : p_(p), weights_(weights), signals_(signals), slots_(Memory::signal_slots(p.taps)) {
    row_ = block.row + line();
    position_ = block.position - p.before + line();
    for (int i = threadIdx.x; i < slots_ * 8; i += kThreads) {
      store(signals_ + i / 8 * Memory::B::size + Memory::B::at(Memory::zeros, i % 8 * 8), Vec<Unit, 8>{});
    }
  }

  // Starts the next step's copies; past the last there is nothing to copy, but the group counts.
  __device__ __forceinline__ void start(int slot) {
    if (product_ < PlaneProducts::end) {
      const bool inside = channel_ + chunk() < p_.pitch;
      copy_weights(slot, inside);
      if (tap_ == 0) copy_signals(inside);
      advance();
    }
    ptx::cp_async_commit();
  }

 private:
  __device__ __forceinline__ static int line() { return static_cast<int>(threadIdx.x) / 8; }
  __device__ __forceinline__ static int chunk() { return static_cast<int>(threadIdx.x) % 8 * 8; }

  __device__ __forceinline__ void copy_weights(int slot, bool inside) {
    const int64_t plane = PlaneProducts::a(product_) * p_.taps + tap_;
    const Unit* from = static_cast<const Unit*>(p_.weights) + (plane * p_.rows + row_) * p_.pitch + channel_ + chunk();
    Unit* to = weights_ + slot * Memory::A::size + Memory::A::at(line(), chunk());
#pragma unroll
    for (int r = 0; r < Tile::bm / kLines; ++r) {
      const bool valid = inside && row_ + r * kLines < p_.rows;
      ptx::cp_async_zfill(reinterpret_cast<uint4*>(to + Memory::A::moved(0, r * kLines, 0)),
                          reinterpret_cast<const uint4*>(from), valid);
      from += kLines * p_.pitch;
    }
  }

  __device__ __forceinline__ void copy_signals(bool inside) {
    const int64_t plane = PlaneProducts::b(product_) * p_.positions;
    const Unit* from = static_cast<const Unit*>(p_.signals) + (plane + position_) * p_.pitch + channel_ + chunk();
    Unit* to = signals_ + slot_ * Memory::B::size + Memory::B::at(line(), chunk());
#pragma unroll
    for (int r = 0; r < Tile::bn / kLines + 1; ++r) {
      const int64_t position = position_ + r * kLines;
      const bool valid = inside && position >= 0 && position < p_.positions;
      // of the last round, only the lines that taps reach
      if (r < Tile::bn / kLines || line() < kMostTaps) {
        ptx::cp_async_zfill(reinterpret_cast<uint4*>(to + Memory::B::moved(0, r * kLines, 0)),
                            reinterpret_cast<const uint4*>(from), valid);
      }
      from += kLines * p_.pitch;
    }
    if (++slot_ == slots_) slot_ = 0;
  }

  __device__ __forceinline__ void advance() {
    if (++tap_ < p_.taps) return;
    tap_ = 0;
    channel_ += Tile::bk;
    if (channel_ < p_.pitch) return;
    channel_ = 0;
    ++product_;
  }

  const Conv1dProduct& p_;
  Unit *weights_, *signals_;
  int64_t row_, position_, channel_ = 0;
  int slots_, slot_ = 0, tap_ = 0, product_ = PlaneProducts::first(planes);
};

// Adds up a block's tile. `memory`: Conv1dMemory::bytes(), free again when the last of the block's warps returns.
template <class Unit, class Tile, int planes, class Sums>
__device__ __forceinline__ void convolve_tile(Sums& sums, void* memory, const Conv1dProduct& p,
                                              const Conv1dPlace& block) {
  using Memory = Conv1dMemory<Tile>;
  using B = typename Memory::B;
  constexpr int kSteps = Tile::bk / 16, kReads = Share<Tile>::wn / 16;
  static_assert(kSteps % 2 == 0, "fragments alternate");
  auto* weights = static_cast<Unit*>(memory);
  Unit* signals = weights + Tile::stages * Memory::A::size;
  Conv1dCopies<Unit, Tile, planes> copies(p, block, weights, signals);
  const WarpPlace<Tile> warp;
  const FragmentReader<Side::a, typename Memory::A> read_a(warp.m);

  // the positions that this lane names to ldmatrix: where they are in the tile and in their signal
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first = warp.n + lane % 8 + lane / 16 * 8, middle = lane & 8;
  int along[kReads], from[kReads];
#pragma unroll
  for (int j = 0; j < kReads; ++j) {
    const int64_t position = block.position + first + 16 * j;
    along[j] = static_cast<int>(position - p.by_length.quotient_as(position) * p.length);
  }
  const auto aim = [&](int tap) {
#pragma unroll
    for (int j = 0; j < kReads; ++j) {
      const auto at = static_cast<unsigned>(along[j] + tap - p.before);
      from[j] = B::at(at < static_cast<unsigned>(p.length) ? first + 16 * j + tap : Memory::zeros, middle);
    }
  };
  Fragments<Share<Tile>::wm, Share<Tile>::wn> fragments[2];
  const auto read = [&](auto& to, const Unit* a, const Unit* b, int k) {
#pragma unroll
    for (int i = 0; i < Share<Tile>::wm / 16; ++i) read_a.read(to.a[i], a, 16 * i, k);
#pragma unroll
    for (int j = 0; j < kReads; ++j) {
      uint32_t both[4];
      ptx::ldmatrix(both, b + B::moved(from[j], 0, k));
      to.b[2 * j][0] = both[0];
      to.b[2 * j][1] = both[1];
      to.b[2 * j + 1][0] = both[2];
      to.b[2 * j + 1][1] = both[3];
    }
  };

  // fill all stages but one
#pragma unroll
  for (int slot = 0; slot < Tile::stages - 1; ++slot) copies.start(slot);
  ptx::cp_async_wait<Tile::stages - 2>();
  __syncthreads();

  // multiply
  aim(0);
  read(fragments[0], weights, signals, 0);
  const int slots = Memory::signal_slots(p.taps);
  const int steps_each = static_cast<int>(ceil_div(p.pitch, Tile::bk)) * p.taps;  // of a product of planes
  const int steps = (PlaneProducts::end - PlaneProducts::first(planes)) * steps_each;
  Sums totals;
  RingSlot<Tile::stages> at, ahead{Tile::stages - 1};
  int signal_slot = 0, tap = 0;
  for (int s = 0; s < steps; ++s) {
    const Unit* a = weights + at.slot * Memory::A::size;
    const Unit* b = signals + signal_slot * B::size;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step == 0) copies.start(ahead.slot);
      const int next = (step + 1) % kSteps;
      if (next == 0) {
        at.advance();
        ahead.advance();
        if (++tap == p.taps) {
          tap = 0;
          signal_slot = signal_slot + 1 == slots ? 0 : signal_slot + 1;
        }
        aim(tap);
        a = weights + at.slot * Memory::A::size;
        b = signals + signal_slot * B::size;
        ptx::cp_async_wait<Tile::stages - 2>();
        __syncthreads();  // the next step is here, and what is left of this one is in registers
      }
      read(fragments[next % 2], a, b, 16 * next);
      sums.add(fragments[step % 2]);
    }
    if (Pieces<planes, 0>(s >= steps - steps_each).end(s)) add_piece(totals, sums);
  }
  if constexpr (planes > 1) sums = totals;
  ptx::cp_async_wait<0>();
  __syncthreads();
}

// The tile's sums to shared memory, [bm, sums_pitch], plus a bias per row where there is one.
template <class T, class Tile, class Sums>
__device__ __forceinline__ void stage_sums(float* to, const Sums& sums, const T* bias, int64_t row, int64_t rows) {
  constexpr int kPitch = Conv1dMemory<Tile>::sums_pitch;
  const int thread = thread_again(), lane = thread % kWarp;
  const WarpPlace<Tile> warp(thread);
#pragma unroll
  for (int i = 0; i < Share<Tile>::wm / 16; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int m = warp.m + 16 * i + 8 * half + lane / 4;
      const float add = bias != nullptr && row + m < rows ? to_float(bias[row + m]) : 0.0f;
#pragma unroll
      for (int j = 0; j < Share<Tile>::wn / 8; ++j) {
        const float2 pair = sums.sums[i][j].pair(half);
        Vec<float, 2> values;
        values[0] = pair.x + add;
        values[1] = pair.y + add;
        store(to + m * kPitch + warp.n + 8 * j + lane % 4 * 2, values);
      }
    }
  }
  __syncthreads();
}

// From there to [n, rows, length], neighbours along the signal; pairs of them where signals have an even length.
template <class T, class Tile>
__device__ __forceinline__ void store_sums(T* to, const float* sums, const Conv1dProduct& p, const Conv1dPlace& block) {
  constexpr int kPairs = Tile::bn / 2, kPitch = Conv1dMemory<Tile>::sums_pitch;
  const int col = static_cast<int>(threadIdx.x) % kPairs * 2;
  int64_t at[2];
  bool inside[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t position = block.position + col + i, sample = p.by_length.quotient_as(position);
    at[i] = sample * p.rows * p.length + (position - sample * p.length);
    inside[i] = position < p.positions;
  }
  for (int m = static_cast<int>(threadIdx.x) / kPairs; m < Tile::bm; m += Share<Tile>::threads / kPairs) {
    const int64_t row = block.row + m;
    if (row >= p.rows) return;
    const float* values = sums + m * kPitch + col;
    if (p.length % 2 == 0) {
      Vec<T, 2> pair;
      pair[0] = from_float<T>(values[0]);
      pair[1] = from_float<T>(values[1]);
      if (inside[0]) store(to + at[0] + row * p.length, pair);
      continue;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (inside[i]) to[at[i] + row * p.length] = from_float<T>(values[i]);
    }
  }
}

// The convolution alone: y [n, rows, length].
template <class T, class Tile>
__global__ void __launch_bounds__(Share<Tile>::threads, Tile::blocks)
    conv1d_mma_kernel(const Conv1dProduct p, const T* bias, T* y) {
  extern __shared__ __align__(128) uint4 memory[];
  start_early();
  const Conv1dPlace block(p);
  WarpSums<typename Planes<T>::Unit, float, Tile> sums;
  convolve_tile<typename Planes<T>::Unit, Tile, Planes<T>::count>(sums, memory, p, block);
  auto* staged = reinterpret_cast<float*>(memory);
  stage_sums<T, Tile>(staged, sums, bias, block.row, p.rows);
  store_sums<T, Tile>(y, staged, p, block);
}

}  // namespace warpsmith
