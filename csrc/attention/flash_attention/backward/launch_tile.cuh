// How a tile's kernels are started, one behind the other.
#pragma once

#include <cstdint>

#include "attention/flash_attention/backward/bias_tile.cuh"
#include "attention/flash_attention/backward/prepare.cuh"
#include "attention/flash_attention/backward/tile_gradient.cuh"
#include "host/min_max.h"

namespace warpsmith {

inline const char* needs_tile(const AttentionBackwardArgs& a) {
  if (a.of.dtype != Dtype::f16 && a.of.dtype != Dtype::bf16) return "needs f16 or bf16";
  const AttentionArgs& of = a.of;
  if (of.d % 8 != 0 || of.dv % 8 != 0) return "needs heads of a multiple of 8 values";
  for (const HeadRows& x : {of.q, of.k, a.dq, a.dk}) {
    if (!rows_in_packs(x, of.d, of.dtype)) return "needs rows aligned to 16 bytes";
  }
  for (const HeadRows& x : {of.v, a.grad, a.dv}) {
    if (!rows_in_packs(x, of.dv, of.dtype)) return "needs rows aligned to 16 bytes";
  }
  return needs_rows_in_grid(a);
}

// Sums that blocks left of a tile's rows.
template <class T, class Left, Gradient which>
void finish_tiles(const AttentionBackwardArgs& a, const LeftParts& left, cudaStream_t stream) {
  constexpr bool kQuery = which == Gradient::q;
  const auto tiles = static_cast<int>(ceil_div(kQuery ? a.of.m : a.of.n, Left::lines));
  const auto grid = static_cast<unsigned>(int64_t{tiles} * (kQuery ? a.of.q_heads : a.of.kv_heads) * a.of.batch);
  constexpr int kTileBytes = Left::lines * Left::width * static_cast<int>(sizeof(T));
  warpsmith::launch<&flash_attention_backward_finish_kernel<T, Left, which>>({grid, Left::threads, kTileBytes}, stream,
                                                                             a, left, tiles);
}

template <class T, class Tile, bool options>
void launch_gradient(AttentionBackwardArgs a, cudaStream_t stream) {
  using Shape = GradientShape<Tile>;
  constexpr int kShared = sizeof(GradientShared<T, Shape>);
  static_assert(kShared <= Tile::most_shared, "a block of every GPU that the tile is for has room for it");
  const Schedule schedule = schedule_of(a, Shape::bn);
  const BackwardWorkspace w =
      workspace_of(a, {.sums = true, .splits = schedule.splits, .width = Tile::d, .v_width = Tile::dv});
  prepare<T>(a, w, stream);
  const auto grid = static_cast<unsigned>(int64_t{schedule.parts} * schedule.blocks);
  if (grid > 0)
    warpsmith::launch<&flash_attention_backward_tile_kernel<T, Shape, options>>({grid, Shape::threads, kShared}, stream,
                                                                                a, w, schedule);
  finish_tiles<T, LeftSums<Shape::bm, Shape::d, Shape::dq_warps, Shape::warps / Shape::dq_warps>, Gradient::q>(
      a, {w.dq, 1, 0, Shape::d}, stream);
  if (grid > 0 && schedule.splits > 1) {
    constexpr int64_t kRow = Shape::d + Shape::dv;
    const int64_t part = int64_t{a.of.kv_heads} * a.k_rows * kRow;
    finish_tiles<T, LeftSums<Shape::bn, Shape::d, Shape::warps_n, Shape::warps_d>, Gradient::k>(
        a, {w.dk_dv, schedule.splits, part, kRow}, stream);
    finish_tiles<T, LeftSums<Shape::bn, Shape::dv, Shape::warps_n, Shape::warps_d>, Gradient::v>(
        a, {w.dk_dv + Shape::bn * Shape::d, schedule.splits, part, kRow}, stream);
  }
  if (a.dbias.data != nullptr) bias_gradient_by_tiles<T>(a, w, stream);
  sum_rows(a, w, Shape::bn, stream);
}

// Options need registers of their own, for which a tile may make room.
template <class Tile, class TileOfOptions = Tile>
void launch_tile(const AttentionBackwardArgs& a, cudaStream_t stream) {
  const auto with = [&]<class T>() {
    // sinks and gates are in the log-sum-exps and the gradient that the kernel reads
    const ScoreOptions& score = a.of.score;
    const MaskOptions& mask = a.of.mask;
    const bool has_options = score.softcap > 0.0f || score.slopes != nullptr || score.bias != nullptr ||
                             mask.mask != nullptr || mask.q_documents != nullptr || mask.tree != nullptr ||
                             a.of.dropout.active;
    if (has_options) return launch_gradient<T, TileOfOptions, true>(a, stream);
    launch_gradient<T, Tile, false>(a, stream);
  };
  if (a.of.dtype == Dtype::f16) return with.template operator()<f16>();
  with.template operator()<bf16>();
}

}  // namespace warpsmith
