// Caches of keys and values in pages: [pages, page size, heads, d]. A table says which pages a sequence has, in order; a
// cache without one, [batch, capacity, heads, d], is a page for each sequence.
#pragma once

#include <cstdint>

#include "device/fast_divide.h"

namespace warpsmith {

struct Pages {
  const int32_t* table;  // [batch, width]; null: sequence i has page i alone
  int64_t table_stride;
  int width;   // pages that a sequence may have
  int count;   // pages that there are
  int tokens;  // of a page
  FastDivide by_tokens;

  int64_t capacity() const { return int64_t{width} * tokens; }  // tokens that a sequence may have
};

}  // namespace warpsmith
