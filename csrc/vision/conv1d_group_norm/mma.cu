// Convolution on the tensor cores; then group norm and activation, a block per group.
//   Against `naive`: operands arranged once so that their lines run along the channels, then products of tiles; see
//   conv1d_mma.cuh. f32 in six products of bf16. Any shape. Bound: the tensor cores as mma.sync reaches them, and passes
//   through memory before and behind them.
#include "host/registry.h"
#include "vision/conv1d_group_norm/conv1d_group_norm.h"
#include "vision/conv1d_group_norm/conv1d_tiles.h"

namespace warpsmith {
namespace {

const char* takes(const Conv1dGroupNormArgs& a) { return needs_countable(a.shape); }

void launch(const Conv1dGroupNormArgs& a, cudaStream_t stream) {
  const Conv1dShape& s = a.shape;
  char* signals = static_cast<char*>(a.workspace);
  char* weights = signals + signal_bytes(s.positions(), s.c_in, a.dtype);
  arrange(SignalLines(a.x, signals, s, s.c_in), SignalLines(), WeightLines(a.weight, weights, s, false), a.dtype,
          stream);
  const Conv1dProduct product = conv1d_product(s, weights, signals, s.c_out, s.c_in, s.before());
  dispatch_float(a.dtype, [&]<class T>() { convolve<T>(product, a.bias, a.h, a.sm_count, stream); });
  normalise_groups(a, stream);
}

const Register<Conv1dGroupNormArgs> registered{"mma", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
