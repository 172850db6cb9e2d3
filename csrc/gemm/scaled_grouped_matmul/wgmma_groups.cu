// Products of groups of fp8 rows by wgmma, formats mixed.
//   Against `naive`: the kernel of grouped_matmul's `wgmma_groups`, at twice the rate of f16. Sums leave the tensor cores every
//   128 values of k (wgmma.cuh), unless `fast_accum` says that they may stay; scales multiply what leaves in the end. Tile
//   by a model of clocks; for few rows a group, operands change places.
//   Occupancy: one block of 3 warpgroups in up to 227 KB. Bound: many rows a group the power, few the weights from memory.
//   Sums in two levels: DeepSeek-V3 Technical Report, section 3.3.2: https://arxiv.org/abs/2412.19437
#include <stdexcept>
#include <utility>

#include "gemm/scaled_grouped_matmul/wgmma_plan.h"
#include "gemm/wgmma.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

// Whether the copy engine finds its way in x, w and d.
const char* needs_lines_for_maps(const ScaledGroupedArgs& p) {
  const int64_t products = p.w.batch == 0 ? 1 : p.groups.count;
  const bool maps =
      can_map(p.x.data, p.m, p.k, p.x.ld, 1) &&
      can_map({.data = p.w.data, .type = {}, .rank = 3, .sizes = {products, p.n, p.k}, .strides = {p.w.batch, p.w.ld}},
              1);
  return maps && p.n % 8 == 0 && p.m < 0x7fffffff
             ? nullptr
             : "needs x, w and the product in lines that begin at multiples of 16 bytes and do not overlap, and sizes "
               "below 2^31 - 1";
}

const char* needs_countable_tiles(const ScaledGroupedArgs& p) {
  constexpr int64_t kTile = 64, kMost = 0x7fffffff;
  const int64_t tiles = (ceil_div(p.m, kTile) + p.groups.count) * ceil_div(p.n, kTile);
  return tiles <= kMost ? nullptr : "needs fewer than 2^31 tiles of 64 x 64";
}

const char* takes(const ScaledGroupedArgs& p) {
  if (p.sm != 90) return "needs sm_90, the only one with wgmma";
  if (p.out == Dtype::f32) return "gives f16 and bf16";
  if (const char* reason = needs_few_groups(p.groups)) return reason;
  if (p.w.order != Order::columns) return "needs w column-major";
  if (const char* reason = needs_lines_for_maps(p)) return reason;
  return needs_countable_tiles(p);
}

template <size_t... tile>
void launch_choice(const ScaledGroupedArgs& p, int chosen, cudaStream_t stream, std::index_sequence<tile...>) {
  const bool known =
      ((chosen == tile && (launch_scaled_grouped_tile<kScaledGroupedMenu[tile]>(p, stream), true)) || ...);
  if (!known) throw std::logic_error("a tile of the menu");
}

void launch(const ScaledGroupedArgs& p, cudaStream_t stream) {
  const GroupedChoice choice = choose_scaled_grouped(
      {.groups = p.groups.count, .m = p.m, .n = p.n, .k = p.k, .along_k = false, .size = 1, .sm_count = p.sm_count},
      p.fast_accum);
  launch_choice(p, choice.tile, stream, std::make_index_sequence<kScaledGroupedTiles>());
}

const Register<ScaledGroupedArgs> registered{"wgmma_groups", /*min_sm=*/90, takes, launch};

}  // namespace
}  // namespace warpsmith
