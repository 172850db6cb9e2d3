// Packed weights widened in registers, from which wgmma takes its first operand (sm_90a).
//
// A block has 128 rows of weights, 64 for each of two warpgroups that multiply, and `bm` rows of x, which wgmma reads from
// shared memory as columns. A warp of a third warpgroup has the copy engine fill the ring: x by boxes, weights, scales and
// zeros as they lie. While the products of a stage run, the weights of the next one are widened. Sums of a group leave the
// tensor cores when it ends, are multiplied by its scales and added to the others in f32.
#pragma once

#include "device/block_order.h"
#include "device/matrix_descriptor.h"
#include "device/ptx/warpgroup.h"
#include "device/ptx/wgmma.h"
#include "device/vec.h"
#include "device/wgmma_ring.h"
#include "gemm/quantized_linear/quantized_linear.h"
#include "gemm/quantized_linear/weights.cuh"
#include "host/launch.h"
#include "host/tensor_map.h"
#include "tile/shared_limits.h"

namespace warpsmith {

// `halved`: groups of 32, of which a stage has two.
template <class T_, int bits_, int bm_, bool halved_>
struct QuantizedWgmma {
  using T = T_;
  static constexpr int bits = bits_, bm = bm_;
  static constexpr bool halved = halved_;
  static constexpr int bn = kQuantizedTileN, bk = kUnit, groups = halved ? 2 : 1;
  static constexpr int warpgroup = 128, threads = 3 * warpgroup;
  static constexpr int copier_registers = 40, multiplier_registers = 232;
  static constexpr int unit_words = kUnit * kUnit * bits / 32, steps = bk / 16;
  using Kind = WgmmaKind<T, T>;
  using X = WgmmaOperand<Major::k, bm, bk, 2>;

  struct Stage {
    alignas(1024) char x[X::bytes];
    alignas(128) uint32_t words[bn / kUnit][unit_words];
    alignas(128) T scales[groups][bn];
    alignas(128) int8_t zeros[groups][bn];
  };
  static constexpr int stages = bm == 64 ? 10 : 8;

  // Results on their way out take the place of the ring. [bm, out_stride]
  static constexpr int out_stride = bn + 8;

  struct Shared {
    Stage ring[stages];
    WgmmaRing<stages> barriers;
  };
  static_assert(bm * out_stride * sizeof(T) <= stages * sizeof(Stage));
  static_assert(sizeof(Shared) <= kSharedOfSm90);
};

#if WARPSMITH_HAS_WGMMA

template <class Config>
class QuantizedRows {
  using T = typename Config::T;
  using Stage = typename Config::Stage;
  using Sums = float[Config::bm / 2];
  using Fragments = uint32_t[Config::steps][4];

 public:
  // `warpgroup`: of the two.
  __device__ __forceinline__ QuantizedRows(const QuantizedLinearArgs& args, Stage* ring, int warpgroup)
      : a(args), ring_(ring), x_(Config::X::descriptor(ptx::shared_address(ring->x))), unit_(warpgroup) {
    const int thread = static_cast<int>(threadIdx.x) % Config::warpgroup;
    lane_ = thread % kWarp;
    strip_ = thread / kWarp;
  }

  // Of `steps` stages, from `k` on.
  __device__ __forceinline__ void multiply(WgmmaRing<Config::stages>& barriers, int64_t k, int steps) {
#pragma unroll
    for (float& sum : total_) sum = 0.0f;
    if (steps == 0) return;
    RingSlot<Config::stages> at, next;
    Fragments weights, following;
    Sums part;
    bool adds = false;
    barriers.wait(at);
    widen(following, at.slot);
#pragma unroll 1
    for (int step = 0; step < steps; ++step, k += Config::bk) {
#pragma unroll
      for (int i = 0; i < 4 * Config::steps; ++i) weights[i / 4][i % 4] = following[i / 4][i % 4];
      if constexpr (Config::halved) {
        issue<0, 2>(part, weights, at.slot, false);
        ptx::wgmma_wait<0>(part, weights);
        add(part, 0, at.slot);
        issue<2, 4>(part, weights, at.slot, false);
      } else {
        issue<0, 4>(part, weights, at.slot, adds);
      }
      next.advance();
      if (step + 1 < steps) {
        barriers.wait(next);
        widen(following, next.slot);
      }
      ptx::wgmma_wait<0>(part, weights);
      const int64_t end = k + Config::bk;
      if constexpr (Config::halved) {
        if (k + Config::bk / 2 < a.k) add(part, 1, at.slot);
      } else {
        adds = step + 1 < steps && (a.groups == 1 || end % a.group != 0);
        if (!adds) add(part, 0, at.slot);
      }
      barriers.template release_warp<1>(at);
      at.advance();
    }
  }

  // body(row of x, row of weights, value) of this thread's results in the block's tile.
  template <class Body>
  __device__ __forceinline__ void each(Body&& body) const {
#pragma unroll
    for (int i = 0; i < Config::bm / 2; ++i) {
      body(i / 4 * 8 + lane_ % 4 * 2 + i % 2, own_row(i / 2 % 2), total_[i]);
    }
  }

 private:
  __device__ __forceinline__ int own_row(int below) const {
    return unit_ * kUnit + strip_ * 16 + below * 8 + lane_ / 4;
  }

  // This thread's fragments of a stage.
  __device__ __forceinline__ void widen(Fragments& to, int slot) const {
    const Stage& stage = ring_[slot];
    const uint32_t* words = stage.words[unit_] + strip_ * (Config::unit_words / 4) + 4 * lane_;
    uint32_t zeros[Config::groups][2] = {};
    if constexpr (Config::bits == 4) {
#pragma unroll
      for (int of = 0; of < Config::groups; ++of) {
#pragma unroll
        for (int below = 0; below < 2; ++below) {
          zeros[of][below] = zero_pair<T>(a.zeros != nullptr ? stage.zeros[of][own_row(below)] : 8);
        }
      }
    }
    constexpr int kEach = 16 / Config::bits;  // fragments of four words
#pragma unroll
    for (int step = 0; step < Config::steps; step += kEach) {
      const uint4 packed = *reinterpret_cast<const uint4*>(words + step / kEach * 128);
      const uint32_t word[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if constexpr (Config::bits == 4) {
          fragment_of_4_bits<T>(to[step + i], word[i], zeros[Config::halved ? i / 2 : 0]);
        } else {
          fragment_of_8_bits<T>(to[step + i], word[2 * i], word[2 * i + 1]);
        }
      }
    }
  }

  // Instructions `first` to `end` of a stage. `adds`: otherwise the sums begin with them.
  template <int first, int end>
  __device__ __forceinline__ void issue(Sums& part, const Fragments& weights, int slot, bool adds) const {
    const MatrixDescriptor x = x_.at(slot * static_cast<int>(sizeof(Stage)));
    ptx::wgmma_fence();
#pragma unroll
    for (int step = first; step < end; ++step) {
      ptx::wgmma<typename Config::Kind>(part, weights[step], x.at(Config::X::offset(0, 16 * step)).bits(),
                                        adds || step > first);
    }
    ptx::wgmma_commit();
  }

  // The sums of a group, by its scales.
  __device__ __forceinline__ void add(const Sums& part, int of, int slot) {
    float scales[2];
#pragma unroll
    for (int below = 0; below < 2; ++below) scales[below] = to_float(ring_[slot].scales[of][own_row(below)]);
#pragma unroll
    for (int i = 0; i < Config::bm / 2; ++i) total_[i] = fmaf(part[i], scales[i / 2 % 2], total_[i]);
  }

  const QuantizedLinearArgs& a;
  const Stage* ring_;
  MatrixDescriptor x_;
  int unit_, strip_, lane_;
  Sums total_;
};

// By one thread: stages of k from `first` to `end`.
template <class Config>
__device__ __forceinline__ void copy_quantized(typename Config::Shared& shared, const CUtensorMap& x,
                                               const QuantizedLinearArgs& a, TileCoord tile, int64_t first,
                                               int64_t end) {
  using T = typename Config::T;
  const int64_t n0 = tile.n * Config::bn, units = (a.k + kUnit - 1) / kUnit, down = (a.n + kUnit - 1) / kUnit;
  const int cols = static_cast<int>(min(a.n - n0, int64_t{Config::bn}));
  constexpr int kUnitBytes = Config::unit_words * 4;
  const uint64_t once = ptx::policy_evict_first(), often = ptx::policy_evict_normal();
  RingSlot<Config::stages> at;
#pragma unroll 1
  for (int64_t k = first; k < end; k += Config::bk, at.advance()) {
    const int64_t unit_row = n0 / kUnit, group = a.groups == 1 ? 0 : k / a.group;
    const int rows = unit_row + 1 < down ? 2 : 1;
    const int groups = static_cast<int>(min(a.groups - group, int64_t{Config::groups}));
    const int of_group = cols * (static_cast<int>(sizeof(T)) + (a.zeros != nullptr ? 1 : 0));
    uint64_t* full = shared.barriers.acquire(at);
    typename Config::Stage& to = shared.ring[at.slot];
    ptx::mbarrier_arrive_expect(full, Config::X::bytes + rows * kUnitBytes + groups * of_group);
    for (int i = 0; i < rows; ++i) {
      const int64_t unit = (unit_row + i) * units + k / kUnit;
      ptx::bulk_load(to.words[i], a.words + unit * Config::unit_words, kUnitBytes, full, once);
    }
    ptx::tensor_load(to.x, &x, {static_cast<int>(tile.m * Config::bm), static_cast<int>(k)}, full);
    for (int i = 0; i < groups; ++i) {
      const int64_t from = (group + i) * a.n + n0;
      ptx::bulk_load(to.scales[i], static_cast<const T*>(a.scales) + from, cols * static_cast<int>(sizeof(T)), full,
                     often);
      if (a.zeros != nullptr) ptx::bulk_load(to.zeros[i], a.zeros + from, cols, full, often);
    }
  }
}

#endif

template <class Config>
__global__ void __launch_bounds__(Config::threads, 1)
    quantized_linear_wgmma_kernel([[maybe_unused]] const __grid_constant__ CUtensorMap x,
                                  [[maybe_unused]] const __grid_constant__ QuantizedLinearArgs a,
                                  [[maybe_unused]] const Split split) {
#if WARPSMITH_HAS_WGMMA
  constexpr int kBand = 16, kMultipliers = 2 * Config::warpgroup;
  using T = typename Config::T;
  extern __shared__ __align__(1024) uint4 quantized_memory[];
  auto& shared = *reinterpret_cast<typename Config::Shared*>(quantized_memory);
  const int warpgroup = static_cast<int>(threadIdx.x) / Config::warpgroup - 1;  // of those that multiply
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&x);
    shared.barriers.init(1, kMultipliers / kWarp);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  const int64_t tiles_m = (a.m + Config::bm - 1) / Config::bm, tiles_n = (a.n + Config::bn - 1) / Config::bn;
  const uint32_t tiles = static_cast<uint32_t>(tiles_m * tiles_n), slice = blockIdx.x / tiles;
  const TileCoord tile = grouped_tile(blockIdx.x % tiles, tiles_m, tiles_n, kBand);
  const int64_t first = slice * split.depth, end = min(first + split.depth, a.k);
  if (warpgroup < 0) {
    ptx::lower_registers<Config::copier_registers>();
    if (threadIdx.x / kWarp == 0 && ptx::elect_lane()) copy_quantized<Config>(shared, x, a, tile, first, end);
    return;
  }
  ptx::raise_registers<Config::multiplier_registers>();
  QuantizedRows<Config> rows(a, shared.ring, warpgroup);
  rows.multiply(shared.barriers, first, static_cast<int>((end - first + Config::bk - 1) / Config::bk));

  // write
  const int64_t m0 = tile.m * Config::bm, n0 = tile.n * Config::bn;
  if (split.count > 1) {
    float* to = a.partial + slice * a.m * a.n;
    rows.each([&](int row, int col, float value) {
      if (m0 + row < a.m && n0 + col < a.n) to[(m0 + row) * a.n + n0 + col] = value;
    });
    return;
  }
  ptx::sync_warps(1, kMultipliers);  // both warpgroups are done with the ring
  T* out = reinterpret_cast<T*>(shared.ring);
  const T* bias = static_cast<const T*>(a.bias);
  rows.each([&](int row, int col, float value) {
    if (bias != nullptr && n0 + col < a.n) value += to_float(bias[n0 + col]);
    out[row * Config::out_stride + col] = from_float<T>(value);
  });
  ptx::sync_warps(1, kMultipliers);
  constexpr int kAcross = Config::bn / 8;
  for (int i = static_cast<int>(threadIdx.x) - Config::warpgroup; i < Config::bm * kAcross; i += kMultipliers) {
    const int row = i / kAcross, col = i % kAcross * 8;
    if (m0 + row >= a.m || n0 + col >= a.n) continue;
    Pack<T> pack;
    load(pack, out + row * Config::out_stride + col);
    store(static_cast<T*>(a.d) + (m0 + row) * a.n + n0 + col, pack);
  }
#endif
}

template <class Config>
void launch_quantized_wgmma_tile(const QuantizedLinearArgs& a, cudaStream_t stream) {
  const Split split = wgmma_split(a);
  const int64_t tiles = ceil_div(a.m, Config::bm) * ceil_div(a.n, Config::bn);
  const LaunchConfig config{.grid = static_cast<unsigned>(tiles * split.count),
                            .block = Config::threads,
                            .dynamic_smem = static_cast<int>(sizeof(typename Config::Shared))};
  const CUtensorMap x = tensor_map(MappedMatrix{.data = a.x,
                                                .type = tensor_map_type(a.dtype),
                                                .rows = a.m,
                                                .cols = a.k,
                                                .ld = a.x_stride,
                                                .box_rows = Config::bm,
                                                .box_cols = Config::bk});
  launch<&quantized_linear_wgmma_kernel<Config>>(config, stream, x, a, split);
}

// By the tile for the rows of the call. Defined in a file for each dtype and number of bits.
template <class T, int bits>
void launch_quantized_wgmma(const QuantizedLinearArgs& a, cudaStream_t stream);

}  // namespace warpsmith
