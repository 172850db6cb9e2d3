// Cross-entropy of rows: checks, allocation, the choice of the rung.
#include "loss/cross_entropy/cross_entropy_forward.h"

#include <tuple>

#include "host/serve.h"
#include "loss/operands.h"

namespace warpsmith {
namespace {

constexpr const char* kOp = "cross_entropy_forward";
const Ladder<CrossEntropyForwardArgs> ladder{"cross_entropy"};

using Results = std::tuple<Tensor, Tensor>;

std::optional<Results> run(const Call& call, const Tensor& logits, const Tensor& target, int64_t ignore_index,
                           double label_smoothing, double z_loss) {
  check_cross_entropy(kOp, logits, target, label_smoothing);
  if (!has_kernel(call, logits)) return std::nullopt;
  Tensor loss = empty_contiguous(logits, target.sizes(), ScalarType::Float);
  Tensor lse = empty_contiguous(logits, target.sizes(), ScalarType::Float);
  if (loss.numel() == 0) return Results{loss, lse};

  Tensor rows = logits;
  const CrossEntropyForwardArgs args{
      .in = cross_entropy_input(rows, target, ignore_index, label_smoothing, z_loss),
      .loss = static_cast<float*>(loss.data_ptr()),
      .lse = static_cast<float*>(lse.data_ptr()),
  };
  return serve(call, args, loss) ? std::optional(Results{loss, lse}) : std::nullopt;
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind<&run>(m, kOp); }

}  // namespace
}  // namespace warpsmith
