// fp8 activations by table: there are only 256 inputs, so every block computes all 256 answers once.
//   Against `stream`: a shared-memory load replaces decoding, a transcendental function and (where there is no gate)
//   encoding, which bound that rung by arithmetic: 16 values ride on every 128-bit access. Bound: DRAM.
#include "elementwise/map/rows.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;
constexpr int kCodes = 256;
constexpr int kPacksPerThread = 2;

static_assert(kThreads == kCodes, "each thread computes one answer");

// Maps of one fp8 value, and gates: one value through a table, times another.
template <class Map>
struct Table;

// The answers are bytes.
template <class F>
struct Table<Unary<F>> {
  using Answer = uint8_t;

  template <class T>
  __device__ static Answer answer(T code, float parameter) {
    Vec<T, 1> in[1]{{code}}, out[1];
    compute<Unary<F>>(out, in, parameter);
    return out[0][0].__x;
  }

  template <class T>
  __device__ static uint32_t apply(const Answer (&table)[kCodes], const uint32_t (&in)[1]) {
    const uint32_t x = in[0];
    const uint32_t a = table[x & 0xff], b = table[x >> 8 & 0xff], c = table[x >> 16 & 0xff], d = table[x >> 24];
    return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
  }
};

// The answers are floats, because the product is rounded once.
template <class F>
struct Table<Gated<F>> {
  using Answer = float;

  template <class T>
  __device__ static Answer answer(T code, float parameter) {
    return F::template forward<kExact<T>>(to_float(code), parameter);
  }

  template <class T>
  __device__ static uint32_t apply(const Answer (&table)[kCodes], const uint32_t (&in)[2]) {
    const uint32_t gate = in[0];
    const float2 low = decode_fp8x2<T>(static_cast<uint16_t>(in[1])), high = decode_fp8x2<T>(in[1] >> 16);
    return encode_fp8x4<T>(table[gate & 0xff] * low.x, table[gate >> 8 & 0xff] * low.y,
                           table[gate >> 16 & 0xff] * high.x, table[gate >> 24] * high.y);
  }
};

template <class Map, class T>
__global__ void __launch_bounds__(kThreads, 4) map_lut_kernel(const Rows<Map, T> view) {
  constexpr int kWidth = kPack<T>;
  __shared__ typename Table<Map>::Answer table[kCodes];

  // load: before the table, which takes about as long as memory does to answer
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kThreads * kPacksPerThread) + threadIdx.x;
  const uint64_t policy = load_policy(view);
  Pack<T> in[kPacksPerThread][Map::inputs];
#pragma unroll
  for (int j = 0; j < kPacksPerThread; ++j) {
    const int64_t group = first + j * kThreads;
    if (group < view.whole_groups) {
      load_packs(in[j], view, locate<kWidth>(view, group), policy);
    }
  }

  // tabulate
  T code;
  code.__x = static_cast<uint8_t>(threadIdx.x);
  table[threadIdx.x] = Table<Map>::answer(code, view.parameter);
  __syncthreads();

  // look up, write
#pragma unroll
  for (int j = 0; j < kPacksPerThread; ++j) {
    const int64_t group = first + j * kThreads;
    if (group < view.whole_groups) {
      Pack<T> out[1];
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        uint32_t codes[Map::inputs];
#pragma unroll
        for (int k = 0; k < Map::inputs; ++k) codes[k] = reinterpret_cast<const uint32_t*>(&in[j][k])[word];
        reinterpret_cast<uint32_t*>(&out[0])[word] = Table<Map>::template apply<T>(table, codes);
      }
      store_outputs<Map, kWidth, Cache::streaming>(view, locate<kWidth>(view, group), out);
    } else if (group < view.groups) {
      finish_row(view, locate<kWidth>(view, group));
    }
  }
}

const char* takes(const MapArgs& a) {
  if (!is_fp8(a.dtype) || !a.has_table) return "takes fp8 activations and gates only";
  return needs_packs(a);
}

void launch(const MapArgs& a, cudaStream_t stream) {
  visit_map(a, [&]<class Map, class T>() {
    if constexpr (Map::has_table && kIsFp8<T>) {
      const auto view = make_rows<Map, T>(a, kPack<T>);
      const dim3 grid(static_cast<unsigned>(ceil_div(view.groups, kThreads * kPacksPerThread)));
      warpsmith::launch<&map_lut_kernel<Map, T>>({grid, kThreads}, stream, view);
    }
  });
}

const Register<MapArgs> registered{"lut", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
