// What bindings of products share: checks, the output, the choice of the rung. `Args` is GemmArgs or a struct of its own
// that adds nothing, where an operator has a ladder of its own.
#pragma once

#include <string>

#include "gemm/operands.h"
#include "gemm/padding.h"
#include "gemm/split.h"
#include "host/checks.h"
#include "host/ladder.h"
#include "host/named.h"

namespace warpsmith {

// Runs the rung on `out`; false where the ladder has none for the call.
template <class Args>
bool run(const char* op, Args& p, const Tensor& out, const Named* named) {
  const int device = out.get_device_index();
  const DeviceScope scope(device);
  const DeviceInfo& info = device_info(device);
  merge_batch_into_rows(p);
  p.d = out.data_ptr();
  p.dtype = *kernel_dtype(out.scalar_type());
  p.accumulator = named != nullptr ? accumulator_of(op, *named, p.dtype) : Dtype::f32;
  p.sm = info.sm;
  p.sm_count = info.sm_count;
  Tensor workspace;
  const bool pads = named != nullptr ? named->rung == kPaddedRung : worth_padding(p);
  if (const int64_t bytes = pads ? padded_workspace_bytes(p) : split_workspace_bytes(p); bytes > 0) {
    const int64_t sums = bytes / static_cast<int64_t>(sizeof(float));
    workspace = empty_contiguous(out, Sizes(&sums, 1), ScalarType::Float);
    p.workspace = workspace.data_ptr();
  }
  const cudaStream_t stream = current_stream(device);
  if (named != nullptr) {
    Ladder<Args>::run_named(op, named->rung, p, info.sm, stream);
    return true;
  }
  const Rung<Args>* best = Ladder<Args>::choose(p, info.sm);
  if (best == nullptr) return false;
  Ladder<Args>::run(*best, p, stream);
  return true;
}

inline void check_operand(const char* op, const char* name, const Tensor& x, int least) {
  check_wide_floating(op, name, x);
  if (x.dim() < least) {
    fail(op, "expected at least ", std::to_string(least), " dimension", least > 1 ? "s" : "", " in ", name,
         ", got shape ", shape_text(x.sizes()));
  }
}

// The shape of the product: the batch, then rows and columns where the operand is no vector.
inline Tensor empty_product(const Tensor& a, const Batch& batch, const Layout& left, const Layout& right, bool rows,
                            bool cols) {
  Batch shape = batch;
  if (rows) shape.size[shape.rank++] = left.rows();
  if (cols) shape.size[shape.rank++] = right.cols();
  return empty_contiguous(a, Sizes(shape.size.data(), shape.rank), a.scalar_type());
}

// a b with the shapes of torch.matmul, by operator `op`: by the rung that is named, by one of its ladder's choice, or by
// its fallback where the ladder has none. `options`: what the operator takes beside a and b, of which batch_invariant is
// the only one there is.
template <class Args, class... Options>
Tensor multiply(const char* op, const Tensor& a, const Tensor& b, const Named* named, Options... options) {
  check_operand(op, "a", a, 1);
  check_operand(op, "b", b, 1);
  check_alike(op, "b", b, a, "a");
  const Layout left = layout_of(a, Reading::left), right = layout_of(b, Reading::right);
  Batch batch;
  if (left.cols() != right.rows() || !broadcast(batch, left, right)) {
    fail(op, "cannot multiply shapes ", shape_text(a.sizes()), " and ", shape_text(b.sizes()));
  }
  const auto fall_back = [&] {
    return call_fallback<Tensor>((std::string("warpsmith::") + op).c_str(), a, b, options...);
  };
  if (!has_float_kernel(a)) {
    if (named != nullptr) fail(op, "no rung takes ", dtype_name(a.scalar_type()));
    return fall_back();
  }
  Tensor out = empty_product(a, batch, left, right, a.dim() > 1, b.dim() > 1);
  if (out.numel() == 0) return out;
  if (left.cols() == 0) {
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
      .batch_invariant = (options || ...),
  };
  return run(op, args, out, named) ? out : fall_back();
}

}  // namespace warpsmith
