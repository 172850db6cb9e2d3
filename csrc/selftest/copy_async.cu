// device/copy_async.h: Vecs of 8 and 16 bytes, all of them and some switched off: those must leave what the slot held and
// must not touch their source, here a null pointer. Every thread reads what another has copied.
#include "device/copy_async.h"

#include "device/ptx/memory.h"
#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

constexpr int kThreads = 128, kBlocks = 3;

constexpr bool goes(int i) { return i % 3 != 1 && i % 7 != 2; }

// from: [2, blocks, threads, n], first what the slots hold, then what is copied there; to: [blocks, threads, n].
template <class T, int n, bool conditional>
__global__ void copy_async_kernel(T* to, const T* from) {
  __shared__ alignas(16) T slots[kThreads][n];
  const int tid = threadIdx.x, i = blockIdx.x * kThreads + tid;
  for (int j = 0; j < n; ++j) slots[tid][j] = from[i * n + j];
  auto* slot = reinterpret_cast<Vec<T, n>*>(slots[tid]);
  const T* source = from + (gridDim.x * kThreads + i) * n;
  if constexpr (conditional) {
    copy_async_if(goes(i), slot, goes(i) ? source : nullptr, ptx::policy_evict_normal());
  } else {
    copy_async(slot, source, ptx::policy_evict_last());
  }
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  __syncthreads();
  for (int j = 0; j < n; ++j) to[i * n + j] = slots[kThreads - 1 - tid][j];
}

template <class T, int n, bool conditional>
std::string check() {
  constexpr int kCopies = kBlocks * kThreads;
  Random random(31);
  std::vector<T> values(2 * kCopies * n), expected(kCopies * n);
  for (T& value : values) value = static_cast<T>(random.word());
  for (int copy = 0; copy < kCopies; ++copy) {
    const int mirrored = copy / kThreads * kThreads + (kThreads - 1 - copy % kThreads);
    const int source = !conditional || goes(mirrored) ? kCopies + mirrored : mirrored;
    for (int j = 0; j < n; ++j) expected[copy * n + j] = values[source * n + j];
  }
  DeviceArray<T> from(values), to(expected.size());
  warpsmith::launch<&copy_async_kernel<T, n, conditional>>({kBlocks, kThreads}, kStream, to.data(), from.data());
  return compare(text(conditional ? "copy_async_if of " : "copy_async of ", n, " values of ", sizeof(T), " bytes"),
                 expected, to.values(), [](size_t i) {
                   return text("block ", i / n / kThreads, ", thread ", i / n % kThreads, ", value ", i % n);
                 });
}

std::string run() {
  return first_failure(check<uint32_t, 2, false>, check<uint32_t, 4, false>, check<uint16_t, 8, false>,
                       check<uint32_t, 2, true>, check<uint32_t, 4, true>, check<uint16_t, 4, true>);
}

const SelfTestEntry entered{"copy_async", run};

}  // namespace
}  // namespace warpsmith::selftest
