// Indices that a kernel reads, which nothing on the host has seen.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "device/ptx/trap.h"

namespace warpsmith {

__device__ __forceinline__ int64_t read_index(const void* index, int64_t at, bool wide) {
  if (wide) return __ldg(static_cast<const long long*>(index) + at);
  return __ldg(static_cast<const int32_t*>(index) + at);
}

__device__ __forceinline__ bool is_outside(int64_t row, int64_t rows) {
  return static_cast<uint64_t>(row) >= static_cast<uint64_t>(rows);
}

// Ends the kernel.
__device__ __forceinline__ void end_if(bool outside) {
  if (outside) ptx::trap_with("an index lies outside of the rows that there are");
}

// An index outside of [0, rows) ends the kernel.
__device__ __forceinline__ int64_t check_index(int64_t row, int64_t rows) {
  end_if(is_outside(row, rows));
  return row;
}

}  // namespace warpsmith
