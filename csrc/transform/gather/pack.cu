// Rows by their indices, 16 bytes a thread in one access.
//   Against `x8`: a quarter of the accesses, each of which brings whole lines. Places are found in 32 bits, where these do:
//   of the code for more, a short kernel waits for the part that it never runs. Bound: how many bytes are on their way: a
//   thread waits for its index, and then for one pack.
#include "transform/gather/words.cuh"

namespace warpsmith {
namespace {

template <class Int>
__global__ void __launch_bounds__(kGatherThreads) gather_pack_kernel(const GatherArgs a, const GatherUnits u) {
  gather_words<uint4, 1, Int>(a, u);
}

template <class T>
__global__ void __launch_bounds__(kGatherThreads) gather_pack_scaled_kernel(const GatherArgs a, const GatherUnits u) {
  gather_scaled<T, kPack<T>>(a, u);
}

const char* takes(const GatherArgs& a) {
  return unmet({needs_units(a, 16, 16), needs_gather_grid(a.elements() * size_of(a.dtype) / 16)});
}

void launch(const GatherArgs& a, cudaStream_t stream) {
  const GatherUnits units(a, 16);
  const LaunchConfig config = gather_config(units);
  if (!a.scaled) {
    return counts_in_32_bits(units.units) ? warpsmith::launch<&gather_pack_kernel<uint32_t>>(config, stream, a, units)
                                          : warpsmith::launch<&gather_pack_kernel<int64_t>>(config, stream, a, units);
  }
  dispatch_floating(a.dtype,
                    [&]<class T>() { warpsmith::launch<&gather_pack_scaled_kernel<T>>(config, stream, a, units); });
}

const Register<GatherArgs> registered{"pack", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
