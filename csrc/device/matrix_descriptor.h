// Where wgmma finds an operand in shared memory: 64 bits that say how its lines lie.
// PTX ISA, "Asynchronous wgmma: Shared Memory Matrix Layout" and "Matrix Descriptor Format":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-shared-memory-layout
//
// Lines are of 128, 64 or 32 bytes, eight of them an atom, swizzled as the copy engine swizzles boxes. Lines along k hold
// `line` bytes of one row of the operand [m or n, k]; the atoms of an instruction lie one after another along m or n,
// `stride` bytes apart. Lines along m or n hold `line` bytes of one k; an instruction reads two atoms along k, `stride` bytes
// apart, and as many along m or n as it needs, `leading` bytes apart.
#pragma once

#include <cstdint>

#include "device/wgmma_kind.h"

namespace warpsmith {

// How the lines of an operand are swizzled, in bytes.
enum class Line : int { of_128 = 128, of_64 = 64, of_32 = 32 };

class MatrixDescriptor {
 public:
  // `address`: in shared memory, as instructions have it; a multiple of an atom, but for steps along k.
  __host__ __device__ constexpr MatrixDescriptor(uint32_t address, Line line, int leading, int stride)
      : bits_(field(address, 0) | field(leading, 16) | field(stride, 32) | mode(line) << 62) {}

  // Of what lies so many bytes further on.
  __host__ __device__ constexpr MatrixDescriptor at(int bytes) const {
    return MatrixDescriptor((bits_ & ~uint64_t{0xffffffff}) |
                            static_cast<uint32_t>(static_cast<uint32_t>(bits_) + static_cast<uint32_t>(bytes >> 4)));
  }

  __host__ __device__ constexpr uint64_t bits() const { return bits_; }

 private:
  __host__ __device__ explicit constexpr MatrixDescriptor(uint64_t bits) : bits_(bits) {}
  // Addresses and distances count chunks of 16 bytes.
  __host__ __device__ static constexpr uint64_t field(uint32_t bytes, int shift) {
    return static_cast<uint64_t>(bytes >> 4 & 0x3fff) << shift;
  }
  __host__ __device__ static constexpr uint64_t mode(Line line) {
    return line == Line::of_128 ? 1 : (line == Line::of_64 ? 2 : 3);
  }

  uint64_t bits_;
};

static_assert(MatrixDescriptor(0x400, Line::of_128, 16, 1024).bits() == 0x4000004000010040);
static_assert(MatrixDescriptor(0x400, Line::of_64, 8192, 512).at(64).bits() == 0x8000002002000044);

// An operand of [mn, k] values of `size` bytes in shared memory, as boxes of a tensor map bring it. Lines along k: panels of
// [mn, line] one after another along k. Lines along m or n: panels of [k, line] one after another along m or n.
template <Major major_, int mn_, int k_, int size_, Line line_ = Line::of_128>
struct WgmmaOperand {
  static constexpr Major major = major_;
  static constexpr int mn = mn_, k = k_, size = size_, line = static_cast<int>(line_), atom = 8 * line;
  static constexpr int bytes = mn * k * size;
  static constexpr bool along_k = major == Major::k;
  static constexpr int panel_lines = along_k ? mn : k, panel_bytes = panel_lines * line;
  static constexpr int panels = bytes / panel_bytes, values_of_line = line / size;
  static constexpr int step_k = 32 / size;  // what an instruction reads
  static_assert(panel_lines % 8 == 0 && bytes % panel_bytes == 0 && k % step_k == 0, "whole atoms");

  __host__ __device__ static constexpr MatrixDescriptor descriptor(uint32_t address) {
    // Of lines along k nothing leads anywhere; 16 is what CUTLASS has there.
    return {address, line_, along_k ? 16 : panel_bytes, atom};
  }
  // Bytes from the beginning to what an instruction reads that begins at row (or column) `at_mn` and at `at_k`.
  __host__ __device__ static constexpr int offset(int at_mn, int at_k) {
    return along_k ? at_k / values_of_line * panel_bytes + at_mn * line + at_k % values_of_line * size
                   : at_mn / values_of_line * panel_bytes + at_k * line;
  }
};

}  // namespace warpsmith
