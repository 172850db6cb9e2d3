// Group norm of contiguous tensors, one 128-bit access at a time, two sweeps.
//   Against `naive`: one load brings 16 bytes, and one sweep both moments. Groups of any size that packs tile, also where
//   a pack spans channels. Bound: the group is read twice, the second time from L2 where it still lies there; few groups
//   leave multiprocessors without work.
#include "norm/group_norm/any_pack.cuh"

namespace warpsmith {
namespace {

constexpr int kPacksPerThread = 4;
constexpr int kMostThreads = 512;

template <class T, class Activation>
__global__ void __launch_bounds__(kMostThreads, 2)
    group_norm_pack_kernel(const GroupNormRows<T> v, const PackChannels channels) {
  __shared__ Moments partial[kWarp];
  for (int64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const uint4* x = v.x_packs(row);
    uint4* y = v.y_packs(row);

    // moments
    Moments moments{};
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < v.packs(); i += blockDim.x) moments = merge(moments, pack_moments<T>(x[i]));
    const Normaliser n = normaliser(block_merge(moments, partial), v.eps);

    // normalise
#pragma unroll 2
    for (int64_t i = threadIdx.x; i < v.packs(); i += blockDim.x) {
      ptx::store_streaming(y + i, normalise_any<Activation>(x[i], row, i, n, channels, v));
    }
    __syncthreads();  // the next group overwrites partial
  }
}

const char* takes(const GroupNormArgs& a) { return needs_packed_groups(a.shape, a.x, a.dtype); }

void launch(const GroupNormArgs& a, cudaStream_t stream) {
  visit_activations(a.dtype, a.activation, [&]<class T, class Activation>() {
    const GroupNormRows<T> rows(a);
    const unsigned threads = row_threads(rows.cols / kPack<T>, kPacksPerThread, kMostThreads);
    warpsmith::launch<&group_norm_pack_kernel<T, Activation>>({row_grid(rows.rows), threads}, stream, rows,
                                                              PackChannels(a));
  });
}

const Register<GroupNormArgs> registered{"pack", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
