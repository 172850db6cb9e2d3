// RMS norm of heads, then rotary positions, 16 bytes an access: the lanes of a head hold it in registers.
//   Against `naive`: a head is read once, by a few lanes, which add its squares up with shuffles. Bound: latency where tokens
//   are few; angles and weights, which every thread finds for one head alone, where they are many.
#include "host/registry.h"
#include "transform/qk_norm_rope/places.cuh"

namespace warpsmith {
namespace {

constexpr int kHeads = 1;

template <class T>
__global__ void __launch_bounds__(kRopeThreads, 2)
    qk_norm_rope_pack_kernel(const QkNormRopeArgs a, const NormWork w, const StreamPolicy l2) {
  start_early();
  norm_rope_places<T, kHeads>(a, w, l2);
}

void launch(const QkNormRopeArgs& a, cudaStream_t stream) {
  dispatch_float(a.rope.dtype, [&]<class T>() {
    const NormWork work(a, kPack<T>, kHeads);
    warpsmith::launch<&qk_norm_rope_pack_kernel<T>>(norm_rope_config(work), stream, a, work, rope_policy(a.rope));
  });
}

const Register<QkNormRopeArgs> registered{"pack", /*min_sm=*/80, needs_norm_packs, launch};

}  // namespace
}  // namespace warpsmith
