// RMS norm, the row held in registers.
//   Against `pack`: x is read once. A thread holds no more packs than keep a multiprocessor full of blocks, so that rows
//   that read overlap rows that write; short rows share a warp, and the commonest lengths have a kernel that tests and
//   pads nothing. Blocks take their places while the kernel before ends. Bound: DRAM, until one row fills a multiprocessor.
#include "norm/rms_norm/row.cuh"
#include "row/whole.cuh"

namespace warpsmith {
namespace {

// Rows of 256, 512 and 1024 values in 16 bits. Wide weights would not fit beside the row.
struct Filled {
  static constexpr RowTile tiles[] = {{.threads = 128, .lanes = 16, .packs = 2, .min_blocks = 12, .early = true},
                                      {.threads = 128, .lanes = 32, .packs = 2, .min_blocks = 12, .early = true},
                                      {.threads = 128, .lanes = 32, .packs = 4, .min_blocks = 8, .early = true}};
};
using FilledTiles = TilesOf<Filled>;

void launch(const RmsNormArgs& a, cudaStream_t stream) {
  visit_dtypes(a.dtype, a.weight_dtype, [&]<class T, class W>() {
    const RmsNorm<T, W> row(a);
    if constexpr (sizeof(W) == 2) {
      if (launch_whole(row, stream, FilledTiles{})) return;
    }
    launch_row(row, stream, RowTiles{});
  });
}

const char* takes(const RmsNormArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  if (a.accumulator != Dtype::f32) return "accumulates in f32";
  if (a.rows > kMostRows) return "needs at most 2^31 - 1 rows";
  return a.cols * size_of(a.dtype) <= kMostRowBytes ? nullptr : "needs rows of at most 128 KiB";
}

const Register<RmsNormArgs> registered{"registers", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
