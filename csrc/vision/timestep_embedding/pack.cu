// Timestep embedding, 128-bit accesses.
//   Against `naive`: a thread moves 16 bytes, one pack and no other: what goes on by the size of the grid is unrolled, behind
//   a division and in many registers. Bound: the launch, for as many steps as a batch has.
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
    timestep_embedding_pack_kernel(const TimestepEmbeddingArgs a, const FastDivide row, const uint32_t threads) {
  constexpr T kNan = static_cast<T>(static_cast<T>(~T{}) >> 1);  // in f32, f16 and bf16
  constexpr int kWidth = kPack<T>;
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= threads) return;
  const uint32_t at = row.small_quotient(i), pack = i - at * static_cast<uint32_t>(row.divisor);
  const int64_t step = a.t[at];
  Vec<T, kWidth> values;
  if (step >= 0) {
    load(values, static_cast<const T*>(a.table) + step * a.stride + int64_t{pack} * kWidth);
  } else {
#pragma unroll
    for (int k = 0; k < kWidth; ++k) values[k] = kNan;
  }
  store(static_cast<T*>(a.y) + int64_t{i} * kWidth, values);
}

const char* takes(const TimestepEmbeddingArgs& a) {
  const int width = 16 / size_of(a.dtype);
  return unmet({tiles_rows(a.table, a.t.limit, a.dim, a.stride, a.dtype, width)
                    ? nullptr
                    : "needs rows of the table in packs of 16 bytes",
                a.n * (a.dim / width) <= kMostRows ? nullptr : "needs less than 2^31 packs"});
}

void launch(const TimestepEmbeddingArgs& a, cudaStream_t stream) {
  dispatch_row(a.dtype, [&]<class T>() {
    const int64_t accesses = a.dim / kPack<T>, threads = a.n * accesses;
    warpsmith::launch<&timestep_embedding_pack_kernel<T>>(
        {static_cast<unsigned>(ceil_div(threads, kThreads)), kThreads}, stream, a,
        FastDivide(static_cast<uint64_t>(accesses)), static_cast<uint32_t>(threads));
  });
}

const Register<TimestepEmbeddingArgs> registered{"pack", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
