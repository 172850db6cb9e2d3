// Quantisation of what stays in registers.
//   Against `pack`: values are read once. Bound: memory.
#include "quantize/quantize/registers.cuh"

#include "host/registry.h"

namespace warpsmith {
namespace {

void launch_blocks(const QuantizeArgs& a, cudaStream_t stream) {
  const int64_t across = (a.cols + kGroup - 1) / kGroup, down = (a.rows + kGroup - 1) / kGroup;
  dispatch_float(a.dtype, [&]<class T>() {
    const LaunchConfig config{
        .grid = static_cast<unsigned>(across * down), .block = static_cast<unsigned>(kBlockThreads<T>), .early = true};
    warpsmith::launch<&quantize_block_kernel<T>>(config, stream, a, FastDivide(static_cast<uint64_t>(across)));
  });
}

const char* takes(const QuantizeArgs& a) {
  if (a.sharers == Sharers::tensor) return "the tensor shares a scale";
  if (const char* why = needs_packs(a)) return why;
  if (a.sharers == Sharers::group && a.cols % kGroup != 0) return "needs groups of 128 columns";
  const int64_t packs = a.rows * (a.cols / (16 / size_of(a.dtype)));
  const bool whole_rows = a.sharers == Sharers::row || a.values == Values::rms_norm;
  if (!whole_rows) return packs <= kMostRows ? nullptr : "needs less than 2^31 packs";
  return unmet({needs_grid_rows(a.rows), needs_row_bytes<kMostQuantizedBytes>(a.cols, a.dtype)});
}

void launch(const QuantizeArgs& a, cudaStream_t stream) {
  if (a.sharers == Sharers::block) return launch_blocks(a, stream);
  if (a.values == Values::rms_norm) return launch_rms_rows(a, stream);
  if (a.sharers == Sharers::row && a.values == Values::silu_and_mul) return launch_silu_rows(a, stream);
  dispatch_float(a.dtype, [&]<class T>() {
    if (a.sharers == Sharers::row) return launch_rows<PlainValues<T>>(a, stream);
    if (a.values == Values::silu_and_mul) return launch_groups<SiluValues<T>>(a, stream);
    launch_groups<PlainValues<T>>(a, stream);
  });
}

const Register<QuantizeArgs> registered{"registers", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
