// Rows by their indices, one value a thread.
//   Whatever it stands for: values of one size are one kernel, unless they are scaled. Bound: the number of accesses, and of
//   divisions that find out whose value a thread has.
#include "transform/gather/words.cuh"

namespace warpsmith {
namespace {

template <class Word>
__global__ void __launch_bounds__(kGatherThreads) gather_naive_kernel(const GatherArgs a, const GatherUnits u) {
  gather_words<Word, 1>(a, u);
}

template <class T>
__global__ void __launch_bounds__(kGatherThreads) gather_naive_scaled_kernel(const GatherArgs a, const GatherUnits u) {
  gather_scaled<T, 1>(a, u);
}

const char* takes(const GatherArgs& a) { return needs_gather_grid(a.elements()); }

void launch(const GatherArgs& a, cudaStream_t stream) {
  const GatherUnits units(a, size_of(a.dtype));
  const LaunchConfig config = gather_config(units);
  if (a.scaled) {
    return dispatch_floating(
        a.dtype, [&]<class T>() { warpsmith::launch<&gather_naive_scaled_kernel<T>>(config, stream, a, units); });
  }
  switch (size_of(a.dtype)) {
    case 1:
      return warpsmith::launch<&gather_naive_kernel<uint8_t>>(config, stream, a, units);
    case 2:
      return warpsmith::launch<&gather_naive_kernel<uint16_t>>(config, stream, a, units);
    default:
      return warpsmith::launch<&gather_naive_kernel<uint32_t>>(config, stream, a, units);
  }
}

const Register<GatherArgs> registered{"naive", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
