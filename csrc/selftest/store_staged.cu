// gemm/store_staged.cuh, store_pairs.cuh and split.cuh, tile/store_staged.cuh and store_row.cuh: sums that a warp's lanes
// hold as mma.sync leaves them, to whole and odd rows, results that start between 16-byte borders, tiles that stick out,
// batches; rounded alone, finished with alpha, c and the activation, and in two slices that are added up. Sums are integers
// that every dtype holds. Nothing around the results is written.
#include "gemm/store_staged.cuh"

#include <cstring>

#include "gemm/store_pairs.cuh"
#include "gemm/sum_splits.cuh"
#include "gemm/tile_origin.cuh"
#include "selftest/formats.h"
#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

struct SquareTile {
  static constexpr int bm = 128, bn = 128, warps_m = 2, warps_n = 2;
};
struct NarrowTile {  // a warp's share has 32 columns
  static constexpr int bm = 64, bn = 128, warps_m = 1, warps_n = 4;
};
constexpr int kThreads = 128, kBatch = 2;
static_assert(Share<SquareTile>::threads == kThreads && Share<NarrowTile>::threads == kThreads, "the same for both");

// `rows`: that a warp stages at once.
template <class Tile_, int rows_>
struct Staging {
  using Tile = Tile_;
  static constexpr int rows = rows_;
};

// At most 60; two slices add up to 2 sum_at(..., 0) + 3.
__host__ __device__ constexpr int sum_at(int batch, int row, int col, int slice) {
  return (5 * batch + 7 * row + 3 * col) % 121 - 60 + 3 * slice;
}

template <class T, class Tile>
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

template <class T, class Staging>
__global__ void __launch_bounds__(kThreads) store_staged_kernel(const GemmArgs p, const Split split) {
  using Tile = typename Staging::Tile;
  __shared__ alignas(16) char patches[Share<Tile>::warps * StorePatch<Tile, Staging::rows>::bytes];
  const Place<Tile> block(p.m, p.n);
  const WarpPlace<Tile> place;
  WarpSums<T, float, Tile> sums;
  const auto at = [](int64_t begin, int offset) { return static_cast<int>(begin) + offset; };
  set(sums, static_cast<int>(block.batch()), at(block.m(), place.m), at(block.n(), place.n),
      static_cast<int>(blockIdx.y));
  store_staged<Staging::rows>(p, split, sums, patches, block);
}

template <class T>
__global__ void __launch_bounds__(kThreads) store_pairs_kernel(const GemmArgs p) {
  using Tile = SquareTile;
  const Origin block = origin_by_rows<Tile>(p);
  const WarpPlace<Tile> place;
  WarpSums<T, float, Tile> sums;
  set(sums, 0, static_cast<int>(block.m) + place.m, static_cast<int>(block.n) + place.n, 0);
  store_pairs(p, sums, block.m + place.m, block.n + place.n);
}

template <class T>
uint16_t bits_of(int value) {
  return encode_reference(format_of<T>(), static_cast<float>(value));
}

// Memory that results share with values in front of them and behind them, which are to stay as they are.
template <class Value>
class Guarded {
 public:
  // `shift`: from a 16-byte border to the first result.
  Guarded(size_t count, int shift) : before_(kGuard + shift), values_(before_ + count + kGuard) {}

  Value* data() { return values_.data() + before_; }

  std::string compare_with(std::string_view what, const std::vector<Value>& results, int m, int n) const {
    Value untouched;
    std::memset(&untouched, kPoison, sizeof(untouched));
    std::vector<Value> expected(before_, untouched);
    expected.insert(expected.end(), results.begin(), results.end());
    expected.insert(expected.end(), kGuard, untouched);
    const auto describe = [&](size_t at) {
      if (at < before_) return text("value ", before_ - at, " in front");
      const size_t i = at - before_;
      if (i >= results.size()) return text("value ", i - results.size(), " behind");
      return text("product ", i / n / m, ", row ", i / n % m, ", column ", i % n);
    };
    return compare(what, expected, values_.values(), describe);
  }

 private:
  static constexpr int kGuard = 16;  // whole packs
  size_t before_;
  DeviceArray<Value> values_;
};

enum class Added { nothing, rows, column };

struct Case {
  int m, n, shift;
  Added added;
  int slices;

  std::string text() const {
    constexpr const char* kNames[] = {"", ", with c", ", with a column"};
    return selftest::text(m, " x ", n, kNames[static_cast<int>(added)], " in ", slices, " slices, ", shift,
                          " behind a border");
  }
};

template <class T, class Staging>
std::string check_staged(const Case& x) {
  using Tile = typename Staging::Tile;
  constexpr int kMostAdded = 7;
  Random random(37);
  const int m = x.m, n = x.n, count = kBatch * m * n;
  const bool alone = x.added == Added::nothing;
  std::vector<int> c(x.added == Added::rows ? count : m);
  for (int& value : c) value = random.integer(-kMostAdded, kMostAdded);
  std::vector<uint16_t> c_bits, expected;
  for (const int value : c) c_bits.push_back(bits_of<T>(value));
  std::vector<float> partial(x.slices > 1 ? x.slices * count : 0);
  for (int i = 0; i < count; ++i) {
    const int row = i / n % m, col = i % n;
    int value = 0;
    for (int slice = 0; slice < x.slices; ++slice) {
      const int sum = sum_at(i / n / m, row, col, slice);
      if (x.slices > 1) partial[slice * count + i] = static_cast<float>(sum);
      value += sum;
    }
    if (!alone) value = std::max(0, 2 * value - c[x.added == Added::rows ? i : row]);
    expected.push_back(bits_of<T>(value));
  }
  DeviceArray<uint16_t> gC(c_bits);
  Guarded<uint16_t> gD(expected.size(), x.shift);
  Guarded<float> workspace(partial.size(), 0);
  GemmArgs p{};
  p.d = gD.data();
  p.workspace = workspace.data();
  p.batch = kBatch, p.m = m, p.n = n, p.k = 1;
  p.alpha = 1.0f;
  if (!alone) {
    p.alpha = 2.0f, p.beta = -1.0f;
    p.activation = Activation::relu;
    p.c = {gC.data(), 0, 1, 0};  // a value for each row, which batches share
    if (x.added == Added::rows) p.c = {gC.data(), int64_t{m} * n, n, 1};
  }
  const auto tiles = static_cast<unsigned>(kBatch * ceil_div(m, Tile::bm) * ceil_div(n, Tile::bn));
  const dim3 grid(tiles, static_cast<unsigned>(x.slices));
  warpsmith::launch<&store_staged_kernel<T, Staging>>({grid, kThreads}, kStream, p, Split{x.slices, 1});
  if (x.slices > 1) sum_splits<T>(p, x.slices, kStream);
  const std::string what = text("tiles of ", Tile::bm, " x ", Tile::bn, " by ", Staging::rows, " rows to ", x);
  return first_failure([&] { return workspace.compare_with("partial sums, " + what, partial, m, n); },
                       [&] { return gD.compare_with("store_staged, " + what, expected, m, n); });
}

template <class T, class Staging>
std::string check_all_staged() {
  for (const int m : {1, 128, 200}) {
    for (const int n : {1, 3, 7, 24, 128, 129, 133, 135, 136, 261}) {
      for (const int shift : {0, 1}) {
        for (const Added added : {Added::nothing, Added::rows, Added::column}) {
          for (const int slices : {1, 2}) {
            const std::string failure = check_staged<T, Staging>({m, n, shift, added, slices});
            if (!failure.empty()) return failure;
          }
        }
      }
    }
  }
  return "";
}

template <class T>
std::string check_pairs() {
  using Tile = SquareTile;
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
  return first_failure(check_all_staged<f16, Staging<SquareTile, 32>>, check_all_staged<f16, Staging<SquareTile, 8>>,
                       check_all_staged<f16, Staging<NarrowTile, 32>>, check_all_staged<f16, Staging<NarrowTile, 8>>,
                       check_all_staged<bf16, Staging<SquareTile, 32>>, check_pairs<f16>, check_pairs<bf16>);
}

const SelfTestEntry entered{"store_staged", run};

}  // namespace
}  // namespace warpsmith::selftest
