// The gradients of normalised and turned heads: a block per head goes through tokens, one value an access.
//   The gradients of the weights are added up in global memory, a row for each block. Bound: the number of instructions, and
//   two barriers for each head of each token.
#include "device/block.h"
#include "host/conditions.h"
#include "host/launch.h"
#include "host/registry.h"
#include "rotary/angles.cuh"
#include "transform/qk_norm_rope/backward/qk_norm_rope_backward.h"
#include "transform/qk_norm_rope/values.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 128;

template <class T>
__global__ void __launch_bounds__(kThreads) qk_norm_rope_backward_naive_kernel(const QkNormRopeBackwardArgs a) {
  __shared__ BlockReduceStorage<float, kThreads> squares, products;
  const RopeArgs& rope = a.forward.rope;
  const RotaryAngles& angles = rope.angles;
  const bool of_q = static_cast<int>(blockIdx.y) < rope.q.heads;
  const RotaryHeads heads = of_q ? rope.q : rope.k, grads = of_q ? a.q_grad : a.k_grad;
  const void* weight = of_q ? a.forward.q_weight : a.forward.k_weight;
  const int head = static_cast<int>(blockIdx.y) - (of_q ? 0 : rope.q.heads);
  float* partial = a.partial + (int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * rope.d;  // [d]
  const int tid = threadIdx.x, d = rope.d;
  const auto column = [&](int i, bool second) {  // of thread's pair or value i
    if (i >= angles.pairs) return angles.pairs + i;
    return angles.interleaved ? 2 * i + second : i + second * angles.pairs;
  };
  for (int i = tid; i < d - angles.pairs; i += kThreads) {
    partial[column(i, false)] = 0.0f;
    partial[column(i, true)] = 0.0f;
  }
  const int64_t tokens = int64_t{rope.batch} * rope.tokens;
  for (int64_t at = blockIdx.x; at < tokens; at += gridDim.x) {
    const int batch = static_cast<int>(at / rope.tokens), token = static_cast<int>(at - int64_t{batch} * rope.tokens);
    const T* x = static_cast<const T*>(heads.x) + batch * heads.x_batch + token * heads.x_token + head * heads.x_head;
    const T* grad =
        static_cast<const T*>(grads.x) + batch * grads.x_batch + token * grads.x_token + head * grads.x_head;
    T* dx = static_cast<T*>(heads.y) + batch * heads.y_batch + token * heads.y_token + head * heads.y_head;
    // turned back: of what was normalised
    const auto turned = [&](float (&g)[2], int i) {
      g[0] = to_float(grad[column(i, false)]);
      g[1] = 0.0f;
      if (i >= angles.pairs) return;
      g[1] = to_float(grad[column(i, true)]);
      float cosine, sine;
      rotary_angles<T, 1>(&cosine, &sine, angles, batch, token, i);
      rotate<T>(g[0], g[1], cosine, sine);
    };
    // add up
    float square = 0.0f, product = 0.0f;
    for (int i = tid; i < d - angles.pairs; i += kThreads) {
      float g[2];
      turned(g, i);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (j != 0 && i >= angles.pairs) continue;
        const int c = column(i, j != 0);
        const float value = to_float(x[c]);
        square = fmaf(value, value, square);
        product = fmaf(value, g[j] * head_weight<T>(weight, c, a.forward.weight_dtype), product);
      }
    }
    __syncthreads();  // the sums of the token before have been read
    const float rstd = head_rstd(block_reduce<kThreads>(square, squares), d, a.forward.eps);
    const float mean = block_reduce<kThreads>(product, products) * rstd / static_cast<float>(d);
    // write
    for (int i = tid; i < d - angles.pairs; i += kThreads) {
      float g[2];
      turned(g, i);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (j != 0 && i >= angles.pairs) continue;
        const int c = column(i, j != 0);
        const float normal = to_float(x[c]) * rstd;
        const float scaled = g[j] * head_weight<T>(weight, c, a.forward.weight_dtype);
        dx[c] = from_float<T>((scaled - normal * mean) * rstd);
        partial[c] = fmaf(g[j], normal, partial[c]);
      }
    }
  }
}

const char* takes(const QkNormRopeBackwardArgs& a) {
  return a.forward.rope.q.heads + a.forward.rope.k.heads < 65536 ? nullptr : "needs less than 65536 heads";
}

void launch(const QkNormRopeBackwardArgs& a, cudaStream_t stream) {
  const RopeArgs& rope = a.forward.rope;
  const int heads = rope.q.heads + rope.k.heads;
  const int64_t blocks = blocks_of_tokens(int64_t{rope.batch} * rope.tokens, heads);
  dispatch_float(rope.dtype, [&]<class T>() {
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(heads));
    warpsmith::launch<&qk_norm_rope_backward_naive_kernel<T>>({grid, kThreads}, stream, a);
  });
  sum_weights(a, blocks * rope.q.heads, blocks * rope.k.heads, stream);
}

const Register<QkNormRopeBackwardArgs> registered{"naive", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
