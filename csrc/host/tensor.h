// What a binding file needs of PyTorch: checks that speak like PyTorch, allocation, the current stream, the way back to
// Triton or the reference. Stable-ABI headers only; never included from a .cu.
#pragma once

#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <array>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "host/dtype.h"
#include "host/launch.h"

namespace warpsmith {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

using Sizes = torch::headeronly::IntHeaderOnlyArrayRef;

// The stream PyTorch would use on `device`.
cudaStream_t current_stream(int device);

// PyTorch's name of a dtype: "torch.bfloat16".
std::string dtype_name(ScalarType type);

// "(2, 3)", "(5,)", "()".
std::string shape_text(Sizes sizes);

// "cuda:0", "cpu".
std::string device_text(const Tensor& tensor);

// The dtype as the kernels know it; empty for one that no kernel takes.
std::optional<Dtype> kernel_dtype(ScalarType type);

bool is_floating(ScalarType type);

template <class... Parts>
[[noreturn]] void fail(std::string_view op, const Parts&... parts) {
  std::string message(op);
  message += ": ";
  ((message += parts), ...);
  throw std::runtime_error(message);
}

void check_floating(std::string_view op, std::string_view name, const Tensor& tensor);
void check_same_dtype(std::string_view op, std::string_view name, const Tensor& tensor, const Tensor& like);
void check_same_device(std::string_view op, std::string_view name, const Tensor& tensor, const Tensor& like);
void check_same_shape(std::string_view op, std::string_view name, const Tensor& tensor, const Tensor& like);

// Uninitialised, on the device of `like`.
Tensor empty_strided(const Tensor& like, Sizes sizes, Sizes strides, ScalarType type);
Tensor empty_contiguous(const Tensor& like, Sizes sizes, ScalarType type);

// No gaps and no overlaps: the strides are those of a permutation of a contiguous tensor.
bool is_dense(const Tensor& tensor);

// The tensor or, where it is not contiguous, a copy.
inline Tensor dense(const Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor);
}

inline std::optional<Tensor> dense(const std::optional<Tensor>& tensor) {
  return tensor ? std::optional(dense(*tensor)) : std::nullopt;
}

namespace detail {

template <class Return>
struct Results {
  static constexpr size_t count = 1;
  static Return take(StableIValue* stack) { return torch::stable::detail::to<Return>(stack[0]); }
};

template <>
struct Results<void> {
  static constexpr size_t count = 0;
  static void take(StableIValue*) {}
};

// Where some outputs of an operator are optional, all of its fallback's are (dispatch._alike in Python).
template <class... Each>
struct Results<std::tuple<Each...>> {
  static constexpr size_t count = sizeof...(Each);
  static constexpr bool optional = (std::is_same_v<Each, std::optional<Tensor>> || ...);

  template <class Type>
  static Type taken(StableIValue& value) {
    if constexpr (optional && std::is_same_v<Type, Tensor>) {
      return torch::stable::detail::to<std::optional<Tensor>>(value).value();
    } else {
      return torch::stable::detail::to<Type>(value);
    }
  }
  static std::tuple<Each...> take(StableIValue* stack) {
    return [&]<size_t... i>(std::index_sequence<i...>) {
      return std::tuple<Each...>{taken<Each>(stack[i])...};
    }(std::index_sequence_for<Each...>{});
  }
};

}  // namespace detail

// Calls `op.fallback` (Triton, else the PyTorch reference) with the arguments of `op`. Return: a Tensor, a std::tuple or
// void.
template <class Return, class... Params>
Return call_fallback(const char* op, const Params&... params) {
  std::array<StableIValue, std::max(sizeof...(Params), detail::Results<Return>::count)> stack{
      torch::stable::detail::from(params)...};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(op, "fallback", stack.data(), TORCH_ABI_VERSION));
  return detail::Results<Return>::take(stack.data());
}

}  // namespace warpsmith
