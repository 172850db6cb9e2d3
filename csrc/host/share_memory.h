// Whether operands of bindings lie in each other's memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "host/tensor.h"

namespace warpsmith {
namespace detail {

// A dimension of two tensors that lie alike: by how much an index of the first may exceed that of the second.
struct SharedStep {
  int64_t stride, least, most;
};

// From larger strides to smaller ones; empty where the two do not lie alike.
inline std::optional<std::vector<SharedStep>> shared_steps(const Tensor& x, const Tensor& y) {
  if (x.dim() != y.dim()) return std::nullopt;
  std::vector<SharedStep> steps;
  for (int64_t d = 0; d < x.dim(); ++d) {
    const int64_t in_x = x.size(d), in_y = y.size(d), stride = in_x > 1 ? x.stride(d) : y.stride(d);
    if (in_x > 1 && in_y > 1 && x.stride(d) != y.stride(d)) return std::nullopt;
    if (stride > 0 && (in_x > 1 || in_y > 1)) steps.push_back({stride, 1 - in_y, in_x - 1});
  }
  std::sort(steps.begin(), steps.end(), [](const auto& a, const auto& b) { return a.stride > b.stride; });
  return steps;
}

// Rounded down, where C++ rounds to zero; of a positive divisor.
inline int64_t floor_div(int64_t a, int64_t b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

// Whether steps from `first` on lead as far as `distance`.
inline bool reaches(const std::vector<SharedStep>& steps, size_t first, int64_t distance) {
  if (first == steps.size()) return distance == 0;
  int64_t least = 0, most = 0;  // that later ones lead
  for (size_t i = first + 1; i < steps.size(); ++i) {
    least += steps[i].least * steps[i].stride;
    most += steps[i].most * steps[i].stride;
  }
  // Those that leave a rest between the two: one or two, as smaller strides lead no further than a larger one.
  const SharedStep step = steps[first];
  const int64_t from = std::max(step.least, -floor_div(most - distance, step.stride));
  const int64_t to = std::min(step.most, floor_div(distance - least, step.stride));
  for (int64_t n = from; n <= to; ++n) {
    if (reaches(steps, first + 1, distance - n * step.stride)) return true;
  }
  return false;
}

// Bytes from the first element to behind the last one.
inline int64_t extent(const Tensor& x) {
  int64_t last = 0;
  for (int64_t d = 0; d < x.dim(); ++d) last += (x.size(d) - 1) * x.stride(d);
  return (last + 1) * static_cast<int64_t>(x.element_size());
}

}  // namespace detail

// Whether some element of `x` is one of `y`, of the same dtype. Where that is hard to tell, of tensors that have gaps and
// do not lie alike, it is not said of more than their first elements, as in PyTorch.
inline bool share_memory(const Tensor& x, const Tensor& y) {
  if (x.numel() == 0 || y.numel() == 0) return false;
  const auto a = reinterpret_cast<intptr_t>(x.data_ptr()), b = reinterpret_cast<intptr_t>(y.data_ptr());
  if (a + detail::extent(x) <= b || b + detail::extent(y) <= a) return false;
  if (a == b || (is_dense(x) && is_dense(y))) return true;
  const auto steps = detail::shared_steps(x, y);
  const auto item = static_cast<int64_t>(x.element_size());
  return steps && (b - a) % item == 0 && detail::reaches(*steps, 0, (b - a) / item);
}

// What is written to must have its memory for itself, among the operands of a call.
inline void check_own_memory(std::string_view op, std::string_view name, const Tensor& x, std::string_view other,
                             const Tensor& y) {
  if (share_memory(x, y)) fail(op, "expected ", other, " to share no memory with ", name, ", which is written to");
}

}  // namespace warpsmith
