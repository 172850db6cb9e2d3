// Attention of a few new queries to a cache of keys and values, contiguous or in pages, in 16 bits or e4m3.
//
// Query i of m stands at key i + n - m, where n is what the cache holds of its sequence.
#pragma once

#include <cstdint>

#include "attention/attention.h"
#include "attention/pages.h"
#include "host/dtype.h"

namespace warpsmith {

inline constexpr int64_t kMostPlannedBlocks = 65535;

struct KvCacheArgs {
  HeadRows q, out;         // [batch, m, q_heads, d], [batch, m, q_heads, dv]
  HeadRows k, v;           // [pages, tokens of a page, kv_heads, d or dv]; `batch` is the stride of a page
  float* lse;              // [batch, q_heads, m], natural logarithms; or null
  const int32_t* lengths;  // [batch]: tokens in the cache, less `appended`
  int appended;
  Pages pages;
  const float* k_scale;  // [kv_heads], or one: what is stored is key / scale; null: of 16 bits
  const float* v_scale;
  int k_scale_step, v_scale_step;  // 1: one of each head; 0: one for all
  const float* slopes;             // [batch, q_heads] of ALiBi; null: none
  int64_t slopes_batch;
  const float* sinks;  // [q_heads], or null
  const int64_t*
      tree;  // [batch, m], m <= 64: of the last m keys, query i sees those whose bit is set in word i; or null
  int batch, m, q_heads, kv_heads, d, dv;
  float scale, softcap;
  int left, right;  // of the window; kUnlimited where it has no such side
  Dtype dtype, cache_dtype;
  bool batch_invariant;
  int sm_count, block_smem;  // of the GPU
  int blocks;                // of a launch that splits, as planned; 0: as many as the GPU holds
  void* workspace;           // of rungs that split; see split.h

  __host__ __device__ int group() const { return q_heads / kv_heads; }
  // Queries that share a head of keys.
  __host__ __device__ int rows() const { return m * group(); }
  // By which products with a head of keys are multiplied. Of an infinite one no score is a number, as of infinite keys.
  __host__ __device__ float key_scale(int kv_head) const {
    if (k_scale == nullptr) return 1.0f;
    const float value = k_scale[kv_head * k_scale_step];
    return value + (value - value);
  }
  // Whether a score is more than a product times a positive scale.
  __host__ __device__ bool has_options() const { return softcap > 0.0f || slopes != nullptr || !(scale > 0.0f); }
};

}  // namespace warpsmith
