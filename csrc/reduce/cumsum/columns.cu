// Cumulative sum of columns: neighbouring sequences, of which one value each is contiguous.
//   Against `naive`: a thread walks a pack of columns, eight rows of it on their way at once, and where there are few
//   columns, and not short ones, they are cut into chunks: the chunks' sums first, then what comes before each chunk,
//   then the chunks themselves. Bound: DRAM; a column that is cut is read twice. Short columns: the launch.
#include "reduce/cumsum/scan.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 128;
constexpr int kUnroll = 8;
constexpr int kBlocksPerSm = 4;  // that the registers must allow

// A pack of columns over a chunk of rows. Aligned: std::true_type where packs of x and y start at 16 bytes and are
// whole.
template <class T, class Aligned>
struct Columns {
  static constexpr int width = kPack<T>;
  using Sum = SumOf<T>;
  using Out = OutOf<T>;
  const T* x;  // the pack in the first row of the chunk, in scan order
  Out* y;
  int64_t x_step, y_step;  // from one row to the next, in scan order
  int64_t rows;            // of the chunk
  int64_t sums;            // where the chunk's sums are
  int columns;             // of the pack, fewer at the end of a row

  __device__ Columns(const CumsumArgs& a, const ColumnChunks& plan, int64_t index) {
    const int64_t pack = index % plan.packs, rest = index / plan.packs;
    const int64_t chunk = rest % plan.chunks, o = rest / plan.chunks;
    const int64_t col = pack * width, first = chunk * plan.chunk;
    const int64_t row = a.reverse ? a.n - 1 - first : first;
    x = static_cast<const T*>(a.x) + o * a.stride_outer + row * a.stride_n + col;
    y = static_cast<Out*>(a.y) + (o * a.n + row) * a.inner + col;
    x_step = a.reverse ? -a.stride_n : a.stride_n;
    y_step = a.reverse ? -a.inner : a.inner;
    rows = min(a.n - first, plan.chunk);
    sums = rest * a.inner + col;
    columns = static_cast<int>(min(a.inner - col, int64_t{width}));
  }

  // What lies beyond the end of a row repeats its last column.
  __device__ __forceinline__ void load(Pack<T>& to, int64_t j) const {
    const T* from = x + j * x_step;
    if constexpr (Aligned::value) {
      warpsmith::load<Cache::streaming>(to, from);
    } else {
#pragma unroll
      for (int k = 0; k < width; ++k) to[k] = from[min(k, columns - 1)];
    }
  }

  __device__ __forceinline__ void store(int64_t j, const Sum (&sum)[width]) const {
    Out* to = y + j * y_step;
    if constexpr (Aligned::value) {
      store_sums<T>(to, sum);
    } else {
#pragma unroll
      for (int k = 0; k < width; ++k) {
        if (k < columns) to[k] = narrow<T>(sum[k]);
      }
    }
  }

  // Adds the rows to `sum`, and calls `visit` after each.
  template <class Visit>
  __device__ __forceinline__ void walk(Sum (&sum)[width], Visit visit) const {
    const auto add = [&](const Pack<T>& pack, int64_t j) {
#pragma unroll
      for (int k = 0; k < width; ++k) sum[k] += widen(pack[k]);
      visit(j);
    };
    int64_t j = 0;
    for (; j + kUnroll <= rows; j += kUnroll) {
      Pack<T> packs[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) load(packs[u], j + u);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) add(packs[u], j + u);
    }
    for (; j < rows; ++j) {
      Pack<T> pack;
      load(pack, j);
      add(pack, j);
    }
  }
};

// [outer, chunks, inner]: the sum of every chunk.
template <class T, class Aligned>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    cumsum_columns_chunks_kernel(const CumsumArgs a, const ColumnChunks plan, const int64_t threads) {
  using Sum = SumOf<T>;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < threads; i += int64_t{gridDim.x} * kThreads) {
    const Columns<T, Aligned> part(a, plan, i);
    Sum sum[kPack<T>] = {};
    part.walk(sum, [](int64_t) {});
#pragma unroll
    for (int k = 0; k < kPack<T>; ++k) {
      if (k < part.columns) static_cast<Sum*>(a.workspace)[part.sums + k] = sum[k];
    }
  }
}

// From the sum of every chunk to the sum of those before it, in place.
template <class S>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    cumsum_columns_before_kernel(S* sums, const int64_t chunks, const int64_t inner, const int64_t columns) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < columns; i += int64_t{gridDim.x} * kThreads) {
    const int64_t o = i / inner;
    S* column = sums + o * chunks * inner + (i - o * inner);  // [chunks], inner apart
    S before = 0;
    for (int64_t c = 0; c < chunks; c += kUnroll) {
      S own[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) own[u] = c + u < chunks ? column[(c + u) * inner] : S{0};
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (c + u < chunks) column[(c + u) * inner] = before;
        before += own[u];
      }
    }
  }
}

template <class T, class Aligned>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    cumsum_columns_kernel(const CumsumArgs a, const ColumnChunks plan, const int64_t threads) {
  using Sum = SumOf<T>;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < threads; i += int64_t{gridDim.x} * kThreads) {
    const Columns<T, Aligned> part(a, plan, i);
    Sum sum[kPack<T>] = {};
    if (plan.chunks > 1) {
#pragma unroll
      for (int k = 0; k < kPack<T>; ++k) {
        if (k < part.columns) sum[k] = static_cast<const Sum*>(a.workspace)[part.sums + k];
      }
    }
    part.walk(sum, [&](int64_t j) { part.store(j, sum); });
  }
}

bool has_aligned_columns(const CumsumArgs& a) {
  const int64_t width = 16 / size_of(a.dtype);
  return is_aligned(a.x, 16) && a.stride_outer % width == 0 && a.stride_n % width == 0 && a.inner % width == 0;
}

template <class T, class Aligned>
void launch_columns(const CumsumArgs& a, cudaStream_t stream) {
  const ColumnChunks plan(a);
  const int64_t threads = a.outer * plan.chunks * plan.packs;
  const unsigned grid = row_grid(ceil_div(threads, kThreads));
  if (plan.chunks > 1) {
    warpsmith::launch<&cumsum_columns_chunks_kernel<T, Aligned>>({grid, kThreads}, stream, a, plan, threads);
    warpsmith::launch<&cumsum_columns_before_kernel<SumOf<T>>>({row_grid(ceil_div(a.sequences(), kThreads)), kThreads},
                                                               stream, static_cast<SumOf<T>*>(a.workspace), plan.chunks,
                                                               a.inner, a.sequences());
  }
  warpsmith::launch<&cumsum_columns_kernel<T, Aligned>>({grid, kThreads}, stream, a, plan, threads);
}

void launch(const CumsumArgs& a, cudaStream_t stream) {
  visit_scanned(a, [&]<class T>() {
    if (has_aligned_columns(a)) {
      launch_columns<T, std::true_type>(a, stream);
    } else {
      launch_columns<T, std::false_type>(a, stream);
    }
  });
}

const Register<CumsumArgs> registered{"columns", /*min_sm=*/80, needs_columns, launch};

}  // namespace
}  // namespace warpsmith
