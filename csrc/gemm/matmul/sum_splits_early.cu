// What rungs launch to add up slices of k behind a kernel that lets the next one take its place early.
#include "gemm/sum_splits.cuh"
#include "gemm/sum_splits_early.h"

namespace warpsmith {

template void sum_splits_early<float>(const GemmArgs&, int, cudaStream_t);
template void sum_splits_early<f16>(const GemmArgs&, int, cudaStream_t);
template void sum_splits_early<bf16>(const GemmArgs&, int, cudaStream_t);

}  // namespace warpsmith
