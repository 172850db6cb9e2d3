// Softmax along a dimension that is not the last, in one sweep down the columns.
//   Against `columns`: a strip of columns stays in shared memory, that of long columns in the shared memory of a cluster,
//   so that x is read once. Columns that do not start where packs do take the same way, value by value: the bits of a
//   column depend on its length alone. Bound: DRAM.
#include "softmax/softmax/result.cuh"
#include "softmax/strip.cuh"

namespace warpsmith {
namespace {

[[maybe_unused]] constexpr int kTogether = 4;  // values of a column that enter the maximum and sum at once

template <class T>
struct Strips {
  const T* x;  // [outer, cols, inner], strides x_stride, col_stride, 1
  T* y;        // [outer, cols, inner], contiguous
  int64_t cols, inner, x_stride, col_stride;
  ColumnLanes lanes;
  int cluster;
  bool beyond_l2;  // x alone would fill L2

  explicit Strips(const SoftmaxArgs& a)
      : x(static_cast<const T*>(a.x)),
        y(static_cast<T*>(a.y)),
        cols(a.cols),
        inner(a.inner),
        x_stride(a.x_stride),
        col_stride(a.col_stride),
        lanes(a.rows, a.inner, kPack<T>),
        cluster(strip_cluster(a.cols, 1)),
        beyond_l2(a.rows * a.cols * size_of(a.dtype) >= kL2Bytes) {}
};

template <class T, class Result, class Tile, class Aligned>
__global__ void __launch_bounds__(Tile::threads, kStripBlocks)
    softmax_columns_cluster_kernel([[maybe_unused]] const Strips<T> v) {
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  constexpr int kWidth = kPack<T>;
  extern __shared__ uint4 strip[];  // [cols of this block, lanes]
  __shared__ StripStorage<Tile, kWidth, MaxSum> shared;
  if (v.cluster > 1) cluster_arrive_relaxed();
  const int rank = v.cluster > 1 ? cluster_rank() : 0;
  const ColumnPlace at = v.lanes.template place<Tile, kWidth>(blockIdx.x / v.cluster);
  const StripShare share(v.cols, rank, v.cluster);
  const int rows = at.valid ? static_cast<int>(share.end - share.begin) : 0, first = threadIdx.x / Tile::lanes;
  const int columns = static_cast<int>(min(v.inner - at.inner, int64_t{kWidth}));
  const int64_t y_first = (at.outer * v.cols + share.begin) * v.inner + at.inner;
  auto* slots = reinterpret_cast<Pack<T>*>(strip) + threadIdx.x % Tile::lanes;  // of this lane, Tile::lanes apart

  // load
  const T* x = v.x + at.outer * v.x_stride + share.begin * v.col_stride + at.inner;
  const uint64_t policy = strip_policy(v.beyond_l2);
  for (int row = first; row < rows; row += Tile::sharers) {
    fetch_pack<Aligned>(slots + row * Tile::lanes, x + row * v.col_stride, columns, policy);
  }
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();

  // reduce
  MaxSum whole[kWidth];
#pragma unroll
  for (int j = 0; j < kWidth; ++j) whole[j] = MaxSum::empty();
  for (int row = first; row < rows; row += kTogether * Tile::sharers) {
    Pack<T> packs[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (row + i * Tile::sharers < rows) packs[i] = slots[(row + i * Tile::sharers) * Tile::lanes];
    }
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      float values[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        values[i] = row + i * Tile::sharers < rows ? to_float(packs[i][j]) : -INFINITY;
      }
      whole[j] = include<T>(whole[j], values);
    }
  }
  join_strip<T, JoinMaxSum<T>, Tile>(whole, shared, v.cluster);

  // write
  Result result[kWidth];
#pragma unroll
  for (int j = 0; j < kWidth; ++j) result[j] = Result(whole[j].max, whole[j].sum);
#pragma unroll 2
  for (int row = first; row < rows; row += Tile::sharers) {
    Pack<T> pack = slots[row * Tile::lanes];
    float values[kWidth];
    to_float(values, pack);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) values[j] = result[j](values[j]);
    from_float(pack, values);
    write_pack<Aligned>(v.y + y_first + row * v.inner, pack, columns);
  }
#endif
}

const char* takes(const SoftmaxArgs& a) {
  if (a.inner == 1) return "works along another dimension than the last";
  return strip_holds(a.cols, 1) ? nullptr : "needs at most 8192 columns";
}

bool suits(const SoftmaxArgs& a) { return suits_strip(a.cols); }

void launch(const SoftmaxArgs& a, cudaStream_t stream) {
  const int width = 16 / size_of(a.dtype);
  const bool aligned =
      tiles_rows(a.x, a.rows / a.inner, a.inner, a.x_stride, a.dtype, width) && a.col_stride % width == 0;
  visit_results(a, [&]<class T, class Result>() {
    const Strips<T> v(a);
    visit_strip_tile(a.cols, 1, [&]<class Tile>() {
      const int64_t rows = ceil_div(a.cols, v.cluster);
      const LaunchConfig config{.grid = dim3(v.lanes.template blocks<Tile>() * static_cast<unsigned>(v.cluster)),
                                .block = Tile::threads,
                                .dynamic_smem = static_cast<int>(rows * Tile::lanes * 16),
                                .cluster = v.cluster};
      if (aligned) {
        warpsmith::launch<&softmax_columns_cluster_kernel<T, Result, Tile, std::true_type>>(config, stream, v);
      } else {
        warpsmith::launch<&softmax_columns_cluster_kernel<T, Result, Tile, std::false_type>>(config, stream, v);
      }
    });
  });
}

const Register<SoftmaxArgs> registered{"columns_cluster", /*min_sm=*/90, takes, launch, suits, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
