// Permutations of dimensions, as one thing: batches of matrices, each of which is transposed. x[row, col] goes where the
// result has [col, row]. `rows` is the dimension along which the result is contiguous, `cols` the one along which x is; all
// others are the batch. Elements are moved, not looked at: kernels know their size alone.
#pragma once

#include <cstdint>

#include "device/fast_divide.h"
#include "host/ceil_div.h"
#include "host/conditions.h"
#include "host/dtype.h"
#include "host/min_max.h"

namespace warpsmith {

inline constexpr int kMostBatchDims = 6;

// The dimensions of the batch, innermost first.
struct BatchDims {
  int rank = 0;
  FastDivide sizes[kMostBatchDims];
  int64_t x[kMostBatchDims] = {}, y[kMostBatchDims] = {};  // strides in elements
};

struct TransposeArgs {
  const void* x;  // [batch, rows, cols]
  void* y;        // [batch, cols, rows]
  int64_t rows, cols;
  int64_t x_row, x_col;  // strides of x in elements
  int64_t y_col;         // elements of y from one column to the next; rows are neighbours
  int64_t count;         // matrices in the batch
  BatchDims batch;       // its first kMostBatchDims, where there are more
  int batch_rank;
  Dtype dtype;

  int64_t elements() const { return count * rows * cols; }
};

// Calls body.template operator()<T>() for an unsigned integer of the size of an element.
template <class Body>
void dispatch_size(Dtype dtype, Body&& body) {
  switch (size_of(dtype)) {
    case 1:
      return body.template operator()<uint8_t>();
    case 2:
      return body.template operator()<uint16_t>();
    default:
      return body.template operator()<uint32_t>();
  }
}

// --- tiles -----------------------------------------------------------------------------------------------------------

// How blocks share the batch out in tiles: tiles along the columns first, as x lies in memory.
struct TileGrid {
  FastDivide across, down;  // tiles of a matrix along its columns, and along its rows
  int64_t tiles;            // of the batch

  TileGrid(const TransposeArgs& a, int tile_rows, int tile_cols)
      : across(static_cast<uint64_t>(ceil_div(a.cols, tile_cols))),
        down(static_cast<uint64_t>(ceil_div(a.rows, tile_rows))),
        tiles(a.count * ceil_div(a.cols, tile_cols) * ceil_div(a.rows, tile_rows)) {}
};

// No tile has fewer rows or columns than these.
inline constexpr int kLeastTile = 16;

// --- what the rungs take ---------------------------------------------------------------------------------------------

inline const char* needs_rank(const TransposeArgs& a) {
  return a.batch_rank <= kMostBatchDims ? nullptr : "needs at most 8 dimensions after merging";
}

inline const char* needs_tiles(const TransposeArgs& a) {
  const int64_t tiles = a.count * ceil_div(a.rows, kLeastTile) * ceil_div(a.cols, kLeastTile);
  return tiles <= kMostRows ? nullptr : "needs at most 2^31 - 1 tiles";
}

// A matrix to transpose, whose rows are contiguous.
inline const char* needs_turning(const TransposeArgs& a) {
  return a.x_col == 1 && a.x_row != 1 ? nullptr : "needs x to be contiguous along another dimension than its result";
}

namespace detail {

inline bool divides(int64_t width, const int64_t* strides, int rank) {
  bool all = true;
  for (int d = 0; d < rank; ++d) all = all && strides[d] % width == 0;
  return all;
}

}  // namespace detail

// Whether accesses of `width` elements tile the rows of x.
inline bool reads_whole(const TransposeArgs& a, int width) {
  const auto bytes = static_cast<uintptr_t>(width) * static_cast<uintptr_t>(size_of(a.dtype));
  return a.x_col == 1 && a.cols % width == 0 && (a.rows == 1 || a.x_row % width == 0) &&
         reinterpret_cast<uintptr_t>(a.x) % bytes == 0 && detail::divides(width, a.batch.x, a.batch.rank);
}

// Whether they tile the columns of the result, which is an allocation of its own.
inline bool writes_whole(const TransposeArgs& a, int width) {
  return a.rows % width == 0 && (a.cols == 1 || a.y_col % width == 0) &&
         detail::divides(width, a.batch.y, a.batch.rank);
}

inline constexpr int kX4 = 4;

inline const char* needs_read_x4(const TransposeArgs& a) {
  return reads_whole(a, kX4) ? nullptr : "needs rows of x that are whole groups of 4 elements";
}

inline const char* needs_written_x4(const TransposeArgs& a) {
  return writes_whole(a, kX4) ? nullptr : "needs rows of the result that are whole groups of 4 elements";
}

inline bool has_packs(const TransposeArgs& a) {
  const int width = 16 / size_of(a.dtype);
  return reads_whole(a, width) && writes_whole(a, width);
}

inline const char* needs_packs(const TransposeArgs& a) {
  return has_packs(a) ? nullptr : "needs rows of x and of the result that are whole packs of 16 bytes";
}

inline const char* takes_any_strides(const TransposeArgs& a) { return needs_rank(a); }
inline const char* takes_tiles(const TransposeArgs& a) { return unmet({needs_rank(a), needs_tiles(a)}); }
inline const char* takes_turning(const TransposeArgs& a) {
  return unmet({needs_rank(a), needs_turning(a), needs_tiles(a)});
}

// Of fewer rows or columns, most of a tile lies outside of the matrix.
inline constexpr int64_t kSkinny = 8;

inline bool suits_tiles(const TransposeArgs& a) {
  return needs_turning(a) == nullptr && std::min(a.rows, a.cols) >= kSkinny;
}

}  // namespace warpsmith
