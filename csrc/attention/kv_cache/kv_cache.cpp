// Attention to a cache of keys and values: checks, allocation, the choice of the rung.
#include "attention/kv_cache/kv_cache.h"

#include <optional>
#include <tuple>

#include "attention/cache_operands.h"
#include "attention/checks.h"
#include "attention/kv_cache/tiles.h"
#include "host/named_of_nothing.h"
#include "host/serve.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "attention_with_kv_cache";
const Ladder<KvCacheArgs> ladder{"kv_cache"};

using Outputs = std::tuple<Tensor, OptionalTensor>;  // out, lse

void check_queries(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache) {
  check_wide_floating(kOp, "q", q);
  check_heads(kOp, "q", q);
  check_caches(kOp, k_cache, v_cache, q, "q");
  const int64_t heads = q.size(2), kv_heads = k_cache.size(2);
  if (q.size(3) == 0) fail(kOp, "expected q to have heads of at least one value, got shape ", shape_text(q.sizes()));
  if (k_cache.size(3) != q.size(3)) {
    fail(kOp, "expected k_cache to have the last dimension of q, got ", shape_text(k_cache.sizes()), " and ",
         shape_text(q.sizes()));
  }
  if (heads != 0 && (kv_heads == 0 || heads % kv_heads != 0)) {
    fail(kOp, "expected the heads of q to be a multiple of those of k_cache, got ", std::to_string(heads), " and ",
         std::to_string(kv_heads));
  }
}

std::optional<Outputs> run(const Call& call, const Tensor& q, const Tensor& k_cache, const Tensor& v_cache,
                           const Tensor& lengths, double scale, const OptionalTensor& block_table, int64_t appended,
                           bool causal, int64_t window_left, int64_t window_right, double softcap,
                           const OptionalTensor& alibi_slopes, const OptionalTensor& sinks, const OptionalTensor& tree,
                           const OptionalTensor& k_scale, const OptionalTensor& v_scale, bool return_lse,
                           bool batch_invariant, int64_t blocks) {
  check_queries(q, k_cache, v_cache);
  check_sequences(kOp, lengths, block_table, k_cache, q, "q");
  check_cache_scales(kOp, k_scale, v_scale, k_cache, q, "q");
  const OptionalTensor none;
  const AttentionOptions options{scale, causal, window_left, window_right, softcap, alibi_slopes, none, none,
                                 sinks, none,   none,        none,         tree,    0.0,          0,    0};
  const AttentionProblem p{q.size(0),       q.size(1), k_cache.size(1), q.size(2),
                           k_cache.size(2), q.size(3), v_cache.size(3)};
  check_options(kOp, q, p, q.sizes(), options);
  if (appended < 0 || appended >= kMostTokens) {
    fail(kOp, "expected appended not to be negative, and less than 2^30, got ", std::to_string(appended));
  }
  if (blocks < 0 || blocks > kMostPlannedBlocks) {
    fail(kOp, "expected blocks to be between 0 and 65535, got ", std::to_string(blocks));
  }
  if (!has_kernel(call, q)) return std::nullopt;

  const int device = q.get_device_index();
  const DeviceScope scope(device);
  Outputs outputs{empty_out(q, p.dv), std::nullopt};
  auto& [out, lse] = outputs;
  const int64_t lse_sizes[] = {p.batch, p.heads, p.m};
  if (return_lse) lse = empty_contiguous(q, Sizes(lse_sizes, 3), ScalarType::Float);
  if (!has_values(outputs)) return outputs;
  if (!has_unit_heads(k_cache) || !has_unit_heads(v_cache) || !is_countable(k_cache, block_table)) {
    check_named_of_nothing<KvCacheArgs>(call, q);  // a GPU that is too old for it comes first
    if (call.named != nullptr) {
      fail(kOp, "rung '", call.named->rung, "' needs caches of less than 2^30 tokens, and heads without gaps");
    }
    return std::nullopt;
  }

  // alive until the launch
  Tensor queries = q;
  const HeadRows q_rows = as_head_rows(queries);
  const Tensor held = dense(lengths);
  const OptionalTensor table = dense(block_table), of_k = dense(k_scale), of_v = dense(v_scale);
  OptionCopies copies;
  AttentionArgs said{.q_heads = static_cast<int>(p.heads)};
  set_options(said, copies, options);
  const DeviceInfo& info = device_info(device);
  KvCacheArgs args{
      .q = q_rows,
      .out = head_rows(out),
      .k = head_rows(k_cache),
      .v = head_rows(v_cache),
      .lse = lse ? static_cast<float*>(lse->data_ptr()) : nullptr,
      .lengths = static_cast<const int32_t*>(held.data_ptr()),
      .appended = static_cast<int>(appended),
      .pages = pages_of(k_cache, table),
      .k_scale = scale_of(of_k),
      .v_scale = scale_of(of_v),
      .k_scale_step = of_k && of_k->dim() == 1 ? 1 : 0,
      .v_scale_step = of_v && of_v->dim() == 1 ? 1 : 0,
      .slopes = said.score.slopes,
      .slopes_batch = said.score.slopes_batch,
      .sinks = said.sinks,
      .tree = said.mask.tree,
      .batch = static_cast<int>(p.batch),
      .m = static_cast<int>(p.m),
      .q_heads = static_cast<int>(p.heads),
      .kv_heads = static_cast<int>(p.kv_heads),
      .d = static_cast<int>(p.d),
      .dv = static_cast<int>(p.dv),
      .scale = said.scale,
      .softcap = said.score.softcap,
      .left = said.left,
      .right = said.right,
      .dtype = *kernel_dtype(q.scalar_type()),
      .cache_dtype = *kernel_dtype(k_cache.scalar_type()),
      .batch_invariant = batch_invariant,
      .sm_count = info.sm_count,
      .block_smem = info.block_smem,
      .blocks = static_cast<int>(blocks),
  };
  const Rung<KvCacheArgs>* rung = pick(call, args, info.sm);
  if (rung == nullptr) return std::nullopt;
  std::optional<Tensor> workspace;
  if (const int64_t floats = workspace_floats(rung->name, args); floats > 0) {
    workspace = empty_contiguous(q, Sizes(&floats, 1), ScalarType::Float);
    args.workspace = workspace->data_ptr();
  }
  Ladder<KvCacheArgs>::run(*rung, args, current_stream(device));
  return outputs;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
