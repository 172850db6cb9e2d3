// Reductions along a dimension: checks, the layout, allocation, and the operators `sum`, `mean`, `amax` ….
#include "reduce/reduce_dim/reduce_dim.h"

#include <utility>

#include "host/serve.h"
#include "reduce/dims.h"
#include "row/operands.h"

namespace warpsmith {
namespace {

const Ladder<ReduceDimArgs> ladder{"reduce_dim"};

// What a call asks for, beside the tensor.
struct Request {
  int64_t dim = -1;
  int64_t correction = 0;
  bool keepdim = false;
  bool batch_invariant = false;
};

std::vector<int64_t> output_shape(const Tensor& x, int64_t dim, bool keepdim) {
  const Sizes sizes = x.sizes();
  std::vector<int64_t> shape(sizes.begin(), sizes.end());
  if (shape.empty()) return shape;
  if (keepdim) {
    shape[static_cast<size_t>(dim)] = 1;
  } else {
    shape.erase(shape.begin() + dim);
  }
  return shape;
}

// As the tensor lies in memory: along the reduced dimension where that has unit stride, across it where a kept one has.
// `columns` tells which.
DimView view_by_memory(Tensor& x, int64_t dim, bool& columns) {
  const AroundDim around(x, dim);
  const detail::MergedDims kept = detail::merge_two(around.outer, around.inner);
  columns = false;
  if (kept.merges && around.stride_n == 1) return around.rows(kept);
  if (around.outer.merges && around.inner.merges && around.inner.stride == 1) {
    columns = true;
    return around.columns(around.outer, around.inner);
  }
  if (kept.merges && kept.stride == 1) {
    columns = true;
    return around.columns({1, 0, true}, kept);
  }
  if (kept.merges && around.n == 1) return around.rows(kept);
  columns = around.inner.size > 1;
  return view_by_shape(x, dim, !columns);
}

// Whether the dimension is the last one: what decides the layout where the result must not depend on other rows.
bool is_last(const Tensor& x, int64_t dim) { return dim + 1 >= x.dim(); }

double divisor(Reduction reduction, int64_t n, int64_t correction) {
  if (reduction == Reduction::mean) return static_cast<double>(n);
  if (reduction == Reduction::var) return static_cast<double>(std::max<int64_t>(n - correction, 0));
  return 1.0;
}

ReduceDimArgs describe(Tensor& x, int64_t dim, bool batch_invariant, int64_t outputs) {
  ReduceDimArgs args{};
  args.dtype = *kernel_dtype(x.scalar_type());
  if (x.numel() == 0) {  // outputs of no values each, which lie nowhere
    args.outer = outputs;
    args.inner = 1;
    return args;
  }
  args.columns = batch_invariant && !is_last(x, dim);
  args.batch_invariant = batch_invariant;
  const DimView view = batch_invariant ? view_by_shape(x, dim, !args.columns) : view_by_memory(x, dim, args.columns);
  args.x = x.data_ptr();
  args.outer = view.outer;
  args.n = view.n;
  args.inner = view.inner;
  args.stride_outer = view.stride_outer;
  args.stride_n = view.stride_n;
  args.stride_inner = view.stride_inner;
  return args;
}

std::optional<Tensor> run(const Call& call, Reduction reduction, const Tensor& x, const Request& request) {
  const ReductionInfo& info = kReductions[static_cast<int>(reduction)];
  info.takes_integers ? check_real(info.name, x) : check_floating(info.name, "x", x);
  if (info.finds_position && x.scalar_type() == ScalarType::Bool) {
    fail(info.name, "expected x to hold real numbers, got torch.bool");
  }
  const int64_t dim = check_dim(info.name, x, request.dim);
  const int64_t n = x.dim() == 0 ? 1 : x.size(dim);
  if (n == 0 && !info.takes_nothing) {
    throw std::out_of_range(std::string(info.name) + ": expected dimension " + std::to_string(dim) +
                            " of x, which is reduced, to have a size other than 0, got shape " + shape_text(x.sizes()));
  }
  if (!has_kernel(call, x)) return std::nullopt;
  const std::vector<int64_t> shape = output_shape(x, dim, request.keepdim);
  const ScalarType type = info.finds_position ? ScalarType::Long : x.scalar_type();
  Tensor y = empty_contiguous(x, Sizes(shape.data(), shape.size()), type);
  if (y.numel() == 0) return y;

  const DeviceScope scope(x.get_device_index());
  Tensor input = x;
  ReduceDimArgs args = describe(input, dim, request.batch_invariant, y.numel());
  args.reduction = reduction;
  args.finds_position = info.finds_position;
  args.y = y.data_ptr();
  args.divisor = static_cast<float>(divisor(reduction, n, request.correction));
  args.splits = 1;
  args.chunk = n;
  args.sm_count = device_info(x.get_device_index()).sm_count;
  if (n == 0) {  // there is nothing that a rung could be good at
    const Named naive{"naive", ""};
    if (call.named != nullptr && call.named->rung != naive.rung) {
      fail(call.op, "rung '", call.named->rung, "' needs values to reduce");
    }
    serve({call.op, &naive}, args, y);
    return y;
  }
  args.columns ? plan_columns(args) : plan_rows(args);
  std::optional<Tensor> partial;
  if (args.splits > 1) {
    const int64_t bytes = args.splits * args.outputs() * kMostStateBytes;
    partial = empty_contiguous(x, Sizes(&bytes, 1), ScalarType::Byte);
    args.partial = partial->data_ptr();
  }
  return serve(call, args, y) ? std::optional(y) : std::nullopt;
}

// --- what reductions take --------------------------------------------------------------------------------------------

// Order does not change the result, so there is nothing to promise.
template <Reduction reduction>
std::optional<Tensor> exact(const Call& call, const Tensor& x, int64_t dim, bool keepdim) {
  return run(call, reduction, x, {.dim = dim, .keepdim = keepdim});
}

template <Reduction reduction>
std::optional<Tensor> rounded(const Call& call, const Tensor& x, int64_t dim, bool keepdim, bool batch_invariant) {
  return run(call, reduction, x, {.dim = dim, .keepdim = keepdim, .batch_invariant = batch_invariant});
}

std::optional<Tensor> var(const Call& call, const Tensor& x, int64_t dim, int64_t correction, bool keepdim,
                          bool batch_invariant) {
  return run(call, Reduction::var, x, {dim, correction, keepdim, batch_invariant});
}

template <Reduction reduction>
void bind_reduction(torch::stable::detail::StableLibrary& m) {
  const char* const name = kReductions[static_cast<int>(reduction)].name;
  if constexpr (reduction == Reduction::var) {
    bind<&var>(m, name);
  } else if constexpr (reduction == Reduction::sum || reduction == Reduction::mean) {
    bind<&rounded<reduction>>(m, name);
  } else {
    bind<&exact<reduction>>(m, name);
  }
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  [&]<size_t... i>(std::index_sequence<i...>) {
    (bind_reduction<kPart[i]>(m), ...);
  }(std::make_index_sequence<std::size(kPart)>{});
}

}  // namespace
}  // namespace warpsmith
