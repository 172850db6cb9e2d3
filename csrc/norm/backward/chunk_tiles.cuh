// Tiles that the rungs `cluster` of several gradients share. Those of one gradient alone stand in its rung's file.
#pragma once

#include "row/chunks.cuh"

namespace warpsmith {

// RMS norm's, from x and from the output.
struct PlainRmsHalfTiles {
  static constexpr ChunkTile tiles[] = {
      {.threads = 512, .packs = 2, .depth = 8, .lag = 0, .cluster = 2, .held = 2},
      {.threads = 512, .packs = 4, .depth = 8, .lag = 1, .cluster = 2, .held = 4},
      {.threads = 512, .packs = 4, .depth = 8, .lag = 1, .cluster = 4, .held = 4},
      {.threads = 512, .packs = 4, .depth = 8, .lag = 1, .cluster = 8, .held = 4},
      {.threads = 512, .packs = 4, .depth = 8, .lag = 1, .cluster = 16, .held = 4},
  };
};
struct PlainRmsFloatTiles {
  static constexpr ChunkTile tiles[] = {
      {.threads = 512, .packs = 4, .depth = 8, .lag = 1, .cluster = 2, .held = 4},
      {.threads = 512, .packs = 4, .depth = 8, .lag = 1, .cluster = 4, .held = 4},
      {.threads = 512, .packs = 4, .depth = 8, .lag = 1, .cluster = 8, .held = 4},
      {.threads = 512, .packs = 4, .depth = 8, .lag = 1, .cluster = 16, .held = 4},
      {.threads = 512, .packs = 8, .depth = 5, .lag = 1, .cluster = 16, .held = 8},
  };
};

// Of residual norms, with dropout and without.
struct ResidualRmsFloatTiles {
  static constexpr ChunkTile tiles[] = {
      {.threads = 512, .packs = 4, .depth = 6, .lag = 1, .cluster = 2, .held = 4},
      {.threads = 512, .packs = 4, .depth = 6, .lag = 1, .cluster = 4, .held = 4},
      {.threads = 512, .packs = 4, .depth = 6, .lag = 1, .cluster = 8, .held = 4},
      {.threads = 512, .packs = 4, .depth = 6, .lag = 1, .cluster = 16, .held = 4},
      {.threads = 512, .packs = 8, .depth = 3, .lag = 1, .cluster = 16, .held = 8},
  };
};
// No registers are left for weights.
struct ResidualLayerHalfTiles {
  static constexpr ChunkTile tiles[] = {
      {.threads = 512, .packs = 2, .depth = 6, .lag = 1, .cluster = 2, .held = 2},
      {.threads = 512, .packs = 4, .depth = 4, .lag = 1, .cluster = 2, .held = 0, .shelf = 4},
      {.threads = 512, .packs = 4, .depth = 4, .lag = 1, .cluster = 4, .held = 0, .shelf = 4},
      {.threads = 512, .packs = 4, .depth = 4, .lag = 1, .cluster = 8, .held = 0, .shelf = 4},
      {.threads = 512, .packs = 4, .depth = 4, .lag = 2, .cluster = 16, .held = 0, .shelf = 4},
  };
};

}  // namespace warpsmith
