// What the rungs with mma_forward.cuh share: which calls they take, and how a tile is found and launched.
#pragma once

#include "attention/attention.h"
#include "attention/block_order.h"
#include "attention/forward_tile.h"
#include "attention/mma_forward.cuh"
#include "host/launch.h"

namespace warpsmith {

inline constexpr int kMostForwardDim = 256;

inline const char* needs_forward_tile(const AttentionArgs& a) {
  if (a.dtype == Dtype::f32) return "takes 16-bit floats, got f32";
  if (a.d % 8 != 0 || a.dv % 8 != 0) return "needs head dimensions that are multiples of 8";
  return a.d <= kMostForwardDim && a.dv <= kMostForwardDim ? nullptr : "needs head dimensions of at most 256";
}

template <class Body>
void dispatch_16_bit(Dtype dtype, Body&& body) {
  if (dtype == Dtype::f16) return body.template operator()<f16>();
  body.template operator()<bf16>();
}

template <class Tile>
bool holds(const AttentionArgs& a) {
  return a.d <= Tile::d && a.dv <= Tile::dv;
}

template <class Tile>
LaunchConfig forward_grid(const HeadOrder& order) {
  return {static_cast<unsigned>(order.blocks()), Tile::warps * kWarp, kForwardBytes<Tile>};
}

// Tiles in the order in which they are tried: those that hold less come first.
template <class... Tiles, class Launch>
void first_that_launches(Launch launch) {
  const bool launched = (launch.template operator()<Tiles>() || ...);
  if (!launched) broken_promise("there is a tile for every head dimension and GPU");
}

}  // namespace warpsmith
