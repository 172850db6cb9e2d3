// Group norm backward of contiguous tensors in passes over memory, with as many blocks as the machine can use.
//   Against `naive`: 128-bit accesses; little to compute for a value, whatever the group's length; channels are summed
//   in pieces, and the sums serve dx, dw and db alike. The last pass runs backwards, into what L2 still holds of x and
//   grad. Bound: DRAM, with x read three times and grad twice where they do not fit in L2.
#include "norm/group_norm/backward/passes.cuh"
#include "norm/group_norm/backward/rows.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;
constexpr int kPacksPerThread = 2;

// Block i takes piece i % count of channel i / count, of all samples' channels.
template <class T, class Activation>
__global__ void __launch_bounds__(kThreads)
    group_norm_backward_split_sums_kernel(const GroupNormBackwardRows<T> v, const Normaliser* normalisers,
                                          const PartialSums to, const Pieces pieces) {
  constexpr int kWidth = kPack<T>;
  __shared__ GradSums partial[kWarp];
  const int64_t packs = static_cast<int64_t>(v.channel_packs.divisor);
  const int64_t of_all = blockIdx.x / pieces.count, piece = blockIdx.x - of_all * pieces.count;
  const int64_t row = of_all / v.group_channels, sample = v.sample(row);
  const int64_t channel = v.first_channel(row) + of_all - row * v.group_channels;
  const int64_t end = min((piece + 1) * pieces.length, packs);
  const ChannelGrad c = v.channel(normalisers[row], channel);
  const T* gGrad = v.grad + of_all * packs * kWidth;  // [packs * kWidth]
  const T* gX = v.x + of_all * packs * kWidth;        // [packs * kWidth]
  GradSums sums{};
#pragma unroll 2
  for (int64_t pack = piece * pieces.length + threadIdx.x; pack < end; pack += kThreads) {
    Pack<T> grad, x;
    load<Cache::streaming>(grad, gGrad + pack * kWidth);
    load<Cache::streaming>(x, gX + pack * kWidth);
    add_pack<Activation>(sums, c, grad, x);
  }
  sums = block_sum(sums, partial);
  sums.dw *= c.n.rstd;
  if (threadIdx.x == 0) to.write(sample * pieces.count + piece, channel, sums);
}

template <class T, class Activation>
__global__ void __launch_bounds__(kThreads)
    group_norm_backward_split_kernel(const GroupNormBackwardRows<T> v, const Normaliser* normalisers,
                                     const GradSums* means, int64_t blocks_per_row) {
  constexpr int kWidth = kPack<T>;
  const int64_t block = gridDim.x - 1 - blockIdx.x;  // backwards
  const int64_t row = block / blocks_per_row, first = v.first_channel(row);
  const int64_t start = (block - row * blocks_per_row) * (kThreads * kPacksPerThread) + threadIdx.x;
  const int64_t base = row * v.size;

  // load
  Pack<T> grad[kPacksPerThread], x[kPacksPerThread];
#pragma unroll
  for (int i = 0; i < kPacksPerThread; ++i) {
    const int64_t pack = start + i * kThreads;
    if (pack >= v.packs) continue;
    load<Cache::streaming>(grad[i], v.grad + base + pack * kWidth);
    load<Cache::streaming>(x[i], v.x + base + pack * kWidth);
  }

  // dx
  const Normaliser n = normalisers[row];
  const GradSums mean = means[row];
#pragma unroll
  for (int i = 0; i < kPacksPerThread; ++i) {
    const int64_t pack = start + i * kThreads;
    if (pack >= v.packs) continue;
    const ChannelGrad c = v.channel(n, first + static_cast<int64_t>(v.channel_packs.quotient(pack)));
    store<Cache::streaming>(v.dx + base + pack * kWidth, pack_dx<Activation>(c, grad[i], x[i], mean));
  }
}

const char* takes(const GroupNormBackwardArgs& a) { return needs_whole_channels(a); }

void launch(const GroupNormBackwardArgs& a, cudaStream_t stream) {
  visit_activations(a.dtype, a.activation, [&]<class T, class Activation>() {
    const GroupNormBackwardRows<T> rows(a);
    const GroupStatistics statistics =
        launch_statistics(rows.x, a.shape, pieces_of(a.shape, a.dtype), a.eps, a.workspace, stream);
    const Normaliser* normalisers = statistics.groups;

    const Pieces pieces = channel_pieces_of(a.shape, a.dtype);
    const PartialSums sums = partial_sums(a, "split", pieces.count);
    const auto sum_blocks = static_cast<unsigned>(a.shape.n * a.shape.c * pieces.count);
    warpsmith::launch<&group_norm_backward_split_sums_kernel<T, Activation>>({sum_blocks, kThreads}, stream, rows,
                                                                             normalisers, sums, pieces);
    launch_means(a, sums, pieces.count, stream);

    const int64_t blocks_per_row = ceil_of(rows.packs, kThreads * kPacksPerThread);
    const auto blocks = static_cast<unsigned>(rows.rows * blocks_per_row);
    const GradSums* means = means_of(a);
    warpsmith::launch<&group_norm_backward_split_kernel<T, Activation>>({blocks, kThreads}, stream, rows, normalisers,
                                                                        means, blocks_per_row);
    sum_parameters(a, sums, stream);
  });
}

const Register<GroupNormBackwardArgs> registered{"split", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
