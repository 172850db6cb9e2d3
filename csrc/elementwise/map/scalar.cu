// Elementwise, the plain way: one element a thread.
//   Neighbouring threads touch neighbouring elements, so accesses coalesce; but each thread keeps a single small load in
//   flight and spends more instructions on its index than on its element. Bound: memory latency.
#include "elementwise/map/rows.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;

template <class Map, class T>
__global__ void map_scalar_kernel(const Rows<Map, T> view) {
  const int64_t group = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (group >= view.groups) return;
  const Position at = locate<1>(view, group);
  Vec<T, 1> in[Map::inputs], out[Map::outputs];
  load_inputs<Map, 1, Cache::normal>(in, view, at);
  compute<Map>(out, in, view.parameter);
  store_outputs<Map, 1, Cache::normal>(view, at, out);
}

void launch(const MapArgs& a, cudaStream_t stream) {
  visit_map(a, [&]<class Map, class T>() {
    const auto view = make_rows<Map, T>(a, 1);
    const dim3 grid(static_cast<unsigned>(ceil_div(view.groups, kThreads)));
    warpsmith::launch<&map_scalar_kernel<Map, T>>({grid, kThreads}, stream, view);
  });
}

const Register<MapArgs> registered{"scalar", /*min_sm=*/80, needs_rows, launch};

}  // namespace
}  // namespace warpsmith
