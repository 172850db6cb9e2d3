// device/ptx/logic.h without PTX.
#pragma once

#include "ptx.h"

namespace warpsmith::ptx {

inline uint32_t and_or(uint32_t word, uint32_t mask, uint32_t bits) { return (word & mask) | bits; }
inline uint32_t and_xor(uint32_t word, uint32_t mask, uint32_t bits) { return (word & mask) ^ bits; }

}  // namespace warpsmith::ptx
