// Matrix product, operands passed through shared memory one slice of k at a time.
//   Against `naive`: 32 x 32 threads bring 32 x 32 values of a and of b, once for all of them, so global memory is read
//   a thirty-second as often. Neighbouring threads bring neighbouring values, in either order of the operands,
//   those of the next slice while this one is multiplied. Both lie along k in shared memory, which a thread reads 16 bytes
//   at a time. Bound: those reads, two for four multiplications in f32 or for eight in f16.
#include "gemm/elements.cuh"
#include "gemm/gemm.h"
#include "gemm/thread_tile.cuh"
#include "host/launch.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

constexpr int kTile = 32;

// Blocks that every multiprocessor of the kind has threads for: those of 8.0 and 9.0 hold 2048.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900)
constexpr int kBlocksHeld = 2;
#else
constexpr int kBlocksHeld = 1;
#endif

// One value of the product: of f16, sums over the even k and the odd ones, which HFMA2 computes together.
template <class Acc>
struct RunningSum {
  float value = 0.0f;
  __device__ void add_products(const Vec<float, 4>& a, const Vec<float, 4>& b) {
#pragma unroll
    for (int c = 0; c < 4; ++c) value = fmaf(a[c], b[c], value);
  }
  __device__ void add(const RunningSum& other) { value += other.value; }
  __device__ float whole() const { return value; }
};

template <>
struct RunningSum<f16> {
  __half2 value = {};
  __device__ void add_products(const Vec<f16, 8>& a, const Vec<f16, 8>& b) {
    const auto& a_pairs = reinterpret_cast<const __half2(&)[4]>(a);
    const auto& b_pairs = reinterpret_cast<const __half2(&)[4]>(b);
#pragma unroll
    for (int c = 0; c < 4; ++c) value = __hfma2(a_pairs[c], b_pairs[c], value);
  }
  __device__ void add(const RunningSum& other) { value = __hadd2(value, other.value); }
  __device__ float whole() const { return __low2float(value) + __high2float(value); }
};

template <class T, class Acc>
__global__ void __launch_bounds__(kTile* kTile, kBlocksHeld) matmul_sliced_k_kernel(const GemmArgs p) {
  constexpr int kWidth = kChunk<Acc>;
  // Along k, in chunks of 16 bytes, one more than there are: eight rows or columns apart they share no bank.
  __shared__ alignas(16) Acc sA[kTile][kTile + kWidth], sB[kTile][kTile + kWidth];
  const Elements<T> a(p.a, p.m, p.k), b(p.b, p.k, p.n);
  const int x = static_cast<int>(threadIdx.x) % kTile, y = static_cast<int>(threadIdx.x) / kTile;
  const uint32_t tiles_n = static_cast<uint32_t>(ceil_div(p.n, kTile));
  const int64_t first_row = int64_t{blockIdx.x / tiles_n} * kTile, first_col = int64_t{blockIdx.x % tiles_n} * kTile;
  // which value of a tile this thread brings
  const bool a_rows = p.a.order == Order::rows, b_rows = p.b.order == Order::rows;
  const int a_row = a_rows ? y : x, a_k = a_rows ? x : y, b_k = b_rows ? y : x, b_col = b_rows ? x : y;
  const T* a_from = a.data + (first_row + a_row) * a.row_step + a_k * a.col_step;
  const T* b_from = b.data + b_k * b.row_step + (first_col + b_col) * b.col_step;
  const int64_t a_step = kTile * a.col_step, b_step = kTile * b.row_step;
  // how many slices have it
  const auto slices_of = [](int64_t left) { return static_cast<int>(ceil_div(left, kTile)); };
  const int a_slices = first_row + a_row < p.m && a_k < p.k ? slices_of(p.k - a_k) : 0;
  const int b_slices = first_col + b_col < p.n && b_k < p.k ? slices_of(p.k - b_k) : 0;
  const auto bring = [](const T*& from, bool inside, int64_t step) {
    T value = from_float<T>(0.0f);
    if (inside) value = *from;
    from += step;
    return value;
  };
  const auto put = [](Acc& to, T value) {
    if constexpr (std::is_same_v<T, Acc>) {
      to = value;
    } else {
      to = to_float(value);
    }
  };

  RunningSum<Acc> total, sum;
  T next_a, next_b;
  const auto bring_both = [&](int slice) {
    next_a = bring(a_from, slice < a_slices, a_step);
    next_b = bring(b_from, slice < b_slices, b_step);
  };
  bring_both(0);
  constexpr int kMostSlices = static_cast<int>(kMostTerms) / kTile;
  const int slices = slices_of(p.k);
#pragma unroll 1
  for (int slice = 0; slice < slices; ++slice) {
    put(sA[a_row][a_k], next_a);
    put(sB[b_col][b_k], next_b);
    __syncthreads();
    bring_both(slice + 1);
#pragma unroll
    for (int k = 0; k < kTile; k += kWidth) {
      Vec<Acc, kWidth> left, right;
      load(left, &sA[y][k]);
      load(right, &sB[x][k]);
      sum.add_products(left, right);
    }
    if ((slice + 1) % kMostSlices == 0) {
      total.add(sum);
      sum = {};
    }
    __syncthreads();  // the next slice overwrites this one
  }
  total.add(sum);
  unsigned block = blockIdx.x, thread = threadIdx.x;
  asm volatile("" : "+r"(block), "+r"(thread));  // or else these are kept through the multiplications
  const uint32_t across = static_cast<uint32_t>(ceil_div(p.n, kTile));
  const int64_t row = int64_t{block / across} * kTile + thread / kTile;
  const int64_t col = int64_t{block % across} * kTile + thread % kTile;
  if (row < p.m && col < p.n) static_cast<T*>(p.d)[row * p.n + col] = from_float<T>(total.whole());
}

void launch(const GemmArgs& p, cudaStream_t stream) {
  const int64_t tiles = ceil_div(p.m, kTile) * ceil_div(p.n, kTile);
  const LaunchConfig config{static_cast<unsigned>(tiles), kTile * kTile};
  visit_types(p, [&]<class T, class Acc>() { warpsmith::launch<&matmul_sliced_k_kernel<T, Acc>>(config, stream, p); });
}

const Register<GemmArgs> registered{"sliced_k", /*min_sm=*/80, needs_plain, launch};

}  // namespace
}  // namespace warpsmith
