// device/tma_ring.h: a warp that copies and threads that read, through rings of one to four stages; two blocks that fill each
// other's rings, given back warp by warp; and stages that a barrier of the block frees. Passes without running below sm_90.
#include "device/tma_ring.h"

#include "device/cluster.h"
#include "host/tensor_map.h"
#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

constexpr int kReaders = 96, kThreads = kReaders + kWarp, kBlocks = 4, kRounds = 13, kLeastSm = 90;
constexpr int kWords = 256;  // of a stage
[[maybe_unused]] constexpr int kBytes = kWords * static_cast<int>(sizeof(uint32_t));

// The last warp copies, the others read what stands at the other end of the stage. to, from: [blocks, rounds, words].
template <int stages>
__global__ void tma_ring_kernel([[maybe_unused]] uint32_t* to, [[maybe_unused]] const uint32_t* from) {
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  __shared__ alignas(128) uint32_t stage[stages][kWords];
  __shared__ alignas(8) TmaRing<stages> ring;
  const int tid = static_cast<int>(threadIdx.x);
  to += int64_t{blockIdx.x} * kRounds * kWords;
  from += int64_t{blockIdx.x} * kRounds * kWords;
  if (tid == 0) {
    ring.init(1, kReaders);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  RingSlot<stages> at;
  if (tid == kReaders) {
    for (int round = 0; round < kRounds; ++round, at.advance()) {
      uint64_t* full = ring.acquire(at);
      ring.expect(at, kBytes);
      ptx::bulk_load(stage[at.slot], from + round * kWords, kBytes, full, ptx::policy_evict_normal());
    }
  } else if (tid < kReaders) {
    for (int round = 0; round < kRounds; ++round, at.advance()) {
      ring.wait(at);
      for (int i = tid; i < kWords; i += kReaders) to[round * kWords + i] = stage[at.slot][kWords - 1 - i];
      ring.release(at);
    }
  }
#endif
}

// Every block of a cluster of two brings a half of each stage to both. What it brings is half a matrix of its own, row by
// row. to: [blocks, rounds, 2 halves].
template <int stages>
__global__ void tma_ring_pair_kernel([[maybe_unused]] uint32_t* to,
                                     [[maybe_unused]] const __grid_constant__ CUtensorMap map) {
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  constexpr int kPair = 2, kHalf = kWords / kPair;
  __shared__ alignas(128) uint32_t stage[stages][kWords];
  __shared__ alignas(8) TmaRing<stages> ring;
  const int tid = static_cast<int>(threadIdx.x), rank = cluster_rank();
  const int first_row = static_cast<int>(blockIdx.x) / kPair * kRounds * kPair;
  to += int64_t{blockIdx.x} * kRounds * kWords;
  if (tid == 0) {
    ring.init(1, kPair * (kReaders / kWarp));
    ptx::fence_mbarrier_init();
  }
  cluster_sync();
  RingSlot<stages> at;
  if (tid == kReaders) {
    for (int round = 0; round < kRounds; ++round, at.advance()) {
      uint64_t* full = ring.acquire(at);
      ring.expect(at, kBytes);
      ptx::tensor_load_multicast(stage[at.slot] + rank * kHalf, &map, {first_row + round * kPair + rank, 0}, full,
                                 (1 << kPair) - 1);
    }
  } else if (tid < kReaders) {
    for (int round = 0; round < kRounds; ++round, at.advance()) {
      ring.wait(at);
      for (int i = tid; i < kWords; i += kReaders) to[round * kWords + i] = stage[at.slot][i];
      ring.template release_warp<kPair>(at);
    }
  }
  cluster_sync();  // neither block ends before the other has sent it all
#endif
}

// All threads read; what a barrier of the block frees is filled again by one of them.
template <int stages>
__global__ void tma_stages_kernel([[maybe_unused]] uint32_t* to, [[maybe_unused]] const uint32_t* from) {
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  __shared__ alignas(128) uint32_t stage[stages][kWords];
  __shared__ alignas(8) TmaStages<stages> landed;
  const int tid = static_cast<int>(threadIdx.x);
  to += int64_t{blockIdx.x} * kRounds * kWords;
  from += int64_t{blockIdx.x} * kRounds * kWords;
  if (tid == 0) {
    landed.init(1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  const auto fill = [&](const RingSlot<stages>& at, int round) {
    if (tid != 0 || round >= kRounds) return;
    landed.expect(at, kBytes);
    ptx::bulk_load(stage[at.slot], from + round * kWords, kBytes, landed.full + at.slot, ptx::policy_evict_normal());
  };
  RingSlot<stages> at;
  for (int round = 0; round < stages; ++round, at.advance()) fill(at, round);
  at = {};
  for (int round = 0; round < kRounds; ++round, at.advance()) {
    landed.wait(at);
    for (int i = tid; i < kWords; i += kThreads) to[round * kWords + i] = stage[at.slot][kWords - 1 - i];
    ptx::fence_proxy_async();
    __syncthreads();
    fill(at, round + stages);
  }
#endif
}

std::vector<uint32_t> random_words() {
  Random random(53);
  std::vector<uint32_t> values(kBlocks * kRounds * kWords);
  for (uint32_t& value : values) value = random.word();
  return values;
}

std::string where(size_t i) {
  return text("block ", i / kWords / kRounds, ", round ", i / kWords % kRounds, ", word ", i % kWords);
}

template <int stages>
std::string check_reversed(const char* what, void (*launch)(uint32_t*, const uint32_t*)) {
  const std::vector<uint32_t> values = random_words();
  std::vector<uint32_t> expected;
  for (size_t i = 0; i < values.size(); ++i)
    expected.push_back(values[i / kWords * kWords + (kWords - 1 - i % kWords)]);
  DeviceArray<uint32_t> from(values), to(values.size());
  launch(to.data(), from.data());
  return compare(text(what, " of ", stages, " stages"), expected, to.values(), where);
}

template <int stages>
std::string check_ring() {
  return check_reversed<stages>("a ring", [](uint32_t* to, const uint32_t* from) {
    warpsmith::launch<&tma_ring_kernel<stages>>({kBlocks, kThreads}, kStream, to, from);
  });
}

template <int stages>
std::string check_stages() {
  return check_reversed<stages>("a barrier and a ring", [](uint32_t* to, const uint32_t* from) {
    warpsmith::launch<&tma_stages_kernel<stages>>({kBlocks, kThreads}, kStream, to, from);
  });
}

template <int stages>
std::string check_pair() {
  constexpr int kPair = 2, kHalf = kWords / kPair;
  const std::vector<uint32_t> values = random_words();
  std::vector<uint32_t> expected;
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t block = i / kWords / kRounds, in_block = i % (kRounds * kWords);
    expected.push_back(values[block / kPair * kRounds * kWords + in_block]);
  }
  DeviceArray<uint32_t> from(values), to(values.size());
  const CUtensorMap map = tensor_map({.data = from.data(),
                                      .type = tensor_map_type(Dtype::i32),
                                      .rank = 2,
                                      .sizes = {kBlocks * kRounds * kPair, kHalf},
                                      .strides = {kHalf},
                                      .box = {1, kHalf},
                                      .swizzle = CU_TENSOR_MAP_SWIZZLE_NONE});
  warpsmith::launch<&tma_ring_pair_kernel<stages>>({.grid = kBlocks, .block = kThreads, .cluster = kPair}, kStream,
                                                   to.data(), map);
  return compare(text("rings of ", stages, " stages that two blocks fill"), expected, to.values(), where);
}

std::string run() {
  if (device_info(current_device()).sm < kLeastSm) return "";
  return first_failure(check_ring<1>, check_ring<2>, check_ring<3>, check_ring<4>, check_pair<1>, check_pair<2>,
                       check_pair<4>, check_stages<1>, check_stages<3>);
}

const SelfTestEntry entered{"tma_ring", run};

}  // namespace
}  // namespace warpsmith::selftest
