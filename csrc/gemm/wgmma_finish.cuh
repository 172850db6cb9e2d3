// What becomes of the sums of a warpgroup: alpha, what is added, the activation; then whole lines to memory.
//   What is added is asked for a box ahead, of the first box while the last products run.
//   Results of 16 bits go through boxes in shared memory, from which the copy engine stores them while the warpgroup fills the
//   next box or multiplies; where rows of the product are no packs of 16 bytes, threads store lines of a box, a word a lane.
//   Results of f32, and partial sums, leave registers by pairs, four lanes a sector.
#pragma once

#include <cstring>
#include <type_traits>

#include "device/ptx/barrier.h"
#include "device/ptx/store_matrix.h"
#include "device/ptx/tensor_store.h"
#include "device/ptx/wgmma.h"
#include "gemm/epilogue.cuh"
#include "gemm/split.cuh"
#include "gemm/store_staged.cuh"
#include "gemm/wgmma_store.cuh"
#include "gemm/wgmma_tile.cuh"

namespace warpsmith {

// A tile of a product, or of a slice of it, as the instruction sees it: its first row and column.
struct WgmmaPlace {
  int m, n, product, slice;
};

// The result of a product that f16 and bf16 share the code of: the call's dtype says which.
struct EitherHalf {
  uint16_t bits;
};

// How sums leave.
enum class Leaving : int {
  boxes,  // by the copy engine
  lines,  // of boxes, by threads
  pairs   // straight from registers, f32
};

// `p` is the product as the instruction sees it: swapped with its operands where Config::Plan::swapped.
template <class Config>
class WgmmaFinish {
  using T = typename Config::T;
  static constexpr bool kSwapped = Config::Plan::swapped, kBoxed = sizeof(T) == 2;
  static constexpr bool kAdds = Config::most_steps > 0;  // sums are joined in memory
  static constexpr int kCols = Config::bn < 64 ? Config::bn : 64, kAcross = Config::bn / kCols;
  static constexpr int kEach = Config::strips * kAcross, kValues = kCols / 2;  // boxes of a tile; a thread's of a box
  static constexpr int kLine = 128, kLines = kSwapped ? kCols : kWgmmaRows, kBoxes = 2;
  static constexpr bool kFinishes = kBoxed && !std::is_same_v<T, EitherHalf>;  // others stand alone
  static_assert(kSwapped || kCols == 64 || !kBoxed, "lines of boxes are whole");

 public:
  struct Boxes {
    alignas(1024) char of[kBoxes][kLines * kLine];
  };
  struct Nothing {};
  using Shared = std::conditional_t<kBoxed, Boxes, Nothing>;

  // Of d [batch, rows, columns].
  static CUtensorMap map(const GemmArgs& p) {
    const int64_t rows = kSwapped ? p.n : p.m, cols = kSwapped ? p.m : p.n;
    return tensor_map(MappedTensor{.data = p.d,
                                   .type = tensor_map_type(p.dtype),
                                   .rank = 3,
                                   .sizes = {p.batch, rows, cols},
                                   .strides = {rows * cols, cols},
                                   .box = {1, kLines, 64}});
  }

  __device__ explicit WgmmaFinish(Shared& shared) : shared_(shared) {}

#if WARPSMITH_HAS_WGMMA
  // Asks for what is added to the first box of a tile, which arrives while the last products run.
  __device__ __forceinline__ void begin(const GemmArgs& p, Finish how, const WgmmaPlace& at) {
    if constexpr (kFinishes) {
      if (how == Finish::all) load_addends(p, at);
    }
  }

  // Behind begin().
  __device__ __forceinline__ void store(const typename Config::Sums& sums, const GemmArgs& p, Finish how,
                                        Leaving leaving, const CUtensorMap& map, const WgmmaPlace& at,
                                        bool adds = false) {
    if constexpr (kBoxed) {
      if (how == Finish::round && leaving == Leaving::boxes) {
#pragma unroll
        for (int box = 0; box < kEach; ++box) {
          put_box(sums[box / kAcross] + box % kAcross * kValues, p, Leaving::boxes, map, within(at, box));
        }
        return;
      }
    }
    // One copy of the code for all boxes, on values that are moved for it.
#pragma unroll 1
    for (int box = 0; box < kEach; ++box) {
      float values[kValues];
      pick<0>(values, sums, box);
      const WgmmaPlace of = within(at, box);
      if constexpr (kFinishes) {
        if (how == Finish::all) {
          add(values, p, of);
          if (box + 1 < kEach) load_addends(p, within(at, box + 1));
          activate<false, kValues>(p.activation, values);
        }
      }
      put(values, p, how, leaving, map, of, adds);
    }
  }

  // The block's shared memory must last until it has been read.
  __device__ __forceinline__ void finish() {
    if (kBoxed && leads()) ptx::stores_wait_read<0>();
  }

 private:
  template <int box>
  __device__ __forceinline__ static void pick(float (&to)[kValues], const typename Config::Sums& sums, int wanted) {
    if (wanted == box) {
#pragma unroll
      for (int i = 0; i < kValues; ++i) to[i] = sums[box / kAcross][box % kAcross * kValues + i];
    } else if constexpr (box + 1 < kEach) {
      pick<box + 1>(to, sums, wanted);
    }
  }

  __device__ __forceinline__ static WgmmaPlace within(const WgmmaPlace& tile, int box) {
    return {tile.m + box / kAcross * kWgmmaRows, tile.n + box % kAcross * kCols, tile.product, tile.slice};
  }
  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x) % kWarp; }
  __device__ __forceinline__ static int warp() { return static_cast<int>(threadIdx.x) / kWarp % 4; }
  __device__ __forceinline__ static bool leads() { return threadIdx.x % kWarpgroup == 0; }
  // Of the warpgroup's threads; its number is that of its barrier.
  __device__ __forceinline__ static void meet() {
    ptx::sync_warps(static_cast<int>(threadIdx.x) / kWarpgroup + 1, kWarpgroup);
  }
  // A value for all columns of a row; a word of two values; or values one by one, which are loaded when they are added.
  enum class Lies : int { nowhere, by_rows, by_pairs, singly };

  __device__ __forceinline__ static Lies addends(const GemmArgs& p) {
    if (p.c.data == nullptr) return Lies::nowhere;
    if (p.c.col == 0) return Lies::by_rows;
    constexpr int64_t kSize = sizeof(T);
    const int64_t starts = reinterpret_cast<int64_t>(p.c.data) | p.c.row * kSize | p.c.batch * kSize;
    return p.c.col == 1 && p.n % 2 == 0 && starts % (2 * kSize) == 0 ? Lies::by_pairs : Lies::singly;
  }
  // Of the first of a thread's columns of a box.
  __device__ __forceinline__ static const T* addends_of_row(const GemmArgs& p, const WgmmaPlace& at, int below) {
    const int64_t row = at.m + Config::own_row(below), col = at.n + lane() % 4 * 2;
    return static_cast<const T*>(p.c.data) + at.product * p.c.batch + row * p.c.row + col * p.c.col;
  }

  // Loads into words of registers, which nothing takes apart before add(): in the branch of the load that would wait for it,
  // and so each load for the one before.
  __device__ __forceinline__ void load_addends(const GemmArgs& p, const WgmmaPlace& at) {
    const Lies lies = addends(p);
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      const int64_t rows = p.m - at.m - Config::own_row(below), cols = p.n - at.n - lane() % 4 * 2;
      const T* from = addends_of_row(p, at, below);
      if (lies == Lies::by_rows) {
        words_[below] = rows > 0 ? *reinterpret_cast<const uint16_t*>(from) : 0;
      } else if (lies == Lies::by_pairs) {
#pragma unroll
        for (int j = 0; j < kCols / 8; ++j) {
          words_[2 * j + below] = rows > 0 && 8 * j < cols ? *reinterpret_cast<const uint32_t*>(from + 8 * j) : 0;
        }
      }
    }
  }

  // values = alpha * values + beta * c, by what load_addends() brought.
  __device__ __forceinline__ void add(float (&values)[kValues], const GemmArgs& p, const WgmmaPlace& at) const {
#pragma unroll
    for (float& value : values) value *= p.alpha;
    const Lies lies = addends(p);
    if (lies == Lies::nowhere) return;
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      const auto add_pair = [&](int j, uint32_t word) {
        Vec<T, 2> pair;
        memcpy(&pair, &word, sizeof(pair));
        float* to = values + 4 * j + 2 * below;
        for (int e = 0; e < 2; ++e) to[e] = fmaf(p.beta, to_float(pair[e]), to[e]);
      };
      if (lies == Lies::singly) {
        const int64_t rows = p.m - at.m - Config::own_row(below), cols = p.n - at.n - lane() % 4 * 2;
        const auto* from = reinterpret_cast<const uint16_t*>(addends_of_row(p, at, below));
        uint32_t of[kCols / 8][2];
#pragma unroll
        for (int j = 0; j < kCols / 8; ++j) {
#pragma unroll
          for (int e = 0; e < 2; ++e) of[j][e] = rows > 0 && 8 * j + e < cols ? from[(8 * j + e) * p.c.col] : 0;
        }
#pragma unroll
        for (int j = 0; j < kCols / 8; ++j) add_pair(j, of[j][0] | of[j][1] << 16);
      } else {
#pragma unroll
        for (int j = 0; j < kCols / 8; ++j) {
          add_pair(j, lies == Lies::by_rows ? words_[below] | words_[below] << 16 : words_[2 * j + below]);
        }
      }
    }
  }

  __device__ __forceinline__ void put(const float* values, const GemmArgs& p, Finish how, Leaving leaving,
                                      const CUtensorMap& map, const WgmmaPlace& at, bool adds) {
    if (how == Finish::partial) return put_pairs(partial_sums(p, at.slice, at.product), values, p, at, adds);
    if constexpr (kBoxed) {
      put_box(values, p, leaving, map, at);
    } else {
      put_pairs(static_cast<float*>(p.d) + at.product * p.m * p.n, values, p, at, adds);
    }
  }

  // `adds`: to what is there.
  __device__ __forceinline__ static void put_pairs(float* to, const float* values, const GemmArgs& p,
                                                   const WgmmaPlace& at, bool adds) {
    const auto put_one = [&](float* at, float value) { *at = kAdds && adds ? *at + value : value; };
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      const int64_t row = at.m + Config::own_row(below);
      if (row >= p.m) continue;
      const int64_t first = at.n + lane() % 4 * 2, next = kSwapped ? p.m : 1;
      float* place = to + (kSwapped ? first * p.m + row : row * p.n + first);
#pragma unroll
      for (int j = 0; j < kCols / 8; ++j, place += 8 * next) {
        const int64_t col = first + 8 * j;
        const float* pair = values + 4 * j + 2 * below;
        if (!kSwapped && p.n % 2 == 0) {
          if (col >= p.n) continue;
          auto* const two = reinterpret_cast<float2*>(place);
          float2 sum{pair[0], pair[1]};
          if (kAdds && adds) {
            const float2 before = *two;
            sum = {before.x + sum.x, before.y + sum.y};
          }
          *two = sum;
        } else {
          if (col < p.n) put_one(place, pair[0]);
          if (col + 1 < p.n) put_one(place + next, pair[1]);
        }
      }
    }
  }

  __device__ __forceinline__ static uint32_t pack(const GemmArgs& p, float low, float high) {
    if constexpr (std::is_same_v<T, EitherHalf>) {
      return p.dtype == Dtype::f16 ? pack_pair<f16>(low, high) : pack_pair<bf16>(low, high);
    } else {
      return pack_pair<T>(low, high);
    }
  }

  __device__ __forceinline__ void put_box(const float* values, const GemmArgs& p, Leaving leaving,
                                          const CUtensorMap& map, const WgmmaPlace& at) {
    char* box = shared_.of[next_];
    next_ ^= 1;
    if (leaving == Leaving::boxes && leads()) ptx::stores_wait_read<kBoxes - 1>();
    meet();
    // stmatrix: eight lanes name the lines of 8 x 8 values, upper and lower of the left eight columns, then of the right.
#pragma unroll
    for (int j = 0; j < kCols / 8; j += 2) {
      uint32_t words[4];
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        words[word] = pack(p, values[4 * j + 2 * word], values[4 * j + 2 * word + 1]);
      }
      if constexpr (kSwapped) {
        const int line = 8 * (j + lane() / 16) + lane() % 8, chunk = warp() * 2 + lane() / 8 % 2;
        ptx::stmatrix_trans(box + line * kLine + (chunk ^ line % 8) * 16, words);
      } else {
        const int line = warp() * 16 + lane() % 16, chunk = j + lane() / 16;
        ptx::stmatrix(box + line * kLine + (chunk ^ line % 8) * 16, words);
      }
    }
    const int row = kSwapped ? at.n : at.m, col = kSwapped ? at.m : at.n;  // of d
    if (leaving == Leaving::boxes) {
      ptx::fence_proxy_async();
      meet();
      if (leads()) {
        ptx::tensor_store(&map, {at.product, row, col}, box);
        ptx::stores_commit();
      }
    } else {
      meet();
      put_lines(box, p, at.product, row, col);
    }
  }

  // Lines of a box to rows of d, by words where those of d are: a row that starts between two words takes them one value on.
  __device__ __forceinline__ static void put_lines(const char* box, const GemmArgs& p, int product, int row, int col) {
    const int64_t rows = kSwapped ? p.n : p.m, cols = kSwapped ? p.m : p.n;
    constexpr int kEachWarp = kLines / 4;
    const int left = static_cast<int>(min(cols - col, int64_t{64}));  // of a line
#pragma unroll 4
    for (int i = 0; i < kEachWarp; ++i) {
      const int line = warp() * kEachWarp + i, chunk = lane() / 4 ^ line % 8;
      if (row + line >= rows) break;
      const auto word = *reinterpret_cast<const uint32_t*>(box + line * kLine + chunk * 16 + lane() % 4 * 4);
      const uint32_t next = __shfl_down_sync(~0u, word, 1);
      auto* to = reinterpret_cast<uint16_t*>(p.d) + (product * rows + row + line) * cols + col + 2 * lane();
      const auto put = [](uint16_t* at, uint32_t value) { *at = static_cast<uint16_t>(value); };
      const int mine = left - 2 * lane();  // values from this lane's first on
      if (reinterpret_cast<uintptr_t>(to) % 4 == 0) {
        if (mine > 1) {
          *reinterpret_cast<uint32_t*>(to) = word;
        } else if (mine == 1) {
          put(to, word);
        }
      } else {
        if (lane() == 0 && mine > 0) put(to, word);
        if (mine > 2) {
          *reinterpret_cast<uint32_t*>(to + 1) = __funnelshift_r(word, next, 16);
        } else if (mine > 1) {
          put(to + 1, word >> 16);
        }
      }
    }
  }
#endif

  Shared& shared_;
  int next_ = 0;                 // box
  uint32_t words_[kValues / 2];  // addends of the box that comes
};

}  // namespace warpsmith
