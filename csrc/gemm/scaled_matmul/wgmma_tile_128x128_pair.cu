// A tile of the menu of `wgmma_peak` (wgmma_tiles.h), for its formats.
#include "gemm/scaled_matmul/wgmma.cuh"

namespace warpsmith {

template void launch_scaled_tile<kScaledMenu[6]>(const ScaledMatmulArgs&, const WgmmaChoice&, cudaStream_t);

}  // namespace warpsmith
