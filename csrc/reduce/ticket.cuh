// Tickets, by which the last block of a launch knows that it is the last: it draws the highest number.
//
// A ticket must be zero when a launch starts, and clearing one takes a command of its own, which would cost a short sum
// a good part of its time. So tickets lie in device memory that is zero when the library is loaded, and every launch
// leaves its own at zero. What must not happen is that two launches draw from one ticket at the same time:
//   - launches on one stream run one after another: a stream keeps its ticket;
//   - a captured launch runs whenever its graph does, on any stream: it gets a ticket of its own, for good.
// Once the tickets are used up, a launch clears one in its workspace first.
#pragma once

#include <cuda_runtime.h>

#include <mutex>
#include <unordered_map>

#include "device/ptx/memory.h"
#include "host/launch.h"

namespace warpsmith {

inline constexpr int kTickets = 1 << 14;
inline constexpr int kNoTicket = -1;

// Which ticket a launch on `stream` draws from; kNoTicket where none is left.
inline int ticket_for(cudaStream_t stream) {
  static std::mutex mutex;
  static std::unordered_map<unsigned long long, int> of_stream;  // by an id that no later stream gets again
  static int taken = 0;
  cudaStreamCaptureStatus status;
  unsigned long long id = 0;
  check_cuda(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");
  const bool captured = status != cudaStreamCaptureStatusNone;
  if (!captured) check_cuda(cudaStreamGetId(stream, &id), "cudaStreamGetId");

  const std::lock_guard lock(mutex);
  if (!captured) {
    if (const auto known = of_stream.find(id); known != of_stream.end()) return known->second;
  }
  if (taken == kTickets) return kNoTicket;
  if (!captured) of_stream.emplace(id, taken);
  return taken++;
}

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
