// Which calls the rungs by wgmma take.
#pragma once

#include "gemm/scaled_matmul/wgmma_tiles.h"
#include "gemm/wgmma.h"

namespace warpsmith {

inline const char* needs_scaled_wgmma(const ScaledMatmulArgs& p) {
  const GemmArgs product = product_of(p);
  if (const char* reason = needs_wgmma(product)) return reason;
  if (const char* reason = needs_b_column_major(product)) return reason;
  if (const char* reason = needs_lines_for_maps(product)) return reason;
  return needs_tiles_in_grid(product);
}

}  // namespace warpsmith
