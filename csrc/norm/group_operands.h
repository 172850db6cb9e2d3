// What the bindings of group_norm and its gradient share: the checks of their operands, and their layout in memory.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "host/memory.h"
#include "host/tensor.h"
#include "norm/group.h"
#include "row/operands.h"

namespace warpsmith {

inline void check_group_input(std::string_view op, const Tensor& x, int64_t groups) {
  check_floating(op, "x", x);
  if (x.dim() < 2) fail(op, "expected at least 2 dimensions in x, got shape ", shape_text(x.sizes()));
  if (groups < 1) fail(op, "expected groups to be at least 1, got ", std::to_string(groups));
  if (x.size(1) % groups != 0) {
    fail(op, "expected groups to divide the ", std::to_string(x.size(1)), " channels of x, got ",
         std::to_string(groups));
  }
}

// One value per channel, in the dtype of x or in f32.
inline void check_channel_vector(std::string_view op, std::string_view name, const Tensor& tensor, const Tensor& x) {
  check_same_device(op, name, tensor, x);
  if (tensor.dim() != 1 || tensor.size(0) != x.size(1)) {
    fail(op, "expected ", name, " to have shape (", std::to_string(x.size(1)), ",), the channels of x, got ",
         shape_text(tensor.sizes()));
  }
  const ScalarType type = tensor.scalar_type();
  if (type == x.scalar_type() || type == ScalarType::Float) return;
  fail(op, "expected ", name, " to have dtype ", dtype_name(x.scalar_type()),
       x.scalar_type() == ScalarType::Float ? "" : " or torch.float32", ", got ", dtype_name(type));
}

inline GroupActivation group_activation(std::string_view op, const std::string& name) {
  if (name == "none") return GroupActivation::none;
  if (name == "silu") return GroupActivation::silu;
  if (name == "mish") return GroupActivation::mish;
  fail(op, "expected activation to be 'none', 'silu' or 'mish', got '", name, "'");
}

// Of x with something in it. Channels that are neighbours in memory make it channels last; with one channel or one
// position there is no difference.
inline GroupShape group_shape(const Tensor& x, int64_t groups) {
  const int64_t n = x.size(0), c = x.size(1), spatial = x.numel() / (n * c);
  return {n, c, spatial, groups, c > 1 && spatial > 1 && x.stride(1) == 1};
}

// Strides of a dense tensor of these sizes, channels last or contiguous.
inline std::vector<int64_t> group_strides(Sizes sizes, bool channels_last) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = channels_last ? sizes[1] : 1;
  for (size_t d = sizes.size(); d-- > 2;) {
    strides[d] = stride;
    stride *= sizes[d];
  }
  strides[1] = channels_last ? 1 : stride;
  strides[0] = channels_last ? stride : stride * sizes[1];
  return strides;
}

// The tensor itself where it has these strides, otherwise a copy that does.
inline Tensor with_strides(const Tensor& tensor, const std::vector<int64_t>& strides) {
  const Sizes wanted(strides.data(), strides.size());
  if (lies_with(tensor, wanted)) return tensor;
  Tensor copy = empty_strided(tensor, tensor.sizes(), wanted, tensor.scalar_type());
  torch::stable::copy_(copy, tensor);
  return copy;
}

// `kept` holds what the vector points to.
inline ChannelVector channel_vector(std::optional<Tensor>& kept, Dtype like) {
  if (!kept) return {nullptr, like};
  if (!kept->is_contiguous()) kept = torch::stable::contiguous(*kept);
  return {kept->data_ptr(), *kernel_dtype(kept->scalar_type())};
}

}  // namespace warpsmith
