// What the rungs by wgmma share on the host: which calls they take, the order of their tiles, the maps of their operands.
#pragma once

#include <algorithm>

#include "gemm/gemm.h"
#include "gemm/tensor_core.h"
#include "gemm/wgmma_tile.cuh"
#include "host/launch.h"
#include "host/tensor_map.h"

namespace warpsmith {

inline const char* needs_wgmma(const GemmArgs& p) {
  return p.sm == 90 ? nullptr : "needs sm_90, the only one with wgmma";
}

// Of a, b and d, by which the copy engine finds its way.
inline const char* needs_maps_of_all(const GemmArgs& p) {
  const int size = size_of(p.dtype);
  const bool a_along_k = p.a.order == Order::rows, b_along_k = p.b.order == Order::columns;
  const bool maps = can_map(p.a.data, a_along_k ? p.m : p.k, a_along_k ? p.k : p.m, p.a.ld, size) &&
                    can_map(p.b.data, b_along_k ? p.n : p.k, b_along_k ? p.k : p.n, p.b.ld, size) &&
                    can_map(p.d, p.m, p.n, p.n, size);
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
          .box_rows = kAlongK ? Operand::mn / cluster : Operand::k,
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
