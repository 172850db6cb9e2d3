// What the rungs that hold a row in registers read: where a block's row lies, its bias as it lies in memory, where it ends.
#pragma once

#include "softmax/scaled_masked_softmax/dropout_backward/row.cuh"

namespace warpsmith {

// The row whose turn it is at a place, of fewer than 2^31, and where its bias and mask lie: by one division and what
// quotient and rest add to each, where rows unfold into two dimensions at most. `found` says whether they do.
struct RowPlaces {
  FastDivide divide;
  uint32_t row[2] = {}, bias[2] = {}, mask[2] = {};  // elements, of operands that are smaller than 2^32
  bool found = false;

  RowPlaces(const LogitArgs& a, int64_t repeats, int64_t period) {
    const auto inner = static_cast<int64_t>(a.leading.size[0].divisor);
    const int64_t outer = a.leading.rank == 2 ? static_cast<int64_t>(a.leading.size[1].divisor) : 1;
    const auto fits = [&](const BroadcastOperand& operand) {
      return inner * operand.stride[0] + outer * operand.stride[1] + a.cols < int64_t{1} << 32;
    };
    const bool turns = repeats > 1;  // rows that lie `period` apart come together
    found = a.leading.rank <= 2 && a.rows <= kMostRows && fits(a.bias) && fits(a.mask) && (!turns || inner == period);
    if (!found) return;
    divide = turns ? FastDivide(static_cast<uint64_t>(repeats)) : a.leading.size[0];
    const int by_inner = turns ? 0 : 1, by_outer = 1 - by_inner;
    row[by_inner] = 1;
    row[by_outer] = static_cast<uint32_t>(inner);
    bias[by_inner] = static_cast<uint32_t>(a.bias.stride[0]);
    bias[by_outer] = static_cast<uint32_t>(a.bias.stride[1]);
    mask[by_inner] = static_cast<uint32_t>(a.mask.stride[0]);
    mask[by_outer] = static_cast<uint32_t>(a.mask.stride[1]);
  }
};

template <class T>
struct RegisterRows : BiasScaleMaskSoftmaxDropoutBackwardRows<T> {
  RowPlaces places;
  bool masks_columns;  // the mask is not the same for a whole row
  bool far_groups;     // Dropout's groups of four have numbers beyond 2^32
  uint64_t policy;     // of the loads, on sm_90

  explicit RegisterRows(const BiasScaleMaskSoftmaxDropoutBackwardArgs& a)
      : BiasScaleMaskSoftmaxDropoutBackwardRows<T>(a),
        places(a.logits, static_cast<int64_t>(this->logits.repeats.divisor), this->logits.period),
        masks_columns(a.logits.mask.data != nullptr && !a.logits.mask.one_per_row),
        far_groups(a.logits.rows * a.logits.cols / 4 > int64_t{1} << 32),
        policy(this->logits.beyond_l2 ? ptx::kEvictLastOnSm90 : ptx::kEvictNormalOnSm90) {}

  __device__ __forceinline__ uint64_t load_policy() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
    return policy;
#else
    return this->logits.load_policy();
#endif
  }
};

// A row and where its bias and mask lie, in elements.
struct RowPlace {
  uint32_t row;
  int64_t bias = 0, mask = 0;

  template <class T>
  __device__ __forceinline__ RowPlace(const RegisterRows<T>& v, uint32_t place) {
    if (v.places.found) {
      const uint32_t quotient = v.places.divide.small_quotient(place);
      const uint32_t rest = place - quotient * static_cast<uint32_t>(v.places.divide.divisor);
      const auto at = [&](const uint32_t (&by)[2]) { return quotient * by[0] + rest * by[1]; };
      row = at(v.places.row);
      bias = at(v.places.bias);
      mask = at(v.places.mask);
      return;
    }
    row = static_cast<uint32_t>(v.logits.turn(place));
    const LogitRow<T> found = v.logits.template row<int>(row);
    bias = found.bias;
    mask = found.mask;
  }
};

// n values of the bias as they lie in memory: as floats, 16-bit ones would take twice the registers.
template <class B, int n>
struct BiasPack {
  static constexpr int kWidth = kPack<B>;
  Vec<B, kWidth> part[n / kWidth];

  __device__ __forceinline__ void load_from(const B* bias, int64_t at, uint64_t policy) {
#pragma unroll
    for (int i = 0; i < n / kWidth; ++i) load_bias(part[i], bias, at + i * kWidth, policy);
  }

  __device__ __forceinline__ void fill(B value) {
#pragma unroll
    for (int i = 0; i < n; ++i) part[i / kWidth][i % kWidth] = value;
  }

  __device__ __forceinline__ void to_floats(float (&to)[n]) const {
#pragma unroll
    for (int i = 0; i < n / kWidth; ++i) to_float(reinterpret_cast<float (&)[kWidth]>(to[i * kWidth]), part[i]);
  }
};

template <int n>
struct BiasPack<void, n> {  // no bias
  __device__ __forceinline__ void to_floats(float (&)[n]) const {}
};

// Excludes what a pack holds from element `left` on, as a mask would, and makes its gradient 0.
template <class T>
__device__ __forceinline__ void cut_off(MaskPack<kPack<T>>& hidden, Pack<T>& grad, int left) {
  constexpr int kWidth = kPack<T>;
  if (left >= kWidth) return;
#pragma unroll
  for (int j = 0; j < kWidth; j += 4) hidden.word[j / 4] |= left >= j + 4 ? 0u : ~0u << max(left - j, 0) * 8;
  uint4& raw = reinterpret_cast<uint4&>(grad);
  if constexpr (sizeof(T) == 2) {
    raw = {keep(raw.x, left > 0, left > 1), keep(raw.y, left > 2, left > 3), keep(raw.z, left > 4, left > 5),
           keep(raw.w, left > 6, left > 7)};
  } else {
    raw = {left > 0 ? raw.x : 0u, left > 1 ? raw.y : 0u, left > 2 ? raw.z : 0u, 0u};
  }
}

// Calls body.template operator()<T, B>(), with the element type of the bias, void where there is none.
template <class Body>
void visit_bias(const LogitArgs& a, Body&& body) {
  visit_logits(a, [&]<class T, class Biased>() {
    if constexpr (!Biased::value) {
      body.template operator()<T, void>();
    } else if (sizeof(T) == 4 || a.bias_dtype == a.dtype) {
      body.template operator()<T, T>();
    } else {
      body.template operator()<T, float>();
    }
  });
}

}  // namespace warpsmith
