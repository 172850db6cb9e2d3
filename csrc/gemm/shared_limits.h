// The shared memory that a block can have, in bytes, by compute capability.
//   https://docs.nvidia.com/cuda/cuda-c-programming-guide/#compute-capabilities
#pragma once

namespace warpsmith {

inline constexpr int kSharedOfSm80 = 163 << 10, kSharedOfSm89 = 99 << 10, kSharedOfSm90 = 227 << 10;

}  // namespace warpsmith
