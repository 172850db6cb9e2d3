// Group norm of contiguous tensors, one 128-bit access at a time, two sweeps.
//   Against `naive`: one load brings 16 bytes, and one sweep both moments. Bound: the group is read twice, the second
//   time from L2 where it still lies there; few groups leave multiprocessors without work.
#include "norm/group_norm/rows.cuh"

namespace warpsmith {
namespace {

constexpr int kPacksPerThread = 4;
constexpr int kMostThreads = 512;

template <class T, class Activation>
__global__ void __launch_bounds__(kMostThreads) group_norm_pack_kernel(const GroupNormRows<T> v) {
  constexpr int kWidth = kPack<T>;
  __shared__ Moments partial[kWarp];
  for (int64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const T* x = v.x_row(row);
    T* y = v.y_row(row);
    const int64_t first = v.first_channel(row);

    // moments
    Moments moments{};
#pragma unroll 4
    for (int64_t pack = threadIdx.x; pack < v.packs; pack += blockDim.x) {
      Pack<T> raw;
      float values[kWidth];
      load(raw, x + pack * kWidth);
      to_float(values, raw);
      moments = merge(moments, moments_of(values));
    }
    const Normaliser n = normaliser(block_merge(moments, partial), v.eps);

    // normalise
#pragma unroll 2
    for (int64_t pack = threadIdx.x; pack < v.packs; pack += blockDim.x) {
      Pack<T> raw;
      load(raw, x + pack * kWidth);
      store<Cache::streaming>(y + pack * kWidth, normalise<Activation>(raw, pack, first, n, v));
    }
    __syncthreads();  // the next group overwrites partial
  }
}

const char* takes(const GroupNormArgs& a) { return needs_packed_groups(a.shape, a.x, a.dtype); }

void launch(const GroupNormArgs& a, cudaStream_t stream) {
  visit_activations(a.dtype, a.activation, [&]<class T, class Activation>() {
    const GroupNormRows<T> rows(a);
    const unsigned threads = row_threads(rows.packs, kPacksPerThread, kMostThreads);
    warpsmith::launch<&group_norm_pack_kernel<T, Activation>>({row_grid(rows.rows), threads}, stream, rows);
  });
}

const Register<GroupNormArgs> registered{"pack", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
