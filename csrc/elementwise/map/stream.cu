// Elementwise at memory speed: 128-bit accesses that bypass the caches, and next to no instructions around them.
//   Against `pack`: one-time data is kept out of L1, and L2 is told to let the results of a long stream leave first; a
//   single row needs no division at all, and longer layouts find their row once per block instead of once per thread. A
//   thread has all it loads on the way before it computes: the packs of a row, or one of each of its rows. Little comes
//   before the first load: a block is told its cache policy and whether it is whole, and takes its place while the kernel
//   before ends. Bound: DRAM.
#include "elementwise/map/stream.cuh"

namespace warpsmith {
namespace {

// Maps of so many instructions on so few operands that a thread does better with two packs under way.
template <class Map>
inline constexpr bool kTakesTwo = false;
template <>
inline constexpr bool kTakesTwo<Unary<Gelu>> = true;
template <>
inline constexpr bool kTakesTwo<Unary<GeluTanh>> = true;
template <>
inline constexpr bool kTakesTwo<Unary<Mish>> = true;
template <>
inline constexpr bool kTakesTwo<UnaryBackward<Gelu>> = true;

// One stream of floats is best read by small blocks of two packs a thread. fp8 computes on 16 values at once, which takes
// all the registers that a thread may have.
template <class Map, class T>
struct RowTile {
  static constexpr bool kFp8 = kIsFp8<T>, kOneInput = Map::inputs == 1 && !kFp8, kOneOfFloats = kOneInput && kExact<T>;
  static constexpr int threads = kOneOfFloats ? 128 : 256;
  static constexpr int packs = kOneOfFloats || (kTakesTwo<Map> && !kFp8) ? 2 : 1;
  static constexpr int min_blocks = !kFp8 ? 6 : (Map::is_gradient ? 2 : 4);
};

// Functions of so many instructions that a thread's accesses must hide each other's.
template <class Map>
inline constexpr bool kIsHeavy = false;
template <template <class> class Map>
inline constexpr bool kIsHeavy<Map<Gelu>> = true;

// Before sm_89, conversions of fp8 take registers of their own.
template <class Map, class T>
struct RowsTile {
  static constexpr int threads = 256;
  static constexpr int rows = kIsFp8<T> || Map::outputs > 1 || (sizeof(T) == 4 && !kIsHeavy<Map>) ? 2 : 4;
  static constexpr int min_blocks = !kIsFp8<T> ? 4 : (WARPSMITH_HAS_FP8_CVT || Map::outputs == 1 ? 3 : 2);
};
template <class F, class T>
  requires kIsFp8<T>
struct RowsTile<Bias<F>, T> {
  static constexpr int threads = 256, rows = 4, min_blocks = WARPSMITH_HAS_FP8_CVT ? 4 : 3;
};
template <class F, class T>
  requires kIsFp8<T>
struct RowsTile<BiasBackward<F>, T> {
  static constexpr int threads = 256, rows = 4, min_blocks = WARPSMITH_HAS_FP8_CVT ? 3 : 2;
};
template <>
struct RowsTile<Bias<Gelu>, float> {
  static constexpr int threads = 128, rows = 4, min_blocks = 6;
};
template <>
struct RowsTile<BiasBackward<Gelu>, float> {
  static constexpr int threads = 128, rows = 2, min_blocks = 10;
};

template <class Map_, class T_>
struct Formula {
  using Map = Map_;
  using T = T_;
  using Row = RowTile<Map, T>;
  using Rows = RowsTile<Map, T>;
  struct Compute {
    __device__ __forceinline__ void prepare(float) {}
    __device__ __forceinline__ void operator()(Pack<T> (&out)[Map::outputs], const Pack<T> (&in)[Map::inputs],
                                               float parameter) const {
      compute<Map>(out, in, parameter);
    }
  };
};

void launch(const MapArgs& a, cudaStream_t stream) {
  visit_map(a, [&]<class Map, class T>() { launch_stream<Formula<Map, T>>(a, stream); });
}

const Register<MapArgs> registered{"stream", /*min_sm=*/80, needs_packs, launch};

}  // namespace
}  // namespace warpsmith
