// Rotary positions applied to queries and keys, and keys and values of new tokens written into a cache.
#pragma once

#include <cuda_runtime.h>

#include "attention/store_kv/store_kv.h"
#include "rotary/rotary.h"

namespace warpsmith {

struct RopeStoreKvArgs {
  StoreKvArgs store;  // of keys before they turn
  RotaryHeads q;      // [batch, m, heads, d], turned into y
  RotaryAngles angles;
  bool in_place;  // y of q is x: what does not turn stays
  // Where nothing says at which positions tokens stand, these are their places in the cache, behind its lengths.
  bool behind_lengths;

  __host__ __device__ int rotary() const { return 2 * angles.pairs; }  // values of a head that turn
};

}  // namespace warpsmith
