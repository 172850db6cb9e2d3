// Sums in f32, cut: every few slots are added up by themselves, as rounding errors grow with the length of a sum.
#pragma once

namespace warpsmith {

// Of rows of weights and vectors, as one lane has them.
template <int rows, int vectors>
class CutSums {
 public:
  // Before each slot of values is added.
  __device__ __forceinline__ void begin_slot() {
    constexpr int kMostSlots = 8;
    if (slots_ == kMostSlots) {
#pragma unroll
      for (int i = 0; i < rows; ++i) {
#pragma unroll
        for (int v = 0; v < vectors; ++v) {
          total_[i][v] += sum_[i][v];
          sum_[i][v] = 0.0f;
        }
      }
      slots_ = 0;
    }
    ++slots_;
  }

  // Adds four products.
  __device__ __forceinline__ void add(int row, int vector, const float4& w, const float4& x) {
    float& sum = sum_[row][vector];
    sum = fmaf(w.x, x.x, sum);
    sum = fmaf(w.y, x.y, sum);
    sum = fmaf(w.z, x.z, sum);
    sum = fmaf(w.w, x.w, sum);
  }

  __device__ __forceinline__ float total(int row, int vector) const { return total_[row][vector] + sum_[row][vector]; }

 private:
  float sum_[rows][vectors]{}, total_[rows][vectors]{};
  int slots_ = 0;  // in sum_
};

}  // namespace warpsmith
