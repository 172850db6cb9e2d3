// Gradients of attention by mma.sync, head dimensions up to 128: what the tensor cores of any GPU can do.
//   A block holds keys and values and goes through the queries; up to d 64, and in 99 KB, p and ds leave the tensor cores
//   as operands of the next products, and warps meet once a step; above, two warps share 32 keys as in mma_wide
//   (tile_gradient.cuh). dq is summed in the order of the keys by default (schedule.h), else as it comes.
//   Occupancy: see the tiles. Bound: shared memory's reads, of which a warp's 32 keys share what they read of queries.
#include "attention/flash_attention/backward/launch_tile.cuh"
#include "host/registry.h"
#include "tile/shared_limits.h"

namespace warpsmith {
namespace {

// 4 warps of 32 keys each, up to 255 registers: two blocks of 81 KB on sm_80 and sm_90.
struct Tile64 {
  static constexpr int d = 64, dv = 64, bm = 64, bn = 128, warps_n = 4, warps_d = 1, at_once = 32, dq_warps = 2;
  static constexpr int stages = 2, blocks = 2, most_shared = kSharedOfSm89;
  static constexpr bool later = false;
  static constexpr bool is_for(int) { return true; }
};
// 8 warps, of which two share 32 keys: 72 KB read a step and warp at d 128, where 16 keys to a warp would read 88.
struct Tile96 {
  static constexpr int d = 96, dv = 96, bm = 64, bn = 128, warps_n = 4, warps_d = 2, at_once = 0, dq_warps = 4;
  static constexpr int stages = 2, blocks = 1, most_shared = kSharedOfSm80;
  static constexpr bool later = false;
  static constexpr bool is_for(int sm) { return !has_little_shared_memory(sm); }
};
struct Tile128 {
  static constexpr int d = 128, dv = 128, bm = 64, bn = 128, warps_n = 4, warps_d = 2, at_once = 0, dq_warps = 2;
  static constexpr int stages = 2, blocks = 1, most_shared = kSharedOfSm80;
  static constexpr bool later = false;
  static constexpr bool is_for(int sm) { return !has_little_shared_memory(sm); }
};
// The same in 99 KB.
struct SmallTile96 {
  static constexpr int d = 96, dv = 96, bm = 64, bn = 64, warps_n = 4, warps_d = 1, at_once = 64, dq_warps = 2;
  static constexpr int stages = 2, blocks = 1, most_shared = kSharedOfSm89;
  static constexpr bool later = true;
  static constexpr bool is_for(int sm) { return has_little_shared_memory(sm); }
};
struct SmallTile128 {
  static constexpr int d = 128, dv = 128, bm = 32, bn = 64, warps_n = 4, warps_d = 1, at_once = 32, dq_warps = 2;
  static constexpr int stages = 2, blocks = 1, most_shared = kSharedOfSm89;
  static constexpr bool later = true;
  static constexpr bool is_for(int sm) { return has_little_shared_memory(sm); }
};

const char* takes(const AttentionBackwardArgs& a) {
  if (std::max(a.of.d, a.of.dv) > 128) return "needs heads of at most 128 values";
  return needs_tile(a);
}

void launch(const AttentionBackwardArgs& a, cudaStream_t stream) {
  const int width = tile_width(std::max(a.of.d, a.of.dv));
  const bool small = has_little_shared_memory(a.sm);
  if (width == 64) return launch_tile<Tile64>(a, stream);
  if (width == 96) return small ? launch_tile<SmallTile96>(a, stream) : launch_tile<Tile96>(a, stream);
  return small ? launch_tile<SmallTile128>(a, stream) : launch_tile<Tile128>(a, stream);
}

const Register<AttentionBackwardArgs> registered{"mma_peak", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
