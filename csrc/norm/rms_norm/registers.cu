// RMS norm, the row held in registers.
//   Against `pack`: x is read once. A thread holds no more packs than keep a multiprocessor full of blocks, so that rows
//   that read overlap rows that write; short rows share a warp, and the commonest lengths have a kernel that tests and
//   pads nothing. Blocks take their places while the kernel before ends. Bound: DRAM, until one row fills a multiprocessor.
#include "norm/forward/registers.cuh"

namespace warpsmith {
namespace {

const Register<RmsNormArgs> registered{"registers", /*min_sm=*/80, needs_lone_rows<kMostRowBytes, RmsNormArgs>,
                                       launch_norm_registers<OfX, RmsNormArgs>};

}  // namespace
}  // namespace warpsmith
