// A few queries as those of a cache that holds all keys: how the rung `few_queries` cuts a call (attention/kv_cache/split.h).
#pragma once

#include <cstdint>

#include "attention/attention.h"
#include "attention/kv_cache/tiles.h"
#include "host/launch.h"
#include "host/min_max.h"

namespace warpsmith {

// All sequences have `appended` tokens; `lengths` is null.
struct FewQueriesArgs : KvCacheArgs {
  MaskOptions mask;  // of which the tree is that of the cache
};

// Up to 16 queries share a head of keys.
template <class T, int d>
struct FewQueriesTile : SplitKvTile<T, d> {
  using Args = FewQueriesArgs;
  static constexpr bool masked = true;
};

// Fewer keys are with few blocks as soon.
inline constexpr int kFewestSharedKeys = 128;

// On the current device.
inline FewQueriesArgs as_few_queries(const AttentionArgs& a) {
  const DeviceInfo& info = device_info(current_device());
  FewQueriesArgs args{};
  args.q = a.q;
  args.out = a.out;
  args.k = a.k;
  args.v = a.v;
  args.lse = a.lse;
  args.appended = a.n;
  args.pages = {.table = nullptr,
                .table_stride = 0,
                .width = 1,
                .count = a.batch,
                .tokens = a.n,
                .by_tokens = FastDivide(static_cast<uint64_t>(std::max(a.n, 1)))};
  args.slopes = a.score.slopes;
  args.slopes_batch = a.score.slopes_batch;
  args.sinks = a.sinks;
  args.tree = a.mask.tree;
  args.batch = a.batch;
  args.m = a.m;
  args.q_heads = a.q_heads;
  args.kv_heads = a.kv_heads;
  args.d = a.d;
  args.dv = a.dv;
  args.scale = a.scale;
  args.softcap = a.score.softcap;
  args.left = a.left;
  args.right = a.right;
  args.dtype = a.dtype;
  args.cache_dtype = a.dtype;
  args.batch_invariant = a.batch_invariant;
  args.sm_count = info.sm_count;
  args.block_smem = info.block_smem;
  args.mask = a.mask;
  return args;
}

// Bytes for the rung.
inline int64_t few_queries_bytes(const AttentionArgs& a) {
  const FewQueriesArgs args = as_few_queries(a);
  int64_t floats = 0;
  dispatch_split<FewQueriesTile>(args, [&]<class T, class Tile>() { floats = workspace_floats<Tile>(args); });
  return floats * static_cast<int64_t>(sizeof(float));
}

}  // namespace warpsmith
