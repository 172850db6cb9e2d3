// What bindings do with tensors besides launching kernels. In a dry run memory is left alone, however much there is.
#pragma once

#include "gpu.h"

namespace emu {

using warpsmith::Tensor;

inline Tensor contiguous(const Tensor& x) {
  return is_dry() ? warpsmith::empty_contiguous(x, x.sizes(), x.scalar_type()) : torch::stable::contiguous(x);
}

inline Tensor clone(const Tensor& x) { return is_dry() ? emu::contiguous(x) : torch::stable::clone(x); }

inline void zero_(Tensor x) {
  if (!is_dry()) torch::stable::zero_(x);
}

inline void fill_(Tensor x, double value) {
  if (!is_dry()) torch::stable::fill_(x, value);
}

inline void copy_(Tensor to, const Tensor& from) {
  if (!is_dry()) torch::stable::copy_(to, from);
}

}  // namespace emu
