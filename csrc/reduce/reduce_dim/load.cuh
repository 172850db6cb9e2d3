// A pack of values of a row that begins at 16 bytes, or anywhere.
#pragma once

#include "device/vec.h"

namespace warpsmith {

// Aligned: std::true_type where every row starts at 16 bytes.
template <class Aligned, class T>
__device__ __forceinline__ void load_pack(Pack<T>& to, const T* from) {
  if constexpr (Aligned::value) {
    load<Cache::streaming>(to, from);
  } else {
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) to[i] = from[i];
  }
}

}  // namespace warpsmith
