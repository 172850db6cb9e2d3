// How sums stay finite wherever the mean that is made from them is.
#pragma once

namespace warpsmith {

// What each value is multiplied with on its way into a sum from which a mean is made, lest the sum leave the range where
// the mean does not. A power of two changes no digit; what it makes subnormal has a variance of 0.
inline constexpr float kMeanShare = 0x1p-24f;

}  // namespace warpsmith
