// Rows by their indices, two values of 16 bits a thread in one access.
//   Against `naive`: half the accesses and half the divisions. Bound: still their number.
#include "transform/gather/words.cuh"

namespace warpsmith {
namespace {

constexpr int kWords = 1, kUnit = kWords * static_cast<int>(sizeof(uint32_t));

__global__ void __launch_bounds__(kGatherThreads) gather_x2_kernel(const GatherArgs a, const GatherUnits u) {
  gather_words<uint32_t, kWords>(a, u);
}

const char* takes(const GatherArgs& a) {
  return unmet({needs_values_of_16_bits(a), needs_no_scale(a), needs_units(a, kUnit, sizeof(uint32_t)),
                needs_gather_grid(a.elements() * size_of(a.dtype) / kUnit)});
}

void launch(const GatherArgs& a, cudaStream_t stream) {
  const GatherUnits units(a, kUnit);
  warpsmith::launch<&gather_x2_kernel>(gather_config(units), stream, a, units);
}

const Register<GatherArgs> registered{"x2", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
