// A tile of the menu of `wgmma` (gemm/fused_linear/wgmma.h), for its types, layouts and ends.
#include "gemm/fused_linear/wgmma.cuh"

namespace warpsmith {

template void launch_fused_wgmma<kWgmmaMenu[2]>(const FusedArgs&, const WgmmaChoice&, cudaStream_t);

}  // namespace warpsmith
