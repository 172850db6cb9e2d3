// Linear layer of packed weights on the tensor cores.
//   Against `naive`: a word of codes becomes a fragment by a few logical instructions, and weights stream through a ring of
//   asynchronous copies. Bound: the bytes of the weights for few rows of x, mma.sync for many.
//   The order of weights after Frantar et al. 2024, "MARLIN", https://arxiv.org/abs/2408.11743; the conversion after Kim et
//   al. 2022, "Who Says Elephants Can't Run", https://arxiv.org/abs/2211.10017
#include "gemm/quantized_linear/mma.cuh"

#include "host/registry.h"

namespace warpsmith {
namespace {

const char* takes(const QuantizedLinearArgs& a) {
  if (a.dtype == Dtype::f32) return "takes f16 and bf16";
  if (!tiles_rows(a.x, a.m, a.k, a.x_stride, a.dtype, 8)) return "needs rows of x in packs of 16 bytes";
  if (a.n % 8 != 0) return "needs n in packs of 8";
  const bool aligned = is_aligned(a.words, 16) && is_aligned(a.scales, 16) && is_aligned(a.zeros, 8);
  if (!aligned) return "needs weight, scales and zeros aligned to 16 bytes";
  const int64_t tiles = ceil_div(a.m, quantized_tile_m(a.m)) * ceil_div(a.n, kQuantizedTileN);
  return tiles * kMostSlices <= kMostRows ? nullptr : "needs less than 2^27 tiles";
}

void launch(const QuantizedLinearArgs& a, cudaStream_t stream) {
  const auto run = [&]<class T>() {
    a.bits == 4 ? launch_quantized_mma<T, 4>(a, stream) : launch_quantized_mma<T, 8>(a, stream);
  };
  a.dtype == Dtype::f16 ? run.template operator()<f16>() : run.template operator()<bf16>();
  if (const int slices = quantized_split(a).count; slices > 1) sum_quantized_slices(a, slices, stream);
}

const Register<QuantizedLinearArgs> registered{"mma", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
