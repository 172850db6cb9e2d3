// One vector or two, four rows of the weights per block.
#include "gemm/gemv/few_vectors.h"

#include "gemm/skinny_block.cuh"

namespace warpsmith {

void launch_few_vectors(const GemvArgs& a, int slices, bool halved, cudaStream_t stream) {
  const SkinnyArgs args = as_skinny(a, slices);
  dispatch_float(a.dtype, [&]<class T>() { launch_few_vectors<T>(args, halved, stream); });
}

}  // namespace warpsmith
