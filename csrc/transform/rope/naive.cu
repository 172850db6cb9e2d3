// Rotary positions, a block per token and a pair a thread; heads of any length and alignment.
//   Every thread finds the angle of its pair anew for each head. Bound: the number of instructions.
#include "host/conditions.h"
#include "host/launch.h"
#include "host/registry.h"
#include "rotary/angles.cuh"
#include "transform/rope/rope.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 128;

template <class T>
__device__ __forceinline__ void rotate_heads(const RopeArgs& a, const RotaryHeads& heads, int batch, int token) {
  const RotaryAngles& angles = a.angles;
  const int rest = a.in_place ? 0 : a.d - a.rotary(), per_head = angles.pairs + rest;
  for (int at = static_cast<int>(threadIdx.x); at < heads.heads * per_head; at += kThreads) {
    const int head = at / per_head, i = at - head * per_head;
    const T* x = static_cast<const T*>(heads.x) + batch * heads.x_batch + token * heads.x_token + head * heads.x_head;
    T* y = static_cast<T*>(heads.y) + batch * heads.y_batch + token * heads.y_token + head * heads.y_head;
    if (i >= angles.pairs) {  // stays as it is
      y[angles.pairs + i] = x[angles.pairs + i];
      continue;
    }
    float cosine, sine;
    rotary_angles<T, 1>(&cosine, &sine, angles, batch, token, i);
    const int first = angles.interleaved ? 2 * i : i, second = angles.interleaved ? 2 * i + 1 : i + angles.pairs;
    float low = to_float(x[first]), high = to_float(x[second]);
    rotate<T>(low, high, cosine, sine);
    y[first] = from_float<T>(low);
    y[second] = from_float<T>(high);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) rope_naive_kernel(const RopeArgs a) {
  const int batch = static_cast<int>(blockIdx.x) / a.tokens, token = static_cast<int>(blockIdx.x) - batch * a.tokens;
  rotate_heads<T>(a, a.q, batch, token);
  rotate_heads<T>(a, a.k, batch, token);
}

const char* takes(const RopeArgs& a) { return needs_grid_rows(int64_t{a.batch} * a.tokens); }

void launch(const RopeArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    const dim3 grid(static_cast<unsigned>(a.batch * a.tokens));
    warpsmith::launch<&rope_naive_kernel<T>>({grid, kThreads}, stream, a);
  });
}

const Register<RopeArgs> registered{"naive", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
