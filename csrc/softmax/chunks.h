// How the rungs along a dimension that is not the last cut long columns into chunks, a block each: by their length alone,
// so that the sums of a column do not depend on what surrounds it.
#pragma once

#include <cstdint>

#include "host/min_max.h"

namespace warpsmith {

inline constexpr int64_t kLeastChunk = 4096, kMostChunks = 32768;

// Values of a chunk.
inline int64_t chunk_of(int64_t cols) { return std::max(kLeastChunk, (cols + kMostChunks - 1) / kMostChunks); }

inline int64_t chunks_of(int64_t cols) { return (cols + chunk_of(cols) - 1) / chunk_of(cols); }

}  // namespace warpsmith
