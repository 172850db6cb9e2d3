// gemm/mma_ring.cuh: products through rings of 2 to 4 stages, tiles that stick out of the product and a last step that is
// not whole; operands padded and swizzled, whose copies start at different times; fragments read in turn with the
// multiplications and ahead of them. Sums of small integers are exact.
#include "gemm/mma_ring.cuh"

#include "selftest/formats.h"
#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

template <int stages_, template <int, int> class Layout>
struct RingConfig {
  static constexpr int bm = 64, bn = 64, bk = 32, warps_m = 2, warps_n = 2, stages = stages_;
  using A = OperandTile<Along::k, bm, bk, Layout>;
  using B = OperandTile<Along::mn, bn, bk, Layout>;
};

template <class T, class Config, bool ahead>
__global__ void __launch_bounds__(Share<Config>::threads) mma_ring_kernel(const GemmArgs p) {
  __shared__ Stage<T, typename Config::A, typename Config::B> ring[Config::stages];
  if constexpr (ahead) {
    multiply_ring_ahead<T, float, Config>(p, ring, origin_by_rows<Config>(p));
  } else {
    multiply_ring<T, float, Config>(p, ring, origin_by_rows<Config>(p));
  }
}

template <class T>
std::vector<uint16_t> bits_of(const std::vector<int>& values) {
  std::vector<uint16_t> bits;
  for (const int value : values) bits.push_back(encode_reference(format_of<T>(), static_cast<float>(value)));
  return bits;
}

template <class T, int stages, bool ahead, template <int, int> class Layout = Padded>
std::string check() {
  using Config = RingConfig<stages, Layout>;
  constexpr bool kSwizzled = Config::A::stride == Config::A::length;
  constexpr int kShapes[][3] = {{64, 64, 32}, {70, 72, 8}, {129, 136, 200}, {1, 8, 320}};  // m, n, k
  Random random(36);
  for (const auto& [m, n, k] : kShapes) {
    std::vector<int> a(m * k), b(k * n), product(m * n, 0);
    for (int& value : a) value = random.integer(-1, 1);
    for (int& value : b) value = random.integer(-1, 1);
    for (int row = 0; row < m; ++row) {
      for (int i = 0; i < k; ++i) {
        for (int col = 0; col < n; ++col) product[row * n + col] += a[row * k + i] * b[i * n + col];
      }
    }
    DeviceArray<uint16_t> gA(bits_of<T>(a)), gB(bits_of<T>(b)), gD(product.size());
    GemmArgs p{};
    p.a = {gA.data(), k, 0, Order::rows};
    p.b = {gB.data(), n, 0, Order::rows};
    p.d = gD.data();
    p.batch = 1, p.m = m, p.n = n, p.k = k;
    p.alpha = 1.0f;
    const auto blocks = static_cast<unsigned>(ceil_div(m, Config::bm) * ceil_div(n, Config::bn));
    warpsmith::launch<&mma_ring_kernel<T, Config, ahead>>({blocks, Share<Config>::threads}, kStream, p);
    const int across = n;
    const std::string failure = compare(text(m, " x ", n, " x ", k, kSwizzled ? " swizzled" : "", " through ", stages,
                                             ahead ? " stages, ahead" : " stages"),
                                        bits_of<T>(product), gD.values(),
                                        [&](size_t i) { return text("row ", i / across, ", column ", i % across); });
    if (!failure.empty()) return failure;
  }
  return "";
}

std::string run() {
  return first_failure(check<f16, 2, false>, check<bf16, 3, false>, check<f16, 4, false>, check<bf16, 2, true>,
                       check<f16, 3, true>, check<bf16, 4, true>, check<f16, 2, false, Swizzled>,
                       check<bf16, 3, false, Swizzled>, check<f16, 3, true, Swizzled>);
}

const SelfTestEntry entered{"mma_ring", run};

}  // namespace
}  // namespace warpsmith::selftest
