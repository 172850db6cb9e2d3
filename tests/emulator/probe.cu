// Kernels with one mistake each, and without: what the emulator's own tests run.
#include <cstring>
#include <string>
#include <string_view>
#include <thread>

#include "device/cluster.h"
#include "device/matrix_descriptor.h"
#include "device/ptx/copy.h"
#include "device/ptx/memory.h"
#include "device/ptx/tensor_store.h"
#include "device/ptx/tma.h"
#include "device/ptx/wgmma.h"
#include "device/warp.h"
#include "host/tensor_map.h"

extern "C" bool emulator_has_context();

namespace warpsmith {
namespace {

constexpr int kThreads = 64, kDynamicBytes = 4096;

// to[i] = from[63 - i], through shared memory.
template <bool waits>
__global__ void turn_kernel(const float* from, float* to) {
  __shared__ float tile[kThreads];
  tile[threadIdx.x] = from[threadIdx.x];
  if (waits) __syncthreads();
  to[threadIdx.x] = tile[kThreads - 1 - threadIdx.x];
}

// The same by copies in the background, of which each thread makes one of four values and reads that of another.
template <bool waits, bool commits = true>
__global__ void turn_in_background_kernel(const float* from, float* to) {
  __shared__ __align__(16) float tile[kThreads];
  if (threadIdx.x < kThreads / 4) {
    ptx::cp_async(reinterpret_cast<uint4*>(tile) + threadIdx.x, reinterpret_cast<const uint4*>(from) + threadIdx.x);
  }
  if (commits) ptx::cp_async_commit();
  if (waits) ptx::cp_async_wait<0>();
  __syncthreads();
  to[threadIdx.x] = tile[kThreads - 1 - threadIdx.x];
}

// The same as a product with ones on a diagonal, of the 8 rows of a that matter.
template <bool fences, bool fences_sums, bool waits>
__global__ void turn_by_wgmma_kernel(const float* from, float* to) {
  using Kind = WgmmaKind<Tf32Operand>;
  using A = WgmmaOperand<Major::k, 64, 8, 4, Line::of_32>;
  using B = WgmmaOperand<Major::k, 8, 8, 4, Line::of_32>;
  extern __shared__ __align__(1024) float operands[];
  const int i = static_cast<int>(threadIdx.x), lane = i % kWarp;
  float *a = operands, *b = operands + A::bytes / 4;
  const int at = i ^ i / 32 * 4;  // chunks of the lower four lines change places
  a[at] = from[kThreads - 1 - i];
  b[at] = i / 8 == i % 8 ? 1.0f : 0.0f;
  if (fences) ptx::fence_proxy_async();
  __syncthreads();
  float sums[4] = {NAN, NAN, NAN, NAN};
  if (fences_sums) ptx::wgmma_fence();
  ptx::wgmma<Kind>(sums, A::descriptor(ptx::shared_address(a)).bits(), B::descriptor(ptx::shared_address(b)).bits(),
                   /*adds=*/false);
  ptx::wgmma_commit();
  if (waits) ptx::wgmma_wait<0>(sums);
  if (i < kWarp) {
    for (int right = 0; right < 2; ++right) to[lane / 4 * 8 + lane % 4 * 2 + right] = sums[right];
  }
}

__device__ void begin(uint64_t* barrier, bool fences = true) {
  ptx::mbarrier_init(barrier, 1);
  if (fences) ptx::fence_mbarrier_init();
}

__device__ void copy_in_bulk(float* tile, const float* from, uint64_t* barrier, int expected = kThreads * 4) {
  ptx::mbarrier_arrive_expect(barrier, expected);
  ptx::bulk_load(tile, from, kThreads * 4, barrier, 0);
}

// The same by a bulk copy, counted on a barrier that expects `expected` bytes.
template <int expected, bool waits, bool shows_barrier = true>
__global__ void turn_in_bulk_kernel(const float* from, float* to) {
  __shared__ __align__(128) float tile[kThreads];
  __shared__ uint64_t arrived;
  if (threadIdx.x == 0) {
    begin(&arrived, shows_barrier);
    copy_in_bulk(tile, from, &arrived, expected);
  }
  __syncthreads();
  if (waits) ptx::mbarrier_wait(&arrived, 0);
  to[threadIdx.x] = tile[kThreads - 1 - threadIdx.x];
}

// The same into memory that held something else before.
template <bool fences>
__global__ void turn_over_writes_kernel(const float* from, float* to) {
  extern __shared__ __align__(128) float tile[];
  __shared__ uint64_t arrived;
  tile[threadIdx.x] = -1.0f;
  if (fences) ptx::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    begin(&arrived);
    copy_in_bulk(tile, from, &arrived);
  }
  __syncthreads();
  ptx::mbarrier_wait(&arrived, 0);
  to[threadIdx.x] = tile[kThreads - 1 - threadIdx.x];
}

// The same, after another copy to the same place that everybody reads.
enum class Fences { none, some, all };
template <Fences fences>
__global__ void turn_second_kernel(const float* from, float* to) {
  extern __shared__ __align__(128) float tile[];
  __shared__ uint64_t arrived;
  if (threadIdx.x == 0) {
    begin(&arrived);
    copy_in_bulk(tile, from + kThreads, &arrived);
  }
  __syncthreads();
  ptx::mbarrier_wait(&arrived, 0);
  const float first = tile[threadIdx.x];
  if (fences == Fences::all || (fences == Fences::some && threadIdx.x > 0)) ptx::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) copy_in_bulk(tile, from, &arrived);
  ptx::mbarrier_wait(&arrived, 1);
  to[threadIdx.x] = tile[kThreads - 1 - threadIdx.x] + 0.0f * first;
}

// The same, written by threads and copied from there. `early`: each thread's fence comes before what it writes.
enum class Fence { none, early, right };
template <Fence fence>
__global__ void turn_and_store_kernel(const float* from, float* to) {
  extern __shared__ __align__(128) float tile[];
  if (fence == Fence::early) ptx::fence_proxy_async();
  tile[threadIdx.x] = from[kThreads - 1 - threadIdx.x];
  if (fence == Fence::right) ptx::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    emu::store_later(to, tile, kThreads * 4);
    emu::commit_stores();
    emu::wait_stores(0);
  }
}

// The same as a box of two lines, stored from (row, col) on out of shared memory from `skipped` values on.
template <int row, int col, int skipped = 0, int rank = 2>
__global__ void turn_and_store_box_kernel(const float* from, float* to) {
  extern __shared__ __align__(128) float tile[];
  constexpr int kLine = kThreads / 2;
  tile[threadIdx.x + skipped] = from[kThreads - 1 - threadIdx.x];
  ptx::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    const CUtensorMap map = tensor_map(MappedMatrix{.data = to,
                                                    .type = tensor_map_type(Dtype::f32),
                                                    .rows = 2,
                                                    .cols = kLine,
                                                    .ld = kLine,
                                                    .box_rows = 2,
                                                    .box_cols = kLine,
                                                    .swizzle = CU_TENSOR_MAP_SWIZZLE_NONE});
    int corner[rank] = {};
    corner[rank - 2] = row;
    corner[rank - 1] = col;
    ptx::tensor_store(&map, corner, tile + skipped);
    ptx::stores_commit();
    ptx::stores_wait<0>();
  }
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
    {"background, no commit", turn_in_background_kernel<true, false>},
    {"background, neither", turn_in_background_kernel<false, false>},
    {"bulk", turn_in_bulk_kernel<kThreads * 4, true>},
    {"bulk, no wait", turn_in_bulk_kernel<kThreads * 4, false>},
    {"bulk, too many bytes expected", turn_in_bulk_kernel<kThreads * 4 + 16, true>},
    {"bulk, barrier not shown", turn_in_bulk_kernel<kThreads * 4, true, false>},
    {"over writes", turn_over_writes_kernel<true>},
    {"over writes, no fence", turn_over_writes_kernel<false>},
    {"over reads", turn_second_kernel<Fences::all>},
    {"over reads, no fence", turn_second_kernel<Fences::none>},
    {"over reads, one thread without a fence", turn_second_kernel<Fences::some>},
    {"multiply", turn_by_wgmma_kernel<true, true, true>},
    {"multiply, no fence", turn_by_wgmma_kernel<false, true, true>},
    {"multiply, sums not fenced", turn_by_wgmma_kernel<true, false, true>},
    {"multiply, no wait", turn_by_wgmma_kernel<true, true, false>},
    {"store", turn_and_store_kernel<Fence::right>},
    {"store, no fence", turn_and_store_kernel<Fence::none>},
    {"store, fence before the writes", turn_and_store_kernel<Fence::early>},
    {"box", turn_and_store_box_kernel<0, 0>},
    {"box, from before the first row", turn_and_store_box_kernel<-1, 0>},
    {"box, from before the first column", turn_and_store_box_kernel<0, -4>},
    {"box, from the middle of 16 bytes", turn_and_store_box_kernel<0, 1>},
    {"box, misaligned", turn_and_store_box_kernel<0, 0, 4>},
    {"box, of another rank", turn_and_store_box_kernel<0, 0, 0, 3>},
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
    const cudaLaunchConfig_t config{
        dim3(probe.blocks), dim3(warpsmith::kThreads), warpsmith::kDynamicBytes, nullptr, &attribute, 1};
    void* arguments[] = {&from, &to};
    emu::prepare_launch(probe.kernel, name, from, to);
    const cudaError_t status = cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(probe.kernel), arguments);
    message = status == cudaSuccess ? "" : cudaGetErrorString(status);
    return message.c_str();
  }
  return "no such probe";
}

// A map made on a thread that has made no call of the runtime before. What went wrong, or "". data: [64], aligned.
extern "C" const char* emulator_probe_first_map(const float* data) {
  static std::string message;
  message = emulator_has_context() ? "" : "no context where one was made";
  std::thread([&] {
    try {
      if (emulator_has_context()) throw std::runtime_error("a context that nothing made");
      warpsmith::tensor_map(warpsmith::MappedMatrix{.data = data,
                                                    .type = CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
                                                    .rows = 2,
                                                    .cols = 32,
                                                    .ld = 32,
                                                    .box_rows = 2,
                                                    .box_cols = 32});
    } catch (const std::exception& error) {
      message = error.what();
    }
  }).join();
  return message.c_str();
}

namespace {

struct alignas(8) Pair {
  uint32_t low, high;
};
struct Base {
  bool first;
  Pair pairs[10];
};
struct Padded : Base {
  bool second;
  int64_t third;
};

}  // namespace

// Fills a struct with a byte, clears its padding, and returns how many bytes it has. to: [sizeof(Padded)], aligned.
extern "C" int emulator_probe_padding(unsigned char filled, unsigned char* to) {
  std::memset(to, filled, sizeof(Padded));
  emu::clear_padding<Padded>(to);
  return sizeof(Padded);
}
