// Operands on their way while others are multiplied: a ring of stages in shared memory, which cp.async fills in turn.
//
// A rung's Config says what it is:
//   bm, bn, bk        values of a block's tile and of a step along k
//   warps_m, warps_n  the warps that share the tile
//   stages            of the ring, a step each
//   A, B              how the operands of a step lie in shared memory, an OperandTile each
#pragma once

#include <cstdint>

#include "gemm/tile_copy.cuh"
#include "gemm/tile_origin.cuh"

namespace warpsmith {

template <class Config>
inline constexpr int kRingBytes =
    Config::stages * static_cast<int>(sizeof(Stage<uint16_t, typename Config::A, typename Config::B>));

template <class T, class Config>
class OperandRing {
  using A = typename Config::A;
  using B = typename Config::B;
  static constexpr int kThreads = Share<Config>::threads;
  static_assert(sizeof(T) == sizeof(uint16_t) && Config::stages >= 2);

 public:
  using Stage = warpsmith::Stage<T, A, B>;
  Stage* const stages;  // [Config::stages]

  // `memory`: kRingBytes of shared memory. `block`: where its tile of the product starts.
  __device__ __forceinline__ OperandRing(const GemmArgs& p, void* memory, Origin block)
      : stages(static_cast<Stage*>(memory)), copy_a_(p.a, 0, p.m, block.m, 0), copy_b_(p.b, 0, p.n, block.n, 0) {}

  // Starts copying the next step, from which on `k_left` values of k exist. Past the last there is nothing to copy, but
  // wait() counts the step.
  __device__ __forceinline__ void start(int slot, int64_t k_left) {
    copy_a_.start(stages[slot].a, k_left);
    copy_b_.start(stages[slot].b, k_left);
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
