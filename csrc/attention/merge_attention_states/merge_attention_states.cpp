// Joining two attentions of the same queries: checks, allocation, the choice of the rung.
#include "attention/merge_attention_states/merge_attention_states.h"

#include "attention/cache_operands.h"
#include "host/serve.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "merge_attention_states";
const Ladder<MergeAttentionStatesArgs> ladder{kOp};

void check(const Tensor& a, const Tensor& lse_a, const Tensor& b, const Tensor& lse_b) {
  check_wide_floating(kOp, "out_a", a);
  check_heads(kOp, "out_a", a);
  check_like(kOp, "out_b", b, a, "out_a");
  const ScalarType wide = a.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
  for (const auto& [name, lse] : {std::pair("lse_a", &lse_a), std::pair("lse_b", &lse_b)}) {
    check_device_like(kOp, name, *lse, a, "out_a");
    check_dtype(kOp, name, *lse, wide);
    check_shape(kOp, name, *lse, {a.size(0), a.size(2), a.size(1)});
  }
}

SumRows sum_rows(const Tensor& x) {
  return {.data = static_cast<float*>(x.data_ptr()), .batch = x.stride(0), .head = x.stride(1), .token = x.stride(2)};
}

using Merged = std::tuple<Tensor, Tensor>;

std::optional<Merged> run(const Call& call, const Tensor& a, const Tensor& lse_a, const Tensor& b,
                          const Tensor& lse_b) {
  check(a, lse_a, b, lse_b);
  if (!has_kernel(call, a)) return std::nullopt;
  const Tensor out = is_dense(a) && has_unit_heads(a) ? empty_strided(a, a.sizes(), a.strides(), a.scalar_type())
                                                      : empty_contiguous(a, a.sizes(), a.scalar_type());
  const Tensor lse = empty_contiguous(a, lse_a.sizes(), lse_a.scalar_type());
  if (lse.numel() == 0) return Merged{out, lse};
  const Tensor first = with_unit_heads(a), second = with_unit_heads(b);
  const MergeAttentionStatesArgs args{
      .a = head_rows(first),
      .b = head_rows(second),
      .out = head_rows(out),
      .lse_a = sum_rows(lse_a),
      .lse_b = sum_rows(lse_b),
      .lse = sum_rows(lse),
      .batch = a.size(0),
      .m = a.size(1),
      .heads = a.size(2),
      .d = a.size(3),
      .dtype = *kernel_dtype(a.scalar_type()),
  };
  return serve(call, args, a) ? std::optional(Merged{out, lse}) : std::nullopt;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
