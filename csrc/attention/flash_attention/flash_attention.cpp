// Attention of sequences of one length, and of several that lie one behind the other: checks, allocation, the choice of the
// rung.
#include <limits>
#include <optional>
#include <tuple>

#include "attention/attention.h"
#include "attention/checks.h"
#include "attention/flash_attention/few_queries.h"
#include "attention/flash_attention/workspace.h"
#include "attention/operands.h"
#include "host/serve.h"

namespace warpsmith {
namespace {

const Ladder<AttentionArgs> ladder{"flash_attention"};

using Outputs = std::tuple<Tensor, OptionalTensor, OptionalTensor>;  // out, lse, max_logits

// What is asked for beside the answer, and promised of it.
struct Wanted {
  bool lse, max_logits, deterministic, batch_invariant;
};

// Where sequences of several lengths begin.
struct Starts {
  Tensor q, k;
};

std::optional<Outputs> attend(const Call& call, Tensor q, Tensor k, Tensor v, const AttentionProblem& p,
                              const std::optional<Starts>& starts, const AttentionOptions& options,
                              const Wanted& wanted) {
  if (!has_kernel(call, q)) return std::nullopt;
  const int device = q.get_device_index();
  const DeviceScope scope(device);
  const int64_t tokens = q.size(q.dim() - 3);
  const int64_t lse_sizes[] = {p.batch, p.heads, tokens};
  const size_t skipped = starts ? 1 : 0;
  Outputs outputs{empty_out(q, p.dv), std::nullopt, std::nullopt};
  auto& [out, lse, max_logits] = outputs;
  if (wanted.lse) lse = empty_contiguous(q, Sizes(lse_sizes + skipped, 3 - skipped), ScalarType::Float);
  if (wanted.max_logits) {
    max_logits = empty_contiguous(q, Sizes(&p.heads, 1), ScalarType::Float);
    torch::stable::fill_(*max_logits, -std::numeric_limits<double>::infinity());
  }
  if (!has_values(outputs)) return outputs;

  const OptionalTensor cu_q = starts ? std::optional(dense(starts->q)) : std::nullopt;
  const OptionalTensor cu_k = starts ? std::optional(dense(starts->k)) : std::nullopt;
  OptionCopies copies;
  AttentionArgs args{
      .q = as_head_rows(q),
      .k = as_head_rows(k),
      .v = as_head_rows(v),
      .out = head_rows(out),
      .lse = lse ? static_cast<float*>(lse->data_ptr()) : nullptr,
      .lse_batch = starts ? 0 : p.heads * tokens,
      .lse_head = tokens,
      .max_logits = max_logits ? static_cast<float*>(max_logits->data_ptr()) : nullptr,
      .cu_q = cu_q ? static_cast<const int32_t*>(cu_q->data_ptr()) : nullptr,
      .cu_k = cu_k ? static_cast<const int32_t*>(cu_k->data_ptr()) : nullptr,
      .q_tokens = tokens,
      .k_tokens = k.size(k.dim() - 3),
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
  };
  set_options(args, copies, options);
  const Rung<AttentionArgs>* rung = pick(call, args, device_info(device).sm);
  if (rung == nullptr) return std::nullopt;
  if (p.batch * p.m * p.heads == 0 || tokens == 0) return outputs;  // the largest of no logits is there
  std::optional<Tensor> workspace;
  const bool few = rung->name == std::string_view("few_queries");
  if (const int64_t bytes = few ? few_queries_bytes(args) : workspace_bytes(args, rung->name); bytes > 0) {
    const int64_t words = ceil_div(bytes, 4);
    workspace = empty_contiguous(q, Sizes(&words, 1), ScalarType::Float);
    args.workspace = workspace->data_ptr();
  }
  Ladder<AttentionArgs>::run(*rung, args, current_stream(device));
  return outputs;
}

std::optional<Outputs> flash_attention(const Call& call, const Tensor& q, const Tensor& k, const Tensor& v,
                                       double scale, bool causal, int64_t window_left, int64_t window_right,
                                       double softcap, const OptionalTensor& alibi_slopes, const OptionalTensor& mask,
                                       const OptionalTensor& bias, const OptionalTensor& sinks,
                                       const OptionalTensor& gate, const OptionalTensor& q_documents,
                                       const OptionalTensor& k_documents, const OptionalTensor& tree, double dropout_p,
                                       int64_t seed, int64_t offset, bool return_lse, bool return_max_logits,
                                       bool deterministic, bool batch_invariant) {
  const AttentionOptions options{scale, causal, window_left, window_right, softcap, alibi_slopes, mask, bias,
                                 sinks, gate,   q_documents, k_documents,  tree,    dropout_p,    seed, offset};
  check_heads(call.op, q, k, v, 4);
  const AttentionProblem p{q.size(0), q.size(1), k.size(1), q.size(2), k.size(2), q.size(3), v.size(3)};
  const int64_t out[] = {p.batch, p.m, p.heads, p.dv};
  check_options(call.op, q, p, Sizes(out, 4), options);
  return attend(call, q, k, v, p, std::nullopt, options,
                {return_lse, return_max_logits, deterministic, batch_invariant});
}

std::optional<Outputs> flash_attention_varlen(
    const Call& call, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens_q,
    const Tensor& cu_seqlens_k, int64_t max_seqlen_q, int64_t max_seqlen_k, double scale, bool causal,
    int64_t window_left, int64_t window_right, double softcap, const OptionalTensor& alibi_slopes,
    const OptionalTensor& mask, const OptionalTensor& bias, const OptionalTensor& sinks, const OptionalTensor& gate,
    const OptionalTensor& q_documents, const OptionalTensor& k_documents, const OptionalTensor& tree, double dropout_p,
    int64_t seed, int64_t offset, bool return_lse, bool return_max_logits, bool deterministic, bool batch_invariant) {
  const AttentionOptions options{scale, causal, window_left, window_right, softcap, alibi_slopes, mask, bias,
                                 sinks, gate,   q_documents, k_documents,  tree,    dropout_p,    seed, offset};
  check_heads(call.op, q, k, v, 3);
  check_sequences(call.op, q, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k);
  const AttentionProblem p{
      cu_seqlens_q.size(0) - 1, max_seqlen_q, max_seqlen_k, q.size(1), k.size(1), q.size(2), v.size(2)};
  const int64_t out[] = {q.size(0), p.heads, p.dv};
  check_options(call.op, q, p, Sizes(out, 3), options);
  return attend(call, q, k, v, p, Starts{cu_seqlens_q, cu_seqlens_k}, options,
                {return_lse, return_max_logits, deterministic, batch_invariant});
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  bind<&flash_attention>(m, "flash_attention");
  bind<&flash_attention_varlen>(m, "flash_attention_varlen");
}

}  // namespace
}  // namespace warpsmith
