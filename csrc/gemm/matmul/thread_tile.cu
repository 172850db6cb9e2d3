// Matrix product, a thread per 8 x 8 values, four values a load.
//   Against `block_2d`: a thread reads shared memory 16 bytes at a time, neighbouring columns of b and several k of each row
//   of a, and neighbouring lanes read neighbouring values. 16-bit operands come in pairs and are converted once, when
//   stored to shared memory; the next slice of 8 k is loaded while this one is multiplied.
//   Bound: barriers, two a slice, and registers: a thread holds several k of its eight rows.
#include "gemm/gemm.h"
#include "gemm/thread_tile_rows.cuh"
#include "host/registry.h"

namespace warpsmith {
namespace {

void launch(const GemmArgs& p, cudaStream_t stream) {
  visit_types(p, [&]<class T, class Acc>() {
    launch_row_tiles<T, Acc, VectorLoad<4, sizeof(T) == 4 ? 4 : 2, Left::pairs>>(p, stream);
  });
}

const char* takes(const GemmArgs& p) {
  if (const char* reason = needs_plain(p)) return reason;
  if (const char* reason = needs_row_major(p)) return reason;
  return p.dtype == Dtype::f32 ? needs_packs_16(p) : needs_packs_8(p);
}

const Register<GemmArgs> registered{"thread_tile", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
