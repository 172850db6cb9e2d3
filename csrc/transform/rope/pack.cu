// Rotary positions, 16 bytes an access: a thread turns two packs of one head.
//   Against `naive`: eight or sixteen values a thread, and as many angles at once. Bound: the angles, which every thread finds
//   for one head alone, where memory does not limit it; a few tokens want all threads they can get.
#include "host/registry.h"
#include "transform/rope/packs.cuh"

namespace warpsmith {
namespace {

template <class T>
__global__ void __launch_bounds__(kRopeThreads)
    rope_pack_kernel(const RopeArgs a, const RopeWork w, const StreamPolicy l2) {
  start_early();
  rope_packs<T, 1>(a, w, l2);
}

void launch(const RopeArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    const RopeWork work(a, kPack<T>, 1);
    LaunchConfig config = rope_config(work);
    config.early = true;
    warpsmith::launch<&rope_pack_kernel<T>>(config, stream, a, work, rope_policy(a));
  });
}

const Register<RopeArgs> registered{"pack", /*min_sm=*/80, takes_packs, launch};

}  // namespace
}  // namespace warpsmith
