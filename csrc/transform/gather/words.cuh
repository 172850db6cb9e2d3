// Rows that are moved as words, whatever their values are: a word is what one access moves.
#pragma once

#include "device/convert.h"
#include "device/fast_divide.h"
#include "device/vec.h"
#include "host/ceil_div.h"
#include "host/conditions.h"
#include "host/launch.h"
#include "host/registry.h"
#include "transform/gather/gather.h"
#include "transform/indices.cuh"

namespace warpsmith {

inline constexpr int kGatherThreads = 256;

// Rows in units, of which a thread takes one, or a few.
struct GatherUnits {
  FastDivide by_row, by_count;
  int64_t units;           // of all rows
  int64_t x_outer, x_row;  // strides in bytes

  GatherUnits(const GatherArgs& a, int unit_bytes)
      : by_row(static_cast<uint64_t>(a.inner * size_of(a.dtype) / unit_bytes)),
        by_count(static_cast<uint64_t>(a.count)),
        units(a.outer * a.count * a.inner * size_of(a.dtype) / unit_bytes),
        x_outer(a.x_outer * size_of(a.dtype)),
        x_row(a.x_row * size_of(a.dtype)) {}
};

// Of a unit: in which outer index and at which of the indices its row is, and which unit of the row it is.
struct GatherPlace {
  int64_t outer, at, within;
};

// In 32 bits: where there are fewer than 2^31 units.
template <class Int>
__device__ __forceinline__ GatherPlace gather_place(const GatherUnits& u, Int unit) {
  const Int place = u.by_row.quotient_as(unit), outer = u.by_count.quotient_as(place);
  return {.outer = static_cast<int64_t>(outer),
          .at = static_cast<int64_t>(place - outer * static_cast<Int>(u.by_count.divisor)),
          .within = static_cast<int64_t>(unit - place * static_cast<Int>(u.by_row.divisor))};
}

// Whether it is of a row of zeros.
__device__ __forceinline__ bool is_zero(const GatherArgs& a, int64_t row) { return a.zeros && row < 0; }

// Where it begins in x.
__device__ __forceinline__ const char* gather_from(const GatherArgs& a, const GatherUnits& u, const GatherPlace& place,
                                                   int64_t row, int unit_bytes) {
  return static_cast<const char*>(a.x) + place.outer * u.x_outer + row * u.x_row + place.within * unit_bytes;
}

// The same, of its number; null where it is of a row of zeros.
template <class Int>
__device__ __forceinline__ const char* gather_from(const GatherArgs& a, const GatherUnits& u, Int unit,
                                                   int unit_bytes) {
  const GatherPlace place = gather_place(u, unit);
  const int64_t row = read_index(a.index, place.at, a.wide);
  return is_zero(a, row) ? nullptr : gather_from(a, u, place, check_index(row, a.rows), unit_bytes);
}

// A unit of n words.
template <class Word, int n, class Int = int64_t>
__device__ __forceinline__ void gather_words(const GatherArgs& a, const GatherUnits& u) {
  const Int unit = Int{blockIdx.x} * kGatherThreads + threadIdx.x;
  if (unit >= static_cast<Int>(u.units)) return;
  constexpr int kBytes = sizeof(Word) * n;
  const auto* from = reinterpret_cast<const Word*>(gather_from(a, u, unit, kBytes));
  Word* to = static_cast<Word*>(a.y) + int64_t{unit} * n;
  Word words[n];
#pragma unroll
  for (int i = 0; i < n; ++i) words[i] = from == nullptr ? Word{} : from[i];
#pragma unroll
  for (int i = 0; i < n; ++i) to[i] = words[i];
}

// n values times the scale.
template <class T, int n>
__device__ __forceinline__ void gather_scaled(const GatherArgs& a, const GatherUnits& u) {
  const int64_t unit = int64_t{blockIdx.x} * kGatherThreads + threadIdx.x;
  if (unit >= u.units) return;
  const auto* from = reinterpret_cast<const T*>(gather_from(a, u, unit, sizeof(T) * n));
  Vec<T, n> values{};
  if (from != nullptr) load(values, from);
  float wide[n];
  to_float(wide, values);
#pragma unroll
  for (float& value : wide) value *= a.scale;
  from_float(values, wide);
  store(static_cast<T*>(a.y) + unit * n, values);
}

inline LaunchConfig gather_config(const GatherUnits& u, int per_thread = 1) {
  const int64_t blocks = ceil_div(u.units, int64_t{kGatherThreads} * per_thread);
  return {.grid = dim3(static_cast<unsigned>(blocks)), .block = kGatherThreads};
}

inline const char* needs_gather_grid(int64_t units) {
  return ceil_div(units, kGatherThreads) <= kMostRows ? nullptr : "needs at most 2^31 - 1 blocks";
}

inline bool counts_in_32_bits(int64_t units) { return units < int64_t{1} << 31; }

// Units of so many bytes that accesses of `word` bytes make up, in rows that begin where these may.
inline const char* needs_units(const GatherArgs& a, int unit_bytes, int word) {
  const int size = size_of(a.dtype);
  const bool whole = a.inner * size % unit_bytes == 0 && a.x_outer * size % word == 0 && a.x_row * size % word == 0;
  const bool aligned = reinterpret_cast<uintptr_t>(a.x) % word == 0;
  return whole && aligned ? nullptr : "needs rows of whole accesses, aligned";
}

inline const char* needs_values_of_16_bits(const GatherArgs& a) {
  return size_of(a.dtype) == 2 ? nullptr : "needs values of 16 bits";
}

inline const char* needs_f32(const GatherArgs& a) { return a.dtype == Dtype::f32 ? nullptr : "needs f32"; }

inline const char* needs_no_scale(const GatherArgs& a) { return a.scaled ? "needs a scale of 1" : nullptr; }

}  // namespace warpsmith
