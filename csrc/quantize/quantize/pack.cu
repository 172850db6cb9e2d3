// Quantisation, 128-bit accesses.
//   Against `naive`: one load brings 16 bytes, one store writes as many codes. Bound: values are read twice, the second
//   time from L2 at best.
#include "host/registry.h"
#include "quantize/quantize/sweeps.cuh"

namespace warpsmith {
namespace {

void launch(const QuantizeArgs& a, cudaStream_t stream) {
  dispatch_values(a, [&]<class Source>() { launch_sweeps<Source, kPack<typename Source::Value>>(a, stream); });
}

const Register<QuantizeArgs> registered{"pack", /*min_sm=*/80, needs_packs, launch};

}  // namespace
}  // namespace warpsmith
