// The tiles of `mma`, for one dtype and number of bits.
#pragma once

#include "gemm/quantized_linear/mma.cuh"

namespace warpsmith {

template <class T, int bits>
void launch_quantized_mma(const QuantizedLinearArgs& a, cudaStream_t stream) {
  switch (quantized_tile_m(a.m)) {
    case 16:
      return launch_quantized_tile<QuantizedTile<T, bits, 16, 6>>(a, stream);
    case 32:
      return launch_quantized_tile<QuantizedTile<T, bits, 32, 5>>(a, stream);
    case 64:
      return launch_quantized_tile<QuantizedTile<T, bits, 64, 4>>(a, stream);
    default:
      return launch_quantized_tile<QuantizedTile<T, bits, 128, 4>>(a, stream);
  }
}

}  // namespace warpsmith
