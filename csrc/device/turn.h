// Sine and cosine of an angle that is counted in turns, as a fraction of 64 bits.
//   A multiple of such an angle by any integer is as exact as the angle itself: the product wraps where the circle does. In
//   f32, position 10^6 of a sequence would have no digit left behind the point.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace warpsmith {

// Of 2 pi turn / 2^64, each within 0.75 ulp of its own size. The polynomials are interpolations at Chebyshev nodes of
// sin(pi u) / u and cos(pi u) on [0, 1/4]: truncation leaves less than 2^-32 of them.
__device__ __forceinline__ void sine_and_cosine(float& sine, float& cosine, uint64_t turn) {
  const auto quadrant = static_cast<uint32_t>((turn + (uint64_t{1} << 61)) >> 62);  // the nearest quarter
  const auto rest = static_cast<int64_t>(turn - (uint64_t{quadrant} << 62));        // within an eighth of it
  // u + v half turns, of which v is what u is rounded by
  constexpr float kHalfTurn = 0x1p-63f;
  const auto upper = static_cast<float>(rest);
  const float u = upper * kHalfTurn, v = static_cast<float>(rest - static_cast<int64_t>(upper)) * kHalfTurn;
  const float s = u * u, s_rest = fmaf(u, u, -s) + 2.0f * u * v;

  // 1 - square + ..., of which the difference is rounded and what it lost comes back
  constexpr float kSquare = 0x1.3bd3ccp+2f, kSquareRest = 0x1.313d3p-23f;
  float of_cosine = fmaf(s, 0x1.db6492p-3f, -0x1.55cb98p+0f);
  of_cosine = fmaf(s, of_cosine, 0x1.03c1eap+2f);
  of_cosine = fmaf(s, of_cosine, -kSquareRest);
  const float square = s * kSquare, square_rest = fmaf(s, kSquare, -square) + s_rest * kSquare;
  const float most = 1.0f - square, lost = (1.0f - most) - square;
  const float near_cosine = most + (fmaf(s, of_cosine, -square_rest) + lost);

  constexpr float kPi = 0x1.921fb6p+1f, kPiRest = -0x1.777a5cp-24f;
  float of_sine = fmaf(s, 0x1.4cb762p-4f, -0x1.32ce1ep-1f);
  of_sine = fmaf(s, of_sine, 0x1.466bc2p+1f);
  of_sine = fmaf(s, of_sine, -0x1.4abbcep+2f);
  const float small = fmaf(u, fmaf(s, of_sine, kPiRest), v * kPi * near_cosine);
  const float near_sine = fmaf(u, kPi, small);

  const bool odd = (quadrant & 1) != 0;
  const float across = odd ? near_cosine : near_sine, along = odd ? near_sine : near_cosine;
  sine = (quadrant & 2) != 0 ? -across : across;
  cosine = ((quadrant + 1) & 2) != 0 ? -along : along;
}

}  // namespace warpsmith
