// What the rungs by wgmma share on the host: which calls they take, the order of their tiles, the maps of their operands.
#pragma once

#include "gemm/gemm.h"
#include "gemm/tensor_core.h"
#include "gemm/wgmma_tile.cuh"
#include "host/launch.h"
#include "host/min_max.h"
#include "host/tensor_map.h"

namespace warpsmith {

inline const char* needs_wgmma(const GemmArgs& p) {
  return p.sm == 90 ? nullptr : "needs sm_90, the only one with wgmma";
}

// Whether the copy engine finds its way in an operand, a batch of which has one stride.
inline bool operand_has_map(const GemmArgs& p, const Matrix& x, int64_t rows, int64_t cols) {
  const int64_t lines = x.order == Order::rows ? rows : cols, values = x.order == Order::rows ? cols : rows;
  return can_map({.data = x.data,
                  .type = {},
                  .rank = 3,
                  .sizes = {x.batch == 0 ? 1 : p.batch, lines, values},
                  .strides = {x.batch, x.ld}},
                 size_of(p.dtype));
}

inline bool operands_have_maps(const GemmArgs& p) {
  return operand_has_map(p, p.a, p.m, p.k) && operand_has_map(p, p.b, p.k, p.n);
}

inline constexpr const char* kNeedsLinesForMaps =
    "needs a and b in lines that begin at multiples of 16 bytes and do not overlap, and sizes below 2^31";

inline const char* needs_lines_for_maps(const GemmArgs& p) {
  return operands_have_maps(p) ? nullptr : kNeedsLinesForMaps;
}

// Of a, b and d.
inline const char* needs_maps_of_all(const GemmArgs& p) {
  const bool maps = operands_have_maps(p) && can_map(p.d, p.m, p.n, p.n, size_of(p.dtype));
  return maps ? nullptr : "needs sizes of at most 2^31 - 1 and lines of a and b that do not overlap";
}

inline const char* takes_wgmma(const GemmArgs& p) {
  if (const char* reason = needs_wgmma(p)) return reason;
  if (const char* reason = needs_16_bits(p)) return reason;
  if (const char* reason = needs_f32_accumulator(p)) return reason;
  if (const char* reason = needs_plain(p)) return reason;
  if (const char* reason = needs_packs_16(p)) return reason;
  return needs_maps_of_all(p);
}

// The tiles of a product, and the order in which blocks, or clusters, take them: device/block_order.h.
struct WgmmaTiles {
  void* d;
  int m, n, steps;          // of d; along k
  int down, across, group;  // tiles of a cluster
};

// A box of an operand of [mn, k], or of its share that a block of a cluster brings.
template <class Operand, int cluster>
MappedMatrix map_operand(const Matrix& x, Dtype dtype, int64_t mn, int64_t k) {
  constexpr bool kAlongK = Operand::along_k;
  return {.data = x.data,
          .type = tensor_map_type(dtype),
          .rows = kAlongK ? mn : k,
          .cols = kAlongK ? k : mn,
          .ld = x.ld,
          .box_rows = OperandShare<Operand, cluster>::lines,
          .box_cols = Operand::values_of_line};
}

// Calls body.template operator()<T, a, b>() for the type and the layouts of the call.
template <class Body>
void dispatch_wgmma(const GemmArgs& p, Body&& body) {
  dispatch_layout(p, [&]<Along a, Along b>() {
    p.dtype == Dtype::f16 ? body.template operator()<f16, a, b>() : body.template operator()<bf16, a, b>();
  });
}

template <class Config>
WgmmaTiles tiles_of(const GemmArgs& p, int group) {
  return {.d = p.d,
          .m = static_cast<int>(p.m),
          .n = static_cast<int>(p.n),
          .steps = static_cast<int>(ceil_div(p.k, Config::bk)),
          .down = static_cast<int>(ceil_div(p.m, Config::cluster * Config::bm)),
          .across = static_cast<int>(ceil_div(p.n, Config::bn)),
          .group = group};
}

template <class Config>
CUtensorMap map_a(const GemmArgs& p) {
  return tensor_map(map_operand<typename Config::A, 1>(p.a, p.dtype, p.m, p.k));
}

template <class Config>
CUtensorMap map_b(const GemmArgs& p) {
  return tensor_map(map_operand<typename Config::B, Config::cluster>(p.b, p.dtype, p.n, p.k));
}

}  // namespace warpsmith
