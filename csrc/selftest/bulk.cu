// device/ptx/tma.h and device/pipeline.h: bulk copies of several sizes through a ring of slots with
// a barrier for what has landed and one for what has been read; and a copy over what threads have written. Passes
// without running below sm_90.
#include "device/ptx/tma.h"

#include "device/cluster.h"
#include "device/pipeline.h"
#include "device/ptx/memory.h"
#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

constexpr int kThreads = 128, kBlocks = 3, kRounds = 11, kLeastSm = 90;
constexpr int kMostWords = 512;  // of a copy

// Every thread reads what stands at the other end of the slot. to, from: [blocks, rounds, words].
template <int stages>
__global__ void bulk_load_kernel([[maybe_unused]] uint32_t* to, [[maybe_unused]] const uint32_t* from,
                                 [[maybe_unused]] int words) {
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  __shared__ alignas(16) uint32_t ring[stages][kMostWords];
  __shared__ alignas(8) uint64_t full[stages], empty[stages];
  const int tid = threadIdx.x, bytes = words * static_cast<int>(sizeof(uint32_t));
  to += int64_t{blockIdx.x} * kRounds * words;
  from += int64_t{blockIdx.x} * kRounds * words;
  if (tid == 0) {
    for (int slot = 0; slot < stages; ++slot) {
      ptx::mbarrier_init(&full[slot], 1);
      ptx::mbarrier_init(&empty[slot], kThreads);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  const auto fill = [&](int slot, int round) {
    ptx::mbarrier_arrive_expect(&full[slot], bytes);
    ptx::bulk_load(ring[slot], from + round * words, bytes, &full[slot], ptx::policy_evict_normal());
  };
  if (tid == 0) {
    for (int round = 0; round < min(stages, kRounds); ++round) fill(round, round);
  }
  RingSlot<stages> at;
  for (int round = 0; round < kRounds; ++round) {
    ptx::mbarrier_wait(&full[at.slot], at.phase);
    for (int i = tid; i < words; i += kThreads) to[round * words + i] = ring[at.slot][words - 1 - i];
    ptx::fence_proxy_async();
    ptx::mbarrier_arrive(&empty[at.slot]);
    if (tid == 0 && round + stages < kRounds) {
      ptx::mbarrier_wait(&empty[at.slot], at.phase);
      fill(at.slot, round + stages);
    }
    at.advance();
  }
#endif
}

// Threads write a whole buffer, then a copy goes over its first half, again and again. to: [rounds, words], from: [words].
__global__ void proxy_kernel([[maybe_unused]] uint32_t* to, [[maybe_unused]] const uint32_t* from) {
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  __shared__ alignas(16) uint32_t buffer[kMostWords];
  __shared__ alignas(8) uint64_t landed;
  constexpr int kBytes = kMostWords / 2 * static_cast<int>(sizeof(uint32_t));
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&landed, 1);
    ptx::fence_mbarrier_init();
  }
  for (int round = 0; round < kRounds; ++round) {
    for (int i = threadIdx.x; i < kMostWords; i += kThreads) buffer[i] = round * kMostWords + i;
    ptx::fence_proxy_async();
    __syncthreads();
    if (threadIdx.x == 0) {
      ptx::mbarrier_arrive_expect(&landed, kBytes);
      ptx::bulk_load(buffer, from, kBytes, &landed, ptx::policy_evict_normal());
    }
    ptx::mbarrier_wait(&landed, round % 2);
    for (int i = threadIdx.x; i < kMostWords; i += kThreads) to[round * kMostWords + i] = buffer[i];
    __syncthreads();
  }
#endif
}

std::vector<uint32_t> random_words(size_t count) {
  Random random(34);
  std::vector<uint32_t> values(count);
  for (uint32_t& value : values) value = random.word();
  return values;
}

template <int stages>
std::string check_ring() {
  for (const int words : {4, 12, kThreads, kMostWords}) {
    const std::vector<uint32_t> values = random_words(static_cast<size_t>(kBlocks) * kRounds * words);
    std::vector<uint32_t> expected;
    for (size_t i = 0; i < values.size(); ++i) expected.push_back(values[i / words * words + (words - 1 - i % words)]);
    DeviceArray<uint32_t> from(values), to(values.size());
    warpsmith::launch<&bulk_load_kernel<stages>>({kBlocks, kThreads}, kStream, to.data(), from.data(), words);
    const std::string failure = compare(
        text("bulk_load of ", 4 * words, " bytes through ", stages, " slots"), expected, to.values(), [&](size_t i) {
          return text("block ", i / words / kRounds, ", round ", i / words % kRounds, ", word ", i % words);
        });
    if (!failure.empty()) return failure;
  }
  return "";
}

std::string check_proxy() {
  const std::vector<uint32_t> values = random_words(kMostWords);
  std::vector<uint32_t> expected(kRounds * kMostWords);
  for (uint32_t i = 0; i < expected.size(); ++i) {
    expected[i] = i % kMostWords < kMostWords / 2 ? values[i % kMostWords] : i;
  }
  DeviceArray<uint32_t> from(values), to(expected.size());
  warpsmith::launch<&proxy_kernel>({1, kThreads}, kStream, to.data(), from.data());
  return compare("a bulk copy over what threads wrote", expected, to.values(),
                 [](size_t i) { return text("round ", i / kMostWords, ", word ", i % kMostWords); });
}

std::string run() {
  if (device_info(current_device()).sm < kLeastSm) return "";
  return first_failure(check_ring<1>, check_ring<2>, check_ring<3>, check_ring<4>, check_proxy);
}

const SelfTestEntry entered{"bulk", run};

}  // namespace
}  // namespace warpsmith::selftest
