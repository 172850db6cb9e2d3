// Rotary positions at memory speed: a thread turns its place in four heads.
//   Against `pack`: eight loads start before the first is waited for, and the angles, whether read or computed, serve four
//   heads. Bound: DRAM.
#include "host/registry.h"
#include "transform/rope/packs.cuh"

namespace warpsmith {
namespace {

constexpr int kHeads = 4, kMinBlocks = 2;

template <class T>
__global__ void __launch_bounds__(kRopeThreads, kMinBlocks)
    rope_stream_kernel(const RopeArgs a, const RopeWork w, const StreamPolicy l2) {
  start_early();
  rope_packs<T, kHeads>(a, w, l2);
}

// Below, the threads of one head each do not fill a large GPU twice.
constexpr int64_t kLeastWork = 1 << 19;

bool suits(const RopeArgs& a) { return rope_work(a, 16 / size_of(a.dtype), 1) >= kLeastWork; }

void launch(const RopeArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    const RopeWork work(a, kPack<T>, kHeads);
    LaunchConfig config = rope_config(work);
    config.early = true;
    warpsmith::launch<&rope_stream_kernel<T>>(config, stream, a, work, rope_policy(a));
  });
}

const Register<RopeArgs> registered{"stream", /*min_sm=*/80, takes_packs, launch, suits};

}  // namespace
}  // namespace warpsmith
