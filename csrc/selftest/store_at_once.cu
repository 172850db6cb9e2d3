// device/ptx/memory.h: all 16 bytes where a thread stores, and none around them.
#include "device/ptx/memory.h"

#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

constexpr int kThreads = 128, kBlocks = 3;

constexpr bool goes(int i) { return i % 3 != 1 && i % 7 != 2; }

__global__ void store_at_once_kernel(uint4* to) {
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (goes(static_cast<int>(i))) ptx::store_at_once(to + i, {4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3});
}

std::string run() {
  constexpr uint32_t kUntouched = kPoison * 0x01010101u;
  std::vector<uint32_t> expected(kBlocks * kThreads * 4);
  for (uint32_t i = 0; i < expected.size(); ++i) expected[i] = goes(static_cast<int>(i / 4)) ? i : kUntouched;
  DeviceArray<uint32_t> to(expected.size());
  warpsmith::launch<&store_at_once_kernel>({kBlocks, kThreads}, kStream, reinterpret_cast<uint4*>(to.data()));
  return compare("store_at_once", expected, to.values(), [](size_t i) {
    return text("block ", i / 4 / kThreads, ", thread ", i / 4 % kThreads, ", word ", i % 4);
  });
}

const SelfTestEntry entered{"store_at_once", run};

}  // namespace
}  // namespace warpsmith::selftest
