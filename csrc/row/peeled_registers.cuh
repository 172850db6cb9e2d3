// A row that begins anywhere, held in the registers of a cluster of small blocks and read once: which packs of it a thread
// has, how they get there, how they are added up, and how they leave.
//
// Packs lie between 16-byte borders and are counted from the one with the row's first value. Those at both ends, which the
// row fills in part only, are read and written value by value, by whoever has them: nothing outside of the row is touched.
// The blocks of a multiprocessor are many and small, and begin and end at different times: while some wait for their row,
// others write theirs.
//   Rows are added up in groups of as many columns as a pack has, counted from the row's first one. A group's values lie
// in two packs, of two lanes, unless the row begins at a border: the lower lane adds up those that it has and hands the
// sum to the upper one, which adds the others, in the order of their columns. Which thread a group ends up with and in
// which order values are added follows from their columns alone, so that a row has the same bits wherever it begins.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "device/warp.h"
#include "host/tiles.h"
#include "row/packed.h"
#include "row/rows.h"

namespace warpsmith {

struct PeeledTile {
  int threads;     // of a block, at most
  int packs;       // 128-bit packs that one of them holds
  int min_blocks;  // per multiprocessor, that the registers must allow
  int cluster;     // blocks that share a row

  constexpr int warps() const { return threads / kWarp; }
  constexpr int warp_packs() const { return packs * kWarp; }  // a warp's packs follow each other
  constexpr int64_t most_packs() const { return int64_t{cluster} * threads * packs; }
};

// The tile where not all rows of x and y have the same phase, so that values are written one by one.
template <class Tile>
struct AnyPhase : Tile {};
template <class Tile>
inline constexpr bool kSamePhase = true;
template <class Tile>
inline constexpr bool kSamePhase<AnyPhase<Tile>> = false;

// Of a row of so many bytes, wherever it begins: its groups, and one for the last group to end in.
constexpr int64_t peeled_packs(int64_t row_bytes) { return (row_bytes + 15) / 16 + 1; }
template <class Tile>
constexpr int64_t kMostPeeledBytes = 16 * (Tile::most_packs - 1);

// Whether every row of y lies as that of x does between two 16-byte borders.
inline bool same_phase(const void* x, const void* y, int64_t rows, int64_t x_stride, int64_t y_stride, int size) {
  const auto apart = reinterpret_cast<uintptr_t>(x) - reinterpret_cast<uintptr_t>(y);
  return apart % 16 == 0 && (rows == 1 || (x_stride - y_stride) * size % 16 == 0);
}

// What a thread has of a row. `warp` counts those of the whole cluster.
template <class T, class Tile>
class PeeledShare {
  static constexpr int kWidth = kPack<T>, kPacks = Tile::shape.packs, kStep = kWarp * kWidth;
  static constexpr int kWarpPacks = Tile::shape.warp_packs();

 public:
  __device__ __forceinline__ PeeledShare(const T* row, int cols, int warp) : cols_(cols) {
    const int phase = static_cast<int>(reinterpret_cast<uintptr_t>(row) / sizeof(T) % kWidth);
    first_ = (warp * kWarpPacks + lane()) * kWidth - phase;
  }

  // Whether the warp has anything, be it the end of a group.
  __device__ __forceinline__ bool any() const { return first_of_warp() < cols_ + kWidth; }

  // Makes the compiler find anew which packs the row fills: between load and store it has no registers for that. zero: as
  // in keep_packed.
  __device__ __forceinline__ void forget(uint32_t zero) {
    first_ ^= static_cast<int>(zero);
    cols_ ^= static_cast<int>(zero);
  }

  // padding: the bits of a pack outside of the row.
  __device__ __forceinline__ void load(uint4 (&x)[kPacks], const T* row, const uint4& padding, uint64_t policy) const {
    const auto* from = reinterpret_cast<const uint4*>(row + first_);
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      x[i] = padding;
      if (whole(i)) x[i] = ptx::load_streaming(from + i * kWarp, policy);
    }
    if (has_head()) x[0] = load_part(row, first_, padding);
    if (const int tail = tail_pack(); tail < kPacks) {
      const uint4 part = load_part(row, first_ + tail * kStep, padding);
#pragma unroll
      for (int i = 0; i < kPacks; ++i) {
        if (i == tail) x[i] = part;
      }
    }
  }

  // Of the pack before the warp's first one, a value for each of the first lanes.
  __device__ __forceinline__ T load_before(const T* row, T padding) const {
    const int col = first_of_warp() - kWidth + lane();
    return lane() < kWidth && inside(col) ? row[col] : padding;
  }

  // The sum of term(value) over the groups that end in this thread's packs; by whole warps. keep: whether the terms take
  // the place of the values. masks: terms outside of the row are 0, or else what term(padding) is.
  template <bool keep, bool masks = false, class Term>
  __device__ __forceinline__ float add_up(uint4 (&x)[kPacks], T before, const Term& term) const {
    const int phase = -first_ & (kWidth - 1);  // values between the border and the row's first one
    float sum = 0.0f;
    [&]<int... each>(std::integer_sequence<int, each...>) {
      static_cast<void>(((phase == each && (sum = add_groups<each, keep, masks>(x, before, term), true)) || ...));
    }(std::make_integer_sequence<int, kWidth>{});
    return sum;
  }

  // The packs as they are.
  __device__ __forceinline__ void store(T* row, const uint4 (&x)[kPacks]) const {
    store(row, x, [](float value) { return value; });
  }

  // finish: a value to its answer; or the values of a pack to theirs, given the column of the first and whether the row
  // has all of them.
  template <class Finish>
  __device__ __forceinline__ void store(T* row, const uint4 (&x)[kPacks], const Finish& finish) const {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if (!whole(i)) continue;
      float values[kWidth];
      finish_pack(values, x[i], first_ + i * kStep, true, finish);
      if constexpr (kSamePhase<Tile>) {
        ptx::store_streaming(reinterpret_cast<uint4*>(row + first_) + i * kWarp, pack<T>(values));
      } else {
#pragma unroll
        for (int j = 0; j < kWidth; ++j) row[first_ + i * kStep + j] = from_float<T>(values[j]);
      }
    }
    if (has_head()) store_part(row, first_, x[0], finish);
    if (const int tail = tail_pack(); tail < kPacks) {
      uint4 part = x[0];
#pragma unroll
      for (int i = 1; i < kPacks; ++i) {
        if (i == tail) part = x[i];
      }
      store_part(row, first_ + tail * kStep, part, finish);
    }
  }

 private:
  static __device__ __forceinline__ int lane() { return threadIdx.x % kWarp; }
  __device__ __forceinline__ int first_of_warp() const { return first_ - lane() * kWidth; }
  __device__ __forceinline__ bool inside(int col) const {
    return static_cast<unsigned>(col) < static_cast<unsigned>(cols_);
  }
  __device__ __forceinline__ bool whole(int i) const {
    return static_cast<unsigned>(first_ + i * kStep) < static_cast<unsigned>(max(cols_ - kWidth + 1, 0));
  }
  // The row begins within this thread's first pack. If it ends there too, that is the tail as well, and seen to twice.
  __device__ __forceinline__ bool has_head() const { return first_ < 0 && first_ > -kWidth; }
  // Which of this thread's packs the row's last value does not fill; kPacks or more for none.
  __device__ __forceinline__ int tail_pack() const {
    const unsigned last = static_cast<unsigned>(cols_ - 1 - first_);  // from the thread's first value; huge behind it
    return last % kStep < kWidth - 1 ? static_cast<int>(last / kStep) : kPacks;
  }

  // Additions are intrinsics: which of them are fused with the product that a term may be must not follow from the phase.
  template <int phase, bool keep, bool masks, class Term>
  __device__ __forceinline__ float add_groups(uint4 (&x)[kPacks], T before, const Term& term) const {
    // what the lane below the first one would hand over
    float last = term(to_float(before));
    if (masks && !inside(first_of_warp() - kWidth + lane())) last = 0.0f;
    float handed = __shfl_sync(kAllLanes, last, phase);
#pragma unroll
    for (int j = phase + 1; j < kWidth; ++j) handed = __fadd_rn(handed, __shfl_sync(kAllLanes, last, j));

    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      float values[kWidth];
      unpack<T>(values, x[i]);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) values[j] = term(values[j]);
      if (masks && !whole(i)) {
#pragma unroll
        for (int j = 0; j < kWidth; ++j) values[j] = inside(first_ + i * kStep + j) ? values[j] : 0.0f;
      }
      if constexpr (keep) x[i] = pack<T>(values);
      float begun = values[phase];
#pragma unroll
      for (int j = phase + 1; j < kWidth; ++j) begun = __fadd_rn(begun, values[j]);
      const float rotated = __shfl_sync(kAllLanes, begun, (lane() + kWarp - 1) % kWarp);
      float group = lane() == 0 ? handed : rotated;
      handed = rotated;
#pragma unroll
      for (int j = 0; j < phase; ++j) group = __fadd_rn(group, values[j]);
      sum = __fadd_rn(sum, group);
    }
    return sum;
  }

  __device__ __forceinline__ uint4 load_part(const T* row, int col, uint4 part) const {
    T* values = reinterpret_cast<T*>(&part);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      if (inside(col + j)) values[j] = row[col + j];
    }
    return part;
  }

  template <class Finish>
  __device__ __forceinline__ void store_part(T* row, int col, const uint4& part, const Finish& finish) const {
    float values[kWidth];
    finish_pack(values, part, col, false, finish);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      if (inside(col + j)) row[col + j] = from_float<T>(values[j]);
    }
  }

  template <class Finish>
  __device__ __forceinline__ void finish_pack(float (&values)[kWidth], const uint4& x, int col, bool whole,
                                              const Finish& finish) const {
    unpack<T>(values, x);
    if constexpr (std::is_invocable_v<Finish, float>) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) values[j] = finish(values[j]);
    } else {
      finish(values, col, whole);
    }
  }

  int cols_;
  int first_;  // column of the first value of the first pack; before the row and behind it too
};

}  // namespace warpsmith
