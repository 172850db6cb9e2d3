// Queries, keys and values between the layout of a fused projection, [b, s, (heads + 2 kv_heads) d], and heads of their own,
// [b, heads, s, d] and twice [b, kv_heads, s, d].
#pragma once

#include <cstdint>

#include "device/fast_divide.h"
#include "host/ceil_div.h"
#include "host/conditions.h"
#include "host/dtype.h"

namespace warpsmith {

struct QkvArgs {
  void* packed;      // [b, s, heads + 2 kv_heads, d]
  const void* bias;  // [heads + 2 kv_heads, d], or null; only on the way apart
  void *q, *k, *v;   // [b, heads or kv_heads, s, d]
  int64_t batch, tokens, heads, kv_heads, d;
  Dtype dtype;

  int64_t all_heads() const { return heads + 2 * kv_heads; }
  int64_t elements() const { return batch * tokens * all_heads() * d; }
};

inline const char* needs_head_packs(const QkvArgs& a) {
  const int64_t width = 16 / size_of(a.dtype);
  for (const void* data : {static_cast<const void*>(a.packed), a.bias, static_cast<const void*>(a.q),
                           static_cast<const void*>(a.k), static_cast<const void*>(a.v)}) {
    if (reinterpret_cast<uintptr_t>(data) % 16 != 0) return "needs heads of whole packs of 16 bytes, aligned to these";
  }
  return a.d % width == 0 ? nullptr : "needs heads of whole packs of 16 bytes, aligned to these";
}

// Threads in the order of the packed side, `width` values each.
struct QkvGrid {
  FastDivide groups, all_heads, tokens;
  int64_t threads;

  QkvGrid(const QkvArgs& a, int width)
      : groups(static_cast<uint64_t>(a.d / width)),
        all_heads(static_cast<uint64_t>(a.all_heads())),
        tokens(static_cast<uint64_t>(a.tokens)),
        threads(a.elements() / width) {}
};

#ifdef __CUDACC__
struct QkvPlace {
  void* of;        // q, k or v
  int64_t group;   // there
  int64_t column;  // group of the bias
};

__device__ __forceinline__ QkvPlace qkv_place(const QkvArgs& a, const QkvGrid& grid, int64_t thread) {
  const auto groups = static_cast<int64_t>(grid.groups.divisor), all = static_cast<int64_t>(grid.all_heads.divisor);
  const int64_t head_of_token = grid.groups.quotient_as(thread), col = thread - head_of_token * groups;
  const int64_t token_of_batch = grid.all_heads.quotient_as(head_of_token);
  const int64_t head = head_of_token - token_of_batch * all;
  const int64_t b = grid.tokens.quotient_as(token_of_batch), token = token_of_batch - b * a.tokens;
  const bool is_q = head < a.heads, is_k = head < a.heads + a.kv_heads;
  const int64_t count = is_q ? a.heads : a.kv_heads;
  const int64_t own = is_q ? head : is_k ? head - a.heads : head - a.heads - a.kv_heads;
  return {.of = is_q   ? a.q
                : is_k ? a.k
                       : a.v,
          .group = ((b * count + own) * a.tokens + token) * groups + col,
          .column = head * groups + col};
}
#endif

}  // namespace warpsmith
