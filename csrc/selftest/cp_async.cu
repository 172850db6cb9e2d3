// device/ptx/copy.h: a ring in shared memory, filled in the background; every thread reads what another has copied.
#include "device/ptx/copy.h"

#include <utility>

#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

constexpr int kThreads = 128, kBlocks = 3, kRounds = 11;

template <int stages>
__global__ void cp_async_kernel(uint4* to, const uint4* from) {
  __shared__ uint4 ring[stages][kThreads];
  const int tid = threadIdx.x, base = blockIdx.x * kRounds * kThreads;
  const auto fetch = [&](int round) {
    if (round < kRounds) ptx::cp_async(&ring[round % stages][tid], from + base + round * kThreads + tid);
    ptx::cp_async_commit();
  };
  for (int round = 0; round < stages; ++round) fetch(round);
  for (int round = 0; round < kRounds; ++round) {
    ptx::cp_async_wait<stages - 1>();
    __syncthreads();
    to[base + round * kThreads + tid] = ring[round % stages][kThreads - 1 - tid];
    __syncthreads();  // the slot has been read before it is filled again
    fetch(round + stages);
  }
}

template <int stages>
std::string check() {
  constexpr int kPacks = kBlocks * kRounds * kThreads;
  std::vector<uint32_t> values(4 * kPacks), expected(values.size());
  Random random(9);
  for (uint32_t& value : values) value = random.word();
  for (int pack = 0; pack < kPacks; ++pack) {
    const int mirrored = pack / kThreads * kThreads + (kThreads - 1 - pack % kThreads);
    for (int word = 0; word < 4; ++word) expected[4 * pack + word] = values[4 * mirrored + word];
  }
  DeviceArray<uint32_t> from(values), to(values.size());
  warpsmith::launch<&cp_async_kernel<stages>>({kBlocks, kThreads}, kStream, reinterpret_cast<uint4*>(to.data()),
                                              reinterpret_cast<const uint4*>(from.data()));
  return compare(text("cp_async through ", stages, " stages"), expected, to.values(), [](size_t i) {
    const size_t pack = i / 4;
    return text("block ", pack / (kRounds * kThreads), ", round ", pack / kThreads % kRounds, ", thread ",
                pack % kThreads, ", word ", i % 4);
  });
}

std::string run() { return first_failure(check<1>, check<2>, check<3>, check<4>); }

const SelfTestEntry entered{"cp_async", run};

}  // namespace
}  // namespace warpsmith::selftest
