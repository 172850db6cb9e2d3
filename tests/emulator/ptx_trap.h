// device/ptx/trap.h: fails in the same words.
#pragma once

#include "ptx.h"

namespace warpsmith::ptx {

[[noreturn]] inline void trap_with(const char* message) { emu::fail(message); }

}  // namespace warpsmith::ptx
