// Counters by which the block that is the last to leave its piece of a row knows that it is (host/ticket_range.h). A launch
// without a range, and one with more pieces than a range has counters, clears its own in the workspace first.
#pragma once

#include "attention/kv_cache/split.h"
#include "device/ptx/memory.h"
#include "host/ticket_range.h"

namespace warpsmith {

inline constexpr int kTicketRanges = 512;

namespace {

// One array per rung and device, 2 MB that no file holds.
__device__ unsigned tickets[kTicketRanges * kTicketsOfLaunch];

}  // namespace
}  // namespace warpsmith
