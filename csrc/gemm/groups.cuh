// Where groups begin and end, and which group a tile of rows belongs to.
#pragma once

#include "device/warp.h"
#include "gemm/groups.h"
#include "host/ceil_div.h"

namespace warpsmith {

struct GroupSpan {
  int64_t first, end;
};

// Within the total whatever the ends are, so that nothing is read or written elsewhere.
__device__ __forceinline__ GroupSpan span_of(const Groups& groups, int64_t group) {
  const auto end_of = [&](int64_t at) {
    const int64_t end = groups.ends[at];
    return end < 0 ? 0 : (end < groups.total ? end : groups.total);
  };
  const int64_t first = group == 0 ? 0 : end_of(group - 1), end = end_of(group);
  return {first, end > first ? end : first};
}

// The group of a row; groups.count for a row past the last end.
__device__ __forceinline__ int64_t group_of(const Groups& groups, int64_t row) {
  int64_t low = 0, high = groups.count;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (groups.ends[middle] <= row) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// How many tiles of `rows` rows come before each group, in shared memory.
struct GroupTable {
  int before[kMostGroups + 1];

  // By all threads of the block, which meets in here.
  __device__ __forceinline__ void fill(const Groups& groups, int rows, int threads) {
    const int count = static_cast<int>(groups.count);
    for (int group = static_cast<int>(threadIdx.x); group < count; group += threads) {
      const GroupSpan span = span_of(groups, group);
      before[group + 1] = static_cast<int>(ceil_div(span.end - span.first, int64_t{rows}));
    }
    if (threadIdx.x == 0) before[0] = 0;
    __syncthreads();
    if (threadIdx.x < kWarp) {
      const int lane = static_cast<int>(threadIdx.x);
      int carry = 0;
#pragma unroll 1
      for (int first = 0; first < count; first += kWarp) {
        const int group = first + lane;
        int sum = group < count ? before[group + 1] : 0;
#pragma unroll
        for (int step = 1; step < kWarp; step *= 2) {
          const int left = __shfl_up_sync(~0u, sum, step);
          if (lane >= step) sum += left;
        }
        sum += carry;
        if (group < count) before[group + 1] = sum;
        carry = __shfl_sync(~0u, sum, kWarp - 1);
      }
    }
    __syncthreads();
  }

  // The last group that begins at `tile` or before it: the one that has it, as groups without rows begin where the next does.
  __device__ __forceinline__ int group_of(int tile, int groups) const {
    int low = 0, high = groups;  // before[low] <= tile < before[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (before[middle] <= tile) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return low;
  }
};

}  // namespace warpsmith
