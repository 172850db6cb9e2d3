// rope and rope_inplace: checks, allocation, the choice of the rung.
#include "transform/rope/rope.h"

#include <tuple>

#include "host/serve.h"
#include "host/share_memory.h"
#include "rotary/operands.h"

namespace warpsmith {
namespace {

constexpr const char *kOp = "rope", *kInPlace = "rope_inplace";
const Ladder<RopeArgs> ladder{kOp};

using Results = std::tuple<Tensor, Tensor>;

RopeArgs rope_args(const Tensor& q, const Tensor& k, const Tensor& q_out, const Tensor& k_out,
                   const RotaryAngles& angles) {
  return {
      .q = rotary_heads(q, q_out),
      .k = rotary_heads(k, k_out),
      .angles = angles,
      .batch = static_cast<int>(q.size(0)),
      .tokens = static_cast<int>(q.size(1)),
      .d = static_cast<int>(q.size(3)),
      .in_place = q.data_ptr() == q_out.data_ptr(),
      .dtype = *kernel_dtype(q.scalar_type()),
  };
}

std::optional<Results> run(const Call& call, const Tensor& q, const Tensor& k, const OptionalTensor& cos,
                           const OptionalTensor& sin, const OptionalTensor& positions, const OptionalTensor& turns,
                           const OptionalTensor& axes, double factor, bool interleaved, bool inverse) {
  check_rotary_heads(kOp, q, k);
  const RotaryOperands operands{cos, sin, positions, turns, axes};
  const int64_t pairs = check_rotary(kOp, q, operands);
  if (!has_kernel(call, q)) return std::nullopt;
  Tensor q_out = empty_rows_like(q), k_out = empty_rows_like(k);
  if (q.numel() == 0 && k.numel() == 0) return Results{q_out, k_out};
  const HeldRotary held(operands);
  const Tensor queries = with_unit_columns(q), keys = with_unit_columns(k);
  const RotaryAngles angles = rotary_angles(held, positions, pairs, {factor, interleaved, inverse});
  const bool served = serve(call, rope_args(queries, keys, q_out, k_out, angles), q);
  return served ? std::optional(Results{q_out, k_out}) : std::nullopt;
}

bool run_in_place(const Call& call, const Tensor& q, const Tensor& k, const OptionalTensor& cos,
                  const OptionalTensor& sin, const OptionalTensor& positions, const OptionalTensor& turns,
                  const OptionalTensor& axes, double factor, bool interleaved, bool inverse) {
  check_rotary_heads(kInPlace, q, k);
  check_apart(kInPlace, "q", q);
  check_apart(kInPlace, "k", k);
  check_own_memory(kInPlace, "q", q, "k", k);
  const RotaryOperands operands{cos, sin, positions, turns, axes};
  const int64_t pairs = check_rotary(kInPlace, q, operands);
  if (!has_kernel(call, q)) return false;
  if (q.numel() == 0 && k.numel() == 0) return true;
  if (!has_unit_columns(q) || !has_unit_columns(k)) {
    if (call.named != nullptr) fail(kInPlace, "rung '", call.named->rung, "' needs heads without gaps");
    return false;
  }
  const HeldRotary held(operands);
  const RotaryAngles angles = rotary_angles(held, positions, pairs, {factor, interleaved, inverse});
  return serve(call, rope_args(q, k, q, k, angles), q);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  bind<&run>(m, kOp);
  bind<&run_in_place>(m, kInPlace);
}

}  // namespace
}  // namespace warpsmith
