// Products of groups: checks, allocation, the choice of the rung.
#include "gemm/grouped_matmul/grouped_matmul.h"

#include <string>

#include "gemm/operands.h"
#include "host/into.h"
#include "host/named_of_nothing.h"
#include "host/serve.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "grouped_matmul";
const Ladder<GroupedArgs> ladder{kOp};

void check(const Tensor& x, const Tensor& w, const Tensor& offsets) {
  check_wide_floating(kOp, "x", x);
  check_wide_floating(kOp, "w", w);
  if (x.dim() != 2) fail(kOp, "expected x to be 2-D, got shape ", shape_text(x.sizes()));
  if (w.dim() != 2 && w.dim() != 3) fail(kOp, "expected w to be 2-D or 3-D, got shape ", shape_text(w.sizes()));
  check_alike(kOp, "w", w, x, "x");
  check_device_like(kOp, "offs", offsets, x, "x");
  if (offsets.scalar_type() != ScalarType::Int) {
    fail(kOp, "expected offs to have dtype torch.int32, got ", dtype_name(offsets.scalar_type()));
  }
  if (offsets.dim() != 1) fail(kOp, "expected offs to be 1-D, got shape ", shape_text(offsets.sizes()));
  if (x.size(1) != w.size(w.dim() - 2)) {
    fail(kOp, "cannot multiply shapes ", shape_text(x.sizes()), " and ", shape_text(w.sizes()));
  }
  if (w.dim() == 3 && offsets.size(0) != w.size(0)) {
    fail(kOp, "expected offs to have shape (", std::to_string(w.size(0)), ",), one end per matrix of w, got ",
         shape_text(offsets.sizes()));
  }
}

std::optional<Tensor> run(const CallInto& call, const Tensor& x, const Tensor& w, const Tensor& offsets) {
  check(x, w, offsets);
  if (!has_kernel(call, x)) return std::nullopt;
  const bool along_k = w.dim() == 2;
  const int64_t groups = offsets.size(0), m = x.size(0), k = x.size(1), n = w.size(w.dim() - 1);
  const int64_t shape[3] = {groups, m, n};
  Tensor d = result(call, x, along_k ? Sizes(shape, 3) : Sizes(shape + 1, 2), x.scalar_type());
  if (d.numel() == 0 || groups == 0) return d;
  if (k == 0) {
    check_named_of_nothing<GroupedArgs>(call, x);
    torch::stable::zero_(d);
    return d;
  }

  Tensor dense_x = x, dense_w = w;
  const Tensor ends = dense(offsets);
  Batch batch;
  if (!along_k) batch = {.size = {groups}, .rank = 1};
  const DeviceInfo& info = device_info(x.get_device_index());
  const GroupedArgs args{
      .x = ordered(dense_x, along_k ? Order::columns : Order::rows),
      .w = along_k ? ordered(dense_w, Order::rows) : as_matrices(dense_w, Reading::right, batch),
      .d = d.data_ptr(),
      .groups = {static_cast<const int32_t*>(ends.data_ptr()), groups, along_k ? k : m},
      .m = m,
      .n = n,
      .k = k,
      .along_k = along_k,
      .dtype = *kernel_dtype(x.scalar_type()),
      .sm = info.sm,
      .sm_count = info.sm_count,
  };
  return serve(call, args, d) ? std::optional(d) : std::nullopt;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind_into<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
