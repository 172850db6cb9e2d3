// Products of groups by mma.sync: blocks that stay, each of which walks the tiles of all groups.
//   The GPU alone knows how many tiles there are: a block counts them, group by group, in shared memory, where it finds the
//   group of its tile by halving. A tile's rows past the end of its group are zeros, and are not stored.
#pragma once

#include "gemm/groups.cuh"
#include "gemm/mma_tile.cuh"
#include "host/launch.h"
#include "host/min_max.h"

namespace warpsmith {

// A tile of d.
template <class Tile>
struct GroupTile {
  int64_t group;
  GroupSpan span;  // of the group, in rows of x or in values of k
  int64_t m, n;    // of the group's product
  Place<Tile> block;
};

// Config: MmaConfig. Calls body(tile) for the tiles of this block, [m, n] of each group along k.
template <class Config, bool along_k, class Body>
__device__ __forceinline__ void for_each_group_tile(const Groups& of, int64_t m, int64_t n, Body&& body) {
  using Tile = typename Config::Tile;
  __shared__ GroupTable table;
  const int across = static_cast<int>(ceil_div(n, Tile::bn)), groups = static_cast<int>(of.count);
  const int tiles = static_cast<int>(ceil_div(m, Tile::bm)) * across;  // of a group along k
  if constexpr (!along_k) table.fill(of, Tile::bm, Config::threads);
  const int count = along_k ? groups * tiles : table.before[groups] * across;

#pragma unroll 1
  for (int index = static_cast<int>(blockIdx.x); index < count; index += static_cast<int>(gridDim.x)) {
    const int group = along_k ? index / tiles : table.group_of(index / across, groups);
    const int within = index - (along_k ? group * tiles : table.before[group] * across);
    const GroupSpan span = span_of(of, group);
    const int64_t rows = along_k ? m : span.end - span.first;
    body(GroupTile<Tile>{group, span, rows, n, Place<Tile>(rows, n, within, 1, 0)});
  }
}

// Calls body.template operator()<Tile>() with that of the two for groups of as many rows.
template <class FewRows, class ManyRows, class Args, class Body>
void choose_group_tile(const Args& p, Body&& body) {
  constexpr int64_t kFew = 48;  // rows of a group
  !p.along_k&& p.m < kFew* p.groups.count ? body.template operator()<FewRows>() : body.template operator()<ManyRows>();
}

template <auto kernel, class Config, class Args>
void launch_groups(const Args& p, cudaStream_t stream) {
  using Tile = typename Config::Tile;
  static_assert(Config::shared + sizeof(GroupTable) <= kSharedOfSm89, "a block of every GPU has room for the ring");
  const int64_t tiles = std::min<int64_t>(most_tiles(p, Tile::bm, Tile::bn), p.sm_count * Tile::blocks);
  const LaunchConfig config{
      .grid = static_cast<unsigned>(tiles), .block = Config::threads, .dynamic_smem = Config::shared};
  warpsmith::launch<kernel>(config, stream, p);
}

}  // namespace warpsmith
