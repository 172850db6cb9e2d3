// device/ptx/memory.h: a kernel that overwrites what it has read and reads that again, as other threads left it.
#include "device/ptx/memory.h"

#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

constexpr int kThreads = 128, kBlocks = 3, kRounds = 3;

// Every round turns the block's packs around and adds to them.
__global__ void load_once_kernel(uint4* packs) {
  const int tid = threadIdx.x, base = blockIdx.x * kThreads;
  for (int round = 0; round < kRounds; ++round) {
    uint4 v = ptx::load_once(packs + base + kThreads - 1 - tid, ptx::policy_evict_normal());
    __syncthreads();
    v.x += 1, v.y += 2, v.z += 3, v.w += 4;
    packs[base + tid] = v;
    __syncthreads();
  }
}

std::string run() {
  Random random(32);
  std::vector<uint32_t> values(kBlocks * kThreads * 4), expected(values.size());
  for (uint32_t& value : values) value = random.word();
  static_assert(kRounds % 2 == 1, "the packs end up reversed");
  for (int pack = 0; pack < kBlocks * kThreads; ++pack) {
    const int mirrored = pack / kThreads * kThreads + (kThreads - 1 - pack % kThreads);
    for (int word = 0; word < 4; ++word) expected[4 * pack + word] = values[4 * mirrored + word] + kRounds * (word + 1);
  }
  DeviceArray<uint32_t> packs(values);
  warpsmith::launch<&load_once_kernel>({kBlocks, kThreads}, kStream, reinterpret_cast<uint4*>(packs.data()));
  return compare("load_once", expected, packs.values(), [](size_t i) {
    return text("block ", i / 4 / kThreads, ", thread ", i / 4 % kThreads, ", word ", i % 4);
  });
}

const SelfTestEntry entered{"load_once", run};

}  // namespace
}  // namespace warpsmith::selftest
