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
  // epilogue and gate: d, before, before_up; gradient: d; heads: q, k, v.
  CUtensorMap results[3];
};

template <class Config, Ends ends>
class FusedEnds {
  using T = typename Config::T;
  static constexpr bool kGate = ends == Ends::gate;
  static constexpr int kCols = 64, kLine = 128, kBoxes = 2, kValues = kCols / 2;          // of a box; a thread's of it
  static constexpr int kAcross = Config::cols / kCols, kEach = Config::strips * kAcross;  // boxes of a tile

 public:
  static constexpr bool kRowSums = ends == Ends::gradient;
  static constexpr int kBiases = Config::weights * Config::cols, kEachBias = (kBiases + kWarpgroup - 1) / kWarpgroup;

  struct Shared {
    alignas(1024) char of[kBoxes][kWgmmaRows * kLine];
    // Biases of the tile's columns, of a gate behind them those of the other weight; or a matrix of ones, eight lines.
    std::conditional_t<kRowSums, T[8 * kLine / sizeof(T)], float[kBiases]> more;
  };

  // A thread's share of them.
  struct Biases {
    float of[kEachBias] = {};
  };

  __device__ explicit FusedEnds(Shared& shared) : shared_(shared) {
#if WARPSMITH_HAS_WGMMA
    if constexpr (kRowSums) {
      for (int i = static_cast<int>(threadIdx.x) % kWarpgroup; i < 8 * kLine / 16; i += kWarpgroup) {
        Vec<T, 8> ones;
        for (int j = 0; j < 8; ++j) ones[j] = from_float<T>(1.0f);
        warpsmith::store(shared.more + 8 * i, ones);
      }
      ptx::fence_proxy_async();
      meet();
    }
#endif
  }

#if WARPSMITH_HAS_WGMMA
  // Before the products of a tile, under which they arrive.
  __device__ __forceinline__ Biases read_biases(const FusedArgs& p, const WgmmaPlace& at) const {
    Biases biases;
    if (!has_bias(p)) return biases;
#pragma unroll
    for (int i = 0; i < kEachBias; ++i) {
      const int index = static_cast<int>(threadIdx.x) % kWarpgroup + i * kWarpgroup;
      const bool up = kGate && index >= Config::cols;
      const int64_t col = at.n + (up ? index - Config::cols : index);
      const void* from = up ? p.up_bias : p.bias;
      if (from == nullptr || index >= kBiases || col >= p.n) continue;
      biases.of[i] = p.wide_bias ? static_cast<const float*>(from)[col] : to_float(static_cast<const T*>(from)[col]);
    }
    return biases;
  }

  // `at`: where the warpgroup's rows begin in the product, and the tile's columns.
  __device__ __forceinline__ void store(typename Config::Sums& sums, const FusedArgs& p, const FusedMaps& maps,
                                        const WgmmaPlace& at, bool partial, const Biases& biases) {
    if constexpr (!kRowSums) {
      if (has_bias(p) && !partial) put_biases(biases);
    }
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
          finish(as_box(values), as_box(values + Config::bn / 4), p, maps, of, at.n);
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
        } else if constexpr (ends == Ends::gradient) {
          put_box(values, [&](const char* from) { ptx::tensor_store(&maps.results[0], {of.m, of.n}, from); });
        } else {
          finish(values, values, p, maps, of, at.n);
        }
      }
    }
  }

  // Of a thread's two rows of the strip, whose sums stand in all columns.
  __device__ __forceinline__ static void leave_rows(const float* sums, const FusedArgs& p, const WgmmaPlace& at,
                                                    int strip, bool partial) {
    if (lane() % 4 != 0) return;
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      const int64_t row = at.m + strip * kWgmmaRows + Config::own_row(below);
      if (row >= p.m) continue;
      if (partial) {
        p.partial_rows[at.slice * p.m + row] = sums[2 * below];
      } else {
        leave_row_sum<T>(p, row, sums[2 * below]);
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

  __device__ __forceinline__ static bool has_bias(const FusedArgs& p) {
    return ends != Ends::add && !kRowSums && (p.bias != nullptr || (kGate && p.up_bias != nullptr));
  }

  // All have read those of the tile before: behind its last ones they met at a box.
  __device__ __forceinline__ void put_biases(const Biases& biases) {
#pragma unroll
    for (int i = 0; i < kEachBias; ++i) {
      const int index = static_cast<int>(threadIdx.x) % kWarpgroup + i * kWarpgroup;
      if (index < kBiases) shared_.more[index] = biases.of[i];
    }
    meet();
  }

  // `up`: of a gate's other product. `tile`: its first column.
  __device__ __forceinline__ void finish(Values& values, [[maybe_unused]] Values& up, const FusedArgs& p,
                                         const FusedMaps& maps, const WgmmaPlace& at, int tile) {
    if constexpr (ends == Ends::epilogue) {
#pragma unroll
      for (float& value : values) value *= p.alpha;
    }
    if (p.bias != nullptr) add_bias(values, at.n - tile);
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
        if (p.up_bias != nullptr) add_bias(up, at.n - tile + Config::cols);
        if (p.before_up != nullptr) put(maps.results[2], up);
#pragma unroll
        for (int i = 0; i < kValues; ++i) values[i] *= up[i];
      } else if (p.residual != nullptr) {
        Addends residual;
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

  using Addends = Vec<T, 2>[kValues / 2];  // of the values of a thread

  // Rows of the residual are packs of 16 bytes.
  __device__ __forceinline__ static void load_residual(Addends& to, const FusedArgs& p, const WgmmaPlace& at) {
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

  // `first`: the place of the box's first column among the biases.
  __device__ __forceinline__ void add_bias(Values& values, int first) const {
    const float* from = shared_.more + first + lane() % 4 * 2;
#pragma unroll
    for (int j = 0; j < kCols / 8; ++j) {
      const float2 pair = *reinterpret_cast<const float2*>(from + 8 * j);
#pragma unroll
      for (int below = 0; below < 2; ++below) {
        values[4 * j + 2 * below] += pair.x;
        values[4 * j + 2 * below + 1] += pair.y;
      }
    }
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
