// device/block_order.h and device/pipeline.h: every tile is taken once, group by group; slots come around in turn.
#include "device/block_order.h"

#include <algorithm>

#include "device/pipeline.h"
#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

constexpr int kThreads = 128;

__global__ void grouped_tile_kernel(int2* to, int tiles_m, int tiles_n, int group) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= tiles_m * tiles_n) return;
  const TileCoord tile = grouped_tile(i, tiles_m, tiles_n, group);
  to[i] = {static_cast<int>(tile.m), static_cast<int>(tile.n)};
}

std::string check(int tiles_m, int tiles_n, int group) {
  std::vector<int> expected;  // m and n in turn
  for (int first = 0; first < tiles_m; first += group) {
    for (int n = 0; n < tiles_n; ++n) {
      for (int m = first; m < std::min(first + group, tiles_m); ++m) expected.insert(expected.end(), {m, n});
    }
  }
  const int tiles = tiles_m * tiles_n;
  DeviceArray<int> to(expected.size());
  warpsmith::launch<&grouped_tile_kernel>({static_cast<unsigned>((tiles + kThreads - 1) / kThreads), kThreads}, kStream,
                                          reinterpret_cast<int2*>(to.data()), tiles_m, tiles_n, group);
  return compare(text("grouped_tile of ", tiles_m, " x ", tiles_n, " by ", group), expected, to.values(),
                 [](size_t i) { return text(i % 2 == 0 ? "m" : "n", " of tile ", i / 2); });
}

// Numbers that 32 bits only just hold.
static_assert(grouped_tile(0xfffffffe, 1, 0xffffffff, 8).n == 0xfffffffe);
static_assert(grouped_tile(0xfffffffe, 0xffffffff, 1, 8).m == 0xfffffffe);

template <int stages>
constexpr bool comes_around() {
  RingSlot<stages> at;
  for (int step = 0; step < 3 * stages + 1; ++step, at.advance()) {
    if (at.slot != step % stages || at.phase != step / stages % 2) return false;
  }
  return true;
}
static_assert(comes_around<1>() && comes_around<2>() && comes_around<3>() && comes_around<8>());

std::string run() {
  std::string failure;
  for (const int tiles_m : {1, 2, 7, 8, 9, 33}) {
    for (const int tiles_n : {1, 2, 5, 64}) {
      for (const int group : {1, 2, 8, 16, 1000}) {
        if (failure.empty()) failure = check(tiles_m, tiles_n, group);
      }
    }
  }
  return failure;
}

const SelfTestEntry entered{"block_order", run};

}  // namespace
}  // namespace warpsmith::selftest
