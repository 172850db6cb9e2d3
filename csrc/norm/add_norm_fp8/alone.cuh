// Norms into fp8 of x alone, the row in registers: what row/registers.cuh needs to know about them.
#pragma once

#include <type_traits>

#include "norm/add_norm_fp8/row.cuh"
#include "norm/layer_norm/resident.cuh"
#include "norm/rms_norm/row.cuh"

namespace warpsmith {

// Norm: RmsNorm or LayerNorm, whose y it replaces.
template <class Norm, class Y>
struct IntoFp8 : Norm {
  using T = typename Norm::Value;
  static constexpr bool kLayer = std::is_same_v<typename Norm::Total, RowStats>;

  Y* quantised;  // [rows, cols]
  QuantisedRounding rounding;
  float weight_offset;

  template <class Args>
  IntoFp8(const Args& args, const AddNormFp8Args& a)
      : Norm(args), quantised(static_cast<Y*>(a.y)), rounding{a.scale}, weight_offset(a.weight_offset) {}

  __device__ __forceinline__ void finish(int64_t row, int col, const uint4 (&x)[1], const typename Norm::Total& total,
                                         const typename Norm::Columns& columns) const {
    float values[kPack<T>], weight[kPack<T>];
    unpack<T>(values, x[0]);
    columns.weight.unpack_to(weight);
    if constexpr (kLayer) {
      float bias[kPack<T>];
      columns.bias.unpack_to(bias);
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) {
        values[i] = fmaf((values[i] - total.mean) * total.rstd, weight[i] + weight_offset, bias[i]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) values[i] = values[i] * total * (weight[i] + weight_offset);
    }
    store<Cache::streaming>(quantised + row * this->cols + col, rounding.template round<Y>(values));
  }
};

// RmsNormArgs or LayerNormArgs of x alone, without a y.
template <class Args>
Args lone_norm_args(const AddNormFp8Args& a) {
  Args args{};
  args.x = a.x;
  args.weight = a.weight;
  if constexpr (requires { args.bias; }) args.bias = a.bias;
  args.rows = a.rows;
  args.cols = a.cols;
  args.x_stride = a.x_stride;
  args.eps = a.eps;
  args.dtype = a.dtype;
  args.weight_dtype = a.weight_dtype;
  args.accumulator = Dtype::f32;
  return args;
}

inline void launch_alone(const AddNormFp8Args& a, cudaStream_t stream) {
  visit_dtypes(a.dtype, a.weight_dtype, [&]<class T, class W>() {
    dispatch_fp8(a.y_dtype, [&]<class Y>() {
      if (a.layer) {
        launch_row(IntoFp8<LayerNorm<T, W>, Y>(lone_norm_args<LayerNormArgs>(a), a), stream, LayerNormTiles<T, W>{});
      } else {
        launch_row(IntoFp8<RmsNorm<T, W>, Y>(lone_norm_args<RmsNormArgs>(a), a), stream, RowTiles{});
      }
    });
  });
}

}  // namespace warpsmith
