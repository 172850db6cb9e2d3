// Counters by which the block that is the last to leave its piece of a row knows that it is. A launch has a range of them,
// which must be zero when it starts, and which it leaves at zero:
//   - launches on one stream run one after another: a stream keeps its range;
//   - a captured launch runs whenever its graph does: it gets a range for good, while there are any.
// A launch without a range, and one with more pieces than a range has counters, clears its own in the workspace first.
#pragma once

#include <cuda_runtime.h>

#include <mutex>
#include <unordered_map>

#include "attention/kv_cache/split.h"
#include "device/ptx/memory.h"
#include "host/launch.h"

namespace warpsmith {

inline constexpr int kTicketRanges = 512;
inline constexpr int kNoRange = -1;

inline int ticket_range(cudaStream_t stream) {
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
  if (taken == kTicketRanges) return kNoRange;
  if (!captured) of_stream.emplace(id, taken);
  return taken++;
}

namespace {

// One array per rung and device, 2 MB that no file holds.
__device__ unsigned tickets[kTicketRanges * kTicketsOfLaunch];

}  // namespace
}  // namespace warpsmith
