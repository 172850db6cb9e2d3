// Operands on their way while others are multiplied: a ring of stages in shared memory, which cp.async fills in turn.
//
// A rung's Config says what it is:
//   bm, bn, bk        values of a block's tile and of a step along k
//   warps_m, warps_n  the warps that share the tile
//   stages            of the ring, a step each
//   A, B              how the operands of a step lie in shared memory, an OperandTile each
#pragma once

#include <cstdint>

#include "tile/copy.cuh"
#include "tile/place.cuh"
#include "tile/shared_limits.h"

namespace warpsmith {

template <class Config>
inline constexpr int kRingBytes =
    Config::stages * static_cast<int>(sizeof(Stage<uint16_t, typename Config::A, typename Config::B>));

// When the copies of a step ahead set off, seen from the step at hand.
enum class Copies {
  first,         // before its fragments are read: early
  around_reads,  // half before the first reads, half behind them
  behind_reads,  // in parts behind the reads, which would wait for copies to be queued
};

// Blocks for which to leave registers on a multiprocessor: two where sums are f32; of sums in f16 three, if shared memory
// holds their rings.
template <class Config, class Acc>
constexpr int ring_blocks() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
  constexpr int kHeld = 228 * 1024;
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 800
  constexpr int kHeld = 164 * 1024;
#else
  constexpr int kHeld = 100 * 1024;
#endif
  constexpr int kReserved = 1024;  // of each block, for the system
  return sizeof(Acc) == 2 && 3 * (kRingBytes<Config> + kReserved) <= kHeld ? 3 : 2;
}

template <class T, class Config>
class OperandRing {
  using A = typename Config::A;
  using B = typename Config::B;
  static constexpr int kThreads = Share<Config>::threads;
  static_assert(sizeof(T) == sizeof(uint16_t) && Config::stages >= 2);
  static_assert(kRingBytes<Config> <= kSharedOfSm89, "a block of every GPU has room for the ring");

 public:
  using Stage = warpsmith::Stage<T, A, B>;
  Stage* const stages;  // [Config::stages]

  // `memory`: kRingBytes of shared memory. `block`: where its tile of the product starts.
  // a [m, k], b [k, n].
  __device__ __forceinline__ OperandRing(const Matrix& a, int64_t m, const Matrix& b, int64_t n, void* memory,
                                         Origin block)
      : stages(static_cast<Stage*>(memory)), copy_a_(a, 0, m, block.m, 0), copy_b_(b, 0, n, block.n, 0) {}

  // Starts copying the next step, from which on `k_left` values of k exist. Past the last there is nothing to copy, but
  // wait() counts the step. In parts, one after the other.
  __device__ __forceinline__ void start(int slot, int64_t k_left, int part = 0, int parts = 1) {
    copy_a_.start(stages[slot].a, k_left, part, parts);
    copy_b_.start(stages[slot].b, k_left, part, parts);
    if (part < parts - 1) return;
    ptx::cp_async_commit();
    copy_a_.advance();
    copy_b_.advance();
  }

  // The first steps: all slots but one.
  __device__ __forceinline__ void start_first(int64_t k) {
#pragma unroll
    for (int slot = 0; slot < Config::stages - 1; ++slot) start(slot, k - slot * Config::bk);
  }

  // Waits for the oldest step under way: this thread's part of it.
  __device__ __forceinline__ static void wait() { ptx::cp_async_wait<Config::stages - 2>(); }

 private:
  TileCopy<T, A, kThreads> copy_a_;
  TileCopy<T, B, kThreads> copy_b_;
};

}  // namespace warpsmith
