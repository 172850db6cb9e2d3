// The tiles of `wgmma`, for one dtype and number of bits.
#pragma once

#include "gemm/quantized_linear/wgmma.cuh"

namespace warpsmith {

template <class T, int bits>
void launch_quantized_wgmma(const QuantizedLinearArgs& a, cudaStream_t stream) {
  const WgmmaTile tile = wgmma_tile(a.m, a.n, a.k, a.sm_count);
  const auto run = [&]<int bm>() {
    if (a.groups > 1 && a.group < kWgmmaDepth) {
      launch_quantized_wgmma_tile<QuantizedWgmma<T, bits, bm, true>>(a, tile.split, stream);
    } else if (bm == 16 || tile.split.count > 1 || a.n <= kQuantizedTileN) {
      launch_quantized_wgmma_tile<QuantizedWgmma<T, bits, bm, false>>(a, tile.split, stream);
    } else if constexpr (bm > 16) {
      launch_quantized_wgmma_tile<QuantizedWgmma<T, bits, bm, false, 2>>(a, tile.split, stream);
    }
  };
  switch (tile.bm) {
    case 16:
      return run.template operator()<16>();
    case 32:
      return run.template operator()<32>();
    case 64:
      return run.template operator()<64>();
    default:
      return run.template operator()<128>();
  }
}

}  // namespace warpsmith
