// Rows of results that start between two 16-byte borders, from shared memory to memory in whole packs.
//   Borders cut a row into a few values, packs and a few values. Where a pack begins in shared memory depends on the row
//   and is no border either, so lanes read the words that it lies in and shift them. At the pitch of StorePatch and odd n,
//   at most two lanes of a warp meet in a bank.
#pragma once

#include <cstdint>

#include "device/convert.h"
#include "device/ptx/memory.h"
#include "device/vec.h"

namespace warpsmith {

// The pack that starts at value `first` of a row in shared memory, which itself starts at a word. Reads whole words, of
// values narrower than a word one more than the pack has.
template <class T>
__device__ __forceinline__ uint4 read_pack_at(const T* row, uint32_t first) {
  constexpr uint32_t kSize = sizeof(T), kPerWord = 4 / kSize;
  static_assert(kSize <= 4, "words hold whole values");
  const uint32_t* from = reinterpret_cast<const uint32_t*>(row) + first / kPerWord;
  const uint32_t low[] = {from[0], from[1], from[2], from[3]};
  if constexpr (kPerWord == 1) {
    return {low[0], low[1], low[2], low[3]};
  } else {
    const uint32_t last = from[4], bits = first % kPerWord * kSize * 8;
    return {__funnelshift_r(low[0], low[1], bits), __funnelshift_r(low[1], low[2], bits),
            __funnelshift_r(low[2], low[3], bits), __funnelshift_r(low[3], last, bits)};
  }
}

// What one of `lanes` lanes stores of a row of up to 8 * lanes values. Reading is apart from writing, so that a lane can
// wait for several rows at once.
template <class T, int lanes>
class RowShare {
 public:
  // `count` values, none or more, for `to`. `row`: in shared memory, from a word on, with a pack behind 8 * lanes values,
  // which lanes without a pack of their own read as well.
  __device__ __forceinline__ void read(const T* row, T* to, uint32_t count, uint32_t lane) {
    const uint32_t to_border = -static_cast<uint32_t>(reinterpret_cast<uintptr_t>(to) / sizeof(T)) % kPack<T>;
    to_ = to;
    lane_ = lane;
    head_ = min(to_border, count);
    packs_ = (count - head_) / kPack<T>;
    singles_ = count - packs_ * kPack<T>;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) pack_values_[i] = read_pack_at(row, head_ + own(i) * kPack<T>);
#pragma unroll
    for (int i = 0; i < kSingles; ++i) {
      if (own(i) < singles_) single_values_[i] = row[column(own(i))];
    }
  }

  __device__ __forceinline__ void write() const {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if (own(i) < packs_) ptx::store_at_once(reinterpret_cast<uint4*>(to_ + head_) + own(i), pack_values_[i]);
    }
#pragma unroll
    for (int i = 0; i < kSingles; ++i) {
      if (own(i) < singles_) to_[column(own(i))] = single_values_[i];
    }
  }

 private:
  // of a lane: the row has fewer single values than a pack at either end
  static constexpr int kPacks = 8 / kPack<T>, kSingles = (2 * (kPack<T> - 1) + lanes - 1) / lanes;

  // Lanes take turns, with packs and with single values, so that neighbouring lanes store neighbouring values.
  __device__ __forceinline__ uint32_t own(int i) const { return i * lanes + lane_; }
  // Of a single value in the row: those behind the last border follow those before the first one.
  __device__ __forceinline__ uint32_t column(uint32_t single) const {
    return single < head_ ? single : single + packs_ * kPack<T>;
  }

  T* to_;
  uint32_t lane_, head_, packs_, singles_;
  uint4 pack_values_[kPacks];
  T single_values_[kSingles];
};

}  // namespace warpsmith
