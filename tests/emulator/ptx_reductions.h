// device/ptx/reductions.h without PTX.
#pragma once

#include "ptx.h"

namespace warpsmith::ptx {

inline uint32_t load_acquire(const uint32_t* from) {
  return std::atomic_ref<uint32_t>(*const_cast<uint32_t*>(from)).load();
}
inline void add_release(uint32_t* word, uint32_t by) { std::atomic_ref<uint32_t>(*word).fetch_add(by); }
inline void add_x4(float* to, const float (&by)[4]) {
  emu::check_aligned(to, 16, "an addition");
  for (int i = 0; i < 4; ++i) std::atomic_ref<float>(to[i]).fetch_add(by[i]);
}

}  // namespace warpsmith::ptx
