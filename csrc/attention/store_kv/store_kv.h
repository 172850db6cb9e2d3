// Writes keys and values of new tokens into a cache: at slots that the caller names, or behind what it holds of their
// sequence.
#pragma once

#include <cstdint>

#include "attention/attention.h"
#include "attention/pages.h"
#include "host/dtype.h"

namespace warpsmith {

struct StoreKvArgs {
  HeadRows k, v;              // [batch, m, heads, d], [batch, m, heads, dv]
  HeadRows k_cache, v_cache;  // [pages, page size, heads, d or dv]; `batch` is the stride of a page
  const int64_t* slots;       // [batch, m]: page * page size + token in the page; a token with less than 0 is left out
  const int32_t* lengths;     // [batch], where there are no slots: tokens of the sequence in the cache before the call
  Pages pages;
  const float* k_scale;  // [heads], or one: what is stored is k / scale; null: k
  const float* v_scale;
  int scale_step_k, scale_step_v;  // 1: one of each head; 0: one for all
  int batch, m, heads, d, dv;
  Dtype dtype, cache_dtype;  // the same, or a cache in e4m3
};

}  // namespace warpsmith
