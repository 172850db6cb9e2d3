// Groups along k of values of one byte: they begin and end anywhere within the 16 bytes that copies bring, and what is not
// the group's has to be zeros in both operands, as it may be NaN.
#pragma once

#include <cstdint>

#include "tile/copy.cuh"

namespace warpsmith {

// The bytes `first` to `end` - 1 of 16, zeros for the others; both may lie outside.
__device__ __forceinline__ uint4 bytes_of(const uint4& chunk, int first, int end) {
  const auto below = [](int bytes) {  // ones in so many of a word
    return static_cast<uint32_t>((uint64_t{1} << 8 * min(max(bytes, 0), 4)) - 1);
  };
  const auto kept = [&](uint32_t word, int at) { return word & below(end - at) & ~below(first - at); };
  return {kept(chunk.x, 0), kept(chunk.y, 4), kept(chunk.z, 8), kept(chunk.w, 12)};
}

// TileCopy, in pairs of values, of lines along k that begin with the chunk in which the group does. Chunks that the group
// begins or ends in go through registers.
template <class Tile, int threads>
class SpanCopy : TileCopy<uint16_t, Tile, threads> {
  using Base = TileCopy<uint16_t, Tile, threads>;
  static_assert(Tile::along == Along::k);

 public:
  // `first`, `end`: the group's values of k.
  __device__ __forceinline__ SpanCopy(const Matrix& pairs, int64_t extent, int64_t mn, int64_t first, int64_t end)
      : Base(pairs, 0, extent, mn, first / kBytes * (kBytes / 2)),
        first_(static_cast<int>(first % kBytes) - 2 * this->k_),
        left_(end - first / kBytes * kBytes - 2 * this->k_) {}

  __device__ __forceinline__ void start(uint16_t* tile, int64_t k_left, int part = 0, int parts = 1) {
    if (first_ <= 0 && (left_ >= kBytes || left_ <= 0)) return Base::start(tile, k_left, part, parts);
    if (this->idle()) return;
    const int end = static_cast<int>(left_ < kBytes ? left_ : kBytes);
#pragma unroll
    for (int r = Base::kRounds * part / parts; r < Base::kRounds * (part + 1) / parts; ++r) {
      const uint4 zeros{};
      const bool inside = (this->inside_ >> r & 1u) != 0 && end > 0;
      const uint4 values = inside ? *reinterpret_cast<const uint4*>(this->from_) : zeros;
      *this->chunk(tile, r) = bytes_of(values, first_, end);
      this->from_ += this->step_;
    }
  }

  __device__ __forceinline__ void advance() {
    Base::advance();
    first_ -= 2 * Tile::k;
    left_ -= 2 * Tile::k;
  }

 private:
  static constexpr int kBytes = 16;
  int first_;     // of the thread's chunk at hand, whatever lies before is another group's
  int64_t left_;  // bytes from its beginning to the end of the group
};

}  // namespace warpsmith
