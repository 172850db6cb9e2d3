// Quantisation, one value an access.
//   A block per row or tile of 128 x 128; of a whole tensor, partial maxima first. Bound: the number of load instructions.
#include "host/registry.h"
#include "quantize/quantize/sweeps.cuh"

namespace warpsmith {
namespace {

void launch(const QuantizeArgs& a, cudaStream_t stream) {
  dispatch_values(a, [&]<class Source>() { launch_sweeps<Source, 1>(a, stream); });
}

const Register<QuantizeArgs> registered{"naive", /*min_sm=*/80, takes_any<QuantizeArgs>, launch};

}  // namespace
}  // namespace warpsmith
