// Rows by their indices, four values of 32 bits a thread, an access each.
//   Against `naive`: one index and its divisions serve four values. The accesses of a warp lie 16 bytes apart: each brings
//   four times the lines. Bound: accesses to L1.
#include "transform/gather/words.cuh"

namespace warpsmith {
namespace {

constexpr int kWords = 4, kUnit = kWords * static_cast<int>(sizeof(uint32_t));

__global__ void __launch_bounds__(kGatherThreads) gather_x4_kernel(const GatherArgs a, const GatherUnits u) {
  gather_words<uint32_t, kWords>(a, u);
}

const char* takes(const GatherArgs& a) {
  return unmet({needs_f32(a), needs_no_scale(a), needs_units(a, kUnit, sizeof(uint32_t)),
                needs_gather_grid(a.elements() * size_of(a.dtype) / kUnit)});
}

void launch(const GatherArgs& a, cudaStream_t stream) {
  const GatherUnits units(a, kUnit);
  warpsmith::launch<&gather_x4_kernel>(gather_config(units), stream, a, units);
}

const Register<GatherArgs> registered{"x4", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
