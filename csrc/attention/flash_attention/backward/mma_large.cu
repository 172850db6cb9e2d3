// Gradients of attention by mma.sync, head dimensions of 257 to 1024.
//   Two passes, one for dk and dv and one for dq: seven products instead of five, but every sum stays in registers
//   (large_gradient.cuh).
//   Occupancy: 8 warps of up to 255 registers, one block. Bound: shared memory's reads, and L2, from which a block reads
//   the rows that it streams twice.
#include "attention/flash_attention/backward/large_gradient.cuh"
#include "attention/flash_attention/backward/launch_tile.cuh"
#include "host/registry.h"
#include "tile/shared_limits.h"

namespace warpsmith {
namespace {

struct Roomy {
  static constexpr int most_shared = kSharedOfSm80;
  static constexpr bool is_for(int sm) { return !has_little_shared_memory(sm); }
};
// 64 rows, whose sums are most of the registers: what a block streams comes from L2, which would set the pace with fewer.
struct Tile320 : Roomy {
  static constexpr int width = 320, rows = 64, chunk = 64, stages = 5;
};
struct Tile512 : Roomy {
  static constexpr int width = 512, rows = 32, chunk = 128, stages = 4;
};
struct Tile768 : Roomy {
  static constexpr int width = 768, rows = 16, chunk = 128, stages = 6;
};
struct Tile1024 : Roomy {
  static constexpr int width = 1024, rows = 16, chunk = 128, stages = 4;
};
// The same in 99 KB.
template <class Tile, int rows_, int stages_>
struct Small : Tile {
  static constexpr int rows = rows_, stages = stages_, most_shared = kSharedOfSm89;
  static constexpr bool is_for(int sm) { return has_little_shared_memory(sm); }
};

const char* takes(const AttentionBackwardArgs& a) {
  const int widest = std::max(a.of.d, a.of.dv);
  if (widest <= 256 || widest > 1024) return "needs heads of 257 to 1024 values";
  return needs_tile(a);
}

template <class T, class Tile, Pass pass>
void launch_pass(const AttentionBackwardArgs& a, const BackwardWorkspace& w, cudaStream_t stream) {
  using Shape = LargeShape<Tile, pass>;
  constexpr int kShared = sizeof(LargeShared<T, Shape>);
  static_assert(kShared <= Tile::most_shared, "a block of every GPU that the tile is for has room for it");
  const auto blocks = static_cast<int>(ceil_div(Shape::keys ? a.of.n : a.of.m, Shape::rows));
  const auto grid = static_cast<unsigned>(int64_t{blocks} * a.of.batch * (Shape::keys ? a.of.kv_heads : a.of.q_heads));
  if (grid == 0) return;
  warpsmith::launch<&flash_attention_backward_large_kernel<T, Shape>>({grid, Shape::threads, kShared}, stream, a, w,
                                                                      blocks);
}

template <class T, class Tile>
void launch_large(AttentionBackwardArgs a, cudaStream_t stream) {
  const BackwardWorkspace w = workspace_of(a, {.sums = false});
  prepare<T>(a, w, stream);
  launch_pass<T, Tile, Pass::keys>(a, w, stream);
  launch_pass<T, Tile, Pass::queries>(a, w, stream);
  if (a.dbias.data != nullptr) bias_gradient_by_tiles<T>(a, w, stream);
  sum_rows(a, w, Tile::rows, stream);
}

template <class Tile, int small_stages, int small_rows = Tile::rows>
void launch_tile_or_small(const AttentionBackwardArgs& a, cudaStream_t stream) {
  const auto with = [&]<class T>() {
    if (has_little_shared_memory(a.sm)) return launch_large<T, Small<Tile, small_rows, small_stages>>(a, stream);
    launch_large<T, Tile>(a, stream);
  };
  if (a.of.dtype == Dtype::f16) return with.template operator()<f16>();
  with.template operator()<bf16>();
}

void launch(const AttentionBackwardArgs& a, cudaStream_t stream) {
  const int widest = std::max(a.of.d, a.of.dv);
  if (widest <= 320) return launch_tile_or_small<Tile320, 5, 32>(a, stream);
  if (widest <= 512) return launch_tile_or_small<Tile512, 1>(a, stream);
  if (widest <= 768) return launch_tile_or_small<Tile768, 2>(a, stream);
  launch_tile_or_small<Tile1024, 1>(a, stream);
}

const Register<AttentionBackwardArgs> registered{"mma_large", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
