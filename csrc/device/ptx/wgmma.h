// Products on the tensor cores by a warpgroup, four warps of which the first has a number that 4 divides (sm_90a): d[64, n] +=
// a[64, k] b[k, n], in the background. b lies in shared memory, a there or in registers, the sums in registers.
// PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions
//
// k is 32 bytes of values: 16 of 16 bits, 8 of TF32, 32 of 8 bits. n is a multiple of 8, 256 at most; of s8 a multiple of
// 16 from 32 on. Warp w of the four has rows 16 w to 16 w + 15. Lane l holds, with g = l / 4 and t = l % 4, of these:
//   d[4 j + i]  column 8 j + 2 t + i % 2 of row g + 8 (i / 2); sums in f16 two to a word, d[2 j + i / 2]
//   a[i]        of operands in registers, as device/ptx/mma.h has it
//
//   wgmma_fence()                       after whatever the threads did with the sums, and with a in registers
//   wgmma<Kind>(sums, a, b, adds)     one or more, which run in the order of their issue
//   wgmma_commit()                      closes a group
//   wgmma_wait<pending>(sums)           until all but so many groups are done, and have read what they read
//
// What threads wrote to shared memory they fence (fence_proxy_async) and meet at a barrier before others multiply it.
#pragma once

#include <cstdint>
#include <type_traits>

#include "device/ptx/barrier.h"
#include "device/ptx/tma.h"
#include "device/ptx/wgmma_statement.h"
#include "device/wgmma_kind.h"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define WARPSMITH_HAS_WGMMA 1
#else
#define WARPSMITH_HAS_WGMMA 0
#endif

namespace warpsmith::ptx {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Keeps what the compiler does with registers, or arrays of them, on its side of this.
template <class Registers>
__device__ __forceinline__ void pin(Registers& r) {
  if constexpr (std::is_array_v<Registers>) {
#pragma unroll
    for (auto& each : r) pin(each);
  } else if constexpr (std::is_same_v<Registers, float>) {
    asm volatile("" : "+f"(r)::"memory");
  } else {
    asm volatile("" : "+r"(r)::"memory");
  }
}

// Of groups that this warpgroup closed. Sums that it goes on to read are named, so that nothing reads them before.
template <int pending, class... Sums>
__device__ __forceinline__ void wgmma_wait(Sums&... sums) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
  (pin(sums), ...);
}

// By descriptors of shared memory (device/matrix_descriptor.h). `adds`: otherwise the sums begin with this product.
template <class Kind, class Register, int registers>
__device__ __forceinline__ void wgmma(Register (&d)[registers], uint64_t a, uint64_t b, bool adds) {
  using Shape = WgmmaShape<Kind, Register, registers>;
  detail::wgmma_statement<typename Shape::Shared>(d, detail::SharedA{a}, b, adds);
}

// The same with a in registers.
template <class Kind, class Register, int registers>
__device__ __forceinline__ void wgmma(Register (&d)[registers], const uint32_t (&a)[4], uint64_t b, bool adds) {
  using Shape = WgmmaShape<Kind, Register, registers>;
  detail::wgmma_statement<typename Shape::Registers>(d, detail::RegisterA{.words = {a[0], a[1], a[2], a[3]}}, b, adds);
}

// As mbarrier_wait, by threads that leave it to wgmma and to the copy engine to read what has landed: these need no fence
// before others copy over it.
__device__ __forceinline__ void mbarrier_wait_unread(uint64_t* barrier, int parity) { mbarrier_wait(barrier, parity); }

#endif

}  // namespace warpsmith::ptx
