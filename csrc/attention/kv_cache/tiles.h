// The tiles of rungs that split keys among blocks, by the largest head dimension. All fit 99 KB a block.
#pragma once

#include <string_view>

#include "attention/kv_cache/split.h"
#include "host/min_max.h"

namespace warpsmith {

//                          d, warps along queries, groups, keys, stages, resident blocks
// Up to 16 queries share a head of keys: a warp is a group.
template <class T, int d>
struct SplitKvTile;
template <class T>
struct SplitKvTile<T, 64> : SplitTile<T, 64, 1, 4, 16, 4, 3> {};
template <class T>
struct SplitKvTile<T, 128> : SplitTile<T, 128, 1, 4, 16, 3, 2> {};
template <class T>
struct SplitKvTile<T, 256> : SplitTile<T, 256, 1, 2, 16, 2, 3> {};

template <class T, int d>
struct SplitKvE4m3Tile;
template <class T>
struct SplitKvE4m3Tile<T, 64> : SplitTile<e4m3, 64, 1, 4, 16, 6, 3> {};
template <class T>
struct SplitKvE4m3Tile<T, 128> : SplitTile<e4m3, 128, 1, 4, 16, 5, 2> {};
template <class T>
struct SplitKvE4m3Tile<T, 256> : SplitTile<e4m3, 256, 1, 2, 16, 4, 3> {};

// More queries: four warps share keys.
template <class T, int d>
struct QueryTilesTile;
template <class T>
struct QueryTilesTile<T, 64> : SplitTile<T, 64, 4, 1, 64, 3, 2> {};
template <class T>
struct QueryTilesTile<T, 128> : SplitTile<T, 128, 4, 1, 32, 6, 2> {};
template <class T>
struct QueryTilesTile<T, 256> : SplitTile<T, 256, 4, 1, 16, 4, 2> {};

template <class T, int d>
struct QueryTilesE4m3Tile;
template <class T>
struct QueryTilesE4m3Tile<T, 64> : SplitTile<e4m3, 64, 4, 1, 32, 6, 2> {};
template <class T>
struct QueryTilesE4m3Tile<T, 128> : SplitTile<e4m3, 128, 4, 1, 32, 6, 2> {};
template <class T>
struct QueryTilesE4m3Tile<T, 256> : SplitTile<e4m3, 256, 4, 1, 16, 8, 2> {};

// Where four warps share keys: `bytes` of a value in the cache.
inline bool suits_query_tiles(const KvCacheArgs& a, int bytes) {
  if (a.batch_invariant || a.rows() > kMostPairedQueries) return true;
  if (a.rows() <= kFewQueries) return false;
  return int64_t{a.batch} * a.pages.capacity() * a.kv_heads * (a.d + a.dv) * bytes > kMostPairedBytes;
}

// Calls body.template operator()<T, Tile>() for the types and the head dimension of a call.
template <template <class, int> class Tiles, class Body>
void dispatch_split(const KvCacheArgs& a, Body&& body) {
  const auto of_type = [&]<class T>() {
    const int most = std::max(a.d, a.dv);
    if (most <= 64) return body.template operator()<T, Tiles<T, 64>>();
    if (most <= 128) return body.template operator()<T, Tiles<T, 128>>();
    body.template operator()<T, Tiles<T, 256>>();
  };
  if (a.dtype == Dtype::f16) return of_type.template operator()<f16>();
  of_type.template operator()<bf16>();
}

// What a rung wants of memory, in f32; none where it does not split.
inline int64_t workspace_floats(std::string_view rung, const KvCacheArgs& a) {
  int64_t floats = 0;
  const auto measure = [&]<class T, class Tile>() { floats = workspace_floats<Tile>(a); };
  if (rung == "split_kv") dispatch_split<SplitKvTile>(a, measure);
  if (rung == "split_kv_e4m3") dispatch_split<SplitKvE4m3Tile>(a, measure);
  if (rung == "query_tiles") dispatch_split<QueryTilesTile>(a, measure);
  if (rung == "query_tiles_e4m3") dispatch_split<QueryTilesE4m3Tile>(a, measure);
  return floats;
}

}  // namespace warpsmith
