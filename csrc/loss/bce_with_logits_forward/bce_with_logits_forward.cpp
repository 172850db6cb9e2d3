// Binary cross-entropy with logits: checks, allocation, the choice of the rung.
#include "loss/bce_with_logits_forward/bce_with_logits_forward.h"

#include <algorithm>
#include <limits>

#include "host/ladder.h"
#include "loss/operands.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "bce_with_logits_forward";
const Ladder<BceWithLogitsForwardArgs> ladder{kOp};

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

Tensor run(const Tensor& x, const Tensor& target, int64_t reduction, const std::string* rung) {
  check_floating(kOp, "x", x);
  check_same_device(kOp, "target", target, x);
  check_same_dtype(kOp, "target", target, x);
  check_same_shape(kOp, "target", target, x);
  if (reduction < none || reduction > sum) {
    fail(kOp, "expected reduction to be 0 (none), 1 (mean) or 2 (sum), got ", std::to_string(reduction));
  }
  const auto fall_back = [&] {
    return call_fallback<Tensor>("warpsmith::bce_with_logits_forward", x, target, reduction);
  };
  if (!has_float_kernel(x)) {
    if (rung != nullptr) fail(kOp, "no rung takes ", dtype_name(x.scalar_type()));
    return fall_back();
  }
  const bool sums = reduction != none;
  Tensor loss = empty_contiguous(x, sums ? Sizes() : x.sizes(), ScalarType::Float);
  const int64_t n = x.numel();
  const int device = x.get_device_index();
  const DeviceScope scope(device);
  if (n == 0) {
    if (sums) torch::stable::fill_(loss, reduction == mean ? std::numeric_limits<double>::quiet_NaN() : 0.0);
    return loss;
  }

  const DeviceInfo& info = device_info(device);
  const Tensor dense_x = dense(x), dense_target = dense(target);
  const int64_t blocks = sum_blocks(n, info.sm_count);
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
  const cudaStream_t stream = current_stream(device);
  if (rung != nullptr) {
    Ladder<BceWithLogitsForwardArgs>::run_named(kOp, *rung, args, info.sm, stream);
  } else if (const auto* best = Ladder<BceWithLogitsForwardArgs>::choose(args, info.sm)) {
    Ladder<BceWithLogitsForwardArgs>::run(*best, args, stream);
  } else {
    return fall_back();
  }
  return loss;
}

Tensor bce_with_logits_forward(const Tensor& x, const Tensor& target, int64_t reduction) {
  return run(x, target, reduction, nullptr);
}

Tensor bce_with_logits_forward_rung(const Tensor& x, const Tensor& target, int64_t reduction, std::string rung,
                                    std::string) {
  return run(x, target, reduction, &rung);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  m.impl("bce_with_logits_forward", TORCH_BOX(&bce_with_logits_forward));
  m.impl("bce_with_logits_forward.rung", TORCH_BOX(&bce_with_logits_forward_rung));
}

}  // namespace
}  // namespace warpsmith
