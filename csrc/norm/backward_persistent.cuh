// The persistent kernel behind `registers` and `cluster` of the norms' gradients: a block, or a cluster of them, walks
// over rows, keeping its slice of the weight and of the weight's gradient in registers, while the rows to come arrive in
// a ring in shared memory. `Norm` is what norm/backward.cuh describes.
#pragma once

#include <tuple>

#include "device/cluster.h"
#include "device/ptx/barrier.h"
#include "device/ptx/copy.h"
#include "norm/backward.cuh"
#include "norm/resident_blocks.h"

namespace warpsmith {

// threads of a block (at most) | threads that share a row, 0: the block or cluster, cut to what the row needs |
// 128-bit packs of a row that a thread holds | rows in the ring | blocks of `threads` per multiprocessor | blocks that
// share a row | whether weight and bias are held in registers, or else in shared memory | packs of a further row in the
// ring | whether one warp puts the parts of its block together before they leave it: less work for all, but they wait for
// it
template <int threads_, int lanes_, int packs_, int stages_, int min_blocks_, int cluster_ = 1, int held_ = 1,
          int spare_ = 0, int merged_ = 0>
struct BackwardTile {
  static constexpr int threads = threads_, lanes = lanes_, packs = packs_, stages = stages_;
  static constexpr int min_blocks = min_blocks_, cluster = cluster_, held = held_, spare = spare_;
  static constexpr int merged = merged_;
  static constexpr int ring_packs = stages * packs + spare;
  static constexpr int rows_per_block = lanes > 0 ? threads / lanes : 1;
  static constexpr int64_t most_packs = int64_t{cluster} * (lanes > 0 ? lanes : threads) * packs;
  static_assert(lanes == 0 || cluster == 1, "rows that share a warp are short");
  static_assert(merged == 0 || cluster > 1, "a block alone puts its sums together in any case");
  static_assert(spare == 0 || (stages == 1 && cluster > 1 && spare < packs), "a part of the row after the only one");

  static constexpr int ring_bytes(int block_threads) { return ring_packs * 2 * block_threads * 16; }
  using OneStage = BackwardTile<threads_, lanes_, packs_, 1, min_blocks_, cluster_, held_>;
};

// Bytes: what every GPU from sm_80 on grants a block at launch, and what the kernel declares besides.
inline constexpr int kCommonSmem = 96 * 1024, kStaticSmem = 2048;

// Words of a thread in shared memory are so far apart, a distance that the instructions carry themselves: those of a warp
// lie together, or those of a block whose size is known.
template <class Tile>
inline constexpr int kApart = Tile::lanes > 0 ? Tile::threads : kWarp;

// Where the `words` of this thread begin.
template <class Tile>
__device__ __forceinline__ uint4* own_words(uint4* shared, int words) {
  if constexpr (Tile::lanes > 0) return shared + threadIdx.x;
  return shared + threadIdx.x / kWarp * (words * kWarp) + threadIdx.x % kWarp;
}

// Where a pack of x (tensor 0) or grad (1) lies in the thread's ring, of a row whose first pack is the ring's `first`.
template <class Tile>
__device__ __forceinline__ int ring_slot(int first, int tensor, int pack) {
  int place = first + pack;
  if constexpr (Tile::spare > 0) place = place >= Tile::ring_packs ? place - Tile::ring_packs : place;
  return (place * 2 + tensor) * kApart<Tile>;
}

// The weight of a pack's columns, and their bias where the norm reads it.
template <class Norm>
struct Columns {
  static constexpr int n = kPack<typename Norm::Value>;
  WeightPack<typename Norm::Weight, n> parameters[Norm::kReadsBias ? 2 : 1];

  __device__ __forceinline__ void load_from(const Norm& v, int64_t col) {
    parameters[0].load_from(v.weight, col);
    if constexpr (Norm::kReadsBias) parameters[1].load_from(v.bias, col, 0.0f);
  }
  __device__ __forceinline__ void keep() {
    for (auto& one : parameters) one.keep();
  }
  __device__ __forceinline__ void to_floats(float (&weight)[n], float (&bias)[n]) const {
    parameters[0].to_floats(weight);
    if constexpr (Norm::kReadsBias) parameters[1].to_floats(bias);
  }
};

// The columns of a thread's packs, wherever the tile holds them.
template <class Norm, class Tile>
struct HeldColumns {
  static constexpr int kBytes = 0;  // of shared memory per thread
  Columns<Norm> held[Tile::packs];

  __device__ explicit HeldColumns(uint4*) {}
  __device__ __forceinline__ void put(int i, const Columns<Norm>& columns) { held[i] = columns; }
  __device__ __forceinline__ Columns<Norm> get(int i) const { return held[i]; }
  __device__ __forceinline__ void keep(int i) { held[i].keep(); }
};

template <class Norm, class Tile>
struct SharedColumns {
  static constexpr int kBytes = Tile::packs * sizeof(Columns<Norm>), kWords = sizeof(Columns<Norm>) / sizeof(uint4);
  uint4* own;  // [packs, words]; a thread reads what it has put there itself

  __device__ explicit SharedColumns(uint4* shelf) : own(own_words<Tile>(shelf, Tile::packs * kWords)) {}
  __device__ __forceinline__ uint4& word(int i, int w) const { return own[(i * kWords + w) * kApart<Tile>]; }
  __device__ __forceinline__ void put(int i, const Columns<Norm>& columns) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) word(i, w) = reinterpret_cast<const uint4(&)[kWords]>(columns)[w];
  }
  __device__ __forceinline__ Columns<Norm> get(int i) const {
    Columns<Norm> columns;
#pragma unroll
    for (int w = 0; w < kWords; ++w) reinterpret_cast<uint4(&)[kWords]>(columns)[w] = word(i, w);
    return columns;
  }
  __device__ __forceinline__ void keep(int) {}
};

template <class Norm, class Tile>
using ColumnsOf = std::conditional_t<Tile::held, HeldColumns<Norm, Tile>, SharedColumns<Norm, Tile>>;

template <class Norm, class Tile>
constexpr int dynamic_smem(int block_threads) {
  return Tile::ring_bytes(block_threads) + ColumnsOf<Norm, Tile>::kBytes * block_threads;
}

// Parts of a row live until every block has read them: with one row gathered ahead, a block may be three rows ahead of
// another.
inline constexpr int kPartsInFlight = 4;

// What the warps that share a row hand each other.
template <class Norm, class Tile>
struct RowExchange {
  static constexpr bool kCluster = Tile::cluster > 1;
  static constexpr int kOfBlock = Tile::merged ? 1 : Tile::threads / kWarp;
  static constexpr int kMost = Tile::cluster * kOfBlock;
  typename Norm::Partial parts[kCluster ? kPartsInFlight : 2][kMost];  // [row, block of the cluster * part of it]
  uint64_t arrived[kPartsInFlight];                                    // mbarriers of a cluster: all parts are here
};

// And what those of a block hand to the one that puts their parts together.
template <class Norm, class Tile>
struct MergedExchange : RowExchange<Norm, Tile> {
  typename Norm::Partial of_warps[kPartsInFlight][Tile::threads / kWarp];
  uint64_t gathered[kPartsInFlight];  // mbarriers: those of all warps are here
};

// A sum of products over many rows.
struct PlainSum {
  float sum = 0.0f;
  __device__ __forceinline__ void add(float a, float b) { sum = fmaf(a, b, sum); }
};

// The same with what rounding loses carried along (Kahan 1965).
struct CompensatedSum {
  float sum = 0.0f, lost = 0.0f;
  __device__ __forceinline__ void add(float a, float b) {
    const float term = fmaf(a, b, -lost), next = sum + term;
    lost = (next - sum) - term;
    lost = lost == lost ? lost : 0.0f;  // an infinite sum has lost nothing
    sum = next;
  }
};

template <class Norm, class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::min_blocks)
    norm_backward_persistent_kernel([[maybe_unused]] const Norm v) {
#if defined(__CUDA_ARCH__)
  using T = typename Norm::Value;
  constexpr int kPacks = Tile::packs, kStages = Tile::stages, kCluster = Tile::cluster, kWidth = kPack<T>;
  constexpr bool kShared = Tile::lanes > 0;  // several rows in a block
  constexpr bool kLean = sizeof(T) == 2;     // instructions bound
  extern __shared__ uint4 ring[];            // [packs, x and grad] of each thread; a thread reads its own copies only
  __shared__ std::conditional_t<Tile::merged, MergedExchange<Norm, Tile>, RowExchange<Norm, Tile>> exchange;

  const int tid = threadIdx.x;
  const int lanes = kShared ? Tile::lanes : blockDim.x;
  const int lane = kShared ? tid % lanes : tid;
  const int group = kShared ? tid / lanes : 0;
  int rank = 0;
#if WARPSMITH_HAS_CLUSTERS
  if constexpr (kCluster > 1) rank = cluster_rank();
#endif
  const int packs = static_cast<int>(v.cols / kWidth);
  const int slice = (packs + kCluster - 1) / kCluster;
  const int own = min(packs - rank * slice, slice);  // packs of this block, none at the end of a short row
  const int64_t col = int64_t{rank} * slice * kWidth;
  const int64_t block = blockIdx.x / kCluster;
  const int64_t step = int64_t{gridDim.x / kCluster} * Tile::rows_per_block;
  const int mine =
      own > lane ? (own - lane + lanes - 1) / lanes : 0;  // packs of this thread, the first of them at `at`
  const int64_t at = col + lane * kWidth;
  uint4* const own_ring = own_words<Tile>(ring, Tile::ring_packs * 2);
  const auto in_ring = [&](int first, int tensor, int i) -> uint4& {
    return own_ring[ring_slot<Tile>(first, tensor, i)];
  };

  // Packs [from, to) of a row. Predicated: behind branches, of which each rows' end needs one, the compiler would find
  // all the addresses again for every pack.
  const auto fetch_packs = [&](int first, int64_t row, int from, int to) {
    const uint4* x = reinterpret_cast<const uint4*>(v.x_row(row) + at);
    const uint4* grad = reinterpret_cast<const uint4*>(v.grad_row(row) + at);
    const int limit = row < v.rows ? min(mine, to) : 0;
#pragma unroll
    for (int i = from; i < to; ++i) {
      ptx::cp_async_if(i < limit, &in_ring(first, 0, i), x + i * lanes);
      ptx::cp_async_if(i < limit, &in_ring(first, 1, i), grad + i * lanes);
    }
  };
  const auto fetch = [&](int stage, int64_t row) {
    fetch_packs(stage * kPacks, row, 0, kPacks);
    ptx::cp_async_commit();
  };

  int64_t base = block * Tile::rows_per_block;
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) fetch(stage, base + group + stage * step);
  ColumnsOf<Norm, Tile> held(ring + Tile::ring_packs * 2 * blockDim.x);
  // Few clusters fit the machine, so each adds up many rows, and f32 has no digits to spare. Eight packs a thread leave no
  // registers for it; rows of that length are fewer.
  constexpr bool kCompensated = std::is_same_v<T, float> && kCluster > 1 && kPacks <= 4;
  using Sum = std::conditional_t<kCompensated, CompensatedSum, PlainSum>;
  Sum dw[kPacks][kWidth], db[Norm::kBiasGradient ? kPacks : 1][kWidth];
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (i >= mine) continue;
    Columns<Norm> columns;
    columns.load_from(v, at + i * lanes * kWidth);
    held.put(i, columns);
  }
  WarpShare share;
  if constexpr (kShared) {
    share = {static_cast<float>(v.cols), v.inverse_cols, 1.0f / static_cast<float>(min(own, lanes))};
  } else {
    share = WarpShare::of_block(max(own, 0), kWidth);
  }
#if WARPSMITH_HAS_CLUSTERS
  if constexpr (kCluster > 1) {
    if (tid == 0) {
      for (int i = 0; i < kPartsInFlight; ++i) {
        ptx::mbarrier_init(&exchange.arrived[i], 1);
        if constexpr (Tile::merged) ptx::mbarrier_init(&exchange.gathered[i], blockDim.x / kWarp);
      }
      ptx::fence_mbarrier_init();
    }
    cluster_sync();  // every block's barriers exist before anyone signals them
  }
#endif

  // Columns in shared memory need no register each, and unrolling would only load them all at once.
  constexpr int kUnrolled = Tile::held ? kPacks : 2;
  // What this thread's warp knows of a row in the ring, of which the thread has `limit` packs. A pack is read while the
  // one before is worked on.
  const auto gather = [&](int first, int limit) {
    uint4 raw_x = in_ring(first, 0, 0), raw_grad = in_ring(first, 1, 0);
    typename Norm::Sums sums{};
    if constexpr (Norm::kShifted) {
      const float head = limit > 0 ? to_float(reinterpret_cast<const T&>(raw_x)) : 0.0f;
      // In parts of kWarp, lest the sum leave the range; the number of heads would be held in one more register.
      constexpr float kPart = 1.0f / kWarp;
      sums.shift = warp_reduce<kShared ? Tile::lanes : kWarp>(head * kPart) * share.inverse_heads * kWarp;
    }
#pragma unroll kUnrolled
    for (int i = 0; i < kPacks; ++i) {
      const uint4 now_x = raw_x, now_grad = raw_grad;
      if (i + 1 < kPacks) {
        raw_x = in_ring(first, 0, i + 1);
        raw_grad = in_ring(first, 1, i + 1);
      }
      if (i >= limit) continue;
      float x[kWidth], grad[kWidth], weight[kWidth], bias[kWidth] = {};
      to_float(x, reinterpret_cast<const Pack<T>&>(now_x));
      to_float(grad, reinterpret_cast<const Pack<T>&>(now_grad));
      held.get(i).to_floats(weight, bias);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) v.add(sums, x[j], grad[j], weight[j], bias[j]);
    }
    return v.template over_lanes<kShared ? Tile::lanes : kWarp>(sums, share);
  };

  // dx, and what the row adds to dw and db; then `left(i)`, as the ring's place of a pack is free.
  const auto finish = [&](int first, int limit, int64_t row, const typename Norm::Factors& factors, auto&& left) {
    // Two packs stay in registers from the first sweep on; for more there is no room, and this makes them be read again.
    if constexpr (kPacks > 2) __syncwarp();
    T* const to = v.dx_row(row) + at;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      held.keep(i);
      if (i < limit) {
        const uint4 raw_x = in_ring(first, 0, i), raw_grad = in_ring(first, 1, i);
        float x[kWidth], grad[kWidth], weight[kWidth], bias[kWidth] = {}, dx[kWidth];
        to_float(x, reinterpret_cast<const Pack<T>&>(raw_x));
        to_float(grad, reinterpret_cast<const Pack<T>&>(raw_grad));
        held.get(i).to_floats(weight, bias);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          const float xhat = v.xhat(x[j], weight[j], bias[j], factors);
          dx[j] = v.template dx<kLean>(xhat, __fmul_rn(grad[j], weight[j]), factors);
          dw[i][j].add(grad[j], xhat);
          if constexpr (Norm::kBiasGradient) db[i][j].add(grad[j], 1.0f);
        }
        Pack<T> out;
        from_float(out, dx);
        store<Cache::streaming>(to + i * lanes * kWidth, out);
      }
      left(i);
    }
  };
  constexpr auto kNothing = [](int) {};

  const auto rstd_of = [&](int64_t row) {
    if constexpr (Norm::kFromOutput) {
      if (row < v.rows) return v.rstd[row];
    }
    return 0.0f;
  };

  if constexpr (kCluster > 1) {
#if WARPSMITH_HAS_CLUSTERS
    // A row's parts go to every block while the row before is finished: nobody waits for the exchange.
    const int warps = blockDim.x / kWarp, in_warp = tid % kWarp, of_block = Tile::merged ? 1 : warps;
    const int parts = kCluster * of_block;
    const auto send = [&](unsigned k, int first) {
      const unsigned slot = k % kPartsInFlight;
      typename Norm::Partial part = gather(first, mine);
      if constexpr (Tile::merged) {
        if (in_warp == 0) {
          exchange.of_warps[slot][tid / kWarp] = part;
          ptx::mbarrier_arrive(&exchange.gathered[slot]);
        }
        if (tid >= kWarp) return;
        ptx::mbarrier_wait(&exchange.gathered[slot], k / kPartsInFlight % 2);
        part = v.combine_some(exchange.of_warps[slot], warps);
      }
      if (tid == 0) {
        ptx::mbarrier_arrive_expect(&exchange.arrived[slot], parts * static_cast<int>(sizeof(typename Norm::Partial)));
      }
      if (in_warp < kCluster) {
        auto* to = reinterpret_cast<float*>(&exchange.parts[slot][rank * of_block + tid / kWarp]);
#pragma unroll
        for (int i = 0; i < kFloats<typename Norm::Partial>; ++i) {
          ptx::store_async(to + i, &exchange.arrived[slot], in_warp, reinterpret_cast<const float*>(&part)[i]);
        }
      }
    };

    const auto total = [&](unsigned k) {
      const unsigned slot = k % kPartsInFlight;
      const float rstd = rstd_of(base);
      ptx::mbarrier_wait_cluster(&exchange.arrived[slot], k / kPartsInFlight % 2);
      return v.template factors<kLean>(v.template combine<RowExchange<Norm, Tile>::kMost>(exchange.parts[slot], parts),
                                       rstd);
    };

    if constexpr (kStages > 1) {
      if (base < v.rows) {
        ptx::cp_async_wait<kStages - 1>();
        send(0, 0);
      }
      for (unsigned k = 0; base < v.rows; ++k, base += step) {
        ptx::cp_async_wait<kStages - 2>();
        if (base + step < v.rows) send(k + 1, (k + 1) % kStages * kPacks);
        finish(k % kStages * kPacks, mine, base, total(k), kNothing);
        fetch(k % kStages, base + kStages * step);
      }
    } else {
      // The ring holds a row and the first packs of the next. Each pack that is finished leaves its place to the next
      // one that is missing there, so that loads pause as little as the room allows.
      constexpr int kMissing = kPacks - Tile::spare;
      const auto after = [](int first) {
        return first + kPacks >= Tile::ring_packs ? first + kPacks - Tile::ring_packs : first + kPacks;
      };
      fetch_packs(after(0), base + step, 0, Tile::spare);
      ptx::cp_async_commit();
      int first = 0;
      for (unsigned k = 0; base < v.rows; ++k, base += step) {
        ptx::cp_async_wait<1>();
        send(k, first);
        const int second = after(first), third = after(second);
        finish(first, mine, base, total(k), [&](int i) {
          if (i < kMissing) {
            fetch_packs(second, base + step, i + Tile::spare, i + Tile::spare + 1);
          } else {
            fetch_packs(third, base + 2 * step, i - kMissing, i - kMissing + 1);
          }
          if (i == kMissing - 1) ptx::cp_async_commit();
        });
        ptx::cp_async_commit();
        first = second;
      }
    }
    cluster_sync();  // nobody leaves while others may still send parts here
#endif
  } else {
    int stage = 0, buffer = 0;
    for (; base < v.rows; base += step) {
      const int64_t row = base + group;
      const int limit = row < v.rows ? mine : 0;
      const float rstd = rstd_of(row);
      ptx::cp_async_wait<kStages - 1>();
      typename Norm::Partial part = gather(stage * kPacks, limit);
      if constexpr (!kShared) part = block_combine(v, part, exchange.parts[buffer]);
      finish(stage * kPacks, limit, row, v.template factors<kLean>(part, rstd), kNothing);
      fetch(stage, row + kStages * step);
      stage = stage + 1 == kStages ? 0 : stage + 1;
      buffer ^= 1;  // another warp may be one row ahead, never two
    }
  }

  // one partial dw and db per block or cluster
  ptx::allow_next_grid();
  if constexpr (kShared) ptx::cp_async_wait<0>();
  const auto leave = [&](float* partial, const auto& sums) {
    if (partial == nullptr) return;
    float* out = partial + block * v.cols;
    if constexpr (kShared) {
      __syncthreads();                                 // the ring is free
      float* shared = reinterpret_cast<float*>(ring);  // [rows of the block, a row's columns]
      constexpr int kRowFloats = Tile::lanes * kPacks * kWidth;
#pragma unroll
      for (int i = 0; i < kPacks; ++i) {
#pragma unroll
        for (int j = 0; j < kWidth; j += 4) {
          *reinterpret_cast<float4*>(&shared[group * kRowFloats + (i * lanes + lane) * kWidth + j]) =
              float4{sums[i][j].sum, sums[i][j + 1].sum, sums[i][j + 2].sum, sums[i][j + 3].sum};
        }
      }
      __syncthreads();
      for (int i = tid; i < packs * kWidth; i += blockDim.x) {
        float sum = shared[i];
#pragma unroll
        for (int row = 1; row < Tile::rows_per_block; ++row) sum += shared[row * kRowFloats + i];
        out[i] = sum;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kPacks; ++i) {
        if (i >= mine) continue;
#pragma unroll
        for (int j = 0; j < kWidth; j += 4) {
          *reinterpret_cast<float4*>(out + at + i * lanes * kWidth + j) =
              float4{sums[i][j].sum, sums[i][j + 1].sum, sums[i][j + 2].sum, sums[i][j + 3].sum};
        }
      }
    }
  };
  leave(v.partial_dw, dw);
  if constexpr (Norm::kBiasGradient) leave(v.partial_db, db);
#endif
}

template <class Norm, class Tile>
void launch_backward_tile(const NormBackwardArgs& a, cudaStream_t stream) {
  using T = typename Norm::Value;
  constexpr auto kernel = &norm_backward_persistent_kernel<Norm, Tile>;
  static_assert(Tile::lanes == 0 || sizeof(T) * Tile::stages * 2 >= sizeof(float), "dw must fit where the ring was");
  const int64_t slice = (a.cols / kPack<T> + Tile::cluster - 1) / Tile::cluster;
  LaunchConfig config;
  config.block = dim3(Tile::lanes > 0 ? Tile::threads : row_threads(slice, Tile::packs, Tile::threads));
  config.dynamic_smem = dynamic_smem<Norm, Tile>(static_cast<int>(config.block.x));
  config.cluster = Tile::cluster;
  if constexpr (Tile::cluster == 1 && Tile::stages > 1 && dynamic_smem<Norm, Tile>(Tile::threads) > kCommonSmem) {
    if (config.dynamic_smem > kCommonSmem && config.dynamic_smem + kStaticSmem > block_smem_limit()) {
      return launch_backward_tile<Norm, typename Tile::OneStage>(a, stream);
    }
  }
  const int64_t batches = (a.rows + Tile::rows_per_block - 1) / Tile::rows_per_block;
  const int64_t blocks = std::min({batches, a.most_partials, resident_blocks<kernel, Tile>(config)});
  config.grid = dim3(static_cast<unsigned>(blocks * Tile::cluster));
  launch<kernel>(config, stream, Norm(a));
  sum_partials<typename Norm::Weight>(a, blocks, stream);
}

// The first tile that holds the row.
template <class Norm, class... Tile>
void launch_smallest_tile(const NormBackwardArgs& a, cudaStream_t stream, std::tuple<Tile...>) {
  bool done = false;
  const int64_t packs = a.cols / kPack<typename Norm::Value>;
  ((!done && packs <= Tile::most_packs && (launch_backward_tile<Norm, Tile>(a, stream), done = true)), ...);
}

template <class Tiles>
constexpr int64_t kMostPacksOf = std::tuple_element_t<std::tuple_size_v<Tiles> - 1, Tiles>::most_packs;

}  // namespace warpsmith
