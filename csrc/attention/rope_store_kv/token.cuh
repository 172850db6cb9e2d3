// What all rungs ask of a call, and at which position a token stands.
#pragma once

#include "attention/rope_store_kv/rope_store_kv.h"
#include "attention/store_kv/store.cuh"
#include "host/conditions.h"
#include "rotary/angles.cuh"

namespace warpsmith {

// The number by which rotary_angles() finds the angles of token i of a sequence.
__device__ __forceinline__ int rotary_token(const RopeStoreKvArgs& a, int sequence, int i) {
  return a.behind_lengths ? __ldg(a.store.lengths + sequence) + i : i;
}

inline const char* needs_countable_tokens(const RopeStoreKvArgs& a) { return needs_countable_tokens(a.store); }

}  // namespace warpsmith
