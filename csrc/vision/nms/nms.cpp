// nms: checks, allocation, the choice of the rung.
#include "vision/nms/nms.h"

#include <optional>
#include <tuple>

#include "host/serve.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "nms_ordered";
const Ladder<NmsArgs> ladder{"nms"};

using Outputs = std::tuple<Tensor, Tensor>;  // keep, count

void check_numbers(std::string_view name, const Tensor& tensor, const Tensor& boxes) {
  check_device_like(kOp, name, tensor, boxes, "boxes");
  if (tensor.scalar_type() != ScalarType::Long) {
    fail(kOp, "expected ", name, " to have dtype torch.int64, got ", dtype_name(tensor.scalar_type()));
  }
  if (tensor.dim() != 1 || tensor.size(0) != boxes.size(0)) {
    fail(kOp, "expected ", name, " to have shape (", std::to_string(boxes.size(0)), ",), one for each box, got ",
         shape_text(tensor.sizes()));
  }
}

std::optional<Outputs> run(const Call& call, const Tensor& boxes, const Tensor& order, double threshold,
                           const std::optional<Tensor>& classes) {
  check_floating(kOp, "boxes", boxes);
  if (boxes.dim() != 2 || boxes.size(1) != 4) {
    fail(kOp, "expected boxes to have shape (n, 4), got ", shape_text(boxes.sizes()));
  }
  check_numbers("order", order, boxes);
  if (classes) check_numbers("classes", *classes, boxes);
  if (!has_kernel(call, boxes, kernel_dtype(boxes.scalar_type()) == Dtype::f32)) return std::nullopt;
  const int64_t n = boxes.size(0), one = 1;
  Tensor keep = empty_contiguous(boxes, Sizes(&n, 1), ScalarType::Long);
  Tensor count = empty_contiguous(boxes, Sizes(&one, 1), ScalarType::Long);
  if (n == 0) {
    torch::stable::zero_(count);
    return Outputs{keep, count};
  }
  const int64_t bytes = nms_workspace_bytes(n);
  const Tensor workspace = empty_contiguous(boxes, Sizes(&bytes, 1), ScalarType::Byte);
  const Tensor dense_boxes = dense(boxes), dense_order = dense(order);
  const std::optional<Tensor> dense_classes = dense(classes);
  const NmsArgs args{
      .boxes = static_cast<const float*>(dense_boxes.data_ptr()),
      .order = static_cast<const int64_t*>(dense_order.data_ptr()),
      .classes = dense_classes ? static_cast<const int64_t*>(dense_classes->data_ptr()) : nullptr,
      .keep = static_cast<int64_t*>(keep.data_ptr()),
      .count = static_cast<int64_t*>(count.data_ptr()),
      .workspace = workspace.data_ptr(),
      .n = n,
      .threshold = static_cast<float>(threshold),
  };
  return serve(call, args, boxes) ? std::optional(Outputs{keep, count}) : std::nullopt;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
