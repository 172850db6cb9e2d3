// Residual norms with dropout, the row held in registers.
//   Against `pack`: a row costs two reads and two writes, as in `registers` of add_norm. No mask is written: the backward
//   pass computes it again. The generator wants registers too, so fewer blocks share a multiprocessor, but for common
//   lengths in 16 bits, where nothing is tested. Bound: DRAM and, at 16 bits, the generator.
#include "norm/forward/registers.cuh"

namespace warpsmith {
namespace {

const Register<DropoutAddNormArgs> registered{"registers", /*min_sm=*/80, needs_sum_registers<DropoutAddNormArgs>,
                                              launch_norm_registers<OfDropoutSum, DropoutAddNormArgs>};

}  // namespace
}  // namespace warpsmith
