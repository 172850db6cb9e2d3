// Rows added up by their indices, of which there are few: a block finds those of its row together.
//   Against `naive`: an index is read by one thread of a block, not by all, and rows are read in packs. No sort, which alone
//   would take longer than all of this. Of long rows a block has many places, for which it looks once. Bound: latency; beyond
//   some thousand indices, that each block reads them all.
#include "device/start_early.h"
#include "transform/accumulate/runs.cuh"

namespace warpsmith {
namespace {

constexpr int kLooks = 8;  // indices of a thread on their way

// Where a thread's looks are, a block's width apart; past the last index, at that one again.
__device__ __forceinline__ int look_at(const AccumulateArgs& a, int first, int u) {
  return min(first + u * kRunThreads, static_cast<int>(a.count) - 1);
}

__device__ __forceinline__ void look(int64_t (&index)[kLooks], const AccumulateArgs& a, int first) {
#pragma unroll
  for (int u = 0; u < kLooks; ++u) index[u] = read_index(a.index, look_at(a, first, u), a.wide);
}

template <class T, int width, int together>
__global__ void __launch_bounds__(kRunThreads) accumulate_scan_kernel(const AccumulateArgs a, const Places places) {
  start_early();
  constexpr int kWarps = kRunThreads / kWarp;
  __shared__ int same[kMostScanned], found[kWarps], earlier, later;
  const int tid = threadIdx.x, lane = tid % kWarp, warp = tid / kWarp, count = static_cast<int>(a.count);
  const int j = static_cast<int>(blockIdx.x);
  if (tid == 0) earlier = later = 0;
  __syncthreads();
  // Which others have this row? They are asked for before it is known, and not judged: their own blocks do that.
  const int64_t own = read_index(a.index, j, a.wide);
  int64_t index[kLooks];
  look(index, a, tid);
  const int64_t row = row_of(a, own);
  if (row < 0) return;
  const SameRow same_row(a, row);
  bool before_it = false, behind_it = false;
  for (int first = tid; first < count;) {
#pragma unroll
    for (int u = 0; u < kLooks; ++u) {
      const int i = look_at(a, first, u);
      const bool alike = same_row(index[u]);
      before_it |= alike && i < j;
      behind_it |= alike && i > j;
    }
    first += kLooks * kRunThreads;
    if (first < count) look(index, a, first);
  }
  if (before_it) earlier = 1;
  if (behind_it) later = 1;
  __syncthreads();
  if (earlier != 0) return;  // its block sums up for all of them
  int listed = 0;
  if (later != 0) {
    // list them in their order
    for (int first = j; first < count; first += kRunThreads) {
      const int i = first + tid;
      const bool mine = i < count && same_row(read_index(a.index, i, a.wide));
      const unsigned lanes = __ballot_sync(kAllLanes, mine);
      if (lane == 0) found[warp] = __popc(lanes);
      __syncthreads();
      int before = listed + __popc(lanes & ((1u << lane) - 1));
      for (int w = 0; w < kWarps; ++w) {
        if (w < warp) before += found[w];
        listed += found[w];
      }
      if (mine) same[before] = i;
      __syncthreads();
    }
  } else {
    listed = 1;  // j, of which no thread waits to read
  }
  const auto term = [&](int i) { return listed == 1 ? j : same[i]; };
  if (is_moved(a, listed)) {
    const int last = term(listed - 1);
    for (int64_t first = blockIdx.y; first < places.count; first += together * int64_t{gridDim.y}) {
      const SomePlaces<width, together> at(a, places, first);
      Vec<T, width> values[together];
#pragma unroll
      for (int u = 0; u < together; ++u) {
        if (at.there[u]) values[u] = Run<T, width>::term(a, at.outer[u], last, at.column[u]);
      }
#pragma unroll
      for (int u = 0; u < together; ++u) {
        if (at.there[u]) Run<T, width>::put(a, at.outer[u], row, at.column[u], values[u]);
      }
    }
    return;
  }
  // add up
  for (int64_t first = blockIdx.y; first < places.count; first += together * int64_t{gridDim.y}) {
    const SomePlaces<width, together> at(a, places, first);
    Run<T, width> runs[together];
    Vec<T, width> held[together];
#pragma unroll
    for (int u = 0; u < together; ++u) {
      if (at.there[u]) held[u] = Run<T, width>::held(a, at.outer[u], row, at.column[u]);
    }
#pragma unroll(kTogether / together)
    for (int i = 0; i < listed; ++i) {
#pragma unroll
      for (int u = 0; u < together; ++u) {
        if (at.there[u]) runs[u].add(a, at.outer[u], term(i), at.column[u]);
      }
    }
#pragma unroll
    for (int u = 0; u < together; ++u) {
      if (at.there[u]) runs[u].write(a, at.outer[u], row, at.column[u], held[u]);
    }
  }
}

const char* takes(const AccumulateArgs& a) { return a.count <= kMostScanned ? nullptr : "needs at most 2048 indices"; }

void launch(const AccumulateArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    const auto run = [&]<int width>() {
      const Places places(a, width);
      places.dispatch(a, [&]<int together>(LaunchConfig config) {
        config.early = true;
        warpsmith::launch<&accumulate_scan_kernel<T, width, together>>(config, stream, a, places);
      });
    };
    runs_in_packs(a) ? run.template operator()<kPack<T>>() : run.template operator()<1>();
  });
}

const Register<AccumulateArgs> registered{"scan", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
