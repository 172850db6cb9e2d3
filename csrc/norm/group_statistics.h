// How the rungs of several kernels cut groups into pieces, and the workspace that carries statistics from one kernel to
// the next: the moments of every piece, then the mean and the reciprocal standard deviation of every group.
#pragma once

#include "host/min_max.h"
#include "norm/group.h"

namespace warpsmith {

inline constexpr int64_t kMostPieces = 1024;    // of a group
inline constexpr int64_t kWantedBlocks = 2112;  // of a kernel: 16 for each multiprocessor of an H100
inline constexpr int64_t kWave = 528;           // of these an H100 holds at a time, or two waves of half as many

// Contiguous groups: pieces of `length` packs. Channels last: slabs of `length` positions of all channels of a sample.
struct Pieces {
  int64_t count;  // of a group, or of a sample
  int64_t length;

  // `total` items in `wholes` wholes, pieces of `least` to `most` items.
  Pieces(int64_t total, int64_t wholes, int64_t least, int64_t most) {
    length = clamp(ceil_of(total, kWantedBlocks), least, most);
    cut(total / wholes);
  }

  // `wholes` wholes of `whole` items each: pieces of `good` items or more for whole waves of blocks, the last of them
  // nearly full, but of no less than `least` items.
  static Pieces in_waves(int64_t whole, int64_t wholes, int64_t least, int64_t good) {
    const int64_t waves = max_of(wholes * whole / (kWave * good), ceil_of(8 * wholes, kWave), int64_t{1});
    Pieces pieces;
    pieces.length = std::max(ceil_of(whole, std::max<int64_t>(waves * kWave / wholes, 1)), least);
    pieces.cut(whole);
    return pieces;
  }

 private:
  Pieces() = default;

  void cut(int64_t whole) {
    length = std::max(length, ceil_of(whole, kMostPieces));
    count = ceil_of(whole, length);
  }
};

inline Pieces pieces_of(const GroupShape& s, Dtype dtype) {
  constexpr int64_t kLeastPacks = 512, kMostPacks = 4096, kGoodPacks = 8192;
  if (!s.channels_last) {
    const int64_t packs = s.row_size() / (16 / size_of(dtype));
    return Pieces(s.rows() * packs, s.rows(), kLeastPacks, kMostPacks);
  }
  const int64_t packs = std::max<int64_t>(s.c / (16 / size_of(dtype)), 1);  // of a position
  const int64_t tiles = ceil_of(packs, kMostColumns), across = ceil_of(packs, tiles);
  return Pieces::in_waves(s.spatial, s.n * tiles, ceil_of(kLeastPacks, across), ceil_of(kGoodPacks, across));
}

// Floats that the statistics take: {count, mean, m2} per piece and group, {mean, rstd} per group.
inline int64_t statistics_floats(const GroupShape& s, const Pieces& pieces) {
  return s.rows() * (3 * pieces.count + 2);
}

}  // namespace warpsmith
