// Tiles of keys and values of one head, from a cache to shared memory and on to the tensor cores.
//
// Rows lie in shared memory as in the cache, their chunks of 16 bytes swizzled. Two values of e4m3 pass for one of 16
// bits there: ldmatrix then gives a lane four neighbouring values of a key where it would have given it two pairs 8 apart.
// Both operands of q k may be taken in another order of d as long as it is the same, so queries are laid over the lanes
// like that. Of values, transposed, a lane gets pairs of columns of two keys, which it sorts into the fragments of two
// tiles of the product: one of even columns and one of odd ones.
#pragma once

#include <cstdint>

#include "attention/kv_cache/split.h"
#include "attention/pages.cuh"
#include "device/convert.h"
#include "device/ptx/copy.h"
#include "device/ptx/mma.h"
#include "device/warp.h"
#include "tile/warp_mma.cuh"

namespace warpsmith {

template <class Tile>
struct CacheStage {
  static constexpr int words = Tile::d * static_cast<int>(sizeof(typename Tile::C)) / 2;  // 16 bits each, of a row
  using Keys = OperandTile<Along::k, Tile::keys, words, Swizzled>;
  using Values = OperandTile<Along::mn, words, Tile::keys, Swizzled>;
  alignas(128) uint16_t k[Keys::size];
  alignas(128) uint16_t v[Values::size];
};

// A group of warps copies tile after tile of one head. Every thread has the same chunk of every kStep-th row.
template <class Tile>
class CacheLoader {
  using C = typename Tile::C;
  using Stage = CacheStage<Tile>;
  static constexpr int kChunk = 16 / static_cast<int>(sizeof(C)), kPerRow = Tile::d / kChunk;
  static constexpr int kThreads = kWarp * Tile::warps_m, kStep = kThreads / kPerRow, kRun = 16;
  static constexpr int kRuns = kStep < kRun ? Tile::keys / kRun : Tile::keys / kStep;  // of which a thread has rows
  static constexpr int kOfRun = kStep < kRun ? kRun / kStep : 1;                       // rows of each
  static_assert(kThreads % kPerRow == 0 && Tile::keys % kStep == 0, "an even share");
  // A swizzle is exclusive-or of bits of the index, and the thread's first row has none in common with steps from there.
  static_assert((kStep & (kStep - 1)) == 0, "steps are flipped bits");

 public:
  // Keys from `low` to before `end` are copied. `thread`: of the group.
  __device__ __forceinline__ CacheLoader(const KvCacheArgs& a, int batch, int head, int low, int end, int thread)
      : pages_(a.pages),
        batch_(batch),
        low_(low),
        count_(static_cast<unsigned>(max(end - low, 0))),
        k_token_(a.k.token),
        v_token_(a.v.token) {
    row_ = thread / kPerRow;
    const int column = thread % kPerRow * kChunk;
    k_ = static_cast<const C*>(a.k.data) + head * a.k.head + column;
    v_ = static_cast<const C*>(a.v.data) + head * a.v.head + column;
    k_page_ = a.k.batch, v_page_ = a.v.batch;
    within_k_ = column < a.d, within_v_ = column < a.dv;
    to_k_ = Stage::Keys::at(row_, thread % kPerRow * 8);
    to_v_ = Stage::Values::at(row_, thread % kPerRow * 8);
  }

  // Finds the pages of the tile from `key` on, a multiple of 16, before start() needs them.
  __device__ __forceinline__ void find(int key) {
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      const int of_run = key + first_of(i);
      found_[i] = is_there(of_run) ? look_up_token(pages_, batch_, of_run) : InPage{0, 0};
    }
  }

  // Copies the tile that was found last. What no query sees, past the sequence say, and what lies past d, is zeros: it may
  // be anything in memory.
  __device__ __forceinline__ void start(Stage& to, int key) const {
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      check_page(pages_, found_[i].page);
      const int64_t page = found_[i].page, token = found_[i].token + row_ % kRun;
      const C* k = k_ + page * k_page_ + token * k_token_;
      const C* v = v_ + page * v_page_ + token * v_token_;
#pragma unroll
      for (int j = 0; j < kOfRun; ++j) {
        const int r = i * kOfRun + j;
        const bool there = is_there(key + row_ + r * kStep);
        ptx::cp_async_zfill(chunk(to.k, to_k_ ^ Stage::Keys::at(r * kStep, 0)), reinterpret_cast<const uint4*>(k),
                            there && within_k_);
        ptx::cp_async_zfill(chunk(to.v, to_v_ ^ Stage::Values::at(r * kStep, 0)), reinterpret_cast<const uint4*>(v),
                            there && within_v_);
        k += kStep * k_token_;
        v += kStep * v_token_;
      }
    }
  }

 private:
  // Rows come in runs of 16, which lie in one page; a thread has rows of one of them, or of each.
  __device__ __forceinline__ int first_of(int i) const {
    return kStep < kRun ? i * kRun : (row_ + i * kStep) / kRun * kRun;
  }
  __device__ __forceinline__ bool is_there(int key) const { return static_cast<unsigned>(key - low_) < count_; }
  __device__ __forceinline__ static uint4* chunk(uint16_t* tile, int at) { return reinterpret_cast<uint4*>(tile + at); }

  const Pages& pages_;
  int batch_, low_, row_, to_k_, to_v_;
  unsigned count_;
  bool within_k_, within_v_;
  const C *k_, *v_;
  int64_t k_page_, v_page_, k_token_, v_token_;
  InPage found_[kRuns];
};

// Two values of e4m3 as two of 16 bits, exactly.
template <class T>
__device__ __forceinline__ uint32_t widened(uint32_t pair) {
#if WARPSMITH_HAS_FP8_CVT && defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, f16>) return ptx::half2_from_e4m3x2(static_cast<uint16_t>(pair));
#endif
  const float2 wide = decode_fp8x2<e4m3>(static_cast<uint16_t>(pair));
  Vec<T, 2> narrow;
  const float values[2] = {wide.x, wide.y};
  from_float(narrow, values);
  return reinterpret_cast<const uint32_t&>(narrow);
}

// The queries of a warp, 16 x d, as the left operand: in registers, or, where sums need these, in shared memory as they lie
// over the lanes, so that a lane reads its own 16 bytes of a step.
template <class T, class Tile>
class Queries {
 public:
  static constexpr bool e4m3_keys = sizeof(typename Tile::C) == 1;
  static constexpr int steps = Tile::d / 16;

  // `rows`: of lane / 4 and 8 below; past d are zeros. `shared`: [warps_m][steps][lanes], written by the first group, for
  // all once these have met.
  __device__ __forceinline__ void load(const T* const (&rows)[2], int d, uint4* shared, int warp_m, bool writes) {
    if constexpr (Tile::queries_bytes == 0) {
#pragma unroll
      for (int step = 0; step < steps; ++step) read(a_[step], rows, d, step);
    } else {
      shared_ = shared + warp_m * steps * kWarp + static_cast<int>(threadIdx.x) % kWarp;
      if (!writes) return;
#pragma unroll 4
      for (int step = 0; step < steps; ++step) {
        uint32_t a[4];
        read(a, rows, d, step);
        shared_[step * kWarp] = {a[0], a[1], a[2], a[3]};
      }
    }
  }

  __device__ __forceinline__ void fragment(uint32_t (&to)[4], int step) const {
    if constexpr (Tile::queries_bytes == 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) to[i] = a_[step][i];
    } else {
      const uint4 a = shared_[step * kWarp];
      to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
    }
  }

 private:
  __device__ __forceinline__ static void read(uint32_t (&to)[4], const T* const (&rows)[2], int d, int step) {
    const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = 16 * step + (e4m3_keys ? 4 * t + 2 * (i / 2) : 2 * t + 8 * (i / 2));
      to[i] = column < d ? *reinterpret_cast<const uint32_t*>(rows[i % 2] + column) : 0u;
    }
  }

  uint32_t a_[Tile::queries_bytes == 0 ? steps : 1][4];
  uint4* shared_;
};

// Products of queries and a tile of keys: s[j] is that of keys 8 j to 8 j + 7.
template <class T, class Tile>
__device__ __forceinline__ void multiply_keys(MmaSum<T, float> (&s)[Tile::keys / 8], const Queries<T, Tile>& q,
                                              const uint16_t* keys) {
  using Keys = typename CacheStage<Tile>::Keys;
  const FragmentReader<Side::b, Keys> reader(0);
  constexpr int kSteps = Queries<T, Tile>::e4m3_keys ? 2 : 1;  // of d, in 16 words of a key
#pragma unroll
  for (int step = 0; step < Keys::k / 16; ++step) {
    uint32_t a[kSteps][4];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) q.fragment(a[i], kSteps * step + i);
#pragma unroll
    for (int j = 0; j < Tile::keys / 16; ++j) {
      uint32_t b[4];  // two pieces of d of 8 keys, and of the next 8
      reader.read(b, keys, 16 * j, 16 * step);
      if constexpr (Queries<T, Tile>::e4m3_keys) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t wide[2] = {widened<T>(b[i] & 0xffffu), widened<T>(b[i] >> 16)};
          s[2 * j + i / 2].add(a[i % 2], wide);
        }
      } else {
        const uint32_t low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
        s[2 * j].add(a[0], low);
        s[2 * j + 1].add(a[0], high);
      }
    }
  }
}

// What weights and values are multiplied as: e4m3 is exact in f16, which holds weights better than bf16 does.
template <class T, class Tile>
using Weight = std::conditional_t<sizeof(typename Tile::C) == 1, f16, T>;

// The sums over keys of weight * value, 16 x d.
template <class T, class Tile>
struct ValueSums {
  using W = Weight<T, Tile>;
  static constexpr bool e4m3_values = sizeof(typename Tile::C) == 1;
  MmaSum<W, float> o[Tile::d / 8];

  // The column of value i (0 or 1) of a half of o[j].
  __device__ __forceinline__ static int column(int j, int i) {
    const int t = static_cast<int>(threadIdx.x) % 4;
    return e4m3_values ? 16 * (j / 2) + 4 * t + 2 * i + j % 2 : 8 * j + 2 * t + i;
  }

  // Adds 16 keys, from key 16 * `step` of the tile on.
  __device__ __forceinline__ void add(const uint32_t (&weights)[4], const uint16_t* values, int step) {
    using Values = typename CacheStage<Tile>::Values;
    const FragmentReader<Side::b, Values> reader(0);
#pragma unroll
    for (int c = 0; c < Values::mn / 16; ++c) {
      uint32_t b[4];  // two eighths of the keys of 8 columns, and of the next 8
      reader.read(b, values, 16 * c, 16 * step);
      if constexpr (e4m3_values) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t first = b[2 * half], second = b[2 * half + 1];
          const uint32_t even[2] = {widened<W>(__byte_perm(first, 0, 0x4420)),
                                    widened<W>(__byte_perm(second, 0, 0x4420))};
          const uint32_t odd[2] = {widened<W>(__byte_perm(first, 0, 0x4431)),
                                   widened<W>(__byte_perm(second, 0, 0x4431))};
          o[4 * c + 2 * half].add(weights, even);
          o[4 * c + 2 * half + 1].add(weights, odd);
        }
      } else {
        const uint32_t low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
        o[2 * c].add(weights, low);
        o[2 * c + 1].add(weights, high);
      }
    }
  }
};

}  // namespace warpsmith
