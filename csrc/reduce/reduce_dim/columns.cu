// Reduction of columns: the kept dimensions have unit stride, the reduced one does not.
//   Against `shuffle`, whose lanes lie along the reduced dimension: lanes lie along the kept ones, a pack of columns
//   each, so that a warp reads 512 neighbouring bytes; the rest of the block shares the columns, and so do more blocks
//   where there are few columns. A second kernel, which starts while the first ends, then joins the states in a fixed
//   order; of a position they know the group of rows, and it is looked up for the result alone. Blocks take their places while
//   the kernel before ends. Bound: DRAM.
#include "reduce/reduce_dim/partial.cuh"

namespace warpsmith {
namespace {

constexpr int kJoinedOutputs = 8;  // of a block of the second kernel: few, since there may be many splits to an output

// A pack of columns. Where packs are not aligned, the last of a row may hold fewer: what lies beyond repeats the last
// one.
template <class Aligned, class T>
__device__ __forceinline__ void load_columns(Pack<T>& to, const T* from, int columns) {
  if constexpr (Aligned::value) {
    load<Cache::streaming>(to, from);
  } else {
#pragma unroll
    for (int k = 0; k < kPack<T>; ++k) to[k] = from[min(k, columns - 1)];
  }
}

// Rows [begin, end) of a pack of columns, by groups of neighbouring rows: of two threads' groups the earlier one holds the
// earlier values. x: [n, columns], rows `stride` apart.
template <class R, class Aligned, class T>
__device__ __forceinline__ void search_columns(typename R::State (&state)[kPack<T>], const T* x, int64_t stride,
                                               int64_t begin, int64_t end, int columns) {
  constexpr int kWidth = kPack<T>, kUnroll = kColumnUnroll;
  const int64_t first = begin + threadIdx.y * kUnroll;
  if (first >= end) return;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) state[k].at = static_cast<uint32_t>(first);
  Pack<T> packs[kUnroll];
  const int step = kUnroll * blockDim.y;
  const T* from = x + first * stride;
  for (int64_t j = first; j < end; j += step, from += step * stride) {
    if (end - j >= kUnroll) {
      const T* row = from;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u, row += stride) load_columns<Aligned>(packs[u], row, columns);
    } else {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        packs[u] = nothing<typename R::Order, T>();
        if (u < end - j) load_columns<Aligned>(packs[u], from + u * stride, columns);
      }
    }
    const Pack<T> best = extremes_of<typename R::Order, T, kUnroll>(packs);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) R::weigh(state[k], to_float(best[k]), static_cast<uint32_t>(j));
  }
}

// The same of 16-bit values of which sums and squares are wanted: up to 64 rows at a time around the first of them, an
// addition and a multiplication for each value; what that costs an f32 its rounding to 16 bits hides.
// state_of(k): the state of the thread's k-th column, kept where it takes no registers meanwhile.
template <class R, class Aligned, class T, class StateOf>
__device__ __forceinline__ void sum_columns(StateOf state_of, const T* x, int64_t stride, int64_t begin, int64_t end,
                                            int columns) {
  constexpr int kWidth = kPack<T>, kUnroll = kColumnUnroll, kGroups = 8;
  const int step = blockDim.y;
  Pack<T> packs[kUnroll];
  for (int64_t j = begin + threadIdx.y; j < end;) {
    float pivot[kWidth], sums[kWidth]{}, squares[kWidth]{};
    const auto add = [&](const Pack<T>& pack) {
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        const float deviation = to_float(pack[k]) - pivot[k];
        sums[k] += deviation;
        squares[k] = fmaf(deviation, deviation, squares[k]);
      }
    };
    int count = 0;
    for (int group = 0; group < kGroups && j < end; ++group, j += kUnroll * step) {
      const T* from = x + j * stride;
      const int rows = static_cast<int>(min(end - j, int64_t{kUnroll} * step));  // from here to the end of the chunk
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (u * step < rows) load_columns<Aligned>(packs[u], from + u * (step * stride), columns);
      }
      if (group == 0) to_float(pivot, packs[0]);
      if ((kUnroll - 1) * step < rows) {
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) add(packs[u]);
        count += kUnroll;
      } else {
#pragma unroll
        for (int u = 0; u < kUnroll - 1; ++u) {
          if (u * step < rows) {
            add(packs[u]);
            ++count;
          }
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kWidth; ++k)
      R::take_sums(state_of(k), pivot[k], static_cast<float>(count), sums[k], squares[k]);
  }
}

// How states of a block lie in shared memory while they wait to be joined: those of one place in the packs contiguous,
// and the next place so far behind that neither the threads that write packs nor those that read columns meet in a bank.
template <int width>
struct StateTile {
  static constexpr int size = kReduceThreads / kColumnThreads * width * (kColumnThreads + kWarp / width);
  static_assert(size >= kReduceThreads * width, "narrow blocks fit too");
  int stride = blockDim.x == kColumnThreads ? kColumnThreads + kWarp / width : blockDim.x;

  __device__ __forceinline__ int at(int y, int x, int k) const { return (y * width + k) * stride + x; }
};

// Blocks per multiprocessor that the registers must allow: a thread holds the states of a pack of columns.
template <class R, class T, class Aligned>
constexpr int blocks_per_sm() {
  constexpr bool kLarge = sizeof(typename R::State) > 8;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  constexpr int kOfSmall = 3;
#else
  constexpr int kOfSmall = sizeof(T) == 2 && !R::finds_position ? 4 : 3;
#endif
  return Aligned::value ? (kLarge ? 2 : kOfSmall) : (kLarge ? 1 : 2);
}

template <class R, class T, class Aligned>
__global__ void __launch_bounds__(kReduceThreads, blocks_per_sm<R, T, Aligned>())
    reduce_dim_columns_kernel(const ReduceDimArgs a, const int64_t blocks_per_row, const int64_t blocks) {
  constexpr int kWidth = kPack<T>, kUnroll = kColumnUnroll;
  using State = typename R::State;
  __shared__ State shared[StateTile<kWidth>::size];
  start_early();
  const int width = blockDim.x * kWidth, tid = threadIdx.y * blockDim.x + threadIdx.x;
  for (int64_t item = blockIdx.x; item < blocks * a.splits; item += gridDim.x) {
    const int64_t split = item / blocks, block = item - split * blocks;
    const int64_t o = block / blocks_per_row, first = (block - o * blocks_per_row) * width;
    const int64_t col = first + threadIdx.x * kWidth;
    const int columns = static_cast<int>(min(max(a.inner - col, int64_t{0}), int64_t{kWidth}));
    const T* x = static_cast<const T*>(a.x) + o * a.stride_outer + col;  // [n, columns], rows stride_n apart
    const int64_t end = columns == 0 ? 0 : min((split + 1) * a.chunk, a.n);

    // take
    const StateTile<kWidth> tile;
    const auto mine = [&](int k) -> State& { return shared[tile.at(threadIdx.y, threadIdx.x, k)]; };
    const auto nothing_of = [&](int k) { return columns == 0 ? R::empty(0.0f) : start<R>(x + min(k, columns - 1)); };
    if constexpr (R::deviates && sizeof(T) == 2) {
#pragma unroll
      for (int k = 0; k < kWidth; ++k) mine(k) = nothing_of(k);
      sum_columns<R, Aligned>(mine, x, a.stride_n, split * a.chunk, end, columns);
    } else {
      State state[kWidth];
#pragma unroll
      for (int k = 0; k < kWidth; ++k) state[k] = nothing_of(k);
      if constexpr (R::finds_position) {
        search_columns<R, Aligned>(state, x, a.stride_n, split * a.chunk, end, columns);
      } else {
        Pack<T> packs[kUnroll];
        const int step = blockDim.y;
        for (int64_t j = split * a.chunk + threadIdx.y; j < end; j += kUnroll * step) {
          const T* from = x + j * a.stride_n;
          const int rows =
              static_cast<int>(min(end - j, int64_t{kUnroll} * step));  // from here to the end of the chunk
#pragma unroll
          for (int u = 0; u < kUnroll; ++u) {
            if (u * step < rows) load_columns<Aligned>(packs[u], from + u * (step * a.stride_n), columns);
          }
          const uint32_t at = static_cast<uint32_t>(j);
          if ((kUnroll - 1) * step < rows) {
            float values[kWidth][kUnroll];
#pragma unroll
            for (int k = 0; k < kWidth; ++k) {
#pragma unroll
              for (int u = 0; u < kUnroll; ++u) values[k][u] = to_float(packs[u][k]);
            }
            R::template take_each<R>(state, values, at, step);
          } else {
#pragma unroll
            for (int u = 0; u < kUnroll - 1; ++u) {
              if (u * step < rows) {
#pragma unroll
                for (int k = 0; k < kWidth; ++k) take_one<R>(state[k], packs[u][k], at + u * step);
              }
            }
          }
        }
      }
#pragma unroll
      for (int k = 0; k < kWidth; ++k) mine(k) = state[k];
    }

    // merge
    __syncthreads();
    for (int c = tid; c < width && first + c < a.inner; c += kReduceThreads) {
      State joined = shared[tile.at(0, c / kWidth, c % kWidth)];
      for (int y = 1; y < blockDim.y; ++y) {
        joined = R::merge(joined, shared[tile.at(y, c / kWidth, c % kWidth)]);
      }
      const int64_t output = o * a.inner + first + c;
      if (a.splits == 1) {
        write_joined<R, T>(a, output, joined);
      } else {
        static_cast<State*>(a.partial)[split * a.outputs() + output] = joined;
      }
    }
    __syncthreads();  // the next columns overwrite shared
  }
}

void launch(const ReduceDimArgs& a, cudaStream_t stream) {
  visit_aligned_reducer(a, has_aligned_columns(a), [&]<class R, class T, class Aligned>() {
    const int along_x = threads_along_inner(a);
    const dim3 block(along_x, kReduceThreads / along_x);
    const int64_t blocks = column_blocks(a);
    warpsmith::launch<&reduce_dim_columns_kernel<R, T, Aligned>>(
        {.grid = row_grid(blocks * a.splits), .block = block, .early = true}, stream, a, blocks / a.outer, blocks);
    if (a.splits > 1) launch_partial(a, kJoinedOutputs, 1, a.outputs(), stream);
  });
}

const Register<ReduceDimArgs> registered{"columns", /*min_sm=*/80, needs_columns, launch};

}  // namespace
}  // namespace warpsmith
