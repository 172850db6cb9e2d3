// device/ptx/wmma.h: the fragments of nvcuda::wmma, register by register, from rows that lie any multiple of 8 values
// apart.
#include "device/ptx/wmma.h"

#include "device/warp.h"
#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

constexpr int kMostRows = 32, kMostStride = 40, kValues = kMostRows * kMostStride;

// to: [2, lanes, words], ours from value `first` on, and that of nvcuda::wmma from a copy of these values that is aligned.
template <class Fragment, int words>
__global__ void wmma_load_kernel(uint32_t* to, const uint16_t* from, int first, int stride) {
  __shared__ alignas(32) uint16_t tile[kValues], aligned[kValues];
  for (int i = threadIdx.x; i < kValues; i += kWarp) {
    tile[i] = from[i];
    aligned[i] = first + i < kValues ? from[first + i] : 0;
  }
  __syncwarp();
  Fragment ours, theirs;
  ptx::wmma_load(ours, reinterpret_cast<const bf16*>(tile + first), static_cast<unsigned>(stride));
  nvcuda::wmma::load_matrix_sync(theirs, reinterpret_cast<const bf16*>(aligned), static_cast<unsigned>(stride));
  for (int word = 0; word < words; ++word) {
    to[threadIdx.x * words + word] = ptx::words_of<words>(ours)[word];
    to[(kWarp + threadIdx.x) * words + word] = ptx::words_of<words>(theirs)[word];
  }
}

template <class Fragment, int words, int rows>
std::string check() {
  Random random(35);
  std::vector<uint16_t> values(kValues);
  for (uint16_t& value : values) value = static_cast<uint16_t>(random.word());
  DeviceArray<uint16_t> from(values);
  for (const int stride : {16, 24, 32, kMostStride}) {
    for (const int first : {0, 8, 16}) {  // in values of 2 bytes, of which a lane gets 2 * words
      if (first % (2 * words) != 0 || first + (rows - 1) * stride + 16 > kValues) continue;
      DeviceArray<uint32_t> to(2 * kWarp * words);
      warpsmith::launch<&wmma_load_kernel<Fragment, words>>({1, kWarp}, kStream, to.data(), from.data(), first, stride);
      const std::vector<uint32_t> both = to.values();
      const auto middle = both.begin() + kWarp * words;
      const std::string failure =
          compare(text("wmma_load of ", rows, " rows, stride ", stride, ", from value ", first),
                  std::vector<uint32_t>(middle, both.end()), std::vector<uint32_t>(both.begin(), middle),
                  [](size_t i) { return text("lane ", i / words, ", register ", i % words); });
      if (!failure.empty()) return failure;
    }
  }
  return "";
}

std::string run() {
  using namespace ptx::fragments;
  return first_failure(check<A16x16, 4, 16>, check<B16x16, 4, 16>, check<A32x8, 8, 32>, check<B32x8, 2, 16>);
}

const SelfTestEntry entered{"wmma", run};

}  // namespace
}  // namespace warpsmith::selftest
