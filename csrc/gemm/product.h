// What bindings of products share: checks, the output, the choice of the rung. `Args` is GemmArgs or a struct of its own
// that adds nothing, where an operator has a ladder of its own.
#pragma once

#include <optional>
#include <string>

#include "gemm/operands.h"
#include "gemm/padding.h"
#include "gemm/split.h"
#include "host/into.h"
#include "host/named_of_nothing.h"
#include "host/serve.h"

namespace warpsmith {

// Runs the rung on `out`, of operands of `type`; false where the ladder has none for the call.
template <class Args>
bool run(const Call& call, Args& p, const Tensor& out, ScalarType type) {
  const int device = out.get_device_index();
  const DeviceScope scope(device);
  const DeviceInfo& info = device_info(device);
  merge_batch_into_rows(p);
  p.d = out.data_ptr();
  p.dtype = *kernel_dtype(type);
  p.wide = type != out.scalar_type();
  p.accumulator = accumulator_of(call, p.dtype);
  p.sm = info.sm;
  p.sm_count = info.sm_count;
  Tensor workspace;
  const bool pads = call.named != nullptr ? is_padded_rung(call.named->rung) : worth_padding_for_wgmma(p);
  if (const int64_t bytes = pads ? padded_workspace_bytes(p) : split_workspace_bytes(p); bytes > 0) {
    const int64_t sums = bytes / static_cast<int64_t>(sizeof(float));
    workspace = empty_contiguous(out, Sizes(&sums, 1), ScalarType::Float);
    p.workspace = workspace.data_ptr();
  }
  return serve(call, p, out);
}

template <class Args>
bool run(const Call& call, Args& p, const Tensor& out) {
  return run(call, p, out, out.scalar_type());
}

inline void check_operand(const char* op, const char* name, const Tensor& x, int least) {
  check_wide_floating(op, name, x);
  if (x.dim() < least) {
    fail(op, "expected at least ", std::to_string(least), " dimension", least > 1 ? "s" : "", " in ", name,
         ", got shape ", shape_text(x.sizes()));
  }
}

// The shape of the product: the batch, then rows and columns where the operand is no vector.
inline Tensor product_of(const CallInto& call, const Tensor& a, const Batch& batch, const Layout& left,
                         const Layout& right, bool rows, bool cols, std::optional<ScalarType> type = {}) {
  Batch shape = batch;
  if (rows) shape.size[shape.rank++] = left.rows();
  if (cols) shape.size[shape.rank++] = right.cols();
  return result(call, a, Sizes(shape.size.data(), shape.rank), type.value_or(a.scalar_type()));
}

// a b with the shapes of torch.matmul; nothing where the ladder has no rung for the call. `wide`: in f32 at least.
template <class Args>
std::optional<Tensor> multiply(const CallInto& call, const Tensor& a, const Tensor& b, bool batch_invariant = false,
                               bool wide = false) {
  check_operand(call.op, "a", a, 1);
  check_operand(call.op, "b", b, 1);
  check_alike(call.op, "b", b, a, "a");
  const Layout left = layout_of(a, Reading::left), right = layout_of(b, Reading::right);
  Batch batch;
  if (left.cols() != right.rows() || !broadcast(batch, left, right)) {
    fail(call.op, "cannot multiply shapes ", shape_text(a.sizes()), " and ", shape_text(b.sizes()));
  }
  if (!has_kernel(call, a)) return std::nullopt;
  const ScalarType type = wide ? ScalarType::Float : a.scalar_type();
  Tensor out = product_of(call, a, batch, left, right, a.dim() > 1, b.dim() > 1, type);
  if (out.numel() == 0) return out;
  if (left.cols() == 0) {
    check_named_of_nothing<Args>(call, a);
    torch::stable::zero_(out);
    return out;
  }
  Tensor dense_a = a, dense_b = b;
  Args args;
  static_cast<GemmArgs&>(args) = {
      .a = as_matrices(dense_a, Reading::left, batch),
      .b = as_matrices(dense_b, Reading::right, batch),
      .batch = batch.count(),
      .m = left.rows(),
      .n = right.cols(),
      .k = left.cols(),
      .alpha = 1.0f,
      .batch_invariant = batch_invariant,
  };
  return run(call, args, out, a.scalar_type()) ? std::optional(out) : std::nullopt;
}

}  // namespace warpsmith
