// How a call of an operator reaches one of its rungs. A binding writes what is particular to its operator: the checks, the
// outputs, the arguments of its kernels. It is one function, which serves `op` and `op.rung`:
//
//   std::optional<Tensor> run(const Call& call, const Tensor& x, double eps) {
//     check_rows(call.op, x);
//     if (!has_kernel(call, x)) return std::nullopt;
//     Tensor y = empty_contiguous(x, x.sizes(), x.scalar_type());
//     if (y.numel() == 0) return y;
//     const L2NormalizeArgs args{...};
//     return serve(call, args, x) ? std::optional(y) : std::nullopt;
//   }
//
//   STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind<&run>(m, "l2_normalize"); }
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "host/checks.h"
#include "host/ladder.h"
#include "host/tensor.h"

namespace warpsmith {

// What a variant's name says beyond the dtype.
struct Named {
  std::string rung, accumulator;
};

// As which operator a function was called, and by which variant.
struct Call {
  const char* op;
  const Named* named = nullptr;  // nullptr: the ladder chooses
};

// Of operators that add up in f32, or by name in f16 what is f16.
inline Dtype accumulator_of(const Call& call, Dtype dtype) {
  if (call.named == nullptr || call.named->accumulator == "f32") return Dtype::f32;
  if (call.named->accumulator == "f16" && dtype == Dtype::f16) return Dtype::f16;
  fail(call.op, "no accumulator '", call.named->accumulator, "' for ", name_of(dtype));
}

// Whether kernels take the dtype of `x`, by default f32, f16 and bf16. Where they do not, the call falls back, and one that
// names a rung fails.
inline bool has_kernel(const Call& call, const Tensor& x, bool takes) {
  if (!takes && call.named != nullptr) fail(call.op, "no rung takes ", dtype_name(x.scalar_type()));
  return takes;
}

inline bool has_kernel(const Call& call, const Tensor& x) { return has_kernel(call, x, has_float_kernel(x)); }

// The rung for the call: the one that it names, or the ladder's choice for the current device, whose compute capability is
// `sm`; nullptr where the ladder has none.
template <class Args>
const Rung<Args>* pick(const Call& call, const Args& args, int sm) {
  if (call.named != nullptr) return &Ladder<Args>::named(call.op, call.named->rung, args, sm);
  return Ladder<Args>::choose(call.op, args, sm);
}

// Runs the rung for the call on the device and the stream of `like`; false where the ladder has none.
template <class Args>
bool serve(const Call& call, const Args& args, const Tensor& like) {
  const int device = like.get_device_index();
  const DeviceScope scope(device);
  const Rung<Args>* rung = pick(call, args, device_info(device).sm);
  if (rung != nullptr) Ladder<Args>::run(*rung, args, current_stream(device));
  return rung != nullptr;
}

namespace detail {

// What `op` returns where its function returns `Result`.
template <class Result>
struct Output;

template <class Type>
struct Output<std::optional<Type>> {
  using type = Type;
};

// For operators that only write into arguments: whether a kernel did.
template <>
struct Output<bool> {
  using type = void;
};

template <auto function, class = decltype(function)>
struct Binding;

template <auto function, class Result, class... Params>
struct Binding<function, Result (*)(const Call&, Params...)> {
  using Return = typename Output<Result>::type;

  static std::string& name() {
    static std::string name;
    return name;
  }

  static Return op(Params... arguments) { return answer({name().c_str()}, arguments...); }

  static Return op_rung(Params... arguments, std::string rung, std::string accumulator) {
    const Named named{std::move(rung), std::move(accumulator)};
    return answer({name().c_str(), &named}, arguments...);
  }

 private:
  static Return answer(const Call& call, const std::remove_reference_t<Params>&... arguments) {
    if (auto result = function(call, arguments...)) {
      if constexpr (std::is_void_v<Return>) {
        return;
      } else {
        return *std::move(result);
      }
    }
    return call_fallback<Return>(("warpsmith::" + name()).c_str(), arguments...);
  }
};

}  // namespace detail

// Implements `name` and `name.rung` by `function`, a function of the call and of the operator's arguments in their order. It
// returns an empty optional where no kernel takes the call, which is then handed to `name.fallback` as it came; where the
// schema has no result, false. An output that a call omits is an empty optional in its tuple, a tensor that the operator
// writes into an argument like the others. A function serves one name: one for several is a template.
template <auto function>
void bind(torch::stable::detail::StableLibrary& library, const std::string& name) {
  using Binding = detail::Binding<function>;
  if (!Binding::name().empty()) throw std::logic_error(name + ": the function serves " + Binding::name());
  Binding::name() = name;
  library.impl(name.c_str(), TORCH_BOX(&Binding::op));
  library.impl((name + ".rung").c_str(), TORCH_BOX(&Binding::op_rung));
}

}  // namespace warpsmith
