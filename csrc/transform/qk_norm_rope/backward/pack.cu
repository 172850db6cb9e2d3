// The gradients of normalised and turned heads in one sweep, 16 bytes an access.
//   Against `naive`: the lanes of a head hold it, and its gradient, in registers; a lane keeps its place over all tokens that
//   it goes through, so that it adds up its share of a weight's gradient in registers, finds the angles of a token once for
//   the heads of its chunk, and leaves one row a block. Bound: DRAM.
#include "host/registry.h"
#include "transform/qk_norm_rope/backward/qk_norm_rope_backward.h"
#include "transform/qk_norm_rope/places.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 128, kMinBlocks = 3;
constexpr int kChunk = 4;  // heads of a token that a lane goes through

struct BackwardWork {
  int64_t tokens;
  int q_chunks, lanes, lane_bits;
};

template <class T>
__global__ void __launch_bounds__(kThreads, kMinBlocks)
    qk_norm_rope_backward_pack_kernel(const QkNormRopeBackwardArgs args, const BackwardWork w) {
  start_early();
  constexpr int kWidth = kPack<T>;
  __shared__ float shares[kThreads][2 * kWidth + 1];  // one more: lanes of a head lie in other banks
  const RopeArgs& a = args.forward.rope;
  const int tid = threadIdx.x, groups = kThreads >> w.lane_bits, group = tid >> w.lane_bits;
  const HeadPlace place = head_place(a, tid & (w.lanes - 1), kWidth);
  const bool of_q = static_cast<int>(blockIdx.y) < w.q_chunks;
  const int head = (static_cast<int>(blockIdx.y) - (of_q ? 0 : w.q_chunks)) * kChunk;
  const int left = place.first ? min((of_q ? a.q.heads : a.k.heads) - head, kChunk) : 0;
  const int64_t x_head = of_q ? a.q.x_head : a.k.x_head, y_head = of_q ? a.q.y_head : a.k.y_head;
  const int64_t g_head = of_q ? args.q_grad.x_head : args.k_grad.x_head;
  const float per_d = 1.0f / static_cast<float>(a.d);

  float low_sum[kWidth] = {}, high_sum[kWidth] = {};
  const void* weight = of_q ? args.forward.q_weight : args.forward.k_weight;
  for (int64_t begin = int64_t{blockIdx.x} * groups; begin < w.tokens; begin += int64_t{gridDim.x} * groups) {
    const int64_t at = begin + group;
    const int here = at < w.tokens ? left : 0;
    const int batch = here > 0 ? static_cast<int>(at / a.tokens) : 0;
    const int token = here > 0 ? static_cast<int>(at - int64_t{batch} * a.tokens) : 0;
    const T* x = static_cast<const T*>(of_q ? a.q.x : a.k.x) + batch * (of_q ? a.q.x_batch : a.k.x_batch) +
                 token * (of_q ? a.q.x_token : a.k.x_token) + head * x_head + place.at;
    const T* g = static_cast<const T*>(of_q ? args.q_grad.x : args.k_grad.x) +
                 batch * (of_q ? args.q_grad.x_batch : args.k_grad.x_batch) +
                 token * (of_q ? args.q_grad.x_token : args.k_grad.x_token) + head * g_head + place.at;
    T* y = static_cast<T*>(of_q ? a.q.y : a.k.y) + batch * (of_q ? a.q.y_batch : a.k.y_batch) +
           token * (of_q ? a.q.y_token : a.k.y_token) + head * y_head + place.at;
    float cosine[kWidth], sine[kWidth];
    if (here > 0) place_angles<T>(cosine, sine, a, place, batch, token);
#pragma unroll 1
    for (int h = 0; h < kChunk; ++h) {
      // load
      Pack<T> low_x{}, high_x{}, low_g{}, high_g{};
      if (h < here) {
        load(low_x, x + h * x_head);
        load(low_g, g + h * g_head);
        if (place.second) {
          load(high_x, x + h * x_head + place.apart);
          load(high_g, g + h * g_head + place.apart);
        }
      }
      float low[kWidth], high[kWidth], low_grad[kWidth], high_grad[kWidth];
      to_float(low, low_x);
      to_float(high, high_x);
      to_float(low_grad, low_g);
      to_float(high_grad, high_g);
      if (place.turns && h < here) rotate_packs<T, kWidth>(low_grad, high_grad, cosine, sine, a.angles.interleaved);
      // add up: what weights are asked for is in L1, and registers are scarce
      float scaled_low[kWidth] = {}, scaled_high[kWidth] = {};
      if (h < here) {
        head_weights<T>(scaled_low, weight, place.at, args.forward.weight_dtype);
        if (place.second) head_weights<T>(scaled_high, weight, place.at + place.apart, args.forward.weight_dtype);
      }
      float product = 0.0f;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        scaled_low[i] *= low_grad[i];
        scaled_high[i] *= high_grad[i];
        product = fmaf(low[i], scaled_low[i], fmaf(high[i], scaled_high[i], product));
      }
      const float square = sum_over_head(sum_of_squares(low, high), w.lanes);
      product = sum_over_head(product, w.lanes);
      if (h >= here) continue;
      const float rstd = head_rstd(square, a.d, args.forward.eps), mean = product * rstd * per_d;
      // write
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float low_normal = low[i] * rstd, high_normal = high[i] * rstd;
        low[i] = (scaled_low[i] - low_normal * mean) * rstd;
        high[i] = (scaled_high[i] - high_normal * mean) * rstd;
        low_sum[i] = fmaf(low_grad[i], low_normal, low_sum[i]);
        high_sum[i] = fmaf(high_grad[i], high_normal, high_sum[i]);
      }
      from_float(low_x, low);
      from_float(high_x, high);
      store<Cache::streaming>(y + h * y_head, low_x);
      if (place.second) store<Cache::streaming>(y + h * y_head + place.apart, high_x);
    }
  }
  // leave the block's share of the weight's gradient
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    shares[tid][i] = low_sum[i];
    shares[tid][kWidth + i] = high_sum[i];
  }
  __syncthreads();
  float* partial = args.partial + (int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * a.d;  // [d]
  for (int i = tid; i < w.lanes * 2 * kWidth; i += kThreads) {
    const int lane = i / (2 * kWidth), value = i - lane * 2 * kWidth;
    const HeadPlace of = head_place(a, lane, kWidth);
    const bool lower = value < kWidth;
    if (!(lower ? of.first : of.first && of.second)) continue;
    float sum = 0.0f;
    for (int j = 0; j < groups; ++j) sum += shares[(j << w.lane_bits) + lane][value];
    partial[of.at + (lower ? value : of.apart + value - kWidth)] = sum;
  }
}

const char* takes(const QkNormRopeBackwardArgs& a) {
  const int size = size_of(a.forward.rope.dtype), width = 16 / size;
  bool packs = true;
  for (const RotaryHeads* heads : {&a.q_grad, &a.k_grad}) {
    if (heads->heads == 0) continue;
    packs = packs && in_packs(heads->x, heads->x_batch, heads->x_token, heads->x_head, width, size);
  }
  return unmet({a.forward.rope.q.heads + a.forward.rope.k.heads < 65536 ? nullptr : "needs less than 65536 heads",
                needs_norm_packs(a.forward), packs ? nullptr : "needs gradients aligned to 16 bytes"});
}

void launch(const QkNormRopeBackwardArgs& a, cudaStream_t stream) {
  const RopeArgs& rope = a.forward.rope;
  const int64_t q_chunks = ceil_div(rope.q.heads, kChunk), k_chunks = ceil_div(rope.k.heads, kChunk);
  const NormWork lanes(a.forward, 16 / size_of(rope.dtype), kChunk);
  const BackwardWork work{.tokens = int64_t{rope.batch} * rope.tokens,
                          .q_chunks = static_cast<int>(q_chunks),
                          .lanes = lanes.lanes,
                          .lane_bits = lanes.lane_bits};
  const int64_t blocks = blocks_of_tokens(ceil_div(work.tokens, kThreads >> work.lane_bits), q_chunks + k_chunks);
  dispatch_float(rope.dtype, [&]<class T>() {
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(q_chunks + k_chunks));
    const LaunchConfig config{.grid = grid, .block = kThreads, .early = true};
    warpsmith::launch<&qk_norm_rope_backward_pack_kernel<T>>(config, stream, a, work);
  });
  sum_weights(a, blocks * q_chunks, blocks * k_chunks, stream);
}

const Register<QkNormRopeBackwardArgs> registered{"pack", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
