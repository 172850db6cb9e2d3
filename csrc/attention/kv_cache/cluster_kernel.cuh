// Attention to a cache, its keys shared out among clusters of blocks (sm_90), which put their sums together through
// distributed shared memory.
//
// A cluster takes its rounds of a row as a block of split_kernel.cuh does. Its blocks have equal parts of them; then each adds
// up the pieces of all in its own part of the row's columns. Of a row that several clusters share, the blocks that have the
// same part leave it in memory, and the last of them adds up that part alone: nobody reads all of a row.
//   Between the last key and the result: two barriers of the cluster and a load from a neighbour; where clusters share a row,
//   a ticket and a load from L2 besides. In flight, a multiprocessor: (stages - 1) tiles of each group, 128 KB and more.
//   CUDA C++ Programming Guide, "Distributed Shared Memory".
#pragma once

#include "attention/kv_cache/split_kernel.cuh"
#include "device/cluster.h"
#include "device/ptx/remote.h"
#include "device/start_early.h"

namespace warpsmith {

// What a block has to show its neighbours: its sums, where those of its first group were, and behind those of all.
template <class Tile>
struct BlockSums {
  float (*o)[Tile::pitch];  // [rows]
  Piece* pieces;            // [rows]
  static_assert(Tile::warps_n * Tile::rows * (Tile::pitch + 2) * 4 + Tile::rows * static_cast<int>(sizeof(Piece)) <=
                    Tile::smem,
                "sums take the place of keys");

  __device__ __forceinline__ explicit BlockSums(const GroupSums<Tile>& groups)
      : o(groups.o[0]), pieces(groups.pieces[Tile::warps_n]) {}
};

// Calls body(row, column) for every four columns of the tile's queries that are this block's part, each by one thread.
template <class Tile, class Body>
__device__ __forceinline__ void for_each_own_four(const KvCacheArgs& a, const Work& w, int rank, int cluster,
                                                  Body&& body) {
  constexpr int kFours = Tile::d / 4;
  const int all = rows_of<Tile>(a, w) * kFours, part = (all + cluster - 1) / cluster;
  const int end = min(rank * part + part, all);
  for (int i = rank * part + static_cast<int>(threadIdx.x); i < end; i += Tile::threads) {
    const int row = i / kFours, column = i % kFours * 4;
    if (column < a.dv) body(row, column);
  }
}

// `clusters`: of the launch, for each of which there is memory for two pieces. `range`: of the launch's counters, or kNoRange:
// these lie in the workspace, behind the pieces.
template <class T, class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::resident)
    split_cluster_kernel([[maybe_unused]] const KvCacheArgs a, [[maybe_unused]] int tiles,
                         [[maybe_unused]] int clusters, [[maybe_unused]] int range) {
#if defined(__CUDA_ARCH__) && WARPSMITH_HAS_CLUSTERS
  extern __shared__ __align__(128) char shared[];
  CacheStage<Tile>* const ring = reinterpret_cast<CacheStage<Tile>*>(shared);
  const GroupSums<Tile> groups(shared);
  const BlockSums<Tile> sums(groups);
  const Pieces left = pieces_of<Tile>(
      a, 2 * int64_t{clusters},
      range == kNoRange ? reinterpret_cast<unsigned*>(static_cast<float*>(a.workspace) +
                                                      2 * int64_t{clusters} * Tile::rows * (Tile::d + 2))
                        : tickets + range * kTicketsOfLaunch);
  const int cluster = static_cast<int>(gridDim.x) / clusters, rank = cluster_rank();
  const int own = static_cast<int>(blockIdx.x) / cluster;

  start_early();
  Shares shares;
  int before;
  Work w = first_work<Tile>(shares, before, a, tiles, clusters, own, /*least=*/1);
  int at = first_round(shares, own);
  const int64_t until = min((int64_t{own} + 1) * shares.of_block, int64_t{shares.total});
  const int end = static_cast<int>(until);
  if (int64_t{own} * shares.of_block >= shares.total) return;  // all of the cluster
  while (true) {
    const int of_head = counted(a, w), kv_head = (at - before) / of_head;
    const int begin = before + kv_head * of_head, stop = min(end, begin + of_head);  // of the row; of this cluster
    const int from = at - begin, rounds = stop - at;
    const auto part = [&](int block) { return from + static_cast<int>(int64_t{rounds} * block / cluster); };
    attend<T, Tile>(a, w, kv_head, part(rank), part(rank + 1), ring, groups);

    // the block's sums, and the cluster's
    for_each_four<Tile>(a, w, [&](int row, int column) {
      const Sums of_block = join_groups<Tile>(groups, row, column);
      *reinterpret_cast<float4*>(&sums.o[row][column]) = of_block.o;
      if (column == 0) sums.pieces[row] = of_block.piece;
    });
    cluster_sync();
    const auto of_cluster = [&](int row, int column) {
      return sum_of<8>(cluster, [&](int block, Piece& piece, float4& o) {
        const float2 raw = ptx::load_remote(reinterpret_cast<const float2*>(sums.pieces + row), block);
        piece = {raw.x, raw.y};
        o = ptx::load_remote(reinterpret_cast<const float4*>(&sums.o[row][column]), block);
      });
    };
    const int first = begin / shares.of_block, last = (begin + of_head - 1) / shares.of_block;  // clusters of the row
    if (first == last) {
      for_each_own_four<Tile>(a, w, rank, cluster, [&](int row, int column) {
        store_result<T, Tile>(a, w, kv_head, row, column, of_cluster(row, column));
      });
    } else {
      const int64_t slot = slot_of(own, at == begin);
      for_each_own_four<Tile>(a, w, rank, cluster, [&](int row, int column) {
        const Sums piece = of_cluster(row, column);
        // what it weighs too: whoever reads this part has met nobody of the row's other parts, which leave the same bits
        left.pieces[slot * Tile::rows + row] = piece.piece;
        leave_piece<Tile>(left, slot, row, column, piece);
      });
      __shared__ bool is_last;
      __syncthreads();
      if (threadIdx.x == 0) {
        const unsigned others = static_cast<unsigned>(last - first);
        is_last = ptx::inc_acq_rel(left.counters + first * cluster + rank, others) == others;
      }
      __syncthreads();
      if (is_last) {
        for_each_own_four<Tile>(a, w, rank, cluster, [&](int row, int column) {
          store_result<T, Tile>(a, w, kv_head, row, column, left_sum<Tile>(left, first, last, row, column));
        });
      }
    }
    __syncwarp();
    cluster_sync();  // all have read these sums: the next row's keys take their place, or the block ends
    at = stop;
    if (at >= end) break;
    if (at == before + a.kv_heads * of_head) {
      before = at;
      w = work_of<Tile>(a, tiles, w.batch * tiles + w.tile + 1);
    }
  }
#endif
}

template <template <class, int> class Few, template <class, int> class Pair>
const char* takes_clusters(const KvCacheArgs& a, bool e4m3_cache) {
  if (a.batch_invariant) return "does not cut a sequence alike whatever others there are";
  return has_few_queries(a) ? takes_split<Few>(a, e4m3_cache) : takes_split<Pair>(a, e4m3_cache);
}

template <template <class, int> class Few, template <class, int> class Pair>
void launch_clusters(const KvCacheArgs& a, cudaStream_t stream) {
  const auto launch_tile = [&]<class T, class Tile>() {
    const ClusterSplit split(a, Tile::rows);
    int range = kNoRange;
    if (Rehearsal::current() == nullptr) {
      if (split.blocks() <= kTicketsOfLaunch) range = ticket_range(stream);
      if (range == kNoRange) {
        float* counters = static_cast<float*>(a.workspace) + 2 * split.clusters * piece_floats(Tile::rows, Tile::d);
        check_cuda(cudaMemsetAsync(counters, 0, split.blocks() * sizeof(unsigned), stream), "cudaMemsetAsync");
      }
    }
    const LaunchConfig config{.grid = static_cast<unsigned>(split.blocks()),
                              .block = Tile::threads,
                              .dynamic_smem = Tile::smem,
                              .cluster = static_cast<unsigned>(split.cluster),
                              .early = range != kNoRange};
    warpsmith::launch<&split_cluster_kernel<T, Tile>>(config, stream, a, split.tiles, split.clusters, range);
  };
  has_few_queries(a) ? dispatch_split<Few>(a, launch_tile) : dispatch_split<Pair>(a, launch_tile);
}

// Rows of work that clusters do not take turns at, on GPUs of 128 multiprocessors and more.
inline bool suits_clusters(const KvCacheArgs& a) {
  return a.rows() <= kMostClusterQueries && int64_t{a.batch} * a.kv_heads <= kMostClusterRows;
}

}  // namespace warpsmith
