// device/ptx/mma.h: 1, 2 and 4 matrices, as they are and transposed, from rows that lie in shared memory in any
// order, by two warps with matrices of their own; and whole tiles through device/swizzle.h.
#include "device/ptx/mma.h"

#include <algorithm>
#include <numeric>

#include "device/swizzle.h"
#include "device/warp.h"
#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

constexpr int kWarps = 2, kRows = 8, kColumns = 8;  // of a matrix
constexpr int kRowsOfWarp = 4 * kRows;

// slots[warp][j * 8 + i]: where row i of matrix j lies among the warp's rows in shared memory.
template <int n, bool transposed>
__global__ void ldmatrix_kernel(uint32_t* to, const uint16_t* rows, const int* slots) {
  __shared__ __align__(16) uint16_t tile[kWarps * kRowsOfWarp][kColumns];
  for (int i = threadIdx.x; i < kWarps * kRowsOfWarp * kColumns; i += blockDim.x) {
    tile[i / kColumns][i % kColumns] = rows[i];
  }
  __syncthreads();
  const int lane = threadIdx.x % kWarp, first = threadIdx.x / kWarp * kRowsOfWarp;
  // Lanes from 8 n on name no row that is read.
  const uint16_t* row = tile[lane < n * kRows ? first + slots[first + lane] : 0];
  uint32_t got[n];
  if constexpr (transposed) {
    ptx::ldmatrix_trans(got, row);
  } else {
    ptx::ldmatrix(got, row);
  }
  for (int j = 0; j < n; ++j) to[threadIdx.x * n + j] = got[j];
}

template <int n, bool transposed>
std::string check() {
  Random random(21);
  std::vector<uint16_t> rows(kWarps * kRowsOfWarp * kColumns);
  for (uint16_t& value : rows) value = static_cast<uint16_t>(random.word());
  std::vector<int> slots(kWarps * kRowsOfWarp);
  for (int warp = 0; warp < kWarps; ++warp) {
    const auto begin = slots.begin() + warp * kRowsOfWarp, end = begin + kRowsOfWarp;
    std::iota(begin, end, 0);
    for (int left = kRowsOfWarp; left > 1; --left) std::swap(begin[left - 1], begin[random.integer(0, left - 1)]);
  }
  std::vector<uint32_t> expected;
  for (int thread = 0; thread < kWarps * kWarp; ++thread) {
    const int lane = thread % kWarp, first = thread / kWarp * kRowsOfWarp;
    for (int j = 0; j < n; ++j) {
      const auto at = [&](int row, int column) -> uint32_t {
        if (transposed) std::swap(row, column);
        return rows[(first + slots[first + j * kRows + row]) * kColumns + column];
      };
      const int row = lane / 4, column = lane % 4 * 2;
      expected.push_back(at(row, column) | at(row, column + 1) << 16);
    }
  }
  DeviceArray<uint16_t> rows_on_gpu(rows);
  DeviceArray<int> slots_on_gpu(slots);
  DeviceArray<uint32_t> to(expected.size());
  warpsmith::launch<&ldmatrix_kernel<n, transposed>>({1, kWarps * kWarp}, kStream, to.data(),
                                                     static_cast<const uint16_t*>(rows_on_gpu.data()),
                                                     static_cast<const int*>(slots_on_gpu.data()));
  return compare(text(transposed ? "ldmatrix_trans" : "ldmatrix", " of ", n, " matrices"), expected, to.values(),
                 [](size_t i) { return text("thread ", i / n, ", matrix ", i % n); });
}

// A tile is written swizzled and read back, 16 x 16 values at a time, as the operand a of mma.
template <int rows, int columns>
__global__ void swizzled_tile_kernel(uint32_t* to, const uint16_t* from) {
  constexpr TileSwizzle<uint16_t, columns> at;
  __shared__ __align__(16) uint16_t tile[rows * columns];
  const int lane = threadIdx.x;
  for (int i = lane * kColumns; i < rows * columns; i += kWarp * kColumns) {
    *reinterpret_cast<uint4*>(&tile[at(i)]) = *reinterpret_cast<const uint4*>(&from[i]);
  }
  __syncwarp();
  for (int row = 0; row < rows; row += 16) {
    for (int column = 0; column < columns; column += 16) {
      uint32_t got[4];
      ptx::ldmatrix(got, &tile[at((row + lane % 16) * columns + column + lane / 16 * 8)]);
      for (int j = 0; j < 4; ++j) {
        const int r = row + lane / 4 + j % 2 * 8, c = column + lane % 4 * 2 + j / 2 * 8;
        to[(r * columns + c) / 2] = got[j];
      }
    }
  }
}

template <int columns>
std::string check_swizzled() {
  constexpr int kTileRows = 32;
  Random random(22);
  std::vector<uint32_t> values(kTileRows * columns / 2);
  for (uint32_t& value : values) value = random.word();
  DeviceArray<uint32_t> from(values), to(values.size());
  warpsmith::launch<&swizzled_tile_kernel<kTileRows, columns>>({1, kWarp}, kStream, to.data(),
                                                               reinterpret_cast<const uint16_t*>(from.data()));
  return compare(text("ldmatrix from a swizzled tile of ", columns, " columns"), values, to.values(),
                 [](size_t i) { return text("row ", 2 * i / columns, ", column ", 2 * i % columns); });
}

std::string run() {
  return first_failure(check<1, false>, check<2, false>, check<4, false>, check<1, true>, check<2, true>,
                       check<4, true>, check_swizzled<16>, check_swizzled<32>, check_swizzled<64>, check_swizzled<128>,
                       check_swizzled<256>);
}

const SelfTestEntry entered{"ldmatrix", run};

}  // namespace
}  // namespace warpsmith::selftest
