// A tile of the menu of `wgmma_groups` (wgmma_tiles.h), for its types and layouts.
#include "gemm/grouped_matmul/wgmma.cuh"

namespace warpsmith {

template void launch_grouped_tile<kGroupedMenu[3]>(const GroupedArgs&, cudaStream_t);

}  // namespace warpsmith
