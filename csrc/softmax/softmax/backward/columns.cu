// Softmax backward along a dimension that is not the last, in two sweeps down the columns.
//   Against `pack`: neighbouring threads own neighbouring columns, so accesses stay contiguous without transposed copies; a
//   thread keeps the sums of a pack of them. Columns of more than 4096 values are cut into chunks for a block each: one
//   kernel leaves every chunk's sum in the workspace, one joins them, one writes the gradient. Bound: both inputs are read
//   twice, the second time from L2 where they still lie there.
// Workspace: a float for every chunk of every row, where there is more than one chunk.
#include "softmax/columns.cuh"
#include "softmax/softmax/backward/gradient.cuh"

namespace warpsmith {
namespace {

constexpr int kRowsInFlight = 2;  // of each input
constexpr int kMinThreads = 512;  // that the registers must allow a multiprocessor to hold

template <class T>
struct Columns {
  const T* grad;  // [outer, cols, inner], strides grad_stride, grad_columns, 1
  const T* y;     // [outer, cols, inner], strides y_stride, y_columns, 1
  T* dx;          // [outer, cols, inner], contiguous
  float* chunks;  // [chunks, outer * inner]
  int64_t rows, cols, inner, grad_stride, y_stride, grad_columns, y_columns;
  ColumnLanes lanes;

  Columns(const SoftmaxBackwardArgs& a, int width)
      : grad(static_cast<const T*>(a.grad)),
        y(static_cast<const T*>(a.y)),
        dx(static_cast<T*>(a.dx)),
        chunks(static_cast<float*>(a.workspace)),
        rows(a.rows),
        cols(a.cols),
        inner(a.inner),
        grad_stride(a.grad_stride),
        y_stride(a.y_stride),
        grad_columns(a.grad_columns),
        y_columns(a.y_columns),
        lanes(a.rows, a.inner, width) {}
};

// Calls body(row, grad, y) for this thread's share of the rows [first, end), whose loads go out together.
template <class Tile, int width, class T, class Body>
__device__ __forceinline__ void walk(const Columns<T>& v, const ColumnPlace& at, int64_t first, int64_t end,
                                     Body&& body) {
  if (!at.valid) return;
  const T* grad = v.grad + at.outer * v.grad_stride + at.inner;  // [cols] of `width` neighbours
  const T* y = v.y + at.outer * v.y_stride + at.inner;           // [cols] of `width` neighbours
  for (int64_t col = first + threadIdx.x / Tile::lanes; col < end; col += kRowsInFlight * Tile::sharers) {
    Vec<T, width> grads[kRowsInFlight], values[kRowsInFlight];
#pragma unroll
    for (int i = 0; i < kRowsInFlight; ++i) {
      const int64_t row = col + i * Tile::sharers;
      if (row < end) load(grads[i], grad + row * v.grad_columns), load(values[i], y + row * v.y_columns);
    }
#pragma unroll
    for (int i = 0; i < kRowsInFlight; ++i) {
      const int64_t row = col + i * Tile::sharers;
      if (row < end) body(row, grads[i], values[i]);
    }
  }
}

template <class Gradient, class Tile, int width, class T>
__device__ __forceinline__ void sweep(float (&sum)[width], const Columns<T>& v, const ColumnPlace& at, int64_t first,
                                      int64_t end) {
#pragma unroll
  for (int j = 0; j < width; ++j) sum[j] = 0.0f;
  walk<Tile, width>(v, at, first, end, [&](int64_t, const Vec<T, width>& grad, const Vec<T, width>& y) {
    float grads[width], values[width];
    to_float(grads, grad);
    to_float(values, y);
#pragma unroll
    for (int j = 0; j < width; ++j) sum[j] = Gradient::add(sum[j], grads[j], values[j]);
  });
}

template <class Gradient, class Tile, int width, class T>
__device__ __forceinline__ void write(const float (&sum)[width], const Columns<T>& v, const ColumnPlace& at,
                                      int64_t first, int64_t end) {
  T* dx = v.dx + at.outer * v.cols * v.inner + at.inner;
  walk<Tile, width>(v, at, first, end, [&](int64_t row, const Vec<T, width>& grad, const Vec<T, width>& y) {
    float grads[width], values[width];
    to_float(grads, grad);
    to_float(values, y);
#pragma unroll
    for (int j = 0; j < width; ++j) values[j] = Gradient::finish(grads[j], values[j], sum[j]);
    Vec<T, width> pack;
    from_float(pack, values);
    store<Cache::streaming>(dx + row * v.inner, pack);
  });
}

template <class T, class Gradient, class Tile, int width>
__global__ void __launch_bounds__(Tile::threads, kMinThreads / Tile::threads)
    softmax_backward_columns_kernel(const Columns<T> v) {
  __shared__ ColumnStorage<Tile, width, float> shared;
  const ColumnPlace at = v.lanes.template place<Tile, width>();
  float sum[width];
  sweep<Gradient, Tile>(sum, v, at, 0, v.cols);
  join_sharers<JoinSum, Tile>(sum, shared);
  write<Gradient, Tile>(sum, v, at, 0, v.cols);
}

// --- columns in chunks -----------------------------------------------------------------------------------------------

template <class T, class Gradient, class Tile, int width>
__global__ void __launch_bounds__(Tile::threads, kMinThreads / Tile::threads)
    softmax_backward_columns_chunk_kernel(const Columns<T> v, int64_t chunk) {
  __shared__ ColumnStorage<Tile, width, float> shared;
  const ColumnPlace at = v.lanes.template place<Tile, width>();
  const int64_t first = blockIdx.y * chunk;
  float sum[width];
  sweep<Gradient, Tile>(sum, v, at, first, min(first + chunk, v.cols));
  join_sharers<JoinSum, Tile>(sum, shared);
  if (!at.valid || threadIdx.x >= Tile::lanes) return;
  float* to = v.chunks + blockIdx.y * v.rows + at.outer * v.inner + at.inner;
#pragma unroll
  for (int j = 0; j < width; ++j) to[j] = sum[j];
}

template <class T, class Gradient, class Tile, int width>
__global__ void __launch_bounds__(Tile::threads, kMinThreads / Tile::threads)
    softmax_backward_columns_gradient_kernel(const Columns<T> v, int64_t chunk) {
  const ColumnPlace at = v.lanes.template place<Tile, width>();
  const int64_t first = blockIdx.y * chunk;
  float sum[width];
#pragma unroll
  for (int j = 0; j < width; ++j) sum[j] = at.valid ? v.chunks[at.outer * v.inner + at.inner + j] : 0.0f;
  write<Gradient, Tile>(sum, v, at, first, min(first + chunk, v.cols));
}

// --- launch ----------------------------------------------------------------------------------------------------------

template <class T, class Gradient, int width>
void launch_width(const SoftmaxBackwardArgs& a, cudaStream_t stream) {
  const Columns<T> v(a, width);
  visit_column_tile<(width > 1)>(a.cols, [&]<class Tile>() {
    const int64_t chunk = chunk_of(a.cols), chunks = chunks_of(a.cols);
    const unsigned blocks = v.lanes.template blocks<Tile>();
    if (chunks == 1) {
      warpsmith::launch<&softmax_backward_columns_kernel<T, Gradient, Tile, width>>({blocks, Tile::threads}, stream, v);
    } else if constexpr (Tile::sharers == kMostSharers) {
      const LaunchConfig config{.grid = dim3(blocks, static_cast<unsigned>(chunks)), .block = Tile::threads};
      warpsmith::launch<&softmax_backward_columns_chunk_kernel<T, Gradient, Tile, width>>(config, stream, v, chunk);
      join_chunks<JoinSum>(v.chunks, a.rows, chunks, stream);
      warpsmith::launch<&softmax_backward_columns_gradient_kernel<T, Gradient, Tile, width>>(config, stream, v, chunk);
    }
  });
}

const char* takes(const SoftmaxBackwardArgs& a) {
  return a.inner > 1 ? nullptr : "works along another dimension than the last";
}

void launch(const SoftmaxBackwardArgs& a, cudaStream_t stream) {
  const int width = 16 / size_of(a.dtype);
  const int64_t outer = a.rows / a.inner;
  const bool packs = a.grad_columns % width == 0 && a.y_columns % width == 0 &&
                     tiles_rows(a.grad, outer, a.inner, a.grad_stride, a.dtype, width) &&
                     tiles_rows(a.y, outer, a.inner, a.y_stride, a.dtype, width);
  visit_gradients(a, [&]<class T, class Gradient>() {
    packs ? launch_width<T, Gradient, kPack<T>>(a, stream) : launch_width<T, Gradient, 1>(a, stream);
  });
}

const Register<SoftmaxBackwardArgs> registered{"columns", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
