// RMS norm of heads, then rotary positions, at memory speed: lanes take their place in four heads.
//   Against `pack`: eight loads start before the first is waited for, the sums of four heads are on their way together, and
//   angles and weights serve all four. Bound: DRAM.
#include "host/registry.h"
#include "transform/qk_norm_rope/places.cuh"

namespace warpsmith {
namespace {

constexpr int kHeads = 4;

template <class T>
__global__ void __launch_bounds__(kRopeThreads, 2)
    qk_norm_rope_stream_kernel(const QkNormRopeArgs a, const NormWork w, const StreamPolicy l2) {
  start_early();
  norm_rope_places<T, kHeads>(a, w, l2);
}

// Below, the threads of one head each do not fill a large GPU twice.
constexpr int64_t kLeastWork = 1 << 19;

bool suits(const QkNormRopeArgs& a) { return rope_work(a.rope, 16 / size_of(a.rope.dtype), 1) >= kLeastWork; }
void launch(const QkNormRopeArgs& a, cudaStream_t stream) {
  dispatch_float(a.rope.dtype, [&]<class T>() {
    const NormWork work(a, kPack<T>, kHeads);
    warpsmith::launch<&qk_norm_rope_stream_kernel<T>>(norm_rope_config(work), stream, a, work, rope_policy(a.rope));
  });
}

const Register<QkNormRopeArgs> registered{"stream", /*min_sm=*/80, needs_norm_packs, launch, suits};

}  // namespace
}  // namespace warpsmith
