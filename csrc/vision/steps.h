// Steps of a schedule: indices into a table that is computed once.
#pragma once

#include <cstdint>

namespace warpsmith {

// [n], int32 or int64.
struct Steps {
  const void* at;
  bool is_long;
  int64_t limit;  // rows of the table

#ifdef __CUDACC__
  // Step i, or -1 where the table has no such row: whoever asked gets NaN then, and nothing is read.
  __device__ __forceinline__ int64_t operator[](int64_t i) const {
    const int64_t step = is_long ? static_cast<const int64_t*>(at)[i] : static_cast<const int32_t*>(at)[i];
    return step >= 0 && step < limit ? step : -1;
  }
#endif
};

}  // namespace warpsmith
