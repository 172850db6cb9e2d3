// Binary cross-entropy with logits: checks, allocation, the choice of the rung.
#include "loss/bce_with_logits/bce_with_logits_forward.h"

#include <algorithm>
#include <limits>

#include "host/serve.h"
#include "loss/operands.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "bce_with_logits_forward";
const Ladder<BceWithLogitsForwardArgs> ladder{"bce_with_logits"};

// As PyTorch numbers reductions.
enum Reduction : int64_t { none = 0, mean = 1, sum = 2 };

// Blocks that sum: as many as a GPU holds at once, fewer for a short call.
int64_t sum_blocks(int64_t n, int sm_count) {
  constexpr int64_t kPerBlock = 4096, kPerMultiprocessor = 8;
  return std::clamp<int64_t>((n + kPerBlock - 1) / kPerBlock, 1, sm_count * kPerMultiprocessor);
}

Tensor empty_vector(const Tensor& like, int64_t size, ScalarType type) {
  return empty_contiguous(like, Sizes(&size, 1), type);
}

std::optional<Tensor> run(const Call& call, const Tensor& x, const Tensor& target, int64_t reduction) {
  check_floating(kOp, "x", x);
  check_same_device(kOp, "target", target, x);
  check_same_dtype(kOp, "target", target, x);
  check_same_shape(kOp, "target", target, x);
  if (reduction < none || reduction > sum) {
    fail(kOp, "expected reduction to be 0 (none), 1 (mean) or 2 (sum), got ", std::to_string(reduction));
  }
  if (!has_kernel(call, x)) return std::nullopt;
  const bool sums = reduction != none;
  Tensor loss = empty_contiguous(x, sums ? Sizes() : x.sizes(), ScalarType::Float);
  const int64_t n = x.numel();
  if (n == 0) {
    if (sums) torch::stable::fill_(loss, reduction == mean ? std::numeric_limits<double>::quiet_NaN() : 0.0);
    return loss;
  }

  const int sm_count = device_info(x.get_device_index()).sm_count;
  const Tensor dense_x = dense(x), dense_target = dense(target);
  const int64_t blocks = sum_blocks(n, sm_count);
  const Tensor partial = empty_vector(x, sums ? blocks : 0, ScalarType::Double);
  const BceWithLogitsForwardArgs args{
      .x = dense_x.data_ptr(),
      .target = dense_target.data_ptr(),
      .loss = static_cast<float*>(loss.data_ptr()),
      .partial = static_cast<double*>(partial.data_ptr()),
      .n = n,
      .blocks = blocks,
      .scale = reduction == mean ? 1.0 / static_cast<double>(n) : 1.0,
      .dtype = *kernel_dtype(x.scalar_type()),
      .sums = sums,
  };
  return serve(call, args, loss) ? std::optional(loss) : std::nullopt;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
