// How the threads of a block bring an operand of a product into shared memory, in [k, row] order: copies in the
// background for either order of the operand and any alignment.
//   An operand is seen from the tile: it has `rows` of the product (columns for b), each with k values. A copy brings
//   kCopyDepth values of k of each; rows past the last one repeat it, as their products are not stored. The first copy
//   may bring fewer values of k, with zeros behind them; so all others are whole, and need no test of k.
#pragma once

#include <cstdint>
#include <type_traits>

#include "device/ptx/copy.h"
#include "gemm/gemm.h"

namespace warpsmith {

inline constexpr int kCopyDepth = 8;  // values of k
inline constexpr int kCopyPack = 4;   // values of a 16-byte access

// Places in a ring are counted in bytes, as its addresses are: an addition finds one.
template <class T>
__device__ __forceinline__ T* bytes_on(T* pointer, int bytes) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return reinterpret_cast<T*>(reinterpret_cast<Byte*>(pointer) + bytes);
}

struct CopySource {
  const float* data;  // of the first row and the first k
  int64_t ld;
  int rows_left;  // from the first one on, at least 1
};

// Values of k are contiguous: transposed on the way, 4 bytes at a time. A warp brings 8 values of each of 4 rows; the
// padding spreads those over all banks.
template <int rows, int threads>
struct TransposingCopy {
  static constexpr int stride = rows + kCopyPack;
  static constexpr int per_pass = threads / kCopyDepth, passes = rows / per_pass;
  static_assert(passes * per_pass == rows, "whole passes");
  const float* from[passes];  // of the copy before: moved first, a pointer needs no second pair of registers
  float* to;
  int k;

  __device__ TransposingCopy(const CopySource& x, float* ring, int thread) {
    const int row = thread / kCopyDepth;
    k = thread % kCopyDepth;
    to = ring + k * stride + row;
#pragma unroll
    for (int i = 0; i < passes; ++i) {
      from[i] = x.data + min(row + i * per_pass, x.rows_left - 1) * x.ld + k;
    }
  }

  // The first `depth` values of k, at most kCopyDepth, and zeros.
  __device__ void start(int depth) {
#pragma unroll
    for (int i = 0; i < passes; ++i) {
      ptx::cp_async_zfill(reinterpret_cast<uint32_t*>(to + i * per_pass), reinterpret_cast<const uint32_t*>(from[i]),
                          k < depth);
      from[i] += depth - kCopyDepth;
    }
  }

  // Pass `i` of the next kCopyDepth values, if `go`, to `at` bytes from the first ones. Passes come in order.
  __device__ void next(int i, int at, bool go) {
    from[i] += kCopyDepth;
    ptx::cp_async_if(go, reinterpret_cast<uint32_t*>(bytes_on(to, at) + i * per_pass),
                     reinterpret_cast<const uint32_t*>(from[i]));
  }
};

// Rows are contiguous: copied as they are, `width` values at a time.
template <int rows, int width, int threads>
struct StraightCopy {
  static constexpr int stride = rows;
  static constexpr int across = rows / width, per_pass = threads / across, passes = kCopyDepth / per_pass;
  static_assert(passes * per_pass == kCopyDepth, "whole passes");
  using Access = std::conditional_t<width == kCopyPack, uint4, uint32_t>;
  const float* from;
  int64_t ld;
  float* to;
  int k;

  __device__ StraightCopy(const CopySource& x, float* ring, int thread) : ld(x.ld) {
    const int row = thread % across * width;
    k = thread / across;
    to = ring + k * stride + row;
    from = x.data + min(row, x.rows_left - width) + k * ld;
  }

  __device__ void start(int depth) {
#pragma unroll
    for (int i = 0; i < passes; ++i) {
      ptx::cp_async_zfill(reinterpret_cast<Access*>(to + i * per_pass * stride),
                          reinterpret_cast<const Access*>(from + i * per_pass * ld), k + i * per_pass < depth);
    }
    from += depth * ld;
  }

  __device__ void next(int i, int at, bool go) {
    ptx::cp_async_if(go, reinterpret_cast<Access*>(bytes_on(to, at) + i * per_pass * stride),
                     reinterpret_cast<const Access*>(from));
    from += per_pass * ld;
  }
};

struct Transposing {
  template <int rows, int threads>
  using Copy = TransposingCopy<rows, threads>;
};
struct Wide {
  template <int rows, int threads>
  using Copy = StraightCopy<rows, kCopyPack, threads>;
};
struct Narrow {
  template <int rows, int threads>
  using Copy = StraightCopy<rows, 1, threads>;
};

// Calls body with the way to copy an operand, which is `transposed` where its values of k are contiguous.
template <class Body>
void with_copy(const Matrix& x, bool transposed, int64_t rows, int64_t depth, Body&& body) {
  if (transposed) return body.template operator()<Transposing>();
  const bool wide =
      x.order == Order::rows ? in_packs(x, depth, rows, Dtype::f32, 16) : in_packs(x, rows, depth, Dtype::f32, 16);
  wide ? body.template operator()<Wide>() : body.template operator()<Narrow>();
}

}  // namespace warpsmith
