// Appending keys and values to a cache: checks, the choice of the rung.
#include "attention/store_kv/store_kv.h"

#include "attention/store_kv/operands.h"
#include "host/serve.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "store_kv";
const Ladder<StoreKvArgs> ladder{kOp};

bool run(const Call& call, const Tensor& k, const Tensor& v, const Tensor& k_cache, const Tensor& v_cache,
         const OptionalTensor& slots, const OptionalTensor& lengths, const OptionalTensor& block_table,
         const OptionalTensor& k_scale, const OptionalTensor& v_scale) {
  const StoreOperands operands{k, v, k_cache, v_cache, slots, lengths, block_table, k_scale, v_scale};
  check_store(kOp, operands);
  if (!has_kernel(call, k)) return false;
  if (k.numel() == 0 && v.numel() == 0) return true;
  if (!is_storable(operands)) {
    if (call.named != nullptr) {
      fail(kOp, "rung '", call.named->rung, "' needs caches of less than 2^30 tokens, and heads without gaps");
    }
    return false;
  }
  const HeldStore held(operands);
  return serve(call, store_args(operands, held), k);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
