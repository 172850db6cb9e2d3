// Reduction of short rows, a warp or a part of one per row.
//   Against `pack`: no shared memory and no barrier, and short rows share a warp, so that its loads are all in flight
//   at once and no lane is idle. A variance takes two passes over the row in registers: two sums cross the warp instead
//   of moments that have to be joined. Bound: DRAM; long rows leave too few warps with too long a chain of loads each.
#include "reduce/reduce_dim/registers.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 128;
constexpr int kChain = 64;  // packs that a lane takes one after another; a longer chain of additions loses digits

// Lanes that share a row, each with four packs of it where the row has them.
int lanes_for(int64_t packs) {
  if (packs <= 2) return static_cast<int>(packs);
  int lanes = 4;
  while (lanes < kWarp && lanes * 4 < packs) lanes *= 2;
  return lanes;
}

// Packs of a lane on their way at once. Of 16-bit values four are enough work to search.
template <class R, class T>
constexpr int kUnroll = R::finds_position && sizeof(T) == 2 ? 4 : 8;

template <class T>
constexpr int64_t kSpan = int64_t{kChain} * kWarp * kPack<T>;

// Long: std::true_type where rows are longer than a span.
template <class R, class T, class Aligned, class Long>
__global__ void __launch_bounds__(kThreads) reduce_dim_warp_kernel(const ReduceDimArgs a, const int lanes) {
  start_early();
  const int lane = threadIdx.x % lanes, rows_per_block = kThreads / lanes;
  for (int64_t first = int64_t{blockIdx.x} * rows_per_block; first < a.outer;
       first += int64_t{gridDim.x} * rows_per_block) {
    const int64_t row = first + threadIdx.x / lanes;
    const int64_t n = row < a.outer ? a.n : 0;  // lanes without a row take part in the shuffles
    const T* x = static_cast<const T*>(a.x) + (row < a.outer ? row : 0) * a.stride_outer;  // [n]

    // take
    typename R::State state = start<R>(x);
    if constexpr (Long::value) {
      for (int64_t begin = 0; begin < n; begin += kSpan<T>) {
        typename R::State part = start<R>(x);
        take_span<R, Aligned, kUnroll<R, T>>(part, x, begin, min(n, begin + kSpan<T>), lane, lanes);
        state = R::merge(state, part);
      }
    } else {
      take_span<R, Aligned, kUnroll<R, T>>(state, x, 0, n, lane, lanes);
    }

    // merge
    state = merge_spans<R>(state, lanes);
    if (lane == 0 && row < a.outer) write<R, T>(a, row, state);
  }
}

// The same in two passes, for rows of at most `packs` packs a lane.
template <class R, class T, class Aligned, int packs>
__global__ void __launch_bounds__(kThreads) reduce_dim_warp_registers_kernel(const ReduceDimArgs a, const int lanes) {
  start_early();
  const int lane = threadIdx.x % lanes, rows_per_block = kThreads / lanes;
  const auto sum_up = [&](float x) { return merge_lanes(x, lanes, [](float a, float b) { return a + b; }); };
  for (int64_t first = int64_t{blockIdx.x} * rows_per_block; first < a.outer;
       first += int64_t{gridDim.x} * rows_per_block) {
    const int64_t row = first + threadIdx.x / lanes;
    const int n = row < a.outer ? static_cast<int>(a.n) : 0;  // lanes without a row take part in the shuffles
    const T* x = static_cast<const T*>(a.x) + (row < a.outer ? row : 0) * a.stride_outer;  // [n]
    const float m2 = squared_deviations<packs, Aligned>(x, n, lane, lanes, sum_up);
    if (lane == 0 && row < a.outer) static_cast<T*>(a.y)[row] = from_float<T>(m2 / a.divisor);
  }
}

void launch(const ReduceDimArgs& a, cudaStream_t stream) {
  visit_aligned_reducer(a, has_aligned_rows(a), [&]<class R, class T, class Aligned>() {
    const int64_t packs = ceil_div(a.n, kPack<T>);
    const int lanes = lanes_for(packs);
    const unsigned grid = row_grid(ceil_div(a.outer, kThreads / lanes));
    const LaunchConfig config{.grid = grid, .block = kThreads, .early = true};
    if constexpr (R::deviates) {
      const auto held = [&]<int count>() {
        warpsmith::launch<&reduce_dim_warp_registers_kernel<R, T, Aligned, count>>(config, stream, a, lanes);
      };
      if (visit_held_packs(packs, lanes, held)) return;
    }
    if (a.n > kSpan<T>) {
      warpsmith::launch<&reduce_dim_warp_kernel<R, T, Aligned, std::true_type>>(config, stream, a, lanes);
    } else {
      warpsmith::launch<&reduce_dim_warp_kernel<R, T, Aligned, std::false_type>>(config, stream, a, lanes);
    }
  });
}

bool suits(const ReduceDimArgs& a) { return a.row_bytes() <= kWarpRowBytes; }

const Register<ReduceDimArgs> registered{"warp", /*min_sm=*/80, needs_short_rows, launch, suits};

}  // namespace
}  // namespace warpsmith
