// Softmax along a dimension that is not the last, in two sweeps down the columns.
//   Against `online_pack`: neighbouring threads own neighbouring columns, so accesses stay contiguous without a transposed
//   copy; a thread keeps the running maxima and sums of a pack of them. Columns of more than 4096 values are cut into
//   chunks for a block each: one kernel leaves every chunk's maximum and sum in the workspace, one joins them, one writes
//   the results. Bound: x is read twice, the second time from L2 where it still lies there.
// Workspace: a MaxSum for every chunk of every row, where there is more than one chunk.
#include "softmax/columns.cuh"
#include "softmax/softmax/result.cuh"

namespace warpsmith {
namespace {

constexpr int kRowsInFlight = 4;
constexpr int kMinThreads = 512;  // that the registers must allow a multiprocessor to hold

template <class T>
struct Columns {
  const T* x;      // [outer, cols, inner], strides x_stride, col_stride, 1
  T* y;            // [outer, cols, inner], contiguous
  MaxSum* chunks;  // [chunks, outer * inner]
  int64_t rows, cols, inner, x_stride, col_stride;
  ColumnLanes lanes;

  Columns(const SoftmaxArgs& a, int width)
      : x(static_cast<const T*>(a.x)),
        y(static_cast<T*>(a.y)),
        chunks(static_cast<MaxSum*>(a.workspace)),
        rows(a.rows),
        cols(a.cols),
        inner(a.inner),
        x_stride(a.x_stride),
        col_stride(a.col_stride),
        lanes(a.rows, a.inner, width) {}
};

// Maximum and sum of this thread's share of the columns [first, end).
template <class Tile, int width, class T>
__device__ __forceinline__ void sweep(MaxSum (&seen)[width], const Columns<T>& v, const ColumnPlace& at, int64_t first,
                                      int64_t end) {
  const T* x = v.x + at.outer * v.x_stride + at.inner;  // [cols] of `width` neighbours
#pragma unroll
  for (int j = 0; j < width; ++j) seen[j] = MaxSum::empty();
  if (!at.valid) return;
  for (int64_t col = first + threadIdx.x / Tile::lanes; col < end; col += kRowsInFlight * Tile::sharers) {
    Vec<T, width> loaded[kRowsInFlight];
#pragma unroll
    for (int i = 0; i < kRowsInFlight; ++i) {
      const int64_t row = col + i * Tile::sharers;
      if (row < end) load(loaded[i], x + row * v.col_stride);
    }
#pragma unroll
    for (int j = 0; j < width; ++j) {
      float values[kRowsInFlight];
#pragma unroll
      for (int i = 0; i < kRowsInFlight; ++i) {
        values[i] = col + i * Tile::sharers < end ? to_float(loaded[i][j]) : -INFINITY;
      }
      seen[j] = include<T>(seen[j], values);
    }
  }
}

template <class Result, class Tile, int width, class T>
__device__ __forceinline__ void write(const MaxSum (&whole)[width], const Columns<T>& v, const ColumnPlace& at,
                                      int64_t first, int64_t end) {
  if (!at.valid) return;
  const T* x = v.x + at.outer * v.x_stride + at.inner;
  T* y = v.y + at.outer * v.cols * v.inner + at.inner;
  Result result[width];
#pragma unroll
  for (int j = 0; j < width; ++j) result[j] = Result(whole[j].max, whole[j].sum);
  for (int64_t col = first + threadIdx.x / Tile::lanes; col < end; col += kRowsInFlight * Tile::sharers) {
    Vec<T, width> loaded[kRowsInFlight];
#pragma unroll
    for (int i = 0; i < kRowsInFlight; ++i) {
      const int64_t row = col + i * Tile::sharers;
      if (row < end) load(loaded[i], x + row * v.col_stride);
    }
#pragma unroll
    for (int i = 0; i < kRowsInFlight; ++i) {
      const int64_t row = col + i * Tile::sharers;
      if (row >= end) break;
      float values[width];
      to_float(values, loaded[i]);
#pragma unroll
      for (int j = 0; j < width; ++j) values[j] = result[j](values[j]);
      from_float(loaded[i], values);
      store<Cache::streaming>(y + row * v.inner, loaded[i]);
    }
  }
}

template <class T, class Result, class Tile, int width>
__global__ void __launch_bounds__(Tile::threads, kMinThreads / Tile::threads)
    softmax_columns_kernel(const Columns<T> v) {
  __shared__ ColumnStorage<Tile, width, MaxSum> shared;
  const ColumnPlace at = v.lanes.template place<Tile, width>();
  MaxSum whole[width];
  sweep<Tile>(whole, v, at, 0, v.cols);
  join_sharers<JoinMaxSum<T>, Tile>(whole, shared);
  write<Result, Tile>(whole, v, at, 0, v.cols);
}

// --- columns in chunks -----------------------------------------------------------------------------------------------

template <class T, class Tile, int width>
__global__ void __launch_bounds__(Tile::threads, kMinThreads / Tile::threads)
    softmax_columns_chunk_kernel(const Columns<T> v, int64_t chunk) {
  __shared__ ColumnStorage<Tile, width, MaxSum> shared;
  const ColumnPlace at = v.lanes.template place<Tile, width>();
  const int64_t first = blockIdx.y * chunk;
  MaxSum part[width];
  sweep<Tile>(part, v, at, first, min(first + chunk, v.cols));
  join_sharers<JoinMaxSum<T>, Tile>(part, shared);
  if (!at.valid || threadIdx.x >= Tile::lanes) return;
  MaxSum* to = v.chunks + blockIdx.y * v.rows + at.outer * v.inner + at.inner;
#pragma unroll
  for (int j = 0; j < width; ++j) to[j] = part[j];
}

template <class T, class Result, class Tile, int width>
__global__ void __launch_bounds__(Tile::threads, kMinThreads / Tile::threads)
    softmax_columns_result_kernel(const Columns<T> v, int64_t chunk) {
  const ColumnPlace at = v.lanes.template place<Tile, width>();
  const int64_t first = blockIdx.y * chunk;
  MaxSum whole[width];
#pragma unroll
  for (int j = 0; j < width; ++j) {
    whole[j] = at.valid ? v.chunks[at.outer * v.inner + at.inner + j] : MaxSum::empty();
  }
  write<Result, Tile>(whole, v, at, first, min(first + chunk, v.cols));
}

// --- launch ----------------------------------------------------------------------------------------------------------

template <class T, class Result, int width>
void launch_width(const SoftmaxArgs& a, cudaStream_t stream) {
  const Columns<T> v(a, width);
  visit_column_tile<(width > 1)>(a.cols, [&]<class Tile>() {
    const int64_t chunk = chunk_of(a.cols), chunks = chunks_of(a.cols);
    const unsigned blocks = v.lanes.template blocks<Tile>();
    if (chunks == 1) {
      warpsmith::launch<&softmax_columns_kernel<T, Result, Tile, width>>({blocks, Tile::threads}, stream, v);
    } else if constexpr (Tile::sharers == kMostSharers) {
      const LaunchConfig config{.grid = dim3(blocks, static_cast<unsigned>(chunks)), .block = Tile::threads};
      warpsmith::launch<&softmax_columns_chunk_kernel<T, Tile, width>>(config, stream, v, chunk);
      join_chunks<JoinMaxSum<T>>(v.chunks, a.rows, chunks, stream);
      warpsmith::launch<&softmax_columns_result_kernel<T, Result, Tile, width>>(config, stream, v, chunk);
    }
  });
}

const char* takes(const SoftmaxArgs& a) {
  return a.inner > 1 ? nullptr : "works along another dimension than the last";
}

void launch(const SoftmaxArgs& a, cudaStream_t stream) {
  const int width = 16 / size_of(a.dtype);
  const bool packs =
      tiles_rows(a.x, a.rows / a.inner, a.inner, a.x_stride, a.dtype, width) && a.col_stride % width == 0;
  visit_results(a, [&]<class T, class Result>() {
    packs ? launch_width<T, Result, kPack<T>>(a, stream) : launch_width<T, Result, 1>(a, stream);
  });
}

const Register<SoftmaxArgs> registered{"columns", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
