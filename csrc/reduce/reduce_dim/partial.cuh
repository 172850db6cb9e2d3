// The second stage of a split reduction: joins the states that the blocks of the first left for each output, always in
// the same order. Its kernel is in partial.cu.
#pragma once

#include "reduce/reduce_dim/reduce.cuh"

namespace warpsmith {

// Writes what all states of an output came to. Of a position in a column they have the group of rows, [n] values
// stride_n apart, in which it is looked up here.
template <class R, class T>
__device__ __forceinline__ void write_joined(const ReduceDimArgs& a, int64_t output, typename R::State state) {
  if constexpr (R::finds_position) {
    if (a.columns) state.at = search_group<R, kColumnUnroll>(state, input_of<T>(a, output), a.stride_n, a.n);
  }
  write<R, T>(a, output, state);
}

// The second stage. `along_x` threads of a block lie along the outputs; it must not depend on how many there are where the
// order of additions must not.
void launch_partial(const ReduceDimArgs& a, int along_x, int64_t output_stride, int64_t split_stride,
                    cudaStream_t stream);

}  // namespace warpsmith
