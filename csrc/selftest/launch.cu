// host/launch.h: more shared memory than a kernel gets unasked, static memory included, a launch that cannot be, what comes
// after it, launches that are rehearsed, and what is noted of them.
#include "host/launch.h"

#include <stdexcept>

#include "host/kernels.h"
#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

constexpr int kThreads = 256, kTooManyThreads = 2048;
constexpr int kWords = 96 * 1024 / sizeof(uint32_t);  // every GPU from sm_80 on has as much for a block

__global__ void launch_probe_kernel(uint32_t* to, int words) {
  extern __shared__ uint32_t buffer[];  // [words]
  for (int i = threadIdx.x; i < words; i += blockDim.x) buffer[i] = 3 * i + 1;
  __syncthreads();
  for (int i = threadIdx.x; i < words; i += blockDim.x) to[i] = buffer[words - 1 - i];
}

// Beside 2 KiB of static memory.
__global__ void launch_static_probe_kernel(uint32_t* to, int words) {
  constexpr int kOwn = 512;
  __shared__ uint32_t own[kOwn];
  extern __shared__ uint32_t buffer[];  // [words]
  for (int i = threadIdx.x; i < kOwn; i += blockDim.x) own[i] = i;
  for (int i = threadIdx.x; i < words; i += blockDim.x) buffer[i] = 3 * i + 1;
  __syncthreads();
  for (int i = threadIdx.x; i < words; i += blockDim.x) to[i] = buffer[words - 1 - i] + own[i % kOwn] - i % kOwn;
}

// Up to the default limit and just beyond it with the static memory, and up and down again.
std::string check_static_memory() {
  for (const int words : {256, 46 * 256, 46 * 256 + 1, 48 * 256, 96 * 256, 47 * 256, 1}) {
    std::vector<uint32_t> expected(words);
    for (int i = 0; i < words; ++i) expected[i] = 3 * (words - 1 - i) + 1;
    DeviceArray<uint32_t> to(words);
    LaunchConfig config{1, kThreads};
    config.dynamic_smem = static_cast<int>(words * sizeof(uint32_t));
    warpsmith::launch<&launch_static_probe_kernel>(config, kStream, to.data(), words);
    const std::string failure = compare(text(config.dynamic_smem, " bytes of dynamic shared memory beside static"),
                                        expected, to.values(), [](size_t i) { return text("word ", i); });
    if (!failure.empty()) return failure;
  }
  return "";
}

std::string check_shared_memory() {
  std::vector<uint32_t> expected(kWords);
  for (int i = 0; i < kWords; ++i) expected[i] = 3 * (kWords - 1 - i) + 1;
  DeviceArray<uint32_t> to(kWords);
  LaunchConfig config{1, kThreads};
  config.dynamic_smem = kWords * sizeof(uint32_t);
  warpsmith::launch<&launch_probe_kernel>(config, kStream, to.data(), kWords);
  return compare("96 KiB of dynamic shared memory", expected, to.values(), [](size_t i) { return text("word ", i); });
}

std::string check_refusal() {
  DeviceArray<uint32_t> to(1);
  try {
    warpsmith::launch<&launch_probe_kernel>({1, kTooManyThreads}, kStream, to.data(), 1);
  } catch (const std::runtime_error& error) {
    const std::string message = error.what();
    if (message.find("launch_probe_kernel") == std::string::npos) return "the error names no kernel: " + message;
    const cudaError_t left = cudaPeekAtLastError();
    return left == cudaSuccess ? "" : text("the failed launch left an error behind: ", cudaGetErrorString(left));
  }
  return text("a block of ", kTooManyThreads, " threads: expected an error, got none");
}

// Clusters that there are on every GPU that has any, and that there are on none.
std::string check_rehearsal() {
  const auto unheld = [](int cluster, int bytes) {
    const Rehearsal rehearsal;
    LaunchConfig config{static_cast<unsigned>(cluster), kThreads};
    config.dynamic_smem = bytes;
    config.cluster = cluster;
    warpsmith::launch<&launch_probe_kernel>(config, kStream, static_cast<uint32_t*>(nullptr), kWords);
    return rehearsal.unheld();
  };
  constexpr int kBytes = kWords * sizeof(uint32_t), kTooMany = 1 << 20;
  if (unheld(1, kBytes) != 0) return "a rehearsal without clusters finds fault with one";
  if (device_info(current_device()).sm >= 90 && unheld(2, kBytes) != 0) {
    return "this GPU holds clusters of 2, a rehearsal says no";
  }
  for (const int cluster : {2, 16}) {
    const int found = unheld(cluster, kTooMany);
    if (found != cluster) return text("blocks of 1 MiB: expected no cluster of ", cluster, ", found ", found);
  }
  const cudaError_t left = cudaDeviceSynchronize();
  return left == cudaSuccess ? "" : text("a rehearsal has started or left something: ", cudaGetErrorString(left));
}

// What `warpsmith inspect` is told about the launch before.
std::string check_note() {
  for (const KernelEntry& entry : kernels()) {
    if (entry.kernel.name != detail::spelling<&launch_probe_kernel>()) continue;
    if (entry.source != "selftest/launch.cu") return text("the kernel's file: ", entry.source);
    const LastLaunch& last = entry.kernel.state->last;
    if (last.threads() == kThreads && last.cluster() == 1 && last.dynamic_smem() == kWords * 4) return "";
    return text("the last launch: ", last.threads(), " threads, clusters of ", last.cluster(), ", ",
                last.dynamic_smem(), " bytes");
  }
  return "the kernel is in no list";
}

std::string run() {
  return first_failure(check_static_memory, check_shared_memory, check_note, check_refusal, check_rehearsal,
                       check_shared_memory, check_note);
}

const SelfTestEntry entered{"launch", run};

}  // namespace
}  // namespace warpsmith::selftest
