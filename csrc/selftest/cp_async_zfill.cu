// device/ptx/copy.h: copies of 4, 8 and 16 bytes, the last with an L2 policy too, some of them of nothing: those
// must write zeros over what the slot held and must not touch their source, here a null pointer. Every thread reads what
// another has copied.
#include "device/ptx/copy.h"

#include "device/ptx/memory.h"
#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

constexpr int kThreads = 128, kBlocks = 3;

constexpr bool is_valid(int i) { return i % 3 != 1 && i % 7 != 2; }

template <class Raw, bool policy>
__global__ void cp_async_zfill_kernel(Raw* to, const Raw* from) {
  __shared__ Raw slots[kThreads];
  const int tid = threadIdx.x, i = blockIdx.x * kThreads + tid;
  slots[tid] = from[i];  // what zeros must replace
  const bool valid = is_valid(i);
  const Raw* source = valid ? from + gridDim.x * kThreads + i : nullptr;
  if constexpr (policy) {
    ptx::cp_async_zfill(&slots[tid], source, valid, ptx::policy_evict_first());
  } else {
    ptx::cp_async_zfill(&slots[tid], source, valid);
  }
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  __syncthreads();
  to[i] = slots[kThreads - 1 - tid];
}

template <class Raw, bool policy>
std::string check() {
  constexpr int kCopies = kBlocks * kThreads, kWords = sizeof(Raw) / sizeof(uint32_t);
  Random random(25);
  std::vector<uint32_t> values(2 * kCopies * kWords), expected(kCopies * kWords);
  for (uint32_t& value : values) value = random.word() | 1;
  for (int copy = 0; copy < kCopies; ++copy) {
    const int mirrored = copy / kThreads * kThreads + (kThreads - 1 - copy % kThreads);
    for (int word = 0; word < kWords; ++word) {
      expected[copy * kWords + word] = is_valid(mirrored) ? values[(kCopies + mirrored) * kWords + word] : 0;
    }
  }
  DeviceArray<uint32_t> from(values), to(expected.size());
  warpsmith::launch<&cp_async_zfill_kernel<Raw, policy>>(
      {kBlocks, kThreads}, kStream, reinterpret_cast<Raw*>(to.data()), reinterpret_cast<const Raw*>(from.data()));
  return compare(text("cp_async_zfill of ", sizeof(Raw), policy ? " bytes, policy" : " bytes"), expected, to.values(),
                 [](size_t i) {
                   return text("block ", i / kWords / kThreads, ", thread ", i / kWords % kThreads, ", word ",
                               i % kWords);
                 });
}

std::string run() {
  return first_failure(check<uint32_t, false>, check<uint2, false>, check<uint4, false>, check<uint4, true>);
}

const SelfTestEntry entered{"cp_async_zfill", run};

}  // namespace
}  // namespace warpsmith::selftest
