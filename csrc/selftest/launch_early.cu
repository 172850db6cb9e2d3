// LaunchConfig::early with device/ptx/barrier.h: a grid that starts early reads what the one before it writes last,
// round after round, and the next one writes over it only once it is read. A kernel in between that allows the next grid
// before it waits itself changes nothing.
#include "device/ptx/barrier.h"
#include "device/start_early.h"
#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

constexpr int kThreads = 256, kBlocks = 96, kRounds = 40;
constexpr int kWords = kThreads * kBlocks;

// Allows the next grid at once, idles for some microseconds, then writes.
__global__ void write_late_kernel(uint32_t* to, uint32_t round) {
  ptx::wait_for_previous_grid();
  ptx::allow_next_grid();
  for (int i = 0; i < 8; ++i) __nanosleep(500);
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  to[i] = i * 2654435761u + round;
}

// Every thread reads what a thread of another block has written. Says first of all that the next grid may come.
__global__ void pass_on_kernel(uint32_t* to, const uint32_t* from) {
  start_early();
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  to[i] = from[kWords - 1 - i] + 1;
}

// As above, and keeps the next grid waiting.
__global__ void read_mirrored_kernel(uint32_t* to, const uint32_t* from) {
  ptx::wait_for_previous_grid();
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  to[i] = from[kWords - 1 - i];
}

std::string run() {
  DeviceArray<uint32_t> between(kWords), passed(kWords), to(std::vector<uint32_t>(kWords * kRounds));
  const LaunchConfig config{.grid = kBlocks, .block = kThreads, .early = true};
  std::vector<uint32_t> expected(kWords * kRounds);
  for (uint32_t round = 0; round < kRounds; ++round) {
    warpsmith::launch<&write_late_kernel>(config, kStream, between.data(), round);
    warpsmith::launch<&pass_on_kernel>(config, kStream, passed.data(), static_cast<const uint32_t*>(between.data()));
    warpsmith::launch<&read_mirrored_kernel>(config, kStream, to.data() + round * kWords,
                                             static_cast<const uint32_t*>(passed.data()));
    for (uint32_t i = 0; i < kWords; ++i) expected[round * kWords + i] = i * 2654435761u + round + 1;
  }
  return compare("grids that start early", expected, to.values(),
                 [](size_t i) { return text("round ", i / kWords, ", word ", i % kWords); });
}

const SelfTestEntry entered{"launch_early", run};

}  // namespace
}  // namespace warpsmith::selftest
