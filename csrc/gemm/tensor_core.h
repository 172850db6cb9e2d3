// What the tensor-core rungs of the climb share on the host: their conditions, types and grids.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "gemm/gemm.h"
#include "host/dtype.h"
#include "host/launch.h"

namespace warpsmith {

// d = a b of row-major operands, 16 bytes an access.
inline const char* takes_nn(const GemmArgs& p) {
  if (const char* reason = needs_16_bits(p)) return reason;
  if (const char* reason = needs_plain(p)) return reason;
  if (const char* reason = needs_row_major(p)) return reason;
  return needs_packs_16(p);
}

// The same with b column-major.
inline const char* takes_tn(const GemmArgs& p) {
  if (const char* reason = needs_16_bits(p)) return reason;
  if (const char* reason = needs_plain(p)) return reason;
  if (const char* reason = needs_b_column_major(p)) return reason;
  return needs_packs_16(p);
}

// Calls body.template operator()<T, Acc>() for the operands' type and the accumulator's.
template <class Body>
void dispatch_tensor_core(const GemmArgs& p, Body&& body) {
  if (p.accumulator == Dtype::f16) return body.template operator()<f16, f16>();
  p.dtype == Dtype::f16 ? body.template operator()<f16, float>() : body.template operator()<bf16, float>();
}

// A block for each tile of the product.
template <class Tile>
LaunchConfig block_per_tile(const GemmArgs& p, int threads, int dynamic_smem = 0) {
  const int64_t tiles = ceil_div(p.m, Tile::bm) * ceil_div(p.n, Tile::bn);
  return {.grid = static_cast<unsigned>(tiles), .block = static_cast<unsigned>(threads), .dynamic_smem = dynamic_smem};
}

}  // namespace warpsmith
