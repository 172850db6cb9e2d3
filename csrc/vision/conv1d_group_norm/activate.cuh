// The activation behind a group norm, chosen when the kernel runs: all of a grid takes the same.
#pragma once

#include <type_traits>

#include "device/activations.h"
#include "vision/conv1d_group_norm/conv1d_group_norm.h"

namespace warpsmith {

template <class T>
__device__ __forceinline__ float activate(Conv1dActivation function, float z) {
  constexpr bool kExact = std::is_same_v<T, float>;
  if (function == Conv1dActivation::mish) return Mish::forward<kExact>(z, 0.0f);
  if (function == Conv1dActivation::silu) return Silu::forward<kExact>(z, 0.0f);
  return z;
}

}  // namespace warpsmith
