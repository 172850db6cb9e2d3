// Tickets, by which the last block of a launch knows that it is the last: it draws the highest number. Once the tickets are
// used up (host/ticket_range.h), a launch clears one in its workspace first.
#pragma once

#include "device/ptx/memory.h"
#include "host/ticket_range.h"

namespace warpsmith {

inline constexpr int kTickets = 1 << 14;

// Which ticket a launch on `stream` draws from; kNoRange where none is left.
inline int ticket_for(cudaStream_t stream) { return ticket_range(stream, kTickets); }

namespace {

// One array per rung and device.
__device__ unsigned tickets[kTickets];

}  // namespace

// The next number of `blocks`, counted from 0; the ticket is zero again after the last. What a thread wrote before it
// drew is there for the thread that draws the last number, and for those that it meets at a barrier afterwards.
// Thread-safe over the grid.
__device__ __forceinline__ unsigned draw(unsigned* ticket, unsigned blocks) {
  return ptx::inc_acq_rel(ticket, blocks - 1);
}

}  // namespace warpsmith
