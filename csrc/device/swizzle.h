// Where the values of a tile lie in shared memory, so that neither its rows nor its columns of 16-byte chunks meet in
// one bank.
//
// A plain tile whose row is a multiple of 128 bytes holds a whole column of chunks in the same four banks. Padding each
// row by a chunk helps, but costs memory and alignment; exclusive-or with the row's number costs neither.
#pragma once

#include <bit>
#include <cstdint>

namespace warpsmith {

// Of an index into the tile, `bits` bits from bit `base` on are flipped by those `shift` places above: a permutation
// that leaves runs of 2^base values together.
template <int bits_, int base_, int shift_>
struct Swizzle {
  static constexpr int bits = bits_, base = base_, shift = shift_;
  static_assert(bits >= 0 && base >= 0 && shift >= bits, "the bits that flip are not flipped themselves");

  __host__ __device__ constexpr int operator()(int index) const {
    constexpr int kMask = ((1 << bits) - 1) << base;
    return index ^ ((index >> shift) & kMask);
  }
};

inline constexpr int kChunkBytes = 16;  // what one lane's cp.async brings, and a row of ldmatrix's 8 x 8 matrices
inline constexpr int kBankBytes = 128;  // what all banks deliver at once, hence eight chunks

namespace detail {

constexpr int log2_exact(int power) { return std::countr_zero(static_cast<unsigned>(power)); }

// The swizzle for rows of that many chunks of 2^base values: a row's chunks fill the banks, or several rows do.
template <int chunks, int base>
struct SwizzleOfRows {
  static_assert((chunks & (chunks - 1)) == 0, "a row of a power of two of chunks");
  static constexpr int kChunkBits = log2_exact(kBankBytes / kChunkBytes);
  static constexpr int kRowBits = log2_exact(chunks);
  using type =
      Swizzle<(kRowBits < kChunkBits ? kRowBits : kChunkBits), base, (kRowBits > kChunkBits ? kRowBits : kChunkBits)>;
};

}  // namespace detail

// For a tile of rows of `columns` values of T (at least 16 bytes), without padding:
//   shared[TileSwizzle<f16, 64>{}(row * 64 + column)]
template <class T, int columns>
using TileSwizzle = typename detail::SwizzleOfRows<columns* static_cast<int>(sizeof(T)) / kChunkBytes,
                                                   detail::log2_exact(kChunkBytes / static_cast<int>(sizeof(T)))>::type;

// Whether eight lanes, each with a chunk at first + i * step (i < 8) of the tile, use every bank once.
template <class T, class Layout>
constexpr bool one_chunk_per_bank(Layout layout, int first, int step) {
  unsigned banks = 0;
  for (int i = 0; i < kBankBytes / kChunkBytes; ++i) {
    const int byte = layout(first + i * step) * static_cast<int>(sizeof(T));
    if (byte % kChunkBytes != 0) return false;
    banks |= 1u << (byte % kBankBytes / kChunkBytes);
  }
  return banks == (1u << (kBankBytes / kChunkBytes)) - 1;
}

// Whether no access to a tile of [rows, columns] values of T makes two lanes wait for each other: ldmatrix, which reads
// a chunk of eight rows at a time (from rows that are a multiple of 8), and copies of consecutive chunks by consecutive
// lanes.
template <class T, int rows, int columns, class Layout>
constexpr bool conflict_free(Layout layout) {
  static_assert(rows % 8 == 0 && rows > 0, "ldmatrix reads eight rows");
  constexpr int kChunk = kChunkBytes / static_cast<int>(sizeof(T));
  for (int row = 0; row < rows; row += 8) {
    for (int column = 0; column < columns; column += kChunk) {
      if (!one_chunk_per_bank<T>(layout, row * columns + column, columns)) return false;
    }
  }
  for (int first = 0; first < rows * columns; first += kBankBytes / static_cast<int>(sizeof(T))) {
    if (!one_chunk_per_bank<T>(layout, first, kChunk)) return false;
  }
  return true;
}

// The tiles of products: rows of 16, 32, 64, 128 or 256 values of 16 bits, of 16 to 128 f32, of 64 or 128 bytes.
static_assert(conflict_free<uint16_t, 128, 16>(TileSwizzle<uint16_t, 16>{}));
static_assert(conflict_free<uint16_t, 128, 32>(TileSwizzle<uint16_t, 32>{}));
static_assert(conflict_free<uint16_t, 128, 64>(TileSwizzle<uint16_t, 64>{}));
static_assert(conflict_free<uint16_t, 64, 128>(TileSwizzle<uint16_t, 128>{}));
static_assert(conflict_free<uint16_t, 64, 256>(TileSwizzle<uint16_t, 256>{}));
static_assert(conflict_free<uint32_t, 128, 16>(TileSwizzle<uint32_t, 16>{}));
static_assert(conflict_free<uint32_t, 128, 32>(TileSwizzle<uint32_t, 32>{}));
static_assert(conflict_free<uint32_t, 64, 64>(TileSwizzle<uint32_t, 64>{}));
static_assert(conflict_free<uint32_t, 32, 128>(TileSwizzle<uint32_t, 128>{}));
static_assert(conflict_free<uint8_t, 128, 64>(TileSwizzle<uint8_t, 64>{}));
static_assert(conflict_free<uint8_t, 128, 128>(TileSwizzle<uint8_t, 128>{}));

// Without one, they are not.
static_assert(!conflict_free<uint16_t, 128, 32>(Swizzle<0, 3, 0>{}));
static_assert(!conflict_free<uint16_t, 128, 64>(Swizzle<0, 3, 0>{}));

}  // namespace warpsmith
