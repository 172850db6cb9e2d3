// The bits that dropout leaves: bit i % 32 of word i / 32 tells whether element i is kept; what is left of a word is 0.
#pragma once

#include "host/ceil_div.h"

namespace warpsmith {

inline constexpr int kMaskBits = 32;  // of a word

constexpr int64_t mask_words(int64_t n) { return ceil_div(n, kMaskBits); }

}  // namespace warpsmith
