// device/ptx/copy.h: copies of 4 and 16 bytes, and those of 8 and 16 with an L2 policy, some of them switched off:
// those must leave what the slot held and must not touch their source, here a null pointer. Every thread reads what
// another has copied.
#include "device/ptx/copy.h"

#include "device/ptx/memory.h"
#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

constexpr int kThreads = 128, kBlocks = 3;

constexpr bool goes(int i) { return i % 3 != 1 && i % 7 != 2; }

template <class Raw, bool policy>
__global__ void cp_async_if_kernel(Raw* to, const Raw* from) {
  __shared__ Raw slots[kThreads];
  const int tid = threadIdx.x, i = blockIdx.x * kThreads + tid;
  slots[tid] = from[i];  // what stays where nothing is copied
  const bool go = goes(i);
  const Raw* source = go ? from + gridDim.x * kThreads + i : nullptr;
  if constexpr (policy) {
    ptx::cp_async_with_policy_if(go, &slots[tid], source, ptx::policy_evict_last());
  } else {
    ptx::cp_async_if(go, &slots[tid], source);
  }
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  __syncthreads();
  to[i] = slots[kThreads - 1 - tid];
}

template <class Raw, bool policy>
std::string check() {
  constexpr int kCopies = kBlocks * kThreads, kWords = sizeof(Raw) / sizeof(uint32_t);
  Random random(26);
  std::vector<uint32_t> values(2 * kCopies * kWords), expected(kCopies * kWords);
  for (uint32_t& value : values) value = random.word();
  for (int copy = 0; copy < kCopies; ++copy) {
    const int mirrored = copy / kThreads * kThreads + (kThreads - 1 - copy % kThreads);
    const int source = goes(mirrored) ? kCopies + mirrored : mirrored;
    for (int word = 0; word < kWords; ++word) expected[copy * kWords + word] = values[source * kWords + word];
  }
  DeviceArray<uint32_t> from(values), to(expected.size());
  warpsmith::launch<&cp_async_if_kernel<Raw, policy>>({kBlocks, kThreads}, kStream, reinterpret_cast<Raw*>(to.data()),
                                                      reinterpret_cast<const Raw*>(from.data()));
  return compare(
      text("cp_async_if of ", sizeof(Raw), policy ? " bytes, policy" : " bytes"), expected, to.values(), [](size_t i) {
        return text("block ", i / kWords / kThreads, ", thread ", i / kWords % kThreads, ", word ", i % kWords);
      });
}

std::string run() {
  return first_failure(check<uint32_t, false>, check<uint4, false>, check<uint2, true>, check<uint4, true>);
}

const SelfTestEntry entered{"cp_async_if", run};

}  // namespace
}  // namespace warpsmith::selftest
