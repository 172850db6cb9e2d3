#include "host/launch.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>

#include "host/occupancy.h"

namespace warpsmith {
namespace {

thread_local Rehearsal* rehearsal = nullptr;

// The most dynamic shared memory that the kernel `function` may ever ask for on `device`: what its static memory leaves.
int most_dynamic_smem(const void* function, int device, std::string_view what) {
  cudaFuncAttributes attributes;
  check_cuda(cudaFuncGetAttributes(&attributes, function), what);
  return device_info(device).block_smem - static_cast<int>(attributes.sharedSizeBytes);
}

// Lets it ask for `most`. Every caller allows all there is: a launch on another thread may count on it.
void allow_most_smem(const void* function, int most, std::string_view what) {
  check_cuda(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, most), what);
}

// It belongs to the function, on each device; setting it again costs no more than asking.
void allow_large_cluster(const void* function, int cluster, std::string_view what) {
  if (cluster <= kPortableCluster) return;
  check_cuda(cudaFuncSetAttribute(function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), what);
}

cudaLaunchAttribute cluster_attribute(const dim3& cluster) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {cluster.x, cluster.y, cluster.z};
  return attribute;
}

// How many clusters of the kernel `function` the current device holds at a time. A launch of so much dynamic shared
// memory must be allowed.
cudaError_t count_clusters(int& clusters, const void* function, const LaunchConfig& config) {
  cudaLaunchAttribute attribute = cluster_attribute(config.cluster);
  cudaLaunchConfig_t query{};
  query.gridDim = config.cluster;
  query.blockDim = config.block;
  query.dynamicSmemBytes = static_cast<size_t>(config.dynamic_smem);
  query.attrs = &attribute;
  query.numAttrs = 1;
  return cudaOccupancyMaxActiveClusters(&clusters, function, &query);
}

// Whether the current device holds a cluster of the kernel at all: a part of a GPU need not have so many neighbouring
// multiprocessors, nor another GPU so much shared memory. Nothing where the question fails.
std::optional<bool> find_cluster(const void* function, const LaunchConfig& config, int device, std::string_view what) {
  const int most = most_dynamic_smem(function, device, what);
  if (config.dynamic_smem > most) return false;
  if (config.dynamic_smem > 0) allow_most_smem(function, most, what);
  allow_large_cluster(function, blocks_of_cluster(config), what);
  int clusters = 0;
  if (count_clusters(clusters, function, config) == cudaSuccess) return clusters > 0;
  cudaGetLastError();  // clears it
  return std::nullopt;
}

// The same, asked for once: each of the kernel's few configurations has a place for its answer, which another one takes
// only where the two fall together.
bool holds_cluster(const Kernel& kernel, const LaunchConfig& config, std::string_view what) {
  const int device = current_device();
  const uint64_t threads = uint64_t{config.block.x} * config.block.y * config.block.z;
  uint64_t key = 1;  // a bit that says that something is known
  const auto append = [&](uint64_t value, int bits) { key = key << bits | (value & ((uint64_t{1} << bits) - 1)); };
  append(static_cast<uint64_t>(device), 6);
  append(threads, 11);
  append(static_cast<uint64_t>(config.dynamic_smem), 24);
  for (const unsigned blocks : {config.cluster.x, config.cluster.y, config.cluster.z}) append(blocks, 5);
  key <<= 1;  // for the answer

  constexpr uint64_t kScatter = 0x9e3779b97f4a7c15;  // 2^64 over the golden ratio
  const std::atomic_ref known(kernel.state->held_clusters[key * kScatter >> (64 - KernelState::kHeldBits)]);
  const uint64_t word = known.load(std::memory_order_relaxed);
  if ((word & ~uint64_t{1}) == key) return (word & 1) != 0;
  const std::optional<bool> found = find_cluster(kernel.function, config, device, what);
  if (found) known.store(key | (*found ? 1 : 0), std::memory_order_relaxed);
  return found.value_or(false);
}

// The blocks of a grid launched so take their places while the grid before it in the stream ends, which hides what
// starting a grid costs (programmatic dependent launch).
// https://docs.nvidia.com/cuda/cuda-c-programming-guide/#programmatic-dependent-launch-and-synchronization
cudaLaunchAttribute early_attribute() {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  return attribute;
}

// The compute capability that all GPUs pass for; 0 where each is what it is.
int claimed_sm() {
  const char* text = std::getenv("WARPSMITH_AS");
  return text != nullptr ? std::atoi(text) : 0;
}

// CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
constexpr int block_smem_of(int sm) { return (sm >= 120 || sm == 86 || sm == 89 ? 99 : (sm >= 90 ? 227 : 163)) << 10; }

// Before sm_90 grids never overlap.
bool starts_early(const LaunchConfig& config) { return config.early && device_info(current_device()).sm >= 90; }

}  // namespace

Rehearsal::Rehearsal() { rehearsal = this; }

Rehearsal::~Rehearsal() { rehearsal = nullptr; }

Rehearsal* Rehearsal::current() { return rehearsal; }

void LastLaunch::note(const LaunchConfig& config) {
  const uint64_t threads = uint64_t{config.block.x} * config.block.y * config.block.z;
  const auto cluster = static_cast<uint64_t>(blocks_of_cluster(config)),
             bytes = static_cast<uint64_t>(config.dynamic_smem);
  std::atomic_ref(word_).store(threads << kThreadsAt | cluster << kClusterAt | bytes, std::memory_order_relaxed);
}

uint64_t LastLaunch::word() const {
  return std::atomic_ref(const_cast<uint64_t&>(word_)).load(std::memory_order_relaxed);
}

void broken_promise(std::string_view what) { throw std::logic_error(std::string(what)); }

void check_cuda(cudaError_t status, std::string_view what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // clears it: the next call must not report this failure again
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

int current_device() {
  int device = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

const DeviceInfo& device_info(int device) {
  constexpr int kMaxDevices = KernelState::kMaxDevices;
  static DeviceInfo infos[kMaxDevices];
  static std::atomic<bool> known[kMaxDevices];
  if (device < 0 || device >= kMaxDevices) throw std::out_of_range("device index out of range");
  if (!known[device].load(std::memory_order_acquire)) {
    int major = 0, minor = 0, count = 0, smem = 0;
    check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "device_info");
    check_cuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "device_info");
    check_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "device_info");
    check_cuda(cudaDeviceGetAttribute(&smem, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "device_info");
    const int claimed = claimed_sm();
    infos[device] = {claimed != 0 ? claimed : major * 10 + minor, count,
                     claimed != 0 ? std::min(smem, block_smem_of(claimed)) : smem};
    known[device].store(true, std::memory_order_release);
  }
  return infos[device];
}

void allow_dynamic_smem(const Kernel& kernel, int bytes, std::string_view what) {
  const int device = current_device();
  const std::atomic_ref limit(kernel.state->dynamic_smem[device % KernelState::kMaxDevices]);
  if (bytes <= limit.load(std::memory_order_acquire)) return;

  cudaFuncAttributes attributes;
  check_cuda(cudaFuncGetAttributes(&attributes, kernel.function), what);
  const int by_default = kDefaultSmemLimit - static_cast<int>(attributes.sharedSizeBytes);
  if (bytes <= by_default) {
    limit.store(by_default, std::memory_order_release);
    return;
  }
  const int most = most_dynamic_smem(kernel.function, device, what);
  if (bytes > most) check_cuda(cudaErrorInvalidValue, what);
  allow_most_smem(kernel.function, most, what);
  limit.store(most, std::memory_order_release);
}

void detail::launch(const Kernel& kernel, const LaunchConfig& config, cudaStream_t stream, void** arguments) {
  kernel.state->last.note(config);
  if (Rehearsal* rehearsal = Rehearsal::current()) {
    const int cluster = blocks_of_cluster(config);
    const bool plain = cluster == 1 && config.dynamic_smem <= kDefaultSmemLimit;
    if (!plain && !holds_cluster(kernel, config, kernel.name)) rehearsal->note_unheld(cluster);
    return;
  }

  if (config.dynamic_smem > 0) allow_dynamic_smem(kernel, config.dynamic_smem, kernel.name);
  allow_large_cluster(kernel.function, blocks_of_cluster(config), kernel.name);

  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t launch_config{};
  launch_config.gridDim = config.grid;
  launch_config.blockDim = config.block;
  launch_config.dynamicSmemBytes = config.dynamic_smem;
  launch_config.stream = stream;
  launch_config.attrs = attributes;
  if (blocks_of_cluster(config) > 1) attributes[launch_config.numAttrs++] = cluster_attribute(config.cluster);
  if (starts_early(config)) attributes[launch_config.numAttrs++] = early_attribute();
  check_cuda(cudaLaunchKernelExC(&launch_config, kernel.function, arguments), kernel.name);
}

int block_smem_limit() { return device_info(current_device()).block_smem; }

int ResidentClusters::of(const Kernel& kernel, const LaunchConfig& config) {
  if (Rehearsal::current() != nullptr) return 1;
  const int device = current_device();
  const std::atomic_ref count(known_[device % KernelState::kMaxDevices][config.block.x / 32]);
  if (const int clusters = count.load(std::memory_order_relaxed)) return clusters;

  if (config.dynamic_smem > 0) {
    allow_dynamic_smem(kernel, config.dynamic_smem, "shared memory of a persistent kernel");
  }
  int clusters = 0;
  if (blocks_of_cluster(config) == 1) {
    int blocks = 0;
    check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel.function, static_cast<int>(config.block.x),
                                                             static_cast<size_t>(config.dynamic_smem)),
               "occupancy");
    clusters = blocks * device_info(device).sm_count;
  } else {
    allow_large_cluster(kernel.function, blocks_of_cluster(config), "cluster size");
    check_cuda(count_clusters(clusters, kernel.function, config), "occupancy of clusters");
  }
  if (clusters < 1) throw std::runtime_error("this GPU cannot hold a cluster of the kernel");
  count.store(clusters, std::memory_order_relaxed);
  return clusters;
}

}  // namespace warpsmith
