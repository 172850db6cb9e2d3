// Matrix product of operands at any alignment: those whose lines are not whole packs of 16 bytes are copied to lines
// that are, and `mma_tma` or `mma_peak` multiplies the copies.
//   Against `mma_unaligned`: values are brought into place once, at the rate of memory, instead of again for each tile
//   that they are part of; operands in packs are read where they lie. Zeros follow each line, so that k may be odd.
//   Bound: as the rung that multiplies; before that, memory.
//   PyTorch's compiler does the same: https://github.com/pytorch/pytorch/blob/main/torch/_inductor/fx_passes/pad_mm.py
#include <string_view>

#include "gemm/pad_lines.cuh"
#include "gemm/padding.h"
#include "host/ladder.h"
#include "host/launch.h"

namespace warpsmith {
namespace {

struct Copies {
  PadLines of[2];  // of a, of b; without blocks where the operand stays where it is
};

__global__ void __launch_bounds__(kPadThreads) matmul_mma_padded_kernel(const __grid_constant__ Copies copies) {
  const uint32_t of_a = static_cast<uint32_t>(copies.of[0].blocks);
  const bool b = blockIdx.x >= of_a;
  pad_lines(copies.of[b], b ? blockIdx.x - of_a : blockIdx.x);
}

const char* takes(const GemmArgs& p) {
  if (const char* reason = needs_16_bits(p)) return reason;
  if (const char* reason = needs_padding(p)) return reason;
  return needs_tiles_in_grid(p);
}

// Of the rungs, that which is best for the copies. Those that want whole packs are asked about lines with their zeros, and
// told to multiply them without.
const Rung<GemmArgs>& rung_for(const GemmArgs& p, std::initializer_list<std::string_view> names) {
  GemmArgs whole = p;
  whole.m = padded(p.m);
  whole.n = padded(p.n);
  whole.k = padded(p.k);
  for (const std::string_view name : names) {
    const Rung<GemmArgs>* rung = Ladder<GemmArgs>::find(name);
    if (rung != nullptr && p.sm >= rung->min_sm && rung->suits(whole) &&
        (rung->takes(p) == nullptr || rung->takes(whole) == nullptr)) {
      return *rung;
    }
  }
  broken_promise("the last of the rungs takes operands in packs");
}

void launch(const GemmArgs& p, cudaStream_t stream) { launch_padded(p, stream, {"mma_tma", "mma_peak"}); }

const Register<GemmArgs> registered{"mma_padded", /*min_sm=*/80, takes, launch, worth_padding};

}  // namespace

void launch_padded(const GemmArgs& p, cudaStream_t stream, std::initializer_list<std::string_view> rungs) {
  GemmArgs product = p;
  Copies copies{};
  char* to = static_cast<char*>(p.workspace) + copies_offset(p);
  const auto copy = [&](PadLines& copy, Matrix& x, const Lines& lines) {
    copy = pad_lines_of(x, lines, to);
    x.data = to;
    x.ld = padded_pitch(lines.length);
    x.batch = lines.matrices > 1 ? lines.count * x.ld : 0;
    to += lines.copied() * kValueBytes;
  };
  if (pads_a(p)) copy(copies.of[0], product.a, lines_of_a(p));
  if (pads_b(p)) copy(copies.of[1], product.b, lines_of_b(p));
  const Rung<GemmArgs>& rung = rung_for(product, rungs);
  const LaunchConfig config{static_cast<unsigned>(copies.of[0].blocks + copies.of[1].blocks), kPadThreads};
  warpsmith::launch<&matmul_mma_padded_kernel>(config, stream, copies);
  rung.launch(product, stream);
}

}  // namespace warpsmith
