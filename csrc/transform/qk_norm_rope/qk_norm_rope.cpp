// qk_norm_rope: checks, allocation, the choice of the rung.
#include "transform/qk_norm_rope/qk_norm_rope.h"

#include <tuple>

#include "host/serve.h"
#include "transform/qk_norm_rope/operands.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "qk_norm_rope";
const Ladder<QkNormRopeArgs> ladder{kOp};

using Results = std::tuple<Tensor, Tensor>;

std::optional<Results> run(const Call& call, const Tensor& q, const Tensor& k, const Tensor& q_weight,
                           const Tensor& k_weight, const OptionalTensor& cos, const OptionalTensor& sin,
                           const OptionalTensor& positions, const OptionalTensor& turns, const OptionalTensor& axes,
                           double factor, bool interleaved, double eps) {
  check_rotary_heads(kOp, q, k);
  check_head_weights(kOp, q, q_weight, k_weight);
  const RotaryOperands operands{cos, sin, positions, turns, axes};
  const int64_t pairs = check_rotary(kOp, q, operands);
  if (!has_kernel(call, q)) return std::nullopt;
  Tensor q_out = empty_rows_like(q), k_out = empty_rows_like(k);
  if (q.numel() == 0 && k.numel() == 0) return Results{q_out, k_out};
  const HeldRotary held(operands);
  const Tensor queries = with_unit_columns(q), keys = with_unit_columns(k);
  const Tensor of_q = dense(q_weight), of_k = dense(k_weight);
  const QkNormRopeArgs args{
      .rope = {.q = rotary_heads(queries, q_out),
               .k = rotary_heads(keys, k_out),
               .angles = rotary_angles(held, positions, pairs, {factor, interleaved, false}),
               .batch = static_cast<int>(q.size(0)),
               .tokens = static_cast<int>(q.size(1)),
               .d = static_cast<int>(q.size(3)),
               .in_place = false,
               .dtype = *kernel_dtype(q.scalar_type())},
      .q_weight = of_q.data_ptr(),
      .k_weight = of_k.data_ptr(),
      .eps = static_cast<float>(eps),
      .weight_dtype = *kernel_dtype(q_weight.scalar_type()),
  };
  return serve(call, args, q) ? std::optional(Results{q_out, k_out}) : std::nullopt;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
