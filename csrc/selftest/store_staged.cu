// gemm/store_staged.cuh, gemm/store_pairs.cuh and gemm/split.cuh: sums that a warp's lanes hold as mma.sync leaves them,
// to whole and odd rows, tiles that stick out, batches; rounded alone, finished with alpha, c and the activation, and in
// two slices that are added up. Sums are integers that every dtype holds.
#include "gemm/store_staged.cuh"

#include "gemm/store_pairs.cuh"
#include "selftest/formats.h"
#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

struct StoreTile {
  static constexpr int bm = 128, bn = 128, warps_m = 2, warps_n = 2;
};
using Tile = StoreTile;
constexpr int kThreads = Share<Tile>::threads, kBatch = 2;

// At most 60; two slices add up to 2 sum_at(..., 0) + 3.
__host__ __device__ constexpr int sum_at(int batch, int row, int col, int slice) {
  return (5 * batch + 7 * row + 3 * col) % 121 - 60 + 3 * slice;
}

template <class T>
__device__ void set(WarpSums<T, float, Tile>& warp, int batch, int m, int n, int slice) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int i = 0; i < warp.wm / 16; ++i) {
    for (int j = 0; j < warp.wn / 8; ++j) {
      for (int at = 0; at < 4; ++at) {
        const int row = m + 16 * i + at / 2 * 8 + lane / 4, col = n + 8 * j + lane % 4 * 2 + at % 2;
        warp.sums[i][j].value[at] = static_cast<float>(sum_at(batch, row, col, slice));
      }
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) store_staged_kernel(const GemmArgs p, const Split split) {
  __shared__ alignas(16) char patches[Share<Tile>::warps * StorePatch<Tile>::bytes];
  const Place<Tile> block(p.m, p.n);
  const WarpPlace<Tile> place;
  WarpSums<T, float, Tile> sums;
  const auto at = [](int64_t begin, int offset) { return static_cast<int>(begin) + offset; };
  set(sums, static_cast<int>(block.batch()), at(block.m(), place.m), at(block.n(), place.n),
      static_cast<int>(blockIdx.y));
  store_staged(p, split, sums, patches, block, place);
}

template <class T>
__global__ void __launch_bounds__(kThreads) store_pairs_kernel(const GemmArgs p) {
  const Origin block = origin_by_rows<Tile>(p);
  const WarpPlace<Tile> place;
  WarpSums<T, float, Tile> sums;
  set(sums, 0, static_cast<int>(block.m) + place.m, static_cast<int>(block.n) + place.n, 0);
  store_pairs(p, sums, block.m + place.m, block.n + place.n);
}

enum class Added { nothing, rows, column };

template <class T>
uint16_t bits_of(int value) {
  return encode_reference(format_of<T>(), static_cast<float>(value));
}

template <class T>
std::string check_staged(int m, int n, Added added, int slices) {
  constexpr int kMostAdded = 7;
  Random random(37);
  const bool alone = added == Added::nothing;
  std::vector<int> c(added == Added::rows ? kBatch * m * n : m);
  for (int& value : c) value = random.integer(-kMostAdded, kMostAdded);
  std::vector<uint16_t> c_bits, expected;
  for (const int value : c) c_bits.push_back(bits_of<T>(value));
  for (int i = 0; i < kBatch * m * n; ++i) {
    const int row = i / n % m, col = i % n;
    int value = 0;
    for (int slice = 0; slice < slices; ++slice) value += sum_at(i / n / m, row, col, slice);
    if (!alone) value = std::max(0, 2 * value - c[added == Added::rows ? i : row]);
    expected.push_back(bits_of<T>(value));
  }
  DeviceArray<uint16_t> gC(c_bits), gD(expected.size());
  DeviceArray<float> workspace(expected.size() * slices);
  GemmArgs p{};
  p.d = gD.data();
  p.workspace = workspace.data();
  p.batch = kBatch, p.m = m, p.n = n, p.k = 1;
  p.alpha = 1.0f;
  if (!alone) {
    p.alpha = 2.0f, p.beta = -1.0f;
    p.activation = Activation::relu;
    p.c = {gC.data(), 0, 1, 0};  // a value for each row, which batches share
    if (added == Added::rows) p.c = {gC.data(), int64_t{m} * n, n, 1};
  }
  const auto tiles = static_cast<unsigned>(kBatch * ceil_div(m, Tile::bm) * ceil_div(n, Tile::bn));
  const dim3 grid(tiles, static_cast<unsigned>(slices));
  warpsmith::launch<&store_staged_kernel<T>>({grid, kThreads}, kStream, p, Split{slices, 1});
  if (slices > 1) sum_splits<T>(p, slices, kStream);
  constexpr const char* kNames[] = {"", ", with c", ", with a column"};
  return compare(text("store_staged of ", m, " x ", n, kNames[static_cast<int>(added)], " in ", slices, " slices"),
                 expected, gD.values(),
                 [&](size_t i) { return text("product ", i / n / m, ", row ", i / n % m, ", column ", i % n); });
}

template <class T>
std::string check_all_staged() {
  for (const int m : {1, 100, 128, 200}) {
    for (const int n : {1, 24, 128, 133, 136}) {
      for (const Added added : {Added::nothing, Added::rows, Added::column}) {
        for (const int slices : {1, 2}) {
          if (const std::string failure = check_staged<T>(m, n, added, slices); !failure.empty()) return failure;
        }
      }
    }
  }
  return "";
}

template <class T>
std::string check_pairs() {
  constexpr int m = 200, n = 134;
  std::vector<uint16_t> expected;
  for (int i = 0; i < m * n; ++i) expected.push_back(bits_of<T>(sum_at(0, i / n, i % n, 0)));
  DeviceArray<uint16_t> gD(expected.size());
  GemmArgs p{};
  p.d = gD.data();
  p.batch = 1, p.m = m, p.n = n, p.k = 1;
  const auto tiles = static_cast<unsigned>(ceil_div(m, Tile::bm) * ceil_div(n, Tile::bn));
  warpsmith::launch<&store_pairs_kernel<T>>({tiles, kThreads}, kStream, p);
  return compare("store_pairs", expected, gD.values(),
                 [](size_t i) { return text("row ", i / n, ", column ", i % n); });
}

std::string run() {
  return first_failure(check_all_staged<f16>, check_all_staged<bf16>, check_pairs<f16>, check_pairs<bf16>);
}

const SelfTestEntry entered{"store_staged", run};

}  // namespace
}  // namespace warpsmith::selftest
