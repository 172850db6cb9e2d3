// How the work of a single launch is cut.
#pragma once

#include "reduce/walk.h"

namespace warpsmith {

// The tiles of a call with that many operands.
template <int operands>
struct OnePass {
  // Short calls: a tile to a block, the smallest of which two to a multiprocessor are enough.
  using Small = WalkTile<2 / operands, 6, true>;
  using Middle = WalkTile<4 / operands, 6, true>;
  using Large = WalkTile<8 / operands, 4, true>;
  static constexpr int kSingles = 2;  // blocks per multiprocessor
  // Longer ones: the blocks fill the GPU once, and each walks over several tiles.
  using Usual = WalkTile<4, operands == 1 ? 6 : 4>;
  using Long = WalkTile<8 / operands, 4>;

  // Of workspace: the sum of each block, and a ticket.
  static int64_t workspace_bytes(int sm_count) {
    return (int64_t{std::max(Usual::blocks, Long::blocks)} * sm_count + 1) * 8;
  }
};

// Calls body.template operator()<Tile>(walk, early) for that many packs of each of `operands` operands.
template <int operands, class Body>
void visit_one_pass(int64_t packs, int sm_count, Body&& body) {
  using Tiles = OnePass<operands>;
  const auto single = [&]<class Tile>() {
    const int64_t most = int64_t{Tiles::kSingles} * sm_count;
    const bool fits = packs <= most * Tile::size;
    if (fits) body.template operator()<Tile>(strided<Tile>(packs, most), true);
    return fits;
  };
  if (single.template operator()<typename Tiles::Small>()) return;
  if (single.template operator()<typename Tiles::Middle>()) return;
  if (single.template operator()<typename Tiles::Large>()) return;

  // Blocks that start early take places as they become free, unevenly: the more tiles each has, the longer the GPU
  // waits for the multiprocessors that got too many. Of several tiles a block had better take neighbours, of very many
  // those that all blocks are at together.
  constexpr int64_t kEarly = 5, kChunk = 64;  // tiles of a block at most
  using Usual = typename Tiles::Usual;
  using Long = typename Tiles::Long;
  const int64_t wave = int64_t{Long::blocks} * sm_count, tiles = ceil_div(packs, wave * Long::size);
  if (tiles <= kEarly) {
    body.template operator()<Usual>(strided<Usual>(packs, int64_t{Usual::blocks} * sm_count), true);
  } else {
    body.template operator()<Long>(tiles <= kChunk ? chunked<Long>(packs, wave) : strided<Long>(packs, wave), false);
  }
}

}  // namespace warpsmith
