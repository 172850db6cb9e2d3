// Elementwise, 16 bytes a thread as separate loads of one element.
//   Against `x2`: several independent loads in flight per thread, a block apart so that each one coalesces, and no
//   demand on alignment: the rung that serves views such as x[1:]. Bound: instructions per byte in narrow types.
#include "elementwise/map/rows.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;

template <class Map, class T>
__global__ void map_unroll_kernel(const Rows<Map, T> view) {
  constexpr int kLoads = kPack<T>;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kThreads * kLoads) + threadIdx.x;
  Vec<T, 1> in[kLoads][Map::inputs];

  // load
#pragma unroll
  for (int j = 0; j < kLoads; ++j) {
    const int64_t group = first + j * kThreads;
    if (group < view.groups) load_inputs<Map, 1, Cache::normal>(in[j], view, locate<1>(view, group));
  }
  // compute, write
#pragma unroll
  for (int j = 0; j < kLoads; ++j) {
    const int64_t group = first + j * kThreads;
    if (group < view.groups) {
      Vec<T, 1> out[Map::outputs];
      compute<Map>(out, in[j], view.parameter);
      store_outputs<Map, 1, Cache::normal>(view, locate<1>(view, group), out);
    }
  }
}

void launch(const MapArgs& a, cudaStream_t stream) {
  visit_map(a, [&]<class Map, class T>() {
    const auto view = make_rows<Map, T>(a, 1);
    const dim3 grid(static_cast<unsigned>(ceil_div(view.groups, kThreads * kPack<T>)));
    warpsmith::launch<&map_unroll_kernel<Map, T>>({grid, kThreads}, stream, view);
  });
}

const Register<MapArgs> registered{"unroll", /*min_sm=*/80, needs_rows, launch};

}  // namespace
}  // namespace warpsmith
