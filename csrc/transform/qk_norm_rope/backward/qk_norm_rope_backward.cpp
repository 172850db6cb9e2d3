// qk_norm_rope_backward: checks, allocation, the choice of the rung.
#include "transform/qk_norm_rope/backward/qk_norm_rope_backward.h"

#include <array>
#include <tuple>

#include "host/serve.h"
#include "transform/qk_norm_rope/operands.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "qk_norm_rope_backward";
const Ladder<QkNormRopeBackwardArgs> ladder{"qk_norm_rope/backward"};

using Results = std::tuple<Tensor, Tensor, Tensor, Tensor>;

std::optional<Results> run(const Call& call, const Tensor& grad_q, const Tensor& grad_k, const Tensor& q,
                           const Tensor& k, const Tensor& q_weight, const Tensor& k_weight, const OptionalTensor& cos,
                           const OptionalTensor& sin, const OptionalTensor& positions, const OptionalTensor& turns,
                           const OptionalTensor& axes, double factor, bool interleaved, double eps) {
  check_rotary_heads(kOp, q, k);
  check_like(kOp, "grad_q", grad_q, q, "q");
  check_like(kOp, "grad_k", grad_k, k, "k");
  check_head_weights(kOp, q, q_weight, k_weight);
  const RotaryOperands operands{cos, sin, positions, turns, axes};
  const int64_t pairs = check_rotary(kOp, q, operands);
  if (!has_kernel(call, q)) return std::nullopt;
  Tensor dq = empty_rows_like(q), dk = empty_rows_like(k);
  const ScalarType type = q_weight.scalar_type();
  Tensor dq_weight = empty_contiguous(q, q_weight.sizes(), type),
         dk_weight = empty_contiguous(q, k_weight.sizes(), type);
  if (q.numel() == 0 && k.numel() == 0) {
    torch::stable::zero_(dq_weight);
    torch::stable::zero_(dk_weight);
    return Results{dq, dk, dq_weight, dk_weight};
  }
  const HeldRotary held(operands);
  const Tensor queries = with_unit_columns(q), keys = with_unit_columns(k);
  const Tensor of_queries = with_unit_columns(grad_q), of_keys = with_unit_columns(grad_k);
  const Tensor of_q = dense(q_weight), of_k = dense(k_weight);
  const std::array<int64_t, 2> rows{partial_rows(q.size(2) + k.size(2)), q.size(3)};
  const Tensor partial = empty_contiguous(q, Sizes(rows.data(), rows.size()), ScalarType::Float);
  const QkNormRopeBackwardArgs args{
      .forward = {.rope = {.q = rotary_heads(queries, dq),
                           .k = rotary_heads(keys, dk),
                           .angles = rotary_angles(held, positions, pairs, {factor, interleaved, /*inverse=*/true}),
                           .batch = static_cast<int>(q.size(0)),
                           .tokens = static_cast<int>(q.size(1)),
                           .d = static_cast<int>(q.size(3)),
                           .in_place = false,
                           .dtype = *kernel_dtype(q.scalar_type())},
                  .q_weight = of_q.data_ptr(),
                  .k_weight = of_k.data_ptr(),
                  .eps = static_cast<float>(eps),
                  .weight_dtype = *kernel_dtype(type)},
      .q_grad = rotary_heads(of_queries, of_queries),
      .k_grad = rotary_heads(of_keys, of_keys),
      .dq_weight = dq_weight.data_ptr(),
      .dk_weight = dk_weight.data_ptr(),
      .partial = static_cast<float*>(partial.data_ptr()),
  };
  return serve(call, args, q) ? std::optional(Results{dq, dk, dq_weight, dk_weight}) : std::nullopt;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
