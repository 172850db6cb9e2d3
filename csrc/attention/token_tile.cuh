// Tokens of one head in shared memory, and their way there: the operands of attention's tensor-core rungs.
#pragma once

#include <cstdint>

#include "device/ptx/copy.h"
#include "tile/operand_tile.h"

namespace warpsmith {

// Tokens by lines, which run along the head dimension. Lines are cut into blocks of 64 values, one block of all tokens
// behind the other: every head dimension then swizzles alike, and from block to block an address moves by a constant.
template <Along along_, int tokens_, int values_, template <int, int> class Layout>
struct TokenTile {
  static constexpr Along along = along_;  // as an operand: q and k run along the product's k, v along its n
  static constexpr int tokens = tokens_, values = values_, width = values < 64 ? values : 64, blocks = values / width;
  static_assert(values % width == 0, "whole blocks");
  using Block = Layout<tokens, width>;
  static constexpr int size = blocks * Block::size;

  __host__ __device__ static constexpr int at(int token, int i) {
    return i / width * Block::size + Block::at(token, i % width);
  }
  // As the moved() of operand_tile.h.
  __host__ __device__ static constexpr int moved(int from, int by_tokens, int by_values) {
    return Block::moved(from, by_tokens, by_values % width) + by_values / width * Block::size;
  }
};

// A thread's part in copying tiles by cp.async, 16 bytes a copy, zeros where tokens or values end. Every thread has the
// same chunk of every kStep-th line of each block.
template <class T, class Tile, int threads>
class TokenCopy {
  static constexpr int kAcross = Tile::width / 8, kStep = threads / kAcross;
  static constexpr int kRounds = kStep < Tile::tokens ? Tile::tokens / kStep : 1;
  static_assert(sizeof(T) == 2 && threads % kAcross == 0 && kStep % 8 == 0, "lines that swizzle alike");
  static_assert(kStep >= Tile::tokens || Tile::tokens % kStep == 0, "an even share");

 public:
  // `from`: the first value of the first token. `values` of a token exist.
  __device__ __forceinline__ TokenCopy(const T* from, int64_t token_stride, int values)
      : token_(static_cast<int>(threadIdx.x) / kAcross),
        chunk_(static_cast<int>(threadIdx.x) % kAcross * 8),
        values_(values - chunk_),
        step_(token_stride),
        from_(from + token_ * token_stride + chunk_) {}

  // Starts copying a tile of which `left` tokens exist, those from `token` of the sequence on and the values from
  // `value` on; or part `part` of `parts` of it.
  __device__ __forceinline__ void start(T* tile, int64_t token, int left, int value = 0, int part = 0,
                                        int parts = 1) const {
    if (kStep > Tile::tokens && token_ >= Tile::tokens) return;
    const int first = kRounds * part / parts, last = kRounds * (part + 1) / parts;
    const T* from = from_ + (token + first * kStep) * step_ + value;
    T* to = tile + Tile::at(token_, chunk_);
    if (left >= Tile::tokens && values_ + chunk_ - value >= Tile::values) {  // the whole grid's answer but at the ends
#pragma unroll
      for (int r = first; r < last; ++r) {
#pragma unroll
        for (int b = 0; b < Tile::blocks; ++b) {
          ptx::cp_async(at(to, r, b), reinterpret_cast<const uint4*>(from + b * Tile::width));
        }
        from += kStep * step_;
      }
      return;
    }
#pragma unroll
    for (int r = first; r < last; ++r) {
      const bool there = token_ + r * kStep < left;
#pragma unroll
      for (int b = 0; b < Tile::blocks; ++b) {
        const bool valid = there && value + b * Tile::width < values_;
        const T* chunk = valid ? from + b * Tile::width : from_;  // never an address past the end
        ptx::cp_async_zfill(at(to, r, b), reinterpret_cast<const uint4*>(chunk), valid);
      }
      from += kStep * step_;
    }
  }

 private:
  __device__ __forceinline__ static uint4* at(T* to, int round, int block) {
    return reinterpret_cast<uint4*>(to + Tile::Block::moved(0, round * kStep, 0) + block * Tile::Block::size);
  }

  int token_, chunk_;  // of the thread's first chunk
  int values_;         // of a line that exist, from the thread's chunk on
  int64_t step_;
  const T* from_;
};

}  // namespace warpsmith
