// device/ptx/wmma.h: the fragments of nvcuda::wmma, register by register, from rows that lie any multiple of 8 values
// apart.
#include "device/ptx/wmma.h"

#include "device/warp.h"
#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

constexpr int kMostRows = 32, kMostStride = 40, kValues = kMostRows * kMostStride;

template <class Fragment>
using Value = std::remove_extent_t<decltype(Fragment::x)>;
template <class Fragment>
inline constexpr int kWords = sizeof(Fragment::x) / sizeof(uint32_t);

// to: [2, lanes, words], ours from value `first` on, and that of nvcuda::wmma from a copy of these values that is aligned.
template <class Fragment>
__global__ void wmma_load_kernel(uint32_t* to, const uint16_t* from, int first, int stride) {
  using T = Value<Fragment>;
  constexpr int kOfLane = kWords<Fragment>;
  __shared__ alignas(32) uint16_t tile[kValues], aligned[kValues];
  for (int i = threadIdx.x; i < kValues; i += kWarp) {
    tile[i] = from[i];
    aligned[i] = first + i < kValues ? from[first + i] : 0;
  }
  __syncwarp();
  Fragment ours, theirs;
  ptx::wmma_load(ours, reinterpret_cast<const T*>(tile + first), static_cast<unsigned>(stride));
  nvcuda::wmma::load_matrix_sync(theirs, reinterpret_cast<const T*>(aligned), static_cast<unsigned>(stride));
  for (int word = 0; word < kOfLane; ++word) {
    to[threadIdx.x * kOfLane + word] = ptx::words_of<kOfLane>(ours)[word];
    to[(kWarp + threadIdx.x) * kOfLane + word] = ptx::words_of<kOfLane>(theirs)[word];
  }
}

// `step`: values of 2 bytes to which `from` is aligned.
template <class Fragment, int rows, int step>
std::string check() {
  constexpr int kOfLane = kWords<Fragment>;
  Random random(35);
  std::vector<uint16_t> values(kValues);
  for (uint16_t& value : values) value = static_cast<uint16_t>(random.word());
  DeviceArray<uint16_t> from(values);
  for (const int stride : {16, 24, 32, kMostStride}) {
    for (int first = 0; first <= 16; first += step) {
      if (first + (rows - 1) * stride + 16 > kValues) continue;
      DeviceArray<uint32_t> to(2 * kWarp * kOfLane);
      warpsmith::launch<&wmma_load_kernel<Fragment>>({1, kWarp}, kStream, to.data(), from.data(), first, stride);
      const std::vector<uint32_t> both = to.values();
      const auto middle = both.begin() + kWarp * kOfLane;
      const std::string failure =
          compare(text("wmma_load of ", rows, " rows of ", sizeof(Value<Fragment>) * 8, " bits, stride ", stride,
                       ", from value ", first),
                  std::vector<uint32_t>(middle, both.end()), std::vector<uint32_t>(both.begin(), middle),
                  [](size_t i) { return text("lane ", i / kOfLane, ", register ", i % kOfLane); });
      if (!failure.empty()) return failure;
    }
  }
  return "";
}

std::string run() {
  using namespace ptx::fragments;
  return first_failure(check<A16x16, 16, 8>, check<B16x16, 16, 8>, check<A32x8, 32, 16>, check<B32x8, 16, 8>,
                       check<HalfB32x8, 16, 8>);
}

const SelfTestEntry entered{"wmma", run};

}  // namespace
}  // namespace warpsmith::selftest
