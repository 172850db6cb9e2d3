// device/ptx/warpgroup.h, setmaxnreg: registers go from the first of three warpgroups to the others, and from the second back
// to the first. What threads hold at that moment they keep, and with as many as they then have they compute what a plain loop
// does. Passes without running but on sm_90.
#include "device/ptx/warpgroup.h"

#include "device/ptx/barrier.h"
#include "device/ptx/wgmma.h"
#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

constexpr int kGroup = 128, kGroups = 3, kThreads = kGroups * kGroup, kSm = 90;
constexpr int kFew = 24, kMany = 240;    // registers: 504 of three threads, as the launch has them, 168 each
constexpr int kKept = 8, kValues = 192;  // held while registers change hands; and with many registers
constexpr int kRounds = 5, kLeft = 1;    // warpgroup that gives its registers back

// The first kKept of the values are those that were held, the others follow from them.
template <class Values>
__host__ __device__ __forceinline__ void spread(Values& values) {
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
  for (int i = kKept; i < kValues; ++i) values[i] = values[i - kKept] * 1664525u + static_cast<uint32_t>(i);
}

// All are needed again in each round.
template <class Values>
__host__ __device__ __forceinline__ void turn(Values& values) {
  const uint32_t first = values[0];
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
  for (int i = 0; i < kValues; ++i) values[i] = values[i] * 3u + (i + 1 < kValues ? values[i + 1] : first);
}

#if WARPSMITH_HAS_WGMMA

__device__ __forceinline__ void compute(uint32_t* to, const uint32_t (&kept)[kKept]) {
  uint32_t values[kValues];
#pragma unroll
  for (int i = 0; i < kKept; ++i) values[i] = kept[i];
  spread(values);
#pragma unroll 1
  for (int round = 0; round < kRounds; ++round) {
    turn(values);
    ptx::pin(values);
  }
#pragma unroll
  for (int i = 0; i < kValues; ++i) to[i * kThreads + threadIdx.x] = values[i];
}

#endif

// to: [kValues, threads]; from: [kKept, threads].
__global__ void __launch_bounds__(kThreads, 1)
    warpgroup_registers_kernel([[maybe_unused]] uint32_t* to, [[maybe_unused]] const uint32_t* from) {
#if WARPSMITH_HAS_WGMMA
  const int group = static_cast<int>(threadIdx.x) / kGroup;
  uint32_t kept[kKept];
#pragma unroll
  for (int i = 0; i < kKept; ++i) kept[i] = from[i * kThreads + threadIdx.x];
  ptx::pin(kept);
  if (group == 0) {
    ptx::lower_registers<kFew>();
    ptx::pin(kept);
    ptx::sync_warps(1, kGroup);  // before the warpgroup's registers change again
    ptx::raise_registers<kMany>();
    ptx::pin(kept);
    compute(to, kept);
  } else {
    ptx::raise_registers<kMany>();
    ptx::pin(kept);
    compute(to, kept);
    if (group == kLeft) {
      ptx::sync_warps(1 + kLeft, kGroup);
      ptx::lower_registers<kFew>();
    }
  }
#endif
}

std::string run() {
  if (device_info(current_device()).sm != kSm) return "";
  Random random(37);
  std::vector<uint32_t> kept(kKept * kThreads), expected(kValues * kThreads);
  for (uint32_t& value : kept) value = random.word();
  for (int thread = 0; thread < kThreads; ++thread) {
    uint32_t values[kValues];
    for (int i = 0; i < kKept; ++i) values[i] = kept[i * kThreads + thread];
    spread(values);
    for (int round = 0; round < kRounds; ++round) turn(values);
    for (int i = 0; i < kValues; ++i) expected[i * kThreads + thread] = values[i];
  }
  DeviceArray<uint32_t> from(kept), to(expected.size());
  warpsmith::launch<&warpgroup_registers_kernel>({1, kThreads}, kStream, to.data(), from.data());
  return compare("setmaxnreg", expected, to.values(),
                 [](size_t i) { return text("value ", i / kThreads, " of thread ", i % kThreads); });
}

const SelfTestEntry entered{"warpgroup_registers", run};

}  // namespace
}  // namespace warpsmith::selftest
