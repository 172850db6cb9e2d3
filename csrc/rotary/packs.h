// Whether heads and tables can be read a pack at a time.
#pragma once

#include <cstdint>

#include "rotary/rotary.h"

namespace warpsmith {

inline bool in_packs(const void* data, int64_t batch, int64_t token, int64_t head, int width, int size) {
  return reinterpret_cast<uintptr_t>(data) % (width * size) == 0 && batch % width == 0 && token % width == 0 &&
         head % width == 0;
}

// An access brings the angles of half a pack of heads of `dtype`.
inline const char* needs_table_packs(const RotaryAngles& angles, Dtype dtype) {
  if (angles.cos.data == nullptr || angles.axes != nullptr) return nullptr;
  const int width = 8 / size_of(dtype), size = size_of(angles.table_dtype);
  const bool packs = in_packs(angles.cos.data, angles.cos.batch, angles.cos.row, 0, width, size) &&
                     in_packs(angles.sin.data, angles.sin.batch, angles.sin.row, 0, width, size);
  return packs ? nullptr : "needs cos and sin aligned to the angles of half a pack";
}

}  // namespace warpsmith
