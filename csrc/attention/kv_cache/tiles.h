// The tiles of rungs that split keys among blocks, by the largest head dimension. All but those of clusters fit 99 KB a block.
#pragma once

#include <algorithm>
#include <string_view>

#include "attention/kv_cache/split.h"

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

// A block to a multiprocessor of sm_90, up to 227 KB: up to 16 queries, and up to 32.
template <class T, int d>
struct ClusterTile;
template <class T>
struct ClusterTile<T, 64> : SplitTile<T, 64, 1, 8, 16, 6, 1> {};
template <class T>
struct ClusterTile<T, 128> : SplitTile<T, 128, 1, 8, 16, 3, 1> {};
template <class T>
struct ClusterTile<T, 256> : SplitTile<T, 256, 1, 4, 16, 3, 1> {};

template <class T, int d>
struct ClusterE4m3Tile;
template <class T>
struct ClusterE4m3Tile<T, 64> : SplitTile<e4m3, 64, 1, 8, 32, 6, 1> {};
template <class T>
struct ClusterE4m3Tile<T, 128> : SplitTile<e4m3, 128, 1, 8, 16, 6, 1> {};
template <class T>
struct ClusterE4m3Tile<T, 256> : SplitTile<e4m3, 256, 1, 4, 16, 6, 1> {};

template <class T, int d>
struct ClusterPairTile;
template <class T>
struct ClusterPairTile<T, 64> : SplitTile<T, 64, 2, 4, 32, 6, 1> {};
template <class T>
struct ClusterPairTile<T, 128> : SplitTile<T, 128, 2, 4, 32, 3, 1> {};
template <class T>
struct ClusterPairTile<T, 256> : SplitTile<T, 256, 2, 4, 16, 3, 1> {};

template <class T, int d>
struct ClusterPairE4m3Tile;
template <class T>
struct ClusterPairE4m3Tile<T, 64> : SplitTile<e4m3, 64, 2, 4, 64, 6, 1> {};
template <class T>
struct ClusterPairE4m3Tile<T, 128> : SplitTile<e4m3, 128, 2, 4, 32, 6, 1> {};
template <class T>
struct ClusterPairE4m3Tile<T, 256> : SplitTile<e4m3, 256, 2, 4, 16, 6, 1> {};

// Which of the two a call gets, by how many queries share a head of keys.
inline bool has_few_queries(const KvCacheArgs& a) { return a.rows() <= 16; }

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
  const auto measure_clusters = [&]<class T, class Tile>() { floats = cluster_workspace_floats<Tile>(a); };
  if (rung == "split_cluster") {
    has_few_queries(a) ? dispatch_split<ClusterTile>(a, measure_clusters)
                       : dispatch_split<ClusterPairTile>(a, measure_clusters);
  }
  if (rung == "split_cluster_e4m3") {
    has_few_queries(a) ? dispatch_split<ClusterE4m3Tile>(a, measure_clusters)
                       : dispatch_split<ClusterPairE4m3Tile>(a, measure_clusters);
  }
  return floats;
}

}  // namespace warpsmith
