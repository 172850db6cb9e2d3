// A matrix product with few rows as the kernels that stream weights see it: the rows of a are the vectors, the columns
// of b the rows of the weights.
#pragma once

#include <utility>

#include "gemm/epilogue.cuh"
#include "gemm/skinny_sum.cuh"
#include "gemm/split.h"
#include "host/min_max.h"

namespace warpsmith {

// With what is done to the product.
struct ProductArgs : SkinnyArgs {
  GemmArgs product;
};

template <class X>
__device__ __forceinline__ float read_ahead(const ProductArgs& a, int vector, int64_t row) {
  return addend_at<X>(a.product, 0, vector, row);
}

template <class X>
__device__ __forceinline__ X finish_sum(const ProductArgs& a, int64_t /*row*/, float sum, float ahead) {
  return finish<X>(a.product, sum, ahead);
}

inline const char* needs_few_rows(const GemmArgs& p) {
  constexpr int64_t kMost = 0x7fffffff;
  if (p.m > kMostVectors && p.n > 1) return "needs at most 16 rows, or one column";
  return max_of(p.m, p.n, p.k) <= kMost ? nullptr : "needs sizes of at most 2^31 - 1";
}

// The same product with few rows: of one column, d^T = b^T a^T.
inline GemmArgs with_few_rows(GemmArgs p) {
  if (p.m <= kMostVectors) return p;
  const auto flip = [](Matrix& x) { x.order = x.order == Order::rows ? Order::columns : Order::rows; };
  std::swap(p.a, p.b);
  flip(p.a);
  flip(p.b);
  std::swap(p.m, p.n);
  std::swap(p.c.row, p.c.col);
  return p;
}

// `slices` of k, or as many as the workspace has room for.
inline ProductArgs skinny_args(const GemmArgs& p, int64_t slices) {
  const int splits = static_cast<int>(std::min(slices, most_splits(p)));
  return {{
              .a = p.b.data,
              .x = p.a.data,
              .y = p.d,
              .scale = nullptr,
              .partial = splits > 1 ? static_cast<float*>(p.workspace) : nullptr,
              .m = p.n,
              .k = p.k,
              .vectors = static_cast<int>(p.m),
              .splits = splits,
              .a_row = p.b.ld,
              .x_row = p.a.ld,
              .y_row = p.n,
              .scale_step = 0,
          },
          p};
}

}  // namespace warpsmith
