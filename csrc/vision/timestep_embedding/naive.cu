// Timestep embedding, a value to a thread.
//   Bound: the number of accesses.
#include "host/launch.h"
#include "host/registry.h"
#include "vision/timestep_embedding/timestep_embedding.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 128;

template <class T>
__global__ void __launch_bounds__(kThreads)
    timestep_embedding_naive_kernel(const TimestepEmbeddingArgs a, const FastDivide row, const int64_t threads) {
  constexpr T kNan = static_cast<T>(static_cast<T>(~T{}) >> 1);  // in f32, f16 and bf16
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= threads) return;
  const int64_t at = row.quotient_as(i), col = i - at * static_cast<int64_t>(row.divisor);
  const int64_t step = a.t[at];
  static_cast<T*>(a.y)[i] = step >= 0 ? static_cast<const T*>(a.table)[step * a.stride + col] : kNan;
}

void launch(const TimestepEmbeddingArgs& a, cudaStream_t stream) {
  dispatch_row(a.dtype, [&]<class T>() {
    const int64_t threads = a.n * a.dim;
    warpsmith::launch<&timestep_embedding_naive_kernel<T>>(
        {static_cast<unsigned>(ceil_div(threads, kThreads)), kThreads}, stream, a,
        FastDivide(static_cast<uint64_t>(a.dim)), threads);
  });
}

const Register<TimestepEmbeddingArgs> registered{"naive", /*min_sm=*/80, takes_any, launch};

}  // namespace
}  // namespace warpsmith
