// What the tensor-core rungs of the climb share on the host: their conditions, types and grids.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "gemm/gemm.h"
#include "gemm/operand_tile.h"
#include "gemm/split.h"
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

// The same for every slice of k (y) and every product (x).
template <class Tile>
LaunchConfig split_grid(const GemmArgs& p, const Split& split, int threads, int dynamic_smem) {
  const int64_t tiles = ceil_div(p.m, Tile::bm) * ceil_div(p.n, Tile::bn) * p.batch;
  return {.grid = {static_cast<unsigned>(tiles), static_cast<unsigned>(split.count)},
          .block = static_cast<unsigned>(threads),
          .dynamic_smem = dynamic_smem};
}

// Calls body.template operator()<a, b>() for the ways in which the lines of the operands run.
template <class Body>
void dispatch_layout(const GemmArgs& p, Body&& body) {
  const bool b_along_k = p.b.order == Order::columns;
  if (p.a.order == Order::rows) {
    b_along_k ? body.template operator()<Along::k, Along::k>() : body.template operator()<Along::k, Along::mn>();
  } else {
    b_along_k ? body.template operator()<Along::mn, Along::k>() : body.template operator()<Along::mn, Along::mn>();
  }
}

}  // namespace warpsmith
