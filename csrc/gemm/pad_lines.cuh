// Copies lines of 16-bit values that start anywhere to packs of 16 bytes, with zeros behind the end of a line.
//   A thread makes a pack of the two aligned packs that its values lie in, of which one is its neighbour's as well and
//   comes from L1; it does so for a few lines at once. Bound: memory.
#pragma once

#include <cstdint>

#include "device/fast_divide.h"
#include "gemm/padding.h"

namespace warpsmith {

inline constexpr int kPadThreads = 256, kPadLines = 4;  // lines of a thread
inline constexpr int kPackBytes = 16, kValueBytes = 2, kPackValues = kPackBytes / kValueBytes;

// The copy of one operand. A block has so many threads along a line, and a part of its lines.
struct PadLines {
  const char *from, *end;   // the first value, what follows the last one
  uint4* to;                // [matrices, lines, pitch], of which the first packs of a line are written
  int64_t ld, batch;        // bytes from one line to the next, and from one matrix
  int64_t lines, pitch;     // of a matrix; packs of a line
  int64_t length;           // values of a line
  int log_along;            // of the threads along a line
  FastDivide across, down;  // blocks of a line, and of the lines of a matrix
  int64_t blocks;
};

// The copy of `x` at `to`.
inline PadLines pad_lines_of(const Matrix& x, const Lines& lines, void* to) {
  const int64_t packs = ceil_div(lines.length, kPackValues);
  const auto covered = [&](int log) { return ceil_div(packs, int64_t{1} << log) << log; };
  int log_along = 0;  // of a warp at least where lines are as long; then of what leaves the fewest threads idle
  while (log_along < 5 && packs > int64_t{1} << log_along) ++log_along;
  for (int log = log_along + 1; log_along >= 5 && int64_t{1} << log <= kPadThreads; ++log) {
    if (covered(log) <= covered(log_along)) log_along = log;
  }
  const int64_t across = covered(log_along) >> log_along;
  const int64_t down = ceil_div(lines.count, (kPadThreads >> log_along) * kPadLines);
  const int64_t last = (lines.matrices - 1) * x.batch + (lines.count - 1) * x.ld + lines.length;
  const char* from = static_cast<const char*>(x.data);
  return {.from = from,
          .end = from + last * kValueBytes,
          .to = static_cast<uint4*>(to),
          .ld = x.ld * kValueBytes,
          .batch = x.batch * kValueBytes,
          .lines = lines.count,
          .pitch = padded_pitch(lines.length) / kPackValues,
          .length = lines.length,
          .log_along = log_along,
          .across = FastDivide(static_cast<uint64_t>(across)),
          .down = FastDivide(static_cast<uint64_t>(down)),
          .blocks = lines.matrices * down * across};
}

// The `count` values from `from` on, one by one, then zeros.
__device__ __forceinline__ uint4 load_values(const char* from, int count) {
  uint64_t low = 0, high = 0;
#pragma unroll 1
  for (int i = count - 1; i >= 0; --i) {
    high = high << 16 | low >> 48;
    low = low << 16 | *reinterpret_cast<const uint16_t*>(from + kValueBytes * i);
  }
  return {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32), static_cast<uint32_t>(high),
          static_cast<uint32_t>(high >> 32)};
}

// The 16 bytes that start `skip` bytes, an even number below 16, into two packs.
__device__ __forceinline__ uint4 shift_packs(const uint4& low, const uint4& high, int skip) {
  const uint32_t both[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  uint32_t by_two[6], by_one[5];
#pragma unroll
  for (int i = 0; i < 6; ++i) by_two[i] = skip & 8 ? both[i + 2] : both[i];
#pragma unroll
  for (int i = 0; i < 5; ++i) by_one[i] = skip & 4 ? by_two[i + 1] : by_two[i];
  const int bits = skip % 4 * 8;
  return {__funnelshift_r(by_one[0], by_one[1], bits), __funnelshift_r(by_one[1], by_one[2], bits),
          __funnelshift_r(by_one[2], by_one[3], bits), __funnelshift_r(by_one[3], by_one[4], bits)};
}

// Its first `count` values, then zeros.
__device__ __forceinline__ uint4 first_values(const uint4& pack, int count) {
  const auto keep = [count](uint32_t word, int first) {
    return count > first + 1 ? word : (count > first ? word & 0xffffu : 0u);
  };
  return {keep(pack.x, 0), keep(pack.y, 2), keep(pack.z, 4), keep(pack.w, 6)};
}

// Block `block` of the copy.
__device__ __forceinline__ void pad_lines(const PadLines& x, uint32_t block) {
  const uint32_t thread = threadIdx.x, along = 1u << x.log_along, rows = kPadThreads >> x.log_along;
  const uint32_t strip = x.across.small_quotient(block), matrix = x.down.small_quotient(strip);
  const int64_t in_line = block - strip * static_cast<uint32_t>(x.across.divisor);
  const int64_t in_matrix = strip - matrix * static_cast<uint32_t>(x.down.divisor);
  const int64_t pack = in_line * along + thread % along;
  const int64_t line = in_matrix * (rows * kPadLines) + (thread >> x.log_along);
  const int64_t values = x.length - pack * kPackValues, lines = x.lines - line;
  if (values <= 0) return;
  const int count = static_cast<int>(min(values, int64_t{kPackValues}));
  const char* from = x.from + matrix * x.batch + line * x.ld + pack * kPackBytes;
  uint4* to = x.to + (matrix * x.lines + line) * x.pitch + pack;

  // load
  uint4 low[kPadLines], high[kPadLines];
  int skip[kPadLines];
#pragma unroll
  for (int i = 0; i < kPadLines; ++i) {
    if (i * rows < lines) {
      skip[i] = static_cast<int>(reinterpret_cast<uintptr_t>(from) % kPackBytes);
      const char* aligned = from - skip[i];
      const bool two = skip[i] + kValueBytes * count > kPackBytes;
      if (aligned >= x.from && aligned + (two ? 2 : 1) * kPackBytes <= x.end) [[likely]] {
        low[i] = *reinterpret_cast<const uint4*>(aligned);
        if (two) high[i] = *reinterpret_cast<const uint4*>(aligned + kPackBytes);
      } else {  // the operand's first or last values: what lies around them is not read
        low[i] = load_values(from, count);
        skip[i] = 0;
      }
      from += rows * x.ld;
    }
  }

  // write
#pragma unroll
  for (int i = 0; i < kPadLines; ++i) {
    if (i * rows < lines) {
      uint4 values = shift_packs(low[i], high[i], skip[i]);
      if (count < kPackValues) values = first_values(values, count);
      *to = values;
      to += rows * x.pitch;
    }
  }
}

}  // namespace warpsmith
