// The kernel of `registers` for rows of a gate and what it multiplies.
#include "quantize/quantize/registers.cuh"

namespace warpsmith {

void launch_silu_rows(const QuantizeArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() { launch_rows<SiluValues<T>>(a, stream); });
}

}  // namespace warpsmith
