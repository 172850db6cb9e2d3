// The one way a kernel is launched: every launch checked, shared-memory limits raised, cluster sizes set, and every
// kernel entered into the list that `warpsmith inspect` reads.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "host/rehearsal.h"

namespace warpsmith {

struct LaunchConfig {
  dim3 grid;
  dim3 block;
  int dynamic_smem = 0;  // bytes
  int cluster = 1;       // blocks per cluster, along x
  bool early = false;    // starts while the grid before ends, for which it waits before any access to memory
};

// How a kernel was launched last, or would have been: in one word, because launches on other threads note theirs too.
class LastLaunch {
 public:
  void note(const LaunchConfig& config) {
    const uint64_t threads = uint64_t{config.block.x} * config.block.y * config.block.z;
    const auto cluster = static_cast<uint64_t>(config.cluster), bytes = static_cast<uint64_t>(config.dynamic_smem);
    word_.store(threads << kThreadsAt | cluster << kClusterAt | bytes, std::memory_order_relaxed);
  }
  // 0 threads: never.
  int threads() const { return static_cast<int>(word() >> kThreadsAt); }
  int cluster() const { return static_cast<int>(word() >> kClusterAt & 0xff); }
  int dynamic_smem() const { return static_cast<int>(word() & 0xffffffff); }

 private:
  static constexpr int kClusterAt = 32, kThreadsAt = 40;
  uint64_t word() const { return word_.load(std::memory_order_relaxed); }
  std::atomic<uint64_t> word_ = 0;
};

struct KernelEntry {
  std::string_view name;  // the compiler's spelling of the kernel, template arguments included
  const void* function;
  std::string_view source;  // the file that launches it: "norm/rms_norm/pack.cu"
  const LastLaunch* last;
};

inline std::vector<KernelEntry>& kernels() {
  static std::vector<KernelEntry> entries;
  return entries;
}

namespace detail {

template <auto kernel>
constexpr std::string_view spelling() {
  return __PRETTY_FUNCTION__;
}

template <auto kernel>
inline constinit LastLaunch last_launch{};

// Of this file alone, because a kernel that several files launch is one kernel, and is theirs all the same.
namespace {

// The file that is being compiled, from below csrc; the library keeps no more of the path than that.
[[maybe_unused]] constexpr auto kSource = [] {
  constexpr std::string_view path = __BASE_FILE__, root = "csrc/";
  constexpr size_t at = path.rfind(root), from = at == path.npos ? 0 : at + root.size();
  std::array<char, path.size() - from> tail{};
  std::copy(path.begin() + from, path.end(), tail.begin());
  return tail;
}();

// Instantiated by launch<kernel>(), hence filled while the library loads.
template <auto kernel>
struct Enter {
  static inline const bool entered = [] {
    const std::string_view source(kSource.data(), kSource.size());
    kernels().push_back({spelling<kernel>(), reinterpret_cast<const void*>(kernel), source, &last_launch<kernel>});
    return true;
  }();
};

}  // namespace
}  // namespace detail

inline void check_cuda(cudaError_t status, std::string_view what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // clears it: the next call must not report this failure again
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

constexpr int kDefaultSmemLimit = 48 * 1024;  // static and dynamic
constexpr int kPortableCluster = 8;

// The most dynamic shared memory that the kernel `function` may ever ask for on `device`: what its static memory leaves.
inline int most_dynamic_smem(const void* function, int device, std::string_view what) {
  int limit = 0;
  cudaFuncAttributes attributes;
  check_cuda(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), what);
  check_cuda(cudaFuncGetAttributes(&attributes, function), what);
  return limit - static_cast<int>(attributes.sharedSizeBytes);
}

// Lets it ask for `most`. Every caller allows all there is: a launch on another thread may count on it.
inline void allow_most_smem(const void* function, int most, std::string_view what) {
  check_cuda(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, most), what);
}

// Lets `kernel` ask for so much dynamic shared memory on the current device. Unasked, it may have what its static memory
// leaves of kDefaultSmemLimit.
template <auto kernel>
void allow_dynamic_smem(int bytes, std::string_view what) {
  constexpr int kMaxDevices = 64;
  static std::atomic<int> allowed[kMaxDevices];
  int device = 0;
  check_cuda(cudaGetDevice(&device), what);
  std::atomic<int>& limit = allowed[device % kMaxDevices];
  if (bytes <= limit.load(std::memory_order_acquire)) return;

  const auto function = reinterpret_cast<const void*>(kernel);
  cudaFuncAttributes attributes;
  check_cuda(cudaFuncGetAttributes(&attributes, function), what);
  const int by_default = kDefaultSmemLimit - static_cast<int>(attributes.sharedSizeBytes);
  if (bytes <= by_default) {
    limit.store(by_default, std::memory_order_release);
    return;
  }
  const int most = most_dynamic_smem(function, device, what);
  if (bytes > most) check_cuda(cudaErrorInvalidValue, what);
  allow_most_smem(function, most, what);
  limit.store(most, std::memory_order_release);
}

// It belongs to the function, on each device; setting it again costs no more than asking.
inline void allow_large_cluster(const void* function, int cluster, std::string_view what) {
  if (cluster <= kPortableCluster) return;
  check_cuda(cudaFuncSetAttribute(function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), what);
}

inline cudaLaunchAttribute cluster_attribute(int cluster) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  return attribute;
}

// How many clusters of the kernel `function` the current device holds at a time. A launch of so much dynamic shared
// memory must be allowed.
inline cudaError_t count_clusters(int& clusters, const void* function, const LaunchConfig& config) {
  cudaLaunchAttribute attribute = cluster_attribute(config.cluster);
  cudaLaunchConfig_t query{};
  query.gridDim = dim3(static_cast<unsigned>(config.cluster));
  query.blockDim = config.block;
  query.dynamicSmemBytes = static_cast<size_t>(config.dynamic_smem);
  query.attrs = &attribute;
  query.numAttrs = 1;
  return cudaOccupancyMaxActiveClusters(&clusters, function, &query);
}

// Whether it holds one at all: a part of a GPU need not have so many multiprocessors side by side, nor another GPU so much
// shared memory. Asked for once.
inline bool holds_cluster(const void* function, const LaunchConfig& config, std::string_view what) {
  static std::mutex mutex;
  static std::map<std::tuple<int, const void*, int, unsigned, int>, bool> known;
  int device = 0, clusters = 0;
  check_cuda(cudaGetDevice(&device), what);
  const std::lock_guard<std::mutex> lock(mutex);
  const auto key = std::tuple(device, function, config.cluster, config.block.x, config.dynamic_smem);
  if (const auto found = known.find(key); found != known.end()) return found->second;

  const int most = most_dynamic_smem(function, device, what);
  if (config.dynamic_smem <= most) {
    if (config.dynamic_smem > 0) allow_most_smem(function, most, what);
    allow_large_cluster(function, config.cluster, what);
    if (count_clusters(clusters, function, config) != cudaSuccess) {
      cudaGetLastError();  // clears it; whatever it was, the next call asks again
      return false;
    }
  }
  return known[key] = clusters > 0;
}

// Facts about a GPU, asked for once.
struct DeviceInfo {
  int sm;        // compute capability, 90 for 9.0
  int sm_count;  // multiprocessors
};

inline const DeviceInfo& device_info(int device) {
  constexpr int kMaxDevices = 64;
  static DeviceInfo infos[kMaxDevices];
  static std::atomic<bool> known[kMaxDevices];
  if (device < 0 || device >= kMaxDevices) throw std::out_of_range("device index out of range");
  if (!known[device].load(std::memory_order_acquire)) {
    int major = 0, minor = 0, count = 0;
    check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "device_info");
    check_cuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "device_info");
    check_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "device_info");
    infos[device] = {major * 10 + minor, count};
    known[device].store(true, std::memory_order_release);
  }
  return infos[device];
}

// The blocks of a grid launched so take their places while the grid before it in the stream ends, which hides what
// starting a grid costs (programmatic dependent launch).
// https://docs.nvidia.com/cuda/cuda-c-programming-guide/#programmatic-dependent-launch-and-synchronization
inline cudaLaunchAttribute early_attribute() {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  return attribute;
}

// Before sm_90 grids never overlap.
inline bool starts_early(const LaunchConfig& config, std::string_view what) {
  if (!config.early) return false;
  int device = 0;
  check_cuda(cudaGetDevice(&device), what);
  return device_info(device).sm >= 90;
}

template <auto kernel, class... Params>
void launch(const LaunchConfig& config, cudaStream_t stream, const Params&... params) {
  static_cast<void>(detail::Enter<kernel>::entered);
  constexpr std::string_view name = detail::spelling<kernel>();
  const auto function = reinterpret_cast<const void*>(kernel);
  detail::last_launch<kernel>.note(config);
  if (Rehearsal* rehearsal = Rehearsal::current()) {
    const bool plain = config.cluster == 1 && config.dynamic_smem <= kDefaultSmemLimit;
    if (!plain && !holds_cluster(function, config, name)) rehearsal->note_unheld(config.cluster);
    return;
  }

  if (config.dynamic_smem > 0) allow_dynamic_smem<kernel>(config.dynamic_smem, name);
  allow_large_cluster(function, config.cluster, name);

  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t launch_config{};
  launch_config.gridDim = config.grid;
  launch_config.blockDim = config.block;
  launch_config.dynamicSmemBytes = config.dynamic_smem;
  launch_config.stream = stream;
  launch_config.attrs = attributes;
  if (config.cluster > 1) attributes[launch_config.numAttrs++] = cluster_attribute(config.cluster);
  if (starts_early(config, name)) attributes[launch_config.numAttrs++] = early_attribute();
  check_cuda(cudaLaunchKernelEx(&launch_config, kernel, params...), name);
}

// Makes `device` current for a scope; costs one query where it is current already.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    check_cuda(cudaGetDevice(&previous_), "cudaGetDevice");
    changed_ = previous_ != device;
    if (changed_) check_cuda(cudaSetDevice(device), "cudaSetDevice");
  }
  ~DeviceScope() {
    if (changed_) cudaSetDevice(previous_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

}  // namespace warpsmith
