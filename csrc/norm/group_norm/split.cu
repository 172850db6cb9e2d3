// Group norm of contiguous tensors, groups cut into pieces: one kernel for their moments, one that merges these, one
// for the result.
//   Against `pack`: as many blocks as the machine can use, however few groups there are. Each kernel takes its places
//   while the one before ends, and the last starts where the first one ended, in what L2 still holds of x; its blocks look
//   weight and bias up once where they lie within a channel. Bound: DRAM, with x read twice where it does not fit in L2.
#include "device/start_early.h"
#include "norm/group_norm/any_pack.cuh"
#include "norm/group_statistics.cuh"

namespace warpsmith {
namespace {

constexpr int64_t kOnChipBytes = 128 * 1024;  // of a group; up to here one block can hold it
constexpr int kThreads = 256;
constexpr int kPacksPerThread = 4;

template <class T, class Activation>
__global__ void __launch_bounds__(kThreads)
    group_norm_split_kernel(const GroupNormRows<T> v, const PackChannels channels, const Normaliser* normalisers,
                            int64_t blocks_per_row) {
  start_early();
  const int64_t block = gridDim.x - 1 - blockIdx.x;  // backwards
  const int64_t row = block / blocks_per_row;
  const int64_t first = (block - row * blocks_per_row) * (kThreads * kPacksPerThread);
  const int64_t last = min(first + kThreads * kPacksPerThread, v.packs()) - 1, start = first + threadIdx.x;

  // load
  uint4 x[kPacksPerThread];
#pragma unroll
  for (int i = 0; i < kPacksPerThread; ++i) {
    const int64_t at = start + i * kThreads;
    if (at < v.packs()) x[i] = ptx::load_streaming(v.x_packs(row) + at);
  }

  // normalise
  const Normaliser n = normalisers[row];
  const auto store_all = [&](auto&& result) {
#pragma unroll
    for (int i = 0; i < kPacksPerThread; ++i) {
      const int64_t at = start + i * kThreads;
      if (at < v.packs()) ptx::store_streaming(v.y_packs(row) + at, result(x[i], at));
    }
  };
  const int64_t channel = v.channel(row, first);
  if (channels.whole && channel == v.channel(row, last)) {
    const float2 affine = v.template affine<Activation>(channel);
    store_all([&](const uint4& pack, int64_t) { return normalise<Activation, T>(pack, n, affine); });
  } else {
    store_all([&](const uint4& pack, int64_t at) { return normalise_any<Activation>(pack, row, at, n, channels, v); });
  }
}

const char* takes(const GroupNormArgs& a) { return needs_packed_groups(a); }

bool suits(const GroupNormArgs& a) { return a.row_bytes() > kOnChipBytes; }

void launch(const GroupNormArgs& a, cudaStream_t stream) {
  visit_activations(a.dtype, a.activation, [&]<class T, class Activation>() {
    const GroupNormRows<T> rows(a);
    const GroupStatistics statistics =
        launch_statistics(rows.x, a.shape, pieces_of(a.shape, a.dtype), a.eps, a.workspace, stream);
    const Normaliser* normalisers = statistics.groups;
    const int64_t blocks_per_row = ceil_of(rows.cols / kPack<T>, kThreads * kPacksPerThread);
    const auto blocks = static_cast<unsigned>(rows.rows * blocks_per_row);
    const LaunchConfig config{.grid = blocks, .block = kThreads, .early = true};
    warpsmith::launch<&group_norm_split_kernel<T, Activation>>(config, stream, rows, PackChannels(a), normalisers,
                                                               blocks_per_row);
  });
}

const Register<GroupNormArgs> registered{"split", /*min_sm=*/80, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
