// Softmax, a block per row, the row held in shared memory.
//   Against `warp`: rows too long for registers are read once too. Rows of any length and alignment (a vocabulary of
//   50257) move in packs: the copy in shared memory has the alignment of x, so the packs between its first and last
//   16-byte border are copied asynchronously, and those of y are put together from it. Values are added by their column,
//   not by their address, so that a row has the same bits wherever it lies. Warps begin at
//   lines of 128 bytes, or each would share its first and last with another. Bound: shared memory, read one value at a
//   time, and the lines that neighbouring rows share; DRAM while several blocks fit on a multiprocessor.
#include "device/ptx/copy.h"
#include "softmax/softmax/result.cuh"

namespace warpsmith {
namespace {

constexpr int kValuesPerThread = 16;
constexpr int kMostThreads = 1024;
constexpr int kLine = 128;  // bytes

// A row as packs between 16-byte borders, and the single values before and after them.
template <class T>
struct Borders {
  int phase;   // values from the border before the row to its start
  int head;    // values before the first border within the row
  int packs;   // whole ones from there on
  int single;  // values outside of them
  int lead;    // packs from the start of their 128-byte line to the first: warps that begin there share no line

  __device__ Borders(const T* row, int cols)
      : phase(static_cast<int>(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(T))),
        head(min(cols, (kPack<T> - phase) % kPack<T>)),
        packs((cols - head) / kPack<T>),
        single(cols - packs * kPack<T>),
        lead(static_cast<int>(reinterpret_cast<uintptr_t>(row + head) % kLine / sizeof(Pack<T>))) {}

  __device__ int pack_at(int i) const { return head + i * kPack<T>; }
  __device__ int single_at(int i) const { return i < head ? i : i + packs * kPack<T>; }
};

template <class T, class Result>
__global__ void __launch_bounds__(kMostThreads) softmax_shared_kernel(const SoftmaxRows<T> v) {
  extern __shared__ uint4 storage[];  // [phase + cols] of T
  __shared__ float partial_max[kWarp], partial_sum[kWarp];
  const int tid = threadIdx.x, threads = blockDim.x, cols = static_cast<int>(v.cols);
  for (int64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const T* x = v.x_row(row);
    T* y = v.y_row(row);
    const Borders<T> in(x, cols), out(y, cols);
    T* sX = reinterpret_cast<T*>(storage) + in.phase;  // [cols]

    // load
    for (int i = tid - in.lead; i < in.packs; i += threads) {
      if (i < 0) continue;
      const int col = in.pack_at(i);
      ptx::cp_async(reinterpret_cast<uint4*>(sX + col), reinterpret_cast<const uint4*>(x + col));
    }
    ptx::cp_async_commit();
    if (tid < in.single) sX[in.single_at(tid)] = x[in.single_at(tid)];
    ptx::cp_async_wait<0>();
    __syncthreads();

    // maximum
    float max = kLowest;
    for (int i = tid - in.lead; i < in.packs; i += threads) {
      if (i < 0) continue;
      Pack<T> values;
      load(values, sX + in.pack_at(i));
      max = max_of(max, values);
    }
    if (tid < in.single) max = fmaxf(max, to_float(sX[in.single_at(tid)]));
    max = block_max(max, partial_max);

    // sum
    float sum = 0.0f;
#pragma unroll 4
    for (int i = tid; i < cols; i += threads) sum += exponential<T>(to_float(sX[i]) - max);
    sum = block_sum(sum, partial_sum);

    // results
    const Result result(max, sum);
    const bool same_phase = in.phase == out.phase;
    for (int i = tid - out.lead; i < out.packs; i += threads) {
      if (i < 0) continue;
      const int col = out.pack_at(i);
      Pack<T> values;
      if (same_phase) {
        load(values, sX + col);
      } else {
#pragma unroll
        for (int j = 0; j < kPack<T>; ++j) values[j] = sX[col + j];
      }
      store<Cache::streaming>(y + col, results(values, result));
    }
    if (tid < out.single) y[out.single_at(tid)] = from_float<T>(result(to_float(sX[out.single_at(tid)])));
    __syncthreads();  // the next row overwrites this one
  }
}

const char* takes(const SoftmaxArgs& a) {
  if (const char* reason = needs_rows(a)) return reason;
  return a.cols * size_of(a.dtype) <= kMostSharedBytes ? nullptr : "needs rows of at most 98.5 KiB";
}

void launch(const SoftmaxArgs& a, cudaStream_t stream) {
  visit_results(a, [&]<class T, class Result>() {
    const int packs = static_cast<int>((a.cols + 2 * kPack<T> - 2) / kPack<T>);  // whatever the phase
    const LaunchConfig config{.grid = row_grid(a.rows),
                              .block = row_threads(a.cols, kValuesPerThread, kMostThreads),
                              .dynamic_smem = packs * static_cast<int>(sizeof(Pack<T>))};
    warpsmith::launch<&softmax_shared_kernel<T, Result>>(config, stream, SoftmaxRows<T>(a));
  });
}

// Shorter rows fit the registers of a warp.
bool suits(const SoftmaxArgs& a) { return a.cols > 1024; }

const Register<SoftmaxArgs> registered{"shared", /*min_sm=*/80, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
