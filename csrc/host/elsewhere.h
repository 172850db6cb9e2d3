// Calls that another implementation serves faster than the kernels here, on the record: the Triton twin, or PyTorch's own.
// Python knows them (kernels/warpsmith/core/elsewhere.py), and tells the library as it loads it. A binding takes part by
//
//   bind_unless_elsewhere<&run>(m, "softmax");                                            in place of bind<&run>
//   STABLE_TORCH_LIBRARY_FRAGMENT(warpsmith, m) { define_elsewhere(m, "softmax"); }
//   STABLE_TORCH_LIBRARY_IMPL(warpsmith, CompositeExplicitAutograd, m) { implement_elsewhere(m, "softmax"); }
//
// Such a call goes to `op.fallback`, which asks Python the same question; one that names a rung does not.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "host/serve.h"

namespace warpsmith {

// What rules ask of an argument: of a tensor all but `value`, of everything else that alone.
enum class Fact : int { dtype, rank, rows, cols, order, packs, value };
inline constexpr int kFacts = 7;
using Facts = std::array<int64_t, kFacts>;

struct FactRange {
  int argument;
  Fact fact;
  int64_t least, most;
};

struct ElsewhereRule {
  int sm;
  std::vector<FactRange> ranges;
};

using ElsewhereRules = std::vector<ElsewhereRule>;

// Of an operator of this library. Their addresses stay.
inline ElsewhereRules& elsewhere(std::string_view op) {
  static std::map<std::string, ElsewhereRules, std::less<>> rules;
  const auto found = rules.find(op);
  return found == rules.end() ? rules[std::string(op)] : found->second;
}

// Numbers behind each other: the compute capability, how many ranges, and each of them: argument, fact, least, most.
inline void tell_elsewhere(std::string op, std::string text) {
  ElsewhereRules told;
  const char* at = text.c_str();  // not by a stream, which would share its state with PyTorch's
  const auto next = [&]() -> std::optional<int64_t> {
    char* end = nullptr;
    const int64_t value = std::strtoll(at, &end, 10);
    if (end == at) return std::nullopt;
    at = end;
    return value;
  };
  const auto number = [&] {
    const std::optional<int64_t> value = next();
    if (!value) throw std::runtime_error(op + ": rules that end too early");
    return *value;
  };
  while (const std::optional<int64_t> sm = next()) {
    ElsewhereRule rule{.sm = static_cast<int>(*sm), .ranges = {}};
    for (int64_t left = number(); left > 0; --left) {
      const int argument = static_cast<int>(number());
      const Fact fact = static_cast<Fact>(number());
      const int64_t least = number(), most = number();
      rule.ranges.push_back({argument, fact, least, most});
    }
    told.push_back(std::move(rule));
  }
  elsewhere(op) = std::move(told);
}

namespace detail {

// Lines of memory one behind the other: rows (0), columns of the last two dimensions (1), or neither (2).
inline int64_t order_of(const Tensor& x) {
  if (x.is_contiguous()) return 0;
  const int64_t rank = x.dim();
  if (rank < 2) return 2;
  const Sizes sizes = x.sizes(), strides = x.strides();
  const int64_t lines = sizes[rank - 1], length = sizes[rank - 2];
  bool dense = (length == 1 || strides[rank - 2] == 1) && (lines == 1 || strides[rank - 1] == length);
  int64_t apart = lines * length;
  for (int64_t d = rank - 3; d >= 0; --d) {
    dense = dense && (sizes[d] == 1 || strides[d] == apart);
    apart *= sizes[d];
  }
  return dense ? 1 : 2;
}

inline Facts facts_of(const Tensor& x) {
  constexpr int64_t kOther = 7, kPackBytes = 16;  // behind the dtypes of host/dtype.h
  const std::optional<Dtype> dtype = kernel_dtype(x.scalar_type());
  const int64_t rank = x.dim(), order = order_of(x);
  int64_t values = 1;
  for (const int64_t size : x.sizes()) values *= size;
  const int64_t cols = rank > 0 ? x.size(rank - 1) : 1, length = order == 1 ? x.size(rank - 2) : cols;
  const bool packs = dtype && order < 2 && length * size_of(*dtype) % kPackBytes == 0 &&
                     reinterpret_cast<uintptr_t>(x.data_ptr()) % kPackBytes == 0;
  return {dtype ? static_cast<int64_t>(*dtype) : kOther, rank, cols > 0 ? values / cols : 0, cols, order, packs, 0};
}

// FNV-1a: http://www.isthe.com/chongo/tech/comp/fnv/
inline int64_t value_of_text(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return static_cast<int64_t>(hash);
}

template <class T>
Facts facts_of_argument(const T& x) {
  if constexpr (std::is_same_v<T, Tensor>) {
    return facts_of(x);
  } else if constexpr (std::is_same_v<T, std::optional<Tensor>>) {
    return x ? facts_of(*x) : Facts{-1};
  } else if constexpr (std::is_same_v<T, std::string>) {
    return {0, 0, 0, 0, 0, 0, value_of_text(x)};
  } else if constexpr (std::is_same_v<T, double>) {
    return {0, 0, 0, 0, 0, 0, std::bit_cast<int64_t>(x)};
  } else {
    static_assert(std::is_integral_v<T>, "an argument that rules can ask for");
    return {0, 0, 0, 0, 0, 0, static_cast<int64_t>(x)};
  }
}

template <class First, class... Rest>
const Tensor& first_tensor(const First& first, const Rest&... rest) {
  if constexpr (std::is_same_v<First, Tensor>) {
    return first;
  } else {
    return first_tensor(rest...);
  }
}

}  // namespace detail

template <class... Arguments>
bool is_elsewhere(const ElsewhereRules& rules, const Arguments&... arguments) {
  const int sm = device_info(detail::first_tensor(arguments...).get_device_index()).sm;
  const Facts facts[] = {detail::facts_of_argument(arguments)...};
  return std::any_of(rules.begin(), rules.end(), [&](const ElsewhereRule& rule) {
    return rule.sm == sm && std::all_of(rule.ranges.begin(), rule.ranges.end(), [&](const FactRange& range) {
             const int64_t found = facts[range.argument][static_cast<int>(range.fact)];
             return range.least <= found && found <= range.most;
           });
  });
}

namespace detail {

template <auto function, class = decltype(function)>
struct UnlessElsewhere;

template <auto function, class Result, class... Params>
struct UnlessElsewhere<function, Result (*)(const Call&, Params...)> {
  static inline const ElsewhereRules* rules = nullptr;

  static Result run(const Call& call, Params... arguments) {
    if (call.named == nullptr && !rules->empty() && is_elsewhere(*rules, arguments...)) return {};
    return function(call, arguments...);
  }
};

}  // namespace detail

template <auto function>
void bind_unless_elsewhere(torch::stable::detail::StableLibrary& library, const std::string& name) {
  using Bound = detail::UnlessElsewhere<function>;
  Bound::rules = &elsewhere(name);
  bind<&Bound::run>(library, name);
}

inline void define_elsewhere(torch::stable::detail::StableLibrary& library, const std::string& name) {
  library.def(("_elsewhere_" + name + "(str op, str rules) -> ()").c_str());
}

inline void implement_elsewhere(torch::stable::detail::StableLibrary& library, const std::string& name) {
  library.impl(("_elsewhere_" + name).c_str(), TORCH_BOX(&tell_elsewhere));
}

}  // namespace warpsmith
