// Counters in device memory by which blocks of a launch know that they are the last to come. They must be zero when a launch
// starts, and clearing them takes a command of its own, which would cost a short kernel a good part of its time. So they lie
// in memory that is zero when the library is loaded, in ranges, and every launch leaves its own range at zero. What must not
// happen is that two launches count in one range at the same time:
//   - launches on one stream run one after another: a stream keeps its range;
//   - a captured launch runs whenever its graph does, on any stream: it gets a range of its own, for good.
// Where ranges are used up, a launch does without.
#pragma once

#include <cuda_runtime.h>

#include <mutex>
#include <unordered_map>

#include "host/launch.h"

namespace warpsmith {

inline constexpr int kNoRange = -1;

// Which of `count` ranges a launch on `stream` has; kNoRange where none is left.
inline int ticket_range(cudaStream_t stream, int count) {
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
  if (taken >= count) return kNoRange;
  if (!captured) of_stream.emplace(id, taken);
  return taken++;
}

}  // namespace warpsmith
