// rope_store_kv and rope_store_kv_inplace: checks, allocation, the choice of the rung.
#include "attention/rope_store_kv/rope_store_kv.h"

#include "attention/store_kv/operands.h"
#include "host/serve.h"
#include "host/share_memory.h"
#include "rotary/operands.h"

namespace warpsmith {
namespace {

constexpr const char *kOp = "rope_store_kv", *kInPlace = "rope_store_kv_inplace";
const Ladder<RopeStoreKvArgs> ladder{kOp};

bool is_empty(const Tensor& q, const StoreOperands& o) {
  return q.numel() == 0 && o.k.numel() == 0 && o.v.numel() == 0;
}

// Whether kernels take the caches; a call that names a rung fails where they do not.
bool takes_caches(const Call& call, const StoreOperands& o) {
  if (is_storable(o)) return true;
  if (call.named != nullptr) {
    fail(call.op, "rung '", call.named->rung, "' needs caches of less than 2^30 tokens, and heads without gaps");
  }
  return false;
}

bool run_on(const Call& call, const Tensor& q, const Tensor& q_out, const StoreOperands& store,
            const RotaryOperands& rotary, int64_t pairs, const RotaryOptions& options) {
  const HeldRotary held(rotary);
  const HeldStore stored(store);
  const RotaryAngles angles = rotary_angles(held, rotary.positions, pairs, options);
  const bool by_token = held.cos && held.cos->dim() == 3;
  const RopeStoreKvArgs args{
      .store = store_args(store, stored),
      .q = rotary_heads(q, q_out),
      .angles = angles,
      .in_place = q.data_ptr() == q_out.data_ptr(),
      .behind_lengths = store.lengths && !rotary.positions && !by_token,
  };
  return serve(call, args, q);
}

std::optional<Tensor> run(const Call& call, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& k_cache,
                          const Tensor& v_cache, const OptionalTensor& cos, const OptionalTensor& sin,
                          const OptionalTensor& positions, const OptionalTensor& turns, const OptionalTensor& axes,
                          const OptionalTensor& slots, const OptionalTensor& lengths, const OptionalTensor& block_table,
                          const OptionalTensor& k_scale, const OptionalTensor& v_scale, double factor,
                          bool interleaved) {
  check_rotary_heads(kOp, q, k);
  const StoreOperands store{k, v, k_cache, v_cache, slots, lengths, block_table, k_scale, v_scale};
  check_store(kOp, store);
  check_apart_from_caches(kOp, "q", q, k_cache, v_cache);
  const RotaryOperands rotary{cos, sin, positions, turns, axes};
  const int64_t pairs = check_rotary(kOp, q, rotary);
  if (!has_kernel(call, q)) return std::nullopt;
  Tensor q_out = empty_rows_like(q);
  if (is_empty(q, store)) return q_out;
  if (!takes_caches(call, store)) return std::nullopt;
  const Tensor queries = with_unit_columns(q);
  const bool served = run_on(call, queries, q_out, store, rotary, pairs, {factor, interleaved, false});
  return served ? std::optional(q_out) : std::nullopt;
}

bool run_in_place(const Call& call, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& k_cache,
                  const Tensor& v_cache, const OptionalTensor& cos, const OptionalTensor& sin,
                  const OptionalTensor& positions, const OptionalTensor& turns, const OptionalTensor& axes,
                  const OptionalTensor& slots, const OptionalTensor& lengths, const OptionalTensor& block_table,
                  const OptionalTensor& k_scale, const OptionalTensor& v_scale, double factor, bool interleaved) {
  check_rotary_heads(kInPlace, q, k);
  check_apart(kInPlace, "q", q);
  check_own_memory(kInPlace, "q", q, "k", k);
  const StoreOperands store{k, v, k_cache, v_cache, slots, lengths, block_table, k_scale, v_scale};
  check_store(kInPlace, store);
  check_own_memory(kInPlace, "q", q, "v", v);
  check_apart_from_caches(kInPlace, "q", q, k_cache, v_cache);
  const RotaryOperands rotary{cos, sin, positions, turns, axes};
  const int64_t pairs = check_rotary(kInPlace, q, rotary);
  if (!has_kernel(call, q)) return false;
  if (is_empty(q, store)) return true;
  if (!takes_caches(call, store)) return false;
  if (!has_unit_columns(q)) {
    if (call.named != nullptr) fail(kInPlace, "rung '", call.named->rung, "' needs queries without gaps");
    return false;
  }
  return run_on(call, q, q, store, rotary, pairs, {factor, interleaved, false});
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  bind<&run>(m, kOp);
  bind<&run_in_place>(m, kInPlace);
}

}  // namespace
}  // namespace warpsmith
