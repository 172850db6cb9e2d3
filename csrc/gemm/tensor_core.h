// What the tensor-core rungs of the climb share on the host: their grids, and the layouts of operands.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "gemm/gemm.h"
#include "gemm/split.h"
#include "gemm/types.h"
#include "host/launch.h"
#include "tile/operand_tile.h"

namespace warpsmith {

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
