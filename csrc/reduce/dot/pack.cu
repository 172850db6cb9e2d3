// Dot product, 128-bit accesses.
//   Against `unroll`: 16 bytes a load, four of them under way per thread and operand. What lies before the first aligned
//   address and after the last access is multiplied value by value. Bound: DRAM, and the second launch, for which the
//   GPU drains.
#include "reduce/dot/thread_dot.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256, kPacks = 4, kBlockPacks = kThreads * kPacks;
static_assert(4 * kBlockPacks >= kDotValuesPerBlock, "the workspace counts on it");

template <class T>
__global__ void __launch_bounds__(kThreads)
    dot_pack_kernel(const Span<T, kPack<T>> x, const Span<T, kPack<T>> y, double* partial) {
  __shared__ BlockReduceStorage<double, kThreads> shared;
  const int64_t start = int64_t{blockIdx.x} * kBlockPacks;
  const bool whole = start + kBlockPacks <= x.accesses;
  Pack<T> a[kPacks], b[kPacks];
  load_strided(a, x, start + threadIdx.x, kThreads, whole);
  load_strided(b, y, start + threadIdx.x, kThreads, whole);

  ThreadDot<T, kPack<T>> sum;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) sum.add(a[i], b[i]);
  const double total = block_reduce<kThreads>(sum.total() + dot_of_ends(x, y), shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

const char* takes(const DotArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  return needs_f32_accumulator(a);
}

void launch(const DotArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    const Span<T, kPack<T>> x(a.x, a.n), y(a.y, a.n);
    auto* partial = static_cast<double*>(a.workspace);
    const int64_t blocks = std::max<int64_t>(ceil_div(x.accesses, kBlockPacks), 1);
    warpsmith::launch<&dot_pack_kernel<T>>({static_cast<unsigned>(blocks), kThreads}, stream, x, y, partial);
    launch_total<T>(partial, blocks, a.out, stream);
  });
}

const Register<DotArgs> registered{"pack", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
