// Linear layer of packed weights by wgmma.
//   Against `mma`: the copy engine fills the ring, and wgmma multiplies at up to twice the rate of mma.sync, with weights
//   from registers and x as its second operand. Bound: the tensor cores for many rows, the bytes of the weights for few.
#include "gemm/quantized_linear/wgmma.cuh"

#include "host/registry.h"

namespace warpsmith {
namespace {

const char* takes(const QuantizedLinearArgs& a) {
  if (a.sm != 90) return "needs sm_90, the only one with wgmma";
  if (a.dtype == Dtype::f32) return "takes f16 and bf16";
  if (a.k == 0) return "needs values along k";
  if (!can_map(a.x, a.m, a.k, a.x_stride, 2)) return "needs rows of x in packs of 16 bytes that do not overlap";
  if (a.n % 16 != 0) return "needs n in packs of 16";
  const bool aligned = is_aligned(a.words, 16) && is_aligned(a.scales, 16) && is_aligned(a.zeros, 16);
  if (!aligned) return "needs weight, scales and zeros aligned to 16 bytes";
  const int64_t tiles = ceil_div(a.m, least_wgmma_tile_m(a.m)) * ceil_div(a.n, kQuantizedTileN);
  return tiles * kMostSlices <= kMostRows ? nullptr : "needs less than 2^27 tiles";
}

void launch(const QuantizedLinearArgs& a, cudaStream_t stream) {
  const auto run = [&]<class T>() {
    a.bits == 4 ? launch_quantized_wgmma<T, 4>(a, stream) : launch_quantized_wgmma<T, 8>(a, stream);
  };
  a.dtype == Dtype::f16 ? run.template operator()<f16>() : run.template operator()<bf16>();
  const int slices = wgmma_tile(a.m, a.n, a.k, a.sm_count).split.count;
  if (slices > 1) sum_quantized_slices(a, slices, stream);
}

// Few rows of many values each: `mma` was measured to be faster.
bool suits(const QuantizedLinearArgs& a) { return a.m > 32 || a.n >= a.k; }

const Register<QuantizedLinearArgs> registered{"wgmma", /*min_sm=*/90, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
