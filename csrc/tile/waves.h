// How clusters of two blocks that stay on the GPU share out the tiles of a product, wave by wave. Where a last wave would
// leave many of them idle, each of its tiles is cut into slices of k, which may take several rounds: partial sums go to
// the workspace, and a second kernel adds them up in order.
#pragma once

#include <cstdint>

#include "host/ceil_div.h"
#include "host/min_max.h"

namespace warpsmith {

inline constexpr int kPairTile = 256;  // rows and columns of a cluster's tile: one block's above the other's
inline constexpr int kPairStep = 64;   // of k

// Items, one after another for each cluster in turn: tiles as they are, then slices.
struct Waves {
  int whole;   // tiles that are not cut, all of them or whole waves
  int slices;  // of each tile after those,
  int steps;   // of kPairStep each, the last one what is left
  int items;
};

inline Waves uncut_waves(int64_t tiles, int64_t k) {
  return {static_cast<int>(tiles), 1, static_cast<int>(ceil_div(k, kPairStep)), static_cast<int>(tiles)};
}

// Steps of k that the clusters need for the tiles after the whole waves, each cut into so many slices, and how many steps
// the second kernel costs them.
inline int last_wave_steps(int tiles, int slices, int steps, int clusters) {
  constexpr int kSecondKernel = 10;
  return ceil_div(tiles * slices, clusters) * ceil_div(steps, slices) + (slices > 1 ? kSecondKernel : 0);
}

inline Waves waves_of(int64_t tiles, int64_t k, int clusters) {
  constexpr int kLeastSteps = 4;  // that are worth the partial sums
  const Waves uncut = uncut_waves(tiles, k);
  const int last = uncut.whole % clusters, whole = uncut.whole - last, most = uncut.steps / kLeastSteps;
  if (whole == 0 || last == 0) return uncut;
  const auto cost = [&](int slices) { return last_wave_steps(last, slices, uncut.steps, clusters); };
  int wanted = 1;
  for (const int slices : {std::min(clusters / last, most), 2, 3, 4, 5}) {
    if (slices > 0 && slices <= most && cost(slices) < cost(wanted)) wanted = slices;
  }
  if (wanted < 2) return uncut;
  const int steps = ceil_div(uncut.steps, wanted), slices = ceil_div(uncut.steps, steps);
  return {.whole = whole, .slices = slices, .steps = steps, .items = whole + last * slices};
}

}  // namespace warpsmith
