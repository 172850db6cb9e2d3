// How many rows a GPU works on at once with a block to each of them.
#pragma once

#include <cstdint>

namespace warpsmith {

// Whether all rows are at work from the start and there are enough of them to keep the GPU busy.
constexpr bool rows_at_once(int64_t rows) { return rows >= 512 && rows <= 768; }

}  // namespace warpsmith
