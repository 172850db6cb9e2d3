// Gradients of attention by mma.sync, head dimensions up to 256, and 192 with values of 128.
//   As mma_peak, but for dk and dv, whose rows a warp's registers do not hold: four warps share 32 keys (in 99 KB two share
//   16), a part of the queries each while scores are formed, and every fourth 16 columns of the gradients. p and ds change
//   hands in shared memory, with a second barrier a step.
//   Occupancy: 8 warps, one block. Bound: shared memory's reads.
#include "attention/flash_attention/backward/launch_tile.cuh"
#include "host/registry.h"
#include "tile/shared_limits.h"

namespace warpsmith {
namespace {

struct Shared4 {
  static constexpr int warps_n = 2, warps_d = 4, at_once = 0, dq_warps = 2, blocks = 1, bn = 64;
  static constexpr bool later = false;
};
struct Tile192 : Shared4 {
  static constexpr int d = 192, dv = 192, bm = 64, stages = 2, most_shared = kSharedOfSm80;
  static constexpr bool is_for(int sm) { return !has_little_shared_memory(sm); }
};
struct Tile192x128 : Tile192 {
  static constexpr int dv = 128;
};
struct Tile256 : Shared4 {
  static constexpr int d = 256, dv = 256, bm = 64, stages = 2, most_shared = kSharedOfSm90;
  static constexpr bool is_for(int sm) { return sm >= 90 && !has_little_shared_memory(sm); }
};
// 32 queries a step: what options ask for would not fit in registers beside the scores of 64.
struct OptionTile256 : Tile256 {
  static constexpr int bm = 32, warps_n = 4, warps_d = 2;
};
// What fits in 163 KB.
struct SingleTile256 : Tile256 {
  static constexpr int dq_warps = 4;
  static constexpr int stages = 1, most_shared = kSharedOfSm80;
  static constexpr bool is_for(int sm) { return sm < 90 && !has_little_shared_memory(sm); }
};
// What fits in 99 KB: a step has 32 queries, which four warps cannot share.
struct Shared2 : Shared4 {
  static constexpr int warps_n = 4, warps_d = 2;
};
struct SmallTile192 : Shared2 {
  static constexpr int d = 192, dv = 192, bm = 32, stages = 1, most_shared = kSharedOfSm89;
  static constexpr bool is_for(int sm) { return has_little_shared_memory(sm); }
};
struct SmallTile256 : Shared2 {
  static constexpr int d = 256, dv = 256, bm = 32, bn = 32, warps_n = 2, stages = 1, most_shared = kSharedOfSm89;
  static constexpr bool is_for(int sm) { return has_little_shared_memory(sm); }
};

const char* takes(const AttentionBackwardArgs& a) {
  const int widest = std::max(a.of.d, a.of.dv);
  if (widest <= 128 || widest > 256) return "needs heads of 129 to 256 values";
  return needs_tile(a);
}

void launch(const AttentionBackwardArgs& a, cudaStream_t stream) {
  const bool small = has_little_shared_memory(a.sm), wide = std::max(a.of.d, a.of.dv) > 192;
  if (small) return wide ? launch_tile<SmallTile256>(a, stream) : launch_tile<SmallTile192>(a, stream);
  if (wide) return a.sm >= 90 ? launch_tile<Tile256, OptionTile256>(a, stream) : launch_tile<SingleTile256>(a, stream);
  return a.of.dv > 128 ? launch_tile<Tile192>(a, stream) : launch_tile<Tile192x128>(a, stream);
}

const Register<AttentionBackwardArgs> registered{"mma_wide", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
