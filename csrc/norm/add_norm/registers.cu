// Residual norms, the row held in registers.
//   Against `pack`: a row costs two reads and two writes, and no more: h leaves as soon as it is known and stays in
//   registers for the norm. A thread holds two packs where it can, so that blocks stay small and a multiprocessor is full
//   of them: rows that read overlap rows that write. Short rows share a warp. Blocks take their places while the kernel
//   before ends. Bound: DRAM, until one row fills a multiprocessor.
// Mapping after quack's "Getting Memory-bound Kernels to Speed-of-Light",
// https://github.com/Dao-AILab/quack/blob/main/media/2025-07-10-membound-sol.md
#include "norm/forward/registers.cuh"

namespace warpsmith {
namespace {

const Register<AddNormArgs> registered{"registers", /*min_sm=*/80, needs_sum_registers<AddNormArgs>,
                                       launch_norm_registers<OfSum, AddNormArgs>};

}  // namespace
}  // namespace warpsmith
