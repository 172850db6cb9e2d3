// device/ptx/mma_formats.h without PTX: as two products of values in f16, which holds those of both formats.
#pragma once

#include "ptx.h"

namespace warpsmith::ptx {

// The low or the high pair of values of each word.
template <int n>
void widen_pairs(uint32_t (&to)[n], const uint32_t (&words)[n], bool high, __nv_fp8_interpretation_t format) {
  for (int i = 0; i < n; ++i) to[i] = half2_from_fp8x2(static_cast<uint16_t>(words[i] >> (high ? 16 : 0)), format);
}

inline void mma_of_formats(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                           __nv_fp8_interpretation_t of_a, __nv_fp8_interpretation_t of_b) {
  std::array<double, 4> sums{};
  for (const bool high : {false, true}) {
    uint32_t wide_a[4], wide_b[2];
    widen_pairs(wide_a, a, high, of_a);
    widen_pairs(wide_b, b, high, of_b);
    const auto of_pairs = emu::products<f16>(wide_a, wide_b);
    for (int i = 0; i < 4; ++i) sums[i] += of_pairs[i];
  }
  for (int i = 0; i < 4; ++i) d[i] = static_cast<float>(d[i] + sums[i]);
}

inline void mma_m16n8k32_e4m3_e5m2(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  mma_of_formats(d, a, b, __NV_E4M3, __NV_E5M2);
}

inline void mma_m16n8k32_e5m2_e4m3(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  mma_of_formats(d, a, b, __NV_E5M2, __NV_E4M3);
}

}  // namespace warpsmith::ptx
