// A tile of the menu of `wgmma_joined` (gemm/wgmma_tiles.h), for its types and layouts.
#include "gemm/wgmma_product.cuh"

namespace warpsmith {

template void launch_wgmma_tile<kJoinedMenu[2]>(const GemmArgs&, const WgmmaChoice&, cudaStream_t);

}  // namespace warpsmith
