// Adding noise, a value to a thread.
//   Bound: the number of accesses.
#include <limits>

#include "device/convert.h"
#include "device/vec.h"
#include "host/launch.h"
#include "host/registry.h"
#include "row/rows.h"
#include "vision/add_noise/add_noise.h"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads)
    add_noise_naive_kernel(const AddNoiseArgs a, const FastDivide sample, const int64_t threads) {
  constexpr int kWidth = 1;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= threads) return;
  const int64_t step = a.t[sample.quotient_as(i)];
  Vec<T, kWidth> x, noise, y;
  load<Cache::streaming>(x, static_cast<const T*>(a.x) + i * kWidth);
  load<Cache::streaming>(noise, static_cast<const T*>(a.noise) + i * kWidth);
  const float unknown = std::numeric_limits<float>::quiet_NaN();
  const float keep = step < 0 ? unknown : a.table[2 * step], add = step < 0 ? unknown : a.table[2 * step + 1];
#pragma unroll
  for (int k = 0; k < kWidth; ++k) y[k] = from_float<T>(fmaf(keep, to_float(x[k]), add * to_float(noise[k])));
  store<Cache::streaming>(static_cast<T*>(a.y) + i * kWidth, y);
}

void launch(const AddNoiseArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    const int64_t accesses = a.inner / 1, threads = a.n * accesses;
    warpsmith::launch<&add_noise_naive_kernel<T>>({static_cast<unsigned>(ceil_div(threads, kThreads)), kThreads},
                                                  stream, a, FastDivide(static_cast<uint64_t>(accesses)), threads);
  });
}

const Register<AddNoiseArgs> registered{"naive", /*min_sm=*/80, takes_any, launch};

}  // namespace
}  // namespace warpsmith
