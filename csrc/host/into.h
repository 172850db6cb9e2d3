// Calls that say where their results go: `op.out`, whose arguments are those of `op` and, by name, a tensor for each result
// (kernels/warpsmith/core/into.py). A binding takes part by getting its results from `result`, and by `bind_into`:
//
//   std::optional<Tensor> run(const CallInto& call, const Tensor& x, double eps) {
//     ...
//     Tensor y = result(call, x, x.sizes(), x.scalar_type());
//     ...
//   }
//
//   STABLE_TORCH_LIBRARY_IMPL(warpsmith, CUDA, m) { bind_into<&run>(m, "l2_normalize"); }
//
// Kernels write into the tensor itself where they can: it lies as they write, and shares no memory with what they read.
// Otherwise they write apart, as PyTorch's do, and the result is copied.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "host/elsewhere.h"
#include "host/memory.h"
#include "host/serve.h"

namespace warpsmith {

// How a tensor that is written to lies to those that are read.
enum class Shares { nothing, same_elements, some_memory };

// A tensor that a call gives for a result.
struct Given {
  Tensor tensor;
  const char* name;
  Shares shares = Shares::nothing;
};

struct CallInto : Call {
  const Given* given = nullptr;  // one for each result; nullptr: the call leaves it to the operator
};

namespace detail {

// From the first byte of the elements to behind the last one.
struct Reach {
  const char *first, *end;
};

inline Reach reach_of(const Tensor& x) {
  const Sizes sizes = x.sizes(), strides = x.strides();
  const auto* first = static_cast<const char*>(x.data_ptr());
  int64_t last = 0;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return {first, first};
    last += (sizes[d] - 1) * strides[d];
  }
  return {first, first + (last + 1) * static_cast<int64_t>(x.element_size())};
}

inline bool meet(const Tensor& a, const Tensor& b) {
  const Reach x = reach_of(a), y = reach_of(b);
  return x.first < y.end && y.first < x.end;
}

inline bool same_elements(const Tensor& a, const Tensor& b) {
  const Sizes x = a.sizes(), y = b.sizes(), s = a.strides(), t = b.strides();
  return a.data_ptr() == b.data_ptr() && a.element_size() == b.element_size() &&
         std::equal(x.begin(), x.end(), y.begin(), y.end()) && std::equal(s.begin(), s.end(), t.begin(), t.end());
}

template <class T>
void note_sharing(Given& given, const T& argument) {
  if constexpr (std::is_same_v<T, std::optional<Tensor>>) {
    if (argument) note_sharing(given, *argument);
  } else if constexpr (std::is_same_v<T, Tensor>) {
    if (given.shares == Shares::some_memory || !meet(given.tensor, argument)) return;
    given.shares = same_elements(given.tensor, argument) ? Shares::same_elements : Shares::some_memory;
  }
}

// Of what the result will be.
inline void check_given(const CallInto& call, const Given& given, const Tensor& like, Sizes sizes, ScalarType type) {
  const Tensor& out = given.tensor;
  const auto refuse = [&](const char* what, const std::string& wanted, const std::string& got) {
    fail(call.op, "expected ", given.name, " to ", what, " ", wanted, ", got ", got);
  };
  if (out.is_cuda() != like.is_cuda() || out.get_device_index() != like.get_device_index()) {
    refuse("be on", device_text(like), device_text(out));
  }
  if (out.scalar_type() != type) refuse("have dtype", dtype_name(type), dtype_name(out.scalar_type()));
  const Sizes shape = out.sizes();
  if (!std::equal(shape.begin(), shape.end(), sizes.begin(), sizes.end())) {
    refuse("have shape", shape_text(sizes), shape_text(shape));
  }
}

}  // namespace detail

// Bytes: where kernels take it that a result begins, as PyTorch's allocations do at least.
inline constexpr uintptr_t kResultAlignment = 16;

namespace detail {

// What a call gives for its result, if kernels can write to it as to a tensor of their own, however it lies.
inline const Tensor* given_apart(const CallInto& call, const Tensor& like, Sizes sizes, ScalarType type, int index) {
  if (call.given == nullptr) return nullptr;
  const Given& given = call.given[index];
  check_given(call, given, like, sizes, type);
  const bool packs = reinterpret_cast<uintptr_t>(given.tensor.data_ptr()) % kResultAlignment == 0;
  return packs && given.shares == Shares::nothing ? &given.tensor : nullptr;
}

}  // namespace detail

// Contiguous: what a call gives for its result, or a new tensor on the device of `like`.
inline Tensor result(const CallInto& call, const Tensor& like, Sizes sizes, ScalarType type, int index = 0) {
  const Tensor* given = detail::given_apart(call, like, sizes, type, index);
  return given != nullptr && given->is_contiguous() ? *given : empty_contiguous(like, sizes, type);
}

// The same of a result with strides.
inline Tensor result_strided(const CallInto& call, const Tensor& like, Sizes sizes, Sizes strides, ScalarType type) {
  const Tensor* given = detail::given_apart(call, like, sizes, type, 0);
  return given != nullptr && lies_with(*given, strides) ? *given : empty_strided(like, sizes, strides, type);
}

// A call that says where its results go has to leave out those that it may: `more`, whether it asks for some.
inline void check_alone(const CallInto& call, bool more) {
  if (call.given != nullptr && more) fail(call.op, "expected no more results than out is for");
}

// For operators whose kernels write with any strides, and read an element of each argument before they write that of the
// result: what the call gives, of the dtype of `like`, or nothing.
inline std::optional<Tensor> result_anywhere(const CallInto& call, const Tensor& like, Sizes sizes) {
  if (call.given == nullptr) return std::nullopt;
  detail::check_given(call, *call.given, like, sizes, like.scalar_type());
  if (call.given->shares == Shares::some_memory) return std::nullopt;
  return call.given->tensor;
}

namespace detail {

// How many results an operator never leaves out, which come before the others.
template <class Outputs>
inline constexpr size_t kResults = 1;

template <class... Each>
inline constexpr size_t kResults<std::tuple<Each...>> = (size_t{std::is_same_v<Each, Tensor>} + ...);

template <auto function, bool unless_elsewhere, class = decltype(function)>
struct Into;

template <auto function, bool unless_elsewhere, class Result, class... Params>
struct Into<function, unless_elsewhere, Result (*)(const CallInto&, Params...)> {
  using Outputs = typename Output<Result>::type;

  static std::string& name() {
    static std::string name;
    return name;
  }

  // The call that says nothing of where its results go.
  static Result anywhere(const Call& call, Params... arguments) {
    return function(CallInto{call}, std::forward<Params>(arguments)...);
  }

  static void one(Params... arguments, Tensor out) {
    std::array<Given, 1> given{Given{out, "out"}};
    write(given, arguments...);
  }

  static void two(Params... arguments, Tensor first, Tensor second) {
    std::array<Given, 2> given{Given{first, "the first of out"}, Given{second, "the second of out"}};
    write(given, arguments...);
  }

  static void three(Params... arguments, Tensor first, Tensor second, Tensor third) {
    std::array<Given, 3> given{Given{first, "the first of out"}, Given{second, "the second of out"},
                               Given{third, "the third of out"}};
    write(given, arguments...);
  }

 private:
  template <size_t count>
  static void write(std::array<Given, count>& given, const std::remove_reference_t<Params>&... arguments) {
    for (size_t i = 0; i < count; ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (meet(given[i].tensor, given[j].tensor)) fail(name(), "expected tensors for out that share no memory");
      }
    }
    for (Given& each : given) {
      check_apart(name(), "tensors for out", each.tensor);
      (note_sharing(each, arguments), ...);
    }
    const CallInto call{{name().c_str()}, given.data()};
    Result found;
    if (!is_faster_elsewhere(arguments...)) found = function(call, arguments...);
    keep(call, found ? *found : call_fallback<Outputs>(("warpsmith::" + name()).c_str(), arguments...));
  }

  static bool is_faster_elsewhere(const std::remove_reference_t<Params>&... arguments) {
    if constexpr (unless_elsewhere) {
      static const ElsewhereRules& rules = elsewhere(name());
      return !rules.empty() && is_elsewhere(rules, arguments...);
    } else {
      return false;
    }
  }

  static void keep(const CallInto& call, const Tensor& found, int index = 0) {
    const Given& given = call.given[index];
    if (found.get() == given.tensor.get()) return;
    check_given(call, given, found, found.sizes(), found.scalar_type());
    Tensor out = given.tensor;
    torch::stable::copy_(out, found);
  }

  template <class... Each>
  static void keep(const CallInto& call, const std::tuple<Each...>& found) {
    keep(call, found, std::make_index_sequence<kResults<Outputs>>());
  }

  template <class Found, size_t... index>
  static void keep(const CallInto& call, const Found& found, std::index_sequence<index...>) {
    (keep(call, std::get<index>(found), index), ...);
  }
};

template <class Bound>
void bind_out(torch::stable::detail::StableLibrary& library, const std::string& name) {
  Bound::name() = name;
  constexpr size_t count = kResults<typename Bound::Outputs>;
  static_assert(1 <= count && count <= 3);
  if constexpr (count == 1) {
    library.impl((name + ".out").c_str(), TORCH_BOX(&Bound::one));
  } else if constexpr (count == 2) {
    library.impl((name + ".out").c_str(), TORCH_BOX(&Bound::two));
  } else {
    library.impl((name + ".out").c_str(), TORCH_BOX(&Bound::three));
  }
}

}  // namespace detail

// As `bind`, and `name.out`.
template <auto function>
void bind_into(torch::stable::detail::StableLibrary& library, const std::string& name) {
  using Bound = detail::Into<function, false>;
  bind<&Bound::anywhere>(library, name);
  detail::bind_out<Bound>(library, name);
}

// As `bind_unless_elsewhere`, and `name.out`.
template <auto function>
void bind_into_unless_elsewhere(torch::stable::detail::StableLibrary& library, const std::string& name) {
  using Bound = detail::Into<function, true>;
  bind_unless_elsewhere<&Bound::anywhere>(library, name);
  detail::bind_out<Bound>(library, name);
}

}  // namespace warpsmith
