// Elementwise over any strides: transposed, expanded, sliced and broadcast operands, read where they lie.
//   Every element finds its own offsets, one division by a constant per dimension; neighbouring dimensions that every
//   operand walks alike have been merged on the host. Bound: the layout: coalesced only where the operands agree.
#include "elementwise/map/rows.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;
constexpr int kLoads = 4;

template <class Map, class T>
struct Strided {
  static constexpr int operands = Map::outputs + Map::inputs;
  T* data[operands];
  int rank;
  FastDivide sizes[kMaxRank];  // innermost first
  int64_t strides[kMaxRank][operands];
  int64_t elements;
  float parameter;
};

template <class Map, class T>
__device__ __forceinline__ void offsets_of(int64_t (&offset)[Strided<Map, T>::operands], const Strided<Map, T>& view,
                                           int64_t element) {
#pragma unroll
  for (int k = 0; k < view.operands; ++k) offset[k] = 0;
#pragma unroll
  for (int d = 0; d < kMaxRank; ++d) {
    if (d == view.rank) break;
    const int64_t rest = view.sizes[d].quotient(element);
    const int64_t coordinate = element - rest * static_cast<int64_t>(view.sizes[d].divisor);
#pragma unroll
    for (int k = 0; k < view.operands; ++k) offset[k] += coordinate * view.strides[d][k];
    element = rest;
  }
}

template <class Map, class T>
__global__ void map_strided_kernel(const Strided<Map, T> view) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kThreads * kLoads) + threadIdx.x;
  Vec<T, 1> in[kLoads][Map::inputs];
  int64_t offset[kLoads][Strided<Map, T>::operands];

  // load
#pragma unroll
  for (int j = 0; j < kLoads; ++j) {
    const int64_t element = first + j * kThreads;
    if (element >= view.elements) break;
    offsets_of(offset[j], view, element);
#pragma unroll
    for (int k = 0; k < Map::inputs; ++k) load(in[j][k], view.data[Map::outputs + k] + offset[j][Map::outputs + k]);
  }
  // compute, write
#pragma unroll
  for (int j = 0; j < kLoads; ++j) {
    if (first + j * kThreads >= view.elements) break;
    Vec<T, 1> out[Map::outputs];
    compute<Map>(out, in[j], view.parameter);
#pragma unroll
    for (int k = 0; k < Map::outputs; ++k) store(view.data[k] + offset[j][k], out[k]);
  }
}

const char* takes(const MapArgs& a) {
  return a.rank <= kMaxRank ? nullptr : "needs at most 8 dimensions after merging";
}

bool suits(const MapArgs& a) { return !a.is_rows; }

void launch(const MapArgs& a, cudaStream_t stream) {
  visit_map(a, [&]<class Map, class T>() {
    Strided<Map, T> view{};  // all of it, so that equal calls launch equal bytes
    view.rank = a.rank;
    view.elements = 1;
    for (int d = 0; d < a.rank; ++d) {
      const int from = a.rank - 1 - d;
      view.sizes[d] = FastDivide(a.sizes[from]);
      view.elements *= a.sizes[from];
      for (int k = 0; k < view.operands; ++k) view.strides[d][k] = a.strides[k][from];
    }
    for (int k = 0; k < view.operands; ++k) view.data[k] = static_cast<T*>(a.data[k]);
    view.parameter = a.parameter;
    const dim3 grid(static_cast<unsigned>(ceil_div(view.elements, kThreads * kLoads)));
    warpsmith::launch<&map_strided_kernel<Map, T>>({grid, kThreads}, stream, view);
  });
}

const Register<MapArgs> registered{"strided", /*min_sm=*/80, takes, launch, suits};

}  // namespace
}  // namespace warpsmith
