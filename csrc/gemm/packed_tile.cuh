// Tiles of row-major operands, brought in 128-bit packs and kept in shared memory so that no access meets another in a
// bank: a is transposed, so that both are [k][row of a or column of b].
#pragma once

#include <numeric>

#include "device/vec.h"
#include "gemm/gemm.h"
#include "gemm/thread_tile.cuh"
#include "host/min_max.h"

namespace warpsmith {

// 8 warps, two by four, of 8 x 4 lanes; a thread computes tm x tn values.
template <int tm_, int tn_, int bk_>
struct PackedTile {
  static constexpr int tm = tm_, tn = tn_, bk = bk_, threads = 256;
  static constexpr int warp_rows = 2, warp_cols = 4, lane_rows = 8, lane_cols = 4;
  static constexpr int bm = warp_rows * lane_rows * tm, bn = warp_cols * lane_cols * tn;
  static constexpr Walk walk = tm <= tn && bk >= 16 ? Walk::columns : Walk::rows;
  static constexpr Left left = Left::pairs;
};

// A tile whose products are added from halves of registers.
template <class Tile>
struct FromHalves : Tile {
  static constexpr Left left = Left::halves;
};

// Blocks that a multiprocessor has registers for, going by those of the sums.
template <class Tile, class Acc>
inline constexpr int kBlocks = Tile::tm * Tile::tn * static_cast<int>(sizeof(Acc)) <= 8 * 8 * 4 ? 2 : 1;

// The rows and columns of a thread. They come in chunks of 16 bytes, those of neighbouring lanes contiguous. Lanes at
// distance 1 share their rows and lanes at distance 2 their columns, which lets shared memory answer half a warp at once.
template <class Tile, class Acc>
struct ThreadPlace {
  static constexpr int row_step = Tile::lane_rows * kChunk<Acc>, col_step = Tile::lane_cols * kChunk<Acc>;
  int row, col;  // in the tile

  __device__ ThreadPlace() {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int lane_row = lane >> 1 & 7, lane_col = (lane >> 4) << 1 | (lane & 1);
    row = warp / Tile::warp_cols * (Tile::lane_rows * Tile::tm) + lane_row * kChunk<Acc>;
    col = warp % Tile::warp_cols * (Tile::lane_cols * Tile::tn) + lane_col * kChunk<Acc>;
  }
};

// --- shared memory ----------------------------------------------------------------------------------------------

template <class Tile, class Acc>
struct SharedTile {
  static constexpr int a_stride = Tile::bm + kChunk<Acc>;  // padded, for the stores that turn a
  static constexpr int b_stride = Tile::bn;
  alignas(16) Acc a[Tile::bk * a_stride];
  alignas(16) Acc b[Tile::bk * b_stride];
};

// Adds the products of part `part` of `parts` of a tile's k.
template <int parts = 1, class Tile, class Acc>
__device__ __forceinline__ void multiply(Sums<Acc, Tile::tm, Tile::tn>& sums, const SharedTile<Tile, Acc>& shared,
                                         const ThreadPlace<Tile, Acc>& place, int part = 0) {
  using Shared = SharedTile<Tile, Acc>;
  using Place = ThreadPlace<Tile, Acc>;
  constexpr int kDepth = Tile::bk / parts;
  // So many multiplications as the instruction cache holds; a block alone on its multiprocessor gains from more.
  constexpr int kTogether = kBlocks<Tile, Acc> == 1 ? 2048 : 1024;
  constexpr int kUnroll = std::min(kDepth, kTogether / (Tile::tm * Tile::tn));
#pragma unroll kUnroll
  for (int i = 0; i < kDepth; ++i) {
    const int k = part * kDepth + i;
    Acc a[Tile::tm], b[Tile::tn];
    load_chunks(a, shared.a + k * Shared::a_stride + place.row, Place::row_step);
    load_chunks(b, shared.b + k * Shared::b_stride + place.col, Place::col_step);
    sums.template add_products<Tile>(a, b);
  }
}

// --- packs ------------------------------------------------------------------------------------------------------

// Which packs of the tiles a thread brings: of one row of a and of one column of b, some k apart. Two lanes bring
// neighbouring packs of a row of a where these are 4 values, which the padding keeps apart in shared memory; where they
// are 8, the lanes of a warp bring 32 rows.
template <class Tile, class T>
struct ThreadPacks {
  static constexpr int width = kPack<T>, pair = width == 4 ? 2 : 1, across = Tile::bn / width;
  static constexpr int a_step = Tile::threads * width / Tile::bm, b_step = Tile::threads * width / Tile::bn;  // of k
  static constexpr int a_packs = Tile::bk / a_step, b_packs = Tile::bk / b_step;
  static_assert(Tile::threads % (pair * Tile::bm) == 0 && a_packs * a_step == Tile::bk, "packs of one row");
  static_assert(Tile::threads % across == 0 && b_packs * b_step == Tile::bk, "packs of one column");
  // A tile can be brought in parts.
  static constexpr int parts = std::gcd(a_packs, b_packs), a_part = a_packs / parts, b_part = b_packs / parts;

  // The first pack.
  __device__ static int a_row() { return static_cast<int>(threadIdx.x) / pair % Tile::bm; }
  __device__ static int a_k() {
    const int thread = static_cast<int>(threadIdx.x);
    return (thread / (pair * Tile::bm) * pair + thread % pair) * width;
  }
  __device__ static int b_k() { return static_cast<int>(threadIdx.x) / across; }
  __device__ static int b_col() { return static_cast<int>(threadIdx.x) % across * width; }
};

// Where the thread's packs of the tile at hand lie in global memory.
template <class Tile, class T>
struct PackSource {
  using Packs = ThreadPacks<Tile, T>;
  const T* a;
  const T* b;
  int64_t b_ld;
  int64_t left;  // values of k from the tile's first on
  int a_k, b_k;  // of the first packs; past the tile where row or column are outside

  __device__ PackSource(const GemmArgs& p, int64_t first_row, int64_t first_col)
      : a(static_cast<const T*>(p.a.data) + (first_row + Packs::a_row()) * p.a.ld + Packs::a_k()),
        b(static_cast<const T*>(p.b.data) + Packs::b_k() * p.b.ld + first_col + Packs::b_col()),
        b_ld(p.b.ld),
        left(p.k),
        a_k(first_row + Packs::a_row() < p.m ? Packs::a_k() : Tile::bk),
        b_k(first_col + Packs::b_col() < p.n ? Packs::b_k() : Tile::bk) {}

  // Calls body(i, address, inside) for each pack of a, and of b, of a part of the tile.
  template <class Body>
  __device__ void each_a(int part, Body&& body) const {
    const int depth = static_cast<int>(min(left, int64_t{Tile::bk}));
#pragma unroll
    for (int own = 0; own < Packs::a_part; ++own) {
      const int i = part * Packs::a_part + own;
      body(i, a + i * Packs::a_step, a_k + i * Packs::a_step < depth);
    }
  }
  template <class Body>
  __device__ void each_b(int part, Body&& body) const {
    const int depth = static_cast<int>(min(left, int64_t{Tile::bk}));
#pragma unroll
    for (int own = 0; own < Packs::b_part; ++own) {
      const int i = part * Packs::b_part + own;
      body(i, b + i * Packs::b_step * b_ld, b_k + i * Packs::b_step < depth);
    }
  }

  __device__ void advance() {
    a += Tile::bk;
    b += Tile::bk * b_ld;
    left -= Tile::bk;
  }
};

// A pack of a, its k spread over rows of shared memory; and one of b, as it is. 16-bit values become f32 where sums are.
template <class Tile, class Acc, class T>
__device__ __forceinline__ void put_transposed(SharedTile<Tile, Acc>& shared, const Pack<T>& values, int i) {
  using Packs = ThreadPacks<Tile, T>;
  Acc* const to = shared.a + (Packs::a_k() + i * Packs::a_step) * SharedTile<Tile, Acc>::a_stride + Packs::a_row();
#pragma unroll
  for (int c = 0; c < Packs::width; ++c) {
    if constexpr (std::is_same_v<T, Acc>) {
      to[c * SharedTile<Tile, Acc>::a_stride] = values[c];
    } else {
      to[c * SharedTile<Tile, Acc>::a_stride] = to_float(values[c]);
    }
  }
}

template <class Tile, class Acc, class T>
__device__ __forceinline__ void put_straight(SharedTile<Tile, Acc>& shared, const Pack<T>& values, int i) {
  using Packs = ThreadPacks<Tile, T>;
  Acc* const to = shared.b + (Packs::b_k() + i * Packs::b_step) * SharedTile<Tile, Acc>::b_stride + Packs::b_col();
  if constexpr (std::is_same_v<T, Acc>) {
    store(to, values);
  } else {
    // Eight f32 are two chunks; were all lanes to begin with the first, every second bank would idle.
    float wide[Packs::width];
    to_float(wide, values);
    const bool second_first = threadIdx.x & 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Vec<float, 4> chunk;
#pragma unroll
      for (int c = 0; c < 4; ++c) chunk[c] = second_first == (half == 0) ? wide[4 + c] : wide[c];
      store(to + (second_first == (half == 0) ? 4 : 0), chunk);
    }
  }
}

// The packs of a part of a tile, in registers on their way from global to shared memory.
template <class Tile, class T>
struct HeldPacks {
  using Packs = ThreadPacks<Tile, T>;
  Pack<T> a[Packs::a_part], b[Packs::b_part];

  __device__ void load_from(const PackSource<Tile, T>& from, int part) {
    const auto fetch = [](Pack<T>& to, const T* address, bool inside) {
      to = {};
      if (inside) load(to, address);
    };
    from.each_a(part, [&](int i, const T* address, bool inside) { fetch(a[i % Packs::a_part], address, inside); });
    from.each_b(part, [&](int i, const T* address, bool inside) { fetch(b[i % Packs::b_part], address, inside); });
  }

  template <class Acc>
  __device__ void store_to(SharedTile<Tile, Acc>& shared, int part) const {
#pragma unroll
    for (int i = 0; i < Packs::a_part; ++i) put_transposed(shared, a[i], part * Packs::a_part + i);
#pragma unroll
    for (int i = 0; i < Packs::b_part; ++i) put_straight(shared, b[i], part * Packs::b_part + i);
  }
};

// --- results ----------------------------------------------------------------------------------------------------

// Sums that end after `done` values of k.
template <class T, class Tile, class Acc>
__device__ __forceinline__ void store_tile(const GemmArgs& p, const Sums<Acc, Tile::tm, Tile::tn>& sums,
                                           const ThreadPlace<Tile, Acc>& place, int64_t first_row, int64_t first_col,
                                           int64_t done) {
  const bool add = kCutsSums<T> && done > kMostTerms;
  int own_row = place.row;
  asm volatile("" : "+r"(own_row));  // or else addresses are computed, and kept, before the multiplications
  constexpr int kWidth = kChunk<Acc>;
  using Place = ThreadPlace<Tile, Acc>;
#pragma unroll
  for (int i = 0; i < Tile::tm; ++i) {
    const int64_t row = first_row + own_row + i / kWidth * Place::row_step + i % kWidth;
    if (row >= p.m) continue;
    T* const d = static_cast<T*>(p.d) + row * p.n;
#pragma unroll
    for (int j = 0; j < Tile::tn; j += kWidth) {
      const int64_t col = first_col + place.col + j / kWidth * Place::col_step;
      if (col < p.n) store_sums<T, kWidth>(d + col, sums, i, j, add);
    }
  }
}

// After a slice, before the last `left` values of k: where sums end, stores them and begins the next.
template <class T, class Tile, class Acc>
__device__ __forceinline__ void cut_sums(const GemmArgs& p, Sums<Acc, Tile::tm, Tile::tn>& sums,
                                         const ThreadPlace<Tile, Acc>& place, int64_t first_row, int64_t first_col,
                                         int64_t left) {
  static_assert(kMostTerms % Tile::bk == 0, "sums end where slices do");
  const int64_t done = p.k - left;
  if (!kCutsSums<T> || left <= 0 || done % kMostTerms != 0) return;
  store_tile<T>(p, sums, place, first_row, first_col, done);
  sums = {};
}

// --- calls ------------------------------------------------------------------------------------------------------

// What a block has of shared memory on every GPU from sm_80 on; sm_89 has no more.
inline constexpr int kMostSharedBytes = 99 * 1024;

template <class Tile>
int64_t tiles_of(const GemmArgs& p) {
  return ceil_div(p.m, Tile::bm) * ceil_div(p.n, Tile::bn);
}

}  // namespace warpsmith
