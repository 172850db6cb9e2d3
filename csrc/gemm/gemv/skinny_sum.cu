// What several rungs launch to add up slices of k.
#include "gemm/launch_skinny_sum.cuh"

namespace warpsmith {

template void launch_skinny_sum<float>(const SkinnyArgs&, cudaStream_t);
template void launch_skinny_sum<f16>(const SkinnyArgs&, cudaStream_t);
template void launch_skinny_sum<bf16>(const SkinnyArgs&, cudaStream_t);

}  // namespace warpsmith
