// The gradients of weight and bias: what threads add up of their columns over many rows, and the sum of what blocks leave.
#pragma once

#include "device/convert.h"
#include "host/launch.h"
#include "host/registry.h"
#include "norm/backward/args.h"

namespace warpsmith {

// A sum of products over many rows.
struct PlainSum {
  float sum = 0.0f;
  __device__ __forceinline__ void add(float a, float b) { sum = fmaf(a, b, sum); }
};

// The same with what rounding loses carried along (Kahan 1965).
struct CompensatedSum {
  float sum = 0.0f, lost = 0.0f;
  __device__ __forceinline__ void add(float a, float b) {
    const float term = fmaf(a, b, -lost), next = sum + term;
    lost = (next - sum) - term;
    lost = fabsf(lost) < INFINITY ? lost : 0.0f;  // an infinite sum has lost nothing
    sum = next;
  }
};

// A thread's share of dw and db, in registers: of `packs` packs of `width` columns each.
template <class Sum, int packs, int width, bool has_bias>
struct OwnColumnSums {
  Sum dw[packs][width], db[has_bias ? packs : 1][width];

  __device__ __forceinline__ void add(int i, int j, float grad, float xhat) {
    dw[i][j].add(grad, xhat);
    if constexpr (has_bias) db[i][j].add(grad, 1.0f);
  }
  // Calls body(partial, sums) for each gradient that is asked for.
  template <class Body>
  __device__ __forceinline__ void each(float* partial_dw, float* partial_db, Body&& body) const {
    if (partial_dw != nullptr) body(partial_dw, dw);
    if constexpr (has_bias) {
      if (partial_db != nullptr) body(partial_db, db);
    }
  }
};

// Writes a pack's sums.
template <int width, class Sum>
__device__ __forceinline__ void store_sums(float* to, const Sum (&sums)[width]) {
#pragma unroll
  for (int j = 0; j < width; j += 4) {
    *reinterpret_cast<float4*>(to + j) = {sums[j].sum, sums[j + 1].sum, sums[j + 2].sum, sums[j + 3].sum};
  }
}

// After a rung has left `partials` rows of each in the workspace. See sum_partials.cuh.
void sum_partials(const NormBackwardArgs& a, int64_t partials, cudaStream_t stream);

}  // namespace warpsmith
