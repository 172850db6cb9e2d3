// What several rungs launch to add up the sums of their blocks.
#include "reduce/launch_total.cuh"

namespace warpsmith {

template void launch_total<float>(const double*, int64_t, void*, cudaStream_t, bool);
template void launch_total<f16>(const double*, int64_t, void*, cudaStream_t, bool);
template void launch_total<bf16>(const double*, int64_t, void*, cudaStream_t, bool);

}  // namespace warpsmith
