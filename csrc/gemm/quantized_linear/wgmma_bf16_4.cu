// The kernels of `wgmma` for bf16 and weights of 4 bits.
#include "gemm/quantized_linear/wgmma_tiles.cuh"

namespace warpsmith {

template void launch_quantized_wgmma<bf16, 4>(const QuantizedLinearArgs& a, cudaStream_t stream);

}  // namespace warpsmith
