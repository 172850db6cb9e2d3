// The gradients of both weights from what blocks left of them, in an order that is always the same.
#include "device/convert.h"
#include "device/start_early.h"
#include "host/launch.h"
#include "transform/qk_norm_rope/backward/qk_norm_rope_backward.h"

namespace warpsmith {
namespace {

constexpr int kColumns = 32, kLanes = 16;

struct WeightSum {
  const float* partial;  // [q_rows + k_rows, d]
  void *dq_weight, *dk_weight;
  int q_rows, k_rows, d;
  Dtype dtype;
};

// A block of [lanes, columns] threads: lane by lane down the rows, then a tree over the lanes.
__global__ void __launch_bounds__(kColumns* kLanes) qk_norm_rope_weights_kernel(const WeightSum a) {
  start_early();
  __shared__ float sums[kLanes][kColumns];
  const int column = threadIdx.x % kColumns, lane = threadIdx.x / kColumns;
  const int at = static_cast<int>(blockIdx.x) * kColumns + column;
  const bool of_q = blockIdx.y == 0;
  const int rows = of_q ? a.q_rows : a.k_rows;
  const float* partial = a.partial + (of_q ? 0 : int64_t{a.q_rows} * a.d);
  float sum = 0.0f;
  if (at < a.d) {
#pragma unroll 4
    for (int row = lane; row < rows; row += kLanes) sum += partial[int64_t{row} * a.d + at];
  }
  sums[lane][column] = sum;
  __syncthreads();
  for (int half = kLanes / 2; half > 0; half /= 2) {
    if (lane < half) sums[lane][column] += sums[lane + half][column];
    __syncthreads();
  }
  if (lane != 0 || at >= a.d) return;
  void* const out = of_q ? a.dq_weight : a.dk_weight;
  const float total = sums[0][column];
  if (a.dtype == Dtype::f32) {
    static_cast<float*>(out)[at] = total;
  } else if (a.dtype == Dtype::f16) {
    static_cast<f16*>(out)[at] = from_float<f16>(total);
  } else {
    static_cast<bf16*>(out)[at] = from_float<bf16>(total);
  }
}

}  // namespace

void sum_weights(const QkNormRopeBackwardArgs& a, int64_t q_rows, int64_t k_rows, cudaStream_t stream) {
  const WeightSum sum{.partial = a.partial,
                      .dq_weight = a.dq_weight,
                      .dk_weight = a.dk_weight,
                      .q_rows = static_cast<int>(q_rows),
                      .k_rows = static_cast<int>(k_rows),
                      .d = a.forward.rope.d,
                      .dtype = a.forward.weight_dtype};
  const dim3 grid(static_cast<unsigned>(ceil_div(sum.d, kColumns)), 2);
  launch<&qk_norm_rope_weights_kernel>({.grid = grid, .block = kColumns * kLanes, .early = true}, stream, sum);
}

}  // namespace warpsmith
