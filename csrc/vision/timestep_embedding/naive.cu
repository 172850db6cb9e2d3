// Timestep embedding, a value to a thread.
//   Bound: the number of accesses.
#include "device/vec.h"
#include "host/launch.h"
#include "host/registry.h"
#include "row/rows.h"
#include "vision/timestep_embedding/timestep_embedding.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 128;

template <class T>
__global__ void __launch_bounds__(kThreads)
    timestep_embedding_naive_kernel(const TimestepEmbeddingArgs a, const FastDivide row, const int64_t threads) {
  constexpr T kNan = static_cast<T>(static_cast<T>(~T{}) >> 1);  // in f32, f16 and bf16
  constexpr int kWidth = 1;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < threads; i += int64_t{gridDim.x} * kThreads) {
    const int64_t at = row.quotient_as(i), col = (i - at * static_cast<int64_t>(row.divisor)) * kWidth;
    const int64_t step = a.t[at];
    Vec<T, kWidth> values;
    if (step >= 0) {
      load(values, static_cast<const T*>(a.table) + step * a.stride + col);
    } else {
#pragma unroll
      for (int k = 0; k < kWidth; ++k) values[k] = kNan;
    }
    store(static_cast<T*>(a.y) + at * a.dim + col, values);
  }
}

void launch(const TimestepEmbeddingArgs& a, cudaStream_t stream) {
  dispatch_row(a.dtype, [&]<class T>() {
    const int64_t accesses = a.dim / 1, threads = a.n * accesses;
    warpsmith::launch<&timestep_embedding_naive_kernel<T>>({row_grid(ceil_div(threads, kThreads)), kThreads}, stream, a,
                                                           FastDivide(static_cast<uint64_t>(accesses)), threads);
  });
}

const Register<TimestepEmbeddingArgs> registered{"naive", /*min_sm=*/80, takes_any, launch};

}  // namespace
}  // namespace warpsmith
