// Copies of operands whose lines do not start at multiples of 16 bytes, or end there: in the workspace, each line is
// followed by zeros up to the next multiple. kernels/warpsmith/gemm/padding.py says the same.
#pragma once

#include <cuda_runtime.h>

#include <initializer_list>
#include <string_view>

#include "gemm/gemm.h"
#include "gemm/split.h"

namespace warpsmith {

// Whether a rung of this name makes copies.
inline bool is_padded_rung(std::string_view name) { return name == "mma_padded" || name == "wgmma_padded"; }

inline constexpr int64_t kPadTo = 8;  // values of 16 bits

constexpr int64_t padded(int64_t length) { return ceil_div(length, kPadTo) * kPadTo; }

// Values from one line of a copy to the next: long lines start where those of the caches do.
constexpr int64_t padded_pitch(int64_t length) {
  constexpr int64_t kLong = 512, kCacheLine = 64;
  return length < kLong ? padded(length) : ceil_div(length, kCacheLine) * kCacheLine;
}

// An operand as lines, rows or columns, of contiguous values.
struct Lines {
  int64_t matrices, count, length;

  int64_t copied() const { return matrices * count * padded_pitch(length); }  // values that the copy has room for
};

inline Lines lines_of(const GemmArgs& p, const Matrix& x, int64_t rows, int64_t cols) {
  const int64_t matrices = x.batch == 0 ? 1 : p.batch;
  return x.order == Order::rows ? Lines{matrices, rows, cols} : Lines{matrices, cols, rows};
}
inline Lines lines_of_a(const GemmArgs& p) { return lines_of(p, p.a, p.m, p.k); }
inline Lines lines_of_b(const GemmArgs& p) { return lines_of(p, p.b, p.k, p.n); }

// Whether the operand is copied; what lies in packs is read where it is. Of batch-invariant products lines that overlap are
// copied too, as those of an expanded row do: maps have none.
inline bool pads(const GemmArgs& p, const Matrix& x, int64_t rows, int64_t cols) {
  const Lines lines = lines_of(p, x, rows, cols);
  const bool overlap = lines.count > 1 && x.ld < lines.length;
  return !in_packs(x, rows, cols, p.dtype, 16) || (p.batch_invariant && overlap);
}
inline bool pads_a(const GemmArgs& p) { return pads(p, p.a, p.m, p.k); }
inline bool pads_b(const GemmArgs& p) { return pads(p, p.b, p.k, p.n); }

inline int64_t copied_values(const GemmArgs& p) {
  return (pads_a(p) ? lines_of_a(p).copied() : 0) + (pads_b(p) ? lines_of_b(p).copied() : 0);
}

// Whether copies cost less than products of packs save. Estimates, in multiplications: what a value that is copied
// costs, against what a multiplication is quicker by; and what launching the kernel does.
inline bool worth_padding(const GemmArgs& p) {
  constexpr double kPerValue = 200.0, kLaunch = 5e8;
  constexpr int64_t kMostCopied = int64_t{1} << 30;  // values: a call must not want for memory because of them
  if (p.dtype == Dtype::f32) return false;
  const int64_t copied = copied_values(p);
  if (copied == 0 || copied > kMostCopied) return false;
  const double work =
      static_cast<double>(p.batch) * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
  return work > kLaunch + kPerValue * static_cast<double>(copied);
}

// The same for wgmma, by which batch-invariant products are multiplied whether their rows are in packs or not: it adds up
// otherwise than mma.sync, so that neither how many rows there are nor where they lie may choose between the two.
inline bool worth_padding_for_wgmma(const GemmArgs& p) {
  const bool always = p.batch_invariant && p.sm == 90 && p.dtype != Dtype::f32;
  return always ? copied_values(p) > 0 : worth_padding(p);
}

// The copies lie behind the partial sums.
inline int64_t copies_offset(const GemmArgs& p) {
  constexpr int64_t kLine = 128;  // bytes
  return ceil_div(split_workspace_bytes(p), kLine) * kLine;
}

// Copies what is not in packs, and multiplies by the first of the rungs that takes the copies and suits them. Defined in
// matmul/mma_padded.cu.
void launch_padded(const GemmArgs& p, cudaStream_t stream, std::initializer_list<std::string_view> rungs);

// What such rungs take.
inline const char* needs_padding(const GemmArgs& p) {
  return pads_a(p) || pads_b(p) ? nullptr : "needs a or b not in packs of 16 bytes";
}

inline int64_t padded_workspace_bytes(const GemmArgs& p) {
  return copies_offset(p) + copied_values(p) * size_of(p.dtype);
}

}  // namespace warpsmith
