// GEMV: checks, allocation, the choice of the rung.
#include "gemm/gemv/gemv.h"

#include "gemm/vectors.h"
#include "host/serve.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "gemv";
const Ladder<GemvArgs> ladder{kOp};

void check(const Tensor& a, const Tensor& x) {
  check_wide_floating(kOp, "a", a);
  check_matrix(kOp, a);
  check_device_like(kOp, "x", x, a, "a");
  check_same_dtype_as_a(kOp, x, a);
  check_vectors(kOp, x, a);
}

// As many values of x as a rung may read at a time: those of row-major weights that it meets with one access, or a pack of
// column-major ones.
int access_width(const GemvArgs& a) {
  if (needs_column_packs(a) == nullptr) return 16 / size_of(a.dtype);
  for (const int width : {16 / size_of(a.dtype), 4}) {
    if (tiles_weights(a, width)) return width;
  }
  return 1;
}

// For the rungs that cut k into slices.
int slices_of(std::string_view rung, const GemvArgs& a) {
  if (rung == "split_k") return split_k_slices(a);
  if (rung == "columns") return columns_slices(a);
  if (rung == "skinny_columns") return skinny_columns_slices(a);
  if (rung == "skinny") return skinny_slices(a);
  return 1;
}

std::optional<Tensor> run(const CallInto& call, const Tensor& a, const Tensor& x) {
  check(a, x);
  if (!has_kernel(call, a)) return std::nullopt;
  const Dtype dtype = *kernel_dtype(a.scalar_type());
  const Dtype accumulator = accumulator_of(call, dtype);
  Tensor y = product_of(call, a, x, a.scalar_type());
  if (y.numel() == 0) return y;
  const int device = a.get_device_index();
  const DeviceScope scope(device);
  if (a.size(1) == 0) {
    torch::stable::zero_(y);
    return y;
  }

  const DeviceInfo& info = device_info(device);
  GemvArgs args{
      .a = a.data_ptr(),
      .x = x.data_ptr(),
      .y = y.data_ptr(),
      .workspace = nullptr,
      .m = a.size(0),
      .k = a.size(1),
      .vectors = vector_count(x),
      .a_row = a.stride(0),
      .a_col = a.stride(1),
      .x_row = vector_stride(x),
      .sm_count = info.sm_count,
      .dtype = dtype,
      .accumulator = accumulator,
  };
  const Tensor values = aligned_vectors(x, dtype, access_width(args));
  args.x = values.data_ptr();
  args.x_row = vector_stride(values);

  const Rung<GemvArgs>* rung = pick(call, args, info.sm);
  if (rung == nullptr) return std::nullopt;
  const int slices = slices_of(rung->name, args);
  std::optional<Tensor> workspace;
  if (slices > 1) {
    const int64_t floats = args.m * args.vectors * slices;
    workspace = empty_contiguous(a, Sizes(&floats, 1), ScalarType::Float);
    args.workspace = static_cast<float*>(workspace->data_ptr());
  }
  Ladder<GemvArgs>::run(*rung, args, current_stream(device));
  return y;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind_into<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
