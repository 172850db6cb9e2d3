// Layer norm, the row held in registers.
//   Against `pack`: x is read once. A thread holds no more packs than leave a multiprocessor several rows, so that rows
//   that read overlap rows that write, but four where the row has as many: merging statistics costs a warp the same
//   however much it has gathered. Short rows share a warp, and the commonest lengths have a kernel that tests and pads
//   nothing. Blocks take their places while the kernel before ends. Bound: DRAM, until one row fills a multiprocessor.
#include "norm/layer_norm/resident.cuh"
#include "row/whole.cuh"

namespace warpsmith {
namespace {

// Rows of 256, 512 and 1024 values in 16 bits, and of 256 in f32, where sixteen blocks leave no registers for weights.
struct FilledByHalves {
  static constexpr RowTile tiles[] = {{.threads = 128, .lanes = 16, .packs = 2, .min_blocks = 12, .early = true},
                                      {.threads = 128, .lanes = 16, .packs = 4, .min_blocks = 8, .early = true},
                                      {.threads = 128, .lanes = 32, .packs = 4, .min_blocks = 8, .early = true}};
};
struct FilledByFloats {
  static constexpr RowTile tiles[] = {{.threads = 128, .lanes = 32, .packs = 2, .min_blocks = 16}};
};
template <class T>
using FilledTiles = TilesOf<std::conditional_t<sizeof(T) == 2, FilledByHalves, FilledByFloats>>;

void launch(const LayerNormArgs& a, cudaStream_t stream) {
  visit_dtypes(a.dtype, a.weight_dtype, [&]<class T, class W>() {
    const LayerNorm<T, W> row(a);
    if (!launch_whole(row, stream, FilledTiles<T>{})) launch_row(row, stream, LayerNormTiles<T, W>{});
  });
}

const char* takes(const LayerNormArgs& a) {
  if (const char* reason = needs_packs(a)) return reason;
  if (a.accumulator != Dtype::f32) return "accumulates in f32";
  if (a.rows > kMostRows) return "needs at most 2^31 - 1 rows";
  return a.cols * size_of(a.dtype) <= kMostRowBytes ? nullptr : "needs rows of at most 128 KiB";
}

const Register<LayerNormArgs> registered{"registers", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
