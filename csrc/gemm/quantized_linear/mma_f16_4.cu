// The kernels of `mma` for f16 and weights of 4 bits.
#include "gemm/quantized_linear/mma_tiles.cuh"

namespace warpsmith {

template void launch_quantized_mma<f16, 4>(const QuantizedLinearArgs& a, cudaStream_t stream);

}  // namespace warpsmith
