// Elementwise, one 128-bit access a thread.
//   Against `unroll`: the same 16 bytes by one load and one store instead of four to sixteen of each, so the memory
//   system sees the fewest, widest requests. Bound: memory latency, with one request in flight per thread.
#include "elementwise/map/rows.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;

template <class Map, class T>
__global__ void map_pack_kernel(const Rows<Map, T> view) {
  constexpr int kWidth = kPack<T>;
  const int64_t group = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (group >= view.groups) return;
  const Position at = locate<kWidth>(view, group);
  if (at.col + kWidth > view.cols) return finish_row(view, at);
  Pack<T> in[Map::inputs], out[Map::outputs];
  load_inputs<Map, kWidth, Cache::normal>(in, view, at);
  compute<Map>(out, in, view.parameter);
  store_outputs<Map, kWidth, Cache::normal>(view, at, out);
}

void launch(const MapArgs& a, cudaStream_t stream) {
  visit_map(a, [&]<class Map, class T>() {
    const auto view = make_rows<Map, T>(a, kPack<T>);
    const dim3 grid(static_cast<unsigned>(ceil_div(view.groups, kThreads)));
    warpsmith::launch<&map_pack_kernel<Map, T>>({grid, kThreads}, stream, view);
  });
}

const Register<MapArgs> registered{"pack", /*min_sm=*/80, needs_packs, launch};

}  // namespace
}  // namespace warpsmith
