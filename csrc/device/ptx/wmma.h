// Fragments of nvcuda::wmma from shared memory, whose load_matrix_sync asks for 32 bytes of alignment, and which nvcc 13
// reads a word at a time from generic addresses in bf16. Both formats become ldmatrix here.
// PTX ISA, "wmma.load":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-wmma-ld
#pragma once

#include <mma.h>

#include <cstdint>

#include "device/ptx/memory.h"
#include "host/dtype.h"

namespace warpsmith::ptx {

template <int words, class Fragment>
__device__ __forceinline__ uint32_t (&words_of(Fragment& fragment)) [words] {
  static_assert(sizeof(fragment.x) == words * sizeof(uint32_t), "the instruction's registers");
  return reinterpret_cast<uint32_t (&)[words]>(fragment.x);
}

namespace fragments {
  using nvcuda::wmma::fragment;
  using nvcuda::wmma::matrix_a;
  using nvcuda::wmma::matrix_b;
  using nvcuda::wmma::row_major;
  using A16x16 = fragment<matrix_a, 16, 16, 16, bf16, row_major>;
  using B16x16 = fragment<matrix_b, 16, 16, 16, bf16, row_major>;
  using A32x8 = fragment<matrix_a, 32, 8, 16, bf16, row_major>;
  using B32x8 = fragment<matrix_b, 32, 8, 16, bf16, row_major>;
  using HalfB32x8 = fragment<matrix_b, 32, 8, 16, f16, row_major>;
}  // namespace fragments

// As nvcuda::wmma::load_matrix_sync, but `from` need be aligned to no more than 16 bytes, that of A32x8 to 32. `stride`
// is a multiple of 8 values. Both are found to be enough (selftest/wmma.cu).
__device__ __forceinline__ void wmma_load(fragments::A16x16& to, const bf16* from, unsigned stride) {
  uint32_t (&x)[4] = words_of<4>(to);
  asm volatile("wmma.load.a.sync.aligned.row.m16n16k16.shared.bf16 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(shared_address(from)), "r"(stride)
               : "memory");
}

__device__ __forceinline__ void wmma_load(fragments::B16x16& to, const bf16* from, unsigned stride) {
  uint32_t (&x)[4] = words_of<4>(to);
  asm volatile("wmma.load.b.sync.aligned.row.m16n16k16.shared.bf16 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(shared_address(from)), "r"(stride)
               : "memory");
}

__device__ __forceinline__ void wmma_load(fragments::A32x8& to, const bf16* from, unsigned stride) {
  uint32_t (&x)[8] = words_of<8>(to);
  asm volatile("wmma.load.a.sync.aligned.row.m32n8k16.shared.bf16 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8], %9;"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]), "=r"(x[4]), "=r"(x[5]), "=r"(x[6]), "=r"(x[7])
               : "r"(shared_address(from)), "r"(stride)
               : "memory");
}

__device__ __forceinline__ void wmma_load(fragments::B32x8& to, const bf16* from, unsigned stride) {
  uint32_t (&x)[2] = words_of<2>(to);
  asm volatile("wmma.load.b.sync.aligned.row.m32n8k16.shared.bf16 {%0, %1}, [%2], %3;"
               : "=r"(x[0]), "=r"(x[1])
               : "r"(shared_address(from)), "r"(stride)
               : "memory");
}

// Eight registers, for which the ISA asks for 32 bytes; they hold two, four times over: one row of ldmatrix is 16 bytes.
__device__ __forceinline__ void wmma_load(fragments::HalfB32x8& to, const f16* from, unsigned stride) {
  uint32_t (&x)[8] = words_of<8>(to);
  asm volatile("wmma.load.b.sync.aligned.row.m32n8k16.shared.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8], %9;"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]), "=r"(x[4]), "=r"(x[5]), "=r"(x[6]), "=r"(x[7])
               : "r"(shared_address(from)), "r"(stride)
               : "memory");
}

}  // namespace warpsmith::ptx
