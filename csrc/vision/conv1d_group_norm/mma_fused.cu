// Convolution on the tensor cores, group norm and activation in one kernel.
//   Against `mma`: a block's tile is of whole groups and whole samples, so that it holds all there is to know of their
//   statistics; sums go to shared memory in f32, and results leave normalised. The convolution is never rounded, and is
//   written only where it is kept for a gradient. Bound: the tensor cores as mma.sync reaches them.
#include "host/registry.h"
#include "vision/conv1d_group_norm/activate.cuh"
#include "vision/conv1d_group_norm/conv1d_group_norm.h"
#include "vision/conv1d_group_norm/conv1d_tiles.h"

namespace warpsmith {
namespace {

template <class T>
struct Ending {
  const T *bias, *weight, *shift;  // [rows]; the first null without one
  T *y, *h;                        // [n, rows, length]; the last null where nobody wants it
  int group_channels;
  float eps;
  Conv1dActivation activation;
};

// Sums of a value over teams of warps; every thread of the block calls, and gets the sum of its team.
__device__ __forceinline__ float team_sum(float value, float* partial, int team_warps) {
  value = warp_reduce(value);
  if (team_warps == 1) return value;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  if (threadIdx.x % kWarp == 0) partial[warp] = value;
  __syncthreads();
  value = 0.0f;
  for (int i = 0; i < team_warps; ++i) value += partial[warp / team_warps * team_warps + i];
  __syncthreads();
  return value;
}

template <class T, class Tile>
__device__ __forceinline__ void normalise_tile(const float* sums, const Conv1dProduct& p, const Conv1dPlace& block,
                                               const Ending<T>& e) {
  constexpr int kPitch = Conv1dMemory<Tile>::sums_pitch, kWarps = Share<Tile>::warps;
  __shared__ float partial[kWarps];
  const int64_t rows_left = p.rows - block.row, positions_left = p.positions - block.position;
  const int rows = static_cast<int>(rows_left < p.block_rows ? rows_left : p.block_rows);
  const int samples =
      static_cast<int>(positions_left < p.block_positions ? positions_left : p.block_positions) / p.length;
  const int cells = rows / e.group_channels * samples, size = e.group_channels * p.length;
  int team_warps = kWarps;
  while (team_warps > 1 && cells * team_warps > kWarps) team_warps /= 2;
  const int team = 32 * team_warps, teams = kWarps / team_warps;
  const int rank = static_cast<int>(threadIdx.x) % team;
  const auto uniform = static_cast<float>(size);

  for (int from = 0; from < cells; from += teams) {
    const int cell = from + static_cast<int>(threadIdx.x) / team;
    const int count = cell < cells ? size : 0;
    const int group = cell / samples, sample = cell - group * samples;
    const float* values = sums + group * e.group_channels * kPitch + sample * p.length;
    const auto place = [&](int i) {
      const int row = static_cast<int>(p.by_length.small_quotient(static_cast<uint32_t>(i)));
      return row * kPitch + (i - row * p.length);
    };

    // mean
    float sum = 0.0f;
    for (int i = rank; i < count; i += team) sum += values[place(i)];
    const float mean = team_sum(sum, partial, team_warps) / uniform;

    // variance
    float square = 0.0f;
    for (int i = rank; i < count; i += team) {
      const float deviation = values[place(i)] - mean;
      square = fmaf(deviation, deviation, square);
    }
    const float rstd = 1.0f / sqrtf(team_sum(square, partial, team_warps) / uniform + e.eps);

    // normalise; a group of a sample is a run of memory
    const int64_t first_row = block.row + group * e.group_channels;
    const int64_t to = ((block.position / p.length + sample) * p.rows + first_row) * p.length;
    const auto finish = [&](int i, T& h) {
      const int row = static_cast<int>(p.by_length.small_quotient(static_cast<uint32_t>(i)));
      const float value = values[row * kPitch + (i - row * p.length)];
      h = from_float<T>(value);
      const float scale = to_float(e.weight[first_row + row]), shift = to_float(e.shift[first_row + row]);
      return from_float<T>(activate<T>(e.activation, fmaf((value - mean) * rstd, scale, shift)));
    };
    if (p.length % 2 == 0) {
      for (int i = 2 * rank; i < count; i += 2 * team) {
        Vec<T, 2> y, h;
        y[0] = finish(i, h[0]);
        y[1] = finish(i + 1, h[1]);
        store(e.y + to + i, y);
        if (e.h != nullptr) store(e.h + to + i, h);
      }
    } else {
      for (int i = rank; i < count; i += team) {
        T h;
        e.y[to + i] = finish(i, h);
        if (e.h != nullptr) e.h[to + i] = h;
      }
    }
  }
}

template <class T, class Tile>
__global__ void __launch_bounds__(Share<Tile>::threads, Tile::blocks)
    conv1d_group_norm_mma_fused_kernel(const Conv1dProduct p, const Ending<T> e) {
  extern __shared__ __align__(128) uint4 memory[];
  start_early();
  const Conv1dPlace block(p);
  WarpSums<typename Planes<T>::Unit, float, Tile> sums;
  convolve_tile<typename Planes<T>::Unit, Tile, Planes<T>::count>(sums, memory, p, block);
  auto* staged = reinterpret_cast<float*>(memory);
  stage_sums<T, Tile>(staged, sums, e.bias, block.row, p.rows);
  normalise_tile<T, Tile>(staged, p, block, e);
}

const char* takes(const Conv1dGroupNormArgs& a) {
  if (const char* reason = needs_countable(a.shape)) return reason;
  const bool fits = a.group_channels() <= LargeConv1dTile::bm && a.shape.length <= LargeConv1dTile::bn;
  return fits ? nullptr : "needs groups of at most 128 channels and signals of at most 128 positions";
}

void launch(const Conv1dGroupNormArgs& a, cudaStream_t stream) {
  const Conv1dShape& s = a.shape;
  char* signals = static_cast<char*>(a.workspace);
  char* weights = signals + signal_bytes(s.positions(), s.c_in, a.dtype);
  arrange(SignalLines(a.x, signals, s, s.c_in), SignalLines(), WeightLines(a.weight, weights, s, false), a.dtype,
          stream);
  const Conv1dProduct product = conv1d_product(s, weights, signals, s.c_out, s.c_in, s.before());
  dispatch_float(a.dtype, [&]<class T>() {
    const Ending<T> ending{.bias = static_cast<const T*>(a.bias),
                           .weight = static_cast<const T*>(a.norm_weight),
                           .shift = static_cast<const T*>(a.norm_bias),
                           .y = static_cast<T*>(a.y),
                           .h = static_cast<T*>(a.h),
                           .group_channels = static_cast<int>(a.group_channels()),
                           .eps = a.eps,
                           .activation = a.activation};
    const auto start = [&]<class Tile>(const Conv1dProduct& p) {
      warpsmith::launch<&conv1d_group_norm_mma_fused_kernel<T, Tile>>(conv1d_config<Tile>(p, a.sm_count), stream, p,
                                                                      ending);
    };
    with_best_tile<LargeConv1dTile, TallConv1dTile, SmallConv1dTile, LoneSmallConv1dTile, LoneNarrowConv1dTile,
                   LoneTallConv1dTile>(product, a.group_channels(), s.length, a.sm_count, start);
  });
}

const Register<Conv1dGroupNormArgs> registered{"mma_fused", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
