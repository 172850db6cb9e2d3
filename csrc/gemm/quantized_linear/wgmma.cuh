// Packed weights widened in registers, from which wgmma takes its first operand (sm_90a).
//
// A block has 128 rows of weights, 64 for each of two warpgroups that multiply, and `bm` rows of x, which wgmma reads from
// shared memory as columns. Of a third warpgroup, one warp has the copy engine bring x, another one weights, a third one
// scales and zeros, as they lie; the ring runs on from one tile of the block to the next. A stage is 128 values of k in two
// halves: while the products of one half run, the weights of the next one are widened, so that the tensor cores find work
// when they are done. Sums of a group leave them when it ends, are multiplied by its scales and added to the others in f32.
//
// Where tiles do not fill the GPU, several blocks share one: each has a slice of k and leaves partial sums, which a second
// launch adds up in their order. They are no cluster: one of four large blocks finds no room beside others where its part
// of the GPU has a number of multiprocessors that four does not divide, and waits for a second round.
#pragma once

#include "device/block_order.h"
#include "device/cluster.h"
#include "device/matrix_descriptor.h"
#include "device/ptx/store_matrix.h"
#include "device/ptx/warpgroup.h"
#include "device/ptx/wgmma.h"
#include "device/start_early.h"
#include "device/vec.h"
#include "device/wgmma_ring.h"
#include "gemm/quantized_linear/quantized_linear.h"
#include "gemm/quantized_linear/weights.cuh"
#include "host/launch.h"
#include "host/tensor_map.h"
#include "tile/shared_limits.h"

namespace warpsmith {

// `fine`: groups of 32 or 64, of which a stage has several; products are issued for 32 values at a time.
// `cluster`: blocks that have the same rows of x and neighbouring ones of weights. Each brings its share of x to all, so that
// L2 is asked for it once.
template <class T_, int bits_, int bm_, bool fine_, int cluster_ = 1>
struct QuantizedWgmma {
  using T = T_;
  static constexpr int bits = bits_, bm = bm_;
  static constexpr bool fine = fine_;
  static constexpr int cluster = cluster_, x_rows = bm / cluster;
  static constexpr int bn = kQuantizedTileN, bk = kWgmmaDepth, groups = fine ? bk / 32 : 1;
  static constexpr int blocks = wgmma_blocks(bm);
  static constexpr int warpgroup = 128, multipliers = 2 * warpgroup, threads = warpgroup + multipliers;
  static constexpr int copier_registers = blocks == 2 ? 48 : 56, multiplier_registers = blocks == 2 ? 96 : 224;
  static constexpr int unit_words = kUnit * kUnit * bits / 32, steps = kUnit / 16;
  using Kind = WgmmaKind<T, T>;
  using X = WgmmaOperand<Major::k, bm, bk, 2>;

  struct Stage {
    alignas(1024) char x[X::bytes];
    alignas(128) uint32_t words[bn / kUnit][2][unit_words];
    alignas(128) T scales[groups][bn];
    alignas(128) int8_t zeros[groups][bn];
  };

  // Results of a warpgroup on their way out: `out_rows` rows of x at a time. [out_rows, out_stride]
  static constexpr int out_rows = bm < 64 ? bm : 64, out_stride = kUnit + 8;

  static constexpr int most_bytes = blocks == 2 ? (228 << 9) - 1024 : kSharedOfSm90, most_stages = 12;
  static constexpr int out_bytes = 2 * out_rows * out_stride * static_cast<int>(sizeof(T));
  static constexpr int room = (most_bytes - out_bytes - 1024) / static_cast<int>(sizeof(Stage));
  static constexpr int stages = room < most_stages ? room : most_stages;

  struct Shared {
    Stage ring[stages];
    alignas(16) T out[2][out_rows * out_stride];
    WgmmaRing<stages> barriers;
  };

  static_assert(stages >= 3 && sizeof(Shared) <= most_bytes);
};

// The tiles, which blocks take one after another; or where there are slices, a block for each slice of each.
struct QuantizedItems {
  int tiles_m, tiles_n, slices;  // tiles along n: of a cluster each that shares x
  int64_t depth;                 // of a slice, in values of k
};

struct QuantizedItem {
  int m0, n0, slice, steps;  // stages
  int64_t k0;
};

#if WARPSMITH_HAS_WGMMA

template <class Config, class Body>
__device__ __forceinline__ void for_each_item(const QuantizedItems& items, int64_t k, Body&& body) {
  constexpr int kBand = 8;  // a band of rows of tiles is walked column by column
  const int count = items.tiles_m * items.tiles_n, block = static_cast<int>(blockIdx.x) / Config::cluster;
  const int rank = Config::cluster == 1 ? 0 : cluster_rank(), slice = items.slices == 1 ? 0 : block / count;
  const int64_t first = slice * items.depth;
  const int steps = static_cast<int>((min(items.depth, k - first) + Config::bk - 1) / Config::bk);
#pragma unroll 1
  for (int index = block - slice * count; index < count; index += static_cast<int>(gridDim.x) / Config::cluster) {
    const TileCoord tile = grouped_tile(index, items.tiles_m, items.tiles_n, kBand);
    body(QuantizedItem{.m0 = static_cast<int>(tile.m) * Config::bm,
                       .n0 = (static_cast<int>(tile.n) * Config::cluster + rank) * Config::bn,
                       .slice = slice,
                       .steps = steps,
                       .k0 = first});
  }
}

// By one thread.
template <class Config>
__device__ __forceinline__ void copy_x(typename Config::Shared& shared, const CUtensorMap& x, int64_t k,
                                       const QuantizedItems& items) {
  using X = typename Config::X;
  const int share = Config::cluster == 1 ? 0 : cluster_rank() * Config::x_rows;  // where that of this block begins
  RingSlot<Config::stages> at;
  for_each_item<Config>(items, k, [&](const QuantizedItem& item) {
    int col = static_cast<int>(item.k0);
#pragma unroll 1
    for (int step = 0; step < item.steps; ++step, at.advance()) {
      uint64_t* full = shared.barriers.acquire(at);
      char* to = shared.ring[at.slot].x + X::offset(share, 0);
      ptx::mbarrier_arrive_expect(full, X::bytes);
#pragma unroll
      for (int panel = 0; panel < X::panels; ++panel, col += X::values_of_line) {
        if constexpr (Config::cluster == 1) {
          ptx::tensor_load(to + panel * X::panel_bytes, &x, {item.m0, col}, full);
        } else {
          constexpr uint16_t kAll = (1 << Config::cluster) - 1;
          ptx::tensor_load_multicast(to + panel * X::panel_bytes, &x, {item.m0 + share, col}, full, kAll);
        }
      }
    }
  });
}

// By one thread. What a stage costs it, it costs the block where x has few rows: pointers move on, nothing is divided.
template <class Config>
__device__ __forceinline__ void copy_weights(typename Config::Shared& shared, const QuantizedLinearArgs& a,
                                             const QuantizedItems& items, uint64_t policy) {
  constexpr int kUnitBytes = Config::unit_words * 4, kStep = 2 * Config::unit_words;
  const int64_t units = (a.k + kUnit - 1) / kUnit, down = (a.n + kUnit - 1) / kUnit;
  RingSlot<Config::stages> at;
  for_each_item<Config>(items, a.k, [&](const QuantizedItem& item) {
    const int64_t unit_row = item.n0 / kUnit, unit = item.k0 / kUnit;
    const int rows = static_cast<int>(max(min(down - unit_row, int64_t{2}), int64_t{0}));  // none past a cluster's last
    const uint32_t* words = a.words + (unit_row * units + unit) * Config::unit_words;
    const uint32_t* below = words + units * Config::unit_words;
    int left = static_cast<int>(units - unit);
#pragma unroll 1
    for (int step = 0; step < item.steps; ++step, at.advance()) {
      const int bytes = min(left, 2) * kUnitBytes;
      uint64_t* full = shared.barriers.acquire(at);
      auto& to = shared.ring[at.slot].words;
      ptx::mbarrier_arrive_expect(full, rows * bytes);
      if (rows > 0) ptx::bulk_load(to[0], words, bytes, full, policy);
      if (rows > 1) ptx::bulk_load(to[1], below, bytes, full, policy);
      words += kStep;
      below += kStep;
      left -= 2;
    }
  });
}

// By one thread, where there are several groups: their scales and zeros.
template <class Config>
__device__ __forceinline__ void copy_groups(typename Config::Shared& shared, const QuantizedLinearArgs& a,
                                            const QuantizedItems& items, uint64_t policy) {
  using T = typename Config::T;
  const int each = Config::bk >> group_shift(a.group);  // groups of a stage
  RingSlot<Config::stages> at;
  for_each_item<Config>(items, a.k, [&](const QuantizedItem& item) {
    const int64_t group = item.k0 >> group_shift(a.group);
    const int cols = static_cast<int>(max(min(a.n - item.n0, int64_t{Config::bn}), int64_t{0}));
    const int scale_bytes = cols * static_cast<int>(sizeof(T)), zero_bytes = a.zeros == nullptr ? 0 : cols;
    const T* scales = static_cast<const T*>(a.scales) + group * a.n + item.n0;
    const int8_t* zeros = a.zeros + (a.zeros == nullptr ? 0 : group * a.n + item.n0);
    int left = cols == 0 ? 0 : static_cast<int>(a.groups - group);
#pragma unroll 1
    for (int step = 0; step < item.steps; ++step, at.advance()) {
      const int groups = min(left, each);
      uint64_t* full = shared.barriers.acquire(at);
      typename Config::Stage& to = shared.ring[at.slot];
      ptx::mbarrier_arrive_expect(full, groups * (scale_bytes + zero_bytes));
#pragma unroll
      for (int i = 0; i < Config::groups; ++i) {
        if (i < groups) ptx::bulk_load(to.scales[i], scales + i * a.n, scale_bytes, full, policy);
        if (i < groups && zero_bytes > 0) ptx::bulk_load(to.zeros[i], zeros + i * a.n, zero_bytes, full, policy);
      }
      scales += groups * a.n;
      zeros += zero_bytes > 0 ? groups * a.n : 0;
      left -= groups;
    }
  });
}

// What a warpgroup that multiplies does for one tile after another.
template <class Config>
class QuantizedRows {
  using T = typename Config::T;
  using Shared = typename Config::Shared;
  using Stage = typename Config::Stage;
  using X = typename Config::X;
  using At = RingSlot<Config::stages>;
  using Sums = float[Config::bm / 2];
  using Fragments = uint32_t[Config::steps][4];  // of half a stage

 public:
  // `warpgroup`: of the two. `sliced`: sums leave as partial ones.
  __device__ __forceinline__ QuantizedRows(const QuantizedLinearArgs& args, Shared& shared, int warpgroup, bool sliced)
      : a(args),
        shared_(shared),
        x_(X::descriptor(ptx::shared_address(shared.ring->x))),
        unit_(warpgroup),
        sliced_(sliced) {
    const int thread = static_cast<int>(threadIdx.x) % Config::warpgroup;
    lane_ = thread % kWarp;
    strip_ = thread / kWarp;
    whole_ = a.groups == 1;
    wide_groups_ = a.group == kUnit ? 1 : 0;
  }

  __device__ __forceinline__ void multiply(At& at, const QuantizedItem& item) {
#pragma unroll
    for (float& sum : total_) sum = 0.0f;
    if (whole_) read_whole(item);
    Fragments first, second;
    Sums part;
    shared_.barriers.wait(at);
    widen<0>(first, at.slot);
    int left = static_cast<int>(a.k - item.k0);  // values of k
    // Groups of 64: what an infinite scale makes of two halves of opposite signs is no sum of the group.
    const bool wide = wide_groups_ != 0;
#pragma unroll 1
    for (int step = 0; step < item.steps; ++step, left -= Config::bk) {
      At next = at;
      next.advance();
      const bool more = step + 1 < item.steps;
      if constexpr (Config::fine) {
        issue<0, 0, 2>(part, first, at.slot, false);
        widen<1>(second, at.slot);
        ptx::wgmma_wait<0>(part, first);
        if (!wide) add(part, 0, at.slot, left);
        issue<0, 2, 4>(part, first, at.slot, wide);
        ptx::wgmma_wait<0>(part, first);
        add(part, 1, at.slot, left);
        issue<1, 0, 2>(part, second, at.slot, false);
        if (more) {
          shared_.barriers.wait(next);
          widen<0>(first, next.slot);
        }
        ptx::wgmma_wait<0>(part, second);
        if (!wide) add(part, 2, at.slot, left);
        issue<1, 2, 4>(part, second, at.slot, wide);
        ptx::wgmma_wait<0>(part, second);
        add(part, 3, at.slot, left);
        release(at);
      } else {
        issue<0, 0, 4>(part, first, at.slot, whole_ && step > 0);
        widen<1>(second, at.slot);
        issue<1, 0, 4>(part, second, at.slot, true);
        float scales[2];
        read_scales(scales, 0, at.slot);
        if (more) {
          shared_.barriers.wait(next);
          ptx::wgmma_wait<1>(first);  // these were read
          widen<0>(first, next.slot);
        }
        ptx::wgmma_wait<0>(part, second);
        release(at);
        if (!whole_ || !more) add(part, scales);
      }
      at = next;
    }
  }

  // f32, [slices, m, n]. Of a group that is all of k they have no scale yet.
  __device__ __forceinline__ void store_partial(const QuantizedItem& item) const {
    const int64_t row = int64_t{item.m0} + lane_ % 4 * 2, col = int64_t{item.n0} + own_row(0);
    float* to = a.partial + (item.slice * a.m + row) * a.n + col;
#pragma unroll
    for (int i = 0; i < Config::bm / 2; ++i) {
      const int down = i / 4 * 8 + i % 2, across = i / 2 % 2 * 8;
      if (row + down < a.m && col + across < a.n) to[down * a.n + across] = total_[i];
    }
  }

  // With the bias, by way of shared memory.
  __device__ __forceinline__ void store_result(const QuantizedItem& item) {
    constexpr int kAcross = kUnit / 8, kBarrier = 1;
    T* out = shared_.out[unit_];
    float bias[2] = {};
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      const int64_t col = item.n0 + own_row(below);
      if (a.bias != nullptr && col < a.n) bias[below] = to_float(static_cast<const T*>(a.bias)[col]);
    }
    const int thread = strip_ * kWarp + lane_;
#pragma unroll
    for (int pass = 0; pass < Config::bm; pass += Config::out_rows) {
      ptx::sync_warps(kBarrier + unit_, Config::warpgroup);  // what was there has left
#pragma unroll
      for (int row = 0; row < Config::out_rows; row += 16) {
        const int first = (pass + row) / 8;
        uint32_t packed[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float* sums = total_ + 4 * (first + j / 2) + 2 * (j % 2);
          const float wide[2] = {sums[0] + bias[j % 2], sums[1] + bias[j % 2]};
          Vec<T, 2> pair;
          from_float(pair, wide);
          packed[j] = reinterpret_cast<const uint32_t&>(pair);
        }
        const int to = row + lane_ / 16 * 8 + lane_ % 8, across = strip_ * 16 + lane_ / 8 % 2 * 8;
        ptx::stmatrix_trans(out + to * Config::out_stride + across, packed);
      }
      ptx::sync_warps(kBarrier + unit_, Config::warpgroup);
#pragma unroll
      for (int i = thread; i < Config::out_rows * kAcross; i += Config::warpgroup) {
        const int64_t row = int64_t{item.m0} + pass + i / kAcross, col = item.n0 + unit_ * kUnit + i % kAcross * 8;
        if (row >= a.m || col >= a.n) continue;
        Pack<T> pack;
        load(pack, out + i / kAcross * Config::out_stride + i % kAcross * 8);
        store(static_cast<T*>(a.d) + row * a.n + col, pack);
      }
    }
  }

 private:
  __device__ __forceinline__ int own_row(int below) const {
    return unit_ * kUnit + strip_ * 16 + below * 8 + lane_ / 4;
  }

  // By a warp that has read a stage, with a fence before the copies that come over it.
  __device__ __forceinline__ void release(const At& at) {
    if constexpr (Config::cluster > 1) return shared_.barriers.template release_warp<Config::cluster>(at);
    ptx::fence_proxy_async();
    __syncwarp();
    if (lane_ == 0) ptx::mbarrier_arrive(shared_.barriers.empty + at.slot);
  }

  // Zeros and scales of a group that is all of k.
  __device__ __forceinline__ void read_whole(const QuantizedItem& item) {
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      const int64_t col = item.n0 + own_row(below);
      const bool there = col < a.n;
      whole_scales_[below] = sliced_ ? 1.0f : there ? to_float(static_cast<const T*>(a.scales)[col]) : 0.0f;
      if constexpr (Config::bits == 4) zeros_[below] = zero_pair<T>(a.zeros != nullptr && there ? a.zeros[col] : 8);
    }
  }

  // This thread's fragments of half a stage.
  template <int half>
  __device__ __forceinline__ void widen(Fragments& to, int slot) {
    const Stage& stage = shared_.ring[slot];
    const uint32_t* words = stage.words[unit_][half] + strip_ * (Config::unit_words / 4) + 4 * lane_;
    constexpr int kEach = 16 / Config::bits;  // fragments of four words
#pragma unroll
    for (int step = 0; step < Config::steps; step += kEach) {
      const uint4 packed = *reinterpret_cast<const uint4*>(words + step / kEach * 128);
      const uint32_t word[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if constexpr (Config::bits == 4) {
          if (Config::fine ? i % 2 == 0 : half == 0 && i == 0) read_zeros((4 * half + i) / 2, stage);
          fragment_of_4_bits<T>(to[step + i], word[i], zeros_);
        } else {
          fragment_of_8_bits<T>(to[step + i], word[2 * i], word[2 * i + 1]);
        }
      }
    }
  }

  // Of the group of 32 values `part` of a stage.
  __device__ __forceinline__ void read_zeros(int part, const Stage& stage) {
    if (whole_) return;
    const int8_t* zeros = stage.zeros[Config::fine ? part >> wide_groups_ : 0];
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      zeros_[below] = zero_pair<T>(a.zeros != nullptr ? zeros[own_row(below)] : 8);
    }
  }

  __device__ __forceinline__ void read_scales(float (&scales)[2], int part, int slot) const {
    const T* from = shared_.ring[slot].scales[Config::fine ? part >> wide_groups_ : 0];
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      scales[below] = whole_ ? whole_scales_[below] : to_float(from[own_row(below)]);
    }
  }

  // Instructions `first` to `end` of half a stage. `adds`: otherwise the sums begin with them.
  template <int half, int first, int end>
  __device__ __forceinline__ void issue(Sums& part, const Fragments& weights, int slot, bool adds) const {
    const MatrixDescriptor x = x_.at(slot * static_cast<int>(sizeof(Stage)));
    ptx::wgmma_fence();
#pragma unroll
    for (int step = first; step < end; ++step) {
      ptx::wgmma<typename Config::Kind>(part, weights[step], x.at(X::offset(0, half * kUnit + 16 * step)).bits(),
                                        adds || step > first);
    }
    ptx::wgmma_commit();
  }

  // The sums of a group, by its scales.
  __device__ __forceinline__ void add(const Sums& part, const float (&scales)[2]) {
#pragma unroll
    for (int i = 0; i < Config::bm / 2; ++i) total_[i] = fmaf(part[i], scales[i / 2 % 2], total_[i]);
  }

  // Those of 32 values, which may lie past the end of k, where there are no scales.
  __device__ __forceinline__ void add(const Sums& part, int at, int slot, int left) {
    if (32 * at >= left) return;
    float scales[2];
    read_scales(scales, at, slot);
    add(part, scales);
  }

  const QuantizedLinearArgs& a;
  Shared& shared_;
  MatrixDescriptor x_;
  int unit_, strip_, lane_;
  bool sliced_, whole_;
  int wide_groups_;  // 1 for groups of 64, of two parts
  uint32_t zeros_[2]{};
  float whole_scales_[2]{};
  Sums total_;
};

#endif

template <class Config>
__global__ void __launch_bounds__(Config::threads, Config::blocks)
    quantized_linear_wgmma_kernel([[maybe_unused]] const __grid_constant__ CUtensorMap x,
                                  [[maybe_unused]] const __grid_constant__ QuantizedLinearArgs a,
                                  [[maybe_unused]] const __grid_constant__ QuantizedItems items) {
#if WARPSMITH_HAS_WGMMA
  extern __shared__ __align__(1024) uint4 quantized_memory[];
  auto& shared = *reinterpret_cast<typename Config::Shared*>(quantized_memory);
  const int warpgroup = static_cast<int>(threadIdx.x) / Config::warpgroup - 1;  // of those that multiply
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&x);
    shared.barriers.init(a.groups == 1 ? 2 : 3, Config::cluster * (Config::multipliers / kWarp));
    ptx::fence_mbarrier_init();
  }
  if constexpr (Config::cluster == 1) {
    __syncthreads();
  } else {
    __syncwarp();
    cluster_sync();
  }
  start_early();
  if (warpgroup < 0) {
    ptx::lower_registers<Config::copier_registers>();
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    if (warp == 0 && ptx::elect_lane()) copy_x<Config>(shared, x, a.k, items);
    const uint64_t policy = items.tiles_m == 1 ? ptx::policy_evict_first() : ptx::policy_evict_normal();
    if (warp == 1 && ptx::elect_lane()) copy_weights<Config>(shared, a, items, policy);
    if (warp == 2 && a.groups > 1 && ptx::elect_lane()) copy_groups<Config>(shared, a, items, policy);
    __syncwarp();
  } else {
    ptx::raise_registers<Config::multiplier_registers>();
    QuantizedRows<Config> rows(a, shared, warpgroup, items.slices > 1);
    RingSlot<Config::stages> at;
    for_each_item<Config>(items, a.k, [&](const QuantizedItem& item) {
      rows.multiply(at, item);
      if (items.slices > 1) {
        rows.store_partial(item);
      } else {
        rows.store_result(item);
      }
    });
  }
  if constexpr (Config::cluster > 1) cluster_sync();  // none ends before the others have given back its stages
#endif
}

template <class Config>
void launch_quantized_wgmma_tile(const QuantizedLinearArgs& a, const Split& split, cudaStream_t stream) {
  const QuantizedItems items{.tiles_m = static_cast<int>(ceil_div(a.m, Config::bm)),
                             .tiles_n = static_cast<int>(ceil_div(a.n, Config::bn * Config::cluster)),
                             .slices = split.count,
                             .depth = split.depth};
  const int tiles = items.tiles_m * items.tiles_n, most = std::max(1, Config::blocks * a.sm_count / Config::cluster);
  const int clusters = split.count > 1 ? tiles * split.count : std::min(tiles, most);
  const LaunchConfig config{.grid = static_cast<unsigned>(clusters * Config::cluster),
                            .block = Config::threads,
                            .dynamic_smem = static_cast<int>(sizeof(typename Config::Shared)),
                            .cluster = Config::cluster,
                            .early = true};
  const CUtensorMap x = tensor_map(MappedMatrix{.data = a.x,
                                                .type = tensor_map_type(a.dtype),
                                                .rows = a.m,
                                                .cols = a.k,
                                                .ld = a.x_stride,
                                                .box_rows = Config::x_rows,
                                                .box_cols = Config::X::values_of_line});
  launch<&quantized_linear_wgmma_kernel<Config>>(config, stream, x, a, items);
}

// By the tile for the rows of the call. Defined in a file for each dtype and number of bits.
template <class T, int bits>
void launch_quantized_wgmma(const QuantizedLinearArgs& a, cudaStream_t stream);

}  // namespace warpsmith
