// Elementwise, two elements a thread through one access.
//   Against `scalar`: half the threads and instructions for the same bytes, and one conversion instruction serves a
//   16-bit pair. Still one load in flight. Bound: memory latency.
#include "elementwise/map/rows.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;
constexpr int kWidth = 2;

template <class Map, class T>
__global__ void map_x2_kernel(const Rows<Map, T> view) {
  const int64_t group = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (group >= view.groups) return;
  const Position at = locate<kWidth>(view, group);
  if (at.col + kWidth > view.cols) return finish_row(view, at);
  Vec<T, kWidth> in[Map::inputs], out[Map::outputs];
  load_inputs<Map, kWidth, Cache::normal>(in, view, at);
  compute<Map>(out, in, view.parameter);
  store_outputs<Map, kWidth, Cache::normal>(view, at, out);
}

const char* takes(const MapArgs& a) { return needs_width(a, kWidth); }

void launch(const MapArgs& a, cudaStream_t stream) {
  visit_map(a, [&]<class Map, class T>() {
    const auto view = make_rows<Map, T>(a, kWidth);
    const dim3 grid(static_cast<unsigned>(ceil_div(view.groups, kThreads)));
    warpsmith::launch<&map_x2_kernel<Map, T>>({grid, kThreads}, stream, view);
  });
}

const Register<MapArgs> registered{"x2", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
