// Layer norm, the row held in registers.
//   Against `pack`: x is read once. A thread holds no more packs than leave a multiprocessor several rows, so that rows
//   that read overlap rows that write, but four where the row has as many: merging statistics costs a warp the same
//   however much it has gathered. Short rows share a warp, and the commonest lengths have a kernel that tests and pads
//   nothing. Blocks take their places while the kernel before ends. Bound: DRAM, until one row fills a multiprocessor.
#include "norm/forward/registers.cuh"

namespace warpsmith {
namespace {

const Register<LayerNormArgs> registered{"registers", /*min_sm=*/80, needs_lone_rows<kMostRowBytes, LayerNormArgs>,
                                         launch_norm_registers<OfX, LayerNormArgs>};

}  // namespace
}  // namespace warpsmith
