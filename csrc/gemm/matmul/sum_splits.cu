// What several rungs launch to add up slices of k.
#include "gemm/sum_splits.cuh"

namespace warpsmith {

template void sum_splits<float>(const GemmArgs&, int, cudaStream_t);
template void sum_splits<f16>(const GemmArgs&, int, cudaStream_t);
template void sum_splits<bf16>(const GemmArgs&, int, cudaStream_t);

}  // namespace warpsmith
