// Gradients of attention, of sequences of one length and of several that lie one behind the other: checks, allocation,
// the choice of the rung.
#include "attention/flash_attention/backward/flash_attention_backward.h"

#include <optional>
#include <tuple>

#include "attention/checks.h"
#include "attention/operands.h"
#include "host/serve.h"

namespace warpsmith {
namespace {

const Ladder<AttentionBackwardArgs> ladder{"flash_attention/backward"};

// dq, dk, dv, dbias, dsinks, dslopes, dgate
using Gradients = std::tuple<Tensor, Tensor, Tensor, OptionalTensor, OptionalTensor, OptionalTensor, OptionalTensor>;

// What the call computed, and what became of it.
struct Answer {
  Tensor grad_out;
  OptionalTensor grad_lse;
  Tensor out, lse;
};

struct Wanted {
  bool deterministic, batch_invariant, bias_gradient;
};

// Where sequences of several lengths begin.
struct Starts {
  Tensor q, k;
};

void check_answer(const char* op, const Tensor& q, const AttentionProblem& p, bool apart, const Answer& answer) {
  const int64_t tokens = q.size(q.dim() - 3);
  const int64_t rows[] = {p.batch, tokens, p.heads, p.dv}, lses[] = {p.batch, p.heads, tokens};
  const size_t skipped = apart ? 0 : 1;
  for (const auto& [name, x] : {std::pair{"grad_out", &answer.grad_out}, {"out", &answer.out}}) {
    detail::check_like_q(op, name, *x, q);
    detail::check_shape(op, name, *x, Sizes(rows + skipped, 4 - skipped), "that of the output");
  }
  for (const auto& [name, x] : {std::pair{"lse", OptionalTensor(answer.lse)}, {"grad_lse", answer.grad_lse}}) {
    if (!x) continue;
    detail::check_dtype(op, name, *x, q, wide_type(q));
    detail::check_shape(op, name, *x, Sizes(lses + skipped, 3 - skipped), "a value for each query and head");
  }
}

BiasGradient as_bias_gradient(const Tensor& bias, const Tensor& to) {
  int extents[4] = {1, 1, 1, 1};
  const Sizes sizes = bias.sizes();
  for (size_t i = 0; i < sizes.size(); ++i) extents[4 - sizes.size() + i] = static_cast<int>(sizes[i]);
  return {to.data_ptr(), extents[0], extents[1], extents[2], extents[3]};
}

Tensor contiguous_like(const Tensor& x) { return empty_contiguous(x, x.sizes(), x.scalar_type()); }

std::optional<Gradients> differentiate(const Call& call, Tensor q, Tensor k, Tensor v, const AttentionProblem& p,
                                       const std::optional<Starts>& starts, Answer answer,
                                       const AttentionOptions& options, const Wanted& wanted) {
  if (!has_kernel(call, q)) return std::nullopt;
  const DeviceScope scope(q.get_device_index());
  const int64_t q_tokens = q.size(q.dim() - 3), k_tokens = k.size(k.dim() - 3);
  Gradients gradients{empty_out(q, p.d), empty_out(k, p.d), empty_out(v, p.dv), std::nullopt,
                      std::nullopt,      std::nullopt,      std::nullopt};
  auto& [dq, dk, dv, dbias, dsinks, dslopes, dgate] = gradients;
  if (options.bias && wanted.bias_gradient) dbias = contiguous_like(*options.bias);
  if (options.sinks) dsinks = contiguous_like(*options.sinks);
  if (options.alibi_slopes) dslopes = contiguous_like(*options.alibi_slopes);
  if (options.gate) dgate = empty_out(*options.gate, p.dv);
  if (!has_values(gradients)) return gradients;

  const OptionalTensor cu_q = starts ? std::optional(dense(starts->q)) : std::nullopt;
  const OptionalTensor cu_k = starts ? std::optional(dense(starts->k)) : std::nullopt;
  const OptionalTensor grad_lse = dense(answer.grad_lse);
  const Tensor lse = dense(answer.lse);
  const DeviceInfo& gpu = device_info(q.get_device_index());
  OptionCopies copies;
  AttentionBackwardArgs args{
      .of =
          {
              .q = as_head_rows(q),
              .k = as_head_rows(k),
              .v = as_head_rows(v),
              .out = as_head_rows(answer.out),
              .lse = static_cast<float*>(lse.data_ptr()),
              .lse_batch = starts ? 0 : p.heads * q_tokens,
              .lse_head = q_tokens,
              .cu_q = cu_q ? static_cast<const int32_t*>(cu_q->data_ptr()) : nullptr,
              .cu_k = cu_k ? static_cast<const int32_t*>(cu_k->data_ptr()) : nullptr,
              .q_tokens = q_tokens,
              .k_tokens = k_tokens,
              .batch = static_cast<int>(p.batch),
              .q_heads = static_cast<int>(p.heads),
              .kv_heads = static_cast<int>(p.kv_heads),
              .m = static_cast<int>(p.m),
              .n = static_cast<int>(p.n),
              .d = static_cast<int>(p.d),
              .dv = static_cast<int>(p.dv),
              .dtype = *kernel_dtype(q.scalar_type()),
              .accumulator = accumulator_of(call, *kernel_dtype(q.scalar_type())),
              .deterministic = wanted.deterministic,
              .batch_invariant = wanted.batch_invariant,
          },
      .grad = as_head_rows(answer.grad_out),
      .grad_lse = grad_lse ? static_cast<const float*>(grad_lse->data_ptr()) : nullptr,
      .dq = head_rows(dq),
      .dk = head_rows(dk),
      .dv = head_rows(dv),
      .dslopes = dslopes ? static_cast<float*>(dslopes->data_ptr()) : nullptr,
      .dsinks = dsinks ? static_cast<float*>(dsinks->data_ptr()) : nullptr,
      .q_rows = workspace_rows(starts ? q_tokens : p.batch * p.m, static_cast<int>(p.batch)),
      .k_rows = workspace_rows(starts ? k_tokens : p.batch * p.n, static_cast<int>(p.batch)),
      .sm = gpu.sm,
      .sm_count = gpu.sm_count,
  };
  set_options(args.of, copies, options);
  if (dgate) args.dgate = head_rows(*dgate);
  if (dbias) args.dbias = as_bias_gradient(*options.bias, *dbias);
  const Rung<AttentionBackwardArgs>* rung = pick(call, args, gpu.sm);
  if (rung == nullptr) return std::nullopt;
  const bool nothing = p.batch * p.m * p.heads == 0 || q_tokens == 0;
  // Tokens that no sequence covers, and what no query comes to, get 0.
  if (starts || nothing) {
    for (Tensor* x : {&dq, &dk, &dv}) torch::stable::zero_(*x);
    if (dgate) torch::stable::zero_(*dgate);
  }
  if (nothing) {
    for (OptionalTensor* x : {&dbias, &dsinks, &dslopes}) {
      if (*x) torch::stable::zero_(**x);
    }
    return gradients;
  }
  const int64_t floats = workspace_of(args, most_needs(args)).bytes / 4;
  const Tensor workspace = empty_contiguous(q, Sizes(&floats, 1), ScalarType::Float);
  args.workspace = static_cast<char*>(workspace.data_ptr());
  Ladder<AttentionBackwardArgs>::run(*rung, args, current_stream(q.get_device_index()));
  return gradients;
}

std::optional<Gradients> flash_attention_backward(
    const Call& call, const Tensor& grad_out, const OptionalTensor& grad_lse, const Tensor& q, const Tensor& k,
    const Tensor& v, const Tensor& out, const Tensor& lse, double scale, bool causal, int64_t window_left,
    int64_t window_right, double softcap, const OptionalTensor& alibi_slopes, const OptionalTensor& mask,
    const OptionalTensor& bias, const OptionalTensor& sinks, const OptionalTensor& gate,
    const OptionalTensor& q_documents, const OptionalTensor& k_documents, const OptionalTensor& tree, double dropout_p,
    int64_t seed, int64_t offset, bool deterministic, bool batch_invariant, bool bias_gradient) {
  const AttentionOptions options{scale, causal, window_left, window_right, softcap, alibi_slopes, mask, bias,
                                 sinks, gate,   q_documents, k_documents,  tree,    dropout_p,    seed, offset};
  check_heads(call.op, q, k, v, 4);
  const AttentionProblem p{q.size(0), q.size(1), k.size(1), q.size(2), k.size(2), q.size(3), v.size(3)};
  const int64_t rows[] = {p.batch, p.m, p.heads, p.dv};
  check_options(call.op, q, p, Sizes(rows, 4), options);
  const Answer answer{grad_out, grad_lse, out, lse};
  check_answer(call.op, q, p, true, answer);
  return differentiate(call, q, k, v, p, std::nullopt, answer, options,
                       {deterministic, batch_invariant, bias_gradient});
}

std::optional<Gradients> flash_attention_varlen_backward(
    const Call& call, const Tensor& grad_out, const OptionalTensor& grad_lse, const Tensor& q, const Tensor& k,
    const Tensor& v, const Tensor& out, const Tensor& lse, const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k,
    int64_t max_seqlen_q, int64_t max_seqlen_k, double scale, bool causal, int64_t window_left, int64_t window_right,
    double softcap, const OptionalTensor& alibi_slopes, const OptionalTensor& mask, const OptionalTensor& bias,
    const OptionalTensor& sinks, const OptionalTensor& gate, const OptionalTensor& q_documents,
    const OptionalTensor& k_documents, const OptionalTensor& tree, double dropout_p, int64_t seed, int64_t offset,
    bool deterministic, bool batch_invariant, bool bias_gradient) {
  const AttentionOptions options{scale, causal, window_left, window_right, softcap, alibi_slopes, mask, bias,
                                 sinks, gate,   q_documents, k_documents,  tree,    dropout_p,    seed, offset};
  check_heads(call.op, q, k, v, 3);
  check_sequences(call.op, q, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k);
  const AttentionProblem p{
      cu_seqlens_q.size(0) - 1, max_seqlen_q, max_seqlen_k, q.size(1), k.size(1), q.size(2), v.size(2)};
  const int64_t rows[] = {q.size(0), p.heads, p.dv};
  check_options(call.op, q, p, Sizes(rows, 3), options);
  const Answer answer{grad_out, grad_lse, out, lse};
  check_answer(call.op, q, p, false, answer);
  return differentiate(call, q, k, v, p, Starts{cu_seqlens_q, cu_seqlens_k}, answer, options,
                       {deterministic, batch_invariant, bias_gradient});
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  bind<&flash_attention_backward>(m, "flash_attention_backward");
  bind<&flash_attention_varlen_backward>(m, "flash_attention_varlen_backward");
}

}  // namespace
}  // namespace warpsmith
