#include "host/tensor.h"

#include <dlfcn.h>

#include <algorithm>
#include <vector>

namespace warpsmith {

cudaStream_t current_stream(int device) {
  // libtorch_cuda is never linked, so that the library loads beside a CPU-only torch too.
  using GetStream = AOTITorchError (*)(int32_t, void**);
  static const GetStream get_stream = [] {
    void* library = dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_LAZY);
    void* symbol = library ? dlsym(library, "aoti_torch_get_current_cuda_stream") : nullptr;
    if (symbol == nullptr) throw std::runtime_error("warpsmith: this PyTorch has no CUDA support");
    return reinterpret_cast<GetStream>(symbol);
  }();
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(get_stream(device, &stream));
  return static_cast<cudaStream_t>(stream);
}

std::string dtype_name(ScalarType type) {
  switch (type) {
    case ScalarType::Byte:
      return "torch.uint8";
    case ScalarType::Char:
      return "torch.int8";
    case ScalarType::Short:
      return "torch.int16";
    case ScalarType::Int:
      return "torch.int32";
    case ScalarType::Long:
      return "torch.int64";
    case ScalarType::Bool:
      return "torch.bool";
    case ScalarType::Half:
      return "torch.float16";
    case ScalarType::BFloat16:
      return "torch.bfloat16";
    case ScalarType::Float:
      return "torch.float32";
    case ScalarType::Double:
      return "torch.float64";
    case ScalarType::ComplexHalf:
      return "torch.complex32";
    case ScalarType::ComplexFloat:
      return "torch.complex64";
    case ScalarType::ComplexDouble:
      return "torch.complex128";
    case ScalarType::Float8_e4m3fn:
      return "torch.float8_e4m3fn";
    case ScalarType::Float8_e5m2:
      return "torch.float8_e5m2";
    default:
      return "dtype " + std::to_string(static_cast<int>(type));
  }
}

std::string shape_text(Sizes sizes) {
  std::string text = "(";
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(sizes[i]);
  }
  return text + (sizes.size() == 1 ? ",)" : ")");
}

std::string device_text(const Tensor& tensor) {
  if (tensor.is_cpu()) return "cpu";
  if (tensor.is_cuda()) return "cuda:" + std::to_string(tensor.get_device_index());
  return "another device";
}

std::optional<Dtype> kernel_dtype(ScalarType type) {
  switch (type) {
    case ScalarType::Float:
      return Dtype::f32;
    case ScalarType::Half:
      return Dtype::f16;
    case ScalarType::BFloat16:
      return Dtype::bf16;
    case ScalarType::Float8_e4m3fn:
      return Dtype::e4m3;
    case ScalarType::Float8_e5m2:
      return Dtype::e5m2;
    case ScalarType::Char:
      return Dtype::i8;
    case ScalarType::Int:
      return Dtype::i32;
    default:
      return std::nullopt;
  }
}

bool is_floating(ScalarType type) {
  const auto dtype = kernel_dtype(type);
  return type == ScalarType::Double || (dtype && *dtype != Dtype::i8 && *dtype != Dtype::i32);
}

void check_floating(std::string_view op, std::string_view name, const Tensor& tensor) {
  if (is_floating(tensor.scalar_type())) return;
  fail(op, "expected ", name, " to be a floating-point tensor, got ", dtype_name(tensor.scalar_type()));
}

void check_same_dtype(std::string_view op, std::string_view name, const Tensor& tensor, const Tensor& like) {
  if (tensor.scalar_type() == like.scalar_type()) return;
  fail(op, "expected ", name, " to have dtype ", dtype_name(like.scalar_type()), " like x, got ",
       dtype_name(tensor.scalar_type()));
}

void check_same_device(std::string_view op, std::string_view name, const Tensor& tensor, const Tensor& like) {
  if (tensor.is_cuda() == like.is_cuda() && tensor.get_device_index() == like.get_device_index()) return;
  fail(op, "expected ", name, " to be on ", device_text(like), " like x, got ", device_text(tensor));
}

void check_same_shape(std::string_view op, std::string_view name, const Tensor& tensor, const Tensor& like) {
  const Sizes a = tensor.sizes(), b = like.sizes();
  if (a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin())) return;
  fail(op, "expected ", name, " to have shape ", shape_text(b), " like x, got ", shape_text(a));
}

Tensor empty_strided(const Tensor& like, Sizes sizes, Sizes strides, ScalarType type) {
  AtenTensorHandle handle = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(
      static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(),
      torch::stable::detail::to<int32_t>(torch::stable::detail::from(type)),
      like.is_cuda() ? aoti_torch_device_type_cuda() : aoti_torch_device_type_cpu(), like.get_device_index(), &handle));
  return Tensor(handle);
}

Tensor empty_contiguous(const Tensor& like, Sizes sizes, ScalarType type) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(sizes[i], 1);
  }
  return empty_strided(like, sizes, Sizes(strides.data(), strides.size()), type);
}

bool is_dense(const Tensor& tensor) {
  if (tensor.is_contiguous()) return true;
  const Sizes sizes = tensor.sizes(), strides = tensor.strides();
  std::vector<size_t> order;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] != 1) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return strides[a] < strides[b]; });
  int64_t expected = 1;
  for (const size_t i : order) {
    if (strides[i] != expected) return false;
    expected *= sizes[i];
  }
  return true;
}

}  // namespace warpsmith
