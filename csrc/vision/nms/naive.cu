// Non-maximum suppression, one block.
//   Box after box: whichever is still there is kept, and removes those behind it that it overlaps. Needs no more memory
//   than a byte a box. Bound: one multiprocessor, and a barrier for each box that is kept.
#include "host/launch.h"
#include "host/registry.h"
#include "vision/nms/overlap.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 1024;

__global__ void __launch_bounds__(kThreads) nms_naive_kernel(const NmsArgs a) {
  auto* removed = static_cast<volatile unsigned char*>(a.workspace);  // [n]
  for (int64_t i = threadIdx.x; i < a.n; i += kThreads) removed[i] = !load_box(a, i).exists;
  __syncthreads();
  int64_t count = 0;
  for (int64_t i = 0; i < a.n; ++i) {
    if (removed[i]) continue;  // for all threads: it was written before the last barrier
    if (threadIdx.x == 0) a.keep[count] = a.order[i];
    ++count;
    const Box kept = load_box(a, i);
    for (int64_t j = i + 1 + threadIdx.x; j < a.n; j += kThreads) {
      if (!removed[j] && overlap(kept, load_box(a, j), a.threshold)) removed[j] = 1;
    }
    __syncthreads();
  }
  for (int64_t i = count + threadIdx.x; i < a.n; i += kThreads) a.keep[i] = -1;
  if (threadIdx.x == 0) *a.count = count;
}

void launch(const NmsArgs& a, cudaStream_t stream) { warpsmith::launch<&nms_naive_kernel>({1, kThreads}, stream, a); }

const Register<NmsArgs> registered{"naive", /*min_sm=*/80, takes_any, launch};

}  // namespace
}  // namespace warpsmith
