// Cumulative sums: checks, the layout, allocation, the choice of the rung.
#include "reduce/cumsum/cumsum.h"

#include <optional>

#include "host/ladder.h"
#include "reduce/dims.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "cumsum";
const Ladder<CumsumArgs> ladder{kOp};

bool has_kernel(const Tensor& x) {
  const auto dtype = kernel_dtype(x.scalar_type());
  return dtype && !is_fp8(*dtype) && *dtype != Dtype::i8;
}

Tensor run(const Tensor& x, int64_t dim, bool reverse, bool batch_invariant, const std::string* rung) {
  check_real(kOp, x);
  const int64_t d = check_dim(kOp, x, dim);
  if (!has_kernel(x)) {
    if (rung != nullptr) fail(kOp, "no rung takes ", dtype_name(x.scalar_type()));
    return call_fallback<Tensor>("warpsmith::cumsum", x, dim, reverse, batch_invariant);
  }
  const Dtype dtype = *kernel_dtype(x.scalar_type());
  Tensor y = empty_contiguous(x, x.sizes(), dtype == Dtype::i32 ? ScalarType::Long : x.scalar_type());
  if (y.numel() == 0) return y;

  const int device = x.get_device_index();
  const DeviceScope scope(device);
  Tensor input = x;
  const bool columns = batch_invariant ? d + 1 < x.dim() : AroundDim(x, d).inner.size != 1;
  const DimView view = view_by_shape(input, d, /*rows=*/!columns);
  CumsumArgs args{
      .x = input.data_ptr(),
      .y = y.data_ptr(),
      .workspace = nullptr,
      .outer = view.outer,
      .n = view.n,
      .inner = view.inner,
      .stride_outer = view.stride_outer,
      .stride_n = view.stride_n,
      .stride_inner = view.stride_inner,
      .columns = columns,
      .reverse = reverse,
      .batch_invariant = batch_invariant,
      .dtype = dtype,
  };
  std::optional<Tensor> workspace;
  const int64_t bytes = workspace_bytes(args, /*may_tile=*/rung != nullptr || has_few_long_rows(args));
  if (bytes > 0) {
    workspace = empty_contiguous(x, Sizes(&bytes, 1), ScalarType::Byte);
    args.workspace = workspace->data_ptr();
  }
  const int sm = device_info(device).sm;
  const cudaStream_t stream = current_stream(device);
  if (rung != nullptr) {
    Ladder<CumsumArgs>::run_named(kOp, *rung, args, sm, stream);
  } else {
    const Rung<CumsumArgs>* best = Ladder<CumsumArgs>::choose(args, sm);
    if (best == nullptr) return call_fallback<Tensor>("warpsmith::cumsum", x, dim, reverse, batch_invariant);
    Ladder<CumsumArgs>::run(*best, args, stream);
  }
  return y;
}

Tensor cumsum(const Tensor& x, int64_t dim, bool reverse, bool batch_invariant) {
  return run(x, dim, reverse, batch_invariant, nullptr);
}

Tensor cumsum_rung(const Tensor& x, int64_t dim, bool reverse, bool batch_invariant, std::string rung, std::string) {
  return run(x, dim, reverse, batch_invariant, &rung);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  m.impl("cumsum", TORCH_BOX(&cumsum));
  m.impl("cumsum.rung", TORCH_BOX(&cumsum_rung));
}

}  // namespace
}  // namespace warpsmith
