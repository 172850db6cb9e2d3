// device/ptx/memory.h: a word handed from block to block, each of which adds to both of its halves: no block may see
// one half without the other.
#include "device/ptx/memory.h"

#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

constexpr int kBlocks = 64;  // resident together on every GPU

// Two counts that run in opposite directions; never zero.
__host__ __device__ uint64_t word_of(uint32_t step) { return uint64_t{~step} << 32 | step; }

__global__ void hand_on_kernel(uint64_t* words, uint64_t* seen) {
  const unsigned block = blockIdx.x;
  if (block > 0) {
    uint64_t word;
    do {
      word = ptx::load_relaxed(words + block - 1);
    } while (word == 0);
    seen[block] = word;
  } else {
    seen[0] = word_of(0);
  }
  ptx::store_relaxed(words + block, word_of(static_cast<uint32_t>(seen[block]) + 1));
}

std::string run() {
  std::vector<uint64_t> expected;
  for (uint32_t step = 0; step < kBlocks; ++step) expected.push_back(word_of(step));
  for (int round = 0; round < 100; ++round) {
    DeviceArray<uint64_t> words(std::vector<uint64_t>(kBlocks, 0)), seen(kBlocks);
    warpsmith::launch<&hand_on_kernel>({kBlocks, 1}, kStream, words.data(), seen.data());
    const std::string failure =
        compare("a word handed on", expected, seen.values(), [](size_t i) { return text("block ", i); });
    if (!failure.empty()) return failure;
  }
  return "";
}

const SelfTestEntry entered{"relaxed", run};

}  // namespace
}  // namespace warpsmith::selftest
