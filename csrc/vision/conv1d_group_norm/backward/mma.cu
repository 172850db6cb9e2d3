// Gradients of a convolution on the tensor cores.
//   Against `naive`: operands arranged once; dx is the convolution of the gradient with the weights turned round, dweight a
//   product for each tap. f32 in six products of bf16. Any shape. Bound: the tensor cores as mma.sync reaches them.
#include "host/registry.h"
#include "vision/conv1d_group_norm/backward/conv1d_backward.h"
#include "vision/conv1d_group_norm/conv1d_tiles.h"

namespace warpsmith {
namespace {

const char* takes(const Conv1dBackwardArgs& a) { return needs_countable(a.shape); }

void launch(const Conv1dBackwardArgs& a, cudaStream_t stream) {
  const Conv1dShape& s = a.shape;
  char* x_lines = static_cast<char*>(a.workspace);
  char* grad_lines = x_lines + signal_bytes(s.positions(), s.c_in, a.dtype);
  char* weights = grad_lines + signal_bytes(s.positions(), s.c_out, a.dtype);
  char* sums = weights + weight_bytes(s.c_in, s.c_out, s.taps, a.dtype);
  arrange(SignalLines(a.x, x_lines, s, s.c_in), SignalLines(a.grad, grad_lines, s, s.c_out),
          WeightLines(a.weight, weights, s, true), a.dtype, stream);
  const Conv1dProduct product = conv1d_product(s, weights, grad_lines, s.c_in, s.c_out, s.taps - 1 - s.before());
  dispatch_float(a.dtype, [&]<class T>() { convolve<T>(product, nullptr, a.dx, a.sm_count, stream); });
  multiply_weight_gradient(a, grad_lines, x_lines, reinterpret_cast<float*>(sums), stream);
  sum_channels(a, stream);
}

const Register<Conv1dBackwardArgs> registered{"mma", /*min_sm=*/80, takes, launch};

}  // namespace
}  // namespace warpsmith
