// The tiles of `wgmma`, for one dtype and number of bits.
#pragma once

#include "gemm/quantized_linear/wgmma.cuh"

namespace warpsmith {

template <class T, int bits>
void launch_quantized_wgmma(const QuantizedLinearArgs& a, cudaStream_t stream) {
  const auto run = [&]<int bm>() {
    if (a.groups > 1 && a.group == 32) {
      launch_quantized_wgmma_tile<QuantizedWgmma<T, bits, bm, true>>(a, stream);
    } else {
      launch_quantized_wgmma_tile<QuantizedWgmma<T, bits, bm, false>>(a, stream);
    }
  };
  wgmma_tile_m(a.m) == 64 ? run.template operator()<64>() : run.template operator()<128>();
}

}  // namespace warpsmith
