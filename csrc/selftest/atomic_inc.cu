// device/ptx/memory.h: every block leaves a word and counts; all threads of the one that counts last read the words
// of all blocks, and the count is zero again.
#include "device/ptx/memory.h"

#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

constexpr int kBlocks = 1000, kThreads = 96;

__host__ __device__ uint32_t word_of(uint32_t block) { return block * 2654435761u + 1; }

__global__ void count_kernel(uint32_t* words, uint32_t* count, uint32_t* seen) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    words[blockIdx.x] = word_of(blockIdx.x);
    last = ptx::inc_acq_rel(count, kBlocks - 1) == kBlocks - 1;
  }
  __syncthreads();
  if (!last) return;
  for (int i = static_cast<int>(threadIdx.x); i < kBlocks; i += kThreads) seen[i] = words[i];
}

std::string run() {
  std::vector<uint32_t> expected;
  for (uint32_t block = 0; block < kBlocks; ++block) expected.push_back(word_of(block));
  DeviceArray<uint32_t> count(std::vector<uint32_t>(1, 0));
  for (int round = 0; round < 100; ++round) {
    DeviceArray<uint32_t> words(kBlocks), seen(kBlocks);
    warpsmith::launch<&count_kernel>({kBlocks, kThreads}, kStream, words.data(), count.data(), seen.data());
    const auto block = [](size_t i) { return text("block ", i); };
    std::string failure = compare("a word left before counting", expected, seen.values(), block);
    if (failure.empty()) failure = compare("the count after all", std::vector<uint32_t>{0}, count.values(), block);
    if (!failure.empty()) return failure;
  }
  return "";
}

const SelfTestEntry entered{"atomic_inc", run};

}  // namespace
}  // namespace warpsmith::selftest
