// What becomes of the sums of a warpgroup of a product of layers. Results of 16 bits go through boxes in shared memory, from
// which the copy engine stores them, or threads do where rows of a box are of several sequences; sums of f32 leave registers
// by pairs.
#pragma once

#include "device/ptx/barrier.h"
#include "device/ptx/store_matrix.h"
#include "device/ptx/tensor_store.h"
#include "gemm/fused_linear/ends.cuh"
#include "gemm/split.cuh"
#include "gemm/wgmma_finish.cuh"
#include "gemm/wgmma_store.cuh"

namespace warpsmith {

struct FusedMaps {
  CUtensorMap x, w, up;
  // epilogue and gate: d, before, before_up; heads: q, k, v.
  CUtensorMap results[3];
};

template <class Config, Ends ends>
class FusedEnds {
  using T = typename Config::T;
  static constexpr bool kGate = ends == Ends::gate;
  static constexpr int kCols = 64, kLine = 128, kBoxes = 2, kValues = kCols / 2;          // of a box; a thread's of it
  static constexpr int kAcross = Config::cols / kCols, kEach = Config::strips * kAcross;  // boxes of a tile

 public:
  struct Shared {
    alignas(1024) char of[kBoxes][kWgmmaRows * kLine];
  };

  __device__ explicit FusedEnds(Shared& shared) : shared_(shared) {}

#if WARPSMITH_HAS_WGMMA
  // `at`: where the warpgroup's rows begin in the product, and the tile's columns.
  __device__ __forceinline__ void store(typename Config::Sums& sums, const FusedArgs& p, const FusedMaps& maps,
                                        const WgmmaPlace& at, bool partial) {
    const auto place_of = [&](int box) {
      return WgmmaPlace{at.m + box / kAcross * kWgmmaRows, at.n + box % kAcross * kCols, 0, at.slice};
    };
    if constexpr (kGate) {
      // Where they are: there are no registers for another 64 values.
#pragma unroll
      for (int box = 0; box < kEach; ++box) {
        const WgmmaPlace of = place_of(box);
        if (of.m < p.m && of.n < p.n) {
          float* values = sums[box / kAcross] + box % kAcross * kValues;
          finish(as_box(values), as_box(values + Config::bn / 4), p, maps, of);
        }
      }
    } else {
      // One copy of the code for all boxes, on values that are moved for it.
#pragma unroll 1
      for (int box = 0; box < kEach; ++box) {
        const WgmmaPlace of = place_of(box);
        float values[kValues];
        pick<0>(values, sums, box);
        if (of.m >= p.m || of.n >= p.n) continue;
        if (ends != Ends::heads && partial) {
          put_pairs<false>(partial_sums(p, of.slice, 0), values, p, of);
        } else if constexpr (ends == Ends::add) {
          put_pairs<true>(static_cast<float*>(p.d), values, p, of);
        } else {
          finish(values, values, p, maps, of);
        }
      }
    }
  }

  // The block's shared memory must last until it has been read.
  __device__ __forceinline__ void finish() {
    if (leads()) ptx::stores_wait_read<0>();
  }

 private:
  using Values = float[kValues];

  __device__ __forceinline__ static Values& as_box(float* values) { return reinterpret_cast<Values&>(*values); }

  template <int box>
  __device__ __forceinline__ static void pick(Values& to, const typename Config::Sums& sums, int wanted) {
    if (wanted == box) {
#pragma unroll
      for (int i = 0; i < kValues; ++i) to[i] = sums[box / kAcross][box % kAcross * kValues + i];
    } else if constexpr (box + 1 < kEach) {
      pick<box + 1>(to, sums, wanted);
    }
  }

  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x) % kWarp; }
  __device__ __forceinline__ static int warp() { return static_cast<int>(threadIdx.x) / kWarp % 4; }
  __device__ __forceinline__ static bool leads() { return threadIdx.x % kWarpgroup == 0; }
  // Of the warpgroup's threads; its number is that of its barrier.
  __device__ __forceinline__ static void meet() {
    ptx::sync_warps(static_cast<int>(threadIdx.x) / kWarpgroup + 1, kWarpgroup);
  }

  // `up`: of a gate's other product.
  __device__ __forceinline__ void finish(Values& values, [[maybe_unused]] Values& up, const FusedArgs& p,
                                         const FusedMaps& maps, const WgmmaPlace& at) {
    if constexpr (ends == Ends::epilogue) {
#pragma unroll
      for (float& value : values) value *= p.alpha;
    }
    add_bias(values, p.bias, p, at);
    if constexpr (ends == Ends::heads) {
      const bool whole = of_one_sequence(p.heads, p.m, at.m);
      const char* box = put_box(values, [&](const char* of) {
        if (whole) store_heads(of, p, maps, at);
      });
      // Nobody writes there before all have met again, with these lines read.
      if (!whole) put_lines_of_heads(box, p, at);
    } else {
      const auto put = [&](const CUtensorMap& map, const float* from) {
        put_box(from, [&](const char* box) { ptx::tensor_store(&map, {at.m, at.n}, box); });
      };
      if (p.before != nullptr) put(maps.results[1], values);
      activate<false, kValues>(p.activation, values);
      if constexpr (kGate) {
        add_bias(up, p.up_bias, p, at);
        if (p.before_up != nullptr) put(maps.results[2], up);
#pragma unroll
        for (int i = 0; i < kValues; ++i) values[i] *= up[i];
      } else if (p.residual != nullptr) {
        Addends<T> residual;
        load_residual(residual, p, at);
#pragma unroll
        for (int i = 0; i < kValues; ++i) values[i] += to_float(residual[i / 2][i % 2]);
      }
      if (p.amax != nullptr) note_rows(values, p, at);
      put(maps.results[0], values);
    }
  }

  // Of two rows, whose columns four lanes share; sums behind the last column are of nothing.
  __device__ __forceinline__ static void note_rows(const Values& values, const FusedArgs& p, const WgmmaPlace& at) {
    const int64_t col = at.n + lane() % 4 * 2;
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      unsigned most = 0;
#pragma unroll
      for (int j = 0; j < kCols / 8; ++j) {
        const float pair[] = {values[4 * j + 2 * below], values[4 * j + 2 * below + 1]};
        if (col + 8 * j < p.n) most = max(most, largest_bits(pair));
      }
      most = warp_reduce<4>(most, Max{});
      const int64_t row = at.m + Config::own_row(below);
      if (lane() % 4 == 0 && row < p.m) note_largest<T>(p.amax + row, most);
    }
  }

  // Of the values of a thread, or of those of its columns.
  template <class From, int pairs = kValues / 2>
  using Addends = Vec<From, 2>[pairs];

  // Rows of the residual are packs of 16 bytes.
  __device__ __forceinline__ static void load_residual(Addends<T>& to, const FusedArgs& p, const WgmmaPlace& at) {
    const int64_t col = at.n + lane() % 4 * 2;
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      const int64_t row = at.m + Config::own_row(below);
      const T* from = static_cast<const T*>(p.residual) + row * p.n + col;
#pragma unroll
      for (int j = 0; j < kCols / 8; ++j) {
        to[2 * j + below] = {};
        if (row < p.m && col + 8 * j < p.n) load(to[2 * j + below], from + 8 * j);
      }
    }
  }

  __device__ __forceinline__ static void add_bias(Values& values, const void* bias, const FusedArgs& p,
                                                  const WgmmaPlace& at) {
    if (bias == nullptr) return;
    p.wide_bias ? add_bias_of(values, static_cast<const float*>(bias), p, at)
                : add_bias_of(values, static_cast<const T*>(bias), p, at);
  }

  template <class From>
  __device__ __forceinline__ static void add_bias_of(Values& values, const From* from, const FusedArgs& p,
                                                     const WgmmaPlace& at) {
    const int64_t col = at.n + lane() % 4 * 2;
    Addends<From, kCols / 8> bias;
#pragma unroll
    for (int j = 0; j < kCols / 8; ++j) {
      bias[j] = {};
      if (col + 8 * j < p.n) load(bias[j], from + col + 8 * j);
    }
#pragma unroll
    for (int i = 0; i < kValues; ++i) values[i] += to_float(bias[i / 4][i % 2]);
  }

  // `adds`: to what is there.
  template <bool adds>
  __device__ __forceinline__ static void put_pairs(float* to, const float* values, const FusedArgs& p,
                                                   const WgmmaPlace& at) {
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      const int64_t row = at.m + Config::own_row(below);
      if (row >= p.m) continue;
      const int64_t first = at.n + lane() % 4 * 2;
      float2* place = reinterpret_cast<float2*>(to + row * p.n + first);
      float2 before[kCols / 8];
#pragma unroll
      for (int j = 0; j < kCols / 8; ++j) {
        before[j] = {0.0f, 0.0f};
        if (adds && first + 8 * j < p.n) before[j] = place[4 * j];
      }
#pragma unroll
      for (int j = 0; j < kCols / 8; ++j) {
        const float* pair = values + 4 * j + 2 * below;
        if (first + 8 * j < p.n) place[4 * j] = {before[j].x + pair[0], before[j].y + pair[1]};
      }
    }
  }

  // Puts the values into a box, 64 rows of a line each, for one thread to store it; returns the box. A group is closed for
  // each, also where nothing is stored: they are counted by boxes.
  template <class Store>
  __device__ __forceinline__ const char* put_box(const float* values, Store&& store) {
    char* box = shared_.of[next_];
    next_ ^= 1;
    if (leads()) ptx::stores_wait_read<kBoxes - 1>();
    meet();
    // stmatrix: eight lanes name the lines of 8 x 8 values, upper and lower of the left eight columns, then of the right.
#pragma unroll
    for (int j = 0; j < kCols / 8; j += 2) {
      uint32_t words[4];
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        words[word] = pack_pair<T>(values[4 * j + 2 * word], values[4 * j + 2 * word + 1]);
      }
      const int line = warp() * 16 + lane() % 16, chunk = j + lane() / 16;
      ptx::stmatrix(box + line * kLine + (chunk ^ line % 8) * 16, words);
    }
    ptx::fence_proxy_async();
    meet();
    if (leads()) {
      store(box);
      ptx::stores_commit();
    }
    return box;
  }

  // Heads are whole boxes wide. A box whose rows are of one sequence is stored as any other; its rows past the last sequence
  // are left out. The copy engine cannot store rows of a second one: to it they would begin before row 0, where loads may
  // begin, but stores may not.
  __device__ __forceinline__ static bool of_one_sequence(const HeadResults& heads, int64_t m, int row) {
    if (!heads.heads_first) return true;
    const int rows = static_cast<int>(heads.rows), last = static_cast<int>(min(m, int64_t{row} + kWgmmaRows)) - 1;
    return row / rows == last / rows;
  }

  __device__ __forceinline__ static void store_heads(const char* box, const FusedArgs& p, const FusedMaps& maps,
                                                     const WgmmaPlace& at) {
    const HeadColumn column(p.heads, at.n);
    const CUtensorMap* map = &maps.results[column.part];
    const int col = static_cast<int>(column.col);
    if (!p.heads.heads_first) return ptx::tensor_store(map, {0, at.m, col}, box);
    const int size = static_cast<int>(p.heads.size), rows = static_cast<int>(p.heads.rows);
    const int count = static_cast<int>(p.heads.heads[column.part]), sequence = at.m / rows;
    ptx::tensor_store(map, {sequence * count + col / size, at.m - sequence * rows, col % size}, box);
  }

  // Lines of a box to rows of several sequences: eight lanes a line, each warp the lines that it wrote.
  __device__ __forceinline__ static void put_lines_of_heads(const char* box, const FusedArgs& p, const WgmmaPlace& at) {
    constexpr int kLanes = kLine / 16, kEachWarp = kWgmmaRows / 4, kStep = kWarp / kLanes;
    const HeadColumn column(p.heads, at.n);
    const int rows = static_cast<int>(p.heads.rows), size = static_cast<int>(p.heads.size);
    const int64_t of_sequence = p.heads.heads[column.part] * rows, head = column.col / size;
    const int chunk = lane() % kLanes;
    T* to = static_cast<T*>(p.heads.data[column.part]) + column.col % size + chunk * (16 / static_cast<int>(sizeof(T)));
#pragma unroll 1
    for (int i = 0; i < kEachWarp; i += kStep) {
      const int line = warp() * kEachWarp + i + lane() / kLanes, row = at.m + line;
      if (row >= p.m) break;
      const int sequence = row / rows;
      const int64_t place = sequence * of_sequence + head * rows + (row - sequence * rows);
      *reinterpret_cast<uint4*>(to + place * size) =
          *reinterpret_cast<const uint4*>(box + line * kLine + (chunk ^ line % 8) * 16);
    }
  }
#endif

  Shared& shared_;
  int next_ = 0;  // box
};

}  // namespace warpsmith
