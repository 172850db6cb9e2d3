// Dot product in f16, blocks added by an atomic on a pair of halves.
//   Against `atomic_padded`: values come in pairs, two products are added an instruction, and both halves of the pair
//   carry a sum; the two are added at the very end. Not deterministic and not precise: see dot/atomic.cuh. Bound: 4
//   bytes a load.
#include "reduce/dot/atomic.cuh"

namespace warpsmith {
namespace {

constexpr int kPairs = kAtomicValues / 2;

__global__ void __launch_bounds__(kAtomicThreads)
    dot_atomic_half2_kernel(const Span<f16, 2> x, const Span<f16, 2> y, __half2* total) {
  __shared__ BlockReduceStorage<__half2, kAtomicThreads> shared;
  const int64_t start = int64_t{blockIdx.x} * (kAtomicThreads * kPairs);
  const bool whole = start + kAtomicThreads * kPairs <= x.accesses;
  Vec<f16, 2> a[kPairs], b[kPairs];
  load_strided(a, x, start + threadIdx.x, kAtomicThreads, whole);
  load_strided(b, y, start + threadIdx.x, kAtomicThreads, whole);

  __half2 sum = __floats2half2_rn(dot_of_ends(x, y), 0.0f);
#pragma unroll
  for (int i = 0; i < kPairs; ++i) sum = __hfma2(as_pair<f16>(a[i][0]), as_pair<f16>(b[i][0]), sum);
  sum = block_reduce<kAtomicThreads>(sum, shared, Add{});
  if (threadIdx.x == 0) atomicAdd(total, sum);
}

const char* takes(const DotArgs& a) {
  if (const char* reason = takes_f16(a)) return reason;
  return needs_pairs(a);
}

void launch(const DotArgs& a, cudaStream_t stream) {
  launch_atomic(a, stream, [&](__half2* total) {
    const Span<f16, 2> x(a.x, a.n), y(a.y, a.n);
    const int64_t blocks = std::max<int64_t>(ceil_div(x.accesses, kAtomicThreads * kPairs), 1);
    warpsmith::launch<&dot_atomic_half2_kernel>({static_cast<unsigned>(blocks), kAtomicThreads}, stream, x, y, total);
  });
}

const Register<DotArgs> registered{"atomic_half2", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
