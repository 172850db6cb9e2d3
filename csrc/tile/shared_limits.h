// The shared memory that a block can have, in bytes, by compute capability.
//   https://docs.nvidia.com/cuda/cuda-c-programming-guide/#compute-capabilities
#pragma once

namespace warpsmith {

inline constexpr int kSharedOfSm80 = 163 << 10, kSharedOfSm89 = 99 << 10, kSharedOfSm90 = 227 << 10;

// Whether a GPU's blocks have no more than 99 KB of shared memory, and its multiprocessors 100 KB.
constexpr bool has_little_shared_memory(int sm) { return sm == 86 || sm == 89 || sm >= 120; }

}  // namespace warpsmith
