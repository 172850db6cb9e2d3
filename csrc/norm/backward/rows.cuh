// What the kernels of the norms' gradients share: rows, weights and gradients as they are read, and sums over a row.
//
// Behind an f32 residual stream gradients and weights of 16 bits are branches that every thread takes alike, where values
// are loaded and stored. A weight in f32 beside 16-bit rows has kernels of its own, few of them: that branch would cost the
// others a predicated load for every weight of every row.
#pragma once

#include <type_traits>

#include "device/copy_async.h"
#include "device/ptx/copy.h"
#include "host/min_max.h"
#include "norm/backward/args.h"
#include "norm/branch.cuh"
#include "norm/row.cuh"

namespace warpsmith {

// --- where x comes from ---

// It is the norm's own input or output.
struct Alone {
  static constexpr bool kResidual = false;
  explicit Alone(const NormBackwardArgs&) {}
};

// The sum of a branch and a residual, through which further gradients may come.
struct Residual {
  static constexpr bool kResidual = true;
  explicit Residual(const NormBackwardArgs&) {}

  // Turns n neighbours of dx, of which the first stands at (row, col), into those of the branch.
  template <int n>
  __device__ __forceinline__ void to_branch(float (&)[n], int64_t, int64_t) const {}
};

// Dropout and a factor for each row on the branch.
struct DroppedResidual {
  static constexpr bool kResidual = true;
  Branch branch;
  int64_t rows;

  explicit DroppedResidual(const NormBackwardArgs& a) : branch{a.dropout, a.row_scale, a.cols}, rows(a.rows) {}

  template <int n>
  __device__ __forceinline__ void to_branch(float (&d)[n], int64_t row, int64_t col) const {
    branch.apply(d, row, col);
  }

  // What the packs of a thread share on the way from dx to the branch, found once a row; row_scale is read a row ahead.
  struct DxState {
    uint32_t low, high;  // of the generator's groups of four elements before the thread's first in the row
    float factor;        // of the row
    float coming;        // row_scale of the next

    __device__ __forceinline__ int64_t before() const { return static_cast<int64_t>((uint64_t{high} << 32 | low) * 4); }
  };

  __device__ __forceinline__ float scale_of(int64_t row) const {
    return branch.row_scale == nullptr || row >= rows ? 1.0f : branch.row_scale[row];
  }
  // Before the first row.
  __device__ __forceinline__ void set_out(DxState& state, int64_t row) const { state.coming = scale_of(row); }
  // With every row. col: of the thread's first pack.
  __device__ __forceinline__ void enter(DxState& state, int64_t row, int col, int64_t next) const {
    const uint64_t group = static_cast<uint64_t>(row * branch.cols + col) / 4;
    state.low = low_word(group);
    state.high = high_word(group);
    state.factor = branch.dropout.scale * state.coming;
    state.coming = scale_of(next);
  }
  // n neighbours, of which the first stands `ahead` elements behind the first of that pack.
  template <int n>
  __device__ __forceinline__ void to_branch(float (&d)[n], const DxState& state, int ahead) const {
#pragma unroll
    for (int i = 0; i < n; ++i) d[i] *= state.factor;
    if (!branch.dropout.active) return;
    const uint32_t groups = ahead / 4, low = state.low + groups, high = state.high + (low < groups ? 1 : 0);
#pragma unroll
    for (int i = 0; i < n; i += 4) {
      bool kept[4];
      branch.dropout.keeps_group(kept, uint64_t{high} << 32 | (low | i / 4));
#pragma unroll
      for (int j = 0; j < 4; ++j) d[i + j] = kept[j] ? d[i + j] : 0.0f;
    }
  }
};

// Sources that keep a state per thread between dx and the branch.
template <class Source>
concept HasDxState = requires { typename Source::DxState; };

struct NoDxState {};

template <class Source>
struct DxStateOf {
  using type = NoDxState;
};
template <HasDxState Source>
struct DxStateOf<Source> {
  using type = typename Source::DxState;
};

// Beside 16-bit rows the weight is f32.
template <class Source>
struct WideWeight : Source {
  using Source::Source;
};

template <class Source>
inline constexpr bool kWideWeight = false;
template <class Source>
inline constexpr bool kWideWeight<WideWeight<Source>> = true;

// --- rows ---

// n values of 16 bits beside f32 rows, or of f32 beside 16-bit rows.
template <class T, int n>
__device__ __forceinline__ void read_floats(float (&to)[n], const void* from) {
  constexpr int kEach = n * sizeof(T) > 16 ? 16 / static_cast<int>(sizeof(T)) : n;
#pragma unroll
  for (int i = 0; i < n; i += kEach) {
    float part[kEach];
    to_float(part, reinterpret_cast<const Vec<T, kEach>*>(from)[i / kEach]);
#pragma unroll
    for (int j = 0; j < kEach; ++j) to[i + j] = part[j];
  }
}

// Calls body.template operator()<T>() for the dtype, the same for all threads.
template <class Body>
__device__ __forceinline__ void with_float_type(Dtype dtype, Body&& body) {
  if (dtype == Dtype::f32) {
    body.template operator()<float>();
  } else if (dtype == Dtype::f16) {
    body.template operator()<f16>();
  } else {
    body.template operator()<bf16>();
  }
}

// The weight or the bias of the columns. A thread may hold a pack of it as a Pack<X>, unless it is wide: f32 beside 16-bit
// rows, and read again wherever it is asked for.
template <class X, bool wide>
struct ColumnParameter {
  static constexpr int n = kPack<X>;
  const void* values;  // [cols], null for `absent`
  float absent;
  Dtype dtype;

  __device__ __forceinline__ Pack<X> load(int64_t col) const {
    Pack<X> pack;
    if (values == nullptr || wide) {
#pragma unroll
      for (int j = 0; j < n; ++j) pack[j] = from_float<X>(absent);
    } else if (sizeof(X) == 2 || dtype == Dtype::f32) {
      reinterpret_cast<uint4&>(pack) = *reinterpret_cast<const uint4*>(static_cast<const X*>(values) + col);
    } else {
      float floats[n];
      if (dtype == Dtype::f16) {
        read_floats<f16>(floats, static_cast<const f16*>(values) + col);
      } else {
        read_floats<bf16>(floats, static_cast<const bf16*>(values) + col);
      }
      from_float(pack, floats);
    }
    return pack;
  }
  __device__ __forceinline__ void floats(float (&to)[n], const Pack<X>& held, int64_t col) const {
    if (wide && values != nullptr) {
      read_floats<float>(to, static_cast<const float*>(values) + col);
    } else {
      to_float(to, held);
    }
  }
  __device__ float at(int64_t col) const {
    if (values == nullptr) return absent;
    float value = 0.0f;
    with_float_type(dtype, [&]<class T>() { value = to_float(static_cast<const T*>(values)[col]); });
    return value;
  }
};

// X_: x, grad_x and dx.
template <class X_, class Source_>
struct NormBackwardRows {
  using X = X_;
  using Source = Source_;
  static constexpr int kWidth = kPack<X>;
  static constexpr bool kResidual = Source::kResidual;
  static constexpr bool kAnyGrad = kResidual && std::is_same_v<X, float>;  // gradients of any dtype
  // In a lean dx terms cancel but for what rounding each to f32 leaves: one instruction fewer a value, where rows are
  // longer than a value or two and dx has 16 bits.
  static constexpr bool kLean = sizeof(X) == 2;

  const void* grad;   // [rows, cols], grad_stride elements apart
  const X* x;         // [rows, cols], x_stride elements apart
  const X* grad_x;    // [rows, cols], grad_x_stride elements apart; null for zeros
  const float* rstd;  // [rows] or null
  X* dx_rows;         // [rows, cols]
  void* branch_dx;    // [rows, cols], in grad_dtype, or null
  float* partial_dw;  // [partials, cols] or null
  float* partial_db;  // [partials, cols] or null
  float* stats;       // [rows, kStats] or null
  int64_t rows, cols, grad_stride, x_stride, grad_x_stride;
  float eps, weight_offset, inverse_cols;
  Dtype grad_dtype;
  bool beyond_l2;  // the inputs alone would fill L2
  using Parameter = ColumnParameter<X, kWideWeight<Source>>;
  Parameter weight, bias;
  Source source;

  explicit NormBackwardRows(const NormBackwardArgs& a)
      : grad(a.grad),
        x(static_cast<const X*>(a.x)),
        grad_x(static_cast<const X*>(a.grad_x)),
        rstd(a.rstd),
        dx_rows(static_cast<X*>(a.dx)),
        branch_dx(a.branch_dx),
        partial_dw(a.partial_dw),
        partial_db(a.partial_db),
        stats(a.stats),
        rows(a.rows),
        cols(a.cols),
        grad_stride(a.grad_stride),
        x_stride(a.x_stride),
        grad_x_stride(a.grad_x_stride),
        eps(a.eps),
        weight_offset(a.weight_offset),
        inverse_cols(1.0f / static_cast<float>(a.cols)),
        grad_dtype(a.grad_dtype),
        beyond_l2(a.rows * a.cols * (size_of(a.grad_dtype) + (a.grad_x == nullptr ? 1 : 2) * size_of(a.dtype)) >=
                  kL2Bytes),
        weight{a.weight, 1.0f, a.weight_dtype},
        bias{a.bias, 0.0f, a.weight_dtype},
        source(a) {}

  // Long streams are read so that the results leave L2 first.
  __device__ uint64_t load_policy() const { return beyond_l2 ? ptx::policy_evict_last() : ptx::policy_evict_normal(); }

  __device__ const X* x_row(int64_t row) const { return x + row * x_stride; }
  __device__ const X* grad_x_row(int64_t row) const { return grad_x + row * grad_x_stride; }
  __device__ X* dx_row(int64_t row) const { return dx_rows + row * cols; }

  // Gradients may be narrower than x, and then fill half of their place in shared memory.
  __device__ __forceinline__ bool narrow_grad() const { return kAnyGrad && grad_dtype != Dtype::f32; }
  __device__ __forceinline__ int grad_bytes() const { return narrow_grad() ? 2 : static_cast<int>(sizeof(X)); }
  __device__ __forceinline__ const char* grad_row(int64_t row) const {
    return static_cast<const char*>(grad) + row * grad_stride * grad_bytes();
  }
  __device__ __forceinline__ void copy_grad(bool go, uint4* to, const char* from, uint64_t policy) const {
    copy_async_if(go && !narrow_grad(), reinterpret_cast<Pack<X>*>(to), reinterpret_cast<const X*>(from), policy);
    if constexpr (kAnyGrad) {
      copy_async_if(go && narrow_grad(), reinterpret_cast<Vec<f16, kWidth>*>(to), reinterpret_cast<const f16*>(from),
                    policy);
    }
  }
  __device__ __forceinline__ void grad_floats(float (&to)[kWidth], const uint4& raw) const {
    if (!narrow_grad()) {
      to_float(to, reinterpret_cast<const Pack<X>&>(raw));
    } else if (grad_dtype == Dtype::f16) {
      read_floats<f16>(to, &raw);
    } else {
      read_floats<bf16>(to, &raw);
    }
  }
  __device__ __forceinline__ void store_branch(int64_t at, const float (&d)[kWidth]) const {
    const auto write = [&]<class T>() {
      Vec<T, kWidth> out;
      from_float(out, d);
      store<Cache::streaming>(static_cast<T*>(branch_dx) + at, out);
    };
    if (!narrow_grad()) {
      write.template operator()<X>();
    } else if (grad_dtype == Dtype::f16) {
      write.template operator()<f16>();
    } else {
      write.template operator()<bf16>();
    }
  }
  // Weights as they are multiplied with, from those that are stored.
  __device__ __forceinline__ void centre(float (&weights)[kWidth]) const {
    if constexpr (kResidual) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) weights[j] += weight_offset;
    }
  }
};

// A norm for rows of every dtype.
template <template <class, class> class Norm, class Source>
struct NormFamily {
  template <class X>
  using Of = Norm<X, Source>;
  template <class X>
  using OfWide = Norm<X, WideWeight<Source>>;
};

// Calls body.template operator()<Norm, wide>() for the dtypes of a call.
template <class Norms, class Body>
void visit_norm_backward(const NormBackwardArgs& a, Body&& body) {
  dispatch_float(a.dtype, [&]<class X>() {
    if constexpr (sizeof(X) == 2) {
      if (a.weight_dtype == Dtype::f32) return body.template operator()<typename Norms::template OfWide<X>, true>();
    }
    body.template operator()<typename Norms::template Of<X>, false>();
  });
}

// --- sums over a row ---

// What a warp has of a row.
struct WarpShare {
  float count;          // values
  float inverse_count;  // 0 for none
  float inverse_heads;  // of the lanes that have a value at all, 0 for none

  // Of `items` of `width` values, which go round the threads of the block.
  __device__ static WarpShare of_block(int64_t items, int width) {
    const int first = threadIdx.x / kWarp * kWarp;
    const auto within = [&](int64_t n) { return static_cast<int>(min(max(n - first, int64_t{0}), int64_t{kWarp})); };
    const auto inverse = [](float x) { return x > 0.0f ? 1.0f / x : 0.0f; };
    const int threads = blockDim.x;
    const float count = static_cast<float>((items / threads * kWarp + within(items % threads)) * width);
    return {count, inverse(count), inverse(static_cast<float>(within(items)))};
  }
};

template <class Floats>
inline constexpr int kFloats = static_cast<int>(sizeof(Floats) / sizeof(float));

// Lanes over which `most` values, one in each or several, are to be summed.
template <int most>
inline constexpr int kSumLanes = most < kWarp ? most : kWarp;

// The floats that begin each of `count` parts of a row, at most `most`, added up over the lanes of a warp.
template <int most, int n, class Part>
__device__ __forceinline__ void sum_parts(float (&sums)[n], const Part* parts, int count) {
  constexpr int kLanes = kSumLanes<most>;
  const int lane = threadIdx.x % kLanes;
#pragma unroll
  for (int k = 0; k < n; ++k) sums[k] = 0.0f;
#pragma unroll
  for (int i = 0; i < most; i += kLanes) {
    if (i + lane >= count) continue;
    const Part part = parts[i + lane];
#pragma unroll
    for (int k = 0; k < n; ++k) sums[k] += reinterpret_cast<const float (&)[n]>(part)[k];
  }
  warp_reduce_all<kLanes>(sums);
}

// Over the block, of at most `most` warps; every thread gets the row's Partial. Two calls in a row need two buffers.
template <int most, class Norm>
__device__ __forceinline__ typename Norm::Partial block_combine(const Norm& v, const typename Norm::Partial& mine,
                                                                typename Norm::Partial (&parts)[most]) {
  const int warps = blockDim.x / kWarp;
  if (warps == 1) return mine;
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = mine;
  __syncthreads();
  return v.template combine<most>(parts, warps);
}

}  // namespace warpsmith
