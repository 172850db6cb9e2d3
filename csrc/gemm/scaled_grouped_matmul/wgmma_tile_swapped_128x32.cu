// A tile of the menu of `wgmma_groups` (wgmma_tiles.h), for its formats.
#include "gemm/scaled_grouped_matmul/wgmma.cuh"

namespace warpsmith {

template void launch_scaled_grouped_tile<kScaledGroupedMenu[2]>(const ScaledGroupedArgs&, cudaStream_t);

}  // namespace warpsmith
