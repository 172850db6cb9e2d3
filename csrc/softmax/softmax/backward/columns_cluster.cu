// Softmax backward along a dimension that is not the last, in one sweep down the columns.
//   Against `columns`: a strip of columns of both inputs stays in shared memory, that of long columns in the shared memory
//   of a cluster, so that both are read once. Columns that do not start where packs do take the same way, value by value:
//   the bits of a column depend on its length alone. Bound: DRAM.
#include "softmax/softmax/backward/gradient.cuh"
#include "softmax/strip.cuh"

namespace warpsmith {
namespace {

constexpr int kInputs = 2;

template <class T>
struct Strips {
  const T* grad;  // [outer, cols, inner], strides grad_stride, grad_columns, 1
  const T* y;     // [outer, cols, inner], strides y_stride, y_columns, 1
  T* dx;          // [outer, cols, inner], contiguous
  int64_t cols, inner, grad_stride, y_stride, grad_columns, y_columns;
  ColumnLanes lanes;
  int cluster;
  bool beyond_l2;  // one input alone would fill L2

  explicit Strips(const SoftmaxBackwardArgs& a)
      : grad(static_cast<const T*>(a.grad)),
        y(static_cast<const T*>(a.y)),
        dx(static_cast<T*>(a.dx)),
        cols(a.cols),
        inner(a.inner),
        grad_stride(a.grad_stride),
        y_stride(a.y_stride),
        grad_columns(a.grad_columns),
        y_columns(a.y_columns),
        lanes(a.rows, a.inner, kPack<T>),
        cluster(strip_cluster(a.cols, kInputs)),
        beyond_l2(a.rows * a.cols * size_of(a.dtype) >= kL2Bytes) {}
};

template <class T, class Gradient, class Tile, class Aligned>
__global__ void __launch_bounds__(Tile::threads, kStripBlocks)
    softmax_backward_columns_cluster_kernel([[maybe_unused]] const Strips<T> v) {
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  constexpr int kWidth = kPack<T>;
  extern __shared__ uint4 strip[];  // [cols of this block, grad and y, lanes]
  __shared__ StripStorage<Tile, kWidth, float> shared;
  if (v.cluster > 1) cluster_arrive_relaxed();
  const int rank = v.cluster > 1 ? cluster_rank() : 0;
  const ColumnPlace at = v.lanes.template place<Tile, kWidth>(blockIdx.x / v.cluster);
  const StripShare share(v.cols, rank, v.cluster);
  const int rows = at.valid ? static_cast<int>(share.end - share.begin) : 0, first = threadIdx.x / Tile::lanes;
  const int columns = static_cast<int>(min(v.inner - at.inner, int64_t{kWidth}));
  const auto slot = [&](int row, int input) {
    return reinterpret_cast<Pack<T>*>(strip) + (row * kInputs + input) * Tile::lanes + threadIdx.x % Tile::lanes;
  };

  // load
  const T* grad = v.grad + at.outer * v.grad_stride + share.begin * v.grad_columns + at.inner;
  const T* y = v.y + at.outer * v.y_stride + share.begin * v.y_columns + at.inner;
  const uint64_t policy = strip_policy(v.beyond_l2);
  for (int row = first; row < rows; row += Tile::sharers) {
    fetch_pack<Aligned>(slot(row, 0), grad + row * v.grad_columns, columns, policy);
    fetch_pack<Aligned>(slot(row, 1), y + row * v.y_columns, columns, policy);
  }
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();

  // reduce
  const auto values = [&](float (&grads)[kWidth], float (&outputs)[kWidth], int row) {
    to_float(grads, *slot(row, 0));
    to_float(outputs, *slot(row, 1));
  };
  float sum[kWidth];
#pragma unroll
  for (int j = 0; j < kWidth; ++j) sum[j] = 0.0f;
#pragma unroll 2
  for (int row = first; row < rows; row += Tile::sharers) {
    float grads[kWidth], outputs[kWidth];
    values(grads, outputs, row);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) sum[j] = Gradient::add(sum[j], grads[j], outputs[j]);
  }
  join_strip<T, JoinSum, Tile>(sum, shared, v.cluster);

  // write
  T* dx = v.dx + (at.outer * v.cols + share.begin) * v.inner + at.inner;
#pragma unroll 2
  for (int row = first; row < rows; row += Tile::sharers) {
    float grads[kWidth], outputs[kWidth];
    values(grads, outputs, row);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) outputs[j] = Gradient::finish(grads[j], outputs[j], sum[j]);
    Pack<T> pack;
    from_float(pack, outputs);
    write_pack<Aligned>(dx + row * v.inner, pack, columns);
  }
#endif
}

const char* takes(const SoftmaxBackwardArgs& a) {
  if (a.inner == 1) return "works along another dimension than the last";
  return strip_holds(a.cols, kInputs) ? nullptr : "needs at most 4096 columns";
}

bool suits(const SoftmaxBackwardArgs& a) { return suits_strip(a.cols); }

void launch(const SoftmaxBackwardArgs& a, cudaStream_t stream) {
  const int width = 16 / size_of(a.dtype);
  const int64_t outer = a.rows / a.inner;
  const bool aligned = a.grad_columns % width == 0 && a.y_columns % width == 0 &&
                       tiles_rows(a.grad, outer, a.inner, a.grad_stride, a.dtype, width) &&
                       tiles_rows(a.y, outer, a.inner, a.y_stride, a.dtype, width);
  visit_gradients(a, [&]<class T, class Gradient>() {
    const Strips<T> v(a);
    visit_strip_tile(a.cols, kInputs, [&]<class Tile>() {
      const int64_t rows = ceil_div(a.cols, v.cluster);
      const LaunchConfig config{.grid = dim3(v.lanes.template blocks<Tile>() * static_cast<unsigned>(v.cluster)),
                                .block = Tile::threads,
                                .dynamic_smem = static_cast<int>(rows * kInputs * Tile::lanes * 16),
                                .cluster = v.cluster};
      if (aligned) {
        warpsmith::launch<&softmax_backward_columns_cluster_kernel<T, Gradient, Tile, std::true_type>>(config, stream,
                                                                                                       v);
      } else {
        warpsmith::launch<&softmax_backward_columns_cluster_kernel<T, Gradient, Tile, std::false_type>>(config, stream,
                                                                                                        v);
      }
    });
  });
}

const Register<SoftmaxBackwardArgs> registered{"columns_cluster", /*min_sm=*/90, takes, launch, suits,
                                               /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
