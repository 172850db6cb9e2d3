// From the number of a tile, which a choice gives, to the tile that kernels are compiled for.
#pragma once

#include <cstddef>
#include <utility>

#include "gemm/wgmma_tiles.h"
#include "host/launch.h"

namespace warpsmith {

// Calls launch.template operator()<tile>() for the tile of `menu`, an array of WgmmaTile.
template <const auto& menu, class Launch>
void launch_tile_of(int chosen, Launch&& launch) {
  const bool known = [&]<size_t... tile>(std::index_sequence<tile...>) {
    return ((chosen == tile && (launch.template operator()<menu[tile]>(), true)) || ...);
  }(std::make_index_sequence<sizeof(menu) / sizeof(menu[0])>());
  if (!known) broken_promise("a tile of the menu");
}

}  // namespace warpsmith
