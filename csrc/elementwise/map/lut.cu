// fp8 functions and gradients by table: there are only 256 inputs, so every block computes all 256 results once.
//   Against `stream`: a shared-memory load replaces decoding, a transcendental function and (where nothing is multiplied)
//   encoding, which bound that rung by arithmetic: 16 values ride on every 128-bit access. The table is made while a
//   thread's loads are under way. Bound: DRAM.
#include "elementwise/map/stream.cuh"

namespace warpsmith {
namespace {

constexpr int kThreads = 256;  // of a block, in one row or several
constexpr int kCodes = 256;

static_assert(kThreads == kCodes, "each thread computes one result");

// As many as a multiprocessor takes.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200)
constexpr int kMostBlocks = 1536 / kThreads;
#else
constexpr int kMostBlocks = 2048 / kThreads;
#endif

// Maps whose result depends on one value, or is a product of what depends on one with others.
//   operand  the input that the table is about
//   Result   of one of its values
//   apply    one element from all others and the result
template <class Map>
struct Table;

// The results are codes.
template <class F>
struct Table<Unary<F>> {
  static constexpr int operand = 0;
  using Result = uint8_t;

  template <class T>
  __device__ static Result result(T code, float parameter) {
    return from_float<T>(F::template forward<kExact<T>>(to_float(code), parameter)).__x;
  }
};

// From here on the results are floats, because a product is rounded once: values of a gate, slopes, or both.
template <class F>
struct Table<Gated<F>> {
  static constexpr int operand = 0;
  using Result = float;

  template <class T>
  __device__ static Result result(T code, float parameter) {
    return F::template forward<kExact<T>>(to_float(code), parameter);
  }

  __device__ __forceinline__ static void apply(float (&out)[1], const float (&in)[2], Result value) {
    out[0] = value * in[1];
  }
};

template <class F>
struct Table<UnaryBackward<F>> {
  static constexpr int operand = 1;
  using Result = float;

  template <class T>
  __device__ static Result result(T code, float parameter) {
    return F::template backward<kExact<T>>(1.0f, to_float(code), parameter);
  }

  __device__ __forceinline__ static void apply(float (&out)[1], const float (&in)[2], Result slope) {
    out[0] = in[0] * slope;
  }
};

template <class F>
struct Table<GatedBackward<F>> {
  static constexpr int operand = 1;
  struct alignas(sizeof(float2)) Result {
    float value, slope;
  };

  template <class T>
  __device__ static Result result(T code, float parameter) {
    const float x = to_float(code);
    return {F::template forward<kExact<T>>(x, parameter), F::template backward<kExact<T>>(1.0f, x, parameter)};
  }

  __device__ __forceinline__ static void apply(float (&out)[2], const float (&in)[3], const Result& of_gate) {
    out[0] = in[0] * in[2] * of_gate.slope;
    out[1] = in[0] * of_gate.value;
  }
};

template <class Map_, class T_>
struct Lookup {
  using Map = Map_;
  using T = T_;
  // Packs of a thread. Codes become codes, without values in registers; others compute on 16 values at once, which before
  // sm_89 take registers of their own.
  static constexpr int kPacks = Map::inputs == 1 ? 4 : (Map::inputs == 2 ? 1 : 2);
  static constexpr int kOnValues = !WARPSMITH_HAS_FP8_CVT ? 2 : (kPacks == 1 ? kMostBlocks : 4);
  struct Row {
    static constexpr int threads = kThreads, packs = kPacks, min_blocks = Map::inputs == 1 ? 4 : kOnValues;
  };
  struct Rows {
    static constexpr int threads = kThreads, rows = kPacks, min_blocks = Row::min_blocks;
  };

  class Compute {
    using Result = typename Table<Map>::Result;
    const Result* table_ = nullptr;

   public:
    __device__ __forceinline__ void prepare(float parameter) {
      __shared__ Result table[kCodes];
      const int thread = threadIdx.y * blockDim.x + threadIdx.x;
      T code;
      code.__x = static_cast<uint8_t>(thread);
      table[thread] = Table<Map>::result(code, parameter);
      table_ = table;
      __syncthreads();
    }

    __device__ __forceinline__ void operator()(Pack<T> (&out)[Map::outputs], const Pack<T> (&in)[Map::inputs],
                                               float) const {
      constexpr int kWidth = kPack<T>, kWord = sizeof(uint32_t);
      using Entry = Table<Map>;
      const auto* words = reinterpret_cast<const uint32_t*>(&in[Entry::operand]);
      const auto at = [&](int i) { return table_[words[i / kWord] >> i % kWord * 8 & 0xff]; };
      if constexpr (std::is_same_v<Result, uint8_t>) {
#pragma unroll
        for (int i = 0; i < kWidth; i += kWord) {
          const uint32_t low = __byte_perm(at(i), at(i + 1), 0x0040), high = __byte_perm(at(i + 2), at(i + 3), 0x0040);
          reinterpret_cast<uint32_t*>(&out[0])[i / kWord] = __byte_perm(low, high, 0x5410);
        }
      } else {
        float x[Map::inputs][kWidth], y[Map::outputs][kWidth];
#pragma unroll
        for (int k = 0; k < Map::inputs; ++k) {
          if (k != Entry::operand) to_float(x[k], in[k]);
        }
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          float from[Map::inputs], to[Map::outputs];
#pragma unroll
          for (int k = 0; k < Map::inputs; ++k) from[k] = k == Entry::operand ? 0.0f : x[k][i];
          Entry::apply(to, from, at(i));
#pragma unroll
          for (int k = 0; k < Map::outputs; ++k) y[k][i] = to[k];
        }
#pragma unroll
        for (int k = 0; k < Map::outputs; ++k) from_float(out[k], y[k]);
      }
    }
  };
};

const char* takes(const MapArgs& a) {
  if (!is_fp8(a.dtype) || !a.has_table) return "takes fp8 functions of one value, times others, only";
  return needs_packs(a);
}

void launch(const MapArgs& a, cudaStream_t stream) {
  visit_map(a, [&]<class Map, class T>() {
    if constexpr (Map::has_table && kIsFp8<T>) launch_stream<Lookup<Map, T>>(a, stream);
  });
}

const Register<MapArgs> registered{"lut", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
