// device/ptx/warpgroup.h without PTX.
#pragma once

#include "background.h"
#include "ptx.h"

namespace warpsmith::ptx {

inline bool elect_lane() {
  emu::exchange('\0');
  return emu::lane() == 0;
}

inline void arrive_warps(int barrier, int threads) { emu::arrive_some(barrier, threads); }

template <int registers>
void lower_registers() {
  static_assert(registers == 0 || (registers % 8 == 0 && registers >= 24 && registers <= 256));
}
template <int registers>
void raise_registers() {
  static_assert(registers == 0 || (registers % 8 == 0 && registers >= 24 && registers <= 256));
}

}  // namespace warpsmith::ptx
