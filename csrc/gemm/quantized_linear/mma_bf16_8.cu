// The kernels of `mma` for bf16 and weights of 8 bits.
#include "gemm/quantized_linear/mma_tiles.cuh"

namespace warpsmith {

template void launch_quantized_mma<bf16, 8>(const QuantizedLinearArgs& a, cudaStream_t stream);

}  // namespace warpsmith
