// The one way a kernel is launched: every launch checked, shared-memory limits raised, cluster sizes set, and every
// kernel entered into the list that `warpsmith inspect` reads. What does not depend on the kernel's type is in launch.cpp,
// which a library compiles once: every rung includes this.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "host/rehearsal.h"

namespace warpsmith {

struct LaunchConfig {
  dim3 grid;
  dim3 block;
  int dynamic_smem = 0;  // bytes
  dim3 cluster = 1;      // blocks that share their memory, along each dimension of the grid
  bool early = false;    // starts while the grid before ends, for which it waits before any access to global memory
};

inline int blocks_of_cluster(const LaunchConfig& config) {
  return static_cast<int>(config.cluster.x * config.cluster.y * config.cluster.z);
}

// How a kernel was launched last, or would have been: in one word, because launches on other threads note theirs too.
class LastLaunch {
 public:
  void note(const LaunchConfig& config);
  // 0 threads: never.
  int threads() const { return static_cast<int>(word() >> kThreadsAt); }
  int cluster() const { return static_cast<int>(word() >> kClusterAt & 0xff); }  // blocks
  int dynamic_smem() const { return static_cast<int>(word() & 0xffffffff); }

 private:
  static constexpr int kClusterAt = 32, kThreadsAt = 40;
  uint64_t word() const;
  uint64_t word_ = 0;
};

// What the library remembers of a kernel. GPUs whose indices lie 64 apart share an entry. Threads share all of it: launch.cpp
// reads and writes through std::atomic_ref, because <atomic> here would cost every rung seconds of the compiler.
struct KernelState {
  static constexpr int kMaxDevices = 64, kHeldBits = 2;
  LastLaunch last;
  int dynamic_smem[kMaxDevices] = {};           // bytes per block that it may ask for; 0: not known yet
  uint64_t held_clusters[1 << kHeldBits] = {};  // what devices hold, as launch.cpp puts it; 0: not known
};

struct Kernel {
  std::string_view name;  // the compiler's spelling of the kernel, template arguments included
  const void* function;
  KernelState* state;
};

// Adds one to the kernels of this library. `source`: the file that launches it, "norm/rms_norm/pack.cu".
bool enter(const Kernel& kernel, std::string_view source);

namespace detail {

template <auto kernel>
constexpr std::string_view spelling() {
  return __PRETTY_FUNCTION__;
}

template <auto kernel>
inline constinit KernelState state{};

}  // namespace detail

template <auto kernel>
Kernel kernel_of() {
  return {detail::spelling<kernel>(), reinterpret_cast<const void*>(kernel), &detail::state<kernel>};
}

namespace detail {

// Of this file alone, because a kernel that several files launch is one kernel, and is theirs all the same.
namespace {

// The file that is being compiled, from below csrc; the library keeps no more of the path than that.
[[maybe_unused]] constexpr auto kSource = [] {
  constexpr std::string_view path = __BASE_FILE__, root = "csrc/";
  constexpr size_t at = path.rfind(root), from = at == path.npos ? 0 : at + root.size();
  std::array<char, path.size() - from> tail{};
  for (size_t i = from; i < path.size(); ++i) tail[i - from] = path[i];
  return tail;
}();

// Instantiated by launch<kernel>(), hence filled while the library loads.
template <auto kernel>
struct Enter {
  static inline const bool entered = enter(kernel_of<kernel>(), {kSource.data(), kSource.size()});
};

}  // namespace

void launch(const Kernel& kernel, const LaunchConfig& config, cudaStream_t stream, void** arguments);

// The kernel's own parameter types, to which the arguments are converted.
template <class... Params>
void launch_as(void (*)(Params...), const Kernel& kernel, const LaunchConfig& config, cudaStream_t stream,
               const std::type_identity_t<Params>&... arguments) {
  void* addresses[] = {const_cast<void*>(static_cast<const void*>(&arguments))...};
  launch(kernel, config, stream, addresses);
}

}  // namespace detail

// Throws std::logic_error: what a caller, or the code before, had promised is not so.
[[noreturn]] void broken_promise(std::string_view what);

// Throws what the CUDA call `what` said, if it failed.
void check_cuda(cudaError_t status, std::string_view what);

constexpr int kDefaultSmemLimit = 48 * 1024;  // static and dynamic
constexpr int kPortableCluster = 8;

// Lets the kernel ask for so much dynamic shared memory on the current device. Unasked, it may have what its static memory
// leaves of kDefaultSmemLimit.
void allow_dynamic_smem(const Kernel& kernel, int bytes, std::string_view what);

// Facts about a GPU, asked for once. Where WARPSMITH_AS is set it passes for one of that compute capability, with as much
// shared memory: for `warpsmith verify --as 80`, which runs what an older GPU would.
struct DeviceInfo {
  int sm;          // compute capability, 90 for 9.0
  int sm_count;    // multiprocessors
  int block_smem;  // shared memory that one block may ask for, in bytes
};

const DeviceInfo& device_info(int device);

int current_device();

template <auto kernel, class... Params>
void launch(const LaunchConfig& config, cudaStream_t stream, const Params&... params) {
  static_cast<void>(detail::Enter<kernel>::entered);
  detail::launch_as(kernel, kernel_of<kernel>(), config, stream, params...);
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
