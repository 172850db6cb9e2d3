// device/ptx/logic.h: words, masks and bits by chance, and all eight ways in which three bits meet.
#include "device/ptx/logic.h"

#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

constexpr int kWords = 256;

__global__ void logic_kernel(uint32_t* to, const uint32_t* from) {
  const int i = static_cast<int>(threadIdx.x);
  const uint32_t a = from[i], b = from[kWords + i], c = from[2 * kWords + i];
  to[i] = ptx::and_or(a, b, c);
  to[kWords + i] = ptx::and_xor(a, b, c);
}

std::string run() {
  Random random(1);
  std::vector<uint32_t> values(3 * kWords);
  for (uint32_t& value : values) value = random.word();
  values[0] = 0xf0f0f0f0u, values[kWords] = 0xccccccccu, values[2 * kWords] = 0xaaaaaaaau;
  DeviceArray<uint32_t> from(values), to(2 * kWords);
  warpsmith::launch<&logic_kernel>({1, kWords}, kStream, to.data(), from.data());
  const std::vector<uint32_t> got = to.values();
  for (int i = 0; i < kWords; ++i) {
    const uint32_t met = values[i] & values[kWords + i], c = values[2 * kWords + i];
    if (got[i] != (met | c)) return "and_or of triple " + std::to_string(i);
    if (got[kWords + i] != (met ^ c)) return "and_xor of triple " + std::to_string(i);
  }
  return "";
}

const SelfTestEntry entered{"logic", run};

}  // namespace
}  // namespace warpsmith::selftest
