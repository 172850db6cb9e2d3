// What products by wgmma cost, in clocks of a multiprocessor. Estimated on 2026-11-28 for an H100; kernels/warpsmith/gemm/
// wgmma_costs.json has the same figures.
#pragma once

#include <cstdint>

namespace warpsmith::wgmma_costs {

inline constexpr int64_t kL2Rate = 6150;           // bytes a clock from L2, of all multiprocessors together,
inline constexpr int64_t kL2RateOfOne = 64;        // and of one
inline constexpr int64_t kMemoryRate = 1900;       // bytes a clock from memory
inline constexpr int64_t kStepPercent = 104;       // of what a step takes at best
inline constexpr int64_t kStore = 500;             // of a tile, beside what its size takes
inline constexpr int64_t kStoreRate = 28;          // values a clock
inline constexpr int64_t kStoreInTurns = 150;      // of a tile whose store others do not wait for
inline constexpr int64_t kOnce = 4000;             // launch, first copies, last store
inline constexpr int64_t kSecondKernel = 4500;     // that adds up slices
inline constexpr int64_t kPartialsRate = 2000;     // bytes a clock, written and read
inline constexpr int64_t kLeastSteps = 4;          // of k that are worth a slice
inline constexpr int64_t kRowsOfInvariant = 4096;  // for which batch-invariant products choose

}  // namespace warpsmith::wgmma_costs
