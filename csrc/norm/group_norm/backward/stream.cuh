// The kernel behind `stream`: x and grad of groups are copied ahead into a ring in shared memory, a slice of each block
// of a cluster, while the group at hand lies in registers.
#pragma once

#include <bit>
#include <tuple>

#include "device/cluster.h"
#include "device/ptx/tma.h"
#include "host/occupancy.h"
#include "host/tiles.h"
#include "norm/group_norm/backward/rows.cuh"
#include "row/packed.h"

namespace warpsmith {

// threads of a block that compute (at most) | 128-bit packs of x that one of them holds, as many of grad | blocks per
// multiprocessor | blocks that share a group
template <int threads_, int packs_, int min_blocks_, int cluster_>
struct GradTile {
  static constexpr int threads = threads_, packs = packs_, min_blocks = min_blocks_, cluster = cluster_;
  static constexpr int warps = threads / kWarp;
  static constexpr int64_t most_packs = int64_t{cluster} * threads * packs;
  static constexpr int ring_bytes = 216 * 1024 / min_blocks;
  static_assert(ring_bytes >= 2 * threads * packs * 16,
                "a slice of x stays until the end of its row, beside one of grad");
};

inline constexpr int kGradHelpers = 2;  // warps of a block that compute nothing: one copies, one exchanges
inline constexpr int kGradSlots = 16;   // slices of x or of grad in the ring, at most

// How a group is cut: in blocks, and in spans of a warp's packs that lie together. Channels are whole spans.
struct GradSlices {
  int packs;  // of a block, whole spans; the last may have fewer
  int slots;  // slices in the ring
  int team;   // lanes that add up a channel's spans together, a power of two
  FastDivide channel_spans;

  __device__ __forceinline__ int channel(int span) const {
    return static_cast<int>(channel_spans.small_quotient(static_cast<uint32_t>(span)));
  }
};

template <class Tile>
struct GradStorage {
  // Of the row at hand: nobody hands on sums before all moments are read, nor moments of the next before all sums are.
  Moments moments[Tile::warps];              // [warp]
  Moments all_moments[Tile::cluster];        // [block]
  GradSums sums[Tile::warps * Tile::packs];  // [span]; a channel's in the last of a warp's spans in it, else 0
  GradSums all_sums[Tile::cluster];          // [block]
  float2 affine[Tile::warps * Tile::packs];  // [span], {weight, bias * kArgumentUnit}
  Normaliser normaliser;
  GradSums mean;
  // mbarriers; two: of moments, of sums
  uint64_t gathered[2];          // every warp has left its part, and its threads are done with the last row's results
  uint64_t exchanged[2];         // every block has sent its part
  uint64_t known[2];             // the result
  uint64_t filled[kGradSlots];   // the slice has landed
  uint64_t drained[kGradSlots];  // every thread is done with its part of it
};

#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS

// Slices in the order in which they come: x and grad of a row, then of the next.
struct RingCursor {
  int slot = 0, parity = 0;
  __device__ __forceinline__ void advance(int slots) {
    if (++slot == slots) {
      slot = 0;
      parity ^= 1;
    }
  }
  // The slot two slices ago.
  __device__ __forceinline__ int before_last(int slots) const { return slot < 2 ? slot + slots - 2 : slot - 2; }
};

// Sends the warp's value to all blocks of the cluster.
template <int cluster, class Value>
__device__ __forceinline__ void send_to_all(Value (&to)[cluster], uint64_t* exchanged, int rank, const Value& value) {
  constexpr int kWords = sizeof(Value) / sizeof(float);
  const int lane = threadIdx.x % kWarp;
  if (lane == 0) ptx::mbarrier_arrive_expect(exchanged, cluster * static_cast<int>(sizeof(Value)));
  if (lane < cluster) {
    auto* words = reinterpret_cast<float*>(&to[rank]);
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      ptx::store_async(words + i, exchanged, lane, reinterpret_cast<const float*>(&value)[i]);
    }
  }
}

#endif

template <class T, class Activation, class Tile>
__global__ void __launch_bounds__(Tile::threads + kGradHelpers * kWarp, Tile::min_blocks)
    group_norm_backward_stream_kernel([[maybe_unused]] const GroupNormBackwardRows<T> v,
                                      [[maybe_unused]] const PartialSums to, [[maybe_unused]] const GradSlices slices) {
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  constexpr int kWidth = kPack<T>, kPacks = Tile::packs, kCluster = Tile::cluster;
  extern __shared__ __align__(128) uint4 ring[];  // [slots, slices.packs]
  __shared__ GradStorage<Tile> shared;

  const int tid = threadIdx.x, lane = tid % kWarp, warp = tid / kWarp;
  const int warps = blockDim.x / kWarp - kGradHelpers;
  const int rank = cluster_rank();
  const int begin = rank * slices.packs;
  const int own = max(min(static_cast<int>(v.packs) - begin, slices.packs), 0);  // none at the end of a short group
  const int first_span = begin / kWarp, spans = own / kWarp,
            channel_spans = static_cast<int>(slices.channel_spans.divisor);
  const int64_t first_row = blockIdx.x / kCluster, step = gridDim.x / kCluster;
  const int rows = static_cast<int>((v.rows - first_row + step - 1) / step);  // of this cluster

  if (tid == 0) {
    for (int i = 0; i < slices.slots; ++i) {
      ptx::mbarrier_init(&shared.filled[i], 1);
      ptx::mbarrier_init(&shared.drained[i], warps * kWarp);
    }
    for (int i = 0; i < 2; ++i) {
      ptx::mbarrier_init(&shared.gathered[i], warps * kWarp);
      ptx::mbarrier_init(&shared.exchanged[i], 1);
      ptx::mbarrier_init(&shared.known[i], kWarp);
    }
    ptx::fence_mbarrier_init();
  }
  cluster_sync();  // every block's barriers exist before anyone signals them

  if (warp == warps) {  // copies
    const uint64_t policy = v.load_policy();
    RingCursor at;
    for (int i = 0; i < 2 * rows; ++i, at.advance(slices.slots)) {
      if (i >= slices.slots) ptx::mbarrier_wait(&shared.drained[at.slot], at.parity ^ 1);
      if (lane == 0) {
        ptx::mbarrier_arrive_expect(&shared.filled[at.slot], own * 16);
        const T* from = (i % 2 == 0 ? v.x : v.grad) + (first_row + i / 2 * step) * v.size + int64_t{begin} * kWidth;
        if (own > 0) ptx::bulk_load(ring + at.slot * slices.packs, from, own * 16, &shared.filled[at.slot], policy);
      }
      __syncwarp();
    }
  } else if (warp == warps + 1) {                                       // exchanges
    constexpr int kSpans = (Tile::warps * kPacks + kWarp - 1) / kWarp;  // that a lane adds up
    const float inverse_size = 1.0f / static_cast<float>(v.size);
    for (int k = 0; k < rows; ++k) {
      const int parity = k % 2;
      const int64_t row = first_row + k * step, first = v.first_channel(row);
      float2 affine[kSpans];
#pragma unroll
      for (int i = 0; i < kSpans; ++i) {
        const int span = i * kWarp + lane;
        if (span < spans) {
          const int64_t channel = first + slices.channel(first_span + span);
          affine[i] = {v.weight[channel], v.bias[channel] * kArgumentUnit<Activation, T>};
        }
      }

      ptx::mbarrier_wait(&shared.gathered[0], parity);
#pragma unroll
      for (int i = 0; i < kSpans; ++i) {
        const int span = i * kWarp + lane;
        if (span < spans) shared.affine[span] = affine[i];
      }
      Moments moments = warp_merge_around(lane < warps ? shared.moments[lane] : Moments{});
      if constexpr (kCluster > 1) {
        send_to_all(shared.all_moments, &shared.exchanged[0], rank, moments);
        ptx::mbarrier_wait_cluster(&shared.exchanged[0], parity);
        moments = warp_merge_around(lane < kCluster ? shared.all_moments[lane] : Moments{});
      }
      __syncwarp();  // every lane has read all_moments, which other blocks send again once they have sums of this one
      if (lane == 0) shared.normaliser = normaliser(moments, v.eps);
      ptx::mbarrier_arrive(&shared.known[0]);

      ptx::mbarrier_wait(&shared.gathered[1], parity);
      GradSums weighted{};
#pragma unroll
      for (int i = 0; i < kSpans; ++i) {
        const int span = i * kWarp + lane;
        if (span < spans) weighted = weighted + affine[i].x * shared.sums[span];
      }
      weighted = warp_sum(weighted);
      if constexpr (kCluster > 1) {
        send_to_all(shared.all_sums, &shared.exchanged[1], rank, weighted);
        ptx::mbarrier_wait_cluster(&shared.exchanged[1], parity);
        weighted = warp_sum(lane < kCluster ? shared.all_sums[lane] : GradSums{});
      }
      if (lane == 0) shared.mean = inverse_size * weighted;
      ptx::mbarrier_arrive(&shared.known[1]);

      if (to.data == nullptr) continue;
      const int team = slices.team, member = lane % team;
      for (int base = 0; base < v.group_channels; base += kWarp / team) {
        const int channel = base + lane / team, start = channel * channel_spans - first_span;
        GradSums sums{};
        for (int span = max(start, 0) + member; span < min(start + channel_spans, spans); span += team) {
          sums = sums + shared.sums[span];
        }
        for (int distance = team / 2; distance > 0; distance /= 2) {
          sums = sums +
                 GradSums{__shfl_xor_sync(kAllLanes, sums.dw, distance), __shfl_xor_sync(kAllLanes, sums.db, distance)};
        }
        if (member == 0 && channel < v.group_channels) {
          to.write(v.sample(row) * kCluster + rank, first + channel, sums);
        }
      }
    }
  } else {
    // Of a warp that has fewer packs the last stands for those missing: what is computed of them counts nowhere.
    const int first_own = warp * kPacks, valid = max(min(spans - first_own, kPacks), 0), last = max(valid - 1, 0);
    const int first_channel = slices.channel(first_span + first_own);  // of the group's
    const int first_left = (first_channel + 1) * channel_spans - first_span - first_own;
    RingCursor at;
    const auto release = [&](int slot) {
      ptx::fence_proxy_async();  // read before the next copy over it
      ptx::mbarrier_arrive(&shared.drained[slot]);
    };
    const auto take = [&](uint4(&to)[kPacks]) {
      ptx::mbarrier_wait(&shared.filled[at.slot], at.parity);
      const uint4* from = ring + at.slot * slices.packs + first_own * kWarp + lane;
#pragma unroll
      for (int i = 0; i < kPacks; ++i) {
        to[i] = from[min(i, last) * kWarp];
      }
      at.advance(slices.slots);
      return from;
    };

    for (int k = 0; k < rows; ++k) {
      const int parity = k % 2;
      const int64_t row = first_row + k * step;

      // mean and variance
      uint4 x[kPacks], grad[kPacks];
      const uint4* held = take(x);  // and again for the sums and for dx: it needs no registers in between
      const auto count = static_cast<float>(valid * kWarp * kWidth);
      const float share = valid > 0 ? 1.0f / count : 0.0f;
      float mean = 0.0f, m2 = 0.0f;
#pragma unroll
      for (int i = 0; i < kPacks; ++i) {
        float values[kWidth], part = 0.0f;
        unpack<T>(values, x[i]);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) part = fmaf(values[j], share, part);
        if (i < valid) mean += part;
      }
      mean = warp_reduce(mean);
#pragma unroll
      for (int i = 0; i < kPacks; ++i) {
        float values[kWidth], part = 0.0f;
        unpack<T>(values, x[i]);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) part = fmaf(values[j] - mean, values[j] - mean, part);
        if (i < valid) m2 += part;
      }
      m2 = warp_reduce(m2);
      if (lane == 0) shared.moments[warp] = {count, mean, m2};
      ptx::mbarrier_arrive(&shared.gathered[0]);

      // sums over the positions of each channel
      const int grad_slot = at.slot;
      take(grad);
      release(grad_slot);
      ptx::mbarrier_wait(&shared.known[0], parity);
      const Normaliser n = shared.normaliser;
      float gz[kPacks][kWidth];
      GradSums sums{};
      int left = first_left;
#pragma unroll
      for (int i = 0; i < kPacks; ++i) {
        const float2 affine = shared.affine[first_own + min(i, last)];
        const float scale = n.rstd * (affine.x * kArgumentUnit<Activation, T>);
        float values[kWidth], g[kWidth];
        unpack<T>(values, held[min(i, last) * kWarp]);
        unpack<T>(g, grad[i]);
        GradSums part{};
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          const float deviation = values[j] - n.mean;
          g[j] = activate_backward<Activation, T>(g[j], fmaf(deviation, scale, affine.y));
          part.dw = fmaf(g[j], deviation, part.dw);
          part.db += g[j];
          gz[i][j] = g[j];
        }
        if (i < valid) {
          sums = sums + part;
          if (left == 0) left = channel_spans;
          --left;
          GradSums whole{};
          if (left == 0 || i == valid - 1) {
            whole = warp_sum(sums);
            whole.dw *= n.rstd;
            sums = {};
          }
          if (lane == 0) shared.sums[first_own + i] = whole;
        }
      }
      ptx::mbarrier_arrive(&shared.gathered[1]);

      // dx
      ptx::mbarrier_wait(&shared.known[1], parity);
      const float along = -n.rstd * shared.mean.dw, shift = -n.rstd * shared.mean.db;
      uint4* gDx = reinterpret_cast<uint4*>(v.dx + row * v.size) + (first_span + first_own) * kWarp + lane;
#pragma unroll
      for (int i = 0; i < kPacks; ++i) {
        const float2 affine = shared.affine[first_own + min(i, last)];
        const float scale = n.rstd * affine.x;
        float values[kWidth];
        unpack<T>(values, held[min(i, last) * kWarp]);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          const float deviation = values[j] - n.mean;
          gz[i][j] = fmaf(gz[i][j], scale, fmaf(deviation * n.rstd, along, shift));
        }
        if (i < valid) ptx::store_streaming(gDx + i * kWarp, pack<T>(gz[i]));
      }
      release(at.before_last(slices.slots));
    }
  }
  cluster_sync();  // nobody leaves while others may still send to it
#endif
}

template <class T, class Activation, class Tile>
void launch_grad_tile(const GroupNormBackwardArgs& a, const PartialSums& sums, cudaStream_t stream) {
  const GroupNormBackwardRows<T> rows(a);
  const int64_t row_spans = rows.packs / kWarp, spans = ceil_of(row_spans, Tile::cluster);
  const auto channel_spans = static_cast<int>(row_spans / rows.group_channels);
  GradSlices slices;
  slices.packs = static_cast<int>(spans * kWarp);
  slices.slots = std::min<int>(kGradSlots, Tile::ring_bytes / (slices.packs * 16));
  slices.team = static_cast<int>(std::bit_floor(static_cast<unsigned>(std::min(channel_spans, kWarp))));
  slices.channel_spans = FastDivide(channel_spans);
  LaunchConfig config;
  config.block = dim3(static_cast<unsigned>((ceil_of(spans, Tile::packs) + kGradHelpers) * kWarp));
  config.dynamic_smem = Tile::ring_bytes;
  config.cluster = Tile::cluster;
  constexpr auto kKernel = &group_norm_backward_stream_kernel<T, Activation, Tile>;
  const int64_t clusters = std::min<int64_t>(rows.rows, resident_clusters<kKernel>(config));
  config.grid = dim3(static_cast<unsigned>(clusters * Tile::cluster));
  launch<kKernel>(config, stream, rows, sums, slices);
}

}  // namespace warpsmith
