// Which tile of the menu multiplies a call by wgmma, and into how many slices k is cut: the cheapest by a model of clocks.
// kernels/warpsmith/gemm/wgmma_plan.py computes the same, in whole numbers, so that both always agree.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "gemm/gemm.h"
#include "gemm/split.h"
#include "gemm/wgmma_costs.h"
#include "gemm/wgmma_tiles.h"
#include "host/min_max.h"

namespace warpsmith {

// Of a step: they stay in the tensor cores, leave them (wgmma_apart.cuh), or are scaled by blocks as they leave.
enum class StepSums : int { stay, leave, scaled };

// What the choice follows from.
struct WgmmaProblem {
  int64_t batch, m, n, k;
  int size;             // bytes a value of the operands
  bool a_along_k;       // a is row-major
  bool swaps;           // the operands of every tile change places: b of TF32 is row-major
  int64_t most_slices;  // partial sums that there is room for
  int sm_count;
  StepSums sums = StepSums::stay;
};

// Clocks that the product takes with a tile, number `tile` of its menu, and `slices` slices of k, of which it takes away
// those that are empty.
inline WgmmaChoice cost_wgmma(const WgmmaProblem& p, const WgmmaTile& t, int tile, int64_t slices) {
  using namespace wgmma_costs;
  const bool swapped = p.swaps || t.swapped;
  const int64_t rows = swapped ? p.n : p.m, cols = swapped ? p.m : p.n;
  const int64_t steps = ceil_div(p.k, int64_t{128 / p.size}), depth = ceil_div(steps, slices);
  slices = ceil_div(steps, depth);
  const int64_t tiles = ceil_div(rows, int64_t{t.bm} * t.cluster) * ceil_div(cols, int64_t{t.bn}) * p.batch;
  const int64_t clusters = std::max(1, p.sm_count / t.cluster), items = tiles * slices;
  const int64_t waves = ceil_div(items, clusters), active = std::min(items, clusters) * t.cluster;

  // of a step, whose operands are lines of 128 bytes
  const int64_t math = t.bm * t.bn / 32, shared = t.bm / 64 * (64 + t.bn);
  const int64_t bytes = int64_t{128} * (t.bm + t.bn / t.cluster);
  const int64_t l2 = bytes * std::max(active, kL2Rate / kL2RateOfOne) / kL2Rate;
  const int64_t percent = kStepPercent + (p.sums != StepSums::stay && t.bn > 128 ? kWideApartPercent : 0) +
                          (p.sums == StepSums::scaled && t.swapped ? kSwappedScalesPercent : 0);
  const int64_t step = max_of(math, shared, l2) * percent / 100;

  const int64_t store = t.turns ? kStoreInTurns : kStore + t.bm * t.bn / kStoreRate;
  const int64_t values = p.batch * p.m * p.n;
  const int64_t moved = (p.batch * (p.m + p.n) * p.k + values) * p.size / kMemoryRate;
  int64_t clocks = std::max(waves * (depth * step + store), moved) + kOnce;
  if (slices > 1) clocks += kSecondKernel + slices * values * 8 / kPartialsRate;
  return {tile, static_cast<int>(slices), depth, clocks};
}

// What WARPSMITH_WGMMA_TILE says, "<tile of the menu>/<slices>": it takes the place of a choice wherever it is possible, so
// that every tile can be timed (benchmarks/wgmma_costs.py). No slices where it says nothing, or not that.
struct ToldTile {
  int tile = 0, slices = 0;
};

inline ToldTile told_tile(int tiles) {
  ToldTile told;
  const char* text = std::getenv("WARPSMITH_WGMMA_TILE");
  const bool found = text != nullptr && std::sscanf(text, "%d/%d", &told.tile, &told.slices) == 2 && told.tile >= 0 &&
                     told.tile < tiles && told.slices > 0;
  return found ? told : ToldTile{};
}

// The tile with the best number of slices in the place of `best`, where it is cheaper.
inline void take_cheaper(WgmmaChoice& best, const WgmmaProblem& p, const WgmmaTile& t, int tile) {
  const int64_t most = std::min(p.most_slices, p.k * p.size / (128 * wgmma_costs::kLeastSteps));
  for (int64_t slices = 1; slices <= std::max<int64_t>(most, 1); slices += slices < 8 ? 1 : 4) {
    const WgmmaChoice found = cost_wgmma(p, t, tile, slices);
    if (found.clocks < best.clocks) best = found;
  }
}

// The cheapest. `invariant`: for any number of rows the same one, without slices.
inline WgmmaChoice choose_wgmma(WgmmaProblem p, bool invariant) {
  if (invariant) p.batch = 1, p.m = wgmma_costs::kRowsOfInvariant, p.most_slices = 1;
  WgmmaChoice best;
  for (int tile = 0; tile < kWgmmaTiles; ++tile) {
    const WgmmaTile& t = kWgmmaMenu[tile];
    if (t.swapped && (invariant || !p.a_along_k)) continue;
    if (t.turns && p.swaps) continue;  // too few registers
    take_cheaper(best, p, t, tile);
  }
  return best;
}

inline WgmmaProblem wgmma_problem(const GemmArgs& p) {
  return {.batch = p.batch,
          .m = p.m,
          .n = p.n,
          .k = p.k,
          .size = static_cast<int>(size_of(p.dtype)),
          .a_along_k = p.a.order == Order::rows,
          .swaps = p.dtype == Dtype::f32 && p.b.order == Order::rows,
          .most_slices = most_splits(p),
          .sm_count = p.sm_count};
}

inline WgmmaChoice choose_wgmma(const GemmArgs& p) { return choose_wgmma(wgmma_problem(p), p.batch_invariant); }

}  // namespace warpsmith
