// For which GPUs the pass of the compiler at hand makes code.
#pragma once

#include "tile/shared_limits.h"

namespace warpsmith {

// The compute capability, 90 for 9.0; 0 in the pass for the host.
#ifdef __CUDA_ARCH__
constexpr int kCompiledSm = __CUDA_ARCH__ / 10;
#else
constexpr int kCompiledSm = 0;
#endif

// How much shared memory a block may have: 227 KB, 163 KB or 99 KB.
enum class Room { large, medium, little };

constexpr Room room_of(int sm) {
  return has_little_shared_memory(sm) ? Room::little : (sm >= 90 ? Room::large : Room::medium);
}

inline constexpr Room kCompiledRoom = room_of(kCompiledSm);

}  // namespace warpsmith
