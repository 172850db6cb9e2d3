// The rungs `registers` and `cluster`: which tiles of row/registers.cuh and row/cluster.cuh serve which rows.
#pragma once

#include <array>

#include "norm/forward/row.cuh"
#include "row/cluster.cuh"

namespace warpsmith {

// Rows of 256, 512 and 1024 values in 16 bits.
struct FilledRmsTiles {
  static constexpr RowTile tiles[] = {
      {.threads = 128, .lanes = 16, .packs = 2, .min_blocks = 12, .filled = true, .early = true},
      {.threads = 128, .lanes = 32, .packs = 2, .min_blocks = 12, .filled = true, .early = true},
      {.threads = 128, .lanes = 32, .packs = 4, .min_blocks = 8, .filled = true, .early = true},
  };
};
struct FilledLayerTiles {
  static constexpr RowTile tiles[] = {
      {.threads = 128, .lanes = 16, .packs = 2, .min_blocks = 12, .filled = true, .early = true},
      {.threads = 128, .lanes = 16, .packs = 4, .min_blocks = 8, .filled = true, .early = true},
      {.threads = 128, .lanes = 32, .packs = 4, .min_blocks = 8, .filled = true, .early = true},
  };
};
// And of 256 in f32, where sixteen blocks leave no registers for weights.
struct FilledFloatTiles {
  static constexpr RowTile tiles[] = {{.threads = 128, .lanes = 32, .packs = 2, .min_blocks = 16, .filled = true}};
};

// Four packs where the row has as many: merging statistics costs a warp the same however much it has gathered.
struct LayerTiles {
  static constexpr RowTile tiles[] = {
      {.threads = 128, .lanes = 4, .packs = 1, .min_blocks = 12},
      {.threads = 128, .lanes = 8, .packs = 1, .min_blocks = 12},
      {.threads = 128, .lanes = 8, .packs = 2, .min_blocks = 12},
      {.threads = 128, .lanes = 8, .packs = 4, .min_blocks = 12},
      {.threads = 128, .lanes = 16, .packs = 4, .min_blocks = 12},
      {.threads = 128, .lanes = 32, .packs = 4, .min_blocks = 12},
      {.threads = 64, .packs = 4, .min_blocks = 24},
      {.threads = 128, .packs = 4, .min_blocks = 12},
      {.threads = 256, .packs = 4, .min_blocks = 6},
      {.threads = 512, .packs = 4, .min_blocks = 3},
      {.threads = 512, .packs = 8, .min_blocks = 2},
      {.threads = 1024, .packs = 8, .min_blocks = 1},
  };
};
static_assert(kMostRowBytes == 16 * kMostRowPacks<TilesOf<LayerTiles>>, "what `takes` says");
// To be rounded to fp8, four packs take a few registers more.
struct LayerFp8Tiles {
  static constexpr auto tiles = [] {
    auto tiles = std::to_array(LayerTiles::tiles);
    for (RowTile& tile : tiles) {
      if (tile.packs == 4) tile.min_blocks = 1280 / tile.threads;
    }
    return tiles;
  }();
};

// A thread holds two packs where it can, so that blocks stay small and a multiprocessor is full of them. Common lengths
// have kernels in which there is nothing to test.
struct SumTiles {
  static constexpr RowTile tiles[] = {
      {.threads = 128, .lanes = 4, .packs = 1, .min_blocks = 12},
      {.threads = 128, .lanes = 8, .packs = 2, .min_blocks = 12},
      {.threads = 128, .lanes = 16, .packs = 2, .min_blocks = 12},
      {.threads = 128, .lanes = 32, .packs = 2, .min_blocks = 12},
      {.threads = 64, .packs = 2, .min_blocks = 24, .filled = true},
      {.threads = 128, .packs = 2, .min_blocks = 12, .filled = true},
      {.threads = 256, .packs = 2, .min_blocks = 6, .filled = true},
      {.threads = 512, .packs = 2, .min_blocks = 3, .filled = true},
      {.threads = 512, .packs = 2, .min_blocks = 3},
      {.threads = 512, .packs = 4, .min_blocks = 2, .filled = true},
      {.threads = 1024, .packs = 4, .min_blocks = 1, .filled = true},
      {.threads = 1024, .packs = 4, .min_blocks = 1},
  };
};
// Fewer for what is rarer.
struct FewSumTiles {
  static constexpr RowTile tiles[] = {
      {.threads = 128, .lanes = 8, .packs = 1, .min_blocks = 12},
      {.threads = 128, .lanes = 32, .packs = 2, .min_blocks = 10},
      {.threads = 512, .packs = 2, .min_blocks = 2},
      {.threads = 1024, .packs = 4, .min_blocks = 1},
  };
};
// The generator of dropout wants registers too.
struct DropoutTiles {
  static constexpr RowTile tiles[] = {
      {.threads = 128, .lanes = 8, .packs = 1, .min_blocks = 10},
      {.threads = 128, .lanes = 32, .packs = 2, .min_blocks = 8},
      {.threads = 512, .packs = 2, .min_blocks = 2},
      {.threads = 512, .packs = 4, .min_blocks = 1},
      {.threads = 512, .packs = 8, .min_blocks = 1},
  };
};
// Common lengths in 16 bits, where nothing is tested and more warps have room.
struct FilledDropoutTiles {
  static constexpr RowTile tiles[] = {
      {.threads = 64, .packs = 2, .min_blocks = 24, .filled = true},
      {.threads = 128, .packs = 2, .min_blocks = 12, .filled = true},
      {.threads = 256, .packs = 2, .min_blocks = 6, .filled = true},
      {.threads = 512, .packs = 2, .min_blocks = 3, .filled = true},
      {.threads = 512, .packs = 4, .min_blocks = 2, .filled = true},
      {.threads = 1024, .packs = 4, .min_blocks = 1, .filled = true},
  };
};

// Row: NormRow.
template <class Row>
void launch_registers(const Row& row, cudaStream_t stream) {
  using Flow = typename Row::Flow;
  constexpr bool kHalf = sizeof(typename Row::Value) == 2;
  if constexpr (Flow::kDropout) {
    if constexpr (kHalf) {
      if (launch_row(row, stream, TilesOf<FilledDropoutTiles>{})) return;
    }
    launch_row(row, stream, TilesOf<DropoutTiles>{});
  } else if constexpr (Flow::kSums) {
    launch_row(row, stream, TilesOf<std::conditional_t<Flow::kMixed || Flow::kFp8, FewSumTiles, SumTiles>>{});
  } else {
    using Filled =
        std::conditional_t<!kHalf, FilledFloatTiles, std::conditional_t<Row::kLayer, FilledLayerTiles, FilledRmsTiles>>;
    if constexpr (!Flow::kFp8 && (kHalf || Row::kLayer)) {
      if (!row.wide_weights && launch_row(row, stream, TilesOf<Filled>{})) return;
    }
    using Layer = TilesOf<std::conditional_t<Flow::kFp8, LayerFp8Tiles, LayerTiles>>;
    launch_row(row, stream, std::conditional_t<Row::kLayer, Layer, RowTiles>{});
  }
}

template <class Flow, class Args>
void launch_norm_registers(const Args& a, cudaStream_t stream) {
  visit_norm<Flow>(a, [&]<class Row>() { launch_registers(Row(a), stream); });
}

// Of 480 threads each has registers for weight and bias of nine packs.
struct LayerClusters {
  static constexpr ClusterTile tiles[] = {
      {.threads = 512, .packs = 4, .stages = 4, .min_blocks = 1, .cluster = 4},
      {.threads = 512, .packs = 4, .stages = 4, .min_blocks = 1, .cluster = 8},
      {.threads = 512, .packs = 4, .stages = 4, .min_blocks = 1, .cluster = 16},
      {.threads = 480, .packs = 9, .stages = 3, .min_blocks = 1, .cluster = 16},
  };
};
static_assert(kMostClusterBytes <= 16 * kMostRowPacks<TilesOf<LayerClusters>>);

template <class Args>
void launch_norm_cluster(const Args& a, cudaStream_t stream) {
  visit_norm<OfX>(a, [&]<class Row>() {
    launch_cluster(Row(a), stream, std::conditional_t<Row::kLayer, TilesOf<LayerClusters>, ClusterTiles>{});
  });
}

}  // namespace warpsmith
