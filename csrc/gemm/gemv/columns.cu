// GEMV with weights that lie column by column, as those of a transposed view do.
//   Against `naive`: a thread has neighbouring rows of the result, in packs where columns are aligned, and walks along k,
//   which the warps of a block and several blocks share; a second launch adds up what the blocks leave. Nothing is
//   transposed or copied.
//   Blocks take their places while the kernel before ends.
//   Occupancy: blocks of 256 threads; for one vector three of up to 72 registers in f32, four of 64 in 16 bits; for more
//   two of up to 128.
//   Bound: DRAM with one vector. With several it is slower than DRAM, by what is not profiled yet; x is read value by
//   value. More than eight read the weights again.
#include <type_traits>

#include "device/start_early.h"
#include "device/vec.h"
#include "device/warp.h"
#include "gemm/gemv/gemv.h"
#include "gemm/skinny_sum.cuh"
#include "host/launch.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

// What a thread reads at a time.
template <class T, int width, int vectors, int count>
struct Columns {
  Vec<T, width> weights[count];
  float x[count][vectors];
};

// `width` rows of the result per thread, from columns of whole vectors of as many values.
template <class T, int width, int vectors>
__global__ void __launch_bounds__(kThreads, columns_blocks(sizeof(T), width, vectors))
    gemv_columns_kernel(const SkinnyArgs a, const int64_t a_col) {
  constexpr int kUnroll = vectors == 8 ? 2 : 4;
  constexpr int kRows = kColumnsLanes * width;
  __shared__ float shared[kWarps][kRows];  // a vector's sums
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int first_vector = static_cast<int>(blockIdx.y) * vectors, split = static_cast<int>(blockIdx.z);
  const int64_t first_row = int64_t{blockIdx.x} * kRows, row = first_row + lane * width;
  const int begin = static_cast<int>(a.k * split / a.splits), end = static_cast<int>(a.k * (split + 1) / a.splits);
  const T* weights = static_cast<const T*>(a.a) + (row < a.m ? row : 0);  // [k, width], a_col apart
  const T* x[vectors];                                                    // [k] each
#pragma unroll
  for (int v = 0; v < vectors; ++v) {
    const int vector = first_vector + v < a.vectors ? first_vector + v : a.vectors - 1;
    x[v] = static_cast<const T*>(a.x) + vector * a.x_row;
  }

  start_early();

  // In f32, so many rounds are added up by themselves: rounding errors grow with the length of a sum. Results of 16 bits
  // hide what longer sums lose.
  constexpr bool kCutsSums = std::is_same_v<T, float>;
  constexpr int kMostRounds = 32;
  float sum[vectors][width] = {}, total[vectors][width] = {};
  const auto end_part = [&] {
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
#pragma unroll
      for (int i = 0; i < width; ++i) {
        total[v][i] += sum[v][i];
        sum[v][i] = 0.0f;
      }
    }
  };
  Columns<T, width, vectors, kUnroll> next;
  const auto fetch = [&](int64_t start) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t col = start + u * kWarps;
      const int64_t readable = col < end ? col : start;
      load<Cache::streaming>(next.weights[u], weights + readable * a_col);
#pragma unroll
      for (int v = 0; v < vectors; ++v) next.x[u][v] = to_float(x[v][readable]);
    }
  };
  // With one vector, registers suffice to read the next columns before these are needed.
  constexpr bool kReadsAhead = vectors == 1;
  constexpr int kStep = kWarps * kUnroll;
  int rounds = 0;
  int64_t start = begin + warp;
  if (kReadsAhead && start < end) fetch(start);
  for (; start < end; start += kStep) {
    if (kCutsSums && rounds++ % kMostRounds == 0) end_part();

    // load
    if (!kReadsAhead) fetch(start);
    const auto here = next;
    if (kReadsAhead && start + kStep < end) fetch(start + kStep);

    // multiply and add
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (start + u * kWarps >= end) break;
      float column[width];
      to_float(column, here.weights[u]);
#pragma unroll
      for (int v = 0; v < vectors; ++v) {
#pragma unroll
        for (int i = 0; i < width; ++i) sum[v][i] = fmaf(column[i], here.x[u][v], sum[v][i]);
      }
    }
  }

  // add up the warps
  if constexpr (kCutsSums) end_part();
  const auto& own = kCutsSums ? total : sum;
#pragma unroll
  for (int v = 0; v < vectors; ++v) {
    if (v > 0) __syncthreads();  // the sums of the vector before have been read
#pragma unroll
    for (int i = 0; i < width; ++i) shared[warp][lane * width + i] = own[v][i];
    __syncthreads();
    for (int i = threadIdx.x; i < kRows; i += kThreads) {
      if (first_row + i >= a.m || first_vector + v >= a.vectors) break;
      float y = shared[0][i];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) y += shared[w][i];
      put_sum<T>(a, split, first_vector + v, first_row + i, y);
    }
  }
}

template <class T, int width, int vectors>
void launch_columns(const SkinnyArgs& a, int64_t a_col, cudaStream_t stream) {
  constexpr int kRows = kColumnsLanes * width;
  const auto blocks = static_cast<unsigned>((a.m + kRows - 1) / kRows);
  const auto groups = static_cast<unsigned>((a.vectors + vectors - 1) / vectors);
  const dim3 grid(blocks, groups, static_cast<unsigned>(a.splits));
  launch<&gemv_columns_kernel<T, width, vectors>>({.grid = grid, .block = kThreads, .early = true}, stream, a, a_col);
  if (a.partial != nullptr) launch_skinny_sum<T>(a, stream);
}

const char* takes(const GemvArgs& a) {
  if (const char* reason = needs_columns(a)) return reason;
  return needs_f32_accumulator(a);
}

void launch(const GemvArgs& a, cudaStream_t stream) {
  const SkinnyArgs args = as_skinny(a, columns_slices(a));
  dispatch_float(a.dtype, [&]<class T>() {
    const auto launch_width = [&]<int width>() {
      const int vectors = columns_vectors(a);
      if (vectors == 1) return launch_columns<T, width, 1>(args, a.a_col, stream);
      if (vectors == 4) return launch_columns<T, width, 4>(args, a.a_col, stream);
      launch_columns<T, width, 8>(args, a.a_col, stream);
    };
    if (columns_in_packs(a)) return launch_width.template operator()<kPack<T>>();
    launch_width.template operator()<1>();
  });
}

bool suits(const GemvArgs& a) { return !has_contiguous_rows(a); }

const Register<GemvArgs> registered{"columns", /*min_sm=*/80, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
