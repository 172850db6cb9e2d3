// Rows by their indices, eight values of 16 bits a thread, an access each.
//   Against `x2`: one index and its divisions serve eight values, but each access of a warp touches lines of all eight. Bound:
//   accesses to L1.
#include "transform/gather/words.cuh"

namespace warpsmith {
namespace {

constexpr int kWords = 8, kUnit = kWords * static_cast<int>(sizeof(uint16_t));

__global__ void __launch_bounds__(kGatherThreads) gather_x8_kernel(const GatherArgs a, const GatherUnits u) {
  gather_words<uint16_t, kWords>(a, u);
}

const char* takes(const GatherArgs& a) {
  return unmet({needs_values_of_16_bits(a), needs_no_scale(a), needs_units(a, kUnit, sizeof(uint16_t)),
                needs_gather_grid(a.elements() * size_of(a.dtype) / kUnit)});
}

void launch(const GatherArgs& a, cudaStream_t stream) {
  const GatherUnits units(a, kUnit);
  warpsmith::launch<&gather_x8_kernel>(gather_config(units), stream, a, units);
}

const Register<GatherArgs> registered{"x8", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
