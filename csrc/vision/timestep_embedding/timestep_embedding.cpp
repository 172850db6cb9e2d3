// timestep_embedding: checks, allocation, the choice of the rung.
#include "vision/timestep_embedding/timestep_embedding.h"

#include <optional>

#include "host/serve.h"
#include "vision/check_steps.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "timestep_rows";
const Ladder<TimestepEmbeddingArgs> ladder{"timestep_embedding"};

std::optional<Tensor> run(const Call& call, const Tensor& table, const Tensor& t) {
  check_floating(kOp, "table", table);
  if (table.dim() != 2) fail(kOp, "expected table to have shape (steps, dim), got ", shape_text(table.sizes()));
  check_steps(kOp, t, table, "table");
  if (t.dim() != 1) fail(kOp, "expected t to have 1 dimension, got shape ", shape_text(t.sizes()));
  if (!has_kernel(call, table)) return std::nullopt;
  const int64_t shape[] = {t.size(0), table.size(1)};
  Tensor y = empty_contiguous(table, Sizes(shape, 2), table.scalar_type());
  if (y.numel() == 0) return y;
  const Tensor rows = table.stride(1) == 1 || shape[1] == 1 ? table : dense(table);
  const Tensor steps = dense(t);
  const TimestepEmbeddingArgs args{
      .table = rows.data_ptr(),
      .t = {.at = steps.data_ptr(), .is_long = t.scalar_type() == ScalarType::Long, .limit = table.size(0)},
      .y = y.data_ptr(),
      .n = shape[0],
      .dim = shape[1],
      .stride = rows.stride(0),
      .dtype = *kernel_dtype(table.scalar_type()),
  };
  return serve(call, args, table) ? std::optional(y) : std::nullopt;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
