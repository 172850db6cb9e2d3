// The kernel of `registers` for rows that are normalised.
#include "quantize/quantize/registers.cuh"

namespace warpsmith {

void launch_rms_rows(const QuantizeArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() { launch_rows<RmsValues<T>>(a, stream); });
}

}  // namespace warpsmith
