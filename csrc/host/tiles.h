// Lists of tiles, and the first tile of a list that holds a row.
//
// A list is a struct with an array, so that every member of a tile stands there by name:
//
//   struct RowTiles {
//     static constexpr RowTile tiles[] = {{.threads = 128, .lanes = 4, .packs = 1, .min_blocks = 12}, ...};
//   };
//
// A kernel takes one of them as a type, TileAt<RowTiles, 0>, since nvcc cannot name a kernel after a value of class type.
#pragma once

#include <cstdint>
#include <iterator>
#include <tuple>
#include <utility>

namespace warpsmith {

namespace detail {

constexpr bool wants_full(const auto& tile) {
  if constexpr (requires { tile.filled; }) {
    return tile.filled;
  } else {
    return false;
  }
}

}  // namespace detail

template <class List, int i>
struct TileAt {
  static constexpr auto shape = List::tiles[i];
  static constexpr int64_t most_packs = shape.most_packs();
  // Shorter rows have been given to the tiles before. One that wants rows to fill it leaves others to the next.
  static constexpr int64_t least_packs = [] {
    int64_t given = 0;
    for (int j = 0; j < i; ++j) {
      if (!detail::wants_full(List::tiles[j])) given = List::tiles[j].most_packs();
    }
    return given + 1;
  }();
};

namespace detail {

template <class List, int... i>
std::tuple<TileAt<List, i>...> tiles_of(std::integer_sequence<int, i...>);

}  // namespace detail

template <class List>
using TilesOf =
    decltype(detail::tiles_of<List>(std::make_integer_sequence<int, static_cast<int>(std::size(List::tiles))>{}));

// Rows of at most this many packs fit the tiles.
template <class Tiles>
constexpr int64_t kMostRowPacks = std::tuple_element_t<std::tuple_size_v<Tiles> - 1, Tiles>::most_packs;

// Calls body.template operator()<Tile>() for the first tile of which holds.template operator()<Tile>() is true; false where
// there is none.
template <class... Tile, class Holds, class Body>
bool with_first_tile(std::tuple<Tile...>, Holds&& holds, Body&& body) {
  return ((holds.template operator()<Tile>() && (body.template operator()<Tile>(), true)) || ...);
}

// For the first tile that holds a row of so many packs.
template <class... Tile, class Body>
bool with_first_tile(std::tuple<Tile...> tiles, int64_t packs, Body&& body) {
  return with_first_tile(tiles, [packs]<class One>() { return packs <= One::most_packs; }, body);
}

}  // namespace warpsmith
