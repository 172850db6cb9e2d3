// Kernels with one mistake each, and without: what the emulator's own tests run.
#include <cstring>
#include <string>
#include <string_view>

#include "device/cluster.h"
#include "device/ptx/copy.h"
#include "device/ptx/memory.h"
#include "device/ptx/tma.h"
#include "device/warp.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 64;

// to[i] = from[63 - i], through shared memory.
template <bool waits>
__global__ void turn_kernel(const float* from, float* to) {
  __shared__ float tile[kThreads];
  tile[threadIdx.x] = from[threadIdx.x];
  if (waits) __syncthreads();
  to[threadIdx.x] = tile[kThreads - 1 - threadIdx.x];
}

// The same by copies in the background, of which each thread makes one of four values and reads that of another.
template <bool waits>
__global__ void turn_in_background_kernel(const float* from, float* to) {
  __shared__ __align__(16) float tile[kThreads];
  if (threadIdx.x < kThreads / 4) {
    ptx::cp_async(reinterpret_cast<uint4*>(tile) + threadIdx.x, reinterpret_cast<const uint4*>(from) + threadIdx.x);
  }
  ptx::cp_async_commit();
  if (waits) ptx::cp_async_wait<0>();
  __syncthreads();
  to[threadIdx.x] = tile[kThreads - 1 - threadIdx.x];
}

// The same by a bulk copy, counted on a barrier that expects `expected` bytes.
template <int expected, bool waits>
__global__ void turn_in_bulk_kernel(const float* from, float* to) {
  __shared__ __align__(128) float tile[kThreads];
  __shared__ uint64_t arrived;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&arrived, 1);
    ptx::mbarrier_arrive_expect(&arrived, expected);
    ptx::bulk_load(tile, from, sizeof(tile), &arrived, 0);
  }
  __syncthreads();
  if (waits) ptx::mbarrier_wait(&arrived, 0);
  to[threadIdx.x] = tile[kThreads - 1 - threadIdx.x];
}

__global__ void unwritten_kernel(const float* from, float* to) {
  __shared__ float tile[kThreads];
  if (threadIdx.x > 0) tile[threadIdx.x] = from[kThreads - 1 - threadIdx.x];
  __syncthreads();
  to[threadIdx.x] = tile[threadIdx.x];
}

// Lanes that stay away from a shuffle whose mask names them.
__global__ void absent_lanes_kernel(const float* from, float* to) {
  if (threadIdx.x % 2 == 0) to[threadIdx.x] = __shfl_xor_sync(kAllLanes, from[threadIdx.x], 2);
  __syncthreads();
}

__global__ void misaligned_kernel(const float* from, float* to) {
  to[threadIdx.x] = static_cast<float>(ptx::load_streaming(reinterpret_cast<const uint4*>(from + 1)).x);
}

// Each block of two gets the other's values: to[i] = from[i + 64], to[i + 64] = from[i].
__global__ void trade_kernel(const float* from, float* to) {
  __shared__ float tile[kThreads];
  __shared__ uint64_t arrived;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&arrived, 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect(&arrived, sizeof(tile));
  }
  cluster_sync();
  const int i = blockIdx.x * kThreads + threadIdx.x;
  ptx::store_async(&tile[threadIdx.x], &arrived, cluster_rank() ^ 1, from[i]);
  ptx::mbarrier_wait_cluster(&arrived, 0);
  to[i] = tile[threadIdx.x];
}

struct Probe {
  std::string_view name;
  void (*kernel)(const float*, float*);
  int blocks = 1;
};

const Probe probes[] = {
    {"turn", turn_kernel<true>},
    {"turn, no barrier", turn_kernel<false>},
    {"background", turn_in_background_kernel<true>},
    {"background, no wait", turn_in_background_kernel<false>},
    {"bulk", turn_in_bulk_kernel<kThreads * 4, true>},
    {"bulk, no wait", turn_in_bulk_kernel<kThreads * 4, false>},
    {"bulk, too many bytes expected", turn_in_bulk_kernel<kThreads * 4 + 16, true>},
    {"unwritten", unwritten_kernel},
    {"absent lanes", absent_lanes_kernel},
    {"misaligned", misaligned_kernel},
    {"trade", trade_kernel, 2},
};

}  // namespace
}  // namespace warpsmith

// from, to: [128]. What went wrong, or "".
extern "C" const char* emulator_probe(const char* name, const float* from, float* to) {
  static std::string message;
  for (const warpsmith::Probe& probe : warpsmith::probes) {
    if (probe.name != name) continue;
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(probe.blocks), 1, 1};
    const cudaLaunchConfig_t config{dim3(probe.blocks), dim3(warpsmith::kThreads), 0, nullptr, &attribute, 1};
    void* arguments[] = {&from, &to};
    emu::prepare_launch(probe.kernel, name, from, to);
    const cudaError_t status = cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(probe.kernel), arguments);
    message = status == cudaSuccess ? "" : cudaGetErrorString(status);
    return message.c_str();
  }
  return "no such probe";
}
