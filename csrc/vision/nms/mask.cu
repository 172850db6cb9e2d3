// Non-maximum suppression by a bit for each pair.
//   Against `naive`: all pairs are compared at once, by as many blocks as there are squares of 64 x 64 of them above the
//   diagonal. One block then goes through the boxes, 64 at a time: which of them stay follows from the bits of their own
//   square, and the rows of those that do are joined with all loads on their way together. Bound: comparisons, and for few
//   boxes the latency of the second kernel.
#include "host/launch.h"
#include "host/registry.h"
#include "vision/nms/overlap.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 512;  // of the block that keeps
constexpr int kAtOnce = 8;     // rows of bits on their way

__device__ __forceinline__ int count_bits(uint64_t bits) {
  return __popc(static_cast<unsigned>(bits)) + __popc(static_cast<unsigned>(bits >> 32));
}

// Bits of the boxes behind box `rank` that it overlaps, [n, words]; of words before its own, nothing is written.
__global__ void __launch_bounds__(kNmsBlock) nms_mask_kernel(const NmsArgs a, const int64_t words) {
  if (blockIdx.x < blockIdx.y) return;
  __shared__ Box behind[kNmsBlock];
  const int tid = static_cast<int>(threadIdx.x);
  const int64_t row = int64_t{blockIdx.y} * kNmsBlock + tid, first = int64_t{blockIdx.x} * kNmsBlock;
  const int there = static_cast<int>(min(a.n - first, int64_t{kNmsBlock}));
  if (tid < there) behind[tid] = load_box(a, first + tid);
  __syncthreads();
  if (row >= a.n) return;
  const Box box = load_box(a, row);
  uint64_t bits = 0;
  for (int k = blockIdx.x == blockIdx.y ? tid + 1 : 0; k < there; ++k) {
    if (overlap(box, behind[k], a.threshold)) bits |= uint64_t{1} << k;
  }
  static_cast<uint64_t*>(a.workspace)[row * words + blockIdx.x] = bits;
}

__global__ void __launch_bounds__(kThreads) nms_keep_kernel(const NmsArgs a, const int words) {
  extern __shared__ uint64_t removed[];  // [words]
  __shared__ uint64_t square[kNmsBlock], kept_bits;
  __shared__ bool exists[kNmsBlock];
  const auto* mask = static_cast<const uint64_t*>(a.workspace);  // [n, words]
  const int tid = static_cast<int>(threadIdx.x);
  for (int j = tid; j < words; j += kThreads) removed[j] = 0;
  int64_t count = 0;
  for (int block = 0; block < words; ++block) {
    const int64_t first = int64_t{block} * kNmsBlock;
    const int there = static_cast<int>(min(a.n - first, int64_t{kNmsBlock}));

    // who stays of these
    int64_t at = -1;
    if (tid < kNmsBlock) {
      if (tid < there) at = a.order[first + tid];
      square[tid] = tid < there ? mask[(first + tid) * words + block] : 0;
      exists[tid] = at >= 0 && at < a.n;
    }
    __syncthreads();
    if (tid == 0) {
      uint64_t gone = removed[block], kept = 0;
      for (int k = 0; k < there; ++k) {
        if (!exists[k] || (gone >> k & 1) != 0) continue;
        kept |= uint64_t{1} << k;
        gone |= square[k];
      }
      kept_bits = kept;
    }
    __syncthreads();
    const uint64_t kept = kept_bits;

    // note them
    if (tid < there && (kept >> tid & 1) != 0) a.keep[count + count_bits(kept & ((uint64_t{1} << tid) - 1))] = at;
    count += count_bits(kept);

    // remove what they overlap
    for (int j = block + 1 + tid; j < words; j += kThreads) {
      uint64_t gone = 0;
      for (int k = 0; k < kNmsBlock; k += kAtOnce) {
        uint64_t row[kAtOnce];
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u) row[u] = (kept >> (k + u) & 1) != 0 ? mask[(first + k + u) * words + j] : 0;
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u) gone |= row[u];
      }
      removed[j] |= gone;
    }
    __syncthreads();
  }
  for (int64_t i = count + tid; i < a.n; i += kThreads) a.keep[i] = -1;
  if (tid == 0) *a.count = count;
}

const char* takes(const NmsArgs& a) { return can_mask(a.n) ? nullptr : "needs at most 131072 boxes"; }

void launch(const NmsArgs& a, cudaStream_t stream) {
  const int64_t words = ceil_div(a.n, kNmsBlock);
  const auto blocks = static_cast<unsigned>(words);
  warpsmith::launch<&nms_mask_kernel>({dim3(blocks, blocks), kNmsBlock}, stream, a, words);
  const LaunchConfig config{.grid = 1, .block = kThreads, .dynamic_smem = static_cast<int>(words * 8)};
  warpsmith::launch<&nms_keep_kernel>(config, stream, a, static_cast<int>(words));
}

const Register<NmsArgs> registered{"mask", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
