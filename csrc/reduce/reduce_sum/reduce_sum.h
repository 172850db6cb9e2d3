// The sum of all elements: y = x[0] + x[1] + ... + x[n - 1].
#pragma once

#include <cstdint>

#include "host/dtype.h"
#include "host/min_max.h"
#include "reduce/one_pass.h"
#include "reduce/two_pass.h"

namespace warpsmith {

// In what a thread adds up its values, and in `one_pass` a warp those of a short input; what is left of them is joined
// in double or int64 in any case.
enum class Accumulator {
  wide,  // f32; int32 for i8, int64 for i32
  f16,   // of f16 and fp8
  bf16,  // of bf16
};

struct ReduceSumArgs {
  const void* x;    // [n], n > 0, without gaps
  void* y;          // one value: the dtype of x, f32 for fp8, int64 for integers
  void* workspace;  // aligned to 8 bytes
  int64_t n;
  int sm_count;
  Dtype dtype;  // of x
  Accumulator accumulator;
};

inline const char* needs_wide_accumulator(const ReduceSumArgs& a) {
  return a.accumulator == Accumulator::wide ? nullptr : "accumulates in f32";
}

// Workspace of the rung that asks for most: in the climb each block of 256 threads leaves a double for at least 256
// values, and the next launch does the same with what the one before it left. The other rungs leave fewer;
// `one_pass` and `two_pass` say how many.
inline int64_t climb_workspace_bytes(int64_t n) {
  constexpr int kPasses = 8;  // no more, with 2^63 values
  return static_cast<int64_t>(sizeof(double)) * (n / 255 + kPasses);
}

}  // namespace warpsmith
