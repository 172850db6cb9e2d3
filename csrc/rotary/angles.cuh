// Cosines and sines of the pairs of a token.
#pragma once

#include <type_traits>

#include "device/convert.h"
#include "device/ptx/trap.h"
#include "device/turn.h"
#include "device/vec.h"
#include "rotary/rotary.h"

namespace warpsmith {

__device__ __forceinline__ int64_t rotary_position(const RotaryAngles& a, int axis, int batch, int token) {
  if (a.positions == nullptr) return token;
  const int64_t at = axis * a.position_axis + batch * a.position_batch + token * a.position_token;
  if (a.wide) return __ldg(static_cast<const long long*>(a.positions) + at);
  return __ldg(static_cast<const int32_t*>(a.positions) + at);
}

__device__ __forceinline__ int rotary_axis(const RotaryAngles& a, int pair) {
  const int axis = __ldg(a.axes + pair);
  if (static_cast<unsigned>(axis) >= static_cast<unsigned>(a.axis_count)) {
    ptx::trap_with("axes names a position that positions do not have");
  }
  return axis;
}

// The row of tables that have one for each position.
__device__ __forceinline__ int64_t rotary_row(const RotaryAngles& a, int64_t position) {
  if (static_cast<uint64_t>(position) >= static_cast<uint64_t>(a.rows)) {
    ptx::trap_with("a position lies outside of cos and sin");
  }
  return position;
}

// Values [first, first + n) of a row, in one access.
template <class T, int n>
__device__ __forceinline__ void load_table(float* to, const RotaryTable& table, int batch, int64_t row, int first) {
  Vec<T, n> values;
  load(values, static_cast<const T*>(table.data) + batch * table.batch + row * table.row + first);
#pragma unroll
  for (int i = 0; i < n; ++i) to[i] = to_float(values[i]);
}

// In f32 or as the heads are.
template <class T, int n>
__device__ __forceinline__ void load_angles(float* cosine, float* sine, const RotaryAngles& a, int batch, int64_t row,
                                            int first) {
  if (std::is_same_v<T, float> || a.table_dtype == Dtype::f32) {
    load_table<float, n>(cosine, a.cos, batch, row, first);
    load_table<float, n>(sine, a.sin, batch, row, first);
  } else {
    load_table<T, n>(cosine, a.cos, batch, row, first);
    load_table<T, n>(sine, a.sin, batch, row, first);
  }
}

// Of n pairs from `first` on. T: of the heads.
template <class T, int n>
__device__ __forceinline__ void rotary_angles(float* cosine, float* sine, const RotaryAngles& a, int batch, int token,
                                              int first) {
  if (a.cos.data == nullptr) {
    int64_t position = a.axes == nullptr ? rotary_position(a, 0, batch, token) : 0;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      if (a.axes != nullptr) position = rotary_position(a, rotary_axis(a, first + i), batch, token);
      const auto turns = static_cast<uint64_t>(__ldg(reinterpret_cast<const long long*>(a.turns) + first + i));
      sine_and_cosine(sine[i], cosine[i], static_cast<uint64_t>(position) * turns);
      sine[i] *= a.factor;
      cosine[i] *= a.factor;
    }
  } else if (a.axes == nullptr) {
    const bool by_token = a.rows == 0;
    const int of = by_token ? batch : 0;
    const int64_t row = by_token ? token : rotary_row(a, rotary_position(a, 0, batch, token));
    load_angles<T, n>(cosine, sine, a, of, row, first);
  } else {
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const int pair = first + i;
      const int64_t row = rotary_row(a, rotary_position(a, rotary_axis(a, pair), batch, token));
      load_angles<T, 1>(cosine + i, sine + i, a, 0, row, pair);
    }
  }
  if (a.inverse) {
#pragma unroll
    for (int i = 0; i < n; ++i) sine[i] = -sine[i];
  }
}

// x a + y b, of which neither product is rounded: where they cancel, an error of one would be all that is left.
__device__ __forceinline__ float sum_of_products(float x, float a, float y, float b) {
  const float product = y * b, lost = fmaf(y, b, -product);
  // of an infinite product nothing is lost
  return fmaf(x, a, product) + (fabsf(lost) < INFINITY ? lost : 0.0f);
}

// Turns the pair (x, y). T: what it is rounded to, which hides roundings in f32 if it is narrower.
template <class T>
__device__ __forceinline__ void rotate(float& x, float& y, float cosine, float sine) {
  if constexpr (std::is_same_v<T, float>) {
    const float turned = sum_of_products(x, cosine, y, -sine);
    y = sum_of_products(y, cosine, x, sine);
    x = turned;
  } else {
    const float turned = fmaf(x, cosine, -y * sine);
    y = fmaf(y, cosine, x * sine);
    x = turned;
  }
}

// A head's values [at, at + width) and those half of the turning values further on are whole pairs in either order: of
// pairs [half_pairs(), ...) these are.
template <int width>
__device__ __forceinline__ void pack_angles_at(int& first, int& second, const RotaryAngles& a, int at) {
  first = a.interleaved ? at / 2 : at;
  second = first + (a.interleaved ? a.pairs / 2 : width / 2);
}

// Turns both packs of a head: of `width` angles, the first half belongs to pairs of `lower` where pairs are neighbours.
template <class T, int width>
__device__ __forceinline__ void rotate_packs(float (&lower)[width], float (&upper)[width], const float (&cosine)[width],
                                             const float (&sine)[width], bool interleaved) {
  if (interleaved) {
#pragma unroll
    for (int i = 0; i < width / 2; ++i) {
      rotate<T>(lower[2 * i], lower[2 * i + 1], cosine[i], sine[i]);
      rotate<T>(upper[2 * i], upper[2 * i + 1], cosine[width / 2 + i], sine[width / 2 + i]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < width; ++i) rotate<T>(lower[i], upper[i], cosine[i], sine[i]);
  }
}

}  // namespace warpsmith
