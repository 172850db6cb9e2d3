// Rows added up by their indices with atomics, on request: in whichever order, each term rounded to the dtype.
//   Against `sorted`: no index is looked at twice. Of f32, four neighbours go in one instruction (sm_90). Bound:
//   the atomic units of L2, where many terms meet in one row.
#include <type_traits>

#include "device/ptx/reductions.h"
#include "transform/accumulate/runs.cuh"

namespace warpsmith {
namespace {

// Adds four neighbours, aligned to 16 bytes.
__device__ __forceinline__ void add_pack(float* to, const float (&by)[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  ptx::add_x4(to, by);
#else
#pragma unroll
  for (int i = 0; i < 4; ++i) atomicAdd(to + i, by[i]);
#endif
}

template <class T, int width, int together>
__global__ void __launch_bounds__(kRunThreads) accumulate_atomic_kernel(const AccumulateArgs a, const Places places) {
  const int64_t j = blockIdx.x, row = row_of(a, read_index(a.index, j, a.wide));
  if (row < 0) return;
  for (int64_t first = blockIdx.y; first < places.count; first += together * int64_t{gridDim.y}) {
    const SomePlaces<width, together> at(a, places, first);
    Vec<T, width> source[together];
#pragma unroll
    for (int u = 0; u < together; ++u) {
      if (!at.there[u]) continue;
      load(source[u], static_cast<const T*>(a.source) + at.outer[u] * a.source_outer + j * a.source_row + at.column[u]);
    }
#pragma unroll
    for (int u = 0; u < together; ++u) {
      if (!at.there[u]) continue;
      T* y = static_cast<T*>(a.y) + at.outer[u] * a.y_outer + row * a.y_row + at.column[u];
      float wide[width];
      to_float(wide, source[u]);
#pragma unroll
      for (int i = 0; i < width; ++i) wide[i] *= a.alpha;
      if constexpr (width == 1) {
        atomicAdd(y, from_float<T>(wide[0]));
      } else {
        add_pack(y, wide);
      }
    }
  }
}

const char* takes(const AccumulateArgs& a) {
  return unmet({needs_grid_rows(a.count), a.deterministic ? "needs deterministic=False" : nullptr});
}

void launch(const AccumulateArgs& a, cudaStream_t stream) {
  dispatch_float(a.dtype, [&]<class T>() {
    const auto run = [&]<int width>() {
      const Places places(a, width);
      places.dispatch(a, [&]<int together>(const LaunchConfig& config) {
        warpsmith::launch<&accumulate_atomic_kernel<T, width, together>>(config, stream, a, places);
      });
    };
    if constexpr (std::is_same_v<T, float>) {
      if (runs_in_packs(a)) return run.template operator()<kPack<float>>();
    }
    run.template operator()<1>();
  });
}

const Register<AccumulateArgs> registered{"atomic", /*min_sm=*/80, takes, launch, suits_atomics};

}  // namespace
}  // namespace warpsmith
