// Which calls the rungs by wgmma take.
#pragma once

#include "gemm/scaled_grouped_matmul/scaled_grouped_matmul.h"
#include "gemm/wgmma.h"

namespace warpsmith {

// Whether the copy engine finds its way in x, w and d.
inline const char* needs_lines_for_maps(const ScaledGroupedArgs& p) {
  const int64_t products = p.w.batch == 0 ? 1 : p.groups.count;
  const bool maps =
      can_map(p.x.data, p.m, p.k, p.x.ld, 1) &&
      can_map({.data = p.w.data, .type = {}, .rank = 3, .sizes = {products, p.n, p.k}, .strides = {p.w.batch, p.w.ld}},
              1);
  return maps && p.n % 8 == 0 && p.m < 0x7fffffff && p.k < 0x7fffffff
             ? nullptr
             : "needs x, w and the product in lines that begin at multiples of 16 bytes and do not overlap, and sizes "
               "below 2^31 - 1";
}

// What groups of either kind must be for wgmma.
inline const char* needs_wgmma_groups(const ScaledGroupedArgs& p) {
  if (p.sm != 90) return "needs sm_90, the only one with wgmma";
  if (p.out == Dtype::f32) return "gives f16 and bf16";
  if (const char* reason = needs_few_groups(p.groups)) return reason;
  if (p.w.order != Order::columns) return "needs w column-major";
  if (const char* reason = needs_lines_for_maps(p)) return reason;
  return needs_countable_tiles(p);
}

}  // namespace warpsmith
