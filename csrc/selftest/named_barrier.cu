// device/ptx/barrier.h: groups of warps pass values around in shared memory, each group as many times as its
// number says; a barrier that counted threads of another group would let them read too early, or never return.
#include "device/ptx/barrier.h"

#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

constexpr int kGroup = 64, kGroups = 6, kRounds = 50;

constexpr int rounds_of(int group) { return kRounds * (1 + group); }

__global__ void named_barrier_kernel(uint32_t* to, const uint32_t* from) {
  __shared__ uint32_t slots[kGroups][kGroup];
  const int tid = threadIdx.x, group = tid / kGroup, i = tid % kGroup;
  slots[group][i] = from[tid];
  for (int round = 0; round < rounds_of(group); ++round) {
    ptx::sync_warps(1 + group, kGroup);
    const uint32_t value = slots[group][(i + 33) % kGroup];
    ptx::sync_warps(1 + group, kGroup);
    slots[group][i] = value + 1;
  }
  to[tid] = slots[group][i];
}

std::string run() {
  Random random(27);
  std::vector<uint32_t> values(kGroups * kGroup), expected(values.size());
  for (uint32_t& value : values) value = random.word();
  for (int tid = 0; tid < kGroups * kGroup; ++tid) {
    const int group = tid / kGroup, rounds = rounds_of(group);
    expected[tid] = values[group * kGroup + (tid % kGroup + 33 * rounds) % kGroup] + static_cast<uint32_t>(rounds);
  }
  DeviceArray<uint32_t> from(values), to(expected.size());
  warpsmith::launch<&named_barrier_kernel>({1, kGroups * kGroup}, kStream, to.data(), from.data());
  return compare("sync_warps", expected, to.values(),
                 [](size_t i) { return text("group ", i / kGroup, ", thread ", i % kGroup); });
}

const SelfTestEntry entered{"named_barrier", run};

}  // namespace
}  // namespace warpsmith::selftest
