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
#include "host/ladder.h"
#include "host/tensor.h"

namespace warpsmith {
namespace {

const Ladder<MapArgs> ladder{"map"};

// Which rung: the ladder's own choice, or one named by a variant.
using Named = const std::string*;

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

Tensor empty_like(const Tensor& like) {
  if (is_dense(like)) return empty_strided(like, like.sizes(), like.strides(), like.scalar_type());
  return empty_contiguous(like, like.sizes(), like.scalar_type());
}

bool has_table(int map) {
  return [&]<size_t... i>(std::index_sequence<i...>) {
    return ((map == static_cast<int>(i) && std::tuple_element_t<i, Maps>::has_table) || ...);
  }(std::make_index_sequence<std::tuple_size_v<Maps>>{});
}

// Launches `map` on operands of one dtype over `shape`. False: no rung takes it, nothing was launched.
bool run(const char* op, int map, Named rung, const Tensor& x, Sizes shape, const Operand* operands, int count,
         int outputs, bool flat, float parameter) {
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
  const int device = x.get_device_index();
  const DeviceScope scope(device);
  const int sm = device_info(device).sm;
  if (rung != nullptr) {
    Ladder<MapArgs>::run_named(op, *rung, args, sm, current_stream(device));
    return true;
  }
  const Rung<MapArgs>* best = Ladder<MapArgs>::choose(args, sm);
  if (best == nullptr) return false;
  Ladder<MapArgs>::run(*best, args, current_stream(device));
  return true;
}

bool has_kernel(const Tensor& x) {
  const auto dtype = kernel_dtype(x.scalar_type());
  return dtype && *dtype != Dtype::i8 && *dtype != Dtype::i32;
}

[[noreturn]] void no_rung(const char* op) { fail(op, "no rung takes this dtype"); }

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

template <class F, class... Fallback>
Tensor unary(const Tensor& x, float parameter, Named rung, const Fallback&... arguments) {
  check_floating(F::name, "x", x);
  static const std::string full_name = std::string("warpsmith::") + F::name;
  if (has_kernel(x)) {
    Tensor out = empty_like(x);
    const std::array operands{whole(out), whole(x)};
    if (run(F::name, map_index<Unary<F>>(), rung, x, x.sizes(), operands.data(), operands.size(), 1, is_dense(x),
            parameter)) {
      return out;
    }
  } else if (rung != nullptr) {
    no_rung(F::name);
  }
  return call_fallback<Tensor>(full_name.c_str(), arguments...);
}

template <class F, class... Fallback>
Tensor unary_backward(const Tensor& grad, const Tensor& x, float parameter, Named rung, const Fallback&... arguments) {
  static const std::string name = std::string(F::name) + "_backward";
  static const std::string full_name = "warpsmith::" + name;
  check_floating(name, "x", x);
  check_same_device(name, "grad", grad, x);
  check_same_dtype(name, "grad", grad, x);
  check_same_shape(name, "grad", grad, x);
  if (has_kernel(x)) {
    Tensor out = empty_like(x);
    const std::array operands{whole(out), whole(grad), whole(x)};
    if (run(name.c_str(), map_index<UnaryBackward<F>>(), rung, x, x.sizes(), operands.data(), operands.size(), 1,
            is_dense(x) && same_layout(grad, x), parameter)) {
      return out;
    }
  } else if (rung != nullptr) {
    no_rung(name.c_str());
  }
  return call_fallback<Tensor>(full_name.c_str(), arguments...);
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
Tensor empty_for(const std::vector<int64_t>& shape, const Inputs<n>& inputs) {
  for (const Tensor* t : inputs) {
    const Sizes sizes = t->sizes();
    if (sizes.size() == shape.size() && std::equal(sizes.begin(), sizes.end(), shape.begin()) && is_dense(*t)) {
      return empty_like(*t);
    }
  }
  return empty_contiguous(*inputs[0], Sizes(shape.data(), shape.size()), inputs[0]->scalar_type());
}

// `Map` of F over x and `others`, which are called y and z.
template <template <class> class Map, class F, class... Others>
Tensor broadcasting(Named rung, const Tensor& x, const Others&... others) {
  static const std::string full_name = std::string("warpsmith::") + F::name;
  constexpr const char* kNames[] = {"y", "z"};
  check_floating(F::name, "x", x);
  size_t at = 0;
  ((check_same_device(F::name, kNames[at], others, x), check_same_dtype(F::name, kNames[at], others, x), ++at), ...);
  if (has_kernel(x)) {
    const bool flat = is_dense(x) && (same_layout(x, others) && ...);
    const Inputs<1 + sizeof...(Others)> inputs{&x, &others...};
    Tensor out = flat ? empty_like(x) : empty_for(broadcast_shape(F::name, inputs), inputs);
    const std::array operands{whole(out), whole(x), whole(others)...};
    if (run(F::name, map_index<Map<F>>(), rung, x, out.sizes(), operands.data(), operands.size(), 1, flat, 0.0f)) {
      return out;
    }
  } else if (rung != nullptr) {
    no_rung(F::name);
  }
  return call_fallback<Tensor>(full_name.c_str(), x, others...);
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
Tensor bias_activation(const Tensor& x, const Tensor& bias, Named rung) {
  static const std::string name = std::string("bias_") + F::name, full_name = "warpsmith::" + name;
  check_bias(name, x, bias);
  if (has_kernel(x)) {
    Tensor out = empty_like(x);
    const std::array operands{whole(out), whole(x), whole(bias)};
    if (run(name.c_str(), map_index<Bias<F>>(), rung, x, x.sizes(), operands.data(), operands.size(), 1, false, 0.0f)) {
      return out;
    }
  } else if (rung != nullptr) {
    no_rung(name.c_str());
  }
  return call_fallback<Tensor>(full_name.c_str(), x, bias);
}

template <class F>
Tensor bias_activation_backward(const Tensor& grad, const Tensor& x, const Tensor& bias, Named rung) {
  static const std::string name = std::string("bias_") + F::name + "_backward", full_name = "warpsmith::" + name;
  check_bias(name, x, bias);
  check_same_device(name, "grad", grad, x);
  check_same_dtype(name, "grad", grad, x);
  check_same_shape(name, "grad", grad, x);
  if (has_kernel(x)) {
    Tensor out = empty_like(x);
    const std::array operands{whole(out), whole(grad), whole(x), whole(bias)};
    if (run(name.c_str(), map_index<BiasBackward<F>>(), rung, x, x.sizes(), operands.data(), operands.size(), 1, false,
            0.0f)) {
      return out;
    }
  } else if (rung != nullptr) {
    no_rung(name.c_str());
  }
  return call_fallback<Tensor>(full_name.c_str(), grad, x, bias);
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
Tensor gated(const Tensor& x, const OptionalTensor& up, Named rung) {
  static const std::string name = std::string(F::name) + "_and_mul", full_name = "warpsmith::" + name;
  const std::vector<int64_t> shape = gate_shape(name, x, up);
  if (has_kernel(x)) {
    Tensor out = up ? empty_like(x) : empty_contiguous(x, Sizes(shape.data(), shape.size()), x.scalar_type());
    const std::array operands{whole(out), up ? whole(x) : half(x, shape, 0), up ? whole(*up) : half(x, shape, 1)};
    const bool flat = up && is_dense(x) && same_layout(x, *up);
    if (run(name.c_str(), map_index<Gated<F>>(), rung, x, out.sizes(), operands.data(), operands.size(), 1, flat,
            0.0f)) {
      return out;
    }
  } else if (rung != nullptr) {
    no_rung(name.c_str());
  }
  return call_fallback<Tensor>(full_name.c_str(), x, up);
}

template <class F>
std::tuple<Tensor, Tensor> gated_backward(const Tensor& grad, const Tensor& x, const OptionalTensor& up, Named rung) {
  static const std::string name = std::string(F::name) + "_and_mul_backward", full_name = "warpsmith::" + name;
  const std::vector<int64_t> shape = gate_shape(name, x, up);
  check_same_device(name, "grad", grad, x);
  check_same_dtype(name, "grad", grad, x);
  const Sizes expected(shape.data(), shape.size()), got = grad.sizes();
  if (got.size() != expected.size() || !std::equal(got.begin(), got.end(), expected.begin())) {
    fail(name, "expected grad to have shape ", shape_text(expected), " like x, got ", shape_text(got));
  }
  if (has_kernel(x)) {
    const int64_t none = 0;
    Tensor first = empty_like(x);
    Tensor second = up ? empty_like(*up) : empty_contiguous(x, Sizes(&none, 1), x.scalar_type());
    const std::array operands{up ? whole(first) : half(first, shape, 0), up ? whole(second) : half(first, shape, 1),
                              whole(grad), up ? whole(x) : half(x, shape, 0), up ? whole(*up) : half(x, shape, 1)};
    const bool flat = up && is_dense(x) && same_layout(x, *up) && same_layout(x, grad);
    if (run(name.c_str(), map_index<GatedBackward<F>>(), rung, x, expected, operands.data(), operands.size(), 2, flat,
            0.0f)) {
      return {first, second};
    }
  } else if (rung != nullptr) {
    no_rung(name.c_str());
  }
  return call_fallback<std::tuple<Tensor, Tensor>>(full_name.c_str(), grad, x, up);
}

// --- registration: `op` and `op.rung` for every function --------------------------------------------------------------

template <class F>
struct UnaryBinding {
  static Tensor forward(const Tensor& x) { return unary<F>(x, 0.0f, nullptr, x); }
  static Tensor forward_rung(const Tensor& x, std::string rung, std::string) { return unary<F>(x, 0.0f, &rung, x); }
  static Tensor backward(const Tensor& grad, const Tensor& x) {
    return unary_backward<F>(grad, x, 0.0f, nullptr, grad, x);
  }
  static Tensor backward_rung(const Tensor& grad, const Tensor& x, std::string rung, std::string) {
    return unary_backward<F>(grad, x, 0.0f, &rung, grad, x);
  }
};

// Functions with a parameter: elu, hardshrink.
template <class F>
  requires requires { F::parameter; }
struct UnaryBinding<F> {
  static Tensor forward(const Tensor& x, double p) { return unary<F>(x, parameter_of<F>(x, p), nullptr, x, p); }
  static Tensor forward_rung(const Tensor& x, double p, std::string rung, std::string) {
    return unary<F>(x, parameter_of<F>(x, p), &rung, x, p);
  }
  static Tensor backward(const Tensor& grad, const Tensor& x, double p) {
    return unary_backward<F>(grad, x, parameter_of<F>(x, p), nullptr, grad, x, p);
  }
  static Tensor backward_rung(const Tensor& grad, const Tensor& x, double p, std::string rung, std::string) {
    return unary_backward<F>(grad, x, parameter_of<F>(x, p), &rung, grad, x, p);
  }
};

template <class F>
struct BinaryBinding {
  static Tensor forward(const Tensor& x, const Tensor& y) { return broadcasting<Binary, F>(nullptr, x, y); }
  static Tensor forward_rung(const Tensor& x, const Tensor& y, std::string rung, std::string) {
    return broadcasting<Binary, F>(&rung, x, y);
  }
};

template <class F>
struct TernaryBinding {
  static Tensor forward(const Tensor& x, const Tensor& y, const Tensor& z) {
    return broadcasting<Ternary, F>(nullptr, x, y, z);
  }
  static Tensor forward_rung(const Tensor& x, const Tensor& y, const Tensor& z, std::string rung, std::string) {
    return broadcasting<Ternary, F>(&rung, x, y, z);
  }
};

template <class F>
struct BiasBinding {
  static Tensor forward(const Tensor& x, const Tensor& bias) { return bias_activation<F>(x, bias, nullptr); }
  static Tensor forward_rung(const Tensor& x, const Tensor& bias, std::string rung, std::string) {
    return bias_activation<F>(x, bias, &rung);
  }
  static Tensor backward(const Tensor& grad, const Tensor& x, const Tensor& bias) {
    return bias_activation_backward<F>(grad, x, bias, nullptr);
  }
  static Tensor backward_rung(const Tensor& grad, const Tensor& x, const Tensor& bias, std::string rung, std::string) {
    return bias_activation_backward<F>(grad, x, bias, &rung);
  }
};

template <class F>
struct GatedBinding {
  static Tensor forward(const Tensor& x, OptionalTensor up) { return gated<F>(x, up, nullptr); }
  static Tensor forward_rung(const Tensor& x, OptionalTensor up, std::string rung, std::string) {
    return gated<F>(x, up, &rung);
  }
  static std::tuple<Tensor, Tensor> backward(const Tensor& grad, const Tensor& x, OptionalTensor up) {
    return gated_backward<F>(grad, x, up, nullptr);
  }
  static std::tuple<Tensor, Tensor> backward_rung(const Tensor& grad, const Tensor& x, OptionalTensor up,
                                                  std::string rung, std::string) {
    return gated_backward<F>(grad, x, up, &rung);
  }
};

using Library = torch::stable::detail::StableLibrary;

template <class Binding>
void bind_one(Library& m, const std::string& name) {
  m.impl(name.c_str(), TORCH_BOX(&Binding::forward));
  m.impl((name + ".rung").c_str(), TORCH_BOX(&Binding::forward_rung));
  if constexpr (requires { &Binding::backward; }) {
    m.impl((name + "_backward").c_str(), TORCH_BOX(&Binding::backward));
    m.impl((name + "_backward.rung").c_str(), TORCH_BOX(&Binding::backward_rung));
  }
}

template <template <class> class Binding, class... F>
void bind_all(Library& m, std::tuple<F...>, const std::string& prefix, const std::string& suffix) {
  (bind_one<Binding<F>>(m, prefix + F::name + suffix), ...);
}

STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) {
  bind_all<UnaryBinding>(m, Activations{}, "", "");
  bind_all<BinaryBinding>(m, BinaryFunctions{}, "", "");
  bind_all<TernaryBinding>(m, TernaryFunctions{}, "", "");
  bind_all<BiasBinding>(m, BiasActivations{}, "bias_", "");
  bind_all<GatedBinding>(m, GatedActivations{}, "", "_and_mul");
}

}  // namespace
}  // namespace warpsmith
