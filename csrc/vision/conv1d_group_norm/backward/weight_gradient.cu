// The gradient of a convolution's weights on the tensor cores: for each tap, gradients [c_out, positions] times signals
// [positions, c_in], these moved by the tap.
//   Both lie in lines of a position each, as `arrange` puts them, and are transposed by ldmatrix. A line that a tap moves
//   out of its signal is filled with zeros on its way. Blocks that share a tile take runs of positions, and their sums are
//   added up in the order of these. Bound: the tensor cores as mma.sync reaches them.
#include "device/fast_divide.h"
#include "device/pipeline.h"
#include "device/start_early.h"
#include "host/launch.h"
#include "row/rows.h"
#include "tile/copy.cuh"
#include "tile/thread_again.cuh"
#include "tile/warp_mma.cuh"
#include "vision/conv1d_group_norm/add_piece.cuh"
#include "vision/conv1d_group_norm/backward/conv1d_backward.h"
#include "vision/conv1d_group_norm/planes.cuh"

namespace warpsmith {
namespace {

// Sums in pieces take twice the registers: twice the warps, or a block less.
template <class T, int size>
struct WeightTile {
  static constexpr bool in_pieces = Planes<T>::count > 1;
  static constexpr int bm = size, bn = size, bk = static_cast<int>(WeightSlices::kStep), warps_m = 2,
                       warps_n = in_pieces && size == 128 ? 4 : 2, stages = 3,
                       blocks = WeightSlices::blocks_of(size, in_pieces);
};

struct WeightProduct {
  Matrix grad;          // planes of [positions, pitch of c_out]
  const void* signals;  // planes of [positions, pitch]
  float* sums;          // [slices, taps, rows, pitch]
  int64_t positions, rows, grad_pitch, pitch, depth;
  int length, taps, before;
  FastDivide by_length;
  int64_t tiles_m, tiles_n;
};

// As TileCopy, of lines that a tap has moved.
template <class Unit, class Tile, int threads>
class MovedCopy {
  static constexpr int kPerLine = Tile::length / 8, kStep = threads / kPerLine, kRounds = Tile::lines / kStep;
  static_assert(Tile::lines % kStep == 0 && kStep % 8 == 0, "an even share of lines that swizzle alike");

 public:
  __device__ __forceinline__ MovedCopy(const WeightProduct& p, int plane, int64_t column, int64_t position, int shift)
      : p_(p), position_(position + line()), shift_(shift), inside_(column + along() < p.pitch) {
    from_ =
        static_cast<const Unit*>(p.signals) + (plane * p.positions + position_ + shift) * p.pitch + column + along();
  }

  // Starts copying the tile at hand, of which `left` positions exist, and goes on to the next.
  __device__ __forceinline__ void start(Unit* tile, int64_t left) {
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int64_t position = position_ + r * kStep;
      const int along_signal = static_cast<int>(position - p_.by_length.quotient_as(position) * p_.length) + shift_;
      const bool valid = inside_ && line() + r * kStep < left &&
                         static_cast<unsigned>(along_signal) < static_cast<unsigned>(p_.length);
      ptx::cp_async_zfill(reinterpret_cast<uint4*>(tile + Tile::moved(Tile::at(line(), along()), r * kStep, 0)),
                          reinterpret_cast<const uint4*>(from_ + r * kStep * p_.pitch), valid);
    }
    from_ += Tile::lines * p_.pitch;
    position_ += Tile::lines;
  }

 private:
  __device__ __forceinline__ static int line() { return static_cast<int>(threadIdx.x) / kPerLine; }
  __device__ __forceinline__ static int along() { return static_cast<int>(threadIdx.x) % kPerLine * 8; }

  const WeightProduct& p_;
  const Unit* from_;
  int64_t position_;
  int shift_;
  bool inside_;
};

template <class T, class Tile>
__global__ void __launch_bounds__(Share<Tile>::threads, Tile::blocks)
    conv1d_backward_weight_kernel(const WeightProduct p) {
  using Unit = typename Planes<T>::Unit;
  using A = OperandTile<Along::mn, Tile::bm, Tile::bk, Swizzled>;
  using B = OperandTile<Along::mn, Tile::bn, Tile::bk, Swizzled>;
  constexpr int kThreads = Share<Tile>::threads, kSteps = Tile::bk / 16, kPlanes = Planes<T>::count;
  static_assert(kSteps % 2 == 0, "fragments alternate");
  __shared__ Stage<Unit, A, B> stages[Tile::stages];
  start_early();

  const int tap = static_cast<int>(blockIdx.x % p.taps);
  const int64_t tile = blockIdx.x / p.taps, row = tile % p.tiles_m * Tile::bm, column = tile / p.tiles_m * Tile::bn;
  const int64_t first = blockIdx.y * p.depth;
  const int64_t depth = p.positions - first < p.depth ? p.positions - first : p.depth;
  const int steps = static_cast<int>(ceil_div(depth, Tile::bk));
  const WarpPlace<Tile> warp;
  const FragmentReader<Side::a, A> read_a(warp.m);
  const FragmentReader<Side::b, B> read_b(warp.n);
  WarpSums<Unit, float, Tile> sums, totals;

#pragma unroll 1
  for (int product = PlaneProducts::first(kPlanes); product < PlaneProducts::end; ++product) {
    TileCopy<Unit, A, kThreads> copy_a(p.grad, PlaneProducts::a(product), p.grad_pitch, row, first);
    MovedCopy<Unit, B, kThreads> copy_b(p, PlaneProducts::b(product), column, first, tap - p.before);

    // fill all stages but one
#pragma unroll
    for (int slot = 0; slot < Tile::stages - 1; ++slot) {
      copy_a.start(stages[slot].a, depth - slot * Tile::bk);
      copy_a.advance();
      copy_b.start(stages[slot].b, depth - slot * Tile::bk);
      ptx::cp_async_commit();
    }
    ptx::cp_async_wait<Tile::stages - 2>();
    __syncthreads();

    // multiply
    Fragments<Share<Tile>::wm, Share<Tile>::wn> fragments[2];
    fragments[0].read(read_a, stages[0].a, read_b, stages[0].b, 0);
    RingSlot<Tile::stages> at, ahead{Tile::stages - 1};
    const Pieces<kPlanes, 1> pieces(product + 1 == PlaneProducts::end);
    for (int s = 0; s < steps; ++s) {
      const int64_t left = depth - int64_t{s + Tile::stages - 1} * Tile::bk;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        if (step == 0) {
          copy_a.start(stages[ahead.slot].a, left);
          copy_a.advance();
          copy_b.start(stages[ahead.slot].b, left);
          ptx::cp_async_commit();
        }
        const int next = (step + 1) % kSteps;
        if (next == 0) {
          at.advance();
          ahead.advance();
          ptx::cp_async_wait<Tile::stages - 2>();
          __syncthreads();  // the next stage is here, and what is left of this one is in registers
        }
        fragments[next % 2].read(read_a, stages[at.slot].a, read_b, stages[at.slot].b, 16 * next);
        sums.add(fragments[step % 2]);
      }
      if (pieces.end(s)) add_piece(totals, sums);
    }
    ptx::cp_async_wait<0>();
    __syncthreads();  // the next product fills the ring again
  }

  if constexpr (kPlanes > 1) {
    add_piece(totals, sums);
    sums = totals;
  }

  // store
  const int lane = thread_again() % kWarp;
  float* to = p.sums + (blockIdx.y * p.taps + tap) * p.rows * p.pitch;
#pragma unroll
  for (int i = 0; i < Share<Tile>::wm / 16; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t m = row + warp.m + 16 * i + 8 * half + lane / 4;
      if (m >= p.rows) continue;
#pragma unroll
      for (int j = 0; j < Share<Tile>::wn / 8; ++j) {
        const int64_t n = column + warp.n + 8 * j + lane % 4 * 2;
        if (n >= p.pitch) continue;
        const float2 pair = sums.sums[i][j].pair(half);
        Vec<float, 2> values;
        values[0] = pair.x;
        values[1] = pair.y;
        store(to + m * p.pitch + n, values);
      }
    }
  }
}

constexpr int kSumThreads = 256;

// A thread per row and channel adds up the slices of all of its taps.
template <class T>
__global__ void __launch_bounds__(kSumThreads)
    conv1d_backward_sum_slices_kernel(T* to, const float* sums, int64_t slices, int64_t rows, int64_t channels,
                                      int64_t pitch, int taps) {
  start_early();
  const int64_t at = int64_t{blockIdx.x} * kSumThreads + threadIdx.x;
  if (at >= rows * channels) return;
  const int64_t row = at / channels, from = row * pitch + at - row * channels, plane = rows * pitch;
  for (int t = 0; t < taps; ++t) {
    float sum = 0.0f, piece = 0.0f;
    for (int64_t s = 0; s < slices; ++s) {
      piece += sums[(s * taps + t) * plane + from];
      add_piece(sum, piece);
    }
    to[at * taps + t] = from_float<T>(sum);
  }
}

}  // namespace

void multiply_weight_gradient(const Conv1dBackwardArgs& a, const void* grad_lines, const void* x_lines, float* sums,
                              cudaStream_t stream) {
  const Conv1dShape& s = a.shape;
  const WeightSlices slices(a);
  const int64_t grad_pitch = line_pitch(s.c_out);
  const WeightProduct p{
      .grad = {.data = grad_lines, .ld = grad_pitch, .batch = s.positions() * grad_pitch, .order = Order::columns},
      .signals = x_lines,
      .sums = sums,
      .positions = s.positions(),
      .rows = s.c_out,
      .grad_pitch = grad_pitch,
      .pitch = slices.pitch,
      .depth = slices.depth,
      .length = static_cast<int>(s.length),
      .taps = s.taps,
      .before = s.before(),
      .by_length = FastDivide(s.length),
      .tiles_m = ceil_div(s.c_out, slices.tile),
      .tiles_n = ceil_div(s.c_in, slices.tile)};
  const dim3 grid(static_cast<unsigned>(slices.tiles), static_cast<unsigned>(slices.count));
  dispatch_float(a.dtype, [&]<class T>() {
    const auto multiply = [&]<class Tile>() {
      const LaunchConfig config{.grid = grid, .block = Share<Tile>::threads, .early = true};
      warpsmith::launch<&conv1d_backward_weight_kernel<T, Tile>>(config, stream, p);
    };
    slices.tile == 64 ? multiply.template operator()<WeightTile<T, 64>>()
                      : multiply.template operator()<WeightTile<T, 128>>();
    const LaunchConfig config{
        .grid = static_cast<unsigned>(ceil_div(s.c_out * s.c_in, kSumThreads)), .block = kSumThreads, .early = true};
    warpsmith::launch<&conv1d_backward_sum_slices_kernel<T>>(config, stream, static_cast<T*>(a.dweight),
                                                             static_cast<const float*>(sums), slices.count, s.c_out,
                                                             s.c_in, slices.pitch, s.taps);
  });
}

}  // namespace warpsmith
