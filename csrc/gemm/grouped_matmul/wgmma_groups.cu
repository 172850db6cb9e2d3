// Products of groups by wgmma: what sm_90 can do.
//   Against `mma_groups`: a warpgroup copies by the copy engine, which cuts boxes where groups end (gemm/wgmma_groups.cuh), two
//   multiply; results leave by it too, under the next tile. The tile is the cheapest of a menu by a model of clocks
//   (wgmma_plan.h), which has to guess how long groups are; for few rows a group, operands change places.
//   Occupancy: one block of 3 warpgroups in up to 227 KB. Bound: many rows a group the power, few the weights from memory.
//   Boxes that end with a group, without a map for each: https://github.com/Dao-AILab/quack
#include "gemm/grouped_matmul/wgmma_plan.h"
#include "gemm/wgmma.h"
#include "gemm/wgmma_menu.h"
#include "host/launch.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

// Whether the copy engine finds its way in x, w and d.
const char* needs_lines_for_maps(const GroupedArgs& p) {
  const int size = size_of(p.dtype);
  const auto maps = [&](const Matrix& x, int64_t products, int64_t rows, int64_t cols) {
    const int64_t lines = x.order == Order::rows ? rows : cols, values = x.order == Order::rows ? cols : rows;
    return can_map(
        {.data = x.data, .type = {}, .rank = 3, .sizes = {products, lines, values}, .strides = {x.batch, x.ld}}, size);
  };
  const bool all = maps(p.x, 1, p.m, p.k) && maps(p.w, p.w.batch == 0 ? 1 : p.groups.count, p.k, p.n) &&
                   p.n * size % 16 == 0 && p.m < 0x7fffffff && p.k < 0x7fffffff;
  return all ? nullptr
             : "needs x, w and the product in lines that begin at multiples of 16 bytes and do not overlap, and sizes "
               "below 2^31 - 1";
}

const char* takes(const GroupedArgs& p) {
  if (p.sm != 90) return "needs sm_90, the only one with wgmma";
  if (const char* reason = needs_16_bits(p)) return reason;
  if (const char* reason = needs_few_groups(p.groups)) return reason;
  if (const char* reason = needs_lines_for_maps(p)) return reason;
  return needs_countable_tiles(p);
}

void launch(const GroupedArgs& p, cudaStream_t stream) {
  const GroupedChoice choice = choose_grouped({.groups = p.groups.count,
                                               .m = p.m,
                                               .n = p.n,
                                               .k = p.k,
                                               .along_k = p.along_k,
                                               .size = size_of(p.dtype),
                                               .sm_count = p.sm_count});
  launch_tile_of<kGroupedMenu>(choice.tile, [&]<WgmmaTile tile>() { launch_grouped_tile<tile>(p, stream); });
}

const Register<GroupedArgs> registered{"wgmma_groups", /*min_sm=*/90, takes, launch};

}  // namespace
}  // namespace warpsmith
