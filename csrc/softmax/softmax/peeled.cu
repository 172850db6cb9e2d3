// Softmax, rows that begin anywhere streamed through a block or a cluster.
//   Against `shared`: rows are read ahead while the one before is finished, may be as long as sixteen multiprocessors hold,
//   and all that lies between 16-byte borders is read and written in packs. Threads keep a maximum and a sum over all
//   chunks of a row, and meet once at its end. Bound: DRAM with f32 data; the instructions per value with 16-bit data, of
//   which `shared` needs fewer.
#include "row/stream.cuh"
#include "softmax/softmax/row.cuh"

namespace warpsmith {
namespace {

template <class T, class Result>
struct PeeledSoftmax : Softmax<T, Result> {
  using Softmax<T, Result>::Softmax;

  template <int packs>
  __device__ __forceinline__ MaxSum include(const MaxSum& seen, const uint4 (&x)[packs][1]) const {
    uint4 largest = x[0][0];
#pragma unroll
    for (int i = 1; i < packs; ++i) largest = max_packed<T>(largest, x[i][0]);
    float candidates[kPack<T>];
    unpack<T>(candidates, largest);
#pragma unroll
    for (int n = kPack<T> / 2; n > 0; n /= 2) {
#pragma unroll
      for (int j = 0; j < n; ++j) candidates[j] = fmaxf(candidates[j], candidates[j + n]);
    }
    const float max = fmaxf(seen.max, candidates[0]);
    float sums[4] = {};
#pragma unroll
    for (int i = 0; i < packs; ++i) {
      float values[kPack<T>];
      unpack<T>(values, x[i][0]);
#pragma unroll
      for (int j = 0; j < kPack<T>; ++j) sums[j % 4] += exponential<T>(values[j] - max);
    }
    return {max, fmaf(seen.sum, exponential<T>(seen.max - max), (sums[0] + sums[1]) + (sums[2] + sums[3]))};
  }

  __device__ __forceinline__ MaxSum reduce(const MaxSum& own) const { return warp_merge<T>(own); }
};

void launch(const SoftmaxArgs& a, cudaStream_t stream) {
  visit_results(a,
                [&]<class T, class Result>() { launch_stream(PeeledSoftmax<T, Result>(a), stream, StreamTiles1{}); });
}

const char* takes(const SoftmaxArgs& a) {
  return unmet({needs_rows(a), needs_grid_rows(a.rows), needs_row_bytes<kMostStreamBytes>(a.cols, a.dtype)});
}

// Of shorter rows `shared` has so many on a multiprocessor that they hide each other's waits as well; of 16-bit ones it
// is the better choice as long as it takes them.
bool suits(const SoftmaxArgs& a) {
  return a.cols * size_of(a.dtype) > (a.dtype == Dtype::f32 ? 32 * 1024 : kMostSharedBytes);
}

const Register<SoftmaxArgs> registered{"peeled", /*min_sm=*/90, takes, launch, suits, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
