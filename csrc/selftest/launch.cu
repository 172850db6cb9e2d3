// host/launch.h: more shared memory than a kernel gets unasked, static memory included, a launch that cannot be, what comes
// after it, launches that are rehearsed, clusters in three dimensions, and what is noted of launches.
#include "host/launch.h"

#include <stdexcept>

#include "device/cluster.h"
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

// Each block tells the next one of its cluster, in the order of ranks, its place in the grid.
__global__ void launch_cluster_kernel([[maybe_unused]] float* to, [[maybe_unused]] int blocks) {
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  __shared__ float seen;
  const int block = static_cast<int>(blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z));
  const int rank = cluster_rank();
  cluster_sync();  // every block has begun
  if (threadIdx.x == 0) store_remote(&seen, (rank + 1) % blocks, static_cast<float>(block));
  cluster_sync();
  if (threadIdx.x == 0) {
    to[2 * block] = static_cast<float>(rank);
    to[2 * block + 1] = seen;
  }
#endif
}

std::string check_clusters() {
  if (device_info(current_device()).sm < 90) return "";
  const dim3 grid(4, 6, 4);
  const int count = static_cast<int>(grid.x * grid.y * grid.z);
  for (const dim3 size : {dim3(2), dim3(1, 2), dim3(1, 1, 4), dim3(2, 3), dim3(2, 1, 4), dim3(2, 2, 2)}) {
    const unsigned blocks = size.x * size.y * size.z;
    const auto number = [&](unsigned x, unsigned y, unsigned z) { return x + grid.x * (y + grid.y * z); };
    std::vector<float> expected(2 * count);
    for (unsigned i = 0; i < grid.x * grid.y * grid.z; ++i) {
      const unsigned x = i % grid.x, y = i / grid.x % grid.y, z = i / (grid.x * grid.y);
      const unsigned rank = x % size.x + size.x * (y % size.y + size.y * (z % size.z));
      const unsigned from = (rank + blocks - 1) % blocks;
      expected[2 * i] = static_cast<float>(rank);
      expected[2 * i + 1] =
          static_cast<float>(number(x - x % size.x + from % size.x, y - y % size.y + from / size.x % size.y,
                                    z - z % size.z + from / (size.x * size.y)));
    }
    DeviceArray<float> to(2 * count);
    warpsmith::launch<&launch_cluster_kernel>({.grid = grid, .block = 32, .cluster = size}, kStream, to.data(),
                                              static_cast<int>(blocks));
    const std::string failure =
        compare(text("clusters of ", size.x, " x ", size.y, " x ", size.z), expected, to.values(),
                [](size_t i) { return text(i % 2 == 0 ? "rank of block " : "seen by block ", i / 2); });
    if (!failure.empty()) return failure;
  }
  return "";
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
                       check_shared_memory, check_note, check_clusters);
}

const SelfTestEntry entered{"launch", run};

}  // namespace
}  // namespace warpsmith::selftest
