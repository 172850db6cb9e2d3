// RMS norm of heads, then rotary positions: a block per token, a warp per head, one value an access.
//   A head is read twice, the second time from L1. Bound: the number of instructions.
#include "device/warp.h"
#include "host/conditions.h"
#include "host/launch.h"
#include "host/registry.h"
#include "rotary/angles.cuh"
#include "transform/qk_norm_rope/values.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 128, kMinBlocks = 4;

template <class T>
__device__ __forceinline__ void normalise_heads(const QkNormRopeArgs& a, const RotaryHeads& heads, const void* weight,
                                                int batch, int token) {
  const RopeArgs& rope = a.rope;
  const RotaryAngles& angles = rope.angles;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int head = warp; head < heads.heads; head += kThreads / kWarp) {
    const T* x = static_cast<const T*>(heads.x) + batch * heads.x_batch + token * heads.x_token + head * heads.x_head;
    T* y = static_cast<T*>(heads.y) + batch * heads.y_batch + token * heads.y_token + head * heads.y_head;
    float sum = 0.0f;
    for (int i = lane; i < rope.d; i += kWarp) sum = fmaf(to_float(x[i]), to_float(x[i]), sum);
    const float rstd = head_rstd(warp_reduce(sum), rope.d, a.eps);
    const auto normal = [&](int i) { return to_float(x[i]) * rstd * head_weight<T>(weight, i, a.weight_dtype); };
    for (int i = lane; i < rope.d - angles.pairs; i += kWarp) {
      if (i >= angles.pairs) {  // does not turn
        y[angles.pairs + i] = from_float<T>(normal(angles.pairs + i));
        continue;
      }
      float cosine, sine;
      rotary_angles<T, 1>(&cosine, &sine, angles, batch, token, i);
      const int first = angles.interleaved ? 2 * i : i, second = angles.interleaved ? 2 * i + 1 : i + angles.pairs;
      float low = normal(first), high = normal(second);
      rotate<T>(low, high, cosine, sine);
      y[first] = from_float<T>(low);
      y[second] = from_float<T>(high);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, kMinBlocks) qk_norm_rope_naive_kernel(const QkNormRopeArgs a) {
  const int batch = static_cast<int>(blockIdx.x) / a.rope.tokens;
  const int token = static_cast<int>(blockIdx.x) - batch * a.rope.tokens;
  normalise_heads<T>(a, a.rope.q, a.q_weight, batch, token);
  normalise_heads<T>(a, a.rope.k, a.k_weight, batch, token);
}

const char* takes(const QkNormRopeArgs& a) { return needs_grid_rows(int64_t{a.rope.batch} * a.rope.tokens); }

void launch(const QkNormRopeArgs& a, cudaStream_t stream) {
  dispatch_float(a.rope.dtype, [&]<class T>() {
    const dim3 grid(static_cast<unsigned>(a.rope.batch * a.rope.tokens));
    warpsmith::launch<&qk_norm_rope_naive_kernel<T>>({grid, kThreads}, stream, a);
  });
}

const Register<QkNormRopeArgs> registered{"naive", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
