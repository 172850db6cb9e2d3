// One fault for each of compute-sanitizer's tools, as small as the tool has to see it.
#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

constexpr int kThreads = 64;

// memcheck: a value beyond the end of an allocation is read.
__global__ void read_beyond_kernel(float* values, const int count) { values[0] = values[count]; }

// initcheck: a value that nobody has written is read.
__global__ void read_unwritten_kernel(float* values, const int count) { values[0] = values[count - 1] + 1.0f; }

// racecheck: what another warp writes to shared memory is read without a barrier between.
__global__ void race_kernel(float* values) {
  __shared__ float slots[kThreads];
  slots[threadIdx.x] = static_cast<float>(threadIdx.x);
  values[threadIdx.x] = slots[kThreads - 1 - threadIdx.x];
}

void wait() { check_cuda(cudaStreamSynchronize(kStream), "a fault"); }

void read_beyond(float* values, int count) {
  warpsmith::launch<&read_beyond_kernel>({1, 1}, kStream, values, count);
  wait();
}

void read_unwritten(float* values, int count) {
  warpsmith::launch<&read_unwritten_kernel>({1, 1}, kStream, values, count);
  wait();
}

void race(float* values, int) {
  warpsmith::launch<&race_kernel>({1, kThreads}, kStream, values);
  wait();
}

const FaultEntry beyond{"memcheck", read_beyond}, unwritten{"initcheck", read_unwritten}, racing{"racecheck", race};

}  // namespace
}  // namespace warpsmith::selftest
