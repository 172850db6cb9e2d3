// What products by wgmma cost, in clocks of a multiprocessor. Fitted on 2026-11-29 to times of an H200 by
// benchmarks/wgmma_costs.py, but for the two of sums that leave: the best of a few for times of fp8 tiles, rows 64 to 8192, on
// 2026-11-30. kernels/warpsmith/gemm/wgmma_costs.json has the same figures.
#pragma once

#include <cstdint>

namespace warpsmith::wgmma_costs {

inline constexpr int64_t kL2Rate = 8133;               // bytes a clock from L2, of all multiprocessors together,
inline constexpr int64_t kL2RateOfOne = 85;            // and of one
inline constexpr int64_t kMemoryRate = 3991;           // bytes a clock from memory
inline constexpr int64_t kStepPercent = 108;           // of what a step takes at best
inline constexpr int64_t kWideApartPercent = 5;        // and where sums leave, of more than 128 columns,
inline constexpr int64_t kSwappedScalesPercent = 100;  // or are scaled by a factor a column
inline constexpr int64_t kStore = 1881;                // of a tile, beside what its size takes
inline constexpr int64_t kStoreRate = 37;              // values a clock
inline constexpr int64_t kStoreInTurns = 1233;         // of a tile whose store others do not wait for
inline constexpr int64_t kOnce = 3361;                 // launch, first copies, last store
inline constexpr int64_t kSecondKernel = 4933;         // that adds up slices
inline constexpr int64_t kPartialsRate = 1885;         // bytes a clock, written and read
inline constexpr int64_t kLeastSteps = 4;              // of k that are worth a slice
inline constexpr int64_t kRowsOfInvariant = 4096;      // for which batch-invariant products choose

}  // namespace warpsmith::wgmma_costs
