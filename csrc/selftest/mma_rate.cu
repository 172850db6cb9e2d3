// What mma.sync can do at best: products of operands in registers, nothing else in the loop.
//   Eight or sixteen independent sums a warp, sixteen warps a multiprocessor; the operands are random, since the power
//   that they draw sets the clock. `benchmarks/mma_peak.py` holds the climb's rungs against these rates.
#include <algorithm>
#include <type_traits>

#include "device/ptx/mma.h"
#include "selftest/selftest.h"

namespace warpsmith::selftest {
namespace {

constexpr int kThreads = 256, kBlocksPerSm = 2, kRows = 4;

template <class T, class Acc>
struct Halves {
  static constexpr int k = 16, columns = 4, sums = std::is_same_v<Acc, float> ? 4 : 2;
  using Sum = std::conditional_t<std::is_same_v<Acc, float>, float, uint32_t>;
  static constexpr uint32_t mask = 0x83ff83ffu;  // sign and mantissa: values from 1 to 2 with either sign
  static constexpr uint32_t exponents = std::is_same_v<T, f16> ? 0x3c003c00u : 0x3f803f80u;
  __device__ static void add(Sum (&d)[sums], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    if constexpr (std::is_same_v<Acc, float>) {
      ptx::mma_m16n8k16<T>(d, a, b);
    } else {
      ptx::mma_m16n8k16_f16(d, a, b);
    }
  }
};

struct Tf32 {
  static constexpr int k = 8, columns = 4, sums = 4;
  using Sum = float;
  static constexpr uint32_t mask = 0x807fe000u, exponents = 0x3f800000u;
  __device__ static void add(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    ptx::mma_m16n8k8_tf32(d, a, b);
  }
};

struct Bytes {
  static constexpr int k = 32, columns = 4, sums = 4;
  using Sum = int32_t;
  static constexpr uint32_t mask = 0xffffffffu, exponents = 0;
  __device__ static void add(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    ptx::mma_m16n8k32_s8(d, a, b);
  }
};

struct Fp8 {
  static constexpr int k = 32, columns = 2, sums = 4;  // sm_90 has halves to keep as well
  using Sum = float;
  static constexpr uint32_t mask = 0x87878787u, exponents = 0x38383838u;
  __device__ static void add(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    ptx::mma_m16n8k32_e4m3(d, a, b);
  }
};

// SplitMix-like: every lane and register its own bits.
__device__ __forceinline__ uint32_t scramble(uint32_t x) {
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return x ^ x >> 16;
}

template <class Product>
__global__ void __launch_bounds__(kThreads) mma_rate_kernel(int iterations, uint32_t* sink) {
  const uint32_t seed = (blockIdx.x * kThreads + threadIdx.x) * 32;
  const auto operand = [&](int i) { return (scramble(seed + i) & Product::mask) | Product::exponents; };
  constexpr int kColumns = Product::columns;
  uint32_t a[kRows][4], b[kColumns][2];
  typename Product::Sum sums[kRows][kColumns][Product::sums] = {};
#pragma unroll
  for (int i = 0; i < kRows * 4; ++i) a[i / 4][i % 4] = operand(i);
#pragma unroll
  for (int i = 0; i < kColumns * 2; ++i) b[i / 2][i % 2] = operand(16 + i);

  // Not unrolled: sm_90 computes products of e4m3 apart from their sums, and once for all neighbouring steps.
#pragma unroll 1
  for (int step = 0; step < iterations; ++step) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) Product::add(sums[i][j], a[i], b[j]);
    }
  }

  uint32_t all = 0;  // every sum is used
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
#pragma unroll
      for (int s = 0; s < Product::sums; ++s) all ^= *reinterpret_cast<const uint32_t*>(&sums[i][j][s]);
    }
  }
  if (all == 0x9e3779b9u) *sink = all;
}

class Event {
 public:
  Event() { check_cuda(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record() { check_cuda(cudaEventRecord(event_, kStream), "cudaEventRecord"); }
  float ms_since(const Event& start) {
    float ms = 0.0f;
    check_cuda(cudaEventSynchronize(event_), "cudaEventSynchronize");
    check_cuda(cudaEventElapsedTime(&ms, start.event_, event_), "cudaEventElapsedTime");
    return ms;
  }

 private:
  cudaEvent_t event_;
};

// Operations a second: the median of runs that are long enough for clocks to settle.
template <class Product>
double rate() {
  constexpr int kRuns = 9, kIterations = 20000;
  const int blocks = kBlocksPerSm * device_info(current_device()).sm_count;
  DeviceArray<uint32_t> sink(1);
  Event start, stop;
  std::vector<float> times;
  for (int run = 0; run < kRuns; ++run) {
    start.record();
    launch<&mma_rate_kernel<Product>>({static_cast<unsigned>(blocks), kThreads}, kStream, kIterations, sink.data());
    stop.record();
    times.push_back(stop.ms_since(start));
  }
  std::sort(times.begin(), times.end());
  const double products = double{kIterations} * kRows * Product::columns * blocks * (kThreads / 32);
  return products * 2 * 16 * 8 * Product::k / (times[kRuns / 2] * 1e-3);
}

double fp8_rate() {
  constexpr int kFp8Sm = 89;
  return device_info(current_device()).sm < kFp8Sm ? 0.0 : rate<Fp8>();
}

const MeasurementEntry f16_f32{"mma_f16_f32", rate<Halves<f16, float>>};
const MeasurementEntry bf16_f32{"mma_bf16_f32", rate<Halves<bf16, float>>};
const MeasurementEntry f16_f16{"mma_f16_f16", rate<Halves<f16, f16>>};
const MeasurementEntry tf32{"mma_tf32", rate<Tf32>};
const MeasurementEntry s8{"mma_s8", rate<Bytes>};
const MeasurementEntry e4m3_rate{"mma_e4m3", fp8_rate};

}  // namespace
}  // namespace warpsmith::selftest
