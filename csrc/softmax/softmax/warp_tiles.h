// How the rungs `warp`, forward and backward, deal rows out to lanes.
#pragma once

#include <tuple>

namespace warpsmith {

// lanes that share a row | values of each input that each of them holds
template <int lanes_, int values_>
struct WarpTile {
  static constexpr int lanes = lanes_, values = values_;
  static constexpr int most_cols = lanes * values;
  static constexpr int threads = 128, rows_per_block = threads / lanes;
};

// The first that holds the row is taken.
using WarpTiles = std::tuple<WarpTile<4, 1>, WarpTile<8, 1>, WarpTile<16, 1>, WarpTile<32, 1>, WarpTile<32, 2>,
                             WarpTile<32, 4>, WarpTile<32, 8>, WarpTile<32, 16>, WarpTile<32, 32>>;
inline constexpr int kMostWarpCols = std::tuple_element_t<std::tuple_size_v<WarpTiles> - 1, WarpTiles>::most_cols;

}  // namespace warpsmith
