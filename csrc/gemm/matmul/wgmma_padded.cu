// Matrix product of operands at any alignment: copied as in `mma_padded`, and multiplied by `wgmma_peak`.
//   Against `mma_padded`: the product of the copies is that much quicker; rows of results that are no packs of 16 bytes leave
//   by words.
//   Bound: as `wgmma_peak`; before that, memory.

#include "gemm/padding.h"
#include "gemm/wgmma.h"
#include "host/min_max.h"
#include "host/registry.h"

namespace warpsmith {
namespace {

const char* takes(const GemmArgs& p) {
  if (const char* reason = needs_wgmma(p)) return reason;
  if (const char* reason = needs_16_bits(p)) return reason;
  if (const char* reason = needs_f32_accumulator(p)) return reason;
  if (const char* reason = needs_padding(p)) return reason;
  const bool small = max_of(p.batch, p.m, p.n, p.k) <= 0x7fffffff;
  const bool mapped =
      (pads_a(p) || operand_has_map(p, p.a, p.m, p.k)) && (pads_b(p) || operand_has_map(p, p.b, p.k, p.n));
  if (!small || !mapped) return kNeedsLinesForMaps;
  return needs_tiles_in_grid(p);
}

void launch(const GemmArgs& p, cudaStream_t stream) { launch_padded(p, stream, {"wgmma_peak"}); }

const Register<GemmArgs> registered{"wgmma_padded", /*min_sm=*/90,           takes,
                                    launch,         worth_padding_for_wgmma, /*clusters=*/true};

}  // namespace
}  // namespace warpsmith
