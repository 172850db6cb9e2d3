// How many blocks the persistent kernels of the norms' gradients start.
#pragma once

#include <algorithm>
#include <cstdint>

#include "host/occupancy.h"

namespace warpsmith {

// Blocks, or clusters of them: those that the tile wants on each multiprocessor, as far as they are resident at once. More
// would be of most tiles, but memory slows down once more rows are under way than its latency takes.
template <auto kernel, class Tile>
int64_t resident_blocks(const LaunchConfig& config) {
  const int64_t wanted = int64_t{device_info(current_device()).sm_count} * Tile::min_blocks * Tile::threads;
  const int64_t fits = resident_clusters<kernel>(config);
  return std::clamp<int64_t>(wanted / (int64_t{config.block.x} * blocks_of_cluster(config)), 1, fits);
}

}  // namespace warpsmith
