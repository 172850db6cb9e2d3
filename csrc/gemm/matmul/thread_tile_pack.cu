// Matrix product of 16-bit operands, a thread per 8 x 8 values, four values a load.
//   Against `thread_tile`: four values come in one load of 8 bytes, not in two of 4, and two of these make a slice of 16 k,
//   which halves the barriers. Sums in f16 take a value of a from half a register.
//   Bound: barriers, and registers: a thread holds several k of its eight rows.
#include "gemm/gemm.h"
#include "gemm/thread_tile_rows.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

void launch(const GemmArgs& p, cudaStream_t stream) {
  visit_16_bit_types(p, [&]<class T, class Acc>() { launch_row_tiles<T, Acc, VectorLoad<8, 4>>(p, stream); });
}

const char* takes(const GemmArgs& p) {
  if (const char* reason = needs_16_bits(p)) return reason;
  if (const char* reason = needs_plain(p)) return reason;
  if (const char* reason = needs_row_major(p)) return reason;
  return needs_packs_8(p);
}

const Register<GemmArgs> registered{"thread_tile_pack", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
