// Elementwise: checks, broadcasting, allocation, and the operators `relu`, `add`, `silu_and_mul` … with their gradients.
#include "elementwise/map/map.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <tuple>
#include <type_traits>
#include <vector>

#include "elementwise/map/functions.h"
#include "host/into.h"
#include "host/serve.h"

namespace warpsmith {
namespace {

const Ladder<MapArgs> ladder{"map"};

// A tensor's memory as a strided view; halves of a row are views too.
struct Operand {
  void* data;
  const int64_t* sizes;
  const int64_t* strides;
  size_t rank;
};

Operand whole(const Tensor& tensor) {
  const Sizes sizes = tensor.sizes(), strides = tensor.strides();
  return {tensor.data_ptr(), sizes.data(), strides.data(), sizes.size()};
}

// Merges neighbouring dimensions that every operand walks alike, and describes what is left.
class Layout {
 public:
  Layout(MapArgs& args, const int64_t* shape, size_t rank) : args_(args), shape_(shape), rank_(rank) {}

  // Outputs first. Dimensions of size 1 broadcast, and so do missing leading ones.
  void add(const Operand& operand) {
    std::vector<int64_t>& strides = strides_[args_.operands];
    strides.assign(rank_, 0);
    const size_t missing = rank_ - operand.rank;
    for (size_t d = missing; d < rank_; ++d) {
      if (operand.sizes[d - missing] != 1) strides[d] = operand.strides[d - missing];
    }
    args_.data[args_.operands++] = operand.data;
  }

  void analyse() {
    const std::vector<size_t> order = memory_order();
    std::vector<int64_t> sizes;
    std::array<std::vector<int64_t>, kMaxOperands> merged;
    for (const size_t d : order) {
      if (!sizes.empty() && merges(merged, shape_[d], d)) {
        sizes.back() *= shape_[d];
        for (int k = 0; k < args_.operands; ++k) merged[k].back() = strides_[k][d];
      } else {
        sizes.push_back(shape_[d]);
        for (int k = 0; k < args_.operands; ++k) merged[k].push_back(strides_[k][d]);
      }
    }
    describe(sizes, merged);
  }

 private:
  // Dimensions larger than 1, outermost first as the first output lies in memory.
  std::vector<size_t> memory_order() const {
    std::vector<size_t> order;
    for (size_t d = 0; d < rank_; ++d) {
      if (shape_[d] != 1) order.push_back(d);
    }
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return strides_[0][a] > strides_[0][b]; });
    return order;
  }

  bool merges(const std::array<std::vector<int64_t>, kMaxOperands>& outer, int64_t size, size_t d) const {
    for (int k = 0; k < args_.operands; ++k) {
      if (outer[k].back() != strides_[k][d] * size) return false;
    }
    return true;
  }

  void describe(const std::vector<int64_t>& sizes, const std::array<std::vector<int64_t>, kMaxOperands>& strides) {
    const size_t rank = sizes.size();
    args_.rank = static_cast<int>(rank);
    args_.is_rows = rank <= 2;
    for (int k = 0; k < args_.operands; ++k) {
      args_.is_rows = args_.is_rows && (rank == 0 || strides[k][rank - 1] == 1);
      args_.pitch[k] = rank == 2 ? strides[k][0] : 0;
    }
    args_.rows = rank == 2 ? sizes[0] : 1;
    args_.cols = rank == 0 ? 1 : sizes[rank - 1];
    int64_t bits = 16;  // the lowest set bit over all row starts is their common alignment
    for (int k = 0; k < args_.operands; ++k) {
      bits |= reinterpret_cast<int64_t>(args_.data[k]) | args_.pitch[k] * size_of(args_.dtype);
    }
    args_.alignment = static_cast<int>(bits & -bits);
    if (rank > kMaxRank) return;
    std::copy(sizes.begin(), sizes.end(), args_.sizes);
    for (int k = 0; k < args_.operands; ++k) std::copy(strides[k].begin(), strides[k].end(), args_.strides[k]);
  }

  MapArgs& args_;
  const int64_t* shape_;
  size_t rank_;
  std::array<std::vector<int64_t>, kMaxOperands> strides_;  // [operand][dimension of the result]
};

// Every operand contiguous and of the result's shape: the call nearly everybody makes, described without analysis.
void describe_flat(MapArgs& args, int64_t elements) {
  args.rank = elements == 1 ? 0 : 1;
  args.is_rows = true;
  args.rows = 1;
  args.cols = elements;
  args.sizes[0] = elements;
  int64_t bits = 16;
  for (int k = 0; k < args.operands; ++k) {
    args.pitch[k] = 0;
    args.strides[k][0] = 1;
    bits |= reinterpret_cast<int64_t>(args.data[k]);
  }
  args.alignment = static_cast<int>(bits & -bits);
}

bool same_layout(const Tensor& a, const Tensor& b) {
  const Sizes x = a.sizes(), y = b.sizes(), s = a.strides(), t = b.strides();
  return x.size() == y.size() && std::equal(x.begin(), x.end(), y.begin()) && std::equal(s.begin(), s.end(), t.begin());
}

int64_t product(Sizes sizes) { return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>()); }

Tensor empty_as(const Tensor& like) {
  if (is_dense(like)) return empty_strided(like, like.sizes(), like.strides(), like.scalar_type());
  return empty_contiguous(like, like.sizes(), like.scalar_type());
}

// The result of a call, with the shape of `like`.
Tensor result_as(const CallInto& call, const Tensor& like) {
  const std::optional<Tensor> given = result_anywhere(call, like, like.sizes());
  return given ? *given : empty_as(like);
}

// Whether the result lies as `like`, which it does where the call did not say where it goes.
bool lies_as(const CallInto& call, const Tensor& out, const Tensor& like) {
  return call.given == nullptr || same_layout(out, like);
}

template <class Map, int i = 0>
constexpr int map_index() {
  if constexpr (std::is_same_v<std::tuple_element_t<i, Maps>, Map>) {
    return i;
  } else {
    return map_index<Map, i + 1>();
  }
}

bool has_table(int map) {
  return [&]<size_t... i>(std::index_sequence<i...>) {
    return ((map == static_cast<int>(i) && std::tuple_element_t<i, Maps>::has_table) || ...);
  }(std::make_index_sequence<std::tuple_size_v<Maps>>{});
}

// Runs `map` on operands of one dtype over `shape`, `outputs` of them first; false where no rung takes the call.
bool run(const Call& call, int map, const Tensor& x, Sizes shape, const Operand* operands, int count, int outputs,
         bool flat, float parameter = 0.0f) {
  const int64_t elements = product(shape);
  if (elements == 0) return true;
  MapArgs args;
  args.map = map;
  args.dtype = *kernel_dtype(x.scalar_type());
  args.has_table = has_table(map);
  args.operands = 0;
  args.outputs = outputs;
  args.parameter = parameter;
  if (flat) {
    for (int k = 0; k < count; ++k) args.data[args.operands++] = operands[k].data;
    describe_flat(args, elements);
  } else {
    Layout layout(args, shape.data(), shape.size());
    for (int k = 0; k < count; ++k) layout.add(operands[k]);
    layout.analyse();
  }
  return serve(call, args, x);
}

bool takes(const Call& call, const Tensor& x) {
  const auto dtype = kernel_dtype(x.scalar_type());
  const bool found = dtype && *dtype != Dtype::i8 && *dtype != Dtype::i32;
  if (!found && call.named != nullptr) fail(call.op, "no rung takes this dtype");
  return found;
}

// --- one input --------------------------------------------------------------------------------------------------------

// The number beside the tensor, as kernels take it. The threshold of hardshrink is rounded to the dtype of what is compared
// with it, as in PyTorch, which does not compute in fp8; one beyond all numbers of the dtype stays what it is.
template <class F>
float parameter_of(const Tensor& x, double p) {
  const auto value = static_cast<float>(p);
  if constexpr (std::is_same_v<F, Hardshrink>) {
    const auto dtype = kernel_dtype(x.scalar_type());
    float rounded = value;
    if (dtype == Dtype::f16) rounded = __half2float(__float2half_rn(value));
    if (dtype == Dtype::bf16) rounded = __bfloat162float(__float2bfloat16_rn(value));
    if (std::isfinite(rounded)) return rounded;
  }
  return value;
}

template <class F>
std::optional<Tensor> unary_at(const CallInto& call, const Tensor& x, float parameter) {
  check_floating(call.op, "x", x);
  if (!takes(call, x)) return std::nullopt;
  Tensor out = result_as(call, x);
  const std::array operands{whole(out), whole(x)};
  const bool flat = is_dense(x) && lies_as(call, out, x);
  const bool served =
      run(call, map_index<Unary<F>>(), x, x.sizes(), operands.data(), operands.size(), 1, flat, parameter);
  return served ? std::optional(out) : std::nullopt;
}

template <class F>
std::optional<Tensor> unary_backward_at(const Call& call, const Tensor& grad, const Tensor& x, float parameter) {
  check_floating(call.op, "x", x);
  check_like(call.op, "grad", grad, x, "x");
  if (!takes(call, x)) return std::nullopt;
  Tensor out = empty_as(x);
  const std::array operands{whole(out), whole(grad), whole(x)};
  const bool served = run(call, map_index<UnaryBackward<F>>(), x, x.sizes(), operands.data(), operands.size(), 1,
                          is_dense(x) && same_layout(grad, x), parameter);
  return served ? std::optional(out) : std::nullopt;
}

template <class F>
std::optional<Tensor> unary(const CallInto& call, const Tensor& x) {
  return unary_at<F>(call, x, 0.0f);
}

template <class F>
std::optional<Tensor> unary_backward(const Call& call, const Tensor& grad, const Tensor& x) {
  return unary_backward_at<F>(call, grad, x, 0.0f);
}

// Functions with a parameter: elu, hardshrink.
template <class F>
std::optional<Tensor> unary_with(const CallInto& call, const Tensor& x, double p) {
  return unary_at<F>(call, x, parameter_of<F>(x, p));
}

template <class F>
std::optional<Tensor> unary_with_backward(const Call& call, const Tensor& grad, const Tensor& x, double p) {
  return unary_backward_at<F>(call, grad, x, parameter_of<F>(x, p));
}

// --- inputs that broadcast --------------------------------------------------------------------------------------------

template <size_t n>
using Inputs = std::array<const Tensor*, n>;

template <size_t n>
[[noreturn]] void fail_to_broadcast(const char* op, const Inputs<n>& inputs) {
  std::string list;
  for (size_t i = 0; i < n; ++i) {
    if (i > 0) list += i + 1 < n ? ", " : " and ";
    list += shape_text(inputs[i]->sizes());
  }
  fail(op, "shapes ", list, " do not broadcast");
}

template <size_t n>
std::vector<int64_t> broadcast_shape(const char* op, const Inputs<n>& inputs) {
  size_t rank = 0;
  for (const Tensor* input : inputs) rank = std::max(rank, input->sizes().size());
  std::vector<int64_t> shape(rank, 1);
  for (const Tensor* input : inputs) {
    const Sizes sizes = input->sizes();
    int64_t* into = shape.data() + (rank - sizes.size());
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] == 1 || sizes[i] == into[i]) continue;
      if (into[i] != 1) fail_to_broadcast(op, inputs);
      into[i] = sizes[i];
    }
  }
  return shape;
}

template <size_t n>
Tensor result_for(const CallInto& call, const std::vector<int64_t>& shape, const Inputs<n>& inputs) {
  const auto given = result_anywhere(call, *inputs[0], Sizes(shape.data(), shape.size()));
  if (given) return *given;
  for (const Tensor* t : inputs) {
    const Sizes sizes = t->sizes();
    if (sizes.size() == shape.size() && std::equal(sizes.begin(), sizes.end(), shape.begin()) && is_dense(*t)) {
      return empty_as(*t);
    }
  }
  return empty_contiguous(*inputs[0], Sizes(shape.data(), shape.size()), inputs[0]->scalar_type());
}

// `Map` of F over x and `others`, which are called y and z.
template <template <class> class Map, class F, class... Others>
std::optional<Tensor> broadcasting(const CallInto& call, const Tensor& x, const Others&... others) {
  constexpr const char* kNames[] = {"y", "z"};
  check_floating(call.op, "x", x);
  size_t at = 0;
  ((check_same_device(call.op, kNames[at], others, x), check_same_dtype(call.op, kNames[at], others, x), ++at), ...);
  if (!takes(call, x)) return std::nullopt;
  const bool alike = is_dense(x) && (same_layout(x, others) && ...);
  const Inputs<1 + sizeof...(Others)> inputs{&x, &others...};
  Tensor out = alike ? result_as(call, x) : result_for(call, broadcast_shape(call.op, inputs), inputs);
  const bool flat = alike && lies_as(call, out, x);
  const std::array operands{whole(out), whole(x), whole(others)...};
  const bool served = run(call, map_index<Map<F>>(), x, out.sizes(), operands.data(), operands.size(), 1, flat);
  return served ? std::optional(out) : std::nullopt;
}

// --- bias and activation ----------------------------------------------------------------------------------------------

void check_bias(std::string_view op, const Tensor& x, const Tensor& bias) {
  check_floating(op, "x", x);
  if (x.dim() == 0) fail(op, "expected at least 1 dimension in x, got shape ()");
  check_same_device(op, "bias", bias, x);
  check_same_dtype(op, "bias", bias, x);
  const int64_t n = x.size(x.dim() - 1);
  if (bias.dim() == 1 && bias.size(0) == n) return;
  fail(op, "expected bias to have shape (", std::to_string(n), ",), the last dimension of x, got ",
       shape_text(bias.sizes()));
}

template <class F>
std::optional<Tensor> bias_activation(const CallInto& call, const Tensor& x, const Tensor& bias) {
  check_bias(call.op, x, bias);
  if (!takes(call, x)) return std::nullopt;
  Tensor out = result_as(call, x);
  const std::array operands{whole(out), whole(x), whole(bias)};
  const bool served = run(call, map_index<Bias<F>>(), x, x.sizes(), operands.data(), operands.size(), 1, false);
  return served ? std::optional(out) : std::nullopt;
}

template <class F>
std::optional<Tensor> bias_activation_backward(const Call& call, const Tensor& grad, const Tensor& x,
                                               const Tensor& bias) {
  check_bias(call.op, x, bias);
  check_like(call.op, "grad", grad, x, "x");
  if (!takes(call, x)) return std::nullopt;
  Tensor out = empty_as(x);
  const std::array operands{whole(out), whole(grad), whole(x), whole(bias)};
  const bool served = run(call, map_index<BiasBackward<F>>(), x, x.sizes(), operands.data(), operands.size(), 1, false);
  return served ? std::optional(out) : std::nullopt;
}

// --- gated ------------------------------------------------------------------------------------------------------------

using OptionalTensor = std::optional<Tensor>;

// Shape of the gate; the halves of one [..., 2d] tensor where there is no `up`.
std::vector<int64_t> gate_shape(std::string_view op, const Tensor& x, const OptionalTensor& up) {
  check_floating(op, "x", x);
  const Sizes sizes = x.sizes();
  std::vector<int64_t> shape(sizes.begin(), sizes.end());
  if (up) {
    check_same_device(op, "up", *up, x);
    check_same_dtype(op, "up", *up, x);
    check_same_shape(op, "up", *up, x);
    return shape;
  }
  if (shape.empty()) fail(op, "expected at least 1 dimension in x, got shape ()");
  if (shape.back() % 2 != 0) {
    fail(op, "expected the last dimension of x to be even, got shape ", shape_text(sizes));
  }
  shape.back() /= 2;
  return shape;
}

// First or second half of the last dimension of `x`, which is twice that of `shape`.
Operand half(const Tensor& x, const std::vector<int64_t>& shape, int which) {
  const Sizes strides = x.strides();
  const int64_t offset = which * shape.back() * strides[strides.size() - 1];
  char* data = static_cast<char*>(x.data_ptr()) + offset * static_cast<int64_t>(x.element_size());
  return {data, shape.data(), strides.data(), shape.size()};
}

template <class F>
std::optional<Tensor> gated(const CallInto& call, const Tensor& x, const OptionalTensor& up) {
  const std::vector<int64_t> shape = gate_shape(call.op, x, up);
  if (!takes(call, x)) return std::nullopt;
  const Sizes sizes(shape.data(), shape.size());
  const auto given = result_anywhere(call, x, sizes);
  Tensor out = given ? *given : up ? empty_as(x) : empty_contiguous(x, sizes, x.scalar_type());
  const std::array operands{whole(out), up ? whole(x) : half(x, shape, 0), up ? whole(*up) : half(x, shape, 1)};
  const bool flat = up && is_dense(x) && same_layout(x, *up) && lies_as(call, out, x);
  const bool served = run(call, map_index<Gated<F>>(), x, out.sizes(), operands.data(), operands.size(), 1, flat);
  return served ? std::optional(out) : std::nullopt;
}

using GatedGradients = std::tuple<Tensor, Tensor>;

template <class F>
std::optional<GatedGradients> gated_backward(const Call& call, const Tensor& grad, const Tensor& x,
                                             const OptionalTensor& up) {
  const std::vector<int64_t> shape = gate_shape(call.op, x, up);
  check_same_device(call.op, "grad", grad, x);
  check_same_dtype(call.op, "grad", grad, x);
  const Sizes expected(shape.data(), shape.size()), got = grad.sizes();
  if (got.size() != expected.size() || !std::equal(got.begin(), got.end(), expected.begin())) {
    fail(call.op, "expected grad to have shape ", shape_text(expected), " like x, got ", shape_text(got));
  }
  if (!takes(call, x)) return std::nullopt;
  const int64_t none = 0;
  Tensor first = empty_as(x);
  Tensor second = up ? empty_as(*up) : empty_contiguous(x, Sizes(&none, 1), x.scalar_type());
  const std::array operands{up ? whole(first) : half(first, shape, 0), up ? whole(second) : half(first, shape, 1),
                            whole(grad), up ? whole(x) : half(x, shape, 0), up ? whole(*up) : half(x, shape, 1)};
  const bool flat = up && is_dense(x) && same_layout(x, *up) && same_layout(x, grad);
  const bool served = run(call, map_index<GatedBackward<F>>(), x, expected, operands.data(), operands.size(), 2, flat);
  return served ? std::optional(GatedGradients{first, second}) : std::nullopt;
}

// --- registration -----------------------------------------------------------------------------------------------------

using Library = torch::stable::detail::StableLibrary;

template <class F>
void bind_map(Library& m, Unary<F>) {
  if constexpr (requires { F::parameter; }) {
    bind_into<&unary_with<F>>(m, F::name);
  } else {
    bind_into<&unary<F>>(m, F::name);
  }
}

template <class F>
void bind_map(Library& m, UnaryBackward<F>) {
  const std::string name = std::string(F::name) + "_backward";
  if constexpr (requires { F::parameter; }) {
    bind<&unary_with_backward<F>>(m, name);
  } else {
    bind<&unary_backward<F>>(m, name);
  }
}

template <class F>
void bind_map(Library& m, Binary<F>) {
  bind_into<&broadcasting<Binary, F, Tensor>>(m, F::name);
}

template <class F>
void bind_map(Library& m, Ternary<F>) {
  bind_into<&broadcasting<Ternary, F, Tensor, Tensor>>(m, F::name);
}

template <class F>
void bind_map(Library& m, Bias<F>) {
  bind_into<&bias_activation<F>>(m, std::string("bias_") + F::name);
}

template <class F>
void bind_map(Library& m, BiasBackward<F>) {
  bind<&bias_activation_backward<F>>(m, std::string("bias_") + F::name + "_backward");
}

template <class F>
void bind_map(Library& m, Gated<F>) {
  bind_into<&gated<F>>(m, std::string(F::name) + "_and_mul");
}

template <class F>
void bind_map(Library& m, GatedBackward<F>) {
  bind<&gated_backward<F>>(m, std::string(F::name) + "_and_mul_backward");
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  [&]<class... Map>(std::tuple<Map...>) { (bind_map(m, Map{}), ...); }(Maps{});
}

}  // namespace
}  // namespace warpsmith
