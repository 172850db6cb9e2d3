// The dot product of two vectors: out = x[0] * y[0] + ... + x[n - 1] * y[n - 1].
#pragma once

#include <cstdint>

#include "host/dtype.h"
#include "reduce/one_pass.h"
#include "reduce/two_pass.h"

namespace warpsmith {

struct DotArgs {
  const void* x;    // [n], n > 0, contiguous
  const void* y;    // [n], contiguous
  void* out;        // one value
  void* workspace;  // aligned to 8 bytes
  int64_t n;
  int sm_count;
  Dtype dtype;        // of x, y and out
  Dtype accumulator;  // f32, or f16 of f16
};

// Workspace of the rungs of two launches: each block leaves 8 bytes for at least that many values.
inline constexpr int kDotValuesPerBlock = 4096;
inline int64_t dot_workspace_bytes(int64_t n) { return 8 * (n / kDotValuesPerBlock + 1); }

// Whether aligned accesses of that many bytes, which start where those of x do, are aligned in y too.
inline bool aligned_alike(const DotArgs& a, int bytes) {
  return (reinterpret_cast<uintptr_t>(a.x) - reinterpret_cast<uintptr_t>(a.y)) % static_cast<uintptr_t>(bytes) == 0;
}

inline const char* needs_pairs(const DotArgs& a) {
  return aligned_alike(a, 4) ? nullptr : "needs x and y aligned alike to 4 bytes";
}

inline const char* needs_packs(const DotArgs& a) {
  return aligned_alike(a, 16) ? nullptr : "needs x and y aligned alike to 16 bytes";
}

inline const char* needs_f32_accumulator(const DotArgs& a) {
  return a.accumulator == Dtype::f32 ? nullptr : "accumulates in f32";
}

}  // namespace warpsmith
