// The row of a norm, as the engines in row/ and norm/forward ask for it: what is loaded, added, gathered and written.
#pragma once

#include <type_traits>

#include "device/saturate.h"
#include "host/launch.h"
#include "host/registry.h"
#include "norm/branch.cuh"
#include "norm/forward/args.h"
#include "norm/forward/statistics.cuh"
#include "row/registers.cuh"

namespace warpsmith {

// Where h comes from and where y goes.
struct OfX {
  static constexpr bool kSums = false;     // h = x + residual; or else x
  static constexpr bool kDropout = false;  // of x, before the addition
  static constexpr bool kFp8 = false;      // y
  static constexpr bool kMixed =
      false;  // x of 16 bits and an f32 residual: which 16 bits, and what weights, is seen at
              // run time
};
struct OfXToFp8 : OfX {
  static constexpr bool kFp8 = true;
};
struct OfSum : OfX {
  static constexpr bool kSums = true;
};
struct OfDropoutSum : OfSum {
  static constexpr bool kDropout = true;
};
struct OfSumToFp8 : OfSum {
  static constexpr bool kFp8 = true;
};
template <class Flow>
struct Mixed : Flow {
  static constexpr bool kMixed = true;
};

// T: of h; of x and the residual too, but where they are mixed. Norm: RmsNorm or LayerNorm.
template <class T, class Norm_, class Flow_>
struct NormRow : NormArgs {
  using Value = T;
  using Norm = Norm_;
  using Flow = Flow_;
  using Stats = typename Norm::Stats;
  struct ScaledStatistics : RowStatistics {
    float factor;  // of y in fp8, one for all rows: read once a row instead of with every pack
  };
  using Total = std::conditional_t<Flow::kFp8, ScaledStatistics, RowStatistics>;
  static constexpr int kInputs = Flow::kSums ? 2 : 1, kWidth = kPack<T>;
  static constexpr int kInputBytes = Flow::kMixed ? 8 : 16;  // of x for a pack
  static constexpr bool kJoins = Flow::kSums;
  static constexpr bool kLayer = Norm::kLayer;
  static constexpr bool kOffsets = Flow::kSums || Flow::kFp8;  // weights may be centred at zero

  float partial_scale;  // a power of two on each thread's sums, so that a 16-bit total does not overflow
  float inverse_count;  // 1 / (cols * partial_scale)
  bool beyond_l2;       // the inputs alone would fill L2
  bool wide_weights;    // of f32, beside 16-bit values
  Branch branch;

  explicit NormRow(const NormArgs& a) : NormArgs(a), partial_scale(1.0f), branch{a.dropout, a.row_scale, a.cols} {
    constexpr int64_t kUnscaledCols = 1024;
    if (accumulator == Dtype::f16) {
      for (int64_t n = cols; n > kUnscaledCols; n = (n + 1) / 2) partial_scale *= 0.5f;
    }
    inverse_count = 1.0f / (static_cast<float>(cols) * partial_scale);
    const int bytes = size_of(dtype) + (Flow::kSums && residual != nullptr ? size_of(residual_dtype) : 0);
    beyond_l2 = rows * cols * bytes >= kL2Bytes;
    wide_weights = sizeof(T) == 2 && weight_dtype == Dtype::f32;
  }

  __device__ static uint4 padding() { return {}; }
  // A stream longer than L2 is read with the policy that lets the results leave first; a short one stays out of the
  // way, so that the results are found in L2 by whoever reads them next.
  __device__ uint64_t load_policy() const { return beyond_l2 ? ptx::policy_evict_last() : ptx::policy_evict_normal(); }

  __device__ const T* x_row(int64_t row) const { return static_cast<const T*>(x) + row * x_stride; }
  __device__ const T* residual_row(int64_t row) const {
    return static_cast<const T*>(residual) + row * residual_stride;
  }
  __device__ T* h_row(int64_t row) const { return static_cast<T*>(h) + row * cols; }
  using Input = std::conditional_t<Flow::kMixed, void, T>;
  __device__ const Input* input(int which, int64_t row) const {
    if constexpr (Flow::kMixed) {
      if (which == 0) return static_cast<const uint16_t*>(x) + row * x_stride;
    }
    return which == 0 ? x_row(row) : residual_row(row);
  }
  __device__ bool has_input(int which) const { return which == 0 || residual != nullptr; }

  // h of a pack of x and one of the residual. 16-bit sums need no detour through f32: that would round to the same value.
  __device__ __forceinline__ uint4 join(int64_t row, int col, const uint4& a, const uint4& b) const {
    uint4 sum;
    if constexpr (sizeof(T) == 2 && !Flow::kDropout) {
      using Pair = std::conditional_t<std::is_same_v<T, f16>, __half2, __nv_bfloat162>;
      const uint32_t left[4] = {a.x, a.y, a.z, a.w}, right[4] = {b.x, b.y, b.z, b.w};
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Pair pair = __hadd2(reinterpret_cast<const Pair&>(left[i]), reinterpret_cast<const Pair&>(right[i]));
        words[i] = reinterpret_cast<const uint32_t&>(pair);
      }
      sum = {words[0], words[1], words[2], words[3]};
    } else {
      float values[kWidth], others[kWidth];
      if constexpr (Flow::kMixed) {
        unpack_half(values, {a.x, a.y}, dtype);
      } else {
        unpack<T>(values, a);
      }
      unpack<T>(others, b);
      if constexpr (Flow::kDropout) branch.apply(values, row, col);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) values[i] += others[i];
      sum = pack<T>(values);
    }
    return sum;
  }
  // Hands out a pack of h, `at` elements from the first.
  __device__ __forceinline__ void hand_out(int64_t at, const uint4& sum) const {
    if (h != nullptr) ptx::store_streaming(reinterpret_cast<uint4*>(static_cast<T*>(h) + at), sum);
  }

  template <int lanes, int packs, class X>
  __device__ __forceinline__ Stats gather(const X& x, int valid) const {
    return Norm::template gather<T, lanes, packs>(x, valid, static_cast<int>(cols));
  }
  template <int lanes, int packs, class X>
  __device__ __forceinline__ Stats gather_whole(const X& x) const {
    if constexpr (kLayer) {
      return Norm::template gather_whole<T, lanes, packs>(x, detail::unknown_zero(*this));
    } else {
      return gather<lanes, packs>(x, packs);
    }
  }
  __device__ __forceinline__ Stats combine(const Stats* parts, int count) const { return Norm::combine(parts, count); }
  template <int count>
  __device__ __forceinline__ Stats combine(const Stats* parts) const {
    return Norm::template combine<count>(parts);
  }
  __device__ __forceinline__ Total total(const Stats& stats) const {
    return with_factor(Norm::total(stats, inverse_count, eps));
  }
  __device__ __forceinline__ Total with_factor(const RowStatistics& row) const {
    if constexpr (Flow::kFp8) {
      return {row, fp8_factor()};
    } else {
      return row;
    }
  }
  __device__ __forceinline__ float fp8_factor() const { return scale == nullptr ? 1.0f : *scale; }

  __device__ __forceinline__ void keep(int64_t row, const RowStatistics& total) const {
    if (rstd != nullptr) rstd[row] = total.rstd;
  }

  // Weight, and bias, of a pack's columns. Y: of fp8, what y is where there are all of them, in T; or else void.
  template <class W, class Y = void>
  struct ColumnsOf {
    static constexpr int kParts = PackedColumns<T, W>::kParts;
    PackedColumns<T, W> part[kLayer ? 2 : 1];

    __device__ __forceinline__ void load_from(const NormRow& row, int col) {
      constexpr bool kThere = !std::is_void_v<Y>;
      row.template load_columns<kThere>(part[0], row.weight, col, 1.0f);
      if constexpr (kLayer) row.template load_columns<kThere>(part[1], row.bias, col, 0.0f);
    }
    __device__ __forceinline__ void keep(uint32_t zero) {
      part[0].keep(zero);
      if constexpr (kLayer) part[1].keep(zero);
    }
  };
  using Columns = ColumnsOf<T>;
  // Those wider than x would take twice the registers.
  template <int packs>
  static constexpr bool kHoldsColumns = packs <= Norm::kMostHeldPacks;
  // With more than four packs of weights held, no registers are left for the row.
  template <int packs>
  static constexpr bool kGathersFromRing = kLayer && kHoldsColumns<packs> && packs > 4;

  // Calls body.template operator()<Columns>() for the dtype of the weights.
  template <class Body>
  __device__ __forceinline__ void with_weights(Body&& body) const {
    if constexpr (sizeof(T) == 2) {
      if (wide_weights) return body.template operator()<ColumnsOf<float>>();
    }
    body.template operator()<Columns>();
  }
  // Into fp8, for that of y too, and for columns that are there: asked with every pack, either costs a few percent.
  template <class Body>
  __device__ __forceinline__ void with_columns(Body&& body) const {
    if constexpr (Flow::kFp8) {
      const bool common = !wide_weights && weight != nullptr && (!kLayer || bias != nullptr);
      if (common && y_dtype == Dtype::e4m3) return body.template operator()<ColumnsOf<T, e4m3>>();
      if (common) return body.template operator()<ColumnsOf<T, e5m2>>();
      body.template operator()<ColumnsOf<float>>();
    } else {
      with_weights(body);
    }
  }

  template <int inputs, class W, class Y>
  __device__ __forceinline__ void finish(int64_t row, int col, const uint4 (&x)[inputs], const Total& total,
                                         const ColumnsOf<W, Y>& columns) const {
    finish_at(row * cols + col, x[0], total, columns);
  }
  // The pack of y that begins `at` elements from the first.
  template <class W, class Y>
  __device__ __forceinline__ void finish_at(int64_t at, const uint4& x, const Total& total,
                                            const ColumnsOf<W, Y>& columns) const {
    constexpr int kPart = kPack<W>;
    float values[kWidth];
    unpack<T>(values, x);
#pragma unroll
    for (int i = 0; i < columns.kParts; ++i) {
      float weights[kPart], biases[kPart];
      unpack<W>(weights, columns.part[0].part[i]);
      if constexpr (kLayer) unpack<W>(biases, columns.part[1].part[i]);
#pragma unroll
      for (int j = 0; j < kPart; ++j) {
        const float w = kOffsets ? weights[j] + weight_offset : weights[j], b = kLayer ? biases[j] : 0.0f;
        values[i * kPart + j] = Norm::apply(values[i * kPart + j], total, w, b);
      }
    }
    float factor = 1.0f;
    if constexpr (Flow::kFp8) factor = total.factor;
    write<Y>(at, values, factor);
  }

  // n neighbours of y, `at` elements from the first. factor: of fp8.
  template <class Y = void, int n>
  __device__ __forceinline__ void write(int64_t at, float (&values)[n], float factor) const {
    if constexpr (Flow::kFp8) {
#pragma unroll
      for (int i = 0; i < n; ++i) values[i] *= factor;
      if constexpr (!std::is_void_v<Y>) return write_fp8<Y>(at, values);
      y_dtype == Dtype::e4m3 ? write_fp8<e4m3>(at, values) : write_fp8<e5m2>(at, values);
    } else if constexpr (Flow::kMixed) {
      dtype == Dtype::f16 ? write_as<f16>(at, values) : write_as<bf16>(at, values);
    } else {
      write_as<T>(at, values);
    }
  }

  // What a later sweep over a row finds.
  __device__ bool kept_is_x() const { return !Flow::kSums || h == nullptr; }

  // n neighbours of x, in f32.
  template <int n>
  __device__ __forceinline__ void read_x(float (&to)[n], int64_t row, int64_t col) const {
    if constexpr (Flow::kMixed) {
      dtype == Dtype::f16 ? read_as<f16>(to, x, row * x_stride + col) : read_as<bf16>(to, x, row * x_stride + col);
    } else {
      read_as<T>(to, x, row * x_stride + col);
    }
  }
  // n weights or biases, or what stands for them.
  template <int n>
  __device__ __forceinline__ void read_columns(float (&to)[n], const void* from, int64_t col, float absent) const {
    if (from == nullptr) {
#pragma unroll
      for (int i = 0; i < n; ++i) to[i] = absent;
    } else if (weight_dtype == Dtype::f32) {
      read_as<float>(to, from, col);
    } else if constexpr (Flow::kMixed) {
      dtype == Dtype::f16 ? read_as<f16>(to, from, col) : read_as<bf16>(to, from, col);
    } else {
      read_as<T>(to, from, col);
    }
  }

 private:
  __device__ __forceinline__ static void unpack_half(float (&to)[kWidth], const uint2& from, Dtype dtype) {
    dtype == Dtype::f16 ? to_float(to, reinterpret_cast<const Vec<f16, kWidth>&>(from))
                        : to_float(to, reinterpret_cast<const Vec<bf16, kWidth>&>(from));
  }

  template <bool there, class W>
  __device__ __forceinline__ void load_columns(PackedColumns<T, W>& to, const void* from, int col, float absent) const {
    constexpr int kParts = PackedColumns<T, W>::kParts;
    if constexpr (Flow::kMixed || (Flow::kFp8 && kParts > 1)) {
      float values[kWidth];
      read_columns(values, from, col, absent);
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        to.part[i] = pack<W>(reinterpret_cast<const float (&)[kPack<W>]>(values[i * kPack<W>]));
      }
    } else if constexpr (there) {
      to.part[0] = reinterpret_cast<const uint4*>(static_cast<const W*>(from) + col)[0];
    } else {
      to.load_from(static_cast<const W*>(from), col, absent);
    }
  }

  // In accesses of at most 16 bytes.
  template <class S, int n>
  __device__ __forceinline__ static void read_as(float (&to)[n], const void* from, int64_t at) {
    constexpr int kEach = n < kPack<S> ? n : kPack<S>;
#pragma unroll
    for (int i = 0; i < n; i += kEach) {
      Vec<S, kEach> part;
      load(part, static_cast<const S*>(from) + at + i);
      to_float(reinterpret_cast<float (&)[kEach]>(to[i]), part);
    }
  }
  template <class Y, int n>
  __device__ __forceinline__ void write_as(int64_t at, const float (&values)[n]) const {
    if constexpr (n == kPack<Y>) {
      ptx::store_streaming(reinterpret_cast<uint4*>(static_cast<Y*>(y) + at), pack<Y>(values));
    } else {
      Vec<Y, n> rounded;
      from_float(rounded, values);
      store(static_cast<Y*>(y) + at, rounded);
    }
  }
  template <class Y, int n>
  __device__ __forceinline__ void write_fp8(int64_t at, const float (&values)[n]) const {
    Vec<Y, n> rounded;
    from_float_saturating(rounded, values);
    store<Cache::streaming>(static_cast<Y*>(y) + at, rounded);
  }
};

// Calls body.template operator()<Row>() for the dtypes and the norm of a call: the row that its ladder may be asked for.
template <class Flow, class Args, class Body>
void visit_norm(const Args& a, Body&& body) {
  const auto visit = [&]<class T, class F>() {
    if constexpr (!std::is_same_v<Args, RmsNormArgs>) {
      if (std::is_same_v<Args, LayerNormArgs> || a.layer) return body.template operator()<NormRow<T, LayerNorm, F>>();
    }
    if constexpr (!std::is_same_v<Args, LayerNormArgs>) body.template operator()<NormRow<T, RmsNorm, F>>();
  };
  if constexpr (Flow::kSums) {
    if (size_of(a.residual_dtype) > size_of(a.dtype)) return visit.template operator()<float, Mixed<Flow>>();
  }
  dispatch_float(a.dtype, [&]<class T>() { visit.template operator()<T, Flow>(); });
}

}  // namespace warpsmith
