// device/ptx/memory.h: 4, 8 and 16 bytes that several blocks share, under either policy for L2.
#include "device/ptx/memory.h"

#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

constexpr int kThreads = 128, kBlocks = 4;

// Odd blocks keep what they read last.
template <class Raw>
__global__ void load_cached_kernel(Raw* to, const Raw* from) {
  const uint64_t policy = blockIdx.x % 2 == 0 ? ptx::policy_evict_normal() : ptx::policy_evict_last();
  to[blockIdx.x * kThreads + threadIdx.x] = ptx::load_cached(from + kThreads - 1 - threadIdx.x, policy);
}

template <class Raw>
std::string check() {
  constexpr int kWords = sizeof(Raw) / sizeof(uint32_t);
  Random random(33);
  std::vector<uint32_t> values(kThreads * kWords), expected(kBlocks * values.size());
  for (uint32_t& value : values) value = random.word();
  for (int i = 0; i < kBlocks * kThreads; ++i) {
    const int mirrored = kThreads - 1 - i % kThreads;
    for (int word = 0; word < kWords; ++word) expected[i * kWords + word] = values[mirrored * kWords + word];
  }
  DeviceArray<uint32_t> from(values), to(expected.size());
  warpsmith::launch<&load_cached_kernel<Raw>>({kBlocks, kThreads}, kStream, reinterpret_cast<Raw*>(to.data()),
                                              reinterpret_cast<const Raw*>(from.data()));
  return compare(text("load_cached of ", sizeof(Raw), " bytes"), expected, to.values(), [](size_t i) {
    return text("block ", i / kWords / kThreads, ", thread ", i / kWords % kThreads, ", word ", i % kWords);
  });
}

std::string run() { return first_failure(check<uint32_t>, check<uint2>, check<uint4>); }

const SelfTestEntry entered{"load_cached", run};

}  // namespace
}  // namespace warpsmith::selftest
